// The few functions of NCCL that pfftjax calls, declared by ourselves: the library is opened when
// it is first wanted, so that pfftjax is built and runs where there is none. nccl_check.cc holds
// these declarations against nccl.h where a build finds it.
#pragma once

#include <cstddef>
#include <string>

namespace pfftjax::gpu::nccl {

using Result = int;    // ncclResult_t; 0: success, kInProgress: not an error either
using Comm = void*;    // ncclComm_t
using Stream = void*;  // cudaStream_t

inline constexpr Result kSuccess = 0;
inline constexpr Result kInProgress = 7;

struct UniqueId {
  char internal[128];
};

// ncclDataType_t
enum DataType : int {
  kInt8 = 0,
  kUint8 = 1,
  kInt32 = 2,
  kUint32 = 3,
  kInt64 = 4,
  kUint64 = 5,
  kFloat16 = 6,
  kFloat32 = 7,
  kFloat64 = 8,
  kBfloat16 = 9,
};

// ncclRedOp_t
enum RedOp : int { kSum = 0, kProd = 1, kMax = 2, kMin = 3 };

struct Api {
  Result (*get_version)(int* version);
  Result (*get_unique_id)(UniqueId* id);
  Result (*comm_init_rank)(Comm* comm, int ranks, UniqueId id, int rank);
  Result (*comm_abort)(Comm comm);
  Result (*comm_get_async_error)(Comm comm, Result* error);
  const char* (*get_error_string)(Result result);
  Result (*group_start)();
  Result (*group_end)();
  Result (*send)(const void* data, std::size_t count, DataType type, int peer, Comm comm,
                 Stream stream);
  Result (*recv)(void* data, std::size_t count, DataType type, int peer, Comm comm, Stream stream);
  Result (*all_reduce)(const void* send, void* recv, std::size_t count, DataType type, RedOp op,
                       Comm comm, Stream stream);
  Result (*reduce)(const void* send, void* recv, std::size_t count, DataType type, RedOp op,
                   int root, Comm comm, Stream stream);
  // `count`: of what each rank receives.
  Result (*reduce_scatter)(const void* send, void* recv, std::size_t count, DataType type,
                           RedOp op, Comm comm, Stream stream);
  Result (*broadcast)(const void* send, void* recv, std::size_t count, DataType type, int root,
                      Comm comm, Stream stream);
};

// The library: of PFFTJAX_NCCL where that is set, or the one that JAX has in the process, or that
// of JAX's wheels, or the loader's. Null with the reason where there is none.
const Api* Load(std::string* why);

// "2.27.3"
std::string VersionText(int version);

}  // namespace pfftjax::gpu::nccl

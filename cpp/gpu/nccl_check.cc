// Compiled, and nothing else, where nccl.h and CUDA's headers are found: what nccl_api.h declares
// is what NCCL has.
#include <nccl.h>

#include <type_traits>

#include "gpu/nccl_api.h"

namespace pfftjax::gpu::nccl {
namespace {

// Whether a value of one type can be passed as the other, in the same registers: the same type, or
// both pointers, or integers (enumerations) of one size, or structures of one size.
template <typename Ours, typename Theirs>
constexpr bool IsLike() {
  if constexpr (std::is_same_v<Ours, Theirs>) {
    return true;
  } else if constexpr (std::is_pointer_v<Ours> && std::is_pointer_v<Theirs>) {
    using OurTarget = std::remove_pointer_t<Ours>;
    using TheirTarget = std::remove_pointer_t<Theirs>;
    if constexpr (std::is_void_v<OurTarget>) {
      return true;  // a handle
    } else {
      return std::is_const_v<OurTarget> == std::is_const_v<TheirTarget> &&
             IsLike<std::remove_const_t<OurTarget>, std::remove_const_t<TheirTarget>>();
    }
  } else if constexpr (std::is_class_v<Ours> && std::is_class_v<Theirs>) {
    return sizeof(Ours) == sizeof(Theirs) && alignof(Ours) == alignof(Theirs) &&
           std::is_trivially_copyable_v<Theirs>;
  } else {
    return (std::is_enum_v<Ours> || std::is_integral_v<Ours>) &&
           (std::is_enum_v<Theirs> || std::is_integral_v<Theirs>) &&
           sizeof(Ours) == sizeof(Theirs);
  }
}

template <typename OurResult, typename... Ours, typename TheirResult, typename... Theirs>
constexpr bool AreLike(OurResult (*)(Ours...), TheirResult (*)(Theirs...)) {
  if constexpr (sizeof...(Ours) != sizeof...(Theirs)) {
    return false;
  } else {
    return IsLike<OurResult, TheirResult>() && (IsLike<Ours, Theirs>() && ...);
  }
}

constexpr Api kNull{};
static_assert(AreLike(kNull.get_version, decltype(&ncclGetVersion){}));
static_assert(AreLike(kNull.get_unique_id, decltype(&ncclGetUniqueId){}));
static_assert(AreLike(kNull.comm_init_rank, decltype(&ncclCommInitRank){}));
static_assert(AreLike(kNull.comm_abort, decltype(&ncclCommAbort){}));
static_assert(AreLike(kNull.comm_get_async_error, decltype(&ncclCommGetAsyncError){}));
static_assert(AreLike(kNull.get_error_string, decltype(&ncclGetErrorString){}));
static_assert(AreLike(kNull.group_start, decltype(&ncclGroupStart){}));
static_assert(AreLike(kNull.group_end, decltype(&ncclGroupEnd){}));
static_assert(AreLike(kNull.send, decltype(&ncclSend){}));
static_assert(AreLike(kNull.recv, decltype(&ncclRecv){}));
static_assert(AreLike(kNull.all_reduce, decltype(&ncclAllReduce){}));
static_assert(AreLike(kNull.reduce, decltype(&ncclReduce){}));
static_assert(AreLike(kNull.reduce_scatter, decltype(&ncclReduceScatter){}));
static_assert(AreLike(kNull.broadcast, decltype(&ncclBroadcast){}));

static_assert(sizeof(UniqueId) == NCCL_UNIQUE_ID_BYTES);
static_assert(kSuccess == ncclSuccess && kInProgress == ncclInProgress);
static_assert(kInt8 == int{ncclInt8} && kUint8 == int{ncclUint8} && kInt32 == int{ncclInt32} &&
              kUint32 == int{ncclUint32} && kInt64 == int{ncclInt64} &&
              kUint64 == int{ncclUint64} && kFloat16 == int{ncclFloat16} &&
              kFloat32 == int{ncclFloat32} && kFloat64 == int{ncclFloat64} &&
              kBfloat16 == int{ncclBfloat16});
static_assert(kSum == int{ncclSum} && kProd == int{ncclProd} && kMax == int{ncclMax} &&
              kMin == int{ncclMin});

}  // namespace
}  // namespace pfftjax::gpu::nccl

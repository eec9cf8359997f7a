// The implementation of mpi_api.h over <mpi.h>. No other file knows an MPI library.
#include <mpi.h>

#include <array>
#include <atomic>
#include <cmath>
#include <cstdio>
#include <cstring>
#include <functional>
#include <limits>
#include <type_traits>

#include "base/half.h"
#include "mpi/mpi_api.h"
#include "mpi/tags.h"

namespace pfftjax {
namespace {

// Open MPI's handles are pointers, MPICH's are integers; both fit.
template <typename Mpi>
MpiHandle ToHandle(Mpi value) {
  static_assert(sizeof(Mpi) <= sizeof(MpiHandle));
  MpiHandle handle = 0;
  std::memcpy(&handle, &value, sizeof value);
  return handle;
}

template <typename Mpi>
Mpi FromHandle(MpiHandle handle) {
  Mpi value;
  std::memcpy(&value, &handle, sizeof value);
  return value;
}

MPI_Comm Comm(MpiHandle handle) { return FromHandle<MPI_Comm>(handle); }

// ---- Reductions that MPI lacks, or does otherwise than NumPy ------------------------------

// Calculates in T, or for 16-bit floating-point numbers in float.
template <typename T, typename Combine>
void CombineAll(void* in, void* inout, int* count, MPI_Datatype*) {
  using Wide = std::conditional_t<std::is_arithmetic_v<T>, T, float>;
  const auto* a = static_cast<const T*>(in);
  auto* b = static_cast<T*>(inout);
  for (int i = 0; i < *count; ++i) {
    const auto result = Combine{}(static_cast<Wide>(a[i]), static_cast<Wide>(b[i]));
    if constexpr (std::is_arithmetic_v<T>) {
      b[i] = static_cast<T>(result);
    } else {
      b[i] = T::From(result);
    }
  }
}

// A NaN wins, as in jnp.minimum and jnp.maximum, and the negative one of two zeros is less. The
// bits do not depend on which operand comes first: MPICH has each of two ranks combine what it has
// with what has arrived, and both must have the same result.
template <typename Float>
bool IsLess(Float a, Float b) {
  return a < b || (a == b && std::signbit(a) && !std::signbit(b));
}
struct Minimum {
  template <typename Float>
  Float operator()(Float a, Float b) const {
    if (a != a || b != b) return std::numeric_limits<Float>::quiet_NaN();
    return IsLess(a, b) ? a : b;
  }
};
struct Maximum {
  template <typename Float>
  Float operator()(Float a, Float b) const {
    if (a != a || b != b) return std::numeric_limits<Float>::quiet_NaN();
    return IsLess(a, b) ? b : a;
  }
};

template <typename T, typename Combine>
MPI_Op MakeOp() {
  MPI_Op op = MPI_OP_NULL;
  MPI_Op_create(CombineAll<T, Combine>, 1, &op);
  return op;
}

struct HalfType {
  MPI_Datatype type = MPI_DATATYPE_NULL;
  std::array<MPI_Op, 4> ops{};  // by Reduction, kSum to kMax
};

template <typename Half>
HalfType MakeHalfType() {
  HalfType half;
  MPI_Type_contiguous(sizeof(Half), MPI_BYTE, &half.type);
  MPI_Type_commit(&half.type);
  half.ops = {MakeOp<Half, std::plus<>>(), MakeOp<Half, std::multiplies<>>(),
              MakeOp<Half, Minimum>(), MakeOp<Half, Maximum>()};
  return half;
}

const HalfType& Half(Element element) {
  static const HalfType float16 = MakeHalfType<Float16>();
  static const HalfType bfloat16 = MakeHalfType<BFloat16>();
  return element == Element::kF16 ? float16 : bfloat16;
}

// Open MPI's vector code adds 8- and 16-bit integers with saturation; NumPy and XLA wrap around.
MPI_Op SmallIntegerSum(Element element) {
  static const MPI_Op bytes = MakeOp<std::uint8_t, std::plus<>>();
  static const MPI_Op shorts = MakeOp<std::uint16_t, std::plus<>>();
  return InfoOf(element).bytes == 1 ? bytes : shorts;
}

// MPI's minimum and maximum lose a NaN, or not, by the order of the ranks.
MPI_Op FloatExtreme(Element element, bool maximum) {
  static const std::array<MPI_Op, 4> ops = {MakeOp<float, Minimum>(), MakeOp<float, Maximum>(),
                                            MakeOp<double, Minimum>(), MakeOp<double, Maximum>()};
  return ops[(element == Element::kF64 ? 2 : 0) + (maximum ? 1 : 0)];
}

bool IsSmallInteger(Element element) {
  return element == Element::kS8 || element == Element::kU8 || element == Element::kS16 ||
         element == Element::kU16;
}

bool IsHalf(Element element) { return element == Element::kF16 || element == Element::kBF16; }

MPI_Datatype Type(Element element) {
  static const std::array<MPI_Datatype, kElements.size()> types = {MPI_C_BOOL,
                                                                   MPI_INT8_T,
                                                                   MPI_INT16_T,
                                                                   MPI_INT32_T,
                                                                   MPI_INT64_T,
                                                                   MPI_UINT8_T,
                                                                   MPI_UINT16_T,
                                                                   MPI_UINT32_T,
                                                                   MPI_UINT64_T,
                                                                   Half(Element::kF16).type,
                                                                   Half(Element::kBF16).type,
                                                                   MPI_FLOAT,
                                                                   MPI_DOUBLE,
                                                                   MPI_C_FLOAT_COMPLEX,
                                                                   MPI_C_DOUBLE_COMPLEX};
  return types[static_cast<std::size_t>(element)];
}

// MPI_Ops of users. Programs refer to them by number, and only after they were added.
std::array<MPI_Op, 1 << 12> user_ops{};
std::atomic<std::size_t> user_op_count{0};

MPI_Op Op(Reduction reduction, Element element) {
  const auto index = static_cast<std::size_t>(reduction);
  if (index >= kReductions) {
    const std::size_t user = index - kReductions;
    return user < user_op_count.load(std::memory_order_acquire) ? user_ops[user] : MPI_OP_NULL;
  }
  if (IsHalf(element)) {
    const HalfType& half = Half(element);
    return index < half.ops.size() ? half.ops[index] : MPI_OP_NULL;
  }
  if (reduction == Reduction::kSum && IsSmallInteger(element)) return SmallIntegerSum(element);
  const bool extreme = reduction == Reduction::kMin || reduction == Reduction::kMax;
  if (extreme && (element == Element::kF32 || element == Element::kF64)) {
    return FloatExtreme(element, reduction == Reduction::kMax);
  }
  const std::array<MPI_Op, kReductions> ops = {MPI_SUM, MPI_PROD, MPI_MIN,  MPI_MAX, MPI_LAND,
                                               MPI_LOR, MPI_LXOR, MPI_BAND, MPI_BOR, MPI_BXOR};
  return ops[index];
}

// ---- Communication ------------------------------------------------------------------------

// MPI's functions that move blocks of one size; `Root` is int, or nothing for those without one.
template <auto kFunction, typename... Root>
int MoveBlocks(const void* send, void* recv, std::int64_t count, Element element, Root... root,
               MpiHandle comm) {
  const int n = static_cast<int>(count);
  return kFunction(send, n, Type(element), recv, n, Type(element), root..., Comm(comm));
}

// MPI's functions that reduce over ranks.
template <auto kFunction, typename... Root>
int Reduce(const void* send, void* recv, std::int64_t count, Element element, Reduction reduction,
           Root... root, MpiHandle comm) {
  return kFunction(send, recv, static_cast<int>(count), Type(element), Op(reduction, element),
                   root..., Comm(comm));
}

int ReduceLocal(const void* in, void* inout, std::int64_t count, Element element,
                Reduction reduction) {
  return MPI_Reduce_local(in, inout, static_cast<int>(count), Type(element),
                          Op(reduction, element));
}

int Bcast(void* buffer, std::int64_t count, Element element, int root, MpiHandle comm) {
  return MPI_Bcast(buffer, static_cast<int>(count), Type(element), root, Comm(comm));
}

// The number of bytes of a message.
int BytesOf(const MPI_Status& status, std::int64_t* bytes) {
  int count = 0;
  const int code = MPI_Get_count(&status, MPI_BYTE, &count);
  *bytes = count;
  return code;
}

int Sendrecv(const void* send, std::int64_t send_count, Element send_element, int dest,
             int send_tag, void* recv, std::int64_t recv_count, Element recv_element, int source,
             int recv_tag, MpiHandle comm, Envelope* envelope, const HalfEnded& half_ended) {
  // Messages go as bytes: MPICH ends the process where one is no whole number of elements.
  const std::int64_t recv_bytes = InfoOf(recv_element).bytes;
  const int sent = static_cast<int>(send_count * InfoOf(send_element).bytes);
  const int room = static_cast<int>(recv_count * recv_bytes);
  std::array<MPI_Request, 2> requests{MPI_REQUEST_NULL, MPI_REQUEST_NULL};  // receive, send
  MPI_Status status;
  int code = 0;
  if (source == MPI_PROC_NULL || dest == MPI_PROC_NULL) {
    code = MPI_Sendrecv(send, sent, MPI_BYTE, dest, send_tag, recv, room, MPI_BYTE, source,
                        recv_tag, Comm(comm), &status);
  } else {
    code = MPI_Irecv(recv, room, MPI_BYTE, source, recv_tag, Comm(comm), requests.data());
    if (code != MPI_SUCCESS) return code;
    code = MPI_Isend(send, sent, MPI_BYTE, dest, send_tag, Comm(comm), &requests[1]);
    if (code != MPI_SUCCESS) {
      MPI_Cancel(requests.data());
      MPI_Wait(requests.data(), &status);
      return code;
    }
    int first = 0;
    MPI_Status other;
    code = MPI_Waitany(2, requests.data(), &first, &other);
    if (first == 0) status = other;
    if (half_ended.tell) half_ended.tell(half_ended.state, first == 0);
    // Both are waited for, even where one has failed: MPI may still use their memory.
    const int second = MPI_Wait(&requests[1 - first], first == 0 ? &other : &status);
    if (code == MPI_SUCCESS) code = second;
  }
  if (code != MPI_SUCCESS) return code;
  std::int64_t bytes = 0;
  const int counted = BytesOf(status, &bytes);
  *envelope = {status.MPI_SOURCE, status.MPI_TAG,
               bytes % recv_bytes == 0 ? bytes / recv_bytes : -1};
  return counted;
}

int Barrier(MpiHandle comm) { return MPI_Barrier(Comm(comm)); }

int AddOp(const void* address) {
  const std::size_t index = user_op_count.load();
  if (index == user_ops.size()) return -1;
  user_ops[index] = *static_cast<const MPI_Op*>(address);
  user_op_count.store(index + 1, std::memory_order_release);
  return static_cast<int>(kReductions + index);
}

int WriteStatus(void* address, const Envelope& envelope, Element element) {
  auto& status = *static_cast<MPI_Status*>(address);
  status.MPI_SOURCE = envelope.source;
  status.MPI_TAG = envelope.tag;
  status.MPI_ERROR = MPI_SUCCESS;
  // In bytes, as the message went: of types that are made of others Open MPI counts the parts.
  return MPI_Status_set_elements_x(&status, MPI_BYTE, envelope.count * InfoOf(element).bytes);
}

int Progress(MpiHandle comm) {
  int found = 0;
  return MPI_Iprobe(MPI_ANY_SOURCE, kNoTag, Comm(comm), &found, MPI_STATUS_IGNORE);
}

// Calls `start(..., &request)` and hands its request on.
template <typename Start>
int Started(MpiHandle* request, Start&& start) {
  MPI_Request started = MPI_REQUEST_NULL;
  const int code = start(&started);
  *request = ToHandle(started);
  return code;
}

// ---- Communicators ------------------------------------------------------------------------

int FromAddress(const void* address, MpiHandle* comm) {
  *comm = ToHandle(*static_cast<const MPI_Comm*>(address));
  return MPI_SUCCESS;
}

int ReturnErrors(MpiHandle comm) { return MPI_Comm_set_errhandler(Comm(comm), MPI_ERRORS_RETURN); }

// MPI writes the new communicator to `duplicate` when the request completes.
int DuplicateStart(MpiHandle comm, MpiHandle* duplicate, MpiHandle* request) {
  static_assert(sizeof(MPI_Comm) <= sizeof(MpiHandle));
  *duplicate = 0;
  return Started(request, [&](MPI_Request* started) {
    return MPI_Comm_idup(Comm(comm), reinterpret_cast<MPI_Comm*>(duplicate), started);
  });
}

int RankAndSize(MpiHandle comm, int* rank, int* size) {
  const int code = MPI_Comm_rank(Comm(comm), rank);
  return code == MPI_SUCCESS ? MPI_Comm_size(Comm(comm), size) : code;
}

int TagLimit(int* limit) {
  int* value = nullptr;
  int found = 0;
  const int code = MPI_Comm_get_attr(MPI_COMM_WORLD, MPI_TAG_UB, &value, &found);
  *limit = found ? *value : 32767;  // the least that MPI guarantees
  return code;
}

// ---- Bytes without waiting ----------------------------------------------------------------

int SendStart(const void* data, std::int64_t bytes, int dest, int tag, MpiHandle comm,
              MpiHandle* request) {
  return Started(request, [&](MPI_Request* started) {
    return MPI_Isend(data, static_cast<int>(bytes), MPI_BYTE, dest, tag, Comm(comm), started);
  });
}

int ReceiveStart(void* data, std::int64_t bytes, int source, int tag, MpiHandle comm,
                 MpiHandle* request) {
  return Started(request, [&](MPI_Request* started) {
    return MPI_Irecv(data, static_cast<int>(bytes), MPI_BYTE, source, tag, Comm(comm), started);
  });
}

int WaitEither(MpiHandle* receive, MpiHandle* send, int* received, std::int64_t* bytes) {
  MPI_Request requests[2] = {MPI_REQUEST_NULL, MPI_REQUEST_NULL};
  if (receive) requests[0] = FromHandle<MPI_Request>(*receive);
  if (send) requests[1] = FromHandle<MPI_Request>(*send);
  MPI_Status status;
  int which = MPI_UNDEFINED;
  const int code = MPI_Waitany(2, requests, &which, &status);
  if (which == MPI_UNDEFINED) return code != MPI_SUCCESS ? code : MPI_ERR_REQUEST;
  *received = which == 0;
  *(which == 0 ? receive : send) = ToHandle(requests[which]);
  if (code != MPI_SUCCESS) return code;
  return which == 0 ? BytesOf(status, bytes) : code;  // the status of a send has no count
}

// ---- Requests and words -------------------------------------------------------------------

int Test(MpiHandle* request, int* done, std::int64_t* bytes) {
  auto pending = FromHandle<MPI_Request>(*request);
  MPI_Status status;
  const int code = MPI_Test(&pending, done, &status);
  *request = ToHandle(pending);
  return code == MPI_SUCCESS && *done && bytes ? BytesOf(status, bytes) : code;
}

int BarrierStart(MpiHandle comm, MpiHandle* request) {
  return Started(request, [&](MPI_Request* started) { return MPI_Ibarrier(Comm(comm), started); });
}

int ReceiveWords(std::int64_t* words, int count, int tag, MpiHandle comm, int* source,
                 int* found) {
  MPI_Status status;
  const int code = MPI_Iprobe(MPI_ANY_SOURCE, tag, Comm(comm), found, &status);
  if (code != MPI_SUCCESS || !*found) return code;
  *source = status.MPI_SOURCE;
  const int bytes = count * static_cast<int>(sizeof *words);
  return MPI_Recv(words, bytes, MPI_BYTE, *source, tag, Comm(comm), MPI_STATUS_IGNORE);
}

int Probe(MpiHandle comm, Envelope* envelope, int* found) {
  MPI_Status status;
  const int code = MPI_Iprobe(MPI_ANY_SOURCE, MPI_ANY_TAG, Comm(comm), found, &status);
  if (code != MPI_SUCCESS || !*found) return code;
  *envelope = {status.MPI_SOURCE, status.MPI_TAG, 0};
  return BytesOf(status, &envelope->count);
}

// ---- Errors and the end -------------------------------------------------------------------

void ErrorText(int code, char* text, std::size_t size) {
  char buffer[MPI_MAX_ERROR_STRING] = "";
  int length = 0;
  if (MPI_Error_string(code, buffer, &length) != MPI_SUCCESS) {
    std::snprintf(buffer, sizeof buffer, "MPI error %d", code);
  }
  std::snprintf(text, size, "%s", buffer);
}

int Finalized() {
  int flag = 0;
  MPI_Finalized(&flag);
  return flag;
}

void Abort(int status) { MPI_Abort(MPI_COMM_WORLD, status); }

void (*finalize_callback)() = nullptr;

int AtFinalize(MPI_Comm, int, void*, void*) {
  if (finalize_callback) finalize_callback();
  return MPI_SUCCESS;
}

// MPI deletes the attributes of MPI_COMM_SELF before anything else in MPI_Finalize.
int OnFinalize(void (*callback)()) {
  finalize_callback = callback;
  int key = MPI_KEYVAL_INVALID;
  const int code = MPI_Comm_create_keyval(MPI_COMM_NULL_COPY_FN, AtFinalize, &key, nullptr);
  return code == MPI_SUCCESS ? MPI_Comm_set_attr(MPI_COMM_SELF, key, nullptr) : code;
}

}  // namespace
}  // namespace pfftjax

extern "C" __attribute__((visibility("default"))) const pfftjax::MpiApi* pfftjax_mpi_api() {
  using namespace pfftjax;
  static const MpiApi api = {kMpiApiVersion,
                             MPI_PROC_NULL,
                             MPI_ANY_SOURCE,
                             MPI_ANY_TAG,
                             MoveBlocks<MPI_Alltoall>,
                             MoveBlocks<MPI_Allgather>,
                             Reduce<MPI_Reduce_scatter_block>,
                             Reduce<MPI_Allreduce>,
                             Reduce<MPI_Reduce, int>,
                             Reduce<MPI_Scan>,
                             Reduce<MPI_Exscan>,
                             ReduceLocal,
                             Bcast,
                             MoveBlocks<MPI_Gather, int>,
                             MoveBlocks<MPI_Scatter, int>,
                             Sendrecv,
                             Barrier,
                             AddOp,
                             WriteStatus,
                             FromAddress,
                             DuplicateStart,
                             ReturnErrors,
                             RankAndSize,
                             TagLimit,
                             SendStart,
                             ReceiveStart,
                             WaitEither,
                             Progress,
                             Test,
                             BarrierStart,
                             ReceiveWords,
                             Probe,
                             ErrorText,
                             Finalized,
                             Abort,
                             OnFinalize};
  return &api;
}

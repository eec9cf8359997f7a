// The operations, and their names in texts.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

namespace pfftjax {

// Every operation, with its name in texts. Those from kFftOfLines on are work on a rank's own
// data, which only a profile knows.
#define PFFTJAX_OPERATIONS(X)              \
  X(kNone, "nothing")                      \
  X(kAlltoall, "alltoall")                 \
  X(kAlltoallv, "alltoallv")               \
  X(kExchangeCounts, "alltoallv (counts)") \
  X(kAllgather, "allgather")               \
  X(kAllgatherv, "allgatherv")             \
  X(kReduceScatter, "reduce_scatter")      \
  X(kAllreduce, "allreduce")               \
  X(kReduce, "reduce")                     \
  X(kScan, "scan")                         \
  X(kBcast, "bcast")                       \
  X(kGather, "gather")                     \
  X(kScatter, "scatter")                   \
  X(kBarrier, "barrier")                   \
  X(kReplicate, "replicate")               \
  X(kSendrecv, "sendrecv")                 \
  X(kSend, "send")                         \
  X(kRecv, "recv")                         \
  X(kSendrecvAll, "sendrecv (collective)") \
  X(kStart, "start")                       \
  X(kWait, "wait")                         \
  X(kTranspose, "transpose")               \
  X(kHaloExchange, "halo_exchange")        \
  X(kHaloReduce, "halo_reduce")            \
  X(kMoveRows, "move_rows")                \
  X(kReturnRows, "return_rows")            \
  X(kFft, "fft")                           \
  X(kTransposeStart, "transpose_start")    \
  X(kTransposeWait, "transpose_wait")      \
  X(kSame, "same")                         \
  X(kExpect, "expect")                     \
  X(kFftOfLines, "fft_of_lines")           \
  X(kFftAlone, "fft_alone")                \
  X(kPermute, "permute")                   \
  X(kOrderByOwner, "order_by_owner")       \
  X(kOrderByRank, "order_by_rank")         \
  X(kPaint, "paint")                       \
  X(kReadout, "readout")                   \
  X(kReadoutAlong, "readout_along")        \
  X(kReadoutAcross, "readout_across")      \
  X(kPaintFours, "paint_fours")            \
  X(kReadoutFours, "readout_fours")        \
  X(kLightPassed, "light_passed")          \
  X(kNufftOrder, "nufft_order")            \
  X(kNufftSpread, "nufft_spread")          \
  X(kNufftInterpolate, "nufft_interpolate")

enum class Operation : std::int32_t {
#define PFFTJAX_ENUMERATOR(enumerator, words) enumerator,
  PFFTJAX_OPERATIONS(PFFTJAX_ENUMERATOR)
#undef PFFTJAX_ENUMERATOR
};

// Indexed by Operation.
inline constexpr std::array kOperationNames = {
#define PFFTJAX_WORDS(enumerator, words) words,
    PFFTJAX_OPERATIONS(PFFTJAX_WORDS)
#undef PFFTJAX_WORDS
};
#undef PFFTJAX_OPERATIONS

constexpr bool IsLocal(Operation operation) { return operation >= Operation::kFftOfLines; }

constexpr const char* NameOf(Operation operation) {
  const auto index = static_cast<std::size_t>(operation);
  return index < kOperationNames.size() ? kOperationNames[index] : "an unknown operation";
}

// Whether an operation waits for its partners only, and not for all ranks of a communicator:
// kSendrecvAll, a sendrecv in which all of them take part, is none of these.
constexpr bool IsMessage(Operation operation) {
  return operation == Operation::kSendrecv || operation == Operation::kSend ||
         operation == Operation::kRecv;
}

// Whether it ends an exchange that another operation has started, of the same operand.
constexpr bool IsSecondHalf(Operation operation) {
  return operation == Operation::kWait || operation == Operation::kTransposeWait;
}

// Whether the numbers of elements of the ranks may differ: they fit between partners.
constexpr bool HasOwnCount(Operation operation) { return operation == Operation::kSendrecvAll; }

}  // namespace pfftjax

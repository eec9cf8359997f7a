// The operations, and their names in texts.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

namespace pfftjax {

enum class Operation : std::int32_t {
  kNone,
  kAlltoall,
  kAlltoallv,
  kExchangeCounts,
  kAllgather,
  kAllgatherv,
  kReduceScatter,
  kAllreduce,
  kReduce,
  kScan,
  kBcast,
  kGather,
  kScatter,
  kBarrier,
  kReplicate,
  kSendrecv,
  kSend,
  kRecv,
  kSendrecvAll,
  kStart,
  kWait,
  kTranspose,
  kHaloExchange,
  kHaloReduce,
  kMoveRows,
  kReturnRows,
  kFft,
  kTransposeStart,
  kTransposeWait,
  kSame,
  kExpect,
  // Work on a rank's own data, which only a profile knows.
  kFftOfLines,
  kFftAlone,
  kPermute,
  kOrderByOwner,
  kPaint,
  kReadout,
  kReadoutAlong,
  kReadoutAcross,
};

constexpr bool IsLocal(Operation operation) { return operation >= Operation::kFftOfLines; }

// Indexed by Operation.
inline constexpr std::array kOperationNames = {"nothing",
                                               "alltoall",
                                               "alltoallv",
                                               "alltoallv (counts)",
                                               "allgather",
                                               "allgatherv",
                                               "reduce_scatter",
                                               "allreduce",
                                               "reduce",
                                               "scan",
                                               "bcast",
                                               "gather",
                                               "scatter",
                                               "barrier",
                                               "replicate",
                                               "sendrecv",
                                               "send",
                                               "recv",
                                               "sendrecv (collective)",
                                               "start",
                                               "wait",
                                               "transpose",
                                               "halo_exchange",
                                               "halo_reduce",
                                               "move_rows",
                                               "return_rows",
                                               "fft",
                                               "transpose_start",
                                               "transpose_wait",
                                               "same",
                                               "expect",
                                               "fft_of_lines",
                                               "fft_alone",
                                               "permute",
                                               "order_by_owner",
                                               "paint",
                                               "readout",
                                               "readout_along",
                                               "readout_across"};
static_assert(kOperationNames.size() == static_cast<std::size_t>(Operation::kReadoutAcross) + 1);

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

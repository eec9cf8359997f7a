// This is what the handlers of messages for CPUs and for GPUs share.
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "collectives/exchange.h"
#include "runtime/agreement.h"
#include "runtime/errors.h"

namespace pfftjax {

// Ranks come as shifts from one's own rank (modulo the size), so that the program of a ring is the
// same on every rank; these stand for MPI_PROC_NULL and MPI_ANY_SOURCE
// (pfftjax/collectives/_partner.py).
inline constexpr std::int32_t kShiftToNobody = -1;
inline constexpr std::int32_t kShiftToAnybody = -2;

// The rank that is so far away.
inline int RankAt(const Communicator& comm, std::int32_t shift) {
  return static_cast<int>((comm.rank + std::int64_t{shift}) % comm.size);
}

// This is what one rank sends and receives in a sendrecv that all ranks of the communicator make;
// ranks are kNobody where it does not.
struct Partners {
  Partners(const Communicator& comm, std::int32_t source_shift, std::int32_t dest_shift,
           std::int64_t receives, std::int64_t sends)
      : source(source_shift == kShiftToNobody ? kNobody : RankAt(comm, source_shift)),
        dest(dest_shift == kShiftToNobody ? kNobody : RankAt(comm, dest_shift)),
        received(source == kNobody ? 0 : receives),
        sent(dest == kNobody ? 0 : sends) {}

  Block To(int rank) const { return {0, rank == dest ? sent : 0}; }
  Block From(int rank) const { return {0, rank == source ? received : 0}; }

  int source;
  int dest;
  std::int64_t received;
  std::int64_t sent;
};

// An error on all ranks where what they send is not what they expect of each other: NCCL would
// wait for ever, and MPI keep what nobody expects for whoever expects something else. Each message
// counts once where it is sent, and back where it is expected: the sum over the ranks of hashes of
// (from, to, size) is 0 if they fit, and by chance once in 2^64 if not. Collective.
inline ffi::Error CheckPartners(Operation operation, Communicator& comm, const Partners& mine) {
  const auto hash = [](std::int64_t from, std::int64_t to, std::int64_t size) -> std::uint64_t {
    const std::array<std::int64_t, 3> message{from, to, size};
    if (size == 0) return 0;
    // Hash alone is nearly linear: its values of wrong partners would often cancel in a sum.
    std::uint64_t mixed = Hash(message.data(), sizeof message);
    for (int round = 0; round < 2; ++round) mixed = (mixed ^ (mixed >> 32)) * 0xd6e8feb86659fd93u;
    return mixed ^ (mixed >> 32);
  };
  const std::uint64_t here =
      hash(comm.rank, mine.dest, mine.sent) - hash(mine.source, comm.rank, mine.received);
  std::uint64_t sum = 0;
  if (const int code =
          Mpi()->allreduce(&here, &sum, 1, Element::kU64, Reduction::kSum, comm.control)) {
    return MpiFailed(operation, comm, Element::kU64, 1, code);
  }
  if (sum == 0) return ffi::Error::Success();
  const auto say = [](const char* what, std::int64_t count, const char* where, int rank) {
    return rank == kNobody ? std::string(what) + " nothing"
                           : std::string(what) + " " + std::to_string(count) + " elements " +
                                 where + " rank " + std::to_string(rank);
  };
  return Failed(operation, comm,
                "what the ranks send and what they expect of each other does not fit; this one " +
                    say("sends", mine.sent, "to", mine.dest) + ", and " +
                    say("expects", mine.received, "from", mine.source) +
                    ": each rank must be the source of its dest, with the size of its recvbuf "
                    "(where not all ranks take part, leave collective=True away)");
}

}  // namespace pfftjax

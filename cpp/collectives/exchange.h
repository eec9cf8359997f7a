// Exchanges blocks of any size between all pairs of ranks, in MPI calls of bounded size.
#pragma once

#include <algorithm>
#include <cstdint>

#include "base/chunks.h"
#include "mpi/tags.h"
#include "runtime/agreement.h"
#include "runtime/communicator.h"

namespace pfftjax {

// What all ranks mean alike by their present collective, as a hash that is odd.
inline std::uint64_t MeaningOf(const Communicator& comm) {
  return comm.progress.MeaningOf(comm.progress.passed) | 1u;
}

// The tag of the messages of this rank's present collective.
inline int ExchangeTag(const Communicator& comm) { return kExchangeTags.Of(MeaningOf(comm)); }

// Sends `sends` elements to `dest` and receives `receives` from `source`, in MPI calls of bounded
// size; either may be none. An MPI code.
inline int SendrecvInChunks(const Communicator& comm, const void* send, std::int64_t sends,
                            int dest, void* recv, std::int64_t receives, int source,
                            Element element) {
  const MpiApi& mpi = *Mpi();
  const int tag = ExchangeTag(comm);
  const std::int64_t limit = ChunkElements(element);
  return ForEachChunk(std::max(sends, receives), limit, [&](std::int64_t offset, std::int64_t) {
    const std::int64_t sent = std::clamp<std::int64_t>(sends - offset, 0, limit);
    const std::int64_t received = std::clamp<std::int64_t>(receives - offset, 0, limit);
    Envelope arrived;
    const int code = mpi.sendrecv(
        At(send, sent > 0 ? offset : 0, element), sent, element, sent > 0 ? dest : mpi.proc_null,
        tag, At(recv, received > 0 ? offset : 0, element), received, element,
        received > 0 ? source : mpi.proc_null, tag, comm.control, &arrived, {});
    return code == 0 && received > 0 && arrived.count != received ? kShortMessage : code;
  });
}

// Blocks of one size between all ranks, or between one of them and all: which of them this rank
// sends to each other one, and receives from it.
enum class Pattern { kAlltoall, kAllgather, kGather, kScatter };
struct EqualBlocks {
  Pattern pattern;
  Place place;
  std::int64_t block;
  int root = -1;

  Block To(int rank) const {
    const bool is_for_each = pattern == Pattern::kAlltoall || pattern == Pattern::kScatter;
    return IsMoved(place.rank, rank) ? Block{is_for_each ? rank * block : 0, block} : Block{};
  }
  Block From(int rank) const {
    const bool is_of_each = pattern != Pattern::kScatter;
    return IsMoved(rank, place.rank) ? Block{is_of_each ? rank * block : 0, block} : Block{};
  }

 private:
  bool IsMoved(int source, int dest) const {
    return (pattern != Pattern::kGather || dest == root) &&
           (pattern != Pattern::kScatter || source == root);
  }
};

// Sends `blocks.To(rank)` of `send` to each rank and receives `blocks.From(rank)` of `recv` from
// it, one pair of partners after the other. Both sides of a pair know its size, so empty blocks
// cost no message, and each chunk of a pair is matched by a chunk of the same size.
template <typename Blocks>
int ExchangeBlocks(const Communicator& comm, const void* send, void* recv, const Blocks& blocks,
                   Element element) {
  for (int step = 0; step < comm.size; ++step) {
    const int dest = (comm.rank + step) % comm.size;
    const int source = (comm.rank - step + comm.size) % comm.size;
    const Block out = blocks.To(dest);
    const Block in = blocks.From(source);
    const int code = SendrecvInChunks(comm, At(send, out.offset, element), out.count, dest,
                                      At(recv, in.offset, element), in.count, source, element);
    if (code != 0) return code;
  }
  return 0;
}

inline int AlltoallInChunks(const Communicator& comm, const void* send, void* recv,
                            std::int64_t block, Element element) {
  if (block * comm.size <= ChunkElements(element)) {
    return Mpi()->alltoall(send, recv, block, element, comm.data);
  }
  const EqualBlocks blocks{Pattern::kAlltoall, comm, block};
  return ExchangeBlocks(comm, send, recv, blocks, element);
}

}  // namespace pfftjax

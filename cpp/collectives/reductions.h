// This is what the handlers of reductions for CPUs and for GPUs share.
#pragma once

#include "collectives/exchange.h"

namespace pfftjax {

// The result of a reduction is on all ranks, on one, or a block of it on each.
enum class Spread { kAll, kRoot, kBlocks };

struct Reducing {
  Spread spread;
  Reduction reduction;
  Element element;
  std::int64_t count;  // elements of a result
  int root = -1;
};

// Reduces `x` by MPI in pieces of bounded size; where the result is on one rank, `y` counts there
// only. An MPI code.
inline int ReduceInChunks(const Communicator& comm, const Reducing& what, const void* x, void* y) {
  const Element element = what.element;
  const std::int64_t count = what.count;
  if (what.spread != Spread::kBlocks) {
    return ForEachChunk(
        count, ChunkElements(element), [&](std::int64_t offset, std::int64_t piece) {
          const void* const from = At(x, offset, element);
          void* const to = At(y, offset, element);
          return what.spread == Spread::kAll
                     ? Mpi()->allreduce(from, to, piece, element, what.reduction, comm.data)
                     : Mpi()->reduce(from, to, piece, element, what.reduction, what.root,
                                     comm.data);
        });
  }
  if (count == 0) return 0;
  if (count * comm.size <= ChunkElements(element)) {
    return Mpi()->reduce_scatter(x, y, count, element, what.reduction, comm.data);
  }
  // A chunk of every block is not contiguous: one reduction to each rank instead of a copy.
  for (int rank = 0; rank < comm.size; ++rank) {
    const int code = ReduceInChunks(comm, {Spread::kRoot, what.reduction, element, count, rank},
                                    At(x, rank * count, element), y);
    if (code != 0) return code;
  }
  return 0;
}

}  // namespace pfftjax

// What the handlers of reductions for CPUs and for GPUs share.
#pragma once

#include "collectives/exchange.h"

namespace pfftjax {

// MPI's allreduce, in pieces of bounded size; an MPI code.
inline int AllreduceInChunks(const Communicator& comm, const void* x, void* y, std::int64_t count,
                             Element element, Reduction reduction) {
  return ForEachChunk(count, ChunkElements(element), [&](std::int64_t offset, std::int64_t piece) {
    return Mpi()->allreduce(At(x, offset, element), At(y, offset, element), piece, element,
                            reduction, comm.data);
  });
}

// To `root`; `y` counts there only.
inline int ReduceInChunks(const Communicator& comm, const void* x, void* y, std::int64_t count,
                          Element element, Reduction reduction, int root) {
  return ForEachChunk(count, ChunkElements(element), [&](std::int64_t offset, std::int64_t piece) {
    return Mpi()->reduce(At(x, offset, element), At(y, offset, element), piece, element, reduction,
                         root, comm.data);
  });
}

// Of blocks of `block` elements, one a rank, each to its rank.
inline int ReduceScatterInChunks(const Communicator& comm, const void* x, void* y,
                                 std::int64_t block, Element element, Reduction reduction) {
  if (block == 0) return 0;
  if (block * comm.size <= ChunkElements(element)) {
    return Mpi()->reduce_scatter(x, y, block, element, reduction, comm.data);
  }
  // A chunk of every block is not contiguous: one reduction to each rank instead of a copy.
  for (int root = 0; root < comm.size; ++root) {
    const int code =
        ReduceInChunks(comm, At(x, root * block, element), y, block, element, reduction, root);
    if (code != 0) return code;
  }
  return 0;
}

}  // namespace pfftjax

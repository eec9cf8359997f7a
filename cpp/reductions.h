// What the handlers of reductions for CPUs and for GPUs share.
#pragma once

#include "exchange.h"

namespace pfftjax {

// MPI's allreduce, in pieces of bounded size; an MPI code.
inline int AllreduceInChunks(const Communicator& comm, const void* x, void* y, std::int64_t count,
                             Element element, Reduction reduction) {
  return ForEachChunk(count, ChunkElements(element), [&](std::int64_t offset, std::int64_t piece) {
    return Mpi()->allreduce(At(x, offset, element), At(y, offset, element), piece, element,
                            reduction, comm.data);
  });
}

}  // namespace pfftjax

// The ways from one pencil to another. Which one an operation takes is part of the program, so
// that all ranks take the same (pfftjax/pencils/_method.py).
#pragma once

#include <cstdint>

#include "pencils/transposition.h"
#include "runtime/communicator.h"
#include "runtime/errors.h"

namespace pfftjax {

enum class Method : std::int64_t {
  kAutomatic,  // the first of the following that can be had; of transforms, see `GoesByNodes`
  kFused,      // with the transforms on both sides, in one pass through shared memory
  kShared,     // by itself, through shared memory
  kMessages,   // in pieces, from rank to rank
  kAlltoall,   // by one collective of MPI's
  kPipelined,  // by other operations (pfftjax/pencils/_overlap.py), never by a handler
  // Within nodes as kFused, or as kShared; between them one stream for each rank and node.
  kHierarchical,
};

// Whether a transform by this method goes from node to node here: then all ranks of the
// communicator know their nodes. Redistributions alone do so by kHierarchical only: between nodes
// kMessages packs and unpacks while pieces travel. Collective when it is first asked.
bool GoesByNodes(Communicator& comm, Method method);

// Returns MPI's code, or kNotShared for a method that needs memory which the ranks do not share.
int Redistribute(ffi::ThreadPool& pool, Communicator& comm, Method method, const void* source,
                 void* target, const Transposition& boxes, Element element);

}  // namespace pfftjax

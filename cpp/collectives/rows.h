// alltoallv and allgatherv exchange rows between all pairs of ranks, counted at run time. This is
// what they share on all platforms.
#pragma once

#include <cstdint>
#include <tuple>
#include <utility>
#include <vector>

#include "collectives/exchange.h"
#include "runtime/handlers.h"

namespace pfftjax {

// `body(communicator, element, elements in a row)` moves the rows of x, which follow each other
// along its first axis.
template <typename Body>
ffi::Error RunOnRows(const CallSite& site, const Operand& x, Body&& body) {
  const Element element = ElementOf(x.element_type());
  const std::int64_t width = WidthOf(x, 1);
  return Run(site, Payload{element, width},
             [&](Communicator& comm) { return body(comm, element, width); });
}

// Rows of `width` elements, one block after the other, and the number of elements in all.
inline std::pair<std::vector<Block>, std::int64_t> Blocks(int ranks, const std::int32_t* counts,
                                                          std::int64_t width) {
  std::vector<Block> result;
  std::int64_t offset = 0;
  for (int rank = 0; rank < ranks; ++rank) {
    result.push_back({offset, counts[rank] * width});
    offset += counts[rank] * width;
  }
  return {std::move(result), offset};
}

// A rank sends and receives these blocks, in elements: rows for each rank, or (kSame) the first
// ones for all.
struct RaggedBlocks {
  template <bool kSame>
  static RaggedBlocks Make(int ranks, const std::int32_t* outgoing, const std::int32_t* incoming,
                           std::int64_t width) {
    RaggedBlocks result;
    std::tie(result.from, result.received) = Blocks(ranks, incoming, width);
    if (kSame) {
      result.sent = outgoing[0] * width;
      result.to.assign(static_cast<std::size_t>(ranks), Block{0, result.sent});
    } else {
      std::tie(result.to, result.sent) = Blocks(ranks, outgoing, width);
    }
    return result;
  }
  Block To(int rank) const { return to[rank]; }
  Block From(int rank) const { return from[rank]; }
  bool Fit(const Operand& x, const Operand& y) const {
    return sent >= 0 && received >= 0 && sent <= CountOf(x) && received <= CountOf(y);
  }

  std::vector<Block> to;
  std::vector<Block> from;
  std::int64_t sent = 0;
  std::int64_t received = 0;
};

inline ffi::Error RowsDoNotFit(Operation operation, const Communicator& comm) {
  return Failed(operation, comm, "the counts exceed the rows of the buffers");
}

}  // namespace pfftjax

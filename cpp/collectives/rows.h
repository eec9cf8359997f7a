// Rows between all pairs of ranks, counted at run time: what alltoallv and allgatherv share on all
// platforms.
#pragma once

#include <cstdint>
#include <utility>
#include <vector>

#include "collectives/exchange.h"
#include "runtime/handlers.h"

namespace pfftjax {

// `body(communicator, element, elements in a row)` moves the rows of x.
template <typename Body>
ffi::Error RunOnRows(const CallSite& site, const Operand& x, Body&& body) {
  const std::optional<Element> element = ElementOf(x.element_type());
  if (!element) return BadElement(site.operation, x.element_type());
  std::int64_t width = 1;
  for (std::size_t i = 1; i < x.dimensions().size(); ++i) width *= x.dimensions()[i];
  return Run(site, Payload{*element, width},
             [&](Communicator& comm) { return body(comm, *element, width); });
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
// The same where (kSame) one block, of the first count, is for all ranks.
template <bool kSame>
std::pair<std::vector<Block>, std::int64_t> BlocksTo(int ranks, const std::int32_t* counts,
                                                     std::int64_t width) {
  if (!kSame) return Blocks(ranks, counts, width);
  const Block first{0, counts[0] * width};
  return {std::vector<Block>(static_cast<std::size_t>(ranks), first), first.count};
}

inline bool RowsFit(const Operand& x, std::int64_t sent, Result& y, std::int64_t received) {
  return sent >= 0 && received >= 0 && sent <= static_cast<std::int64_t>(x.element_count()) &&
         received <= static_cast<std::int64_t>(y->element_count());
}

inline ffi::Error RowsDoNotFit(Operation operation, const Communicator& comm) {
  return Failed(operation, comm, "the counts exceed the rows of the buffers");
}

}  // namespace pfftjax

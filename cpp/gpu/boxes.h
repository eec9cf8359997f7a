// Boxes between all pairs of ranks, in arrays on GPUs: packed by one kernel, sent, and unpacked by
// one kernel.
#pragma once

#include <vector>

#include "gpu/transport.h"
#include "pencils/stream.h"

namespace pfftjax::gpu {

// Blocks begin at multiples of so many bytes, so that kernels may access 16 at a time.
inline constexpr std::int64_t kPackedAlignment = 256;

// The boxes that are packed for each rank, or come packed from it, follow each other. A box begins
// where its elements are aligned, however many the one before has.
struct Packed {
  std::vector<Block> blocks;    // of bytes, by rank
  std::vector<BoxCopy> copies;  // into the packed memory, or out of it
  std::int64_t bytes = 0;
};

// All boxes of one exchange. Their copies have no addresses yet.
struct PackedBoxes {
  PackedBoxes(Place place, const BoxesOf& boxes, std::int64_t element_bytes);

  Packed leaving;
  Packed arriving;
  std::vector<BoxCopy> staying;  // on this rank
};

// The same copies, from `source` to `target`.
std::vector<BoxCopy> Between(std::vector<BoxCopy> copies, const void* source, void* target);

// Enqueues copies, if there are any; an error names `what`.
void CopyBoxes(const std::vector<BoxCopy>& copies, Element element, Queue& queue,
               const char* what);

// Does what StreamBoxes (stream.h) does, with sums in the same order: they have the same bits.
int ExchangeBoxes(Communicator& comm, const void* source, void* target, const BoxesOf& boxes,
                  Element element, Arrival arrival, Queue& queue);

}  // namespace pfftjax::gpu

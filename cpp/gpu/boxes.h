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
  std::vector<Block> blocks;  // of bytes, by rank
  struct Part {
    Box array;
    Box packed;
  };
  std::vector<Part> parts;
  std::int64_t bytes = 0;

  void Add(int rank, const std::vector<Box>& boxes, std::int64_t element_bytes);
};

// All boxes of one exchange.
class PackedBoxes {
 public:
  PackedBoxes(Place place, const BoxesOf& boxes, std::int64_t element_bytes);

  const Packed& leaving() const { return leaving_; }
  const Packed& arriving() const { return arriving_; }

  // These are copies for CopyBoxes: of what leaves, of what arrives, and of what stays here.
  std::vector<BoxCopy> Packing(const void* source, void* packed) const;
  std::vector<BoxCopy> Unpacking(const void* received, void* target) const;
  std::vector<BoxCopy> Staying(const void* source, void* target) const;

 private:
  Packed leaving_;
  Packed arriving_;
  std::vector<Box> mine_;  // of what stays, in the source
  std::vector<Box> theirs_;
};

// Enqueues copies, if there are any; an error names `what`.
void CopyBoxes(const std::vector<BoxCopy>& copies, Element element, Queue& queue,
               const char* what);

// Does what StreamBoxes (stream.h) does, with sums in the same order: they have the same bits.
int ExchangeBoxes(Communicator& comm, const void* source, void* target, const BoxesOf& boxes,
                  Element element, Arrival arrival, Queue& queue);

}  // namespace pfftjax::gpu

// Boxes inside arrays: what one rank sends to another when it does not lie in one piece.
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>

#include "base/distribution.h"
#include "base/element.h"

namespace pfftjax {

inline constexpr int kMaxDims = 12;

// A box of an array, its dimensions in the order in which its elements travel; strides in elements
// of the array, which need not fall from one dimension to the next.
struct Box {
  int dims = 0;
  std::array<std::int64_t, kMaxDims> extent{};
  std::array<std::int64_t, kMaxDims> stride{};
  std::int64_t offset = 0;

  std::int64_t count() const {
    std::int64_t product = 1;
    for (int d = 0; d < dims; ++d) product *= extent[d];
    return product;
  }
};

// Cuts a box into pieces of at most `limit` elements, the same for all boxes of equal extents:
// slices of the first dimensions, so that the pieces follow each other in the order of travel.
class Pieces {
 public:
  Pieces(const Box& box, std::int64_t limit);
  // False after the last one.
  bool Next(Box* piece);

 private:
  Box box_;
  int cut_ = 0;              // dimensions before it are taken one by one, those after it whole
  std::int64_t slices_ = 1;  // of the dimension `cut_` in a piece
  std::array<std::int64_t, kMaxDims> at_{};
  bool done_ = false;
};

// Elements of `from` to the places of `to`, which has the same extents.
void CopyBox(const void* source, const Box& from, void* target, const Box& to,
             std::int64_t element_bytes);
// The same, added to what is there; of bool the or.
void AddBox(const void* source, const Box& from, void* target, const Box& to, Element element);

// Whether neighbours in memory are no longer neighbours after the move.
bool ChangesOrder(const Box& from, const Box& to);

// A box of these extents without gaps.
Box Contiguous(const Box& like);

}  // namespace pfftjax

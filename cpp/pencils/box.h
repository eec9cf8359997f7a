// Boxes inside arrays: what one rank sends to another when it does not lie in one piece.
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>

#include "base/element.h"
#include "base/place.h"

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

// The part of an axis of length n that the block distribution gives to one of `parts`: all sizes
// equal, but for the remainder, which the first parts have one more of.
struct Range {
  std::int64_t start = 0;
  std::int64_t count = 0;
};
inline Range BlockOf(std::int64_t n, std::int64_t parts, std::int64_t part) {
  const std::int64_t size = n / parts;
  const std::int64_t rest = n % parts;
  return {part * size + std::min(part, rest), size + (part < rest ? 1 : 0)};
}
inline Range BlockOf(std::int64_t n, Place place) { return BlockOf(n, place.size, place.rank); }

// What each pair of ranks exchanges when an axis that is whole becomes split, and one that is
// split becomes whole.
struct Volume {
  std::int64_t scattered = 0;  // the lengths of these axes
  std::int64_t gathered = 0;
  std::int64_t bytes = 0;  // for each pair of an element of one and an element of the other

  std::int64_t Between(int from, int to, int ranks) const {
    return bytes * BlockOf(gathered, ranks, from).count * BlockOf(scattered, ranks, to).count;
  }
  // Rank 0 has the largest blocks.
  std::int64_t Most(int ranks) const { return Between(0, 0, ranks); }
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

// How an axis is distributed over ranks, in blocks, and what ranks exchange when another one is.
#pragma once

#include <algorithm>
#include <cstdint>

#include "base/place.h"

namespace pfftjax {

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

// One of the pieces that a block is cut into, by the block distribution again.
struct Piece {
  int index = 0;
  int pieces = 1;

  Range In(Range block) const {
    if (pieces == 1) return block;
    const Range part = BlockOf(block.count, pieces, index);
    return {block.start + part.start, part.count};
  }
};

// The size of a row of so many elements: those of each, and those of each block that is begun.
struct RowSize {
  std::int64_t of_element = 1;
  std::int64_t of_block = 0;
  std::int64_t block = 1;  // elements

  std::int64_t operator()(std::int64_t n) const {
    return n * of_element + (n + block - 1) / block * of_block;
  }
};

// What each pair of ranks exchanges when an axis that is whole becomes split, and one that is
// split becomes whole.
struct Volume {
  std::int64_t scattered = 0;  // the lengths of these axes
  std::int64_t gathered = 0;
  std::int64_t bytes = 0;  // for each pair of an element of one and an element of the other
  // Where rows run along one of these axes, what a part of it counts for.
  RowSize of_scattered{};
  RowSize of_gathered{};
  // Where the exchange is cut along one of these axes, the piece of each block of it.
  Piece scattered_piece{};
  Piece gathered_piece{};

  std::int64_t Between(int from, int to, int ranks) const {
    return bytes * of_gathered(gathered_piece.In(BlockOf(gathered, ranks, from)).count) *
           of_scattered(scattered_piece.In(BlockOf(scattered, ranks, to)).count);
  }
  // Rank 0 has the largest blocks.
  std::int64_t Most(int ranks) const { return Between(0, 0, ranks); }
};

}  // namespace pfftjax

// Boxes are brought to few dimensions, in words as large as alignment allows, and cut into tiles,
// before the kernels get them. This is plain C++, so that it is tested without a GPU.
//
// A tile is what one block of threads moves at a time. Where the same dimension is contiguous in
// source and target, or none is, a tile is a number of rows: 2^log_width words of each of
// 2^(LogRowTile - log_width) rows. Where different ones are, it is a square that is turned in the
// memory which the block shares.
#pragma once

#include <cstdint>
#include <functional>
#include <limits>

#include "base/host_device.h"
#include "gpu/device.h"

namespace pfftjax::gpu {

// Threads of a block, and words that each of them has on their way at a time: of small ones more,
// as it is bytes on their way that keep the memory busy.
inline constexpr int kLogThreads = 8;
inline constexpr std::uint32_t kThreads = 1u << kLogThreads;
PFFTJAX_HOST_DEVICE constexpr int LogWordsPerThread(std::size_t word_bytes) {
  return word_bytes <= 4 ? 3 : 2;
}
PFFTJAX_HOST_DEVICE constexpr int LogRowTile(std::size_t word_bytes) {
  return kLogThreads + LogWordsPerThread(word_bytes);
}
// From this width on, all words of a thread are in one row, whose place is found once.
PFFTJAX_HOST_DEVICE constexpr int LogWideRow(std::size_t word_bytes) {
  return 5 + LogWordsPerThread(word_bytes);
}

// Number of supported word sizes: 1, 2, 4, 8 and 16 bytes.
inline constexpr int kWordSizes = 5;

// Words along a side of a square: a line of it should be no less than two sectors of memory.
PFFTJAX_HOST_DEVICE constexpr std::uint32_t SquareSide(std::size_t word_bytes) {
  return word_bytes <= 4 ? 64 : 32;
}

// A dimension that is neither along a row nor in the plane of a square. Numbers of rows and
// squares are below 2^31 and are divided by multiplying: n / extent = (n * multiplier) >> shift.
struct Axis {
  std::int64_t from;  // strides in bytes
  std::int64_t to;
  std::uint32_t extent;
  std::uint32_t multiplier;
  std::int32_t shift;

  PFFTJAX_HOST_DEVICE std::uint32_t Divide(std::uint32_t n) const {
    return static_cast<std::uint32_t>((std::uint64_t{n} * multiplier) >> shift);
  }
};
Axis MakeAxis(std::uint32_t extent, std::int64_t from, std::int64_t to);

// A box on its way. x runs along rows and along the lines of a square in the source; y along the
// lines of a square in the target. Strides in bytes; `width` and `height` in words.
struct Move {
  const unsigned char* source;
  unsigned char* target;
  std::int64_t x_from;
  std::int64_t x_to;
  std::int64_t y_from;  // of squares; y_to is a word
  std::uint32_t width;
  std::uint32_t height;  // of squares; of rows their number
  std::uint32_t tiles_begin;
  std::uint32_t tiles_end;
  std::int8_t log_width;  // kSquares for squares
  std::int8_t axes_begin;
  std::int8_t axes_count;
};
inline constexpr std::int8_t kSquares = -1;

// One launch moves this, all in words of the same size; it travels as the kernel's parameter,
// which may have 4 KiB.
struct Batch {
  static constexpr int kMoves = 26;
  static constexpr int kAxes = 68;
  Move moves[kMoves];
  Axis axes[kAxes];  // of a move, the one with the smallest strides first
  std::int32_t count;
  std::int32_t word_bytes;
  std::uint32_t tiles;
};
static_assert(sizeof(Batch) <= 4096);
static_assert(Batch::kAxes > kMaxDims, "a box has a place in an empty batch");

// kWords moves the bytes in whatever words fit; kElements keeps the elements, to add them.
enum class Unit { kWords, kElements };

// launch(batch) for batches of all boxes, as few as there can be, until one returns an error,
// which is returned. No moves of more than `most_words`: larger boxes are cut, so that the kernels
// count in 32 bits.
int PlanBoxes(const BoxCopy* copies, int count, std::int64_t element_bytes, Unit unit,
              const std::function<int(const Batch&)>& launch,
              std::int64_t most_words = std::numeric_limits<std::int32_t>::max());

}  // namespace pfftjax::gpu

// The ghosts of a block, as boxes.
#pragma once

#include <algorithm>
#include <cstdint>
#include <vector>

#include "pencils/transposition.h"

namespace pfftjax {

// An axis of length `whole` in blocks, and the same blocks with `before` and `after` ghosts.
struct Halo {
  std::int64_t axis;
  std::int64_t whole;
  std::int64_t before;
  std::int64_t after;
  bool is_periodic;
};

// Boxes between each owner's block and the padded blocks in which parts of it appear; they may do
// so more than once, where the padding goes round the whole axis.
class HaloBoxes : public BoxesOf {
 public:
  // `block` is the array without ghosts.
  HaloBoxes(Place place, const Halo& halo, Dimensions block, bool to_ghosts)
      : place_(place), halo_(halo), block_(block), to_ghosts_(to_ghosts) {}

  std::vector<Box> To(int rank) const override {
    return to_ghosts_ ? Owned(place_.rank, rank) : Padded(rank, place_.rank);
  }
  std::vector<Box> From(int rank) const override {
    return to_ghosts_ ? Padded(rank, place_.rank) : Owned(place_.rank, rank);
  }

 private:
  // The parts that `owner` owns of what `holder` holds, as boxes of the owner's block.
  std::vector<Box> Owned(int owner, int holder) const {
    std::vector<Box> boxes;
    const Range owned = BlockOf(halo_.whole, place_.size, owner);
    ForEachPart(owner, holder, [&](std::int64_t start, std::int64_t count, std::int64_t shift) {
      boxes.push_back(Part(owned.count, start - shift - owned.start, count));
    });
    return boxes;
  }
  // The same as boxes of the holder's padded block.
  std::vector<Box> Padded(int owner, int holder) const {
    std::vector<Box> boxes;
    const Range held = BlockOf(halo_.whole, place_.size, holder);
    ForEachPart(owner, holder, [&](std::int64_t start, std::int64_t count, std::int64_t) {
      boxes.push_back(Part(held.count + halo_.before + halo_.after,
                           start - (held.start - halo_.before), count));
    });
    return boxes;
  }

  // body(start, count, shift): the owner's block, shifted by a multiple of the axis, inside the
  // holder's padded range. Its own place first.
  template <typename Body>
  void ForEachPart(int owner, int holder, Body&& body) const {
    const Range owned = BlockOf(halo_.whole, place_.size, owner);
    const Range held = BlockOf(halo_.whole, place_.size, holder);
    const std::int64_t begin = held.start - halo_.before;
    const std::int64_t end = held.start + held.count + halo_.after;
    const std::int64_t n = halo_.whole;
    const auto part = [&](std::int64_t shift) {
      const std::int64_t start = std::max(begin, owned.start + shift);
      const std::int64_t stop = std::min(end, owned.start + owned.count + shift);
      if (start < stop) body(start, stop - start, shift);
    };
    part(0);
    if (!halo_.is_periodic) return;
    for (std::int64_t shift = n; owned.start + shift < end; shift += n) part(shift);
    for (std::int64_t shift = -n; owned.start + owned.count + shift > begin; shift -= n)
      part(shift);
  }

  // `count` slices from `start` of an array that has `length` of them.
  Box Part(std::int64_t length, std::int64_t start, std::int64_t count) const {
    Box box;
    box.dims = static_cast<int>(block_.size());
    std::int64_t stride = 1;
    for (int d = box.dims - 1; d >= 0; --d) {
      const bool here = d == halo_.axis;
      box.extent[d] = here ? count : block_[d];
      box.stride[d] = stride;
      if (here) box.offset = start * stride;
      stride *= here ? length : block_[d];
    }
    return box;
  }

  Place place_;
  const Halo& halo_;
  Dimensions block_;
  bool to_ghosts_;
};

inline bool HaloFits(const Halo& halo, Dimensions block, Dimensions padded, Place place) {
  const auto rank = static_cast<std::int64_t>(block.size());
  if (rank > kMaxDims || block.size() != padded.size() || halo.axis < 0 || halo.axis >= rank ||
      halo.before < 0 || halo.after < 0 || halo.whole < 1) {
    return false;
  }
  for (std::int64_t d = 0; d < rank; ++d) {
    const std::int64_t ghosts = d == halo.axis ? halo.before + halo.after : 0;
    if (padded[d] != block[d] + ghosts) return false;
  }
  return block[halo.axis] == BlockOf(halo.whole, place).count;
}

}  // namespace pfftjax

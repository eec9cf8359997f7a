// The way from one pencil to another, as boxes.
#pragma once

#include <array>
#include <cstdint>
#include <vector>

#include "pencils/box.h"
#include "pencils/stream.h"
#include "runtime/errors.h"

namespace pfftjax {

using Dimensions = ffi::Span<const std::int64_t>;

inline std::array<std::int64_t, kMaxDims> Strides(Dimensions dimensions) {
  std::array<std::int64_t, kMaxDims> strides{};
  std::int64_t stride = 1;
  for (int d = static_cast<int>(dimensions.size()) - 1; d >= 0; --d) {
    strides[d] = stride;
    stride *= dimensions[d];
  }
  return strides;
}

// x[..] -> y with y's dimension d being x's dimension order[d]. x's dimension `scatter` is whole
// and becomes split over the communicator, `gather` is split and becomes whole.
class Transposition : public BoxesOf {
 public:
  Transposition(Place place, Dimensions x, Dimensions y, Dimensions order, std::int64_t scatter,
                std::int64_t gather)
      : place_(place),
        x_(x),
        order_(order),
        scatter_(scatter),
        gather_(gather),
        x_strides_(Strides(x)) {
    const auto y_strides = Strides(y);
    for (std::size_t d = 0; d < order.size(); ++d) {
      y_strides_[order[d]] = y_strides[d];
      whole_[order[d]] = y[d];
    }
    // Dimensions travel in the order of y, but for x's fastest, which goes next to y's fastest: a
    // piece then has both in full, and neither side touches less than a cache line at a time.
    const std::int64_t last = static_cast<std::int64_t>(order.size()) - 1;
    int at = 0;
    for (const std::int64_t d : order) {
      if (d != last && d != order[last]) travel_[at++] = d;
    }
    if (order[last] != last) travel_[at++] = last;
    travel_[at++] = order[last];
  }

  // Whether the buffers are what the block distribution gives this rank.
  bool Fits() const {
    if (scatter_ < 0) return true;
    return BlockOf(x_[scatter_], place_).count == whole_[scatter_] &&
           BlockOf(whole_[gather_], place_).count == x_[gather_];
  }

  // The most that one rank has for another, the same number on all ranks.
  std::int64_t MostElements() const { return VolumeOf(Element::kU8).Most(place_.size); }

  // The boxes of all pairs of ranks.
  Volume VolumeOf(Element element) const {
    Volume volume{x_[scatter_], whole_[gather_], InfoOf(element).bytes};
    for (std::int64_t d = 0; d < static_cast<std::int64_t>(order_.size()); ++d) {
      if (d != scatter_ && d != gather_) volume.bytes *= x_[d];
    }
    return volume;
  }

  std::vector<Box> To(int rank) const override {
    return {BoxIn(x_strides_, scatter_, scatter_, rank, gather_, place_.rank)};
  }
  std::vector<Box> From(int rank) const override {
    return {BoxIn(y_strides_, gather_, scatter_, place_.rank, gather_, rank)};
  }

 private:
  // What rank `source` sends to rank `dest`, in the array in which dimension `whole` is whole.
  Box BoxIn(const std::array<std::int64_t, kMaxDims>& strides, std::int64_t whole,
            std::int64_t scatter, int dest, std::int64_t gather, int source) const {
    Box box;
    box.dims = static_cast<int>(order_.size());
    for (int i = 0; i < box.dims; ++i) {
      const std::int64_t d = travel_[i];
      Range range{0, x_[d]};
      if (d == scatter) range = BlockOf(x_[d], place_.size, dest);
      if (d == gather) range = BlockOf(whole_[d], place_.size, source);
      box.extent[i] = range.count;
      box.stride[i] = strides[d];
      if (d == whole) box.offset += range.start * strides[d];
    }
    return box;
  }

  Place place_;
  Dimensions x_;
  Dimensions order_;
  std::int64_t scatter_;
  std::int64_t gather_;
  std::array<std::int64_t, kMaxDims> x_strides_;
  std::array<std::int64_t, kMaxDims> y_strides_{};  // by x's dimensions, as all that follow
  std::array<std::int64_t, kMaxDims> whole_{};      // y's extents
  std::array<std::int64_t, kMaxDims> travel_{};
};

inline bool IsOrder(Dimensions order, std::size_t rank) {
  if (order.size() != rank || rank == 0 || rank > kMaxDims) return false;
  std::array<bool, kMaxDims> seen{};
  for (const std::int64_t d : order) {
    if (d < 0 || d >= static_cast<std::int64_t>(rank) || seen[d]) return false;
    seen[d] = true;
  }
  return true;
}

}  // namespace pfftjax

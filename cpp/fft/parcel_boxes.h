// The parcels of several arrays as boxes, in which form they travel by messages or MPI's alltoall.
#pragma once

#include <cstdint>
#include <vector>

#include "fft/parcels.h"
#include "pencils/stream.h"

namespace pfftjax::fft {

// Parcels as boxes of bytes: those to others follow each other, and so do those from others, array
// by array.
template <typename T>
class ParcelBoxes : public BoxesOf {
 public:
  ParcelBoxes(const Parcels<T>& parcels, int arrays, int ranks, int rank)
      : parcels_(parcels), arrays_(arrays), rank_(rank) {
    for (int other = 0; other < ranks; ++other) {
      from_.push_back(incoming_);
      if (other == rank) continue;
      outgoing_ += parcels.To(other).bytes;
      incoming_ += parcels.From(other).bytes;
    }
  }
  std::int64_t outgoing() const { return outgoing_; }  // bytes of an array
  std::int64_t incoming() const { return incoming_; }
  std::int64_t PlaceTo(int rank) const { return parcels_.To(rank).offset; }
  std::int64_t PlaceFrom(int rank) const { return from_[rank]; }

  std::vector<Box> To(int rank) const override {
    if (rank == rank_) return {};
    return {BoxOf(parcels_.To(rank).bytes, PlaceTo(rank), outgoing_)};
  }
  std::vector<Box> From(int rank) const override {
    if (rank == rank_) return {};
    return {BoxOf(parcels_.From(rank).bytes, PlaceFrom(rank), incoming_)};
  }

 private:
  Box BoxOf(std::int64_t bytes, std::int64_t place, std::int64_t of_an_array) const {
    Box box;
    box.dims = 2;
    box.extent[0] = arrays_;
    box.stride[0] = of_an_array;
    box.extent[1] = bytes;
    box.stride[1] = 1;
    box.offset = place;
    return box;
  }

  const Parcels<T>& parcels_;
  int arrays_;
  int rank_;
  std::int64_t outgoing_ = 0;
  std::int64_t incoming_ = 0;
  std::vector<std::int64_t> from_;
};

}  // namespace pfftjax::fft

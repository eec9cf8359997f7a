// Tiles of a rank's block: parts of the mesh that fit into a cache, with all that their points
// reach. Points are gone through tile by tile.
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>

#include "nufft/points.h"
#include "pm/assignment.h"
#include "pm/coordinate.h"
#include "pm/mesh.h"

namespace pfftjax::nufft {

using pm::kAxes;
using Index = std::array<std::int64_t, kAxes>;

// Where a point begins: the first of the mesh points that it reaches, counted in the block with
// its ghosts, and what the polynomials of its weights are of.
template <typename T>
struct Beginning {
  Index first;
  std::array<T, kAxes> at;
};

// A column of tiles is whole along axis 2. Points belong to the tile in which they begin, and to a
// bin in it: neighbours in a bin use the same lines.
class Tiles {
 public:
  Tiles(const pm::Mesh& mesh, int width) : mesh_(mesh), reach_{width, 0} {
    // What the points of a tile reach ends before the tile after the next one.
    const std::int64_t side = width <= 9 ? 8 : 16;
    size_ = {side, side, width <= 9 ? 32 : 16};
    for (int axis = 0; axis < kAxes; ++axis) {
      block_[axis] = mesh.BlockOnThisRank(axis);
      const std::int64_t ghosts = axis < 2 ? reach_.before() + reach_.after() : 0;
      padded_[axis] = block_[axis].count + ghosts;
      const std::int64_t beginnings =
          block_[axis].count + (axis < 2 && reach_.is_by_half() ? 1 : 0);
      tiles_[axis] = (beginnings + size_[axis] - 1) / size_[axis];
      extent_[axis] = size_[axis] + width - 1;
    }
  }

  const pm::Mesh& mesh() const { return mesh_; }
  // The block with its ghosts.
  const Index& padded() const { return padded_; }
  // How many there are along each axis, and of how many beginnings.
  const Index& tiles() const { return tiles_; }
  const Index& size() const { return size_; }
  // Mesh points that the points of a tile reach.
  const Index& extent() const { return extent_; }
  std::int64_t volume() const { return extent_[0] * extent_[1] * extent_[2]; }

  std::int64_t columns() const { return tiles_[0] * tiles_[1]; }
  std::int64_t bins() const { return columns() * tiles_[2] * kBins[0] * kBins[1] * kBins[2]; }

  // False where the point is not in this rank's block.
  template <typename T>
  bool Begin(const std::int32_t* cells, const T* offsets, std::int64_t row,
             Beginning<T>* beginning) const {
    for (int axis = 0; axis < kAxes; ++axis) {
      pm::Coordinate<T> at;
      if (!pm::Locate(cells[kAxes * row + axis], offsets[kAxes * row + axis], &at)) return false;
      const std::int64_t local = pm::Wrapped(at.cell, mesh_.shape[axis]) - block_[axis].start;
      if (local < 0 || local >= block_[axis].count) return false;
      std::int64_t first = local + reach_.lowest();
      T rest = at.fraction;
      if (reach_.is_by_half()) {
        const T way = at.fraction + T{0.5};
        const std::int32_t is_next = way >= T{1} ? 1 : 0;
        first += is_next;
        rest = way - static_cast<T>(is_next);
      }
      beginning->first[axis] = axis < 2 ? first + reach_.before() : pm::Wrapped(first, padded_[2]);
      beginning->at[axis] = rest + rest - T{1};
    }
    return true;
  }

  std::int64_t ColumnOf(const Index& first) const {
    return first[0] / size_[0] * tiles_[1] + first[1] / size_[1];
  }
  std::int64_t TileOf(const Index& first) const {
    return ColumnOf(first) * tiles_[2] + first[2] / size_[2];
  }
  std::int64_t BinOf(const Index& first) const {
    std::int64_t bin = TileOf(first);
    for (int axis = 0; axis < kAxes; ++axis) {
      bin = bin * kBins[axis] + first[axis] % size_[axis] * kBins[axis] / size_[axis];
    }
    return bin;
  }

 private:
  static constexpr Index kBins{2, 2, 4};  // of a tile, along each axis

  pm::Mesh mesh_;
  pm::Assignment reach_;
  std::array<Range, kAxes> block_{};
  Index padded_{};
  Index tiles_{};
  Index size_{};
  Index extent_{};
};

}  // namespace pfftjax::nufft

// A particle has a cell, and a rank that owns it.
#pragma once

#include <array>
#include <cmath>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "pencils/box.h"
#include "runtime/communicator.h"

namespace pfftjax::pm {

inline constexpr int kAxes = 3;

// A mesh whose axes 0 and 1 are split over the dimensions of a process grid.
struct Mesh {
  std::array<std::int64_t, kAxes> shape{};
  std::array<Place, 2> along{};

  Range BlockOnThisRank(int axis) const {
    if (axis == 2) return {0, shape[2]};
    return BlockOf(shape[axis], along[axis]);
  }
};

// Returns nothing where this process has not made the grid.
inline std::optional<Mesh> FindMesh(const std::int64_t (&shape)[kAxes], std::int64_t rows,
                                    std::int64_t columns) {
  const Communicator* const first = FindCommunicator(rows);
  const Communicator* const second = FindCommunicator(columns);
  if (!first || !second) return std::nullopt;
  return Mesh{{shape[0], shape[1], shape[2]}, {*first, *second}};
}

// A coordinate in cells: an integer and an offset of any size, so that small offsets keep their
// digits in a large box.
template <typename T>
struct Coordinate {
  std::int64_t cell;  // not yet brought back into the box
  T fraction;         // in [0, 1]
};

// Offsets of so many cells or more are in no box that has room for them.
inline constexpr std::int32_t kMostCells = 1 << 30;

// Returns false for an offset that is no finite number, or that no box has room for.
template <typename T>
bool Locate(std::int32_t cell, T offset, Coordinate<T>* at) {
  constexpr auto most = static_cast<T>(kMostCells);
  if (!(std::abs(offset) < most)) return false;
  // std::floor is a call on processors without SSE4.1, for which this is compiled.
  const auto towards_zero = static_cast<std::int32_t>(offset);
  const std::int32_t whole = towards_zero - (offset < static_cast<T>(towards_zero) ? 1 : 0);
  *at = {static_cast<std::int64_t>(cell) + whole, offset - static_cast<T>(whole)};
  return true;
}

// Brings a cell into [0, n).
inline std::int64_t Wrapped(std::int64_t cell, std::int64_t n) {
  if (cell >= 0 && cell < n) return cell;
  const std::int64_t rest = cell % n;
  return rest < 0 ? rest + n : rest;
}

// The part that owns each cell of an axis.
inline std::vector<std::int32_t> Owners(std::int64_t n, std::int64_t parts) {
  std::vector<std::int32_t> owners(static_cast<std::size_t>(n));
  for (std::int64_t part = 0; part < parts; ++part) {
    const Range range = BlockOf(n, parts, part);
    for (std::int64_t i = 0; i < range.count; ++i) {
      owners[static_cast<std::size_t>(range.start + i)] = static_cast<std::int32_t>(part);
    }
  }
  return owners;
}

// "(1, 2, 3) of (64, 64, 64)"
inline std::string Tuple(const std::array<std::int64_t, kAxes>& values) {
  return "(" + std::to_string(values[0]) + ", " + std::to_string(values[1]) + ", " +
         std::to_string(values[2]) + ")";
}

}  // namespace pfftjax::pm

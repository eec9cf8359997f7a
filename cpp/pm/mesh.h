// A particle has a cell, and a rank that owns it.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string>

#include "pencils/box.h"
#include "pm/coordinate.h"
#include "runtime/communicator.h"

namespace pfftjax::pm {

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

// "(1, 2, 3) of (64, 64, 64)"
inline std::string Tuple(const std::array<std::int64_t, kAxes>& values) {
  return "(" + std::to_string(values[0]) + ", " + std::to_string(values[1]) + ", " +
         std::to_string(values[2]) + ")";
}

}  // namespace pfftjax::pm

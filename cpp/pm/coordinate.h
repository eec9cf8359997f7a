// Where a particle is along an axis. Kernels of a GPU share this with the host.
#pragma once

#include <cmath>
#include <cstdint>

#include "base/host_device.h"

namespace pfftjax::pm {

inline constexpr int kAxes = 3;

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
PFFTJAX_HOST_DEVICE bool Locate(std::int32_t cell, T offset, Coordinate<T>* at) {
  constexpr auto most = static_cast<T>(kMostCells);
  if (!(std::abs(offset) < most)) return false;
  // std::floor is a call on processors without SSE4.1, for which this is compiled.
  const auto towards_zero = static_cast<std::int32_t>(offset);
  const std::int32_t whole = towards_zero - (offset < static_cast<T>(towards_zero) ? 1 : 0);
  *at = {static_cast<std::int64_t>(cell) + whole, offset - static_cast<T>(whole)};
  return true;
}

// Brings a cell into [0, n).
PFFTJAX_HOST_DEVICE inline std::int64_t Wrapped(std::int64_t cell, std::int64_t n) {
  if (cell >= 0 && cell < n) return cell;
  const std::int64_t rest = cell % n;
  return rest < 0 ? rest + n : rest;
}

}  // namespace pfftjax::pm

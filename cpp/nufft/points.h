// Points onto a small part of a mesh and back, with a wide kernel: the inner loops of non-uniform
// transforms, in vectors.
#pragma once

#include <cstdint>

#include "fft/lanes.h"

namespace pfftjax::nufft {

inline constexpr int kLeastWidth = 2;
inline constexpr int kMostWidth = 16;
inline constexpr int kMostTerms = 24;

// The weight of each of the `width` mesh points that a point reaches along an axis, as a
// polynomial of where the point is between two cells. The coefficients of all weights lie
// together, the highest first: once each, and twice each for real and imaginary parts. The rest is
// zero.
template <typename T>
struct Polynomials {
  int width = 0;
  int terms = 0;
  alignas(64) T once[kMostTerms][kMostWidth] = {};
  alignas(64) T twice[kMostTerms][2 * kMostWidth] = {};
};

// Some points of one tile. A tile is an array of complex numbers, with `plane` of them between
// points that are neighbours along axis 0, and `line` along axis 1. Lines are read and written
// beyond the points that have weights, but nothing changes there.
template <typename T>
struct Batch {
  const Polynomials<T>* polynomials;
  std::int64_t count;
  const std::int32_t* first;  // where in the tile the points begin that a point reaches
  const T* at;                // (count, 3), what the polynomials are of
  std::int64_t plane;
  std::int64_t line;
};

// Values are complex numbers, one of each point.
template <typename T>
using SpreadPoints = void (*)(const Batch<T>& batch, const T* values, T* tile);
template <typename T>
using ReadPoints = void (*)(const Batch<T>& batch, const T* tile, T* values);

// The code for one instruction set.
struct PointLanes {
  const char* name;
  SpreadPoints<float> spread_f32;
  SpreadPoints<double> spread_f64;
  ReadPoints<float> read_f32;
  ReadPoints<double> read_f64;

  void Spread(const Batch<float>& batch, const float* values, float* tile) const {
    spread_f32(batch, values, tile);
  }
  void Spread(const Batch<double>& batch, const double* values, double* tile) const {
    spread_f64(batch, values, tile);
  }
  void Read(const Batch<float>& batch, const float* tile, float* values) const {
    read_f32(batch, tile, values);
  }
  void Read(const Batch<double>& batch, const double* tile, double* values) const {
    read_f64(batch, tile, values);
  }
};

// Defined by points.cc, which is compiled once for each.
namespace baseline {
extern const PointLanes kPointLanes;
}
namespace avx2 {
extern const PointLanes kPointLanes;
}
namespace avx512 {
extern const PointLanes kPointLanes;
}
namespace neon {
extern const PointLanes kPointLanes;
}
namespace sve256 {
extern const PointLanes kPointLanes;
}
namespace sve512 {
extern const PointLanes kPointLanes;
}

// The code for the instruction set that transforms have been given.
const PointLanes& PointLanesFor(const fft::Lanes& chosen);

}  // namespace pfftjax::nufft

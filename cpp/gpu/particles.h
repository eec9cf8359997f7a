// Paint, readout and the derivatives of readout on a device: what one call is given.
#pragma once

#include <cstdint>

#include "base/host_device.h"
#include "pm/assignment.h"

namespace pfftjax::gpu {

enum class ParticleOperation : std::int32_t { kPaint, kReadout, kAlong, kAcross };

// A kernel of n points has n^3 different derivatives that are not zero.
inline constexpr int kMostDerivatives = pm::kMostPoints * pm::kMostPoints * pm::kMostPoints;

// The arrays of a call lie on the device; their shapes are those of pm/painter.h. It travels as
// the kernel's parameter.
struct ParticleCall {
  ParticleOperation operation;
  bool is_double;  // of float otherwise
  bool is_plain;   // one derivative, of order zero
  bool is_deterministic;
  std::int32_t points;
  // The first point that a particle reaches, counted from its cell (pm/assignment.h).
  std::int32_t lowest;
  bool is_by_half;
  std::int32_t before;  // ghosts of the field along axes 0 and 1

  std::int64_t rows;
  std::int64_t components;
  std::int64_t derivatives;
  std::int64_t shape[3];   // of the whole mesh
  std::int64_t start[3];   // of this rank's block
  std::int64_t count[3];   // of its cells
  std::int64_t padded[3];  // its shape with ghosts
  std::int8_t orders[kMostDerivatives][3];

  const std::int32_t* cells;
  const void* offsets;
  const std::int32_t* used;  // how many of the rows hold particles
  const void* field;         // but of paint, whose result it is
  const void* given;         // values, or displacements; nothing for readout
  void* result;
  std::int64_t results;  // how many numbers
  // One of these is zero before the call, of as many bytes as the device's `particle_scratch`
  // says; null where that is none. `together` has sums of three components, side by side for each
  // point of the mesh, and `fixed`, where `is_deterministic`, sums whose bits do not depend on
  // their order.
  void* together;
  void* fixed;
  // Zero before the call. It becomes 1 where a particle is not in this rank's block; then the
  // result is NaN everywhere.
  std::int32_t* lost;

  PFFTJAX_HOST_DEVICE std::int64_t volume() const { return padded[0] * padded[1] * padded[2]; }
};

}  // namespace pfftjax::gpu

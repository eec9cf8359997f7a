// What handlers for CPUs and for GPUs are given of particles and a mesh, and whether it fits.
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <optional>

#include "pm/assignment.h"
#include "pm/mesh.h"
#include "runtime/handlers.h"

namespace pfftjax::pm {

using Cells = ffi::Buffer<ffi::S32, 2>;
using Count = ffi::BufferR0<ffi::S32>;
using Dimensions = ffi::Span<const std::int64_t>;
using Orders = ffi::Span<const std::int64_t>;  // three a derivative: how often along each axis

// The operands that say where particles are, and the attributes that say on which mesh.
struct Particles {
  std::int64_t shape[kAxes];
  std::int64_t rows_comm;
  std::int64_t columns_comm;
  Assignment assignment;
  Orders orders;
  const Cells& cells;
  const Operand& offsets;
  const Count& used;
};

// What a call is to work on: an array of the mesh, and one of particles with two dimensions behind
// the rows, components and derivatives.
struct Operands {
  std::array<std::int64_t, 3> values;
  Dimensions field;
  std::array<ffi::DataType, 2> types;
};

// The shapes of one call. `padded` is this rank's block with its ghosts.
struct Shapes {
  std::int64_t rows;
  std::int64_t components;
  std::int64_t derivatives;
  std::array<std::int64_t, kAxes> padded;
  std::int64_t volume() const { return padded[0] * padded[1] * padded[2]; }
};

struct Placement {
  Mesh mesh;
  Shapes shapes;
};

inline bool Fits(const Mesh& mesh, const Particles& particles, const Shapes& shapes) {
  bool fits = particles.assignment.IsKnown() &&
              shapes.derivatives == static_cast<std::int64_t>(particles.orders.size() / kAxes) &&
              particles.orders.size() % kAxes == 0 &&
              particles.cells.dimensions()[0] == shapes.rows &&
              particles.cells.dimensions()[1] == kAxes &&
              CountOf(particles.offsets) == kAxes * shapes.rows;
  for (int axis = 0; axis < kAxes; ++axis) {
    const Assignment& reach = particles.assignment;
    const std::int64_t ghosts = axis < 2 ? reach.before() + reach.after() : 0;
    fits &= shapes.padded[axis] == mesh.BlockOnThisRank(axis).count + ghosts;
  }
  for (const std::int64_t order : particles.orders) {
    fits &= order >= 0 && order < particles.assignment.points;
  }
  return fits;
}

// Returns nothing where this process has not made the grid, or where buffers do not fit.
inline std::optional<Placement> Place(const Particles& particles, const Operands& operands) {
  const std::optional<Mesh> mesh =
      FindMesh(particles.shape, particles.rows_comm, particles.columns_comm);
  const auto& values = operands.values;
  const ffi::DataType type = particles.offsets.element_type();
  if (!mesh || operands.field.size() != 1 + kAxes || operands.field[0] != values[1] ||
      operands.types[0] != type || operands.types[1] != type) {
    return std::nullopt;
  }
  Shapes shapes{values[0], values[1], values[2], {}};
  std::copy(operands.field.begin() + 1, operands.field.end(), shapes.padded.begin());
  if (!Fits(*mesh, particles, shapes)) return std::nullopt;
  return Placement{*mesh, shapes};
}

}  // namespace pfftjax::pm

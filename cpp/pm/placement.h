// What handlers for CPUs and for GPUs are given of particles and a mesh, and whether it fits.
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <utility>

#include "pm/assignment.h"
#include "pm/mesh.h"
#include "runtime/errors.h"
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

// What a call works on: an array of the mesh, and arrays of particles, of rows with components and
// derivatives; all of one type.
struct Operands {
  std::array<std::int64_t, 3> values;
  std::int64_t components;  // of the array of the mesh
  Dimensions padded;
  ffi::DataType type;
};

// Those with a field (components, *padded).
inline std::optional<Operands> OperandsOf(const std::array<std::int64_t, 3>& values,
                                          const Operand& field) {
  const Dimensions shape = field.dimensions();
  if (shape.size() != 1 + kAxes) return std::nullopt;
  return Operands{values, shape[0], {shape.begin() + 1, kAxes}, field.element_type()};
}

// Those of paint and readout. Nothing where shapes or types do not fit.
inline std::optional<Operands> OperandsOf(const Operand& values, const Operand& field) {
  const Dimensions shape = values.dimensions();
  if (shape.size() != 3 || values.element_type() != field.element_type()) return std::nullopt;
  return OperandsOf({shape[0], shape[1], shape[2]}, field);
}

// Those of a derivative of readout: values (rows, components) and displacements (rows, 3).
inline std::optional<Operands> OperandsOf(const Operand& values, const Operand& displacement,
                                          const Operand& field) {
  const Dimensions shape = values.dimensions();
  const Dimensions way = displacement.dimensions();
  const ffi::DataType type = field.element_type();
  if (shape.size() != 2 || way.size() != 2 || shape[0] != way[0] || way[1] != kAxes ||
      values.element_type() != type || displacement.element_type() != type) {
    return std::nullopt;
  }
  return OperandsOf({shape[0], shape[1], 1}, field);
}

// Those of paint and readout of four components that lie together: values (rows, 4), and a field
// (*padded, 4).
inline std::optional<Operands> OperandsOfFours(const Operand& values, const Operand& field) {
  const Dimensions rows = values.dimensions();
  const Dimensions shape = field.dimensions();
  if (rows.size() != 2 || shape.size() != kAxes + 1 || rows[1] != 4 || shape[kAxes] != 4 ||
      values.element_type() != field.element_type()) {
    return std::nullopt;
  }
  return Operands{{rows[0], 4, 1}, 4, {shape.begin(), kAxes}, field.element_type()};
}

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

// Nothing where this process has not made the grid, or where buffers do not fit.
inline std::optional<Placement> Place(const Particles& particles,
                                      const std::optional<Operands>& operands) {
  const std::optional<Mesh> mesh =
      FindMesh(particles.shape, particles.rows_comm, particles.columns_comm);
  if (!mesh || !operands || particles.offsets.element_type() != operands->type ||
      operands->components != operands->values[1]) {
    return std::nullopt;
  }
  const auto& [rows, components, derivatives] = operands->values;
  Shapes shapes{rows, components, derivatives, {}};
  std::copy(operands->padded.begin(), operands->padded.end(), shapes.padded.begin());
  if (!Fits(*mesh, particles, shapes)) return std::nullopt;
  return Placement{*mesh, shapes};
}

// How an error calls a row, and what is to be sent.
struct Wording {
  const char* row;
  const char* to_send;
};

// The error of a row that is not in this rank's block.
template <typename T>
ffi::Error NotHere(const char* operation, const Mesh& mesh, const std::int32_t* cells,
                   const T* offsets, std::int64_t row, const Wording& wording) {
  std::array<std::int64_t, kAxes> cell{};
  std::array<std::int64_t, kAxes> start{};
  std::array<std::int64_t, kAxes> count{};
  bool finite = true;
  for (int axis = 0; axis < kAxes; ++axis) {
    Coordinate<T> at{};
    finite &= Locate(cells[kAxes * row + axis], offsets[kAxes * row + axis], &at);
    cell[axis] = Wrapped(at.cell, mesh.shape[axis]);
    const Range block = mesh.BlockOnThisRank(axis);
    start[axis] = block.start;
    count[axis] = block.count;
  }
  const std::string where =
      std::string(operation) + " on rank (" + std::to_string(mesh.along[0].rank) + ", " +
      std::to_string(mesh.along[1].rank) + ") of a " + std::to_string(mesh.along[0].size) + " x " +
      std::to_string(mesh.along[1].size) + " grid: " + wording.row + " " + std::to_string(row);
  return Invalid(
      finite ? where + " is in cell " + Tuple(cell) + ", but this rank's block starts at " +
                   Tuple(start) + " and has " + Tuple(count) + " cells; send " + wording.to_send
             : where + " has a position that is not finite, or 2^30 cells or more away");
}

// A handler of a function that takes the particles first, then what it asks of XLA's context, and
// then the other buffers.
template <auto kRun>
struct OnParticles;
template <typename Context, typename... Rest,
          ffi::Error (*kRun)(const Particles&, Context, Rest...)>
struct OnParticles<kRun> {
  static ffi::Error Run(std::int64_t n0, std::int64_t n1, std::int64_t n2, std::int64_t rows_comm,
                        std::int64_t columns_comm, std::int64_t points, std::int64_t shift,
                        Orders orders, Context context, Cells cells, Operand offsets, Count used,
                        Rest... rest) {
    return kRun(
        {{n0, n1, n2}, rows_comm, columns_comm, {points, shift}, orders, cells, offsets, used},
        std::move(context), std::move(rest)...);
  }
};
template <auto kRun>
auto ParticleHandler(const char* name) {
  return Handler<&OnParticles<kRun>::Run>(name, "n0", "n1", "n2", "rows_comm", "columns_comm",
                                          "points", "shift", "orders");
}

}  // namespace pfftjax::pm

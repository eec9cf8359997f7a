// Sums over particles of values times derivatives of the assignment kernel, and the transpose of
// that, on one thread. Every particle is in this rank's block.
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <string>

#include "pm/assignment.h"
#include "pm/mesh.h"
#include "runtime/errors.h"
#include "runtime/handlers.h"

namespace pfftjax::pm {

using Orders = ffi::Span<const std::int64_t>;  // three a derivative: how often along each axis

// The shapes of one call. `padded` is this rank's block with its ghosts.
struct Shapes {
  std::int64_t rows;
  std::int64_t components;
  std::int64_t derivatives;
  std::array<std::int64_t, kAxes> padded;
  std::int64_t volume() const { return padded[0] * padded[1] * padded[2]; }
};

// The points that one particle touches.
template <typename T, int kPoints>
struct Stencil {
  std::int64_t plane;                    // the first of those along axis 0
  std::int64_t line[kPoints * kPoints];  // where the lines along axis 2 begin
  std::int64_t z[kPoints];
  T rest[kAxes];  // along each axis, `t` of Weights
};

template <typename T, int kPoints, int kShift>
class Painter {
 public:
  Painter(const Mesh& mesh, const Shapes& shapes, Orders orders, const std::int32_t* cells,
          const T* offsets)
      : mesh_(mesh), shapes_(shapes), orders_(orders), cells_(cells), offsets_(offsets) {
    for (int axis = 0; axis < kAxes; ++axis) block_[axis] = mesh.BlockOnThisRank(axis);
  }

  // False where the particle is not in this rank's block.
  bool Reach(std::int64_t row, Stencil<T, kPoints>* stencil) const {
    std::int64_t first[kAxes];
    for (int axis = 0; axis < kAxes; ++axis) {
      if (!First(row, axis, &first[axis], &stencil->rest[axis])) return false;
    }
    stencil->plane = first[0] + kReach.before();
    for (int x = 0; x < kPoints; ++x) {
      for (int y = 0; y < kPoints; ++y) {
        stencil->line[x * kPoints + y] =
            ((stencil->plane + x) * shapes_.padded[1] + first[1] + kReach.before() + y) *
            shapes_.padded[2];
      }
    }
    for (int z = 0; z < kPoints; ++z) stencil->z[z] = Wrapped(first[2] + z, mesh_.shape[2]);
    return true;
  }

  // Weights of the lines, and of the points of a line, for one derivative.
  void Weigh(const Stencil<T, kPoints>& stencil, std::int64_t derivative,
             T (&line)[kPoints * kPoints], T (&z)[kPoints]) const {
    T x[kPoints];
    T y[kPoints];
    const std::int64_t* order = orders_.begin() + kAxes * derivative;
    Weights(stencil.rest[0], order[0], x);
    Weights(stencil.rest[1], order[1], y);
    Weights(stencil.rest[2], order[2], z);
    for (int i = 0; i < kPoints; ++i) {
      for (int j = 0; j < kPoints; ++j) line[i * kPoints + j] = x[i] * y[j];
    }
  }

  // values (rows, components, derivatives) onto the planes [low, high) of field (components,
  // *padded), for rows from `begin` to `end` in their order. The first row that is not in the
  // block, or -1.
  std::int64_t Paint(const T* values, std::int64_t begin, std::int64_t end, std::int64_t low,
                     std::int64_t high, T* field) const {
    const std::int64_t each = shapes_.components * shapes_.derivatives;
    for (std::int64_t row = begin; row < end; ++row) {
      Stencil<T, kPoints> stencil;
      if (!Reach(row, &stencil)) return row;
      const std::int64_t first = std::max<std::int64_t>(low - stencil.plane, 0);
      const std::int64_t last = std::min<std::int64_t>(high - stencil.plane, kPoints);
      for (std::int64_t d = 0; d < shapes_.derivatives; ++d) {
        T line[kPoints * kPoints];
        T z[kPoints];
        Weigh(stencil, d, line, z);
        for (std::int64_t c = 0; c < shapes_.components; ++c) {
          const T value = values[row * each + c * shapes_.derivatives + d];
          T* component = field + c * shapes_.volume();
          const auto add = [&](int i) {
            const T share = value * line[i];
            for (int k = 0; k < kPoints; ++k) {
              component[stencil.line[i] + stencil.z[k]] += share * z[k];
            }
          };
          // Most particles have all of their planes, and a loop of known length is faster.
          if (last - first == kPoints) {
            for (int i = 0; i < kPoints * kPoints; ++i) add(i);
          } else {
            for (std::int64_t i = kPoints * first; i < kPoints * last; ++i) {
              add(static_cast<int>(i));
            }
          }
        }
      }
    }
    return -1;
  }

  // The first plane of the block with its ghosts that a particle reaches, or -1 where it is not in
  // the block.
  std::int64_t Plane(std::int64_t row) const {
    std::int64_t first;
    T rest;
    return First(row, 0, &first, &rest) ? first + kReach.before() : -1;
  }

  const Shapes& shapes() const { return shapes_; }

  // The transpose of Paint, for rows from `begin` to `end`.
  std::int64_t Readout(const T* field, std::int64_t begin, std::int64_t end, T* values) const {
    const std::int64_t each = shapes_.components * shapes_.derivatives;
    for (std::int64_t row = begin; row < end; ++row) {
      Stencil<T, kPoints> stencil;
      if (!Reach(row, &stencil)) return row;
      for (std::int64_t d = 0; d < shapes_.derivatives; ++d) {
        T line[kPoints * kPoints];
        T z[kPoints];
        Weigh(stencil, d, line, z);
        for (std::int64_t c = 0; c < shapes_.components; ++c) {
          const T* component = field + c * shapes_.volume();
          T sum = 0;
          for (int i = 0; i < kPoints * kPoints; ++i) {
            T along = 0;
            for (int k = 0; k < kPoints; ++k) {
              along += component[stencil.line[i] + stencil.z[k]] * z[k];
            }
            sum += line[i] * along;
          }
          values[row * each + c * shapes_.derivatives + d] = sum;
        }
      }
    }
    return -1;
  }

  // Writes what a small displacement (rows, 3) changes of Readout: values (rows, components).
  std::int64_t Along(const T* field, const T* displacement, std::int64_t begin, std::int64_t end,
                     T* values) const {
    for (std::int64_t row = begin; row < end; ++row) {
      Stencil<T, kPoints> stencil;
      if (!Reach(row, &stencil)) return row;
      T weights[kPoints * kPoints * kPoints] = {};
      ForEachSlope(stencil, [&](int axis, int point, T slope) {
        weights[point] += displacement[kAxes * row + axis] * slope;
      });
      for (std::int64_t c = 0; c < shapes_.components; ++c) {
        const T* component = field + c * shapes_.volume();
        T sum = 0;
        ForEachPoint(stencil,
                     [&](int point, std::int64_t at) { sum += weights[point] * component[at]; });
        values[row * shapes_.components + c] = sum;
      }
    }
    return -1;
  }

  // The transpose of Along: values (rows, components) to displacements (rows, 3).
  std::int64_t Across(const T* field, const T* values, std::int64_t begin, std::int64_t end,
                      T* displacement) const {
    for (std::int64_t row = begin; row < end; ++row) {
      Stencil<T, kPoints> stencil;
      if (!Reach(row, &stencil)) return row;
      T together[kPoints * kPoints * kPoints] = {};
      for (std::int64_t c = 0; c < shapes_.components; ++c) {
        const T* component = field + c * shapes_.volume();
        const T value = values[row * shapes_.components + c];
        ForEachPoint(stencil, [&](int point, std::int64_t at) {
          together[point] += value * component[at];
        });
      }
      T sum[kAxes] = {};
      ForEachSlope(stencil,
                   [&](int axis, int point, T slope) { sum[axis] += slope * together[point]; });
      std::copy(sum, sum + kAxes, displacement + kAxes * row);
    }
    return -1;
  }

  ffi::Error NotHere(const char* operation, std::int64_t row) const {
    std::array<std::int64_t, kAxes> cell{};
    std::array<std::int64_t, kAxes> start{};
    std::array<std::int64_t, kAxes> count{};
    bool finite = true;
    for (int axis = 0; axis < kAxes; ++axis) {
      Coordinate<T> at{};
      finite &= Locate(cells_[kAxes * row + axis], offsets_[kAxes * row + axis], &at);
      cell[axis] = Wrapped(at.cell, mesh_.shape[axis]);
      start[axis] = block_[axis].start;
      count[axis] = block_[axis].count;
    }
    const std::string where =
        std::string(operation) + " on rank (" + std::to_string(mesh_.along[0].rank) + ", " +
        std::to_string(mesh_.along[1].rank) + ") of a " + std::to_string(mesh_.along[0].size) +
        " x " + std::to_string(mesh_.along[1].size) + " grid: particle " + std::to_string(row);
    return Invalid(
        finite ? where + " is in cell " + Tuple(cell) + ", but this rank's block starts at " +
                     Tuple(start) + " and has " + Tuple(count) +
                     " cells; send particles to their owners first (pm.to_owners, pm.Route)"
               : where + " has a position that is not finite");
  }

 private:
  static constexpr Assignment kReach{kPoints, kShift};

  // The first point that a particle reaches along an axis, counted from the block's first cell.
  bool First(std::int64_t row, int axis, std::int64_t* first, T* rest) const {
    Coordinate<T> at;
    if (!Locate(cells_[kAxes * row + axis], offsets_[kAxes * row + axis], &at)) return false;
    const std::int64_t local = Wrapped(at.cell, mesh_.shape[axis]) - block_[axis].start;
    if (local < 0 || local >= block_[axis].count) return false;
    *first = local + kReach.lowest();
    *rest = at.fraction;
    if constexpr (kReach.is_by_half()) {
      const T way = at.fraction + T{0.5};
      const std::int32_t is_next = way >= T{1} ? 1 : 0;
      *first += is_next;
      *rest = way - static_cast<T>(is_next);
    }
    return true;
  }

  template <typename Body>
  void ForEachPoint(const Stencil<T, kPoints>& stencil, Body&& body) const {
    for (int i = 0; i < kPoints * kPoints; ++i) {
      for (int k = 0; k < kPoints; ++k) body(i * kPoints + k, stencil.line[i] + stencil.z[k]);
    }
  }

  // The weights of all points, differentiated once along each axis.
  template <typename Body>
  void ForEachSlope(const Stencil<T, kPoints>& stencil, Body&& body) const {
    T value[kAxes][kPoints];
    T slope[kAxes][kPoints];
    for (int axis = 0; axis < kAxes; ++axis) {
      Weights(stencil.rest[axis], 0, value[axis]);
      Weights(stencil.rest[axis], 1, slope[axis]);
    }
    for (int axis = 0; axis < kAxes; ++axis) {
      const T* x = axis == 0 ? slope[0] : value[0];
      const T* y = axis == 1 ? slope[1] : value[1];
      const T* z = axis == 2 ? slope[2] : value[2];
      for (int i = 0; i < kPoints; ++i) {
        for (int j = 0; j < kPoints; ++j) {
          for (int k = 0; k < kPoints; ++k) {
            body(axis, (i * kPoints + j) * kPoints + k, x[i] * y[j] * z[k]);
          }
        }
      }
    }
  }

  const Mesh& mesh_;
  const Shapes& shapes_;
  const Orders orders_;
  const std::int32_t* cells_;
  const T* offsets_;
  std::array<Range, kAxes> block_{};
};

}  // namespace pfftjax::pm

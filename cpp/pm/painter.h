// Sums over particles of values times derivatives of the assignment kernel, and the transpose of
// that, on one thread. Every particle is in this rank's block.
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <string>

#include "pm/assignment.h"
#include "pm/placement.h"
#include "pm/simd.h"
#include "runtime/errors.h"
#include "runtime/handlers.h"

namespace pfftjax::pm {

// A number T for each axis, and one that nobody uses: what the three have in common is computed
// once.
template <typename T>
using PerAxis = Lanes<T, 4>;

// The points of one line along axis 2, or what belongs to them. Three points are computed with as
// four, the last of which has no weight.
template <typename T, int kPoints>
using Line = Lanes<T, kPoints == 3 ? 4 : kPoints>;

// The points that one particle reaches.
template <typename T, int kPoints>
struct Stencil {
  std::int64_t plane;  // the first along axis 0
  std::int64_t first;  // of all points
  // Whether those along axis 2 lie together, with room for a `Line`; if not, where each of them is
  // from the first on.
  bool is_in_line;
  std::int64_t z[kPoints] = {};
  PerAxis<T> rest;  // `t` of Weights
};

// The weight of each point: that of its line along axis 2 times that of its place there.
template <typename T, int kPoints>
struct PointWeights {
  T line[kPoints][kPoints];
  Line<T, kPoints> z;
};

template <typename T, int kPoints, int kShift>
class Painter {
  using Line = pm::Line<T, kPoints>;
  using Stencil = pm::Stencil<T, kPoints>;
  using PointWeights = pm::PointWeights<T, kPoints>;
  using Four = Lanes<T, 4>;

 public:
  Painter(const Mesh& mesh, const Shapes& shapes, Orders orders, const std::int32_t* cells,
          const T* offsets)
      : mesh_(mesh),
        shapes_(shapes),
        orders_(orders),
        is_differentiated_(
            std::any_of(orders.begin(), orders.end(), [](auto order) { return order > 0; })),
        stride_{shapes.padded[1] * shapes.padded[2], shapes.padded[2]},
        cells_(cells),
        offsets_(offsets) {
    for (int axis = 0; axis < kAxes; ++axis) block_[axis] = mesh.BlockOnThisRank(axis);
  }

  // values (rows, components, derivatives) onto the planes [low, high) of field (components,
  // *padded), for rows from `begin` to `end` in their order. The first row that is not in the
  // block, or -1.
  std::int64_t Paint(const T* values, std::int64_t begin, std::int64_t end, std::int64_t low,
                     std::int64_t high, T* field) const {
    const std::int64_t each = shapes_.components * shapes_.derivatives;
    for (std::int64_t row = begin; row < end; ++row) {
      Stencil stencil;
      if (!Reach(row, &stencil)) return row;
      const std::int64_t first = std::max<std::int64_t>(low - stencil.plane, 0);
      const std::int64_t last = std::min<std::int64_t>(high - stencil.plane, kPoints);
      for (std::int64_t d = 0; d < shapes_.derivatives; ++d) {
        const PointWeights weights = Weigh(stencil, d);
        for (std::int64_t c = 0; c < shapes_.components; ++c) {
          const T value = values[row * each + c * shapes_.derivatives + d];
          T* const component = field + c * shapes_.volume();
          const auto add = [&](int x, int y) {
            Add((value * weights.line[x][y]) * weights.z, stencil, At(stencil, component, x, y));
          };
          // Most particles have all of their planes, and a loop of known length is faster.
          if (last - first == kPoints) {
            ForEachLine(add);
          } else {
            for (auto x = static_cast<int>(first); x < last; ++x) {
              for (int y = 0; y < kPoints; ++y) add(x, y);
            }
          }
        }
      }
    }
    return -1;
  }

  // The planes of the block with its ghosts that a particle reaches. One that is not in the block
  // is said to be at the first planes, where Paint finds it.
  Range PlanesOf(std::int64_t row) const {
    std::int64_t first;
    T rest;
    return {First(row, 0, &first, &rest) ? first + kReach.before() : 0, kPoints};
  }

  // Planes among which are all that rows from `begin` to `end` reach, or none where this way,
  // which is faster than a row at a time, does not tell: some are written as in another copy of
  // the box, or not in the block. Others that are not in the block may be left out of account.
  Range PlanesAround(std::int64_t begin, std::int64_t end) const {
    std::int32_t lowest = cells_[kAxes * begin];
    std::int32_t highest = lowest;
    T least = offsets_[kAxes * begin];
    T most = least;
    for (std::int64_t row = begin + 1; row < end; ++row) {
      lowest = std::min(lowest, cells_[kAxes * row]);
      highest = std::max(highest, cells_[kAxes * row]);
      least = std::min(least, offsets_[kAxes * row]);
      most = std::max(most, offsets_[kAxes * row]);
    }
    Coordinate<T> from;
    Coordinate<T> to;
    if (!Locate(lowest, least, &from) || !Locate(highest, most, &to)) return {};
    const std::int64_t start = from.cell - block_[0].start;
    const std::int64_t last = to.cell - block_[0].start;
    if (!IsIn(start, block_[0].count) || !IsIn(last, block_[0].count)) return {};
    return {start + kReach.lowest() + kReach.before(),
            last - start + kReach.after() + 1 - kReach.lowest()};
  }

  const Shapes& shapes() const { return shapes_; }

  // The transpose of Paint, for rows from `begin` to `end`.
  std::int64_t Readout(const T* field, std::int64_t begin, std::int64_t end, T* values) const {
    const std::int64_t each = shapes_.components * shapes_.derivatives;
    for (std::int64_t row = begin; row < end; ++row) {
      Stencil stencil;
      if (!Reach(row, &stencil)) return row;
      for (std::int64_t d = 0; d < shapes_.derivatives; ++d) {
        const PointWeights weights = Weigh(stencil, d);
        for (std::int64_t c = 0; c < shapes_.components; ++c) {
          const T* const component = field + c * shapes_.volume();
          Line sum;
          ForEachLine([&](int x, int y) {
            sum += weights.line[x][y] * Read(stencil, At(stencil, component, x, y));
          });
          values[row * each + c * shapes_.derivatives + d] = Sum(sum * weights.z);
        }
      }
    }
    return -1;
  }

  // Writes what a small displacement (rows, 3) changes of Readout: values (rows, components).
  std::int64_t Along(const T* field, const T* displacement, std::int64_t begin, std::int64_t end,
                     T* values) const {
    for (std::int64_t row = begin; row < end; ++row) {
      Stencil stencil;
      if (!Reach(row, &stencil)) return row;
      const std::array<PointWeights, kAxes> slopes = Slopes(stencil);
      const T* const way = displacement + kAxes * row;
      Line weights[kPoints][kPoints];
      ForEachLine([&](int x, int y) {
        for (int axis = 0; axis < kAxes; ++axis) {
          weights[x][y] += (way[axis] * slopes[axis].line[x][y]) * slopes[axis].z;
        }
      });
      for (std::int64_t c = 0; c < shapes_.components; ++c) {
        const T* const component = field + c * shapes_.volume();
        Line sum;
        ForEachLine([&](int x, int y) {
          sum += weights[x][y] * Read(stencil, At(stencil, component, x, y));
        });
        values[row * shapes_.components + c] = Sum(sum);
      }
    }
    return -1;
  }

  // The transpose of Along: values (rows, components) to displacements (rows, 3).
  std::int64_t Across(const T* field, const T* values, std::int64_t begin, std::int64_t end,
                      T* displacement) const {
    for (std::int64_t row = begin; row < end; ++row) {
      Stencil stencil;
      if (!Reach(row, &stencil)) return row;
      Line together[kPoints][kPoints];
      for (std::int64_t c = 0; c < shapes_.components; ++c) {
        const T* const component = field + c * shapes_.volume();
        const T value = values[row * shapes_.components + c];
        ForEachLine([&](int x, int y) {
          together[x][y] += value * Read(stencil, At(stencil, component, x, y));
        });
      }
      OfPoints value;
      OfPoints slope;
      Weights<T, kPoints>(stencil.rest, 0, value);
      Weights<T, kPoints>(stencil.rest, 1, slope);
      // One axis after the other has its points summed.
      Line by_value[kPoints];
      Line by_slope[kPoints];
      ForEachLine([&](int x, int y) {
        AddOrSet(x > 0, value[x].template Get<0>() * together[x][y], &by_value[y]);
        AddOrSet(x > 0, slope[x].template Get<0>() * together[x][y], &by_slope[y]);
      });
      Line sums[kAxes];
      for (int y = 0; y < kPoints; ++y) {
        AddOrSet(y > 0, value[y].template Get<1>() * by_slope[y], &sums[0]);
        AddOrSet(y > 0, slope[y].template Get<1>() * by_value[y], &sums[1]);
        AddOrSet(y > 0, value[y].template Get<1>() * by_value[y], &sums[2]);
      }
      const Line z = OnLine(value);
      T* const way = displacement + kAxes * row;
      way[0] = Sum(sums[0] * z);
      way[1] = Sum(sums[1] * z);
      way[2] = Sum(sums[2] * OnLine(slope));
    }
    return -1;
  }

  // Paint of four components, which lie together at each point: field (*padded, 4). It takes
  // little longer than Paint of one, as a register adds all four, or two in double precision.
  std::int64_t PaintFours(const T* values, std::int64_t begin, std::int64_t end, std::int64_t low,
                          std::int64_t high, T* field) const {
    for (std::int64_t row = begin; row < end; ++row) {
      Stencil stencil;
      if (!Reach(row, &stencil)) return row;
      const PointWeights weights = Weigh(stencil, 0);
      T along_z[kPoints];
      weights.z.template To<kPoints>(along_z);
      const Four value = Four::From(values + Four::kCount * row);
      const std::int64_t first = std::max<std::int64_t>(low - stencil.plane, 0);
      const std::int64_t last = std::min<std::int64_t>(high - stencil.plane, kPoints);
      for (auto x = static_cast<int>(first); x < last; ++x) {
        for (int y = 0; y < kPoints; ++y) {
          const Four line = weights.line[x][y] * value;
          for (int z = 0; z < kPoints; ++z) {
            T* const at = field + PlaceOfFour(stencil, x, y, z);
            (Four::From(at) + along_z[z] * line).template To<Four::kCount>(at);
          }
        }
      }
    }
    return -1;
  }

  // Readout of such a field to `read` (rows, 4), and Across of `values` (rows, 4).
  std::int64_t ReadoutFours(const T* field, const T* values, std::int64_t begin, std::int64_t end,
                            T* read, T* displacement) const {
    for (std::int64_t row = begin; row < end; ++row) {
      Stencil stencil;
      if (!Reach(row, &stencil)) return row;
      OfPoints value;
      OfPoints slope;
      Weights<T, kPoints>(stencil.rest, 0, value);
      Weights<T, kPoints>(stencil.rest, 1, slope);
      // One axis after the other has its points summed, and each sum is differentiated along an
      // axis, or (the last one) along none.
      std::array<Four, kAxes + 1> sums{};
      for (int x = 0; x < kPoints; ++x) {
        std::array<Four, kAxes> of_plane{};
        for (int y = 0; y < kPoints; ++y) {
          Four by_value;
          Four by_slope;
          for (int z = 0; z < kPoints; ++z) {
            const Four at = Four::From(field + PlaceOfFour(stencil, x, y, z));
            by_value += value[z].template Get<2>() * at;
            by_slope += slope[z].template Get<2>() * at;
          }
          of_plane[0] += value[y].template Get<1>() * by_value;
          of_plane[1] += slope[y].template Get<1>() * by_value;
          of_plane[2] += value[y].template Get<1>() * by_slope;
        }
        sums[0] += slope[x].template Get<0>() * of_plane[0];
        sums[1] += value[x].template Get<0>() * of_plane[1];
        sums[2] += value[x].template Get<0>() * of_plane[2];
        sums[3] += value[x].template Get<0>() * of_plane[0];
      }
      sums[3].template To<Four::kCount>(read + Four::kCount * row);
      const Four times = Four::From(values + Four::kCount * row);
      for (int axis = 0; axis < kAxes; ++axis) {
        displacement[kAxes * row + axis] = (sums[axis] * times).template Sum<Four::kCount>();
      }
    }
    return -1;
  }

  ffi::Error NotHere(const char* operation, std::int64_t row) const {
    return pm::NotHere(operation, mesh_, cells_, offsets_, row,
                       {"particle", "particles to their owners first (pm.to_owners, pm.Route)"});
  }

 private:
  static constexpr Assignment kReach{kPoints, kShift};
  using OfPoints = PerAxis<T>[kPoints];

  // 0 <= place < count, in one comparison.
  static bool IsIn(std::int64_t place, std::int64_t count) {
    return static_cast<std::uint64_t>(place) < static_cast<std::uint64_t>(count);
  }
  // The first point that a particle reaches along an axis, counted from the block's first cell,
  // and `t` of Weights. False where the particle is not in this rank's block.
  bool First(std::int64_t row, int axis, std::int64_t* first, T* rest) const {
    Coordinate<T> at;
    if (!Locate(cells_[kAxes * row + axis], offsets_[kAxes * row + axis], &at)) return false;
    // Most cells are in the block before they are brought back into the box.
    std::int64_t local = at.cell - block_[axis].start;
    if (!IsIn(local, block_[axis].count)) {
      local = Wrapped(at.cell, mesh_.shape[axis]) - block_[axis].start;
      if (!IsIn(local, block_[axis].count)) return false;
    }
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
  // False where the particle is not in this rank's block.
  bool Reach(std::int64_t row, Stencil* stencil) const {
    std::int64_t first[kAxes];
    T rest[kAxes];
    for (int axis = 0; axis < kAxes; ++axis) {
      if (!First(row, axis, &first[axis], &rest[axis])) return false;
    }
    stencil->rest =
        PerAxis<T>::Of([&](auto axis) { return axis < kAxes ? rest[axis % kAxes] : T{0}; });
    stencil->plane = first[0] + kReach.before();
    const std::int64_t n = mesh_.shape[2];
    const std::int64_t z = Wrapped(first[2], n);
    stencil->first = stencil->plane * stride_[0] + (first[1] + kReach.before()) * stride_[1] + z;
    stencil->is_in_line = z + Line::kCount <= n;
    if (!stencil->is_in_line) {
      for (int k = 0; k < kPoints; ++k) stencil->z[k] = Wrapped(z + k, n) - z;
    }
    return true;
  }

  // For one of the derivatives.
  PointWeights Weigh(const Stencil& stencil, std::int64_t derivative) const {
    PerAxis<T> x[kPoints];
    if (!is_differentiated_) {
      Weights<T, kPoints>(stencil.rest, x);
      return Product(x, x, x);
    }
    PerAxis<T> y[kPoints];
    PerAxis<T> z[kPoints];
    const std::int64_t* const order = orders_.begin() + kAxes * derivative;
    Weights<T, kPoints>(stencil.rest, order[0], x);
    Weights<T, kPoints>(stencil.rest, order[1], y);
    Weights<T, kPoints>(stencil.rest, order[2], z);
    return Product(x, y, z);
  }
  // Differentiated once along each axis.
  std::array<PointWeights, kAxes> Slopes(const Stencil& stencil) const {
    PerAxis<T> value[kPoints];
    PerAxis<T> slope[kPoints];
    Weights<T, kPoints>(stencil.rest, 0, value);
    Weights<T, kPoints>(stencil.rest, 1, slope);
    return {Product(slope, value, value), Product(value, slope, value),
            Product(value, value, slope)};
  }
  // Takes those along axis 0 from `x`, along axis 1 from `y` and along axis 2 from `z`.
  static PointWeights Product(const OfPoints& x, const OfPoints& y, const OfPoints& z) {
    PointWeights weights;
    ForEachLine([&](int i, int j) {
      weights.line[i][j] = x[i].template Get<0>() * y[j].template Get<1>();
    });
    weights.z = OnLine(z);
    return weights;
  }
  // Those along axis 2.
  static Line OnLine(const OfPoints& z) {
    return Line::Of([&](auto k) { return k < kPoints ? z[k % kPoints].template Get<2>() : T{0}; });
  }
  static void AddOrSet(bool adds, const Line& term, Line* sum) {
    *sum = adds ? *sum + term : term;
  }

  template <typename Body>
  static void ForEachLine(Body&& body) {
    for (int x = 0; x < kPoints; ++x) {
      for (int y = 0; y < kPoints; ++y) body(x, y);
    }
  }
  template <typename U>
  U* At(const Stencil& stencil, U* component, int x, int y) const {
    return component + stencil.first + x * stride_[0] + y * stride_[1];
  }
  // Where the four numbers of a point begin.
  std::int64_t PlaceOfFour(const Stencil& stencil, int x, int y, int z) const {
    return Four::kCount * (stencil.first + x * stride_[0] + y * stride_[1] +
                           (stencil.is_in_line ? z : stencil.z[z]));
  }
  // The points of the line that begins at `at`.
  static Line Read(const Stencil& stencil, const T* at) {
    if (stencil.is_in_line) return Line::From(at);
    return Line::Of([&](auto k) { return k < kPoints ? at[stencil.z[k % kPoints]] : T{0}; });
  }
  static void Add(const Line& shares, const Stencil& stencil, T* at) {
    if (stencil.is_in_line) {
      (Line::From(at) + shares).template To<kPoints>(at);
    } else {
      T each[kPoints];
      shares.template To<kPoints>(each);
      for (int k = 0; k < kPoints; ++k) at[stencil.z[k]] += each[k];
    }
  }
  static T Sum(const Line& line) { return line.template Sum<kPoints>(); }

  const Mesh& mesh_;
  const Shapes& shapes_;
  const Orders orders_;
  const bool is_differentiated_;
  const std::int64_t stride_[2];  // between lines, along axes 0 and 1
  const std::int32_t* cells_;
  const T* offsets_;
  std::array<Range, kAxes> block_{};
};

}  // namespace pfftjax::pm

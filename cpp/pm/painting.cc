// Paint and readout: sums over particles of values times derivatives of the assignment kernel, and
// the transpose of that. No communication: every particle is in this rank's block.
#include <algorithm>
#include <cstring>

#include "base/copies.h"
#include "pm/mesh.h"
#include "runtime/handlers.h"
#include "runtime/profile.h"
#include "runtime/tasks.h"

namespace pfftjax {
namespace {

using pm::Coordinate;
using pm::kAxes;
using pm::Mesh;

using Orders = ffi::Span<const std::int64_t>;  // three a derivative: how often along each axis
using Cells = ffi::Buffer<ffi::S32, 2>;
using Count = ffi::BufferR0<ffi::S32>;

// A B-spline of 2 or 3 points (CIC, TSC; Hockney & Eastwood 1988, section 5-3), differentiated
// `order` times with respect to the position. A particle at `fraction` of a cell reaches the
// points from `First` on, counted from that cell.
template <typename T, int kPoints>
struct Spline;

template <typename T>
struct Spline<T, 2> {
  static constexpr int kBefore = 0;
  static int First(T) { return 0; }
  static void Weights(T fraction, std::int64_t order, T (&w)[2]) {
    w[0] = order == 0 ? 1 - fraction : T{-1};
    w[1] = order == 0 ? fraction : T{1};
  }
};

template <typename T>
struct Spline<T, 3> {
  static constexpr int kBefore = 1;
  static int First(T fraction) { return fraction < T{0.5} ? -1 : 0; }
  static void Weights(T fraction, std::int64_t order, T (&w)[3]) {
    const T d = fraction - (fraction < T{0.5} ? 0 : 1);  // from the nearest point
    const T half = T{0.5};
    if (order == 0) {
      w[0] = half * (half - d) * (half - d);
      w[1] = T{0.75} - d * d;
      w[2] = half * (half + d) * (half + d);
    } else if (order == 1) {
      w[0] = d - half;
      w[1] = -2 * d;
      w[2] = d + half;
    } else {
      w[0] = 1;
      w[1] = -2;
      w[2] = 1;
    }
  }
};

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
  std::int64_t line[kPoints * kPoints];  // where the lines along axis 2 begin
  std::int64_t z[kPoints];
  T fraction[kAxes];
};

template <typename T, int kPoints>
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
      Coordinate<T> at;
      if (!pm::Locate(cells_[kAxes * row + axis], offsets_[kAxes * row + axis], &at)) return false;
      const std::int64_t local = pm::Wrapped(at.cell, mesh_.shape[axis]) - block_[axis].start;
      if (local < 0 || local >= block_[axis].count) return false;
      stencil->fraction[axis] = at.fraction;
      first[axis] = local + Spline<T, kPoints>::First(at.fraction);
    }
    for (int x = 0; x < kPoints; ++x) {
      for (int y = 0; y < kPoints; ++y) {
        stencil->line[x * kPoints + y] =
            ((first[0] + Spline<T, kPoints>::kBefore + x) * shapes_.padded[1] + first[1] +
             Spline<T, kPoints>::kBefore + y) *
            shapes_.padded[2];
      }
    }
    for (int z = 0; z < kPoints; ++z) stencil->z[z] = pm::Wrapped(first[2] + z, mesh_.shape[2]);
    return true;
  }

  // Weights of the lines, and of the points of a line, for one derivative.
  void Weigh(const Stencil<T, kPoints>& stencil, std::int64_t derivative,
             T (&line)[kPoints * kPoints], T (&z)[kPoints]) const {
    T x[kPoints];
    T y[kPoints];
    const std::int64_t* order = orders_.begin() + kAxes * derivative;
    Spline<T, kPoints>::Weights(stencil.fraction[0], order[0], x);
    Spline<T, kPoints>::Weights(stencil.fraction[1], order[1], y);
    Spline<T, kPoints>::Weights(stencil.fraction[2], order[2], z);
    for (int i = 0; i < kPoints; ++i) {
      for (int j = 0; j < kPoints; ++j) line[i * kPoints + j] = x[i] * y[j];
    }
  }

  // values (rows, components, derivatives) onto field (components, *padded). The first row that
  // is not in the block, or -1.
  std::int64_t Paint(const T* values, std::int64_t count, T* field) const {
    const std::int64_t each = shapes_.components * shapes_.derivatives;
    for (std::int64_t row = 0; row < count; ++row) {
      Stencil<T, kPoints> stencil;
      if (!Reach(row, &stencil)) return row;
      for (std::int64_t d = 0; d < shapes_.derivatives; ++d) {
        T line[kPoints * kPoints];
        T z[kPoints];
        Weigh(stencil, d, line, z);
        for (std::int64_t c = 0; c < shapes_.components; ++c) {
          const T value = values[row * each + c * shapes_.derivatives + d];
          T* component = field + c * shapes_.volume();
          for (int i = 0; i < kPoints * kPoints; ++i) {
            const T share = value * line[i];
            for (int k = 0; k < kPoints; ++k) {
              component[stencil.line[i] + stencil.z[k]] += share * z[k];
            }
          }
        }
      }
    }
    return -1;
  }

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
      finite &= pm::Locate(cells_[kAxes * row + axis], offsets_[kAxes * row + axis], &at);
      cell[axis] = pm::Wrapped(at.cell, mesh_.shape[axis]);
      start[axis] = block_[axis].start;
      count[axis] = block_[axis].count;
    }
    const std::string where =
        std::string(operation) + " on rank (" + std::to_string(mesh_.along[0].rank) + ", " +
        std::to_string(mesh_.along[1].rank) + ") of a " + std::to_string(mesh_.along[0].size) +
        " x " + std::to_string(mesh_.along[1].size) + " grid: particle " + std::to_string(row);
    return Invalid(
        finite ? where + " is in cell " + pm::Tuple(cell) + ", but this rank's block starts at " +
                     pm::Tuple(start) + " and has " + pm::Tuple(count) +
                     " cells; send particles to their owners first (pm.to_owners, pm.Route)"
               : where + " has a position that is not finite");
  }

 private:
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
      Spline<T, kPoints>::Weights(stencil.fraction[axis], 0, value[axis]);
      Spline<T, kPoints>::Weights(stencil.fraction[axis], 1, slope[axis]);
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

// ---- Handlers ----------------------------------------------------------------------------------

// The operands that say where particles are, and the attributes that say on which mesh.
struct Particles {
  std::int64_t shape[kAxes];
  std::int64_t rows_comm;
  std::int64_t columns_comm;
  std::int64_t points;
  Orders orders;
  const Cells& cells;
  const Operand& offsets;
  const Count& used;
};

bool Fits(const Mesh& mesh, const Particles& particles, const Shapes& shapes) {
  bool fits = (particles.points == 2 || particles.points == 3) &&
              shapes.derivatives == static_cast<std::int64_t>(particles.orders.size() / kAxes) &&
              particles.orders.size() % kAxes == 0 &&
              particles.cells.dimensions()[0] == shapes.rows &&
              particles.cells.dimensions()[1] == kAxes &&
              CountOf(particles.offsets) == kAxes * shapes.rows;
  for (int axis = 0; axis < kAxes; ++axis) {
    const std::int64_t ghosts = axis < 2 ? 2 * particles.points - 3 : 0;
    fits &= shapes.padded[axis] == mesh.BlockOnThisRank(axis).count + ghosts;
  }
  for (const std::int64_t order : particles.orders) {
    fits &= order >= 0 && order < particles.points;
  }
  return fits;
}

// body(painter, T{}) with the types of the kernel and of the numbers; it returns the first row
// that is not in this rank's block, or -1. `values` and `field` have the dimensions of Painter's.
template <typename Body>
ffi::Error WithPainter(const char* operation, const Particles& particles,
                       std::array<std::int64_t, 3> values, const Operand& one, const Operand& two,
                       ffi::Span<const std::int64_t> field, Body&& body) {
  const std::optional<Mesh> mesh =
      pm::FindMesh(particles.shape, particles.rows_comm, particles.columns_comm);
  const bool has_axes = field.size() == 1 + kAxes && field[0] == values[1];
  Shapes shapes{values[0], values[1], values[2], {}};
  if (has_axes) std::copy(field.begin() + 1, field.end(), shapes.padded.begin());
  const ffi::DataType type = particles.offsets.element_type();
  if (!mesh || !has_axes || !Fits(*mesh, particles, shapes) || one.element_type() != type ||
      two.element_type() != type) {
    return Invalid(std::string(operation) + " of buffers that do not fit");
  }
  if (const std::int64_t used = *particles.used.typed_data(); used < 0 || used > shapes.rows) {
    return Invalid(std::string(operation) + " of " + std::to_string(used) +
                   " particles in arrays of " + std::to_string(shapes.rows) + " rows");
  }
  const auto run = [&](auto zero, auto points) {
    using T = decltype(zero);
    const Painter<T, decltype(points)::value> painter(
        *mesh, shapes, particles.orders, particles.cells.typed_data(),
        static_cast<const T*>(particles.offsets.untyped_data()));
    const std::int64_t lost = body(painter, zero);
    return lost < 0 ? ffi::Error::Success() : painter.NotHere(operation, lost);
  };
  const auto with_points = [&](auto zero) {
    return particles.points == 2 ? run(zero, std::integral_constant<int, 2>{})
                                 : run(zero, std::integral_constant<int, 3>{});
  };
  if (type == ffi::DataType::F32) return with_points(float{});
  if (type == ffi::DataType::F64) return with_points(double{});
  return Invalid("paint and readout work on float32 and float64");
}

// body(begin, end) for the rows that hold particles, on several threads; zeros in the others. Each
// row of the result has `each` numbers.
template <typename T, typename Body>
std::int64_t ForRows(ffi::ThreadPool& pool, std::int64_t used, std::int64_t rows,
                     std::int64_t each, T* result, Body body) {
  std::fill(result + used * each, result + rows * each, T{0});
  constexpr std::int64_t some = 1 << 14;
  const auto lost = std::make_shared<std::atomic<std::int64_t>>(-1);
  ForEachTask(pool, (used + some - 1) / some, pool.num_threads() - 1, [=](std::int64_t task) {
    const std::int64_t row = body(task * some, std::min((task + 1) * some, used));
    if (row >= 0) lost->store(row);
  });
  return *lost;
}

ffi::Error Paint(std::int64_t n0, std::int64_t n1, std::int64_t n2, std::int64_t rows_comm,
                 std::int64_t columns_comm, std::int64_t points, Orders orders, Cells cells,
                 Operand offsets, Count used, Operand values, Result field) {
  const Timed timed(Operation::kPaint, BytesOf(values));
  const auto shape = values.dimensions();
  if (shape.size() != 3) return Invalid("paint of a wrong shape");
  AdviseHugePages(field->untyped_data(), field->size_bytes());
  Clear(field->untyped_data(), field->size_bytes());
  return WithPainter(
      "paint", {{n0, n1, n2}, rows_comm, columns_comm, points, orders, cells, offsets, used},
      {shape[0], shape[1], shape[2]}, values, *field, field->dimensions(),
      [&](const auto& painter, auto zero) {
        using T = decltype(zero);
        return painter.Paint(static_cast<const T*>(values.untyped_data()), *used.typed_data(),
                             static_cast<T*>(field->untyped_data()));
      });
}

ffi::Error Readout(std::int64_t n0, std::int64_t n1, std::int64_t n2, std::int64_t rows_comm,
                   std::int64_t columns_comm, std::int64_t points, Orders orders,
                   ffi::ThreadPool pool, Cells cells, Operand offsets, Count used, Operand field,
                   Result values) {
  const Timed timed(Operation::kReadout, BytesOf(field));
  const auto shape = values->dimensions();
  if (shape.size() != 3) return Invalid("readout of a wrong shape");
  AdviseHugePages(values->untyped_data(), values->size_bytes());
  return WithPainter("readout",
                     {{n0, n1, n2}, rows_comm, columns_comm, points, orders, cells, offsets, used},
                     {shape[0], shape[1], shape[2]}, field, *values, field.dimensions(),
                     [&](const auto& painter, auto zero) {
                       using T = decltype(zero);
                       const T* from = static_cast<const T*>(field.untyped_data());
                       T* to = static_cast<T*>(values->untyped_data());
                       return ForRows(pool, *used.typed_data(), shape[0], shape[1] * shape[2], to,
                                      [=](std::int64_t begin, std::int64_t end) {
                                        return painter.Readout(from, begin, end, to);
                                      });
                     });
}

// The derivative of a readout along small displacements, or (kAcross) the transpose of that.
template <bool kAcross>
ffi::Error Slope(std::int64_t n0, std::int64_t n1, std::int64_t n2, std::int64_t rows_comm,
                 std::int64_t columns_comm, std::int64_t points, Orders orders,
                 ffi::ThreadPool pool, Cells cells, Operand offsets, Count used, Operand field,
                 Operand x, Result y) {
  const Timed timed(kAcross ? Operation::kReadoutAcross : Operation::kReadoutAlong, BytesOf(x));
  constexpr const char* operation = kAcross ? "readout_across" : "readout_along";
  const auto in = x.dimensions();
  const auto out = y->dimensions();
  const auto components = kAcross ? in : out;
  const auto displacement = kAcross ? out : in;
  if (in.size() != 2 || out.size() != 2 || in[0] != out[0] || displacement[1] != kAxes) {
    return Invalid(std::string(operation) + " of a wrong shape");
  }
  AdviseHugePages(y->untyped_data(), y->size_bytes());
  return WithPainter(operation,
                     {{n0, n1, n2}, rows_comm, columns_comm, points, orders, cells, offsets, used},
                     {components[0], components[1], 1}, x, *y, field.dimensions(),
                     [&](const auto& painter, auto zero) {
                       using T = decltype(zero);
                       const T* at = static_cast<const T*>(field.untyped_data());
                       const T* from = static_cast<const T*>(x.untyped_data());
                       T* to = static_cast<T*>(y->untyped_data());
                       return ForRows(pool, *used.typed_data(), in[0], out[1], to,
                                      [=](std::int64_t begin, std::int64_t end) {
                                        return kAcross ? painter.Across(at, from, begin, end, to)
                                                       : painter.Along(at, from, begin, end, to);
                                      });
                     });
}

template <auto kRun>
Registration OnMesh(const char* name) {
  return Handler<kRun>(name, "n0", "n1", "n2", "rows_comm", "columns_comm", "points", "orders")
      .OnHost();
}

}  // namespace

std::vector<Registration> PaintingHandlers() {
  return {OnMesh<Paint>("pfftjax_paint"), OnMesh<Readout>("pfftjax_readout"),
          OnMesh<Slope<false>>("pfftjax_readout_along"),
          OnMesh<Slope<true>>("pfftjax_readout_across")};
}

}  // namespace pfftjax

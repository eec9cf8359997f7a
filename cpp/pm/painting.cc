// Paint and readout: sums over particles of values times derivatives of the assignment kernel, and
// the transpose of that. No communication: every particle is in this rank's block.
#include <algorithm>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "base/distribution.h"
#include "pm/painter.h"
#include "runtime/handlers.h"
#include "runtime/profile.h"
#include "runtime/tasks.h"

namespace pfftjax {
namespace {

using pm::Painter;
using pm::ParticleHandler;
using pm::Particles;

// body(painter, T{}) with the types of the kernel and of the numbers; it returns the first row
// that is not in this rank's block, or -1.
template <typename Body>
ffi::Error WithPainter(const char* operation, const Particles& particles,
                       const std::optional<pm::Operands>& operands, Body&& body) {
  const std::optional<pm::Placement> placement = pm::Place(particles, operands);
  if (!placement) return Invalid(std::string(operation) + " of buffers that do not fit");
  const pm::Mesh& mesh = placement->mesh;
  const pm::Shapes& shapes = placement->shapes;
  if (const std::int64_t used = *particles.used.typed_data(); used < 0 || used > shapes.rows) {
    return Invalid(std::string(operation) + " of " + std::to_string(used) +
                   " particles in arrays of " + std::to_string(shapes.rows) + " rows");
  }
  const auto run = [&](auto zero, auto points, auto shift) {
    using T = decltype(zero);
    const Painter<T, decltype(points)::value, decltype(shift)::value> painter(
        mesh, shapes, particles.orders, particles.cells.typed_data(),
        static_cast<const T*>(particles.offsets.untyped_data()));
    const std::int64_t lost = body(painter, zero);
    return lost < 0 ? ffi::Error::Success() : painter.NotHere(operation, lost);
  };
  const auto with_shift = [&](auto zero, auto points) {
    return particles.assignment.shift == 0 ? run(zero, points, std::integral_constant<int, 0>{})
                                           : run(zero, points, std::integral_constant<int, 1>{});
  };
  const auto with_points = [&](auto zero) {
    return pm::WithPoints(particles.assignment.points,
                          [&](auto points) { return with_shift(zero, points); });
  };
  const ffi::DataType type = particles.offsets.element_type();
  if (type == ffi::DataType::F32) return with_points(float{});
  if (type == ffi::DataType::F64) return with_points(double{});
  return Invalid("paint and readout work on float32 and float64");
}

// The first of the rows that tasks have not found in this rank's block, or -1: the same on any
// number of threads.
std::int64_t FirstOf(const std::vector<std::int64_t>& lost) {
  std::int64_t first = -1;
  for (const std::int64_t row : lost) {
    if (row >= 0 && (first < 0 || row < first)) first = row;
  }
  return first;
}

// Zeros in the rows of a result that hold no particles. Each row has `each` numbers.
template <typename T>
void ClearRows(std::int64_t used, std::int64_t rows, std::int64_t each, T* result) {
  std::fill(result + used * each, result + rows * each, T{0});
}

// body(begin, end) for the rows that hold particles, on several threads. It returns the first row
// that is not in this rank's block, or -1.
template <typename Body>
std::int64_t ForRows(ffi::ThreadPool& pool, std::int64_t used, Body body) {
  constexpr std::int64_t some = 1 << 14;
  const std::int64_t tasks = (used + some - 1) / some;
  std::vector<std::int64_t> lost(static_cast<std::size_t>(tasks));
  ForEachTask(pool, tasks, pool.num_threads() - 1, [&](std::int64_t task) {
    lost[static_cast<std::size_t>(task)] = body(task * some, std::min((task + 1) * some, used));
  });
  return FirstOf(lost);
}

// Rows from `begin` to `end`, all of which reach the same parts of a mesh.
struct Run {
  std::int64_t begin;
  std::int64_t end;
};

// The tasks of a paint. A part of the mesh is the planes from one of `starts` to the next. Rows
// are listed in chunks: runs[chunk * count() + part] has those of a chunk that reach a part.
struct Parts {
  std::vector<std::int64_t> starts;
  std::vector<std::vector<Run>> runs;
  std::int64_t count() const { return static_cast<std::int64_t>(starts.size()) - 1; }
};

// Where parts of a mesh begin, and where the last one ends. They have about as many particles as
// each other, judged by some of the rows, but none has fewer planes than points of a kernel, so
// that a particle reaches two parts at most.
template <typename T, int kPoints, int kShift>
std::vector<std::int64_t> StartsOf(const Painter<T, kPoints, kShift>& painter, std::int64_t used,
                                   std::int64_t parts) {
  // Primes: rows in the order of a lattice whose lines have 128 of them would all be in one plane.
  // Each row that is looked at is a miss of the cache, so that no more are than balance the parts.
  constexpr std::int64_t enough = 64;
  const std::int64_t every = used / 509 < enough * parts ? 127 : 509;
  const std::int64_t planes = painter.shapes().padded[0];
  std::vector<std::int64_t> particles(planes);
  for (std::int64_t row = 0; row < used; row += every) ++particles[painter.PlanesOf(row).start];
  const std::int64_t all = (used + every - 1) / every;
  std::vector<std::int64_t> starts{0};
  std::int64_t plane = 0;
  std::int64_t before = 0;
  for (std::int64_t part = 1; part < parts; ++part) {
    while (before * parts < all * part) before += particles[plane++];
    const std::int64_t last = planes - (parts - part) * kPoints;
    starts.push_back(std::clamp(plane, starts.back() + kPoints, last));
  }
  starts.push_back(planes);
  return starts;
}

// Adds the rows from `begin` to `end`, in their order, to the runs of each part that they reach.
// `part_of` has the part of each plane. Rows that are near each other are often in the same part,
// so there are far fewer runs than rows.
template <typename T, int kPoints, int kShift>
void AddRuns(const Painter<T, kPoints, kShift>& painter, std::int64_t begin, std::int64_t end,
             const std::vector<std::int64_t>& part_of, std::vector<Run>* runs) {
  constexpr std::int64_t few = 16;
  Run run{begin, begin};
  std::int64_t first = 0;
  std::int64_t last = 0;
  const auto close = [&] {
    if (run.begin == run.end) return;
    runs[first].push_back(run);
    if (last != first) runs[last].push_back(run);
  };
  const auto first_of = [&](const Range& planes) { return part_of[planes.start]; };
  const auto last_of = [&](const Range& planes) {
    return part_of[planes.start + planes.count - 1];
  };
  // The rows up to `until` reach these planes.
  const auto extend = [&](std::int64_t until, const Range& planes) {
    if (first_of(planes) != first || last_of(planes) != last) {
      close();
      run.begin = run.end;
      first = first_of(planes);
      last = last_of(planes);
    }
    run.end = until;
  };
  while (run.end < end) {
    const std::int64_t until = std::min(run.end + few, end);
    const Range around = painter.PlanesAround(run.end, until);
    if (around.count > 0 && first_of(around) == last_of(around)) {
      extend(until, around);
    } else {
      while (run.end < until) extend(run.end + 1, painter.PlanesOf(run.end));
    }
  }
  close();
}

// How the first `used` rows are shared out. On one thread, or where there is little to do, one
// part is the whole mesh.
template <typename T, int kPoints, int kShift>
Parts PartsOf(ffi::ThreadPool& pool, const Painter<T, kPoints, kShift>& painter,
              std::int64_t used) {
  constexpr std::int64_t some = 1 << 14;
  const std::int64_t planes = painter.shapes().padded[0];
  const std::int64_t threads = pool.num_threads();
  // A row that reaches two parts is read for both, so there are few parts.
  const std::int64_t count = std::min(2 * threads, planes / kPoints);
  if (threads < 2 || count < 2 || used < 2 * some) return {{0, planes}, {{{0, used}}}};

  const std::int64_t chunks = (used + some - 1) / some;
  Parts parts{StartsOf(painter, used, count), {}};
  parts.runs.resize(chunks * count);
  std::vector<std::int64_t> part_of(planes);
  for (std::int64_t part = 0; part < count; ++part) {
    std::fill(part_of.begin() + parts.starts[part], part_of.begin() + parts.starts[part + 1],
              part);
  }
  ForEachTask(pool, chunks, threads - 1, [&](std::int64_t chunk) {
    AddRuns(painter, chunk * some, std::min((chunk + 1) * some, used), part_of,
            parts.runs.data() + chunk * count);
  });
  return parts;
}

// Zeros in the planes from `low` to `high` of meshes of `width` numbers a point, which lie apart.
template <typename T>
void ClearPlanes(const pm::Shapes& shapes, std::int64_t meshes, std::int64_t width,
                 std::int64_t low, std::int64_t high, T* field) {
  const std::int64_t plane = shapes.padded[1] * shapes.padded[2] * width;
  for (std::int64_t mesh = 0; mesh < meshes; ++mesh) {
    T* const first = field + mesh * shapes.padded[0] * plane;
    std::fill(first + low * plane, first + high * plane, T{0});
  }
}

// paint(begin, end, low, high), as Painter::Paint, of the first `used` rows on several threads.
// Each task has planes of its own, which it clears, and paints the rows that reach them in their
// order: every point is the same sum on any number of threads.
template <typename T, int kPoints, int kShift, typename Clear, typename PaintRows>
std::int64_t PaintOnThreads(ffi::ThreadPool& pool, const Painter<T, kPoints, kShift>& painter,
                            std::int64_t used, Clear clear, PaintRows paint) {
  const Parts parts = PartsOf(pool, painter, used);
  const std::int64_t count = parts.count();
  std::vector<std::int64_t> lost(count, -1);
  ForEachTask(pool, count, pool.num_threads() - 1, [&](std::int64_t part) {
    clear(parts.starts[part], parts.starts[part + 1]);
    for (std::size_t at = part; at < parts.runs.size(); at += count) {
      for (const Run& run : parts.runs[at]) {
        const std::int64_t row =
            paint(run.begin, run.end, parts.starts[part], parts.starts[part + 1]);
        if (row >= 0) {
          lost[part] = row;
          return;
        }
      }
    }
  });
  return FirstOf(lost);
}

// Components lie apart, or (kFours) the four numbers of a point lie together.
template <bool kFours>
ffi::Error Paint(const Particles& particles, ffi::ThreadPool pool, Operand values, Result field) {
  const Timed timed(kFours ? Operation::kPaintFours : Operation::kPaint, BytesOf(values));
  PrepareToWrite(field->untyped_data(), field->size_bytes());
  return WithPainter(kFours ? "paint_fours" : "paint", particles,
                     kFours ? pm::OperandsOfFours(values, *field) : pm::OperandsOf(values, *field),
                     [&](const auto& painter, auto zero) {
                       using T = decltype(zero);
                       const T* from = static_cast<const T*>(values.untyped_data());
                       T* to = static_cast<T*>(field->untyped_data());
                       return PaintOnThreads(
                           pool, painter, *particles.used.typed_data(),
                           [=, &painter](std::int64_t low, std::int64_t high) {
                             const pm::Shapes& shapes = painter.shapes();
                             ClearPlanes(shapes, kFours ? 1 : shapes.components, kFours ? 4 : 1,
                                         low, high, to);
                           },
                           [=, &painter](std::int64_t begin, std::int64_t end, std::int64_t low,
                                         std::int64_t high) {
                             return kFours ? painter.PaintFours(from, begin, end, low, high, to)
                                           : painter.Paint(from, begin, end, low, high, to);
                           });
                     });
}

ffi::Error Readout(const Particles& particles, ffi::ThreadPool pool, Operand field,
                   Result values) {
  const Timed timed(Operation::kReadout, BytesOf(field));
  PrepareToWrite(values->untyped_data(), values->size_bytes());
  return WithPainter("readout", particles, pm::OperandsOf(*values, field),
                     [&](const auto& painter, auto zero) {
                       using T = decltype(zero);
                       const T* from = static_cast<const T*>(field.untyped_data());
                       T* to = static_cast<T*>(values->untyped_data());
                       const auto shape = values->dimensions();
                       const std::int64_t used = *particles.used.typed_data();
                       ClearRows(used, shape[0], shape[1] * shape[2], to);
                       return ForRows(pool, used, [=](std::int64_t begin, std::int64_t end) {
                         return painter.Readout(from, begin, end, to);
                       });
                     });
}

// The derivative of a readout along small displacements, or (kAcross) the transpose of that.
template <bool kAcross>
ffi::Error Slope(const Particles& particles, ffi::ThreadPool pool, Operand field, Operand x,
                 Result y) {
  const Timed timed(kAcross ? Operation::kReadoutAcross : Operation::kReadoutAlong, BytesOf(x));
  constexpr const char* operation = kAcross ? "readout_across" : "readout_along";
  PrepareToWrite(y->untyped_data(), y->size_bytes());
  return WithPainter(operation, particles,
                     kAcross ? pm::OperandsOf(x, *y, field) : pm::OperandsOf(*y, x, field),
                     [&](const auto& painter, auto zero) {
                       using T = decltype(zero);
                       const T* at = static_cast<const T*>(field.untyped_data());
                       const T* from = static_cast<const T*>(x.untyped_data());
                       T* to = static_cast<T*>(y->untyped_data());
                       const auto out = y->dimensions();
                       const std::int64_t used = *particles.used.typed_data();
                       ClearRows(used, out[0], out[1], to);
                       return ForRows(pool, used, [=](std::int64_t begin, std::int64_t end) {
                         return kAcross ? painter.Across(at, from, begin, end, to)
                                        : painter.Along(at, from, begin, end, to);
                       });
                     });
}

bool IsTable(const Operand& x, std::int64_t rows, std::int64_t columns, ffi::DataType type) {
  const pm::Dimensions shape = x.dimensions();
  return shape.size() == 2 && shape[0] == rows && shape[1] == columns && x.element_type() == type;
}

// A readout of four components that lie together at each point, and the transpose of its
// derivative for values of the same particles.
ffi::Error ReadoutFours(const Particles& particles, ffi::ThreadPool pool, Operand field,
                        Operand values, Result read, Result displacement) {
  const Timed timed(Operation::kReadoutFours, BytesOf(field));
  const std::int64_t rows = particles.cells.dimensions()[0];
  const ffi::DataType type = particles.offsets.element_type();
  if (!IsTable(*read, rows, 4, type) || !IsTable(*displacement, rows, pm::kAxes, type)) {
    return Invalid("readout_fours of buffers that do not fit");
  }
  PrepareToWrite(read->untyped_data(), read->size_bytes());
  PrepareToWrite(displacement->untyped_data(), displacement->size_bytes());
  return WithPainter("readout_fours", particles, pm::OperandsOfFours(values, field),
                     [&](const auto& painter, auto zero) {
                       using T = decltype(zero);
                       const T* at = static_cast<const T*>(field.untyped_data());
                       const T* from = static_cast<const T*>(values.untyped_data());
                       T* to = static_cast<T*>(read->untyped_data());
                       T* way = static_cast<T*>(displacement->untyped_data());
                       const std::int64_t used = *particles.used.typed_data();
                       ClearRows(used, rows, 4, to);
                       ClearRows(used, rows, pm::kAxes, way);
                       return ForRows(pool, used, [=](std::int64_t begin, std::int64_t end) {
                         return painter.ReadoutFours(at, from, begin, end, to, way);
                       });
                     });
}

}  // namespace

std::vector<Registration> PaintingHandlers() {
  return {ParticleHandler<Paint<false>>("pfftjax_paint").OnHost(),
          ParticleHandler<Readout>("pfftjax_readout").OnHost(),
          ParticleHandler<Slope<false>>("pfftjax_readout_along").OnHost(),
          ParticleHandler<Slope<true>>("pfftjax_readout_across").OnHost(),
          ParticleHandler<Paint<true>>("pfftjax_paint_fours").OnHost(),
          ParticleHandler<ReadoutFours>("pfftjax_readout_fours").OnHost()};
}

}  // namespace pfftjax

// Paint and readout: sums over particles of values times derivatives of the assignment kernel, and
// the transpose of that. No communication: every particle is in this rank's block.
#include <algorithm>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "base/copies.h"
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

// body(begin, end) for the rows that hold particles, on several threads; zeros in the others. Each
// row of the result has `each` numbers.
template <typename T, typename Body>
std::int64_t ForRows(ffi::ThreadPool& pool, std::int64_t used, std::int64_t rows,
                     std::int64_t each, T* result, Body body) {
  std::fill(result + used * each, result + rows * each, T{0});
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

// Painter::Paint of the first `used` rows on several threads. Each task has planes of its own, and
// paints the rows that reach them in their order: every point is the same sum on any number of
// threads.
template <typename T, int kPoints, int kShift>
std::int64_t PaintOnThreads(ffi::ThreadPool& pool, const Painter<T, kPoints, kShift>& painter,
                            const T* values, std::int64_t used, T* field) {
  constexpr std::int64_t some = 1 << 14;
  const std::int64_t planes = painter.shapes().padded[0];
  const std::int64_t threads = pool.num_threads();
  // A particle reaches two parts at most, as none has fewer planes than points of a kernel.
  const std::int64_t parts = std::min(4 * threads, planes / kPoints);
  if (threads < 2 || parts < 2 || used < 2 * some) {
    return painter.Paint(values, 0, used, 0, planes, field);
  }
  const auto low = [=](std::int64_t part) { return planes * part / parts; };
  std::vector<std::int64_t> part_of(static_cast<std::size_t>(planes));
  for (std::int64_t part = 0; part < parts; ++part) {
    std::fill(part_of.begin() + low(part), part_of.begin() + low(part + 1), part);
  }

  // What each chunk of rows has for each part. Rows that are near each other are often in the same
  // part, so there are far fewer runs than rows.
  const std::int64_t chunks = (used + some - 1) / some;
  std::vector<std::vector<Run>> runs(static_cast<std::size_t>(chunks * parts));
  ForEachTask(pool, chunks, threads - 1, [&](std::int64_t chunk) {
    std::vector<Run>* const mine = runs.data() + chunk * parts;
    const std::int64_t end = std::min((chunk + 1) * some, used);
    Run run{chunk * some, chunk * some};
    std::int64_t first = 0;
    std::int64_t last = 0;
    const auto close = [&] {
      if (run.begin == run.end) return;
      mine[first].push_back(run);
      if (last != first) mine[last].push_back(run);
    };
    for (; run.end < end; ++run.end) {
      // A row that is not in the block is found where it would be painted.
      const std::int64_t plane = std::max<std::int64_t>(painter.Plane(run.end), 0);
      const std::int64_t its_first = part_of[static_cast<std::size_t>(plane)];
      const std::int64_t its_last = part_of[static_cast<std::size_t>(plane + kPoints - 1)];
      if (its_first != first || its_last != last) {
        close();
        run.begin = run.end;
        first = its_first;
        last = its_last;
      }
    }
    close();
  });

  std::vector<std::int64_t> lost(static_cast<std::size_t>(parts), -1);
  ForEachTask(pool, parts, threads - 1, [&](std::int64_t part) {
    std::int64_t& its = lost[static_cast<std::size_t>(part)];
    for (std::int64_t chunk = 0; chunk < chunks; ++chunk) {
      for (const Run& run : runs[static_cast<std::size_t>(chunk * parts + part)]) {
        its = painter.Paint(values, run.begin, run.end, low(part), low(part + 1), field);
        if (its >= 0) return;
      }
    }
  });
  return FirstOf(lost);
}

ffi::Error Paint(const Particles& particles, ffi::ThreadPool pool, Operand values, Result field) {
  const Timed timed(Operation::kPaint, BytesOf(values));
  AdviseHugePages(field->untyped_data(), field->size_bytes());
  Clear(field->untyped_data(), field->size_bytes());
  return WithPainter(
      "paint", particles, pm::OperandsOf(values, *field), [&](const auto& painter, auto zero) {
        using T = decltype(zero);
        return PaintOnThreads(pool, painter, static_cast<const T*>(values.untyped_data()),
                              *particles.used.typed_data(),
                              static_cast<T*>(field->untyped_data()));
      });
}

ffi::Error Readout(const Particles& particles, ffi::ThreadPool pool, Operand field,
                   Result values) {
  const Timed timed(Operation::kReadout, BytesOf(field));
  AdviseHugePages(values->untyped_data(), values->size_bytes());
  return WithPainter(
      "readout", particles, pm::OperandsOf(*values, field), [&](const auto& painter, auto zero) {
        using T = decltype(zero);
        const T* from = static_cast<const T*>(field.untyped_data());
        T* to = static_cast<T*>(values->untyped_data());
        const auto shape = values->dimensions();
        return ForRows(pool, *particles.used.typed_data(), shape[0], shape[1] * shape[2], to,
                       [=](std::int64_t begin, std::int64_t end) {
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
  AdviseHugePages(y->untyped_data(), y->size_bytes());
  return WithPainter(operation, particles,
                     kAcross ? pm::OperandsOf(x, *y, field) : pm::OperandsOf(*y, x, field),
                     [&](const auto& painter, auto zero) {
                       using T = decltype(zero);
                       const T* at = static_cast<const T*>(field.untyped_data());
                       const T* from = static_cast<const T*>(x.untyped_data());
                       T* to = static_cast<T*>(y->untyped_data());
                       const auto out = y->dimensions();
                       return ForRows(pool, *particles.used.typed_data(), out[0], out[1], to,
                                      [=](std::int64_t begin, std::int64_t end) {
                                        return kAcross ? painter.Across(at, from, begin, end, to)
                                                       : painter.Along(at, from, begin, end, to);
                                      });
                     });
}

}  // namespace

std::vector<Registration> PaintingHandlers() {
  return {ParticleHandler<Paint>("pfftjax_paint").OnHost(),
          ParticleHandler<Readout>("pfftjax_readout").OnHost(),
          ParticleHandler<Slope<false>>("pfftjax_readout_along").OnHost(),
          ParticleHandler<Slope<true>>("pfftjax_readout_across").OnHost()};
}

}  // namespace pfftjax

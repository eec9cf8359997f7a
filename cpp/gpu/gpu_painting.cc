// The handlers for GPUs of paint, readout and the derivatives of readout. A kernel cannot end a
// program with an error: where a particle is not in this rank's block, the result is NaN.
#include <algorithm>

#include "base/options.h"
#include "gpu/context.h"
#include "gpu/particles.h"
#include "pm/placement.h"
#include "runtime/handlers.h"
#include "runtime/profile.h"

namespace pfftjax::gpu {
namespace {

using pm::kAxes;
using pm::ParticleHandler;
using pm::Particles;

// The parts of a call that the host knows.
ParticleCall CallOf(ParticleOperation operation, const Particles& particles,
                    const pm::Placement& placement) {
  const pm::Shapes& shapes = placement.shapes;
  const pm::Assignment& reach = particles.assignment;
  ParticleCall call{};
  call.operation = operation;
  call.is_double = particles.offsets.element_type() == ffi::DataType::F64;
  call.points = static_cast<std::int32_t>(reach.points);
  call.lowest = static_cast<std::int32_t>(reach.lowest());
  call.is_by_half = reach.is_by_half();
  call.before = static_cast<std::int32_t>(reach.before());
  call.rows = shapes.rows;
  call.components = shapes.components;
  call.derivatives = shapes.derivatives;
  for (int axis = 0; axis < kAxes; ++axis) {
    const Range block = placement.mesh.BlockOnThisRank(axis);
    call.shape[axis] = placement.mesh.shape[axis];
    call.start[axis] = block.start;
    call.count[axis] = block.count;
    call.padded[axis] = shapes.padded[axis];
  }
  for (std::int64_t d = 0; d < shapes.derivatives; ++d) {
    for (int axis = 0; axis < kAxes; ++axis) {
      call.orders[d][axis] = static_cast<std::int8_t>(particles.orders[kAxes * d + axis]);
    }
  }
  call.is_plain =
      shapes.derivatives == 1 && std::all_of(particles.orders.begin(), particles.orders.end(),
                                             [](auto order) { return order == 0; });
  call.is_deterministic = GetOptions().deterministic;
  call.cells = particles.cells.typed_data();
  call.offsets = particles.offsets.untyped_data();
  call.used = particles.used.typed_data();
  return call;
}

ffi::Error RunOnDevice(const char* name, ParticleOperation operation, const Particles& particles,
                       const std::optional<pm::Operands>& operands, const void* field,
                       const void* given, Result& result, Queue& queue) {
  const std::optional<pm::Placement> placement = pm::Place(particles, operands);
  const ffi::DataType type = particles.offsets.element_type();
  if (!placement || placement->shapes.derivatives > kMostDerivatives ||
      (type != ffi::DataType::F32 && type != ffi::DataType::F64)) {
    return Invalid(std::string(name) + " of buffers that do not fit");
  }
  ParticleCall call = CallOf(operation, particles, *placement);
  call.field = field;
  call.given = given;
  call.result = result->untyped_data();
  call.results = CountOf(*result);
  call.lost = static_cast<std::int32_t*>(queue.Allocate(sizeof *call.lost));
  queue.Clear(call.lost, sizeof *call.lost);
  const std::int64_t scratch = Device()->particle_scratch(&call);
  void* const sums = queue.Allocate(scratch);
  queue.Clear(sums, scratch);
  (call.is_deterministic ? call.fixed : call.together) = sums;
  if (operation == ParticleOperation::kPaint && scratch == 0) {
    queue.Clear(call.result, BytesOf(*result));
  }
  Check(Device()->run_particles(&call, queue.stream()), name);
  return ffi::Error::Success();
}

ffi::Error Paint(const Particles& particles, Queue queue, Operand values, Result field) {
  const Timed timed(Operation::kPaint, BytesOf(values));
  return RunOnDevice("paint", ParticleOperation::kPaint, particles, pm::OperandsOf(values, *field),
                     nullptr, values.untyped_data(), field, queue);
}

ffi::Error Readout(const Particles& particles, Queue queue, Operand field, Result values) {
  const Timed timed(Operation::kReadout, BytesOf(field));
  return RunOnDevice("readout", ParticleOperation::kReadout, particles,
                     pm::OperandsOf(*values, field), field.untyped_data(), nullptr, values, queue);
}

// The derivative of a readout along small displacements, or (kAcross) the transpose of that.
template <bool kAcross>
ffi::Error Slope(const Particles& particles, Queue queue, Operand field, Operand x, Result y) {
  const Timed timed(kAcross ? Operation::kReadoutAcross : Operation::kReadoutAlong, BytesOf(x));
  constexpr const char* operation = kAcross ? "readout_across" : "readout_along";
  return RunOnDevice(operation, kAcross ? ParticleOperation::kAcross : ParticleOperation::kAlong,
                     particles,
                     kAcross ? pm::OperandsOf(x, *y, field) : pm::OperandsOf(*y, x, field),
                     field.untyped_data(), x.untyped_data(), y, queue);
}

}  // namespace

std::vector<Registration> PaintingHandlers() {
  return {ParticleHandler<Paint>("pfftjax_paint").OnDevice(),
          ParticleHandler<Readout>("pfftjax_readout").OnDevice(),
          ParticleHandler<Slope<false>>("pfftjax_readout_along").OnDevice(),
          ParticleHandler<Slope<true>>("pfftjax_readout_across").OnDevice()};
}

}  // namespace pfftjax::gpu

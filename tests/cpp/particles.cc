// The kernels of particles (cpp/gpu/particles.cu) beside what their rows give one after the other,
// on threads that cuda_emulator.h makes. Built and run by tests/jobs/test_kernels.py; what a row
// gives is compared with sums by numpy where tests/pm runs on the fake device.
#include "gpu/particles.cu"

#include <cstring>
#include <string>
#include <vector>

#include "particle_rows.h"
#include "requirements.h"

namespace pfftjax::gpu {
namespace {

template <typename T>
std::vector<T> Numbers(std::int64_t count) {
  std::vector<T> numbers(static_cast<std::size_t>(count));
  for (T& number : numbers) number = static_cast<T>(Draw(2001) - 1000) / T{500};
  return numbers;
}

// A call on a mesh of one rank, without its arrays. Some lines have an even number of points and
// others not, so that pairs are aligned in some lines and not in others.
template <typename T>
ParticleCall DrawCall(ParticleOperation operation, int points, std::int64_t n2) {
  ParticleCall call{};
  call.operation = operation;
  call.is_double = sizeof(T) == sizeof(double);
  call.points = points;
  const pm::Assignment reach{points, Draw(2)};
  call.lowest = static_cast<std::int32_t>(reach.lowest());
  call.is_by_half = reach.is_by_half();
  call.before = static_cast<std::int32_t>(reach.before());
  call.rows = 1 + Draw(3 * kRowsPerBlock);
  call.components = 1 + Draw(3);
  const bool has_orders = operation <= ParticleOperation::kReadout;
  call.derivatives = has_orders ? 1 + Draw(3) : 1;
  call.is_plain = call.derivatives == 1;
  const std::int64_t sizes[3] = {6, 5, n2};
  for (int axis = 0; axis < 3; ++axis) {
    call.shape[axis] = call.count[axis] = call.padded[axis] = sizes[axis];
    if (axis < 2) call.padded[axis] += reach.before() + reach.after();
  }
  for (std::int64_t d = 0; !call.is_plain && d < call.derivatives; ++d) {
    for (auto& order : call.orders[d]) order = static_cast<std::int8_t>(Draw(points));
  }
  return call;
}

std::vector<std::int32_t> DrawCells(const ParticleCall& call) {
  std::vector<std::int32_t> cells(static_cast<std::size_t>(3 * call.rows));
  for (auto& cell : cells) cell = static_cast<std::int32_t>(Draw(40) - 20);
  return cells;
}

// What the kernels give, beside the rows one after the other.
template <typename T, int kPoints, ParticleOperation kOperation>
void Test(std::int64_t n2, bool is_lost) {
  ParticleCall call = DrawCall<T>(kOperation, kPoints, n2);
  std::vector<std::int32_t> cells = DrawCells(call);
  std::vector<T> offsets = Numbers<T>(3 * call.rows);
  const auto used = static_cast<std::int32_t>(call.rows - Draw(call.rows));
  if (is_lost) offsets[3 * static_cast<std::size_t>(used) - 1] = std::nan("");
  const std::vector<T> field = Numbers<T>(call.components * call.volume());
  const std::int64_t each =
      kOperation == ParticleOperation::kAlong ? 3 : call.components * call.derivatives;
  const std::vector<T> given = Numbers<T>(call.rows * each);
  const bool is_paint = kOperation == ParticleOperation::kPaint;
  const bool is_across = kOperation == ParticleOperation::kAcross;
  call.results = is_paint ? call.components * call.volume()
                          : call.rows * (is_across ? 3 : call.components * call.derivatives);
  const auto results = static_cast<std::size_t>(call.results);
  std::vector<T> one(results, is_paint ? T{0} : T{7});
  std::vector<T> other(one);
  std::int32_t lost[2] = {0, 0};
  // A number of four bytes each, aligned as four.
  std::vector<float4> together(static_cast<std::size_t>(ParticleScratch(&call)) / sizeof(float4));
  if (!together.empty()) one.assign(results, T{7});
  call.cells = cells.data();
  call.offsets = offsets.data();
  call.used = &used;
  call.field = is_paint ? nullptr : field.data();
  call.given = kOperation == ParticleOperation::kReadout ? nullptr : given.data();
  call.result = one.data();
  call.together = together.empty() ? nullptr : together.data();
  call.lost = &lost[0];
  Require(RunParticles(&call, nullptr) == 0, "a launch");
  call.result = other.data();
  call.together = nullptr;
  call.lost = &lost[1];
  RunRows(call);
  const std::string what = "operation " + std::to_string(static_cast<int>(kOperation)) +
                           " by a kernel of " + std::to_string(kPoints) + " points";
  Require(lost[0] == lost[1] && lost[0] == (is_lost ? 1 : 0), what + ": particles that are lost");
  for (std::size_t i = 0; i < results; ++i) {
    // Three components are multiplied by the weights in another order.
    const T difference = std::abs(one[i] - other[i]);
    const T most = together.empty() ? T{0} : static_cast<T>(1e-5) * (1 + std::abs(other[i]));
    Require(is_lost ? std::isnan(one[i]) : difference <= most, what);
  }
}

// Sums that do not depend on their order: of the rows as they are, and of the same ones backward.
template <typename T, int kPoints>
void TestDeterministic(std::int64_t n2) {
  ParticleCall call = DrawCall<T>(ParticleOperation::kPaint, kPoints, n2);
  call.is_deterministic = true;
  const std::int64_t each = call.components * call.derivatives;
  std::vector<std::int32_t> cells = DrawCells(call);
  std::vector<T> offsets = Numbers<T>(3 * call.rows);
  std::vector<T> given = Numbers<T>(call.rows * each);
  const T magnitude = std::ldexp(T{1}, static_cast<int>(Draw(60)) - 30);
  for (T& value : given) value *= magnitude;
  const auto used = static_cast<std::int32_t>(call.rows);
  call.results = call.components * call.volume();
  const auto results = static_cast<std::size_t>(call.results);
  std::int32_t lost = 0;
  const auto painted = [&](bool is_fixed) {
    std::vector<T> result(results, is_fixed ? T{7} : T{0});
    std::vector<double> scratch(static_cast<std::size_t>(ParticleScratch(&call)) / sizeof(double));
    call.cells = cells.data();
    call.offsets = offsets.data();
    call.used = &used;
    call.given = given.data();
    call.result = result.data();
    call.lost = &lost;
    call.fixed = is_fixed ? scratch.data() : nullptr;
    if (is_fixed) {
      Require(RunParticles(&call, nullptr) == 0, "a launch");
    } else {
      RunRows(call);
    }
    return result;
  };
  const std::vector<T> expected = painted(false);
  const std::vector<T> forward = painted(true);
  for (std::int64_t row = 0; row < call.rows / 2; ++row) {
    const std::int64_t other = call.rows - 1 - row;
    for (int i = 0; i < 3; ++i) std::swap(cells[3 * row + i], cells[3 * other + i]);
    for (int i = 0; i < 3; ++i) std::swap(offsets[3 * row + i], offsets[3 * other + i]);
    for (int i = 0; i < each; ++i) std::swap(given[each * row + i], given[each * other + i]);
  }
  const std::vector<T> backward = painted(true);
  const std::string what = "deterministic sums by " + std::to_string(kPoints) + " points";
  Require(forward == backward, what + ": the same bits");
  // What differs is the rounding of the plain sums, of values of up to 2 and weights of up to 27.
  const T rounding = static_cast<T>(sizeof(T) == sizeof(double) ? 1e-13 : 1e-5);
  const T close = magnitude * rounding * T{54};
  for (std::size_t i = 0; i < results; ++i) {
    Require(std::abs(forward[i] - expected[i]) <= close, what);
  }
  given.back() = std::nan("");
  Require(std::isnan(painted(true)[0]), what + ": a value that is no number");
}

template <typename T, int kPoints>
void TestOperations() {
  for (int round = 0; round < 12; ++round) {
    const std::int64_t n2 = round % 6 == 0 ? 1 : 3 + Draw(6);
    adds_four_at_once = round % 4 != 3;  // AMD's devices never do
    Test<T, kPoints, ParticleOperation::kPaint>(n2, round == 1);
    TestDeterministic<T, kPoints>(n2);
    Test<T, kPoints, ParticleOperation::kReadout>(n2, round == 2);
    Test<T, kPoints, ParticleOperation::kAlong>(n2, round == 3);
    Test<T, kPoints, ParticleOperation::kAcross>(n2, round == 4);
  }
}

template <typename T>
void TestKernels() {
  TestOperations<T, 1>();
  TestOperations<T, 2>();
  TestOperations<T, 3>();
  TestOperations<T, 4>();
}

}  // namespace
}  // namespace pfftjax::gpu

int main() {
  pfftjax::gpu::TestKernels<float>();
  pfftjax::gpu::TestKernels<double>();
  std::puts("all data right");
}

// What a thread of a device does for one particle. The device's runtime says how numbers are added
// to memory that other threads add to as well.
#pragma once

#include <cstdint>
#include <type_traits>

#include "base/host_device.h"
#include "gpu/particles.h"
#include "pm/assignment.h"
#include "pm/coordinate.h"

// Loops over the points of a kernel are of known length, and what they index stays in registers.
#if defined(__CUDA_ARCH__) || defined(__HIP__)
#define PFFTJAX_UNROLL _Pragma("unroll")
#else
#define PFFTJAX_UNROLL
#endif

namespace pfftjax::gpu {

template <typename T, int kPoints>
class ParticleRow {
 public:
  PFFTJAX_HOST_DEVICE ParticleRow(const ParticleCall& call, std::int64_t row)
      : call_(call), row_(row) {}

  // An adder has Add(at, value), and of floats AddTwo(at, first, second), aligned as two, and
  // AddThree(at, first, second, third), with room for a fourth, aligned as four.
  template <ParticleOperation kOperation, typename Adder>
  PFFTJAX_HOST_DEVICE void Run(const Adder& adder) {
    const std::int32_t used = *call_.used;
    const bool is_filled = row_ < used;
    if (used < 0 || used > call_.rows || (is_filled && !Reach())) {
      *call_.lost = 1;
      return;
    }
    if constexpr (kOperation == ParticleOperation::kPaint) {
      if (!is_filled) return;
      if constexpr (std::is_same_v<T, float>) {
        if (call_.together) return PaintTogether(adder);
      }
      Paint(adder);
    } else if constexpr (kOperation == ParticleOperation::kReadout) {
      const std::int64_t each = call_.components * call_.derivatives;
      is_filled ? Readout() : Zeros(each);
    } else if constexpr (kOperation == ParticleOperation::kAlong) {
      is_filled ? Along() : Zeros(call_.components);
    } else {
      is_filled ? Across() : Zeros(3);
    }
  }

 private:
  // False where the particle is not in this rank's block.
  PFFTJAX_HOST_DEVICE bool Reach() {
    std::int64_t first[3];
    PFFTJAX_UNROLL
    for (int axis = 0; axis < 3; ++axis) {
      pm::Coordinate<T> at;
      if (!pm::Locate(call_.cells[3 * row_ + axis],
                      static_cast<const T*>(call_.offsets)[3 * row_ + axis], &at)) {
        return false;
      }
      const std::int64_t local = pm::Wrapped(at.cell, call_.shape[axis]) - call_.start[axis];
      if (local < 0 || local >= call_.count[axis]) return false;
      first[axis] = local + call_.lowest;
      rest_[axis] = at.fraction;
      if (call_.is_by_half) {
        const T way = at.fraction + T{0.5};
        const std::int32_t is_next = way >= T{1} ? 1 : 0;
        first[axis] += is_next;
        rest_[axis] = way - static_cast<T>(is_next);
      }
    }
    line_ =
        ((first[0] + call_.before) * call_.padded[1] + first[1] + call_.before) * call_.padded[2];
    z_ = pm::Wrapped(first[2], call_.shape[2]);
    is_in_line_ = z_ + kPoints <= call_.shape[2];
    return true;
  }

  // The points along the axes, with their weights or derivatives of these.
  struct Axes {
    T x[kPoints];
    T y[kPoints];
    T z[kPoints];
  };
  PFFTJAX_HOST_DEVICE Axes Weigh(std::int64_t derivative) const {
    if (call_.is_plain) return Values();
    Axes axes;
    const std::int8_t* const order = call_.orders[derivative];
    pm::Weights<T, kPoints>(rest_[0], order[0], axes.x);
    pm::Weights<T, kPoints>(rest_[1], order[1], axes.y);
    pm::Weights<T, kPoints>(rest_[2], order[2], axes.z);
    return axes;
  }
  PFFTJAX_HOST_DEVICE Axes Values() const {
    Axes axes;
    pm::Weights<T, kPoints>(rest_[0], axes.x);
    pm::Weights<T, kPoints>(rest_[1], axes.y);
    pm::Weights<T, kPoints>(rest_[2], axes.z);
    return axes;
  }
  PFFTJAX_HOST_DEVICE Axes Slopes() const {
    Axes axes;
    pm::Weights<T, kPoints>(rest_[0], 1, axes.x);
    pm::Weights<T, kPoints>(rest_[1], 1, axes.y);
    pm::Weights<T, kPoints>(rest_[2], 1, axes.z);
    return axes;
  }

  // Where the points of a line along axis 2 are, from the line's begin.
  PFFTJAX_HOST_DEVICE std::int64_t Along2(int k) const {
    return is_in_line_ ? z_ + k : pm::Wrapped(z_ + k, call_.shape[2]);
  }
  PFFTJAX_HOST_DEVICE std::int64_t LineOf(int i, int j) const {
    return line_ + (i * call_.padded[1] + j) * call_.padded[2];
  }
  PFFTJAX_HOST_DEVICE const T* Field(std::int64_t component) const {
    return static_cast<const T*>(call_.field) + component * call_.volume();
  }
  PFFTJAX_HOST_DEVICE const T* Given(std::int64_t each) const {
    return static_cast<const T*>(call_.given) + row_ * each;
  }
  PFFTJAX_HOST_DEVICE T* Result(std::int64_t each) const {
    return static_cast<T*>(call_.result) + row_ * each;
  }
  PFFTJAX_HOST_DEVICE void Zeros(std::int64_t each) const {
    for (std::int64_t i = 0; i < each; ++i) Result(each)[i] = T{0};
  }

  // sum(i, j, k) f(i, j, k) x[i] y[j] z[k] for a component of the field.
  PFFTJAX_HOST_DEVICE T Interpolate(const T* component, const Axes& axes) const {
    T sum{0};
    PFFTJAX_UNROLL
    for (int i = 0; i < kPoints; ++i) {
      PFFTJAX_UNROLL
      for (int j = 0; j < kPoints; ++j) {
        const T* const line = component + LineOf(i, j);
        T along{0};
        PFFTJAX_UNROLL
        for (int k = 0; k < kPoints; ++k) along += axes.z[k] * line[Along2(k)];
        sum += axes.x[i] * axes.y[j] * along;
      }
    }
    return sum;
  }

  PFFTJAX_HOST_DEVICE void Readout() const {
    const std::int64_t each = call_.components * call_.derivatives;
    for (std::int64_t d = 0; d < call_.derivatives; ++d) {
      const Axes axes = Weigh(d);
      for (std::int64_t c = 0; c < call_.components; ++c) {
        Result(each)[c * call_.derivatives + d] = Interpolate(Field(c), axes);
      }
    }
  }

  template <typename Adder>
  PFFTJAX_HOST_DEVICE void Paint(const Adder& adder) const {
    const std::int64_t each = call_.components * call_.derivatives;
    for (std::int64_t d = 0; d < call_.derivatives; ++d) {
      const Axes axes = Weigh(d);
      for (std::int64_t c = 0; c < call_.components; ++c) {
        T* const component = static_cast<T*>(call_.result) + c * call_.volume();
        const T value = Given(each)[c * call_.derivatives + d];
        PFFTJAX_UNROLL
        for (int i = 0; i < kPoints; ++i) {
          PFFTJAX_UNROLL
          for (int j = 0; j < kPoints; ++j) {
            const T share = value * axes.x[i] * axes.y[j];
            AddLine(adder, component + LineOf(i, j), share, axes.z);
          }
        }
      }
    }
  }

  // Values of three components: four numbers a point, of which one is nothing.
  template <typename Adder>
  PFFTJAX_HOST_DEVICE void PaintTogether(const Adder& adder) const {
    const Axes axes = Values();
    const T* const given = Given(3);
    const T values[3] = {given[0], given[1], given[2]};
    T* const field = static_cast<T*>(call_.together);
    PFFTJAX_UNROLL
    for (int i = 0; i < kPoints; ++i) {
      PFFTJAX_UNROLL
      for (int j = 0; j < kPoints; ++j) {
        const T line = axes.x[i] * axes.y[j];
        PFFTJAX_UNROLL
        for (int k = 0; k < kPoints; ++k) {
          const T share = line * axes.z[k];
          adder.AddThree(field + 4 * (LineOf(i, j) + Along2(k)), share * values[0],
                         share * values[1], share * values[2]);
        }
      }
    }
  }

  // Two at a time, where they lie together and are aligned as two.
  template <typename Adder>
  PFFTJAX_HOST_DEVICE void AddLine(const Adder& adder, T* line, T share,
                                   const T (&z)[kPoints]) const {
    if constexpr (std::is_same_v<T, float> && kPoints > 1) {
      if (is_in_line_) {
        T* const at = line + z_;
        if (reinterpret_cast<std::uintptr_t>(at) % (2 * sizeof(T)) == 0) {
          AddPairs<0>(adder, at, share, z);
        } else {
          adder.Add(at, share * z[0]);
          AddPairs<1>(adder, at, share, z);
        }
        return;
      }
    }
    PFFTJAX_UNROLL
    for (int k = 0; k < kPoints; ++k) adder.Add(line + Along2(k), share * z[k]);
  }
  template <int kFirst, typename Adder>
  PFFTJAX_HOST_DEVICE static void AddPairs(const Adder& adder, T* at, T share,
                                           const T (&z)[kPoints]) {
    PFFTJAX_UNROLL
    for (int k = kFirst; k + 1 < kPoints; k += 2) {
      adder.AddTwo(at + k, share * z[k], share * z[k + 1]);
    }
    if constexpr ((kPoints - kFirst) % 2 == 1) {
      adder.Add(at + kPoints - 1, share * z[kPoints - 1]);
    }
  }

  // Sums of a line of the field by the weights along axis 2, and by their slopes.
  struct LineSums {
    T by_values{0};
    T by_slopes{0};
  };
  PFFTJAX_HOST_DEVICE LineSums SumLine(const T* line, const Axes& value, const Axes& slope) const {
    LineSums sums;
    PFFTJAX_UNROLL
    for (int k = 0; k < kPoints; ++k) {
      const T here = line[Along2(k)];
      sums.by_values += value.z[k] * here;
      sums.by_slopes += slope.z[k] * here;
    }
    return sums;
  }

  PFFTJAX_HOST_DEVICE void Along() const {
    const Axes value = Values();
    const Axes slope = Slopes();
    const T* const way = Given(3);
    for (std::int64_t c = 0; c < call_.components; ++c) {
      T sum{0};
      PFFTJAX_UNROLL
      for (int i = 0; i < kPoints; ++i) {
        PFFTJAX_UNROLL
        for (int j = 0; j < kPoints; ++j) {
          const LineSums line = SumLine(Field(c) + LineOf(i, j), value, slope);
          sum += (way[0] * slope.x[i] * value.y[j] + way[1] * value.x[i] * slope.y[j]) *
                     line.by_values +
                 way[2] * value.x[i] * value.y[j] * line.by_slopes;
        }
      }
      Result(call_.components)[c] = sum;
    }
  }

  PFFTJAX_HOST_DEVICE void Across() const {
    const Axes value = Values();
    const Axes slope = Slopes();
    T sums[3] = {};
    for (std::int64_t c = 0; c < call_.components; ++c) {
      const T given = Given(call_.components)[c];
      PFFTJAX_UNROLL
      for (int i = 0; i < kPoints; ++i) {
        PFFTJAX_UNROLL
        for (int j = 0; j < kPoints; ++j) {
          const LineSums line = SumLine(Field(c) + LineOf(i, j), value, slope);
          sums[0] += given * slope.x[i] * value.y[j] * line.by_values;
          sums[1] += given * value.x[i] * slope.y[j] * line.by_values;
          sums[2] += given * value.x[i] * value.y[j] * line.by_slopes;
        }
      }
    }
    PFFTJAX_UNROLL
    for (int axis = 0; axis < 3; ++axis) Result(3)[axis] = sums[axis];
  }

  const ParticleCall& call_;
  const std::int64_t row_;
  std::int64_t line_ = 0;  // the first point of the first line, without its place along axis 2
  std::int64_t z_ = 0;
  bool is_in_line_ = false;  // whether the points along axis 2 lie together
  T rest_[3] = {};           // `t` of pm::Weights
};

// Calls body(T{}, points, operation) with the types that a call asks for, the last two as
// constants.
template <typename Body>
void WithTypes(const ParticleCall& call, Body&& body) {
  const auto with_operation = [&](auto zero, auto points) {
    const auto run = [&](auto operation) { body(zero, points, operation); };
    using Operation = ParticleOperation;
    switch (call.operation) {
      case Operation::kPaint:
        return run(std::integral_constant<Operation, Operation::kPaint>{});
      case Operation::kReadout:
        return run(std::integral_constant<Operation, Operation::kReadout>{});
      case Operation::kAlong:
        return run(std::integral_constant<Operation, Operation::kAlong>{});
      case Operation::kAcross:
        return run(std::integral_constant<Operation, Operation::kAcross>{});
    }
  };
  pm::WithPoints(call.points, [&](auto points) {
    call.is_double ? with_operation(double{}, points) : with_operation(float{}, points);
  });
}

}  // namespace pfftjax::gpu

// Assignment kernels: how a particle is shared out among the mesh points near it. Kernels of a GPU
// share the weights with the host.
#pragma once

#include <algorithm>
#include <cstdint>
#include <type_traits>

#include "base/host_device.h"

namespace pfftjax::pm {

inline constexpr std::int64_t kMostPoints = 4;

// The kernels are the B-splines of 1 to 4 points along each axis: NGP, CIC, TSC and PCS (Hockney &
// Eastwood 1988, section 5-3). The first point that a particle reaches, counted from its cell, is
// floor(fraction + lead / 2) with lead = shift + 2 - points; `shift` is 1 where particles are
// painted half a cell further up along each axis, as one of two interlaced meshes wants them.
struct Assignment {
  std::int64_t points;
  std::int64_t shift;

  constexpr bool IsKnown() const {
    return points >= 1 && points <= kMostPoints && (shift == 0 || shift == 1);
  }
  constexpr std::int64_t lead() const { return shift + 2 - points; }
  // Half a cell decides which point is the first.
  constexpr bool is_by_half() const { return lead() % 2 != 0; }
  constexpr std::int64_t lowest() const { return (lead() - (is_by_half() ? 1 : 0)) / 2; }
  // How many ghosts a block needs on either side.
  constexpr std::int64_t before() const { return std::max<std::int64_t>(0, -lowest()); }
  constexpr std::int64_t after() const { return lowest() + (is_by_half() ? 1 : 0) + points - 1; }
};

// Calls f with the number of a kernel's points, 1 to kMostPoints, as a constant; returns its
// result.
template <typename Function>
auto WithPoints(std::int64_t points, Function&& f) {
  static_assert(kMostPoints == 4, "a case for each number of points");
  switch (points) {
    case 1:
      return f(std::integral_constant<int, 1>{});
    case 2:
      return f(std::integral_constant<int, 2>{});
    case 3:
      return f(std::integral_constant<int, 3>{});
    default:
      return f(std::integral_constant<int, kMostPoints>{});
  }
}

// The weights of the points that a particle reaches, `t` in [0, 1] beyond floor(fraction + lead /
// 2). By the recursion of de Boor (1978, chapter X): a spline is a mean of two that have a point
// less. V is T, or several numbers T that are computed with together.
template <typename T, int kPoints, typename V>
PFFTJAX_HOST_DEVICE void Weights(const V& t, V (&w)[kPoints]) {
  if constexpr (kPoints == 1) {
    w[0] = V(1);
  } else {
    V fewer[kPoints - 1];
    Weights<T, kPoints - 1>(t, fewer);
    constexpr T each = T{1} / T{kPoints - 1};
    constexpr int last = kPoints - 1;
    w[0] = each * (V(1) - t) * fewer[0];
    for (int i = 1; i < last; ++i) {
      const V rising = t + V(static_cast<T>(last - i));
      const V falling = V(static_cast<T>(1 + i)) - t;
      w[i] = each * (rising * fewer[i - 1] + falling * fewer[i]);
    }
    w[last] = each * t * fewer[last - 1];
  }
}

// The weights differentiated `order` < kPoints times with respect to the position: differences of
// those of a spline that has a point less.
template <typename T, int kPoints, typename V>
PFFTJAX_HOST_DEVICE void Weights(const V& t, std::int64_t order, V (&w)[kPoints]) {
  if constexpr (kPoints > 1) {
    if (order > 0) {
      V fewer[kPoints - 1];
      Weights<T, kPoints - 1>(t, order - 1, fewer);
      w[0] = -fewer[0];
      for (int i = 1; i < kPoints - 1; ++i) w[i] = fewer[i - 1] - fewer[i];
      w[kPoints - 1] = fewer[kPoints - 2];
      return;
    }
  }
  Weights<T, kPoints>(t, w);
}

}  // namespace pfftjax::pm

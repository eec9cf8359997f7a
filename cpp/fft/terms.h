// Sums of arrays, each as it is or times i k: what gradients and divergences are made of.
#pragma once

#include <cstdint>
#include <cstring>
#include <vector>

#include "fft/parcels.h"

namespace pfftjax::fft {

// The operations between two transforms. Values are part of programs: only append.
enum class What : std::int64_t { kTransform, kGradient, kDivergence };

// i k for each index along an axis of what travels; nothing, for a factor of 1, without `k`.
template <typename T>
struct Wave {
  const T* k = nullptr;
  int axis = 0;
};

// An array, transformed: f2 F(f1 x). On both sides of the passage one factor may be at the outer
// end and one at that of what travels.
template <typename T>
struct Term {
  int array = 0;             // its number
  const T* lines = nullptr;  // k along the lines of the program's array
  Wave<T> travelling;
};

// Only the first term of a sum may be without a factor. (It is then transformed in its place, and
// all others are added.)
template <typename T>
using Sum = std::vector<Term<T>>;

// Arrays travel as sums of those that come in, and results are sums of those that travel.
template <typename T>
struct Sums {
  std::vector<Sum<T>> leaving;
  std::vector<Sum<T>> arriving;
};

template <typename T>
Sums<T> OneArray() {
  return {{{Term<T>{}}}, {{Term<T>{}}}};
}

// i k0 x has a way of its own, k0 being that of lines; the other two derivatives share theirs.
template <typename T>
Sums<T> GradientOf(const T* k0, const Wave<T>& k1, const Wave<T>& k2) {
  return {{{Term<T>{0, k0, {}}}, {Term<T>{}}},
          {{Term<T>{0, nullptr, {}}}, {Term<T>{1, nullptr, k1}}, {Term<T>{1, nullptr, k2}}}};
}

// Its transpose.
template <typename T>
Sums<T> DivergenceOf(const T* k0, const Wave<T>& k1, const Wave<T>& k2) {
  return {{{Term<T>{}}, {Term<T>{1, nullptr, k1}, Term<T>{2, nullptr, k2}}},
          {{Term<T>{1, nullptr, {}}, Term<T>{0, k0, {}}}}};
}

// The kind of assignment.
enum class Into { kStore, kAdd };

// `n` complex numbers times i k(j), to memory that does not overlap.
template <typename T, typename K>
void TimesI(T* __restrict to, const T* __restrict from, std::int64_t n, Into into, K k) {
  if (into == Into::kStore) {
    for (std::int64_t j = 0; j < n; ++j) {
      to[2 * j] = -k(j) * from[2 * j + 1];
      to[2 * j + 1] = k(j) * from[2 * j];
    }
  } else {
    for (std::int64_t j = 0; j < n; ++j) {
      to[2 * j] -= k(j) * from[2 * j + 1];
      to[2 * j + 1] += k(j) * from[2 * j];
    }
  }
}

// The same for a line with all its k.
template <typename T>
void LineTimesI(T* to, const T* from, std::int64_t n, Into into, const T* k) {
  TimesI(to, from, n, into, [k](std::int64_t j) { return k[j]; });
}

// The same for a row of what travels that begins at `at`, by axis, and runs along axis `along`.
template <typename T>
void RowTimes(const Wave<T>& wave, T* to, const T* from, std::int64_t n, Into into,
              const Three& at, int along) {
  const T* const k = wave.k + at[wave.axis];
  if (wave.axis == along) {
    LineTimesI(to, from, n, into, k);
  } else {
    TimesI(to, from, n, into, [factor = *k](std::int64_t) { return factor; });
  }
}

// A row of what travels, into a tile.
template <typename T>
void LoadRow(T* to, const T* from, std::int64_t n, const Wave<T>& wave, const Three& at,
             int along) {
  if (wave.k) {
    RowTimes(wave, to, from, n, Into::kStore, at, along);
  } else {
    std::memcpy(to, from, static_cast<std::size_t>(n) * 2 * sizeof(T));
  }
}

}  // namespace pfftjax::fft

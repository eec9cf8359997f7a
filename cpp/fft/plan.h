// This is precomputed for transforms of one length: factors, roots of unity, Bluestein's chirp.
#pragma once

#include <cstdint>

namespace pfftjax::fft {

inline constexpr int kMaxGenericRadix = 31;

// One pass of a Stockham transform: `radix` butterflies over m columns, each `stride` apart.
template <typename T>
struct Pass {
  std::int64_t radix = 0;
  std::int64_t m = 0;
  std::int64_t stride = 0;
  bool has_kernel = false;      // in lanes.cc
  const T* twiddles = nullptr;  // (m, radix - 1, 2): exp(-2 pi i p j / (radix m))
  const T* roots = nullptr;     // (radix, 2): exp(-2 pi i j / radix), for radices without a kernel
};

// A complex transform of length n, either a product of passes or, where n has a large prime
// factor, a convolution of length `padded` (Bluestein 1970). Plain data: lanes.cc is compiled for
// several processors, and may share no code between them.
template <typename T>
struct Plan {
  std::int64_t n = 0;
  const Pass<T>* passes = nullptr;
  int pass_count = 0;
  std::int64_t padded = 0;  // 0: passes
  const Plan* convolution = nullptr;
  const T* chirp = nullptr;     // (n, 2): exp(-i pi j^2 / n)
  const T* spectrum = nullptr;  // (padded, 2): of the conjugate chirp, over `padded`

  // (n / 2 + 1, 2): exp(-2 pi i k / (2 n)), which split a complex spectrum of length n into that
  // of 2 n real numbers.
  const T* half_roots = nullptr;

  // How many vectors of complex numbers a transform needs, its own data included.
  std::int64_t workspace = 0;
};

// The plan for length n >= 1; made once and kept for good. Safe to call from any thread.
template <typename T>
const Plan<T>& PlanFor(std::int64_t n);

}  // namespace pfftjax::fft

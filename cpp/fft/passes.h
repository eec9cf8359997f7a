// Transforms of what is in the workspace: butterflies, passes, and Bluestein's convolution.
//
// For lanes.cc, and compiled with it once for each instruction set: nothing of the standard
// library.
#pragma once

#include "fft/plan.h"
#include "fft/vectors.h"

namespace pfftjax::fft::PFFTJAX_TARGET {
namespace {

// ---- Butterflies: a discrete Fourier transform of kRadix numbers in place ------------------

template <typename T>
PFFTJAX_INLINE void Butterfly4(Complex<T>& a, Complex<T>& b, Complex<T>& c, Complex<T>& d) {
  const Complex<T> ac = a + c;
  const Complex<T> a_c = a - c;
  const Complex<T> bd = b + d;
  const Complex<T> b_d = Quarter(b - d);
  a = ac + bd;
  b = a_c + b_d;
  c = ac - bd;
  d = a_c - b_d;
}

template <int kRadix, typename T>
PFFTJAX_INLINE void Butterfly(Complex<T>* v) {
  if constexpr (kRadix == 2) {
    const Complex<T> sum = v[0] + v[1];
    v[1] = v[0] - v[1];
    v[0] = sum;
  } else if constexpr (kRadix == 3) {
    constexpr T half_sqrt3 = T(0.86602540378443864676372317075294);
    const Complex<T> sum = v[1] + v[2];
    const Complex<T> side = Quarter(v[1] - v[2]) * half_sqrt3;
    const Complex<T> middle = v[0] - sum * T(0.5);
    v[0] = v[0] + sum;
    v[1] = middle + side;
    v[2] = middle - side;
  } else if constexpr (kRadix == 4) {
    Butterfly4(v[0], v[1], v[2], v[3]);
  } else if constexpr (kRadix == 5) {
    constexpr T cos1 = T(0.30901699437494742410229341718282);
    constexpr T cos2 = T(-0.80901699437494742410229341718282);
    constexpr T sin1 = T(0.95105651629515357211643933337938);
    constexpr T sin2 = T(0.58778525229247312916870595463907);
    const Complex<T> s1 = v[1] + v[4];
    const Complex<T> s2 = v[2] + v[3];
    const Complex<T> d1 = Quarter(v[1] - v[4]);
    const Complex<T> d2 = Quarter(v[2] - v[3]);
    const Complex<T> m1 = v[0] + s1 * cos1 + s2 * cos2;
    const Complex<T> m2 = v[0] + s1 * cos2 + s2 * cos1;
    const Complex<T> r1 = d1 * sin1 + d2 * sin2;
    const Complex<T> r2 = d1 * sin2 - d2 * sin1;
    v[0] = v[0] + s1 + s2;
    v[1] = m1 + r1;
    v[4] = m1 - r1;
    v[2] = m2 + r2;
    v[3] = m2 - r2;
  } else {
    static_assert(kRadix == 8);
    constexpr T half_sqrt2 = T(0.70710678118654752440084436210485);
    // Even and odd entries by fours, the odd ones then turned by eighths.
    Butterfly4(v[0], v[2], v[4], v[6]);
    Butterfly4(v[1], v[3], v[5], v[7]);
    const Complex<T> o1 = (v[3] + Quarter(v[3])) * half_sqrt2;
    const Complex<T> o2 = Quarter(v[5]);
    const Complex<T> o3 = (Quarter(v[7]) - v[7]) * half_sqrt2;
    const Complex<T> e0 = v[0];
    const Complex<T> e1 = v[2];
    const Complex<T> e2 = v[4];
    const Complex<T> e3 = v[6];
    const Complex<T> o0 = v[1];
    v[0] = e0 + o0;
    v[4] = e0 - o0;
    v[1] = e1 + o1;
    v[5] = e1 - o1;
    v[2] = e2 + o2;
    v[6] = e2 - o2;
    v[3] = e3 + o3;
    v[7] = e3 - o3;
  }
}

// ---- Passes (Stockham): in order without a bit reversal, from one place to another ----------

// One butterfly, rotated before it is stored.
template <int kRadix, bool kRotates, typename T, typename From, typename To>
PFFTJAX_INLINE void RunButterfly(From from, std::int64_t source, std::int64_t source_step,
                                 const T* twiddles, To to, std::int64_t target,
                                 std::int64_t target_step) {
  Complex<T> v[kRadix];
  PFFTJAX_UNROLL
  for (int k = 0; k < kRadix; ++k) v[k] = from.Load(source + k * source_step);
  Butterfly<kRadix>(v);
  PFFTJAX_UNROLL
  for (int k = 0; k < kRadix; ++k) {
    if (kRotates && k > 0) v[k] = Rotate(v[k], twiddles + 2 * (k - 1));
    to.Store(target + k * target_step, v[k]);
  }
}

// In the first pass every column has twiddles of its own.
template <int kRadix>
struct FirstPass {
  template <typename T, typename From>
  static void Run(const Pass<T>& pass, From from, Buffer<T> to) {
    for (std::int64_t p = 0; p < pass.m; ++p) {
      RunButterfly<kRadix, true>(from, p, pass.m, pass.twiddles + p * (kRadix - 1) * 2, to,
                                 kRadix * p, 1);
    }
  }
};

template <int kRadix>
struct MiddlePass {
  template <typename T>
  static void Run(const Pass<T>& pass, Buffer<T> from, Buffer<T> to) {
    const std::int64_t stride = pass.stride;
    for (std::int64_t p = 0; p < pass.m; ++p) {
      const T* twiddles = pass.twiddles + p * (kRadix - 1) * 2;
      for (std::int64_t q = 0; q < stride; ++q) {
        RunButterfly<kRadix, true>(from, stride * p + q, stride * pass.m, twiddles, to,
                                   stride * kRadix * p + q, stride);
      }
    }
  }
};

// In the last pass there is one column, and nothing to rotate. It may run in place.
template <int kRadix>
struct LastPass {
  template <typename T, typename To>
  static void Run(const Pass<T>& pass, Buffer<T> from, To to) {
    for (std::int64_t q = 0; q < pass.stride; ++q) {
      RunButterfly<kRadix, false, T>(from, q, pass.stride, nullptr, to, q, pass.stride);
    }
  }
};

template <template <int> class PassOf, typename T, typename From, typename To>
void RunPass(const Pass<T>& pass, From from, To to) {
  switch (pass.radix) {
    case 2:
      return PassOf<2>::Run(pass, from, to);
    case 3:
      return PassOf<3>::Run(pass, from, to);
    case 4:
      return PassOf<4>::Run(pass, from, to);
    case 5:
      return PassOf<5>::Run(pass, from, to);
    case 8:
      return PassOf<8>::Run(pass, from, to);
  }
}

// An odd radix without a kernel of its own: sums and differences of x[k] and x[radix - k] first.
// In place only where m = 1.
template <typename T>
void RunGenericPass(const Pass<T>& pass, const Complex<T>* from, Complex<T>* to) {
  const std::int64_t radix = pass.radix;
  const std::int64_t half = radix / 2;
  const std::int64_t stride = pass.stride;
  const std::int64_t step = stride * pass.m;
  Complex<T> sums[kMaxGenericRadix / 2 + 1];
  Complex<T> differences[kMaxGenericRadix / 2 + 1];
  for (std::int64_t p = 0; p < pass.m; ++p) {
    const T* twiddles = pass.twiddles + p * (radix - 1) * 2;
    for (std::int64_t q = 0; q < stride; ++q) {
      const Complex<T>* source = from + q + stride * p;
      Complex<T>* target = to + q + stride * radix * p;
      const Complex<T> first = source[0];
      Complex<T> total = first;
      for (std::int64_t k = 1; k <= half; ++k) {
        const Complex<T> a = source[k * step];
        const Complex<T> b = source[(radix - k) * step];
        sums[k] = a + b;
        differences[k] = Quarter(a - b);
        total = total + sums[k];
      }
      target[0] = total;
      for (std::int64_t j = 1; j <= half; ++j) {
        Complex<T> even = first;
        Complex<T> odd = differences[1] * -pass.roots[2 * j + 1];
        even = even + sums[1] * pass.roots[2 * j];
        for (std::int64_t k = 2; k <= half; ++k) {
          const T* root = pass.roots + 2 * (j * k % radix);
          even = even + sums[k] * root[0];
          odd = odd + differences[k] * -root[1];
        }
        target[j * stride] = Rotate(even + odd, twiddles + 2 * (j - 1));
        target[(radix - j) * stride] = Rotate(even - odd, twiddles + 2 * (radix - j - 1));
      }
    }
  }
}

// The passes from `begin` on, but for the last one; exchanges `data` and `other` so that the
// result is in `data`.
template <typename T>
void RunPasses(const Plan<T>& plan, int begin, Complex<T>*& data, Complex<T>*& other) {
  for (int i = begin; i < plan.pass_count - 1; ++i) {
    const Pass<T>& pass = plan.passes[i];
    if (!pass.has_kernel) {
      RunGenericPass(pass, data, other);
    } else if (i == 0) {
      RunPass<FirstPass>(pass, Buffer<T>{data}, Buffer<T>{other});
    } else {
      RunPass<MiddlePass>(pass, Buffer<T>{data}, Buffer<T>{other});
    }
    Complex<T>* const swapped = data;
    data = other;
    other = swapped;
  }
}

template <typename T>
void RunLastPass(const Plan<T>& plan, Complex<T>* data) {
  if (plan.pass_count == 0) return;
  const Pass<T>& pass = plan.passes[plan.pass_count - 1];
  if (pass.has_kernel) {
    RunPass<LastPass>(pass, Buffer<T>{data}, Buffer<T>{data});
  } else {
    RunGenericPass(pass, data, data);
  }
}

// Forward, in the workspace of a plan; returns where the result is.
template <typename T>
Complex<T>* Transform(const Plan<T>& plan, Complex<T>* data) {
  const std::int64_t n = plan.n;
  Complex<T>* other = data + n;
  if (plan.padded == 0) {
    RunPasses(plan, 0, data, other);
    RunLastPass(plan, data);
    return data;
  }
  Complex<T>* padded = other;
  other = padded + plan.padded;
  const Plan<T>& convolution = *plan.convolution;
  for (std::int64_t j = 0; j < n; ++j) padded[j] = Rotate(data[j], plan.chirp + 2 * j);
  for (std::int64_t j = n; j < plan.padded; ++j) padded[j] = Complex<T>{};
  RunPasses(convolution, 0, padded, other);
  RunLastPass(convolution, padded);
  // Backward from here.
  for (std::int64_t k = 0; k < plan.padded; ++k) {
    padded[k] = Swap(Rotate(padded[k], plan.spectrum + 2 * k));
  }
  RunPasses(convolution, 0, padded, other);
  RunLastPass(convolution, padded);
  for (std::int64_t k = 0; k < n; ++k) data[k] = Rotate(Swap(padded[k]), plan.chirp + 2 * k);
  return data;
}

}  // namespace
}  // namespace pfftjax::fft::PFFTJAX_TARGET

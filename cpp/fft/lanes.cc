// Compiled once for each instruction set, with PFFTJAX_TARGET and PFFTJAX_VECTOR_BYTES defined.
// Nothing here may be shared between those: no templates or inline functions of the standard
// library, of which the linker would keep one version, perhaps one for a newer processor.
#include "lanes.h"

namespace pfftjax::fft::PFFTJAX_TARGET {
namespace {

template <typename T>
struct Vector {
  typedef T Type __attribute__((vector_size(PFFTJAX_VECTOR_BYTES)));  // NOLINT: no `using` for it
  static constexpr int kLanes = PFFTJAX_VECTOR_BYTES / sizeof(T);
};

template <typename T>
struct Complex {
  typename Vector<T>::Type re;
  typename Vector<T>::Type im;
};

template <typename T>
inline Complex<T> operator+(Complex<T> a, Complex<T> b) {
  return {a.re + b.re, a.im + b.im};
}
template <typename T>
inline Complex<T> operator-(Complex<T> a, Complex<T> b) {
  return {a.re - b.re, a.im - b.im};
}
template <typename T>
inline Complex<T> operator*(Complex<T> a, T b) {
  return {a.re * b, a.im * b};
}
template <typename T>
inline Complex<T> Conj(Complex<T> a) {
  return {a.re, -a.im};
}

// Tables hold exp(-i angle), for the forward direction; the backward one takes the conjugate.
template <bool kForward, typename T>
inline Complex<T> Rotate(Complex<T> a, const T* root) {
  const T re = root[0];
  const T im = kForward ? root[1] : -root[1];
  return {a.re * re - a.im * im, a.re * im + a.im * re};
}
// Times -i forward, +i backward.
template <bool kForward, typename T>
inline Complex<T> Quarter(Complex<T> a) {
  if (kForward) return {a.im, -a.re};
  return {-a.im, a.re};
}

// ---- Butterflies: a discrete Fourier transform of kRadix numbers in place ------------------

template <bool kForward, typename T>
inline void Butterfly4(Complex<T>& a, Complex<T>& b, Complex<T>& c, Complex<T>& d) {
  const Complex<T> ac = a + c;
  const Complex<T> a_c = a - c;
  const Complex<T> bd = b + d;
  const Complex<T> b_d = Quarter<kForward>(b - d);
  a = ac + bd;
  b = a_c + b_d;
  c = ac - bd;
  d = a_c - b_d;
}

template <int kRadix, bool kForward, typename T>
inline void Butterfly(Complex<T>* v) {
  if constexpr (kRadix == 2) {
    const Complex<T> sum = v[0] + v[1];
    v[1] = v[0] - v[1];
    v[0] = sum;
  } else if constexpr (kRadix == 3) {
    constexpr T half_sqrt3 = T(0.86602540378443864676372317075294);
    const Complex<T> sum = v[1] + v[2];
    const Complex<T> side = Quarter<kForward>(v[1] - v[2]) * half_sqrt3;
    const Complex<T> middle = v[0] - sum * T(0.5);
    v[0] = v[0] + sum;
    v[1] = middle + side;
    v[2] = middle - side;
  } else if constexpr (kRadix == 4) {
    Butterfly4<kForward>(v[0], v[1], v[2], v[3]);
  } else if constexpr (kRadix == 5) {
    constexpr T cos1 = T(0.30901699437494742410229341718282);
    constexpr T cos2 = T(-0.80901699437494742410229341718282);
    constexpr T sin1 = T(0.95105651629515357211643933337938);
    constexpr T sin2 = T(0.58778525229247312916870595463907);
    const Complex<T> s1 = v[1] + v[4];
    const Complex<T> s2 = v[2] + v[3];
    const Complex<T> d1 = Quarter<kForward>(v[1] - v[4]);
    const Complex<T> d2 = Quarter<kForward>(v[2] - v[3]);
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
    Butterfly4<kForward>(v[0], v[2], v[4], v[6]);
    Butterfly4<kForward>(v[1], v[3], v[5], v[7]);
    const Complex<T> o1 = (v[3] + Quarter<kForward>(v[3])) * half_sqrt2;
    const Complex<T> o2 = Quarter<kForward>(v[5]);
    const Complex<T> o3 = (Quarter<kForward>(v[7]) - v[7]) * half_sqrt2;
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

// ---- Passes (Stockham): in order without a bit reversal, from one buffer to the other ------

template <int kRadix, bool kForward, typename T>
void RunPass(const Pass<T>& pass, const Complex<T>* __restrict from, Complex<T>* __restrict to) {
  const std::int64_t stride = pass.stride;
  const std::int64_t step = stride * pass.m;
  for (std::int64_t p = 0; p < pass.m; ++p) {
    const T* twiddles = pass.twiddles + p * (kRadix - 1) * 2;
    const Complex<T>* source = from + stride * p;
    Complex<T>* target = to + stride * kRadix * p;
    for (std::int64_t q = 0; q < stride; ++q) {
      Complex<T> v[kRadix];
      for (int k = 0; k < kRadix; ++k) v[k] = source[q + k * step];
      Butterfly<kRadix, kForward>(v);
      target[q] = v[0];
      for (int k = 1; k < kRadix; ++k) {
        target[q + k * stride] = Rotate<kForward>(v[k], twiddles + 2 * (k - 1));
      }
    }
  }
}

// An odd radix without a kernel of its own: sums and differences of x[k] and x[radix - k] first.
template <bool kForward, typename T>
void RunGenericPass(const Pass<T>& pass, const Complex<T>* __restrict from,
                    Complex<T>* __restrict to) {
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
      Complex<T> total = source[0];
      for (std::int64_t k = 1; k <= half; ++k) {
        const Complex<T> a = source[k * step];
        const Complex<T> b = source[(radix - k) * step];
        sums[k] = a + b;
        differences[k] = Quarter<kForward>(a - b);
        total = total + sums[k];
      }
      target[0] = total;
      for (std::int64_t j = 1; j <= half; ++j) {
        Complex<T> even = source[0];
        Complex<T> odd = differences[1] * -pass.roots[2 * j + 1];
        even = even + sums[1] * pass.roots[2 * j];
        for (std::int64_t k = 2; k <= half; ++k) {
          const T* root = pass.roots + 2 * (j * k % radix);
          even = even + sums[k] * root[0];
          odd = odd + differences[k] * -root[1];
        }
        target[j * stride] = Rotate<kForward>(even + odd, twiddles + 2 * (j - 1));
        target[(radix - j) * stride] =
            Rotate<kForward>(even - odd, twiddles + 2 * (radix - j - 1));
      }
    }
  }
}

// Transforms `data`, with as much workspace behind it as the plan says; returns where the result
// is.
template <bool kForward, typename T>
Complex<T>* RunPasses(const Plan<T>& plan, Complex<T>* data, Complex<T>* other) {
  for (int i = 0; i < plan.pass_count; ++i) {
    const Pass<T>& pass = plan.passes[i];
    switch (pass.radix) {
      case 2:
        RunPass<2, kForward>(pass, data, other);
        break;
      case 3:
        RunPass<3, kForward>(pass, data, other);
        break;
      case 4:
        RunPass<4, kForward>(pass, data, other);
        break;
      case 5:
        RunPass<5, kForward>(pass, data, other);
        break;
      case 8:
        RunPass<8, kForward>(pass, data, other);
        break;
      default:
        RunGenericPass<kForward>(pass, data, other);
    }
    Complex<T>* const swapped = data;
    data = other;
    other = swapped;
  }
  return data;
}

template <bool kForward, typename T>
Complex<T>* Transform(const Plan<T>& plan, Complex<T>* data) {
  const std::int64_t n = plan.n;
  if (plan.padded == 0) return RunPasses<kForward>(plan, data, data + n);
  Complex<T>* const padded = data + n;
  for (std::int64_t j = 0; j < n; ++j) {
    padded[j] = Rotate<kForward>(data[j], plan.chirp + 2 * j);
  }
  for (std::int64_t j = n; j < plan.padded; ++j) padded[j] = Complex<T>{};
  Complex<T>* const other = padded + plan.padded;
  Complex<T>* const spectrum = RunPasses<kForward>(*plan.convolution, padded, other);
  for (std::int64_t k = 0; k < plan.padded; ++k) {
    spectrum[k] = Rotate<kForward>(spectrum[k], plan.spectrum + 2 * k);
  }
  Complex<T>* const result =
      RunPasses<!kForward>(*plan.convolution, spectrum, spectrum == padded ? other : padded);
  for (std::int64_t k = 0; k < n; ++k) {
    data[k] = Rotate<kForward>(result[k], plan.chirp + 2 * k);
  }
  return data;
}

// ---- Between lines in memory and lanes -------------------------------------------------------

#if defined(__clang__) || __GNUC__ >= 12
#define PFFTJAX_SHUFFLE(a, b, ...) __builtin_shufflevector(a, b, __VA_ARGS__)
#else
#define PFFTJAX_SHUFFLE(a, b, ...) \
  __builtin_shuffle(a, b, typename MaskFor<decltype(a)>::Type{__VA_ARGS__})
#endif

template <typename V>
struct MaskFor;
template <typename V>
struct MaskFor<V&> : MaskFor<V> {};
template <>
struct MaskFor<Vector<float>::Type> {
  typedef int Type __attribute__((vector_size(PFFTJAX_VECTOR_BYTES)));  // NOLINT
};
template <>
struct MaskFor<Vector<double>::Type> {
  typedef long long Type __attribute__((vector_size(PFFTJAX_VECTOR_BYTES)));  // NOLINT
};

template <int... kIndices>
struct Indices {};
template <int kCount, int... kIndices>
struct MakeIndices : MakeIndices<kCount - 1, kCount - 1, kIndices...> {};
template <int... kIndices>
struct MakeIndices<0, kIndices...> {
  using Type = Indices<kIndices...>;
};
template <typename V>
using AllLanes = typename MakeIndices<sizeof(V) / sizeof(V{}[0])>::Type;

// (r0, i0, r1, i1, ...) in a, then in b  <->  (r0, r1, ...), (i0, i1, ...)
template <typename V, int... kI>
inline void Split(V a, V b, V& re, V& im, Indices<kI...>) {
  re = PFFTJAX_SHUFFLE(a, b, (2 * kI)...);
  im = PFFTJAX_SHUFFLE(a, b, (2 * kI + 1)...);
}
template <typename V, int... kI>
inline void Join(V re, V im, V& a, V& b, Indices<kI...>) {
  constexpr int lanes = sizeof...(kI);
  a = PFFTJAX_SHUFFLE(re, im, (kI / 2 + (kI % 2) * lanes)...);
  b = PFFTJAX_SHUFFLE(re, im, (kI / 2 + lanes / 2 + (kI % 2) * lanes)...);
}

// One stage of the transposition of a square of units of kUnit lanes: exchanges the upper half of
// each block of 2 kStep units of a with the lower half of that of b.
template <int kStep, int kUnit, typename V, int... kI>
inline void Exchange(V& a, V& b, Indices<kI...>) {
  constexpr int lanes = sizeof...(kI);
  constexpr int h = kStep * kUnit;
  const V low = PFFTJAX_SHUFFLE(a, b, ((kI / h) % 2 == 0 ? kI : kI - h + lanes)...);
  b = PFFTJAX_SHUFFLE(a, b, ((kI / h) % 2 == 0 ? kI + h : kI + lanes)...);
  a = low;
}

template <int kStep, int kSize, int kUnit, typename V>
inline void TransposeSquare(V* rows) {
  if constexpr (kStep < kSize) {
    for (int i = 0; i < kSize; ++i) {
      if ((i & kStep) == 0) Exchange<kStep, kUnit>(rows[i], rows[i + kStep], AllLanes<V>{});
    }
    TransposeSquare<2 * kStep, kSize, kUnit>(rows);
  }
}

template <typename V, typename T>
inline V Load(const T* from) {
  V value;
  __builtin_memcpy(&value, from, sizeof value);
  return value;
}
template <typename V, typename T>
inline void Store(T* to, V value) {
  __builtin_memcpy(to, &value, sizeof value);
}

// Complex lines into lanes. Lanes beyond `count` repeat line 0.
template <typename T>
void Gather(Lines<const T> in, std::int64_t n, int count, Complex<T>* to) {
  using V = typename Vector<T>::Type;
  constexpr int lanes = Vector<T>::kLanes;
  constexpr int square = lanes / 2;  // complex numbers in a vector
  std::int64_t j = 0;
  if (in.line == 1 && count == lanes) {
    for (; j < n; ++j) {
      const T* row = in.data + 2 * j * in.element;
      Split(Load<V>(row), Load<V>(row + lanes), to[j].re, to[j].im, AllLanes<V>{});
    }
    return;
  }
  const T* lines[lanes];
  for (int l = 0; l < lanes; ++l) lines[l] = in.data + 2 * in.line * (l < count ? l : 0);
  if (in.element == 1) {
    for (; j + square <= n; j += square) {
      V first[square];
      V second[square];
      for (int l = 0; l < square; ++l) first[l] = Load<V>(lines[l] + 2 * j);
      for (int l = 0; l < square; ++l) second[l] = Load<V>(lines[square + l] + 2 * j);
      TransposeSquare<1, square, 2>(first);
      TransposeSquare<1, square, 2>(second);
      for (int i = 0; i < square; ++i) {
        Split(first[i], second[i], to[j + i].re, to[j + i].im, AllLanes<V>{});
      }
    }
  }
  for (; j < n; ++j) {
    for (int l = 0; l < lanes; ++l) {
      to[j].re[l] = lines[l][2 * j * in.element];
      to[j].im[l] = lines[l][2 * j * in.element + 1];
    }
  }
}

template <typename T>
void Scatter(const Complex<T>* from, std::int64_t n, T scale, int count, Lines<T> out) {
  using V = typename Vector<T>::Type;
  constexpr int lanes = Vector<T>::kLanes;
  constexpr int square = lanes / 2;
  std::int64_t j = 0;
  if (out.line == 1 && count == lanes) {
    for (; j < n; ++j) {
      T* row = out.data + 2 * j * out.element;
      V a;
      V b;
      Join(from[j].re * scale, from[j].im * scale, a, b, AllLanes<V>{});
      Store(row, a);
      Store(row + lanes, b);
    }
    return;
  }
  if (out.element == 1) {
    for (; j + square <= n; j += square) {
      V first[square];
      V second[square];
      for (int i = 0; i < square; ++i) {
        Join(from[j + i].re * scale, from[j + i].im * scale, first[i], second[i], AllLanes<V>{});
      }
      TransposeSquare<1, square, 2>(first);
      TransposeSquare<1, square, 2>(second);
      for (int l = 0; l < square && l < count; ++l) {
        Store(out.data + 2 * (l * out.line + j), first[l]);
      }
      for (int l = square; l < count; ++l) {
        Store(out.data + 2 * (l * out.line + j), second[l - square]);
      }
    }
  }
  for (; j < n; ++j) {
    for (int l = 0; l < count; ++l) {
      T* target = out.data + 2 * (j * out.element + l * out.line);
      target[0] = from[j].re[l] * scale;
      target[1] = from[j].im[l] * scale;
    }
  }
}

// Real lines, as the real parts.
template <typename T>
void GatherReal(Lines<const T> in, std::int64_t n, int count, Complex<T>* to) {
  for (std::int64_t j = 0; j < n; ++j) {
    to[j] = Complex<T>{};
    for (int l = 0; l < Vector<T>::kLanes; ++l) {
      to[j].re[l] = in.data[j * in.element + (l < count ? l : 0) * in.line];
    }
  }
}

template <typename T>
void ScatterReal(const Complex<T>* from, std::int64_t n, T scale, int count, Lines<T> out) {
  for (std::int64_t j = 0; j < n; ++j) {
    for (int l = 0; l < count; ++l) {
      out.data[j * out.element + l * out.line] = from[j].re[l] * scale;
    }
  }
}

// ---- Real transforms -------------------------------------------------------------------------

// Of 2 m real numbers, whose even entries are the real parts of z and whose odd ones the
// imaginary: with Z the spectrum of z, the even entries have E = (Z[k] + conj Z[m - k]) / 2, the
// odd ones O = -i (Z[k] - conj Z[m - k]) / 2, and X[k] = E + w^k O, X[m - k] = conj(E - w^k O).
template <typename T>
void SplitSpectrum(const Plan<T>& plan, const Complex<T>* z, Complex<T>* x) {
  const std::int64_t m = plan.n;
  for (std::int64_t k = 0; 2 * k <= m; ++k) {
    const Complex<T> a = z[k];
    const Complex<T> b = Conj(z[k == 0 ? 0 : m - k]);
    const Complex<T> even = (a + b) * T(0.5);
    const Complex<T> odd = Rotate<true>(Quarter<true>(a - b), plan.half_roots + 2 * k) * T(0.5);
    x[k] = even + odd;
    x[m - k] = Conj(even - odd);
  }
  x[0].im = x[m].im = typename Vector<T>::Type{};
}

// The way back, times 2 m: Z[k] = (X[k] + conj X[m - k]) + i w^-k (X[k] - conj X[m - k]). In
// place.
template <typename T>
void JoinSpectrum(const Plan<T>& plan, Complex<T>* x) {
  const std::int64_t m = plan.n;
  x[0].im = x[m].im = typename Vector<T>::Type{};
  for (std::int64_t k = 0; 2 * k <= m; ++k) {
    const Complex<T> a = x[k];
    const Complex<T> b = Conj(x[m - k]);
    const Complex<T> even = a + b;
    const Complex<T> odd = Rotate<false>(Quarter<false>(a - b), plan.half_roots + 2 * k);
    x[k] = even + odd;
    if (k > 0) x[m - k] = Conj(even - odd);
  }
}

// c -> conj(c) / h, and its transpose.
template <typename T>
void Weigh(Complex<T>* c, std::int64_t n, T interior) {
  for (std::int64_t k = 0; k <= n / 2; ++k) {
    const bool once = k == 0 || 2 * k == n;
    c[k] = once ? Conj(c[k]) : Conj(c[k]) * interior;
  }
}

template <typename T>
void TransformGroup(const Plan<T>& plan, Kind kind, std::int64_t n, Lines<const T> in,
                    Lines<T> out, int count, T scale, void* workspace) {
  auto* const data = static_cast<Complex<T>*>(workspace);
  const bool even = n % 2 == 0;
  switch (kind) {
    case Kind::kForward:
    case Kind::kBackward: {
      Gather(in, n, count, data);
      Complex<T>* const result =
          kind == Kind::kForward ? Transform<true>(plan, data) : Transform<false>(plan, data);
      Scatter(result, n, scale, count, out);
      return;
    }
    case Kind::kRealToComplex:
    case Kind::kComplexToRealTransposed: {
      Complex<T>* spectrum = data + plan.workspace;
      if (even) {
        // Neighbours as one complex number: the axis of real lines is contiguous.
        Gather({in.data, 1, in.line / 2}, n / 2, count, data);
        SplitSpectrum(plan, Transform<true>(plan, data), spectrum);
      } else {
        GatherReal(in, n, count, data);
        spectrum = Transform<true>(plan, data);
      }
      if (kind == Kind::kComplexToRealTransposed) Weigh(spectrum, n, T(2));
      Scatter(spectrum, n / 2 + 1, scale, count, out);
      return;
    }
    case Kind::kComplexToReal:
    case Kind::kRealToComplexTransposed: {
      Gather(in, n / 2 + 1, count, data);
      if (kind == Kind::kRealToComplexTransposed) Weigh(data, n, T(0.5));
      if (even) {
        JoinSpectrum(plan, data);
        Scatter(Transform<false>(plan, data), n / 2, scale, count,
                Lines<T>{out.data, 1, out.line / 2});
      } else {
        data[0].im = typename Vector<T>::Type{};
        for (std::int64_t k = 1; 2 * k < n; ++k) data[n - k] = Conj(data[k]);
        ScatterReal(Transform<false>(plan, data), n, scale, count, out);
      }
      return;
    }
  }
}

}  // namespace

extern const Lanes kLanes;
const Lanes kLanes = {PFFTJAX_TARGET_NAME, PFFTJAX_VECTOR_BYTES, TransformGroup<float>,
                      TransformGroup<double>};

}  // namespace pfftjax::fft::PFFTJAX_TARGET

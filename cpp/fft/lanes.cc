// Compiled once for each instruction set, with PFFTJAX_TARGET and PFFTJAX_VECTOR_BYTES defined.
// Nothing here may be shared between those: no templates or inline functions of the standard
// library, of which the linker would keep one version, perhaps one for a newer processor.
#include "fft/lanes.h"

#include "fft/coding.h"
#include "fft/passes.h"
#include "fft/vectors.h"

namespace pfftjax::fft::PFFTJAX_TARGET {
namespace {

// ---- Between lines in memory and lanes -------------------------------------------------------

// Complex lines into lanes. Lanes beyond `count` repeat line 0.
template <bool kBackward, typename T>
void Gather(Lines<const T> in, std::int64_t n, int count, Complex<T>* to) {
  using V = typename Vector<T>::Type;
  constexpr int lanes = Vector<T>::kLanes;
  constexpr int square = lanes / 2;  // complex numbers in a vector
  std::int64_t j = 0;
  if (in.line == 1 && count == lanes) {
    const ColumnsIn<T, kBackward> from{in.data, 2 * in.element};
    for (; j < n; ++j) to[j] = from.Load(j);
    return;
  }
  const T* lines[lanes];
  for (int l = 0; l < lanes; ++l) lines[l] = in.data + 2 * in.line * (l < count ? l : 0);
  if (in.element == 1 && n >= square) {
    // The last square may overlap the one before.
    for (; j < n; j += square) {
      if (j + square > n) j = n - square;
      // The same numbers of the lines after these: each line is too short for the processor to see
      // what comes. There may be none, which does no harm.
      for (int l = 0; l < count; ++l) {
        __builtin_prefetch(lines[l] + 2 * (lanes * in.line + j), 0, 2);
      }
      Square<T> first;
      Square<T> second;
      first.Load(lines, 2 * j);
      second.Load(lines + square, 2 * j);
      PFFTJAX_UNROLL
      for (int i = 0; i < square; ++i) {
        Complex<T> value;
        Split(first.rows[i], second.rows[i], value.re, value.im, AllLanes<V>{});
        to[j + i] = kBackward ? Swap(value) : value;
      }
    }
  }
  for (; j < n; ++j) {
    for (int l = 0; l < lanes; ++l) {
      const T* from = lines[l] + 2 * j * in.element;
      to[j].re[l] = from[kBackward];
      to[j].im[l] = from[!kBackward];
    }
  }
}

template <bool kBackward, typename T>
void Scatter(const Complex<T>* from, std::int64_t n, T scale, int count, Lines<T> out) {
  using V = typename Vector<T>::Type;
  constexpr int lanes = Vector<T>::kLanes;
  constexpr int square = lanes / 2;
  std::int64_t j = 0;
  if (out.line == 1 && count == lanes) {
    const ColumnsOut<T, kBackward> to{out.data, 2 * out.element, scale};
    for (; j < n; ++j) to.Store(j, from[j]);
    return;
  }
  if (out.element == 1 && n >= square) {
    for (; j < n; j += square) {
      if (j + square > n) j = n - square;
      // The processor does not see these either, as where they come from.
      for (int l = 0; l < count; ++l) {
        __builtin_prefetch(out.data + 2 * ((lanes + l) * out.line + j), 1, 2);
      }
      Square<T> first;
      Square<T> second;
      PFFTJAX_UNROLL
      for (int i = 0; i < square; ++i) {
        const Complex<T> value = (kBackward ? Swap(from[j + i]) : from[j + i]) * scale;
        Join(value.re, value.im, first.rows[i], second.rows[i], AllLanes<V>{});
      }
      first.Store(out.data + 2 * j, 2 * out.line, count);
      second.Store(out.data + 2 * (square * out.line + j), 2 * out.line, count - square);
    }
  }
  for (; j < n; ++j) {
    for (int l = 0; l < count; ++l) {
      T* target = out.data + 2 * (j * out.element + l * out.line);
      target[kBackward] = from[j].re[l] * scale;
      target[!kBackward] = from[j].im[l] * scale;
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

// A backward transform has its real result in the imaginary parts.
template <typename T>
void ScatterReal(const Complex<T>* from, std::int64_t n, T scale, int count, Lines<T> out) {
  for (std::int64_t j = 0; j < n; ++j) {
    for (int l = 0; l < count; ++l) {
      out.data[j * out.element + l * out.line] = from[j].im[l] * scale;
    }
  }
}

// Where lines are next to each other, the first pass reads them and the last one writes them.
template <bool kBackward, typename T>
void TransformComplex(const Plan<T>& plan, Lines<const T> in, Lines<T> out, int count, T scale,
                      Complex<T>* data) {
  const std::int64_t n = plan.n;
  const int last = plan.pass_count - 1;
  const bool is_full = count == Vector<T>::kLanes;
  const bool reads = is_full && in.line == 1 && last > 0 && plan.passes[0].has_kernel;
  const bool writes = is_full && out.line == 1 && last >= 0 && plan.passes[last].has_kernel;
  if (reads) {
    const ColumnsIn<T, kBackward> from{in.data, 2 * in.element};
    RunPass<FirstPass>(plan.passes[0], from, Buffer<T>{data});
  } else {
    Gather<kBackward>(in, n, count, data);
  }
  if (last >= 0) {
    Complex<T>* other = data + n;
    RunPasses(plan, reads ? 1 : 0, data, other);
    if (writes) {
      const ColumnsOut<T, kBackward> to{out.data, 2 * out.element, scale};
      return RunPass<LastPass>(plan.passes[last], Buffer<T>{data}, to);
    }
    RunLastPass(plan, data);
  } else {
    data = Transform(plan, data);
  }
  Scatter<kBackward>(data, n, scale, count, out);
}

// ---- Real transforms -------------------------------------------------------------------------

// The spectrum X of 2 m real numbers comes from the spectrum Z of z, whose real parts are the even
// entries, and whose imaginary parts are the odd ones. The even entries have the spectrum
// E = (Z[k] + conj Z[m - k]) / 2, the odd ones O = -i (Z[k] - conj Z[m - k]) / 2, and
// X[k] = E + w^k O, X[m - k] = conj(E - w^k O).
template <typename T>
void SplitSpectrum(const Plan<T>& plan, const Complex<T>* z, Complex<T>* x) {
  const std::int64_t m = plan.n;
  for (std::int64_t k = 0; 2 * k <= m; ++k) {
    const Complex<T> a = z[k];
    const Complex<T> b = Conj(z[k == 0 ? 0 : m - k]);
    const Complex<T> even = (a + b) * T(0.5);
    const Complex<T> odd = Rotate(Quarter(a - b), plan.half_roots + 2 * k) * T(0.5);
    x[k] = even + odd;
    x[m - k] = Conj(even - odd);
  }
  x[0].im = x[m].im = typename Vector<T>::Type{};
}

// The way back, times 2 m: Z[k] = (X[k] + conj X[m - k]) + i w^-k (X[k] - conj X[m - k]). In
// place, and Z for what is backward.
template <typename T>
void JoinSpectrum(const Plan<T>& plan, Complex<T>* x) {
  const std::int64_t m = plan.n;
  x[0].im = x[m].im = typename Vector<T>::Type{};
  for (std::int64_t k = 0; 2 * k <= m; ++k) {
    const Complex<T> a = x[k];
    const Complex<T> b = Conj(x[m - k]);
    const Complex<T> even = Swap(a + b);
    // Exchanged, i (a - b) is conj (a - b), and times w^-k it is times w^k.
    const Complex<T> odd = Rotate(Conj(a - b), plan.half_roots + 2 * k);
    x[k] = even + odd;
    if (k > 0) {
      const Complex<T> difference = even - odd;
      x[m - k] = {-difference.re, difference.im};
    }
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
      return TransformComplex<false>(plan, in, out, count, scale, data);
    case Kind::kBackward:
      return TransformComplex<true>(plan, in, out, count, scale, data);
    case Kind::kRealToComplex:
    case Kind::kComplexToRealTransposed: {
      Complex<T>* spectrum = data + plan.workspace;
      if (even) {
        // Neighbours as one complex number: the axis of real lines is contiguous.
        Gather<false>({in.data, 1, in.line / 2}, n / 2, count, data);
        SplitSpectrum(plan, Transform(plan, data), spectrum);
      } else {
        GatherReal(in, n, count, data);
        spectrum = Transform(plan, data);
      }
      if (kind == Kind::kComplexToRealTransposed) Weigh(spectrum, n, T(2));
      Scatter<false>(spectrum, n / 2 + 1, scale, count, out);
      return;
    }
    case Kind::kComplexToReal:
    case Kind::kRealToComplexTransposed: {
      Gather<false>(in, n / 2 + 1, count, data);
      if (kind == Kind::kRealToComplexTransposed) Weigh(data, n, T(0.5));
      if (even) {
        JoinSpectrum(plan, data);
        Scatter<true>(Transform(plan, data), n / 2, scale, count,
                      Lines<T>{out.data, 1, out.line / 2});
      } else {
        data[0] = {typename Vector<T>::Type{}, data[0].re};
        for (std::int64_t k = 1; 2 * k < n; ++k) {
          data[n - k] = Swap(Conj(data[k]));
          data[k] = Swap(data[k]);
        }
        ScatterReal(Transform(plan, data), n, scale, count, out);
      }
      return;
    }
  }
}

}  // namespace

extern const Lanes kLanes;
const Lanes kLanes = {PFFTJAX_TARGET_NAME,    PFFTJAX_VECTOR_BYTES, TransformGroup<float>,
                      TransformGroup<double>, EncodeRow<float>,     EncodeRow<double>,
                      DecodeRow<float>,       DecodeRow<double>};

}  // namespace pfftjax::fft::PFFTJAX_TARGET

// Vectors of numbers, one of each line, and their ways from memory and back.
//
// For lanes.cc, and compiled with it once for each instruction set: nothing of the standard
// library.
#pragma once

#include <cstdint>

// What a loop is made of must be in it, whatever the compiler thinks of its size.
#define PFFTJAX_INLINE inline __attribute__((always_inline))

#if defined(__clang__) || __GNUC__ >= 12
#define PFFTJAX_HAS_SHUFFLEVECTOR
#define PFFTJAX_SHUFFLE(a, b, ...) __builtin_shufflevector(a, b, __VA_ARGS__)
#else
#define PFFTJAX_SHUFFLE(a, b, ...) \
  __builtin_shuffle(a, b, typename MaskFor<decltype(a)>::Type{__VA_ARGS__})
#endif

#if defined(__clang__)
#define PFFTJAX_UNROLL _Pragma("unroll")
#else
#define PFFTJAX_UNROLL _Pragma("GCC unroll 16")
#endif

namespace pfftjax::fft::PFFTJAX_TARGET {
namespace {

template <typename T>
struct Vector {
  typedef T Type __attribute__((vector_size(PFFTJAX_VECTOR_BYTES)));  // NOLINT: no `using` for it
  static constexpr int kLanes = PFFTJAX_VECTOR_BYTES / sizeof(T);
  typedef T Half __attribute__((vector_size(PFFTJAX_VECTOR_BYTES / 2)));  // NOLINT
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

// Times -i.
template <typename T>
inline Complex<T> Quarter(Complex<T> a) {
  return {a.im, -a.re};
}
// Tables hold (cosine, -sine).
template <typename T>
inline Complex<T> Rotate(Complex<T> a, const T* root) {
  return {a.re * root[0] - a.im * root[1], a.re * root[1] + a.im * root[0]};
}
// A backward transform is a forward one of numbers whose real and imaginary parts have changed
// places, and so have those of its result. There is no other code for it.
template <typename T>
inline Complex<T> Swap(Complex<T> a) {
  return {a.im, a.re};
}

// ---- Shuffles ------------------------------------------------------------------------------

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
template <typename V>
using HalfOfLanes = typename MakeIndices<sizeof(V) / sizeof(V{}[0]) / 2>::Type;

// (r0, i0, r1, i1, ...) in a, then in b  <->  (r0, r1, ...), (i0, i1, ...)
template <typename V, int... kI>
PFFTJAX_INLINE void Split(V a, V b, V& re, V& im, Indices<kI...>) {
  re = PFFTJAX_SHUFFLE(a, b, (2 * kI)...);
  im = PFFTJAX_SHUFFLE(a, b, (2 * kI + 1)...);
}
template <typename V, int... kI>
PFFTJAX_INLINE void Join(V re, V im, V& a, V& b, Indices<kI...>) {
  constexpr int lanes = sizeof...(kI);
  a = PFFTJAX_SHUFFLE(re, im, (kI / 2 + (kI % 2) * lanes)...);
  b = PFFTJAX_SHUFFLE(re, im, (kI / 2 + lanes / 2 + (kI % 2) * lanes)...);
}

template <typename V, typename T>
PFFTJAX_INLINE V LoadVector(const T* from) {
  V value;
  __builtin_memcpy(&value, from, sizeof value);
  return value;
}
template <typename V, typename T>
PFFTJAX_INLINE void StoreVector(T* to, V value) {
  __builtin_memcpy(to, &value, sizeof value);
}

template <typename V, typename T, int... kI>
PFFTJAX_INLINE V LoadHalves(const T* lower, const T* upper, Indices<kI...>) {
#ifdef PFFTJAX_HAS_SHUFFLEVECTOR
  using Half = typename Vector<T>::Half;
  return __builtin_shufflevector(LoadVector<Half>(lower), LoadVector<Half>(upper), kI...);
#else
  V value;
  __builtin_memcpy(&value, lower, sizeof value / 2);
  __builtin_memcpy(reinterpret_cast<char*>(&value) + sizeof value / 2, upper, sizeof value / 2);
  return value;
#endif
}
// Lanes kI of the lower half (kWhich = 0) or the upper one (1).
template <int kWhich, typename V, typename T, int... kI>
PFFTJAX_INLINE void StoreHalf(T* to, V value, Indices<kI...>) {
#ifdef PFFTJAX_HAS_SHUFFLEVECTOR
  constexpr int lanes = sizeof...(kI);
  StoreVector(to, __builtin_shufflevector(value, value, (kI + kWhich * lanes)...));
#else
  const auto* bytes = reinterpret_cast<const char*>(&value);
  __builtin_memcpy(to, bytes + kWhich * sizeof value / 2, sizeof value / 2);
#endif
}

// As many complex numbers of as many lines as a vector holds: in memory each line is contiguous,
// and here each vector has one number of every line. The stage of this transposition that
// exchanges halves of vectors is done by loading and storing halves.
template <typename T>
struct Square {
  using V = typename Vector<T>::Type;
  static constexpr int kLanes = Vector<T>::kLanes;
  static constexpr int kSize = kLanes / 2;
  static constexpr int kHalf = kSize / 2;
  V rows[kSize];

  PFFTJAX_INLINE void Load(const T* const* lines, std::int64_t first) {
    if constexpr (kHalf == 0) {
      rows[0] = LoadVector<V>(lines[0] + first);
    } else {
      PFFTJAX_UNROLL
      for (int i = 0; i < kSize; ++i) {
        const std::int64_t at = first + i / kHalf * kSize;
        rows[i] =
            LoadHalves<V>(lines[i % kHalf] + at, lines[i % kHalf + kHalf] + at, AllLanes<V>{});
      }
      Transpose<1>();
    }
  }
  // The first `count` lines, `line` apart. Spoils the rows.
  PFFTJAX_INLINE void Store(T* to, std::int64_t line, int count) {
    if constexpr (kHalf == 0) {
      if (count > 0) StoreVector(to, rows[0]);
    } else {
      Transpose<1>();
      PFFTJAX_UNROLL
      for (int i = 0; i < kHalf; ++i) {
        T* const lower = to + i * line;
        T* const upper = lower + kHalf * line;
        if (i < count) {
          StoreHalf<0>(lower, rows[i], HalfOfLanes<V>{});
          StoreHalf<0>(lower + kSize, rows[i + kHalf], HalfOfLanes<V>{});
        }
        if (i + kHalf < count) {
          StoreHalf<1>(upper, rows[i], HalfOfLanes<V>{});
          StoreHalf<1>(upper + kSize, rows[i + kHalf], HalfOfLanes<V>{});
        }
      }
    }
  }

 private:
  template <int kStep>
  PFFTJAX_INLINE void Transpose() {
    if constexpr (kStep < kHalf) {
      PFFTJAX_UNROLL
      for (int i = 0; i < kSize; ++i) {
        if ((i & kStep) == 0) Exchange<kStep>(rows[i], rows[i + kStep], AllLanes<V>{});
      }
      Transpose<2 * kStep>();
    }
  }
  // The upper half of each block of 2 kStep numbers of a for the lower half of that of b.
  template <int kStep, int... kI>
  static PFFTJAX_INLINE void Exchange(V& a, V& b, Indices<kI...>) {
    constexpr int h = 2 * kStep;
    const V low = PFFTJAX_SHUFFLE(a, b, ((kI / h) % 2 == 0 ? kI : kI - h + kLanes)...);
    b = PFFTJAX_SHUFFLE(a, b, ((kI / h) % 2 == 0 ? kI + h : kI + kLanes)...);
    a = low;
  }
};

// ---- Where the numbers of a group of lines are ----------------------------------------------

// They are in the workspace.
template <typename T>
struct Buffer {
  Complex<T>* data;

  Complex<T> Load(std::int64_t j) const { return data[j]; }
  void Store(std::int64_t j, Complex<T> value) const { data[j] = value; }
};

// In memory, lines next to each other, as many as there are lanes. Backward: see Swap.
template <typename T, bool kBackward>
struct ColumnsIn {
  const T* data;
  std::int64_t stride;

  Complex<T> Load(std::int64_t j) const {
    using V = typename Vector<T>::Type;
    const T* row = data + j * stride;
    Complex<T> value;
    Split(LoadVector<V>(row), LoadVector<V>(row + Vector<T>::kLanes), value.re, value.im,
          AllLanes<V>{});
    return kBackward ? Swap(value) : value;
  }
};

template <typename T, bool kBackward>
struct ColumnsOut {
  T* data;
  std::int64_t stride;
  T scale;

  void Store(std::int64_t j, Complex<T> value) const {
    using V = typename Vector<T>::Type;
    T* row = data + j * stride;
    value = (kBackward ? Swap(value) : value) * scale;
    V a;
    V b;
    Join(value.re, value.im, a, b, AllLanes<V>{});
    StoreVector(row, a);
    StoreVector(row + Vector<T>::kLanes, b);
  }
};

}  // namespace
}  // namespace pfftjax::fft::PFFTJAX_TARGET

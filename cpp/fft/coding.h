// Numbers in half of their bits: blocks of them share an exponent.
//
// For lanes.cc, and compiled with it once for each instruction set: nothing of the standard
// library.
#pragma once

#include "fft/codes.h"
#include "fft/vectors.h"

namespace pfftjax::fft::PFFTJAX_TARGET {
namespace {

// As many of each type as a vector of numbers has.
template <typename T>
struct Bits;
template <>
struct Bits<float> {
  using Word = std::int32_t;
  typedef Word Words __attribute__((vector_size(PFFTJAX_VECTOR_BYTES)));                  // NOLINT
  typedef std::int16_t Mantissas __attribute__((vector_size(PFFTJAX_VECTOR_BYTES / 2)));  // NOLINT
  typedef std::int32_t Integers __attribute__((vector_size(PFFTJAX_VECTOR_BYTES)));       // NOLINT
  static constexpr int kFraction = 23;
  static constexpr int kExponent = 8;
};
template <>
struct Bits<double> {
  using Word = std::int64_t;
  typedef Word Words __attribute__((vector_size(PFFTJAX_VECTOR_BYTES)));                  // NOLINT
  typedef std::int32_t Mantissas __attribute__((vector_size(PFFTJAX_VECTOR_BYTES / 2)));  // NOLINT
  using Integers = Mantissas;
  static constexpr int kFraction = 52;
  static constexpr int kExponent = 11;
};

// A block's numbers are multiples of a unit, which is a power of two: the largest one takes all
// bits of a mantissa but that of its sign.
template <typename T>
struct Coding {
  static constexpr int kLanes = Vector<T>::kLanes;
  static constexpr int kVectors = kCodedBlock / kLanes;
  using Word = typename Bits<T>::Word;
  using Mantissa = typename Code<T>::Mantissa;
  using Exponent = typename Code<T>::Exponent;
  using V = typename Vector<T>::Type;
  using Words = typename Bits<T>::Words;
  using Mantissas = typename Bits<T>::Mantissas;
  using Integers = typename Bits<T>::Integers;

  static constexpr int kFraction = Bits<T>::kFraction;
  // Bits of a mantissa after the first one.
  static constexpr int kKept = 8 * static_cast<int>(sizeof(Mantissa)) - 2;
  static constexpr Word kInfinity = ((Word(1) << Bits<T>::kExponent) - 1) << kFraction;
  static constexpr Word kWithoutSign = kInfinity | ((Word(1) << kFraction) - 1);
  static constexpr Exponent kNone = static_cast<Exponent>(kInfinity >> kFraction);
  // Twice the bias of exponents: that of 1 / 2^e is this number without that of 2^e.
  static constexpr Word kReciprocal = (Word(1) << Bits<T>::kExponent) - 2;

  static PFFTJAX_INLINE Words Larger(Words a, Words b) { return a > b ? a : b; }
  // The largest of all lanes, in each of them: `a` turned by half of its lanes, a quarter, ...
  template <int kTurn, int... kI>
  static PFFTJAX_INLINE Words Largest(Words a, Indices<kI...> lanes) {
    if constexpr (kTurn == 0) {
      return a;
    } else {
      const Words turned = PFFTJAX_SHUFFLE(a, a, ((kI + kTurn) % kLanes)...);
      return Largest<kTurn / 2>(Larger(a, turned), lanes);
    }
  }

  static PFFTJAX_INLINE void Encode(const T* from, char* to) {
    Words most{};
    PFFTJAX_UNROLL
    for (int i = 0; i < kVectors; ++i) {
      most = Larger(most, LoadVector<Words>(from + i * kLanes) & kWithoutSign);
    }
    most = Largest<kLanes / 2>(most, typename MakeIndices<kLanes>::Type{});
    if (most[0] >= kInfinity) {
      __builtin_memset(to, 0, kBlockBytes<T>);
      __builtin_memcpy(to, &kNone, sizeof kNone);
      return;
    }
    // As it is after the largest number has been rounded, which may make it a power of two. The
    // smallest unit is a normal number, as its reciprocal has to be one.
    const Words rounded = most + (Word(1) << (kFraction - kKept - 1));
    const Words unit = Larger((rounded >> kFraction) - kKept, Words{} + 1);
    const Words reciprocal = (kReciprocal - unit) << kFraction;
    const V factor = LoadVector<V>(&reciprocal);
    const auto exponent = static_cast<Exponent>(unit[0]);
    __builtin_memcpy(to, &exponent, sizeof exponent);
    // A number that is added to this one is rounded to an integer, in its last bits.
    constexpr T integers = T(3) * (Word(1) << (kFraction - 1));
    PFFTJAX_UNROLL
    for (int i = 0; i < kVectors; ++i) {
      const V sum = LoadVector<V>(from + i * kLanes) * factor + integers;
      const Mantissas mantissas = __builtin_convertvector(LoadVector<Words>(&sum), Mantissas);
      StoreVector(to + sizeof exponent + i * sizeof(Mantissas), mantissas);
    }
  }

  static PFFTJAX_INLINE void Decode(const char* from, T* to) {
    Exponent exponent;
    __builtin_memcpy(&exponent, from, sizeof exponent);
    const Word quiet = exponent == kNone ? Word(1) << (kFraction - 1) : 0;
    const Word bits = Word(exponent) << kFraction | quiet;
    T unit;
    __builtin_memcpy(&unit, &bits, sizeof unit);
    PFFTJAX_UNROLL
    for (int i = 0; i < kVectors; ++i) {
      const Mantissas mantissas =
          LoadVector<Mantissas>(from + sizeof exponent + i * sizeof(Mantissas));
      const Integers integers = __builtin_convertvector(mantissas, Integers);
      StoreVector(to + i * kLanes, __builtin_convertvector(integers, V) * unit);
    }
  }
};

template <typename T>
void EncodeRow(const T* from, std::int64_t numbers, char* to) {
  for (; numbers >= kCodedBlock; numbers -= kCodedBlock) {
    Coding<T>::Encode(from, to);
    from += kCodedBlock;
    to += kBlockBytes<T>;
  }
  if (numbers == 0) return;
  T last[kCodedBlock] = {};
  char coded[kBlockBytes<T>];
  __builtin_memcpy(last, from, numbers * sizeof(T));
  Coding<T>::Encode(last, coded);
  __builtin_memcpy(to, coded, CodeBytes<T>(numbers));
}

template <typename T>
void DecodeRow(const char* from, std::int64_t numbers, T* to) {
  for (; numbers >= kCodedBlock; numbers -= kCodedBlock) {
    Coding<T>::Decode(from, to);
    from += kBlockBytes<T>;
    to += kCodedBlock;
  }
  if (numbers == 0) return;
  T last[kCodedBlock];
  char coded[kBlockBytes<T>] = {};
  __builtin_memcpy(coded, from, CodeBytes<T>(numbers));
  Coding<T>::Decode(coded, last);
  __builtin_memcpy(to, last, numbers * sizeof(T));
}

}  // namespace
}  // namespace pfftjax::fft::PFFTJAX_TARGET

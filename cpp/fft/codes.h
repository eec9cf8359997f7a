// What numbers are on their way between ranks: as they are, or in half of their bits.
//
// Then each block of 16 real numbers of a row has an exponent, and each number a mantissa with a
// sign. That rounds, to nearest and even, to at most 2^-15 (float) or 2^-31 (double) of the
// largest number of the block. A block with an infinity or a NaN arrives as NaNs.
#pragma once

#include <cstdint>

#include "base/distribution.h"

namespace pfftjax::fft {

// Values are part of programs: only append.
enum class Precision : std::int64_t { kFull, kHalf };

inline constexpr std::int64_t kCodedBlock = 16;  // real numbers

// A block is its exponent, biased and of the unit of its mantissas, and the mantissas. The last
// block of a row has only as many of them as the row.
template <typename T>
struct Code;
template <>
struct Code<float> {
  using Mantissa = std::int16_t;
  using Exponent = std::uint8_t;
};
template <>
struct Code<double> {
  using Mantissa = std::int32_t;
  using Exponent = std::uint16_t;
};

// `CodeBytes` is inlined always: lanes.cc is compiled for several processors, and the linker would
// keep one of its copies for all.
template <typename T>
[[gnu::always_inline]] constexpr std::int64_t CodeBytes(std::int64_t numbers) {
  constexpr std::int64_t exponent = sizeof(typename Code<T>::Exponent);
  constexpr std::int64_t mantissa = sizeof(typename Code<T>::Mantissa);
  return (numbers + kCodedBlock - 1) / kCodedBlock * exponent + numbers * mantissa;
}
template <typename T>
inline constexpr std::int64_t kBlockBytes = CodeBytes<T>(kCodedBlock);

// The bytes of a row of complex numbers.
template <typename T>
RowSize RowBytes(Precision precision) {
  if (precision == Precision::kFull) return {2 * sizeof(T), 0, 1};
  return {2 * sizeof(typename Code<T>::Mantissa), sizeof(typename Code<T>::Exponent),
          kCodedBlock / 2};
}

}  // namespace pfftjax::fft

// float16 and bfloat16 for MPI reductions, which have neither, and for sums on a GPU, which then
// are those of the host: conversion by bits, rounding to nearest, ties to even.
#pragma once

#include <cstdint>

#include "base/host_device.h"

namespace pfftjax {

struct BFloat16 {
  std::uint16_t bits;

  PFFTJAX_HOST_DEVICE explicit operator float() const {
    return BitCast<float>(std::uint32_t{bits} << 16);
  }

  PFFTJAX_HOST_DEVICE static BFloat16 From(float value) {
    const std::uint32_t f = BitCast<std::uint32_t>(value);
    if ((f & 0x7fffffffu) > 0x7f800000u) {
      return {static_cast<std::uint16_t>((f >> 16) | 0x0040u)};  // keep NaN a NaN
    }
    return {static_cast<std::uint16_t>((f + 0x7fffu + ((f >> 16) & 1u)) >> 16)};
  }
};

struct Float16 {
  std::uint16_t bits;

  PFFTJAX_HOST_DEVICE explicit operator float() const {
    const std::uint32_t sign = std::uint32_t{bits & 0x8000u} << 16;
    const std::uint32_t exponent = (bits >> 10) & 0x1fu;
    const std::uint32_t mantissa = bits & 0x3ffu;
    if (exponent == 0x1f) return BitCast<float>(sign | 0x7f800000u | (mantissa << 13));
    if (exponent == 0) {
      // A subnormal is mantissa * 2^-24, which float holds exactly.
      const float magnitude = static_cast<float>(mantissa) * 5.9604644775390625e-8f;
      return BitCast<float>(sign | BitCast<std::uint32_t>(magnitude));
    }
    return BitCast<float>(sign | ((exponent + 112u) << 23) | (mantissa << 13));
  }

  PFFTJAX_HOST_DEVICE static Float16 From(float value) {
    const std::uint32_t f = BitCast<std::uint32_t>(value);
    const auto sign = static_cast<std::uint16_t>((f >> 16) & 0x8000u);
    const std::uint32_t magnitude = f & 0x7fffffffu;
    const auto with_sign = [sign](std::uint32_t h) {
      return Float16{static_cast<std::uint16_t>(sign | h)};
    };
    if (magnitude > 0x7f800000u) return with_sign(0x7e00u);
    if (magnitude >= 0x477ff000u) return with_sign(0x7c00u);  // 65520 and above round to infinity
    if (magnitude >= 0x38800000u) {                           // normal: 2^-14 and above
      const std::uint32_t rounded = magnitude + 0xfffu + ((magnitude >> 13) & 1u);
      return with_sign((rounded - 0x38000000u) >> 13);
    }
    // Subnormal: adding 0.5 leaves the wanted bits, rounded to even, in the low mantissa.
    const float shifted = BitCast<float>(magnitude) + 0.5f;
    return with_sign(BitCast<std::uint32_t>(shifted) - BitCast<std::uint32_t>(0.5f));
  }
};

}  // namespace pfftjax

// The C++ type of each Element.
#pragma once

#include <complex>
#include <cstdint>
#include <type_traits>

#include "base/element.h"
#include "base/half.h"

namespace pfftjax {

// `f(T{})` with the type of the element's values; its result.
template <typename Function>
auto WithType(Element element, Function&& f) -> decltype(f(double{})) {
  switch (element) {
    case Element::kBool:
      return f(bool{});
    case Element::kS8:
      return f(std::int8_t{});
    case Element::kS16:
      return f(std::int16_t{});
    case Element::kS32:
      return f(std::int32_t{});
    case Element::kS64:
      return f(std::int64_t{});
    case Element::kU8:
      return f(std::uint8_t{});
    case Element::kU16:
      return f(std::uint16_t{});
    case Element::kU32:
      return f(std::uint32_t{});
    case Element::kU64:
      return f(std::uint64_t{});
    case Element::kF16:
      return f(Float16{});
    case Element::kBF16:
      return f(BFloat16{});
    case Element::kF32:
      return f(float{});
    case Element::kF64:
      return f(double{});
    case Element::kC64:
      return f(std::complex<float>{});
    case Element::kC128:
      break;
  }
  return f(std::complex<double>{});
}

template <typename T>
inline constexpr bool kIsHalf = std::is_same_v<T, Float16> || std::is_same_v<T, BFloat16>;
template <typename T>
inline constexpr bool kIsComplex =
    std::is_same_v<T, std::complex<float>> || std::is_same_v<T, std::complex<double>>;

}  // namespace pfftjax

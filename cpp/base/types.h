// The C++ type of each Element.
#pragma once

#include <complex>
#include <cstddef>
#include <cstdint>
#include <tuple>
#include <type_traits>

#include "base/element.h"
#include "base/half.h"

namespace pfftjax {

// Indexed by Element.
using ElementTypes =
    std::tuple<bool, std::int8_t, std::int16_t, std::int32_t, std::int64_t, std::uint8_t,
               std::uint16_t, std::uint32_t, std::uint64_t, Float16, BFloat16, float, double,
               std::complex<float>, std::complex<double>>;
static_assert(std::tuple_size_v<ElementTypes> == kElements.size());

// `f(T{})` with the type of the element's values; its result.
template <std::size_t kIndex = 0, typename Function>
auto WithType(Element element, Function&& f) -> decltype(f(double{})) {
  if constexpr (kIndex + 1 < std::tuple_size_v<ElementTypes>) {
    if (static_cast<std::size_t>(element) != kIndex) return WithType<kIndex + 1>(element, f);
  }
  return f(std::tuple_element_t<kIndex, ElementTypes>{});
}

template <typename T>
inline constexpr bool kIsHalf = std::is_same_v<T, Float16> || std::is_same_v<T, BFloat16>;
template <typename T>
inline constexpr bool kIsComplex =
    std::is_same_v<T, std::complex<float>> || std::is_same_v<T, std::complex<double>>;

}  // namespace pfftjax

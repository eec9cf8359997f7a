// Where memory begins that shares no line of the cache, or no page, with other memory.
#pragma once

#include <cstddef>

namespace pfftjax {

inline constexpr std::size_t kCacheLine = 64;

// The least multiple of `to` that is not less than `n`.
template <typename Integer>
constexpr Integer RoundUp(Integer n, Integer to) {
  return (n + to - 1) / to * to;
}

}  // namespace pfftjax

// Callers expect one of these of values that all ranks have.
#pragma once

#include <cstdint>

namespace pfftjax {

enum class Expected : std::int32_t {
  kSameBits,
  kSame,       // a warning where they differ by rounding
  kSameTotal,  // the result of a long calculation: more rounding is allowed
  kDifferent,  // only reported where it is not so, and only where all bits are equal
};

}  // namespace pfftjax

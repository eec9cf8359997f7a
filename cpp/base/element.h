// Element types and reductions as numbers that do not depend on any MPI library.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

namespace pfftjax {

enum class Element : std::int32_t {
  kBool,
  kS8,
  kS16,
  kS32,
  kS64,
  kU8,
  kU16,
  kU32,
  kU64,
  kF16,
  kBF16,
  kF32,
  kF64,
  kC64,
  kC128,
};

struct ElementInfo {
  const char* name;
  std::int64_t bytes;
};

// Indexed by Element; the names are NumPy's.
inline constexpr std::array<ElementInfo, 15> kElements = {{
    {"bool", 1},
    {"int8", 1},
    {"int16", 2},
    {"int32", 4},
    {"int64", 8},
    {"uint8", 1},
    {"uint16", 2},
    {"uint32", 4},
    {"uint64", 8},
    {"float16", 2},
    {"bfloat16", 2},
    {"float32", 4},
    {"float64", 8},
    {"complex64", 8},
    {"complex128", 16},
}};

constexpr const ElementInfo& InfoOf(Element element) {
  return kElements[static_cast<std::size_t>(element)];
}

// The values are part of the programs that pfftjax/collectives/_reduction.py lowers. Those from
// kReductions on are operations of the user's, in the order in which MpiApi::add_op met them.
enum class Reduction : std::int32_t {
  kSum,
  kProd,
  kMin,
  kMax,
  kLand,
  kLor,
  kLxor,
  kBand,
  kBor,
  kBxor,
};
inline constexpr std::size_t kReductions = 10;

}  // namespace pfftjax

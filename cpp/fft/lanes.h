// Transforms of several lines at a time, one line in each lane of the vector registers.
//
// Every lane does the same operations in the same order, and a line that stands alone goes through
// the same code as one among many. So the bits of a transformed line depend on nothing but the
// line: not on its neighbours, not on how many lines a rank holds, not on the number of threads.
#pragma once

#include <cstdint>

#include "fft/plan.h"

namespace pfftjax::fft {

// Values are part of the programs that pfftjax/fft/_local.py lowers: only append. The sums run
// over the line; h(k) is 1 for k = 0 and, where n is even, k = n / 2, and 2 elsewhere.
enum class Kind : std::int32_t {
  kForward,                  // y[k] = sum x[j] exp(-2 pi i j k / n)
  kBackward,                 // y[k] = sum x[j] exp(+2 pi i j k / n)
  kRealToComplex,            // kForward of real x, k <= n / 2
  kComplexToReal,            // y[j] = sum h(k) Re(x[k] exp(+2 pi i j k / n))
  kRealToComplexTransposed,  // y[j] = sum Re(x[k] exp(-2 pi i j k / n)), real
  kComplexToRealTransposed,  // y[k] = h(k) sum x[j] exp(+2 pi i j k / n), of real x
};

// Lines in memory: element j of line l is at data[j * element + l * line], in units of the
// elements, which are complex or real.
template <typename Data>
struct Lines {
  Data* data = nullptr;
  std::int64_t element = 0;
  std::int64_t line = 0;
};

// Transforms `count` lines of length n, at most Lanes::lines<T>, from `in` to `out`, which may be
// the same place. The axis of real lines is contiguous. `plan` is for n complex numbers, or for n
// / 2 where one side is real and n even.
template <typename T>
using TransformLines = void (*)(const Plan<T>& plan, Kind kind, std::int64_t n, Lines<const T> in,
                                Lines<T> out, int count, T scale, void* workspace);

// So many real numbers to their code (codes.h), and back.
template <typename T>
using EncodeNumbers = void (*)(const T* from, std::int64_t numbers, char* to);
template <typename T>
using DecodeNumbers = void (*)(const char* from, std::int64_t numbers, T* to);

// The code for one instruction set.
struct Lanes {
  const char* name;
  int vector_bytes;
  TransformLines<float> transform_f32;
  TransformLines<double> transform_f64;
  EncodeNumbers<float> encode_f32;
  EncodeNumbers<double> encode_f64;
  DecodeNumbers<float> decode_f32;
  DecodeNumbers<double> decode_f64;

  template <typename T>
  int lines() const {
    return vector_bytes / static_cast<int>(sizeof(T));
  }
  template <typename T>
  TransformLines<T> transform() const {
    if constexpr (sizeof(T) == sizeof(float)) {
      return transform_f32;
    } else {
      return transform_f64;
    }
  }
  void Encode(const float* from, std::int64_t n, char* to) const { encode_f32(from, n, to); }
  void Encode(const double* from, std::int64_t n, char* to) const { encode_f64(from, n, to); }
  void Decode(const char* from, std::int64_t n, float* to) const { decode_f32(from, n, to); }
  void Decode(const char* from, std::int64_t n, double* to) const { decode_f64(from, n, to); }
};

// Defined by lanes.cc, which is compiled once for each.
namespace baseline {
extern const Lanes kLanes;
}
namespace avx2 {
extern const Lanes kLanes;
}
namespace avx512 {
extern const Lanes kLanes;
}
namespace neon {
extern const Lanes kLanes;
}
namespace sve256 {
extern const Lanes kLanes;
}
namespace sve512 {
extern const Lanes kLanes;
}

}  // namespace pfftjax::fft

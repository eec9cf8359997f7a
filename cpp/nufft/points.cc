// Compiled once for each instruction set, with PFFTJAX_TARGET and PFFTJAX_VECTOR_BYTES defined.
// Nothing here may be shared between those: no templates or inline functions of the standard
// library, of which the linker would keep one version, perhaps one for a newer processor.
#include "nufft/points.h"

#include <cstdint>

namespace pfftjax::nufft::PFFTJAX_TARGET {
namespace {

// Registers for so many numbers: as few bytes as hold them, up to the processor's size.
constexpr int BytesFor(int bytes) {
  int size = 16;
  while (size < bytes && size < PFFTJAX_VECTOR_BYTES) size *= 2;
  return size;
}

// A row of kCount numbers T in registers; those beyond the last are there, too.
template <typename T, int kCount>
struct Row {
  static constexpr int kBytes = BytesFor(kCount * static_cast<int>(sizeof(T)));
  static constexpr int kLanes = kBytes / static_cast<int>(sizeof(T));
  static constexpr int kParts = (kCount + kLanes - 1) / kLanes;
  typedef T Part __attribute__((vector_size(kBytes)));  // NOLINT
  typedef T InMemory
      __attribute__((vector_size(kBytes), aligned(sizeof(T)), may_alias));  // NOLINT

  Part parts[kParts];

  static Part Load(const T* from) { return *reinterpret_cast<const InMemory*>(from); }
  static void Store(const Part& part, T* to) { *reinterpret_cast<InMemory*>(to) = part; }
  static Part All(T value) { return Part{} + value; }
};

// Evaluates the polynomials whose coefficients are `terms` rows of `stride` numbers.
template <typename T, int kCount>
inline void Evaluate(const T* rows, int stride, int terms, T x, Row<T, kCount>* sums) {
  using R = Row<T, kCount>;
  const typename R::Part at = R::All(x);
  for (int i = 0; i < R::kParts; ++i) sums->parts[i] = R::Load(rows + i * R::kLanes);
  for (int term = 1; term < terms; ++term) {
    const T* const row = rows + term * stride;
    for (int i = 0; i < R::kParts; ++i) {
      sums->parts[i] = sums->parts[i] * at + R::Load(row + i * R::kLanes);
    }
  }
}

// The weights of one point: of its lines, and twice each of its places on a line.
template <typename T, int kWidth>
struct Weights {
  using Once = Row<T, kWidth>;
  using Twice = Row<T, 2 * kWidth>;

  Weights(const Polynomials<T>& of, const T* at) {
    Once along;
    for (int axis = 0; axis < 2; ++axis) {
      Evaluate<T, kWidth>(of.once[0], kMostWidth, of.terms, at[axis], &along);
      T* const to = axis == 0 ? x : y;
      for (int i = 0; i < Once::kParts; ++i) Once::Store(along.parts[i], to + i * Once::kLanes);
    }
    Evaluate<T, 2 * kWidth>(of.twice[0], 2 * kMostWidth, of.terms, at[2], &z);
  }

  T x[Once::kParts * Once::kLanes];
  T y[Once::kParts * Once::kLanes];
  Twice z;
};

template <typename T, int kWidth>
void Spread(const Batch<T>& batch, const T* values, T* tile) {
  using Line = typename Weights<T, kWidth>::Twice;
  using Part = typename Line::Part;
  for (std::int64_t point = 0; point < batch.count; ++point) {
    Weights<T, kWidth> weights(*batch.polynomials, batch.at + 3 * point);
    Part value = Line::All(values[2 * point]);
    const T imaginary = values[2 * point + 1];
    for (int lane = 1; lane < Line::kLanes; lane += 2) value[lane] = imaginary;
    Line shares;
    for (int i = 0; i < Line::kParts; ++i) shares.parts[i] = value * weights.z.parts[i];
    T* const corner = tile + 2 * static_cast<std::int64_t>(batch.first[point]);
    for (int x = 0; x < kWidth; ++x) {
      T* at = corner + 2 * x * batch.plane;
      for (int y = 0; y < kWidth; ++y, at += 2 * batch.line) {
        const Part weight = Line::All(weights.x[x] * weights.y[y]);
        for (int i = 0; i < Line::kParts; ++i) {
          T* const part = at + i * Line::kLanes;
          Line::Store(Line::Load(part) + weight * shares.parts[i], part);
        }
      }
    }
  }
}

template <typename T, int kWidth>
void Read(const Batch<T>& batch, const T* tile, T* values) {
  using Line = typename Weights<T, kWidth>::Twice;
  using Part = typename Line::Part;
  for (std::int64_t point = 0; point < batch.count; ++point) {
    const Weights<T, kWidth> weights(*batch.polynomials, batch.at + 3 * point);
    const T* const corner = tile + 2 * static_cast<std::int64_t>(batch.first[point]);
    Part sums[Line::kParts] = {};
    for (int x = 0; x < kWidth; ++x) {
      const T* at = corner + 2 * x * batch.plane;
      Part plane[Line::kParts] = {};
      for (int y = 0; y < kWidth; ++y, at += 2 * batch.line) {
        const Part weight = Line::All(weights.y[y]);
        for (int i = 0; i < Line::kParts; ++i) {
          plane[i] += weight * Line::Load(at + i * Line::kLanes);
        }
      }
      const Part weight = Line::All(weights.x[x]);
      for (int i = 0; i < Line::kParts; ++i) sums[i] += weight * plane[i];
    }
    T each[Line::kParts * Line::kLanes];
    for (int i = 0; i < Line::kParts; ++i) {
      Line::Store(sums[i] * weights.z.parts[i], each + i * Line::kLanes);
    }
    T real = 0;
    T imaginary = 0;
    for (int z = 0; z < kWidth; ++z) {
      real += each[2 * z];
      imaginary += each[2 * z + 1];
    }
    values[2 * point] = real;
    values[2 * point + 1] = imaginary;
  }
}

// Both with the width as a constant.
template <typename T, int kWidth = kLeastWidth>
void SpreadByWidth(const Batch<T>& batch, const T* values, T* tile) {
  if (batch.polynomials->width == kWidth) {
    Spread<T, kWidth>(batch, values, tile);
  } else if constexpr (kWidth < kMostWidth) {
    SpreadByWidth<T, kWidth + 1>(batch, values, tile);
  }
}
template <typename T, int kWidth = kLeastWidth>
void ReadByWidth(const Batch<T>& batch, const T* tile, T* values) {
  if (batch.polynomials->width == kWidth) {
    Read<T, kWidth>(batch, tile, values);
  } else if constexpr (kWidth < kMostWidth) {
    ReadByWidth<T, kWidth + 1>(batch, tile, values);
  }
}

}  // namespace

extern const PointLanes kPointLanes;
const PointLanes kPointLanes = {PFFTJAX_TARGET_NAME, SpreadByWidth<float>, SpreadByWidth<double>,
                                ReadByWidth<float>, ReadByWidth<double>};

}  // namespace pfftjax::nufft::PFFTJAX_TARGET

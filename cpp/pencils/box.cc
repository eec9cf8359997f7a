#include "pencils/box.h"

#include <cstring>
#include <type_traits>

#include "base/process.h"
#include "base/types.h"

namespace pfftjax {
namespace {

struct Bytes16 {
  std::uint64_t words[2];
};

// Two boxes with the same extents, brought to as few dimensions as describe them.
struct Pair {
  int dims = 0;
  std::array<std::int64_t, kMaxDims> extent{};
  std::array<std::int64_t, kMaxDims> from{};
  std::array<std::int64_t, kMaxDims> to{};
};

Pair Merge(const Box& from, const Box& to) {
  Pair pair;
  for (int d = 0; d < from.dims; ++d) {
    if (from.extent[d] == 1) continue;
    const int last = pair.dims - 1;
    if (last >= 0 && pair.from[last] == from.extent[d] * from.stride[d] &&
        pair.to[last] == from.extent[d] * to.stride[d]) {
      pair.extent[last] *= from.extent[d];
      pair.from[last] = from.stride[d];
      pair.to[last] = to.stride[d];
    } else {
      pair.extent[pair.dims] = from.extent[d];
      pair.from[pair.dims] = from.stride[d];
      pair.to[pair.dims] = to.stride[d];
      ++pair.dims;
    }
  }
  return pair;
}

// body(source offset, target offset) over all dimensions but those that `kept` marks.
template <typename Body>
void ForEachOuter(const Pair& pair, const std::array<bool, kMaxDims>& kept, Body&& body) {
  std::array<std::int64_t, kMaxDims> at{};
  std::int64_t from = 0;
  std::int64_t to = 0;
  while (true) {
    body(from, to);
    int d = pair.dims - 1;
    for (; d >= 0; --d) {
      if (kept[d]) continue;
      from += pair.from[d];
      to += pair.to[d];
      if (++at[d] < pair.extent[d]) break;
      from -= pair.extent[d] * pair.from[d];
      to -= pair.extent[d] * pair.to[d];
      at[d] = 0;
    }
    if (d < 0) return;
  }
}

int UnitStride(const Pair& pair, const std::array<std::int64_t, kMaxDims>& strides) {
  for (int d = pair.dims - 1; d >= 0; --d) {
    if (strides[d] == 1) return d;
  }
  return -1;
}

// rows x columns, contiguous along rows in the source and along columns in the target: in squares
// of a cache line a side, so that both are touched a line at a time.
template <typename T>
void TransposePlane(const T* source, std::int64_t source_stride, T* target,
                    std::int64_t target_stride, std::int64_t along_source,
                    std::int64_t along_target) {
  constexpr std::int64_t side = std::max<std::int64_t>(64 / sizeof(T), 4);
  for (std::int64_t i = 0; i < along_target; i += side) {
    const std::int64_t i_end = std::min(i + side, along_target);
    for (std::int64_t j = 0; j < along_source; j += side) {
      const std::int64_t j_end = std::min(j + side, along_source);
      if (i_end - i == side && j_end - j == side) {
        for (std::int64_t b = 0; b < side; ++b) {
          for (std::int64_t a = 0; a < side; ++a) {
            target[(j + b) * target_stride + i + a] = source[(i + a) * source_stride + j + b];
          }
        }
      } else {
        for (std::int64_t b = j; b < j_end; ++b) {
          for (std::int64_t a = i; a < i_end; ++a) {
            target[b * target_stride + a] = source[a * source_stride + b];
          }
        }
      }
    }
  }
}

template <typename T>
void Copy(const T* source, T* target, const Pair& pair) {
  if (pair.dims == 0) {
    *target = *source;
    return;
  }
  std::array<bool, kMaxDims> kept{};
  const int in = UnitStride(pair, pair.from);
  const int out = UnitStride(pair, pair.to);
  if (in >= 0 && in == out) {
    kept[in] = true;
    const auto bytes = static_cast<std::size_t>(pair.extent[in]) * sizeof(T);
    ForEachOuter(pair, kept, [&](std::int64_t from, std::int64_t to) {
      std::memcpy(target + to, source + from, bytes);
    });
  } else if (in >= 0 && out >= 0) {
    kept[in] = kept[out] = true;
    ForEachOuter(pair, kept, [&](std::int64_t from, std::int64_t to) {
      TransposePlane(source + from, pair.from[out], target + to, pair.to[in], pair.extent[in],
                     pair.extent[out]);
    });
  } else {
    const int d = pair.dims - 1;
    kept[d] = true;
    ForEachOuter(pair, kept, [&](std::int64_t from, std::int64_t to) {
      for (std::int64_t i = 0; i < pair.extent[d]; ++i) {
        target[to + i * pair.to[d]] = source[from + i * pair.from[d]];
      }
    });
  }
}

template <typename T>
void Add(const T* source, T* target, const Pair& pair) {
  std::array<bool, kMaxDims> kept{};
  const int d = pair.dims - 1;
  if (d >= 0) kept[d] = true;
  const std::int64_t count = d >= 0 ? pair.extent[d] : 1;
  const std::int64_t from_step = d >= 0 ? pair.from[d] : 1;
  const std::int64_t to_step = d >= 0 ? pair.to[d] : 1;
  ForEachOuter(pair, kept, [&](std::int64_t from, std::int64_t to) {
    for (std::int64_t i = 0; i < count; ++i) {
      T& sum = target[to + i * to_step];
      const T& term = source[from + i * from_step];
      if constexpr (kIsHalf<T>) {
        sum = T::From(static_cast<float>(sum) + static_cast<float>(term));
      } else {
        sum = static_cast<T>(sum + term);
      }
    }
  });
}

// f(value of the type that holds an element of this size)
template <typename Function>
void WithSize(std::int64_t bytes, Function&& f) {
  switch (bytes) {
    case 1:
      return f(std::uint8_t{});
    case 2:
      return f(std::uint16_t{});
    case 4:
      return f(std::uint32_t{});
    case 8:
      return f(std::uint64_t{});
    default:
      return f(Bytes16{});
  }
}

void Announce(const void* source, const Box& from, void* target, const Box& to,
              std::int64_t element_bytes) {
  process::Copies(static_cast<const char*>(source) + from.offset * element_bytes,
                  static_cast<const char*>(target) + to.offset * element_bytes,
                  from.count() * element_bytes);
}

// Integers of both signs add alike, and without overflow where they have none.
template <typename T, bool = std::is_integral_v<T> && !std::is_same_v<T, bool>>
struct Summed {
  using Type = T;
};
template <typename T>
struct Summed<T, true> {
  using Type = std::make_unsigned_t<T>;
};

}  // namespace

Pieces::Pieces(const Box& box, std::int64_t limit) : box_(box), done_(box.count() == 0) {
  if (done_) return;
  std::int64_t whole = 1;
  cut_ = box.dims - 1;
  while (cut_ > 0 && whole * box.extent[cut_] <= limit) whole *= box.extent[cut_--];
  slices_ = std::max<std::int64_t>(limit / whole, 1);
}

bool Pieces::Next(Box* piece) {
  if (done_) return false;
  *piece = box_;
  for (int d = 0; d <= cut_; ++d) {
    piece->extent[d] = d < cut_ ? 1 : std::min(slices_, box_.extent[d] - at_[d]);
    piece->offset += at_[d] * box_.stride[d];
  }
  int d = cut_;
  for (; d >= 0; --d) {
    at_[d] += d == cut_ ? slices_ : 1;
    if (at_[d] < box_.extent[d]) break;
    at_[d] = 0;
  }
  done_ = d < 0;
  return true;
}

void CopyBox(const void* source, const Box& from, void* target, const Box& to,
             std::int64_t element_bytes) {
  if (from.count() == 0) return;
  const Pair pair = Merge(from, to);
  Announce(source, from, target, to, element_bytes);
  WithSize(element_bytes, [&](auto type) {
    using T = decltype(type);
    Copy(static_cast<const T*>(source) + from.offset, static_cast<T*>(target) + to.offset, pair);
  });
}

void AddBox(const void* source, const Box& from, void* target, const Box& to, Element element) {
  if (from.count() == 0) return;
  const Pair pair = Merge(from, to);
  Announce(source, from, target, to, InfoOf(element).bytes);
  WithType(element, [&](auto type) {
    using T = typename Summed<decltype(type)>::Type;
    Add(static_cast<const T*>(source) + from.offset, static_cast<T*>(target) + to.offset, pair);
  });
}

bool ChangesOrder(const Box& from, const Box& to) {
  const Pair pair = Merge(from, to);
  return pair.dims > 0 && UnitStride(pair, pair.from) != UnitStride(pair, pair.to);
}

Box Contiguous(const Box& like) {
  Box box = like;
  box.offset = 0;
  std::int64_t stride = 1;
  for (int d = like.dims - 1; d >= 0; --d) {
    box.stride[d] = stride;
    stride *= like.extent[d];
  }
  return box;
}

}  // namespace pfftjax

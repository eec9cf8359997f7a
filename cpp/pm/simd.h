// A few numbers that are computed with together, in registers of 16 bytes, which every processor
// has.
#pragma once

#include <algorithm>
#include <cstring>
#include <utility>

namespace pfftjax::pm {

// Lanes are named while compiling: what is indexed when it runs lies in memory.
template <typename T, int kLanes>
class Lanes {
 public:
  static constexpr int kCount = kLanes;

  Lanes() = default;
  // All lanes alike.
  explicit Lanes(T value) : Lanes(Each([&](auto) { return Part{} + value; })) {}
  // Each lane is value(lane), for a constant `lane`.
  template <typename Value>
  static Lanes Of(Value&& value) {
    return Each([&](auto part) { return PartOf<part>(value, std::make_index_sequence<kEach>()); });
  }
  static Lanes From(const T* at) {
    return Each([&](auto part) {
      Part loaded;
      std::memcpy(&loaded, at + part * kEach, sizeof loaded);
      return loaded;
    });
  }
  // Writes the first so many.
  template <int kFirst>
  void To(T* at) const {
    std::memcpy(at, parts_, kFirst * sizeof(T));
  }
  template <int kLane>
  T Get() const {
    return parts_[kLane / kEach][kLane % kEach];
  }
  template <int kFirst>
  T Sum() const {
    return SumOf(std::make_index_sequence<kFirst>());
  }

  friend Lanes operator+(const Lanes& a, const Lanes& b) {
    return Each([&](auto part) { return a.parts_[part] + b.parts_[part]; });
  }
  friend Lanes operator-(const Lanes& a, const Lanes& b) {
    return Each([&](auto part) { return a.parts_[part] - b.parts_[part]; });
  }
  friend Lanes operator*(const Lanes& a, const Lanes& b) {
    return Each([&](auto part) { return a.parts_[part] * b.parts_[part]; });
  }
  friend Lanes operator*(T a, const Lanes& b) {
    return Each([&](auto part) { return a * b.parts_[part]; });
  }
  Lanes operator-() const {
    return Each([&](auto part) { return -parts_[part]; });
  }
  Lanes& operator+=(const Lanes& other) { return *this = *this + other; }

 private:
  static constexpr std::size_t kEach = std::min<std::size_t>(kCount, 16 / sizeof(T));
  static constexpr std::size_t kParts = kCount / kEach;
  typedef T Part __attribute__((vector_size(kEach * sizeof(T))));  // NOLINT: no `using` for it

  template <typename Body>
  static Lanes Each(Body&& body) {
    Lanes lanes;
    if constexpr (kParts == 1) {
      lanes.parts_[0] = body(std::integral_constant<std::size_t, 0>());
    } else {
      static_assert(kParts == 2);
      lanes.parts_[0] = body(std::integral_constant<std::size_t, 0>());
      lanes.parts_[1] = body(std::integral_constant<std::size_t, 1>());
    }
    return lanes;
  }
  template <std::size_t kPart, typename Value, std::size_t... kLane>
  static Part PartOf(Value&& value, std::index_sequence<kLane...>) {
    return Part{value(std::integral_constant<int, kPart * kEach + kLane>())...};
  }
  template <std::size_t... kLane>
  T SumOf(std::index_sequence<kLane...>) const {
    return (Get<kLane>() + ...);
  }

  Part parts_[kParts]{};
};

}  // namespace pfftjax::pm

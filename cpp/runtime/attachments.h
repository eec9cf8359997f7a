// Layers keep these with a communicator: one object of each type, found by its type, so that the
// communicator names no layer above it.
#pragma once

#include <array>
#include <cstddef>
#include <cstdlib>

namespace pfftjax {

class Attachments {
 public:
  Attachments() = default;
  Attachments(const Attachments&) = delete;
  Attachments& operator=(const Attachments&) = delete;
  ~Attachments() {
    for (const Slot& slot : slots_) {
      if (slot.object) slot.destroy(slot.object);
    }
  }

  // Made when it is first asked for. Two threads must not ask at the same time.
  template <typename T>
  T& Get() {
    Slot& slot = slots_[kIndexOf<T>];
    if (!slot.object) slot = {new T, [](void* object) { delete static_cast<T*>(object); }};
    return *static_cast<T*>(slot.object);
  }

 private:
  struct Slot {
    void* object = nullptr;
    void (*destroy)(void* object) = nullptr;
  };
  static constexpr std::size_t kSlots = 6;

  static std::size_t NextIndex() {
    if (types_ == kSlots) std::abort();  // as the library is loaded: a new type needs a slot
    return types_++;
  }
  static inline std::size_t types_ = 0;
  template <typename T>
  static inline const std::size_t kIndexOf = NextIndex();

  std::array<Slot, kSlots> slots_;
};

}  // namespace pfftjax

// Layers keep these with a communicator: one object of each type, found by its type, so that the
// communicator names no layer above it.
#pragma once

#include <array>
#include <cstddef>
#include <cstdlib>
#include <memory>

namespace pfftjax {

class Attachments {
 public:
  Attachments() = default;
  Attachments(const Attachments&) = delete;
  Attachments& operator=(const Attachments&) = delete;

  // Made when it is first asked for. Two threads must not ask at the same time.
  template <typename T>
  T& Get() {
    std::shared_ptr<void>& slot = slots_[kIndexOf<T>];
    if (!slot) slot = std::make_shared<T>();
    return *static_cast<T*>(slot.get());
  }

 private:
  static constexpr std::size_t kSlots = 6;

  static std::size_t NextIndex() {
    if (types_ == kSlots) std::abort();  // as the library is loaded: a new type needs a slot
    return types_++;
  }
  static inline std::size_t types_ = 0;
  template <typename T>
  static inline const std::size_t kIndexOf = NextIndex();

  std::array<std::shared_ptr<void>, kSlots> slots_;
};

}  // namespace pfftjax

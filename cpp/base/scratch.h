// Large memory for the duration of one call, kept for the next: fresh memory costs page faults
// that rival a transform. What is used at the same time has a tag each.
#pragma once

#include <sys/mman.h>

#include <cstddef>
#include <mutex>
#include <new>
#include <utility>

#include "base/pages.h"

namespace pfftjax {

template <typename For>
class ScratchFor {
 public:
  // The one that was kept if it is large enough; a second call at the same time gets its own.
  explicit ScratchFor(std::size_t bytes) {
    if (bytes == 0) return;
    {
      const std::lock_guard lock(mutex_);
      std::swap(memory_, kept_);
    }
    if (memory_.bytes >= bytes) return;
    memory_.Free();
    void* data = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (data == MAP_FAILED) throw std::bad_alloc();
    AdviseHugePages(data, bytes);
    memory_ = {data, bytes};
  }
  ScratchFor(const ScratchFor&) = delete;
  ScratchFor& operator=(const ScratchFor&) = delete;
  ~ScratchFor() {
    const std::lock_guard lock(mutex_);
    if (kept_.bytes < memory_.bytes) std::swap(memory_, kept_);
    memory_.Free();
  }
  void* data() const { return memory_.data; }
  // Leaves the memory to MPI, which may still read or write it.
  void Lose() { memory_ = {nullptr, 0}; }
  // Returns retained memory to the operating system.
  static void Release() {
    const std::lock_guard lock(mutex_);
    kept_.Free();
  }

 private:
  struct Memory {
    void Free() {
      if (data) munmap(data, bytes);
      data = nullptr;
      bytes = 0;
    }
    void* data;
    std::size_t bytes;
  };
  static inline std::mutex mutex_;
  static inline Memory kept_{nullptr, 0};
  Memory memory_{nullptr, 0};
};
using Scratch = ScratchFor<struct ForTransforms>;

}  // namespace pfftjax

// Large memory for the duration of one call, kept for the next: fresh memory costs page faults
// that rival a transform. What is used at the same time has a tag each, or is one of several with
// one tag, of which a process keeps `kMost`.
#pragma once

#include <sys/mman.h>

#include <array>
#include <cstddef>
#include <mutex>
#include <new>
#include <utility>

#include "base/pages.h"
#include "base/process.h"

namespace pfftjax {

template <typename For, std::size_t kMost = 1>
class ScratchFor {
 public:
  // One that was kept if it is large enough; more calls than that at the same time get their own.
  explicit ScratchFor(std::size_t bytes) {
    if (bytes == 0) return;
    {
      const std::lock_guard lock(mutex_);
      for (Memory& kept : Kept()) {
        if (!memory_.data) std::swap(memory_, kept);
      }
    }
    if (memory_.bytes >= bytes) return;
    memory_.Free();
    void* data = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (data == MAP_FAILED) throw std::bad_alloc();
    PrepareToWrite(data, bytes);
    memory_ = {data, bytes};
  }
  ScratchFor(const ScratchFor&) = delete;
  ScratchFor& operator=(const ScratchFor&) = delete;
  ~ScratchFor() {
    const std::lock_guard lock(mutex_);
    for (Memory& kept : Kept()) {
      if (kept.bytes < memory_.bytes) std::swap(memory_, kept);
    }
    memory_.Free();
  }
  void* data() const { return memory_.data; }
  // Leaves the memory to MPI, which may still read or write it.
  void Lose() { memory_ = {nullptr, 0}; }
  // Returns retained memory to the operating system.
  static void Release() {
    const std::lock_guard lock(mutex_);
    for (Memory& kept : Kept()) kept.Free();
  }

 private:
  struct Memory {
    void Free() {
      if (data) munmap(data, bytes);
      data = nullptr;
      bytes = 0;
    }
    void* data = nullptr;
    std::size_t bytes = 0;
  };
  // What a process keeps, which outlives its static objects.
  struct KeptMemory : std::array<Memory, kMost> {
    ~KeptMemory() {
      for (Memory& kept : *this) kept.Free();
    }
  };
  static std::array<Memory, kMost>& Kept() { return process::Lasting<KeptMemory>(); }

  static inline std::mutex mutex_;
  Memory memory_;
};
using Scratch = ScratchFor<struct ForTransforms>;

}  // namespace pfftjax

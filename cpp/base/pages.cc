#include "base/pages.h"

#include <malloc.h>
#include <sys/mman.h>

#include <atomic>
#include <chrono>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <mutex>
#include <optional>

#include "base/alignment.h"
#include "base/cores.h"
#include "base/memory_in_use.h"

namespace pfftjax {
namespace {

// What glibc's malloc does with freed memory, by how much memory is in use.
class Keeper {
 public:
  void Start(int bytes, double most_in_use, bool has_one_heap) {
    const std::lock_guard lock(mutex_);
    if (!memory_) memory_.emplace();
    bytes_ = bytes;
    next_ = {};
    most_in_use_ = most_in_use;
    // By itself glibc raises this limit, but not once another one has been set.
    mallopt(M_MMAP_THRESHOLD, 32 << 20);
    // Heaps of other threads than the first, where XLA's arrays may lie, have 64 MiB and go back
    // when they are empty. Many threads that share one would wait for each other.
    constexpr int few = 8;
    const cpu_set_t cores = AllowedCores();
    if (has_one_heap && CPU_COUNT(&cores) <= few) mallopt(M_ARENA_MAX, 1);
    keeps_all_ = memory_->Share() < most_in_use_;
    Set();
    is_on_.store(true, std::memory_order_release);
  }

  // A look at the files of the kernel takes 0.1 ms; it comes 20 ms after the last one or later.
  // What is free is given back, also between arrays in use, when memory becomes scarce; then every
  // two seconds, and every fifth of one where little is left.
  void Look() {
    if (!is_on_.load(std::memory_order_acquire)) return;
    const std::unique_lock lock(mutex_, std::try_to_lock);
    if (!lock || Clock::now() < next_) return;
    const double again = 0.8 * most_in_use_;
    const double share = memory_->Share(again);
    const bool kept_all = keeps_all_;
    keeps_all_ = share < (kept_all ? most_in_use_ : again);
    if (keeps_all_ != kept_all) Set();
    auto pause = std::chrono::milliseconds(20);
    if (!keeps_all_) {
      malloc_trim(static_cast<std::size_t>(bytes_));
      constexpr double little_left = 0.8;
      pause = std::chrono::milliseconds(share < little_left ? 2000 : 200);
    }
    next_ = Clock::now() + pause;
  }

 private:
  using Clock = std::chrono::steady_clock;

  void Set() const {
    constexpr int maps_by_default = 65536;
    mallopt(M_MMAP_MAX, keeps_all_ ? 0 : maps_by_default);
    mallopt(M_TRIM_THRESHOLD, keeps_all_ ? -1 : bytes_);  // -1: none
  }

  std::atomic<bool> is_on_{false};
  std::mutex mutex_;
  std::optional<MemoryInUse> memory_;
  int bytes_ = 0;
  double most_in_use_ = 0;
  bool keeps_all_ = false;
  Clock::time_point next_;
};

Keeper& TheKeeper() {
  static Keeper* const keeper = new Keeper;  // handlers may run while the process ends
  return *keeper;
}

}  // namespace

void PrepareToWrite(void* data, std::size_t bytes) {
  constexpr std::uintptr_t page = std::uintptr_t{2} << 20;
  const auto begin = RoundUp(reinterpret_cast<std::uintptr_t>(data), page);
  const auto end = (reinterpret_cast<std::uintptr_t>(data) + bytes) / page * page;
  // A kernel without huge pages refuses; nothing is lost then.
  if (end > begin) madvise(reinterpret_cast<void*>(begin), end - begin, MADV_HUGEPAGE);
  if (bytes >= page) LookAtMemory();
}

void LookAtMemory() { TheKeeper().Look(); }

void KeepFreedMemory(int bytes, double most_in_use) {
  const char* tunables = std::getenv("GLIBC_TUNABLES");
  const auto is_set = [&](const char* variable, const char* tunable) {
    return std::getenv(variable) || (tunables && std::strstr(tunables, tunable));
  };
  if (is_set("MALLOC_TRIM_THRESHOLD_", "glibc.malloc.trim_threshold") ||
      is_set("MALLOC_MMAP_THRESHOLD_", "glibc.malloc.mmap_threshold") ||
      is_set("MALLOC_MMAP_MAX_", "glibc.malloc.mmap_max")) {
    return;
  }
  TheKeeper().Start(bytes, most_in_use, !is_set("MALLOC_ARENA_MAX", "glibc.malloc.arena_max"));
}

}  // namespace pfftjax

// The core asks these of the process that it runs in: the objects that a process has one of, time,
// threads and locks, and notice of what touches memory that other ranks touch.
//
// Each name stands for what the standard library has. The simulated MPI of tests/cpp/simulated/
// runs many ranks as fibres of one process, and there the same names mean fibres, a virtual clock
// and objects that each rank has one of.
#pragma once

#ifdef PFFTJAX_SIMULATED
#include "simulated/process.h"
#else

#if defined(__x86_64__)
#include <immintrin.h>
#endif
#include <sched.h>

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <mutex>
#include <random>
#include <string>
#include <thread>

namespace pfftjax::process {

using Clock = std::chrono::steady_clock;
using Mutex = std::mutex;
using Condition = std::condition_variable;
using Thread = std::thread;
template <typename T>
using Atomic = std::atomic<T>;

// An object of static storage duration, value-initialized.
template <typename T>
class Own {
 public:
  constexpr Own() = default;
  T& operator*() { return object_; }
  T* operator->() { return &object_; }

 private:
  T object_{};
};

// The object of this type that is made when it is first asked for, and never destroyed: a thread
// may use it for longer than static objects live.
template <typename T>
T& Lasting() {
  static auto* object = new T;
  return *object;
}

// A size that decides between two ways; a simulation makes it small, so that little data take
// both.
constexpr std::int64_t Size(std::int64_t bytes) { return bytes; }

inline void Yield() { sched_yield(); }
// In a loop that waits for another core. Arm's `yield` is no more than a nop on most cores; `isb`
// waits for the pipeline to empty, some tens of cycles, about as long as `pause` on x86.
inline void Pause() {
#if defined(__x86_64__)
  _mm_pause();
#elif defined(__aarch64__)
  asm volatile("isb" ::: "memory");
#endif
}
template <typename Duration>
void SleepFor(Duration time) {
  std::this_thread::sleep_for(time);
}

// A number that differs between processes.
inline unsigned Entropy() { return std::random_device{}(); }

inline void WriteError(const std::string& text) {
  std::fwrite(text.data(), 1, text.size(), stderr);
  std::fflush(stderr);
}

// Plain writes and reads, about to be made, of memory that ranks share.
inline void Writes(const void*, std::size_t) {}
inline void Reads(const void*, std::size_t) {}
// A large copy, about to be made: a simulation knows how long it takes.
inline void Copies(const void*, const void*, std::int64_t) {}

}  // namespace pfftjax::process

#endif

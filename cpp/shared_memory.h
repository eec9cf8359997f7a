// Memory that all ranks of a communicator map, where they run on one node.
#pragma once

#if defined(__x86_64__)
#include <immintrin.h>
#endif
#include <sched.h>

#include <chrono>
#include <cstddef>
#include <memory>
#include <thread>

#include "communicator.h"

namespace pfftjax {

inline constexpr std::size_t kCacheLine = 64;

class SharedMemory {
 public:
  // Zeros. Null where the ranks cannot share memory (more than one node, or they may not open each
  // other's files), on all ranks alike. Collective.
  static std::unique_ptr<SharedMemory> Make(const Communicator& comm, std::size_t bytes);
  ~SharedMemory();
  SharedMemory(const SharedMemory&) = delete;
  SharedMemory& operator=(const SharedMemory&) = delete;

  // On a cache line of its own, at a different address on each rank.
  char* data() const { return base_ + kCacheLine; }

  // Until `condition()`, which another rank's writing makes true; an MPI code. Waiting ranks let
  // MPI make progress, as its own calls would.
  template <typename Condition>
  int WaitFor(const Communicator& comm, Condition&& condition) const {
    constexpr int kSpins = 4000;
    constexpr int kYields = 1000;
    constexpr int kYieldsToProgress = 64;
    for (int i = 0; i < (is_crowded_ ? 1 : kSpins); ++i) {
      if (condition()) return 0;
      Pause();
    }
    for (int i = 0; !condition(); ++i) {
      // Somebody may wait for a message of ours that MPI has not finished.
      if (i % kYieldsToProgress == kYieldsToProgress - 1) {
        if (const int code = Mpi()->progress(comm.control)) return code;
      }
      if (i < kYields) {
        sched_yield();
      } else {
        std::this_thread::sleep_for(std::chrono::microseconds(20));
      }
    }
    return 0;
  }

 private:
  SharedMemory(char* base, std::size_t bytes, bool is_crowded)
      : base_(base), bytes_(bytes), is_crowded_(is_crowded) {}

  static void Pause() {
#if defined(__x86_64__)
    _mm_pause();
#endif
  }

  char* base_;
  std::size_t bytes_;
  bool is_crowded_;  // more ranks than cores: do not spin
};

}  // namespace pfftjax

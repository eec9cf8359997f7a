// Memory that the ranks of a communicator map that run on one node.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "base/alignment.h"
#include "runtime/communicator.h"

namespace pfftjax {

// For each rank of `comm` the first one on its node, itself included: of one kernel, and of one
// name space of processes, and in tests of one `GetOptions().node`. Alike on all ranks.
// Collective.
std::vector<int> FirstRanksOnNodes(const Communicator& comm);

// What a rank does between two looks at what another one is to write: yields, and sleeps in the
// end; and lets MPI make progress, as MPI's own calls would, since somebody may wait for a message
// of this rank's that MPI has not finished.
class Waiting {
 public:
  // An MPI code.
  int Step(const Communicator& comm) {
    constexpr int kYields = 1000;
    constexpr int kYieldsToProgress = 64;
    if (++steps_ % kYieldsToProgress == 0) {
      if (const int code = Mpi()->progress(comm.control)) return code;
    }
    if (steps_ <= kYields) {
      process::Yield();
    } else {
      process::SleepFor(std::chrono::microseconds(20));
    }
    return 0;
  }
  void Restart() { steps_ = 0; }

 private:
  std::int64_t steps_ = 0;
};

class SharedMemory {
 public:
  // Zeros. Null where the ranks cannot share memory (more than one node, or they may not open each
  // other's files, or the system has not so much), on all ranks alike. Of `bytes` the last ones
  // are parts of `bytes_a_rank`, each of which lies near its rank. Collective.
  static std::unique_ptr<SharedMemory> Make(const Communicator& comm, std::size_t bytes,
                                            std::size_t bytes_a_rank = 0);
  // The same for the ranks of each node by themselves, which say the same number of bytes; null on
  // all ranks where one cannot, and where there are no bytes. `nodes` is of FirstRanksOnNodes.
  // Collective.
  static std::unique_ptr<SharedMemory> Make(const Communicator& comm,
                                            const std::vector<int>& nodes, std::size_t bytes,
                                            std::size_t bytes_a_rank = 0);
  ~SharedMemory();
  SharedMemory(const SharedMemory&) = delete;
  SharedMemory& operator=(const SharedMemory&) = delete;

  // On a cache line of its own, at a different address on each rank: the first page begins so many
  // bytes before it.
  static constexpr std::size_t kBefore = kCacheLine;
  char* data() const { return base_ + kBefore; }

  // Until `condition()`, which another rank's writing makes true; an MPI code.
  template <typename Condition>
  int WaitFor(const Communicator& comm, Condition&& condition) const {
    constexpr int kSpins = 4000;
    for (int i = 0; i < (is_crowded_ ? 1 : kSpins); ++i) {
      if (condition()) return 0;
      process::Pause();
    }
    for (Waiting waiting; !condition();) {
      if (const int code = waiting.Step(comm)) return code;
    }
    return 0;
  }

 private:
  SharedMemory(char* base, std::size_t bytes, bool is_crowded)
      : base_(base), bytes_(bytes), is_crowded_(is_crowded) {}

  char* base_;
  std::size_t bytes_;
  bool is_crowded_;  // more ranks than cores: do not spin
};

}  // namespace pfftjax

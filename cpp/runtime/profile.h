// How long operations take, for PFFTJAX_PROFILE=1 and for tools that trace GPUs.
#pragma once

#include <cstdint>

#include "base/options.h"
#include "runtime/operation.h"

namespace pfftjax {

// The time now, by the clock of the process.
std::int64_t Nanoseconds();

// Ranges of time in a tool that traces this process. gpu/device.cc puts those of the GPU's here.
struct TraceRanges {
  void (*push)(const char* name) = nullptr;
  void (*pop)() = nullptr;
};
inline TraceRanges trace_ranges;

// One call of an operation, from construction to destruction. Unless somebody observes, it costs
// a branch at each end.
class Timed {
 public:
  explicit Timed(Operation operation, std::int64_t bytes = 0)
      : operation_(operation), bytes_(bytes) {
    if (GetOptions().is_observed) Begin();
  }
  Timed(const Timed&) = delete;
  Timed& operator=(const Timed&) = delete;
  ~Timed() {
    if (is_running_) End();
  }

  void SetBytes(std::int64_t bytes) { bytes_ = bytes; }
  // All of the time until now was spent waiting for other ranks.
  void HasWaited();
  // The call only hands work to a GPU: its time says nothing of the work.
  void RunsAhead() { runs_ahead_ = true; }

 private:
  void Begin();
  void End() const;

  Operation operation_;
  bool is_running_ = false;
  bool runs_ahead_ = false;
  std::int64_t bytes_;
  std::int64_t began_ns_ = 0;
  std::int64_t waited_ns_ = 0;
};

// Whether a profile lets the ranks of a collective meet before it starts, and so tells the time in
// which they wait for each other from the time that the collective takes.
constexpr bool MeetsForProfile(Operation operation) {
  // An exchange in two halves is there to go on beside other work.
  const bool is_half = operation == Operation::kStart || operation == Operation::kTransposeStart ||
                       IsSecondHalf(operation);
  return !is_half && !IsMessage(operation) && !IsLocal(operation);
}

// From now on the calls are timed, and those of collectives meet first.
void StartProfile();

// Writes the table of all ranks on rank 0 of MPI_COMM_WORLD; only once. Collective over
// MPI_COMM_WORLD, whose ranks make no other calls. Where MPI_COMM_WORLD has no duplicate, because
// not every rank need be there, each rank writes a table of its own.
void ReportProfile();

}  // namespace pfftjax

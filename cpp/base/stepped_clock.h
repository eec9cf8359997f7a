// Time for what is waited for: a process that was stopped has not waited.
#pragma once

#include <algorithm>
#include <chrono>

#include "base/process.h"

namespace pfftjax {

// Seconds as one thread sees them go by that looks again and again. From one look to the next no
// more than `longest` counts: where more has passed, the process was stopped (by a signal, with
// the machine, by a batch system that gives the cores to another job for a while), or the thread
// had no core to run on, and the other ranks may have been in the same state.
class SteppedClock {
 public:
  explicit SteppedClock(double longest) : longest_(longest) {}

  // Seconds since the first look, which is 0.
  double Look() {
    const Clock::time_point now = Clock::now();
    if (has_looked_) {
      seconds_ += std::min(std::chrono::duration<double>(now - last_).count(), longest_);
    }
    has_looked_ = true;
    last_ = now;
    return seconds_;
  }

 private:
  using Clock = process::Clock;
  const double longest_;
  double seconds_ = 0.0;
  bool has_looked_ = false;
  Clock::time_point last_{};
};

}  // namespace pfftjax

// Tells the watch's thread where a GPU is, and since when, in what its host has enqueued together
// with other ranks and does not wait for.
//
// Two events stand around each exchange. Only the first that is not over can hold the others up;
// what the GPU computes before it is not its time, as that is counted from the first event on.
#pragma once

#include <deque>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "base/stepped_clock.h"
#include "gpu/queue.h"

namespace pfftjax::gpu {

class InFlight {
 public:
  // Looks after the device that is current.
  InFlight();

  // The thread of a call calls these in front of what it enqueues and behind it.
  void Begin(const Progress& call, StreamHandle stream);
  void End(StreamHandle stream);

  // Makes the device current for the calling thread, and tells how long the GPU has been seen in
  // the exchange that it is in, and what that is ("alltoall float32[12], collective 7").
  struct Unfinished {
    double seconds;
    std::string what;
  };
  std::optional<Unfinished> Look();

 private:
  struct Events {
    Event before;
    Event after;
  };
  struct Exchange {
    Events events;
    Operation operation;
    Element element;
    std::int64_t count;
    std::int64_t number;  // of the call
    bool is_enqueued = false;
    std::optional<double> since{};
  };
  void ForgetFinished();

  int device_ = 0;
  std::mutex mutex_;
  SteppedClock clock_{0.5};
  std::deque<Exchange> exchanges_;  // as they were enqueued
  std::vector<Events> spare_;
};

}  // namespace pfftjax::gpu

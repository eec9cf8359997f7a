// The part of the watch that looks after communicators whose private duplicates are being made:
// the first collective on one waits until all of its ranks have come to it.
//
// Nothing can be asked over a communicator that is still to be made, so that these questions go
// over the control communicator of MPI_COMM_WORLD, from rank to rank of that, and have negative
// numbers: one for each communicator of the rank that asks.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <random>

#include "runtime/inquiry.h"

namespace pfftjax {

class Gatherings {
 public:
  using Send = std::function<void(const Communicator& world, int rank, const State& question)>;
  explicit Gatherings(Send send_question) : send_question_(std::move(send_question)) {}

  static bool AreMeantBy(std::int64_t question) { return question < 0; }
  // Returns what this rank answers to a question that it was asked.
  static State Answer(const State& asked);

  // Called at each tick for each communicator; `passed` seconds after the last time.
  void Look(const Communicator& comm, double passed);
  // Says whether this rank waits for a rank of MPI_COMM_WORLD to come to that communicator, as far
  // as it has heard.
  bool IsWaitingFor(const Communicator& comm, int world_rank) const;
  // Judges an answer of rank `world_rank` of MPI_COMM_WORLD.
  void Hear(int world_rank, const State& answer);

 private:
  // Whether a rank's last answer was that it waits for the same ranks on a communicator; how often
  // it has said so since the last of those that do has come; how often both had looked then.
  struct Together {
    bool is_there = false;
    int times = 0;
    std::int64_t looks = 0;
    std::int64_t looks_there = 0;
  };
  struct Gathering {
    double waited = 0.0;
    std::int64_t looks = 0;
    Inquiry inquiry;
    std::map<int, std::int64_t> suspected_at;  // how often this rank had looked
    std::map<int, Together> together;

    void ForgetTimes() {
      for (auto& [rank, entry] : together) entry.times = 0;
    }
  };

  void Ask(const Communicator& comm, Gathering& gathering);
  // All ranks of `comm` wait to be all, and go on looking: each of them has come, but to another
  // communicator of the same ranks.
  static void AbortIfAllAreThere(const Communicator& comm, const Gathering& gathering);
  [[noreturn]] static void Report(const Communicator& comm, const Gathering& gathering);

  Send send_question_;
  std::map<std::int64_t, Gathering> gatherings_;
  std::minstd_rand random_{process::Entropy()};
};

}  // namespace pfftjax

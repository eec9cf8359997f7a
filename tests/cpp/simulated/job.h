// One simulated job: its ranks, what has been drawn for it, and how it ended.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "mpi/mpi_api.h"
#include "simulated/clock.h"
#include "simulated/scheduler.h"

namespace pfftjax::simulated {

class Comm;

// How MPI behaves in this job.
struct Network {
  Time latency = kMicrosecond;   // the least, within a node
  Time between_nodes = 0;        // more than that
  double jitter = 0.1;           // how often a message takes far longer
  Time shortest = kMicrosecond;  // and how long at least
  Time longest = kMillisecond;   // and at most
  double bytes_a_second = 1e9;
  std::int64_t eager_bytes = 4096;  // longer messages wait for their receiver
  double waits_anyway = 0.0;        // how many of the short ones do so, too
  double keeps_back = 0.0;          // how many things go on only in the next call of MPI's
  double synchronizes = 0.5;        // how many collectives end only when all ranks have come
  double relays = 0.0;  // how many results come by way of another rank, if stopped later
  int late_rank = -1;   // the duplicates of communicators come so much later to this rank
  Time lateness = 0;
  double fails = 0.0;  // how many calls return an error
};

struct Job {
  Job(std::uint64_t seed, int ranks);
  ~Job();
  Job(const Job&) = delete;
  Job& operator=(const Job&) = delete;

  // Runs `body` on every rank until the job has ended.
  void Run(const std::function<void(int rank)>& body);
  // A rank's process ends here and now, all of its threads.
  [[noreturn]] void Die();
  // Whether the kernel refuses something that it may refuse.
  bool Refuses() { return refuses > 0 && scheduler.random.Chance(refuses); }

  Scheduler scheduler;
  const int ranks;
  std::vector<std::unique_ptr<Process>> processes;
  Network network;
  std::unique_ptr<Clock> clock;  // null: time is drawn
  int cores = 1;
  double refuses = 0;
  std::vector<std::unique_ptr<Comm>> comms;  // the first one is the world
  std::int64_t injected = 0;                 // errors that MPI's calls have returned

  std::string errors;  // written to standard error
  bool is_aborted = false;
  Time aborted_at = 0;
};

Job& TheJob();

// The table of the simulated MPI.
const MpiApi* SimulatedMpi();

}  // namespace pfftjax::simulated

// The clock of a cluster whose latencies and rates are known: no turn is lost by chance, and what
// a job does takes as long as the machine's numbers say.
//
// It is LogGP (Alexandrov et al. 1995) with links that are shared. A message takes a core
// `overhead` (o) on both sides; between nodes it waits for its node's link, which is busy for each
// message for its bytes over `rate` (G), and for `gap` (g) at least, travels for `latency` (L),
// and waits for the link of the node that it goes to, which is busy for as long. Bytes that a core
// copies, packs or reads from shared memory take its time, and, as far as they are not in its
// cache, share the node's memory with the other cores.
#pragma once

#include <cstdint>
#include <deque>
#include <memory>
#include <string>
#include <unordered_map>
#include <vector>

#include "scheduler.h"

namespace pfftjax::simulated {

// Times in nanoseconds, sizes in bytes, rates in bytes a nanosecond. tools/simulated_clock.py has
// the machines, and where their numbers come from.
struct Machine {
  double latency = 0;  // between nodes
  double overhead = 0;
  double gap = 0;
  double rate = 1;             // of a node's link, each way
  double latency_in_node = 0;  // the same of messages that MPI passes through shared memory
  double overhead_in_node = 0;
  double flag = 0;         // a core reads an atomic that another one has changed since
  double core_rate = 1;    // one core reads or writes so much
  double memory_rate = 1;  // and all cores of a node, where it is not in their caches
  double cache = 0;        // a rank's share
  double eager = 0;        // longer messages wait for their receiver
  double copies = 0;       // 1: cores copy what goes between nodes, as for TCP
  double congestion = 1;   // 0: links that serve everybody at once, which no machine has

  // False where there is no such number.
  bool Set(const std::string& name, double value);
};

// The messages that have gone between nodes so far, without requests and answers of MPI's own.
struct Traffic {
  std::int64_t messages = 0;
  std::int64_t bytes = 0;
};

class Clock {
 public:
  Clock(const Machine& machine, int ranks, int ranks_a_node);
  ~Clock();
  Clock(const Clock&) = delete;
  Clock& operator=(const Clock&) = delete;

  const Machine machine;
  Traffic traffic;

  int NodeOf(const Process& process) const { return process.rank / ranks_a_node_; }
  double Overhead(bool in_node) const {
    return in_node ? machine.overhead_in_node : machine.overhead;
  }

  // The running rank is busy for so long.
  void Spend(double time);
  void Copy(const void* from, const void* to, std::int64_t bytes);
  // The running rank is about to write shared memory, or to read what another rank has written
  // there; by itself, or by MPI if it now hands the same memory to it. So this costs something
  // only when the rank does something else.
  void Announce(const void* at, std::int64_t bytes, bool is_read);
  // The rank hands this memory to MPI; null: does something else.
  void HandToMpi(const void* at);
  // An atomic that ranks share is changed, or read, by the running rank.
  void ChangeAtomic(const void* at);
  void ReadAtomic(const void* at);

  // What a core is to do for MPI. Null addresses are of memory of MPI's own.
  struct Work {
    double cached = 0;
    double uncached = 0;

    void Add(const Work& other) {
      cached += other.cached;
      uncached += other.uncached;
    }
  };
  Work Touching(const Process& process, const void* at, std::int64_t bytes);
  // `then` happens when the core of `process` has done it, after all that it had to do before.
  void Do(const Process& process, const Work& work, Event& then);
  // The running rank does it.
  void Do(const Work& work);

  // Data of a message, or a request, leave a node: `then` happens when the first byte comes to the
  // link of another.
  void Leave(const Process& from, std::int64_t bytes, bool is_request, Event& then);
  // `then` happens when all of it has gone through the link.
  void Enter(const Process& to, std::int64_t bytes, Event& then);

  // Returns on all ranks at the time at which the last one has come, and costs nothing.
  void Meet();
  // When they have last met, and what had gone between nodes by then.
  struct Meeting {
    Time time = 0;
    Traffic traffic;
  };
  const Meeting& met() const { return met_; }

 private:
  struct Link {
    double free_at = 0;
  };
  class Memory;
  class Core;
  // Its memory as a rank knows it: what it has brought into its cache last.
  struct Cache {
    std::unordered_map<const void*, double> brought;        // by address: after so many bytes
    double bytes = 0;                                       // that were brought in all
    std::unordered_map<const void*, std::int64_t> atomics;  // as they were last read
    const void* announced = nullptr;
    std::int64_t announced_bytes = 0;
    bool is_read = false;
  };

  struct Passage {
    double begin;
    double end;
  };
  Passage Pass(Link& link, std::int64_t bytes);
  Cache& Mine();
  void Bring(Cache& cache, const void* at, std::int64_t bytes);

  int ranks_a_node_;
  std::vector<Link> out_;
  std::vector<Link> in_;
  std::vector<std::unique_ptr<Memory>> memories_;
  std::vector<std::unique_ptr<Core>> cores_;
  std::vector<Cache> caches_;
  std::unordered_map<const void*, std::int64_t> atomics_;  // how often they have changed
  std::vector<Task*> meeting_;
  Meeting met_;
  std::size_t ranks_;
};

}  // namespace pfftjax::simulated

// The scheduler runs the fibres of all ranks, one at a time, in the order of a virtual clock, all
// of it drawn from one seed.
//
// Each fibre has a time at which it goes on. At a Point it may lose its turn for a while, mostly a
// short one; so fibres pass each other in any order. When nobody can run now, the clock jumps.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <queue>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "fibre.h"

namespace pfftjax::simulated {

using Time = std::int64_t;  // nanoseconds
inline constexpr Time kMicrosecond = 1000;
inline constexpr Time kMillisecond = 1000 * kMicrosecond;
inline constexpr Time kSecond = 1000 * kMillisecond;

class Random {
 public:
  explicit Random(std::uint64_t seed) : state_(seed) {}
  std::uint64_t Next();
  // Draws one of 0 ... n - 1.
  std::int64_t Below(std::int64_t n) {
    return static_cast<std::int64_t>(Next() % static_cast<std::uint64_t>(n));
  }
  std::int64_t Between(std::int64_t least, std::int64_t most) {
    return least + Below(most - least + 1);
  }
  double Unit() { return static_cast<double>(Next() >> 11) * 0x1p-53; }
  bool Chance(double probability) { return Unit() < probability; }
  // Each order of magnitude alike.
  Time Spread(Time least, Time most);
  template <typename T, std::size_t n>
  const T& OneOf(const T (&values)[n]) {
    return values[Below(n)];
  }

 private:
  std::uint64_t state_;
};

struct Event;
struct Task;

// Each rank has a process of its own, with its static objects.
struct Process {
  int rank = 0;
  int node = 0;
  double slowness = 1.0;
  Time stopped_until = 0;  // by a signal, with all of its threads
  bool is_dead = false;
  // The following belong to MPI.
  int waits_in_mpi = 0;          // threads in a call of MPI's that waits
  std::vector<Event*> to_leave;  // what goes on when this rank next calls MPI
  void (*at_finalize)() = nullptr;
  const Task* finalizing = nullptr;  // the thread that is in MPI_Finalize
  bool is_finalized = false;
  int open_requests = 0;
  // Holds what this rank knows of the others' releases (memory.h).
  std::vector<std::uint32_t> knows;

  struct Object {
    void* data = nullptr;
    void (*destroy)(void*) = nullptr;
  };
  std::vector<Object> objects;  // by the number of their Own

  // A signal that stops a process which is stopped does not let it go on sooner: what was to come
  // when it goes on is under way for that time.
  void StopUntil(Time time) { stopped_until = std::max(stopped_until, time); }
};

struct Task {
  Process* process = nullptr;
  int number = 0;
  std::unique_ptr<Fibre> fibre;
  bool is_done = false;
  bool is_detached_from_job = false;
  const char* where = "";          // what it waits in
  std::uint64_t generation = 0;    // older entries of the queue are void
  std::int64_t points_left = 1;    // until it loses its turn
  std::int64_t naps = 0;           // pauses in a row
  const void* looks_at = nullptr;  // what it has looked at last, and may look at again and again
  std::vector<Task*> joining;      // wait for its end
  // By the number of each thread, how many of its stores this one must know (memory.h).
  std::vector<std::uint32_t> knows;
};

// Something that happens at a time, to no fibre. Owned by whoever schedules it.
struct Event {
  virtual ~Event() = default;
  virtual void Happen() = 0;
};

// How a job is to be scheduled.
struct Pace {
  std::int64_t points_a_turn = 4;  // at most, drawn anew for each
  double pauses = 0.02;            // how often a turn is lost for long
  double stops = 0;                // how often a whole process is stopped
  Time longest_stop = kSecond;
  Time limit = 1000 * kSecond;  // of virtual time, then it counts as a hang
  bool wakes_without_reason = false;
  double older_values = 0;  // how often a load of an atomic may find one
  // Nobody loses a turn, and what happens at one time happens in the order in which it was begun.
  bool is_exact = false;
};

class Scheduler {
 public:
  explicit Scheduler(std::uint64_t seed) : random(seed) {}
  Scheduler(const Scheduler&) = delete;
  Scheduler& operator=(const Scheduler&) = delete;

  Task* Start(Process& process, std::function<void()> body);
  // Until all fibres are done or the job is over.
  void Run();
  void Schedule(Event& event, Time time);

  // Lets the running fibre wait until Wake, or until a time. `where` is for the report of a hang.
  void Block(const char* where, Time until = -1);
  void Wake(Task& task);
  void Sleep(Time time);
  // A short pause of somebody who looks again and again: the longer, the more there were.
  void Nap(Time time);
  // For those that nap and look at this again and again: it has changed.
  void WakeThoseThatLookAt(const void* at);
  void Point();
  // The fibre is done.
  [[noreturn]] void End();

  // Ends the job: it failed, in the sense of the simulation.
  [[noreturn]] void Fail(const std::string& why);
  // Ends the job: somebody has called MPI_Abort, or what was wanted has been seen.
  [[noreturn]] void Stop();

  Task* current() const { return current_; }
  // For a moment in which nobody's turn can be lost; the one before.
  Task* SetCurrent(Task* task) { return std::exchange(current_, task); }
  Time now() const { return now_; }
  void Note(std::uint64_t what);  // adds to the trace
  std::uint64_t trace() const { return trace_; }
  std::int64_t steps() const { return steps_; }

  Random random;
  Pace pace;
  // Says what a process does, for the report of a hang.
  std::function<std::string(Process&)> describe;
  std::string failure;
  bool is_over = false;

 private:
  struct Entry {
    Time time;
    std::uint64_t order;  // drawn, among those of one time
    Task* task;
    std::uint64_t generation;
    Event* event;
    bool operator<(const Entry& other) const {  // the queue has the greatest first
      return time != other.time ? time > other.time : order > other.order;
    }
  };
  struct Ended {};

  void Push(Task& task, Time time);
  // A place among what happens at one time.
  std::uint64_t Order() { return pace.is_exact ? ++begun_ : random.Next(); }
  void NapUntilChange(Time time);
  void LoseTurn(Time time, const char* where);
  std::string Waiting() const;

  std::vector<std::unique_ptr<Task>> tasks_;
  std::priority_queue<Entry> queue_;
  Task* current_ = nullptr;
  Time now_ = 0;
  std::unordered_map<const void*, std::vector<Task*>> looking_;
  std::uint64_t begun_ = 0;
  std::uint64_t trace_ = 0;
  std::int64_t steps_ = 0;
};

// That of the job that runs, or null. Outside of its fibres `process` says whose objects are
// meant.
extern Scheduler* scheduler;
extern Process* process_outside;

inline Process& CurrentProcess() {
  return scheduler && scheduler->current() ? *scheduler->current()->process : *process_outside;
}

// A place at which another fibre may run. Nothing outside of fibres.
inline void Point() {
  if (scheduler && scheduler->current()) scheduler->Point();
}

}  // namespace pfftjax::simulated

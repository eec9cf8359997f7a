#include "runtime/departure.h"

#include <chrono>
#include <mutex>
#include <string>
#include <vector>

#include "base/stepped_clock.h"
#include "runtime/abort.h"
#include "runtime/background.h"
#include "runtime/communicator.h"
#include "runtime/profile.h"
#include "runtime/state.h"
#include "runtime/watch.h"

namespace pfftjax {
namespace {

// Seconds, for calls that the watch cannot judge.
constexpr double kLongestWait = 5.0;
// The most that counts from one look at such a call to the next: Python looks every 0.05 s.
constexpr double kLongestStep = 0.25;
constexpr auto kPause = std::chrono::milliseconds(1);

struct Departure {
  bool started = false;
  bool joined = false;
  bool completed = false;
  bool has_lost_rank = false;
  SteppedClock clock{kLongestStep};  // since it was started
  std::vector<MpiHandle> barriers;   // one for each private communicator of more than one rank
};

// A call under way that holds up the first departure.
struct Held {
  SteppedClock clock{kLongestStep};
  std::int64_t comm = -1;
  std::int64_t entered = -1;
  double since = 0.0;
};

process::Own<process::Mutex> mutex;
process::Own<Departure> of_the_program;
process::Own<Departure> for_good;
process::Own<Held> held;
process::Own<process::Atomic<bool>> finalized;
process::Own<process::Atomic<int>> guests;  // threads in LetMpiGoOn

// A communicator on which a call of another thread is under way, or null.
const Communicator* UnderWay() {
  for (std::int64_t i = 0; i < CommunicatorCount(); ++i) {
    const Communicator* comm = FindCommunicator(i);
    if (comm && comm->busy) return comm;
  }
  return nullptr;
}

void AbortUnder(const Communicator& comm) {
  AbortJob(comm.Where() + " ends while one of its threads waits in " +
           NameOf(comm.progress.operation.load()) + " (communicator " +
           std::to_string(comm.number) +
           "): join threads that communicate before the program ends");
}

void Join(Departure& departure) {
  for (std::int64_t i = 0; i < CommunicatorCount(); ++i) {
    const Communicator* comm = FindCommunicator(i);
    if (!comm->is_private || comm->size == 1) continue;
    MpiHandle request = 0;
    if (Mpi()->barrier_start(comm->control, &request) == 0) departure.barriers.push_back(request);
  }
}

void Start(Departure& departure) {
  const std::lock_guard lock(*mutex);
  if (departure.started) return;
  departure.started = true;
  departure.clock.Look();
  ++*announced_departures;
}

bool Poll(Departure& departure) {
  const std::lock_guard lock(*mutex);
  const double waited = departure.clock.Look();
  if (!departure.joined) {
    // MPI must not be finalized under a call. One that can never end is for the watch to find,
    // while this rank and the others still answer.
    if (const Communicator* comm = UnderWay()) {
      if (!comm->is_private && waited > kLongestWait) AbortUnder(*comm);
      return false;
    }
    Join(departure);
    departure.joined = true;
  }
  while (!departure.barriers.empty()) {
    int done = 0;
    // A barrier that fails has lost a rank: there is nothing to wait for.
    const int code = Mpi()->test(&departure.barriers.back(), &done, nullptr);
    if (code == 0 && !done) return false;
    departure.has_lost_rank |= code != 0;
    departure.barriers.pop_back();
  }
  if (!departure.completed) ++*completed_departures;
  if (!departure.completed && !departure.has_lost_rank) ReportProfile();
  departure.completed = true;
  return true;
}

void Warn(const Communicator& comm, const std::string& what) {
  process::WriteError("pfftjax: warning: " + comm.Where() + " (communicator " +
                      std::to_string(comm.number) + ") ends, and " + what + "\n");
}

// What nobody waits for any more is lost without an error: MPI has it in its buffers.
void WarnOfWhatIsLost() {
  for (std::int64_t i = 0; i < CommunicatorCount(); ++i) {
    const Communicator& comm = *FindCommunicator(i);
    if (const std::int64_t started = NotWaitedFor(i); started > 0) {
      Warn(comm, "has not waited for " + std::to_string(started) +
                     (started == 1 ? " exchange" : " exchanges") + " that it has started");
    }
    Envelope message;
    int found = 0;
    if (!comm.is_private || Mpi()->probe(comm.data, &message, &found) != 0 || !found) continue;
    Warn(comm, "has not received a message of " + std::to_string(message.count) +
                   " bytes from rank " + std::to_string(message.source) + " with tag " +
                   std::to_string(message.tag));
  }
}

void Leave(Departure& departure) {
  Start(departure);
  while (!Poll(departure)) process::SleepFor(kPause);
}

// Waits for calls that had just begun when calls were refused.
void LeaveLastCalls() {
  SteppedClock clock(kLongestStep);
  while (const Communicator* comm = UnderWay()) {
    if (clock.Look() > kLongestWait) AbortUnder(*comm);
    process::SleepFor(kPause);
  }
}

}  // namespace

void LeaveStart() { Start(*of_the_program); }

bool LeavePoll() { return Poll(*of_the_program); }

bool LeaveIsStuck() {
  const std::lock_guard lock(*mutex);
  const double now = held->clock.Look();
  const Communicator* comm = UnderWay();
  if (!comm) {
    held->comm = -1;
    return false;
  }
  if (!comm->is_private) return true;  // Poll counts how long
  const std::int64_t entered = comm->progress.entered;
  if (comm->number != held->comm || entered != held->entered) {
    held->comm = comm->number;
    held->entered = entered;
    held->since = now;
  }
  return now - held->since > kLongestWait;
}

void Leave() {
  Leave(*of_the_program);
  Leave(*for_good);
  WarnOfWhatIsLost();
}

void PrepareToFinalize() {
  if (!Mpi() || *finalized) return;
  Leave();  // where MPI is finalized by hand on some ranks and the others just end
  *finalized = true;
  LeaveLastCalls();
  while (*guests > 0) process::SleepFor(kPause);
  StopBackground();
  StopWatch();
}

bool Finalized() { return *finalized; }

int LetMpiGoOn() {
  // Counted before the question: who finalizes MPI refuses calls first, and then looks at the
  // count.
  ++*guests;
  const Communicator& world = *FindCommunicator(0);
  const int code = *finalized ? 0 : Mpi()->progress(world.is_private ? world.control : world.user);
  --*guests;
  return code;
}

}  // namespace pfftjax

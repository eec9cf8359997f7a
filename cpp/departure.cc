#include "departure.h"

#include <chrono>
#include <mutex>
#include <string>
#include <vector>

#include "communicator.h"
#include "watch.h"

namespace pfftjax {
namespace {

using Clock = process::Clock;

// For calls that the watch cannot judge.
constexpr auto kLongestWait = std::chrono::seconds(5);
constexpr auto kPause = std::chrono::milliseconds(1);

process::Own<process::Mutex> mutex;
process::Own<bool> started;
process::Own<bool> joined;
process::Own<Clock::time_point> since;
// One for each private communicator of more than one rank.
process::Own<std::vector<MpiHandle>> barriers;

// A communicator on which a call of another thread is under way, or null.
const Communicator* UnderWay() {
  for (std::int64_t i = 0; i < CommunicatorCount(); ++i) {
    const Communicator* comm = FindCommunicator(i);
    if (comm->busy) return comm;
  }
  return nullptr;
}

void AbortUnder(const Communicator& comm) {
  const std::string text = comm.Where() + " ends while one of its threads waits in " +
                           NameOf(comm.progress.operation.load()) + " (communicator " +
                           std::to_string(comm.number) +
                           "): join threads that communicate before the program ends";
  AbortJob(text.c_str());
}

void Join() {
  for (std::int64_t i = 0; i < CommunicatorCount(); ++i) {
    const Communicator* comm = FindCommunicator(i);
    if (!comm->is_private || comm->size == 1) continue;
    MpiHandle request = 0;
    if (Mpi()->barrier_start(comm->control, &request) == 0) barriers->push_back(request);
  }
}

}  // namespace

void LeaveStart() {
  const std::lock_guard lock(*mutex);
  if (*started) return;
  *started = true;
  *since = Clock::now();
  AnnounceLeaving();
}

bool LeavePoll() {
  const std::lock_guard lock(*mutex);
  if (!*joined) {
    // MPI must not be finalized under a call. One that can never end is for the watch to find,
    // while this rank and the others still answer.
    if (const Communicator* comm = UnderWay()) {
      if (!comm->is_private && Clock::now() - *since > kLongestWait) AbortUnder(*comm);
      return false;
    }
    Join();
    *joined = true;
  }
  while (!barriers->empty()) {
    int done = 0;
    // A barrier that fails has lost a rank: there is nothing to wait for.
    if (Mpi()->test(&barriers->back(), &done) == 0 && !done) return false;
    barriers->pop_back();
  }
  return true;
}

void Leave() {
  LeaveStart();
  while (!LeavePoll()) process::SleepFor(kPause);
}

void LeaveLastCalls() {
  const auto limit = Clock::now() + kLongestWait;
  while (const Communicator* comm = UnderWay()) {
    if (Clock::now() > limit) AbortUnder(*comm);
    process::SleepFor(kPause);
  }
}

}  // namespace pfftjax

#include "departure.h"

#include <chrono>
#include <mutex>
#include <thread>
#include <vector>

#include "communicator.h"
#include "watch.h"

namespace pfftjax {
namespace {

std::mutex mutex;
bool started = false;
std::vector<MpiHandle> barriers;  // one for each private communicator of more than one rank

}  // namespace

void LeaveStart() {
  const std::lock_guard lock(mutex);
  if (started) return;
  started = true;
  AnnounceLeaving();
  for (std::int64_t i = 0; i < CommunicatorCount(); ++i) {
    const Communicator* comm = FindCommunicator(i);
    if (!comm->is_private || comm->size == 1) continue;
    MpiHandle request = 0;
    if (Mpi()->barrier_start(comm->control, &request) == 0) barriers.push_back(request);
  }
}

bool LeavePoll() {
  const std::lock_guard lock(mutex);
  while (!barriers.empty()) {
    int done = 0;
    // A barrier that fails has lost a rank: there is nothing to wait for.
    if (Mpi()->test(&barriers.back(), &done) == 0 && !done) return false;
    barriers.pop_back();
  }
  return true;
}

void Leave() {
  LeaveStart();
  while (!LeavePoll()) std::this_thread::sleep_for(std::chrono::milliseconds(1));
}

}  // namespace pfftjax

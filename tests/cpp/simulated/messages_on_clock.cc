// Messages where the job has a clock: what they cost on both cores, on the links and in memory.
//
// Short ones are copied by the sender, travel, and are copied by the receiver. Long ones wait for
// their receiver: a request travels, an answer comes back, and the data follow; within a node the
// receiver reads them from the sender's memory, between nodes the links move them (RDMA), or cores
// copy them on both sides (TCP). Messages of a pair do not overtake each other, as all links and
// latencies take them in order.
#include <algorithm>
#include <memory>
#include <utility>

#include "job.h"
#include "mpi.h"

namespace pfftjax::simulated {
namespace {

Clock& TheClock() { return *TheJob().clock; }

Clock::Work Touching(const Process& process, const void* at, std::int64_t bytes, bool is_cached) {
  if (at) return TheClock().Touching(process, at, bytes);
  const auto size = static_cast<double>(bytes);
  return is_cached ? Clock::Work{size, 0} : Clock::Work{0, size};
}

}  // namespace

bool Message::IsInNode() const {
  const Clock& clock = TheClock();
  return clock.NodeOf(*sender) == clock.NodeOf(comm->ProcessOf(to));
}

Request* Comm::SendOnClock(const void* data, std::int64_t bytes, int to, int tag, bool is_cached) {
  Clock& clock = TheClock();
  Process& sender = CurrentProcess();
  clock.HandToMpi(data);
  auto owned = std::make_unique<Message>();
  Message& message = *owned;
  message.comm = this;
  message.sender = &sender;
  message.from = RankOf(sender);
  message.to = to;
  message.tag = tag;
  message.bytes = bytes;
  message.is_cached = is_cached;
  auto* request = new Request;
  request->owner = &sender;
  const auto* from = static_cast<const char*>(data);
  if (static_cast<double>(bytes) <= clock.machine.eager) {
    if (from) message.copy.assign(from, from + bytes);
    request->is_done = true;
  } else {
    message.data = from;
    message.sending = request;
    ++sender.open_requests;
  }
  boxes[static_cast<std::size_t>(to)].messages.push_back(std::move(owned));
  clock.Spend(clock.Overhead(message.IsInNode()));
  if (!message.sending) clock.Do(Touching(sender, data, bytes, is_cached));
  message.Depart();
  return request;
}

void Message::Depart() {
  Clock& clock = TheClock();
  if (IsInNode()) {
    stage = Stage::kTravelling;
    scheduler->Schedule(*this,
                        scheduler->now() + static_cast<Time>(clock.machine.latency_in_node));
  } else {
    stage = Stage::kEntering;
    clock.Leave(*sender, sending ? 0 : bytes, sending != nullptr, *this);
  }
}

void Message::Match() {
  stage = Stage::kMatched;
  Clock& clock = TheClock();
  if (sending && !IsInNode()) {
    scheduler->Schedule(*this, scheduler->now() + static_cast<Time>(clock.machine.latency));
    return;
  }
  stage = Stage::kStoring;
  const Process& receiver = comm->ProcessOf(to);
  Clock::Work work = Touching(receiver, receive.data, bytes, is_cached);
  if (sending) work.Add(Touching(*sender, data, bytes, is_cached));
  clock.Do(receiver, work, *this);
}

void Message::HappenOnClock() {
  Clock& clock = TheClock();
  const Process& receiver = comm->ProcessOf(to);
  switch (stage) {
    case Stage::kEntering:
      stage = Stage::kTravelling;
      return clock.Enter(receiver, sending ? 0 : bytes, *this);
    case Stage::kTravelling:
      stage = Stage::kArrived;
      return comm->MatchArrived(*this);
    case Stage::kMatched:  // the answer has come to the sender
      if (clock.machine.copies != 0) {
        stage = Stage::kLoading;
        return clock.Do(*sender, Touching(*sender, data, bytes, is_cached), *this);
      }
      [[fallthrough]];
    case Stage::kLoading:
      stage = Stage::kDataEntering;
      return clock.Leave(*sender, bytes, false, *this);
    case Stage::kDataEntering:
      stage = Stage::kMoving;
      return clock.Enter(receiver, bytes, *this);
    case Stage::kMoving:
      if (clock.machine.copies != 0) {
        stage = Stage::kStoring;
        return clock.Do(receiver, Touching(receiver, receive.data, bytes, is_cached), *this);
      }
      [[fallthrough]];
    case Stage::kStoring:
      return End();
    default:
      return;
  }
}

void Comm::MatchArrived(Message& message) {
  std::deque<Receive>& receives = boxes[static_cast<std::size_t>(message.to)].receives;
  const auto found = std::find_if(receives.begin(), receives.end(), [&](const Receive& receive) {
    return receive.Takes(message.from, message.tag);
  });
  if (found == receives.end()) return;
  message.receive = *found;
  receives.erase(found);
  message.Match();
}

}  // namespace pfftjax::simulated

#include "mpi.h"

#include <algorithm>
#include <cstring>
#include <string>
#include <utility>

#include "job.h"

namespace pfftjax::simulated {

namespace {

// The watch's questions and answers: a rank that leaves need not have read them, nor wait for
// them.
bool IsOfTheWatch(int tag) { return tag == 1 || tag == 2; }

}  // namespace

void Request::Complete(int how) {
  is_done = true;
  owner->open_requests -= counts;
  code = how;
  if (waiting) scheduler->Wake(*waiting);
  if (TheJob().clock) scheduler->WakeThoseThatLookAt(this);
}

Time Arrival(const Process& from, const Process& to, std::int64_t bytes) {
  const Network& network = TheJob().network;
  Random& random = scheduler->random;
  Time time = scheduler->now() + network.latency + random.Below(network.latency + 1);
  if (from.node != to.node) time += network.between_nodes;
  time += static_cast<Time>(static_cast<double>(bytes) / network.bytes_a_second * 1e9);
  if (random.Chance(network.jitter)) time += random.Spread(network.shortest, network.longest);
  return time;
}

void LetGo(Process& process, Event& event, Time delay) {
  if (process.waits_in_mpi == 0 && scheduler->random.Chance(TheJob().network.keeps_back)) {
    process.to_leave.push_back(&event);
  } else {
    scheduler->Schedule(event, scheduler->now() + delay);
  }
}

void Progress() {
  Process& process = CurrentProcess();
  if (process.is_finalized) scheduler->Fail("a call of MPI's after MPI_Finalize");
  // MPICH locks no more then, so that such calls destroy what the other thread uses.
  if (process.finalizing && process.finalizing != scheduler->current()) {
    scheduler->Fail("a call of MPI's while another thread is in MPI_Finalize");
  }
  for (Event* event : std::exchange(process.to_leave, {})) {
    scheduler->Schedule(*event, scheduler->now() + scheduler->random.Below(kMicrosecond));
  }
}

void WaitForAny(Request* const* requests, int count, int* which) {
  Process& process = CurrentProcess();
  if (Clock* clock = TheJob().clock.get()) clock->HandToMpi(nullptr);
  ++process.waits_in_mpi;
  Progress();
  Task* const self = scheduler->current();
  std::vector<int> done;
  while (true) {
    for (int i = 0; i < count; ++i) {
      if (requests[i] && requests[i]->is_done) done.push_back(i);
    }
    if (!done.empty()) break;
    for (int i = 0; i < count; ++i) {
      if (requests[i]) requests[i]->waiting = self;
    }
    scheduler->Block("MPI");
  }
  for (int i = 0; i < count; ++i) {
    if (requests[i]) requests[i]->waiting = nullptr;
  }
  --process.waits_in_mpi;
  Clock* const clock = TheJob().clock.get();
  *which = clock ? done[0]
                 : done[static_cast<std::size_t>(
                       scheduler->random.Below(static_cast<std::int64_t>(done.size())))];
  if (clock) clock->Spend(requests[*which]->overhead);
  self->naps = 0;
  Learn(requests[*which]->knowledge);
}

int WaitFor(Request* request) {
  int which = 0;
  WaitForAny(&request, 1, &which);
  return request->code;
}

bool TestRequest(MpiHandle* handle, int* code, std::int64_t* bytes) {
  auto* request = reinterpret_cast<Request*>(*handle);
  *code = 0;
  if (!request) return true;
  if (request->owner != &CurrentProcess()) scheduler->Fail("a request of another rank is tested");
  Clock* const clock = TheJob().clock.get();
  if (!request->is_done) {
    if (clock) scheduler->current()->looks_at = request;
    return false;
  }
  if (clock) clock->Spend(request->overhead);
  *code = request->code;
  if (bytes) *bytes = request->bytes;
  Learn(request->knowledge);
  delete request;
  *handle = 0;
  return true;
}

// ---- Messages ----------------------------------------------------------------------------------

Process& Comm::ProcessOf(int rank) const {
  return *TheJob().processes[static_cast<std::size_t>(members[static_cast<std::size_t>(rank)])];
}

Request* Comm::Send(const void* data, std::int64_t bytes, int to, int tag) {
  if (TheJob().clock && to >= 0 && to < size()) return SendOnClock(data, bytes, to, tag, true);
  Process& sender = CurrentProcess();
  auto* request = new Request;
  request->owner = &sender;
  if (to == kProcNull) {
    request->is_done = true;
    return request;
  }
  if (to < 0 || to >= size()) {
    scheduler->Fail("a message to rank " + std::to_string(to) + " of " + std::to_string(size()));
  }
  request->counts = IsOfTheWatch(tag) ? 0 : 1;
  scheduler->Note(static_cast<std::uint64_t>(to) << 32 ^ static_cast<std::uint64_t>(tag) << 16 ^
                  static_cast<std::uint64_t>(bytes));
  const Network& network = TheJob().network;
  auto message = std::make_unique<Message>();
  message->comm = this;
  message->sender = &sender;
  message->from = RankOf(sender);
  message->to = to;
  message->tag = tag;
  message->bytes = bytes;
  message->knowledge = Tell();
  const auto* from = static_cast<const char*>(data);
  if (bytes <= network.eager_bytes && !scheduler->random.Chance(network.waits_anyway)) {
    message->copy.assign(from, from + bytes);
    request->is_done = true;
  } else {
    message->data = from;
    message->sending = request;
    sender.open_requests += request->counts;
  }
  Message& sent = *message;
  boxes[static_cast<std::size_t>(to)].messages.push_back(std::move(message));
  LetGo(sender, sent, 0);
  return request;
}

Request* Comm::Post(void* data, std::int64_t room, int from, int tag) {
  Process& receiver = CurrentProcess();
  auto* request = new Request;
  request->owner = &receiver;
  if (from == kProcNull) {
    request->is_done = true;
    return request;
  }
  ++receiver.open_requests;
  const int rank = RankOf(receiver);
  if (Clock* clock = TheJob().clock.get()) clock->HandToMpi(data);
  Box& box = boxes[static_cast<std::size_t>(rank)];
  box.receives.push_back({request, static_cast<char*>(data), room, from, tag});
  if (!TheJob().clock) {
    Match(rank);
    return request;
  }
  for (const auto& message : box.messages) {
    if (message->stage == Message::Stage::kArrived &&
        box.receives.back().Takes(message->from, message->tag)) {
      message->receive = box.receives.back();
      box.receives.pop_back();
      message->Match();
      break;
    }
  }
  return request;
}

Message* Comm::Probe(int tag) {
  const int rank = RankOf(CurrentProcess());
  std::vector<bool> is_seen(members.size());
  std::vector<Message*> found;
  for (const auto& message : boxes[static_cast<std::size_t>(rank)].messages) {
    if ((tag == kAnyTag ? message->tag == kCollectiveTag : message->tag != tag) ||
        is_seen[static_cast<std::size_t>(message->from)])
      continue;
    if (message->stage > Message::Stage::kArrived) continue;
    is_seen[static_cast<std::size_t>(message->from)] = true;  // only its first one
    if (message->stage == Message::Stage::kArrived) found.push_back(message.get());
  }
  if (found.empty()) return nullptr;
  return found[static_cast<std::size_t>(
      scheduler->random.Below(static_cast<std::int64_t>(found.size())))];
}

void Comm::Match(int rank) {
  Box& box = boxes[static_cast<std::size_t>(rank)];
  for (std::size_t i = 0; i < box.receives.size();) {
    const Receive receive = box.receives[i];
    // The candidates are the first message of each sender; one that has arrived is drawn.
    std::vector<bool> is_seen(members.size());
    std::vector<Message*> found;
    for (const auto& message : box.messages) {
      if (message->stage > Message::Stage::kArrived ||
          !receive.Takes(message->from, message->tag) ||
          is_seen[static_cast<std::size_t>(message->from)]) {
        continue;
      }
      is_seen[static_cast<std::size_t>(message->from)] = true;
      if (message->stage == Message::Stage::kArrived) found.push_back(message.get());
    }
    if (found.empty()) {
      ++i;
      continue;
    }
    Message& message = *found[static_cast<std::size_t>(
        scheduler->random.Below(static_cast<std::int64_t>(found.size())))];
    box.receives.erase(box.receives.begin() + static_cast<std::ptrdiff_t>(i));
    message.stage = Message::Stage::kMatched;
    message.receive = receive;
    if (message.sending) {
      // Its sender hears of it, and sends the data.
      LetGo(*message.sender, message, scheduler->random.Below(kMicrosecond));
    } else {
      scheduler->Schedule(message, scheduler->now() + scheduler->random.Below(100));
    }
  }
}

void Message::Happen() {
  if (TheJob().clock) return HappenOnClock();
  const Process& receiver = comm->ProcessOf(to);
  // A message of a rank to itself does not travel.
  const auto arrival = [&](std::int64_t much) {
    return from == to ? scheduler->now() + TheJob().network.latency
                      : Arrival(*sender, receiver, much);
  };
  switch (stage) {
    case Stage::kLeaving: {
      if (sender->is_dead) return;
      stage = Stage::kTravelling;
      Time& last = comm->last_arrival_[{from, to, tag}];
      last = std::max(last + 1, arrival(sending ? 0 : bytes));
      scheduler->Schedule(*this, last);
      return;
    }
    case Stage::kTravelling:
      stage = Stage::kArrived;
      comm->Match(to);
      return;
    case Stage::kMatched:
      if (sending) {
        if (sender->is_dead) return;
        stage = Stage::kMoving;
        scheduler->Schedule(*this, arrival(bytes));
        return;
      }
      [[fallthrough]];
    case Stage::kMoving:
      return End();
    default:
      return;
  }
}

void Message::End() {
  stage = Stage::kEnded;
  const char* source = sending ? data : copy.data();
  if (sending && sender->is_dead) return;
  if (!comm->ProcessOf(to).is_dead) {
    const std::int64_t taken = std::min(bytes, receive.room);
    if (taken > 0 && receive.data) {
      std::memcpy(receive.data, source, static_cast<std::size_t>(taken));
    }
    receive.request->source = from;
    receive.request->tag = tag;
    receive.request->bytes = taken;
    receive.request->knowledge = std::move(knowledge);
    if (const Clock* clock = TheJob().clock.get()) {
      receive.request->overhead = clock->Overhead(IsInNode());
    }
    receive.request->Complete(bytes > receive.room ? kErrorTruncate : 0);
  }
  if (sending) sending->Complete(0);
  auto& all = comm->boxes[static_cast<std::size_t>(to)].messages;
  all.erase(std::find_if(all.begin(), all.end(),
                         [this](const auto& message) { return message.get() == this; }));
}

std::string LeftOver() {
  std::string text;
  for (const auto& comm : TheJob().comms) {
    for (const Comm::Box& box : comm->boxes) {
      for (const auto& message : box.messages) {
        if (IsOfTheWatch(message->tag)) continue;
        text += "\n  a message from rank " + std::to_string(message->from) + " to " +
                std::to_string(message->to) + " with tag " + std::to_string(message->tag) +
                " that nobody has received";
      }
      for (const Receive& receive : box.receives) {
        text += "\n  a receive from rank " + std::to_string(receive.source) + " with tag " +
                std::to_string(receive.tag) + " that was never completed";
      }
    }
  }
  return text;
}

}  // namespace pfftjax::simulated

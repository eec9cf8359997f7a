#include "runtime/gathering.h"

#include <algorithm>
#include <string>
#include <vector>

#include "runtime/abort.h"
#include "runtime/crossing.h"

namespace pfftjax {
namespace {

// How often a rank that waits for a communicator's duplicates looks for them between two answers
// that are to be believed: what the other rank did before it left has arrived by then.
constexpr std::int64_t kLooks = 10;

// How often all ranks must have said that they wait for each other.
constexpr int kRoundsTogether = 3;

// The number of communicators of these ranks whose duplicates this rank has begun to make. A rank
// that has left the program must have begun as many as each of the others, or one of them waits
// for it in vain. The numbers of communicators may differ between ranks; this count does not.
std::int64_t CountBegun(std::uint64_t group) {
  std::int64_t begun = 0;
  for (std::int64_t i = 0; i < CommunicatorCount(); ++i) {
    const Communicator& comm = *FindCommunicator(i);
    if (comm.is_duplicating && comm.group == group) ++begun;
  }
  return begun;
}

std::string Gathers(const Communicator& comm) {
  const std::string& at = comm.gathers_at;
  return comm.Where() + " (communicator " + std::to_string(comm.number) + ") waits in " +
         comm.gathers_for + (at.empty() ? at : at + ",") +
         " for the other ranks to come to their first collective on this communicator";
}

// "rank 1 (rank 3 of MPI_COMM_WORLD)"
std::string Member(const Communicator& comm, int rank) {
  const std::string here = "rank " + std::to_string(rank);
  const int in_world = comm.world_ranks[rank];
  if (in_world == rank) return here;
  return here + " (rank " + std::to_string(in_world) + " of MPI_COMM_WORLD)";
}

}  // namespace

State Gatherings::Answer(const State& asked) {
  const auto group = static_cast<std::uint64_t>(asked.group);
  const std::int64_t begun = CountBegun(group);
  State answer = State::Anywhere(asked.question);
  answer.group = asked.group;
  // This is read after the departures in the answer: a rank that has left begins no others.
  answer.begun = CountBegun(group);
  if (const Communicator* mine = answer.is_gathering ? FindCommunicator(answer.comm) : nullptr) {
    answer.waits_for_asker = mine->group == group && answer.begun == begun;
    answer.count = mine->looks;
  }
  return answer;
}

void Gatherings::Look(const Communicator& comm, double passed) {
  if (!comm.is_gathering.load(std::memory_order_acquire)) {
    gatherings_.erase(comm.number);
    return;
  }
  Gathering& gathering = gatherings_[comm.number];
  // Nobody looks while it is interrupted, or has no core to run on.
  if (comm.looks == gathering.looks) return;
  gathering.looks = comm.looks;
  gathering.waited += passed;
  if (gathering.inquiry.HasTimedOut(gathering.waited)) Report(comm, gathering);
  const bool is_urgent = std::any_of(gathering.together.begin(), gathering.together.end(),
                                     [](const auto& entry) { return entry.second.times > 0; });
  if (gathering.inquiry.IsTimeToAsk(gathering.waited, is_urgent)) Ask(comm, gathering);
}

bool Gatherings::IsWaitingFor(const Communicator& comm, int world_rank) const {
  const auto found = gatherings_.find(comm.number);
  if (!comm.is_gathering || found == gatherings_.end()) return false;
  for (const auto& [rank, answer] : found->second.inquiry.answers) {
    if (WorldRank(comm, rank) == world_rank) {
      return !answer.is_gathering && answer.begun < CountBegun(comm.group);
    }
  }
  return false;
}

void Gatherings::Ask(const Communicator& comm, Gathering& gathering) {
  const Communicator* world = FindCommunicator(0);
  if (comm.world_ranks.empty() || !world || !world->is_private) return;
  std::vector<int> ranks;
  for (int rank = 0; rank < comm.size; ++rank) {
    if (rank != comm.rank && comm.world_ranks[rank] >= 0) ranks.push_back(rank);
  }
  gathering.inquiry.ChooseAmong(ranks, random_);
  State question = State::Anywhere(-1 - comm.number);
  question.group = static_cast<std::int64_t>(comm.group);
  question.round = gathering.inquiry.Ask();
  for (int rank : ranks) send_question_(*world, comm.world_ranks[rank], question);
}

void Gatherings::Hear(int world_rank, const State& answer) {
  const std::int64_t number = -1 - answer.question;
  const Communicator* comm = FindCommunicator(number);
  const auto found = gatherings_.find(number);
  if (!comm || !comm->is_gathering || found == gatherings_.end()) return;
  Gathering& gathering = found->second;
  Inquiry& inquiry = gathering.inquiry;
  const auto& ranks = comm->world_ranks;
  const auto at = std::find(ranks.begin(), ranks.end(), world_rank);
  const auto rank = static_cast<int>(at - ranks.begin());
  inquiry.answers[rank] = answer;
  int& times = inquiry.suspicions[rank];
  std::int64_t& looks = gathering.suspected_at[rank];
  Together& together = gathering.together[rank];
  const bool is_later = inquiry.IsLater(rank, answer.round);
  // A rank that has begun one less waits for the duplicates that this one has, and may yet come.
  if (!answer.waits_for_asker || answer.begun != CountBegun(comm->group)) {
    together = {};
  } else {
    // All must say so after the last of them has come.
    if (!together.is_there) gathering.ForgetTimes();
    together.is_there = true;
    if (is_later && (together.times == 0 || (comm->looks >= together.looks + kLooks &&
                                             answer.count >= together.looks_there + kLooks))) {
      together = {true, together.times + 1, comm->looks, answer.count};
    }
  }
  AbortIfAllAreThere(*comm, gathering);
  // A rank that came and has its duplicates may have ended while a third one is stopped.
  const bool has_come = answer.begun >= CountBegun(comm->group);
  if (!answer.IsLeaving() || has_come) {
    times = 0;
  } else if (is_later && (times == 0 || comm->looks >= looks + kLooks)) {
    ++times;
    looks = comm->looks;
    inquiry.Postpone(gathering.waited);
  }
  if (times < kRounds) return;
  AbortJob(Gathers(*comm) + ", but " + Member(*comm, rank) +
           " has ended; every rank of a communicator must make the same collectives: let all "
           "of them call " +
           comm->gathers_for + ", or make a communicator of those that do");
}

void Gatherings::AbortIfAllAreThere(const Communicator& comm, const Gathering& gathering) {
  const int wanted = kRoundsTogether + (comm.rank == 0 ? 0 : 1);  // the first of them speaks
  std::string others;
  for (int rank = 0; rank < comm.size; ++rank) {
    if (rank == comm.rank) continue;
    const auto found = gathering.together.find(rank);
    if (found == gathering.together.end() || found->second.times < wanted) return;
    const State& there = gathering.inquiry.answers.at(rank);
    if (there.has_threads) return;
    if (others.empty()) others = Member(comm, rank) + " " + there.SayAnywhere();
  }
  if (HasThreads()) return;
  AbortJob(Gathers(comm) + ", and so do all of these for a communicator of the same ranks, but " +
           "not for this one: " + others +
           ". Make every rank call on the same communicators in the same order");
}

void Gatherings::Report(const Communicator& comm, const Gathering& gathering) {
  std::string text = After(gathering.waited) + Gathers(comm);
  for (const auto& [rank, state] : gathering.inquiry.answers) {
    text += "\n  " + Member(comm, rank) + " " + state.SayAnywhere();
  }
  AbortJob(text);
}

}  // namespace pfftjax

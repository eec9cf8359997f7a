#include "runtime/gathering.h"

#include <algorithm>
#include <string>
#include <vector>

#include "runtime/watch.h"

namespace pfftjax {
namespace {

// How often a rank that waits for a communicator's duplicates looks for them between two answers
// that are to be believed: what the other rank did before it left has arrived by then.
constexpr std::int64_t kLooks = 10;

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
  return comm.Where() + " (communicator " + std::to_string(comm.number) + ") waits in " +
         comm.gathers_for + " for the other ranks to come to their first collective on this " +
         "communicator";
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
  State answer = State::Anywhere(asked.question);
  answer.group = asked.group;
  // This is read after the departures in the answer: a rank that has left begins no others.
  answer.begun = CountBegun(static_cast<std::uint64_t>(asked.group));
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
  if (gathering.inquiry.IsTimeToAsk(gathering.waited)) Ask(comm, gathering);
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
  // A rank that came and has its duplicates may have ended while a third one is stopped.
  const bool has_come = answer.begun >= CountBegun(comm->group);
  if (!answer.IsLeaving() || has_come) {
    times = 0;
  } else if (inquiry.IsLater(rank, answer.round) &&
             (times == 0 || comm->looks >= looks + kLooks)) {
    ++times;
    looks = comm->looks;
    inquiry.Postpone(gathering.waited);
  }
  if (times < kRounds) return;
  AbortJob((Gathers(*comm) + ", but " + Member(*comm, rank) +
            " has ended; every rank of a communicator must make the same collectives: let all "
            "of them call " +
            comm->gathers_for + ", or make a communicator of those that do")
               .c_str());
}

void Gatherings::Report(const Communicator& comm, const Gathering& gathering) {
  std::string text = After(gathering.waited) + Gathers(comm);
  for (const auto& [rank, state] : gathering.inquiry.answers) {
    text += "\n  " + Member(comm, rank) + " " + state.SayAnywhere();
  }
  AbortJob(text.c_str());
}

}  // namespace pfftjax

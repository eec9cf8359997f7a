#include "runtime/deadlock.h"

#include <algorithm>

namespace pfftjax {
namespace {

// Says whether a receive of `wanted`, a tag or any, takes a message with `tag`.
bool IsTakenAs(int wanted, int tag) { return wanted < 0 || tag < 0 || wanted == tag; }

// One half of a message, which still waits for this rank.
struct Half {
  int partner;
  bool is_receive;
};

std::vector<Half> WaitingHalves(const Wait& wait) {
  std::vector<Half> halves;
  if (!wait.IsMessage()) return halves;
  if (wait.source >= 0 && wait.awaited.IsReceive()) halves.push_back({wait.source, true});
  if (wait.dest >= 0 && wait.awaited.IsSend()) halves.push_back({wait.dest, false});
  return halves;
}

// Says whether the partner of a half of the message that `rank` is in, which is in `there`, gives
// or takes that half. It has not begun to where it waits in an earlier piece of its own.
bool Serves(const Wait& there, const Half& half, int rank, const Wait& wait) {
  if (!there.IsMessage() || there.awaited.piece() < wait.awaited.piece()) return false;
  if (half.is_receive) return there.dest == rank && IsTakenAs(wait.recv_tag, there.send_tag);
  return (there.source == rank || there.source == kAnybody) &&
         IsTakenAs(there.recv_tag, wait.send_tag);
}

}  // namespace

bool Wait::NeedsAll() const {
  if (stage == Stage::kChecking) return true;
  if (stage == Stage::kIdle) return false;
  switch (operation) {
    case Operation::kAlltoall:
    case Operation::kAllgather:
    case Operation::kReduceScatter:
    case Operation::kAllreduce:
    case Operation::kBarrier:
      return true;
    default:
      return false;
  }
}

bool Wait::WaitsFor(int rank, const Wait& there) const {
  if (there.stage != Stage::kIdle) return false;
  const std::vector<Half> halves = WaitingHalves(*this);
  return (NeedsAll() && there.passed < Wanted()) ||
         std::any_of(halves.begin(), halves.end(),
                     [rank](const Half& half) { return half.partner == rank; });
}

void Deadlock::Hear(int rank, const Wait& wait, bool is_later, std::int64_t round) {
  Answer& answer = answers_[rank];
  const bool is_still = answer.wait.stage == wait.stage && answer.wait.entered == wait.entered &&
                        answer.wait.awaited == wait.awaited;
  if (!is_still || wait.stage == Stage::kIdle) answer = {};
  answer.wait = wait;
  if (!is_later || wait.stage == Stage::kIdle) return;
  if (answer.times++ == 0) answer.first = round;
  answer.rounds.push_back(round);
  if (answer.rounds.size() > kMostOfInterest) answer.rounds.erase(answer.rounds.begin());
}

const Wait* Deadlock::Known(int rank, const Evidence& evidence) const {
  if (rank == evidence.self) return evidence.here;
  const auto found = answers_.find(rank);
  if (found == answers_.end()) return nullptr;
  const Answer& answer = found->second;
  const std::vector<std::int64_t>& rounds = answer.rounds;
  if (rounds.size() < evidence.times || answer.first > evidence.since) return nullptr;
  return rounds[rounds.size() - evidence.times] < evidence.since ? nullptr : &answer.wait;
}

std::vector<int> Deadlock::Blockers(int rank, const Wait& wait, const Evidence& evidence) const {
  std::vector<int> blockers;
  for (const Half& half : WaitingHalves(wait)) {
    const Wait* there = Known(half.partner, evidence);
    const bool is_in_call = there && (there->IsMessage() || there->NeedsAll());
    if (is_in_call && !Serves(*there, half, rank, wait)) blockers.push_back(half.partner);
  }
  if (!wait.NeedsAll()) return blockers;
  const std::int64_t wanted = wait.Wanted();
  const auto consider = [&](int other) {
    const Wait* there = Known(other, evidence);
    if (there && there->IsMessage() && there->passed < wanted) blockers.push_back(other);
  };
  if (rank != evidence.self) consider(evidence.self);
  for (const auto& [other, answer] : answers_) {
    if (other != rank) consider(other);
  }
  return blockers;
}

bool Deadlock::Follow(std::vector<int>& path, std::set<int>& seen, const Wait& wait,
                      const Evidence& evidence) const {
  for (int next : Blockers(path.back(), wait, evidence)) {
    if (next == evidence.self) return true;
    // From a rank that has been followed there is no way, whichever way led to it.
    if (!seen.insert(next).second) continue;
    path.push_back(next);
    if (Follow(path, seen, *Known(next, evidence), evidence)) return true;
    path.pop_back();
  }
  return false;
}

std::vector<int> Deadlock::Circle(int self, const Wait& here, int times) const {
  // The last of a circle may have come with any of these rounds.
  std::set<std::int64_t> firsts;
  for (const auto& [rank, answer] : answers_) {
    if (answer.times > 0) firsts.insert(answer.first);
  }
  for (std::int64_t since : firsts) {
    std::vector<int> path{self};
    std::set<int> seen;
    if (Follow(path, seen, here, {self, &here, static_cast<std::size_t>(times), since})) {
      return path;
    }
  }
  return {};
}

std::set<int> Deadlock::WorthAsking(int self) const {
  std::set<int> ranks;
  for (const auto& [rank, answer] : answers_) {
    if (answer.times == 0) continue;
    for (const Half& half : WaitingHalves(answer.wait)) {
      if (half.partner != self) ranks.insert(half.partner);
    }
  }
  return ranks;
}

bool Deadlock::IsPossible() const {
  return std::any_of(answers_.begin(), answers_.end(), [](const auto& entry) {
    return entry.second.times > 0 && entry.second.times <= kMostOfInterest;
  });
}

}  // namespace pfftjax

// Ranks that wait for each other in a circle, at least one of them in a message.
//
// A rank is known to wait for another one where it can only go on after that one has, and that one
// is in a call that does nothing for it:
//   - in a message, a half of which waits for one that is in a collective, or in a message of
//     other partners or with another tag;
//   - in a collective that every rank takes part in, and that the other one, which is in a
//     message, has not come to.
// A half that has ended waits for nobody (Awaited, in progress.h). One that the other rank's call
// serves may go on even where it has ended there: what was sent is on its way.
#pragma once

#include <cstdint>
#include <map>
#include <set>
#include <vector>

#include "runtime/communicator.h"

namespace pfftjax {

// A rank that has answered so often that it is in the same call need not be asked so soon again.
inline constexpr int kMostOfInterest = 5;

// One rank is in this, on one communicator.
struct Wait {
  Stage stage = Stage::kIdle;
  Operation operation = Operation::kNone;
  std::int64_t entered = 0;
  std::int64_t passed = 0;
  int source = kNobody;  // of messages, as in Progress
  int dest = kNobody;
  int send_tag = kAnyTag;
  int recv_tag = kAnyTag;
  Awaited awaited{};

  bool IsMessage() const { return stage != Stage::kIdle && pfftjax::IsMessage(operation); }
  bool NeedsAll() const;  // a collective that no rank leaves before all have come to it
  // Says whether `rank`, which is in no call on this communicator, has to come to one first.
  bool WaitsFor(int rank, const Wait& there) const;
  // The number of the collective that it has not got beyond.
  std::int64_t Wanted() const { return passed + (stage == Stage::kChecking ? 1 : 0); }
};

class Deadlock {
 public:
  // `rank` has answered that it is in `wait`, when this rank had asked in so many rounds. An
  // answer to a question that was not asked later than the answer before came (`is_later`) is none
  // more in a row.
  void Hear(int rank, const Wait& wait, bool is_later, std::int64_t round);
  // The circle that `self` is part of, from `self` on, if the others have answered `times` times
  // in a row that they are still in the same calls, since the last of them has come to its call;
  // else nothing. A rank that is stopped answers no more, and may have got what it waited for.
  std::vector<int> Circle(int self, const Wait& here, int times) const;
  // The ranks, but for `self`, for whose messages those wait that have answered.
  std::set<int> WorthAsking(int self) const;
  // Says whether answers may soon show a circle: a rank that has answered waits in a call.
  bool IsPossible() const;

 private:
  struct Answer {
    Wait wait;
    int times = 0;
    std::vector<std::int64_t> rounds;  // of the latest so many answers in a row
    std::int64_t first = 0;            // and of the first
  };
  // What counts of the answers: so many in a row, since a round by which all had come.
  struct Evidence {
    int self;
    const Wait* here;
    std::size_t times;
    std::int64_t since;
  };
  // Returns those that `rank`, which waits so, waits for, as far as is known.
  std::vector<int> Blockers(int rank, const Wait& wait, const Evidence& evidence) const;
  const Wait* Known(int rank, const Evidence& evidence) const;
  // Goes on from the last of `path`, and past none of `seen`, to where it began; says whether
  // there is a way.
  bool Follow(std::vector<int>& path, std::set<int>& seen, const Wait& wait,
              const Evidence& evidence) const;

  std::map<int, Answer> answers_;
};

}  // namespace pfftjax

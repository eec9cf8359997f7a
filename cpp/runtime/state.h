// One rank tells another this about itself, when the watch asks (watch.h).
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <type_traits>

#include "base/process.h"
#include "runtime/call_sites.h"
#include "runtime/communicator.h"
#include "runtime/deadlock.h"
#include "runtime/errors.h"

namespace pfftjax {

// The departures (departure.h) that this rank has announced, and that all ranks have come to. In
// between it makes no further calls, and its answers say so.
inline process::Own<process::Atomic<int>> announced_departures;
inline process::Own<process::Atomic<int>> completed_departures;

struct State : Wait {
  std::int64_t question = 0;  // echoed: the asker's count of calls begun
  Element element = Element::kBool;
  std::int64_t count = 0;
  std::int64_t departures = 0;  // that it has announced
  std::int64_t comm = 0;        // number of the communicator, in which the ranks usually agree
  bool is_gathering = false;
  std::int64_t latest = 0;    // meaning of collective number `passed`
  std::int64_t previous = 0;  // and of the one before
  std::int64_t round = 0;     // echoed: how often the asker had asked
  std::int64_t checks = 0;    // comparisons begun; no fewer than before collective `passed`
  // Questions about a communicator's duplicates (gathering.h) fill these two: a hash of its ranks,
  // and how many communicators of the same ranks have got theirs, or wait for them.
  std::int64_t group = 0;
  std::int64_t begun = 0;
  // It is in no call on the communicator that it was asked about, but waits on number `comm`, in
  // call number `entered` of that; whether it waits there for the rank that asks; and whether its
  // process has several threads, one of which may come.
  bool is_elsewhere = false;
  bool waits_for_asker = false;
  bool has_threads = false;
  ShortText called{};  // the user's lines

  static constexpr int kNumbers = 24;
  static constexpr int kWords = kNumbers + ShortText::kWords;
  using Words = std::array<std::int64_t, kWords>;

  static State Of(const Communicator& comm, std::int64_t question) {
    const Progress& now = comm.progress;
    // First the departures: who has left has passed no fewer than is read after them.
    State state = Idle(comm.number, question);
    state.entered = now.entered;
    state.passed = now.passed;
    state.stage = now.stage;
    state.operation = now.operation;
    state.element = now.element;
    state.count = now.count;
    state.source = now.source;
    state.dest = now.dest;
    state.send_tag = now.send_tag;
    state.recv_tag = now.recv_tag;
    state.awaited = now.awaited;
    state.latest = now.MeaningOf(state.passed);
    state.previous = now.MeaningOf(state.passed - 1);
    state.checks = now.checks;
    state.called = ShortText(CalledAt(comm));
    // The call moved on while it was read: it waits for nobody. `entered` last: it counts before
    // the stage of a new call is set.
    if (now.passed != state.passed || now.stage != state.stage || now.entered != state.entered) {
      state.stage = Stage::kIdle;
      state.latest = state.previous = kUnknown;
    }
    return state;
  }
  // Tells what this rank does, on whatever communicator, to a rank that waits for it on one that
  // the watch cannot talk over yet; on any but one, to a rank that waits for it on that one.
  static State Anywhere(std::int64_t question, const Communicator* but = nullptr) {
    State found = Idle(0, question);
    for (std::int64_t i = 0; i < CommunicatorCount(); ++i) {
      const Communicator* comm = FindCommunicator(i);
      if (comm == but) continue;
      if (comm->is_gathering) return OfGathering(*comm, question);
      if (found.stage == Stage::kIdle) {
        const State here = Of(*comm, question);
        if (here.stage != Stage::kIdle) found = here;
      }
    }
    return found;
  }
  // Tells that this rank waits for the others to come to a communicator's first collective.
  static State OfGathering(const Communicator& comm, std::int64_t question) {
    State state = Idle(comm.number, question);
    state.is_gathering = true;
    state.called = ShortText(comm.gathers_at);
    return state;
  }
  static State From(const Words& words) {
    State state;
    const std::int64_t* word = words.data();
    ForEachNumber(state, [&word](auto& number) {
      number = static_cast<std::decay_t<decltype(number)>>(*word++);
    });
    state.called = ShortText(words.data() + kNumbers);
    return state;
  }
  Words ToWords() const {
    Words words{};
    std::int64_t* word = words.data();
    ForEachNumber(*this, [&word](auto number) { *word++ = static_cast<std::int64_t>(number); });
    called.Write(words.data() + kNumbers);
    return words;
  }
  // Adds to what this rank says of a communicator on which it is in no call what it does `there`.
  void AddElsewhere(const State& there, bool waits_for) {
    is_elsewhere = true;
    waits_for_asker = waits_for;
    is_gathering = there.is_gathering;
    operation = there.operation;
    element = there.element;
    count = there.count;
    called = there.called;
    comm = there.comm;
    entered = there.entered;
  }
  bool IsPointToPoint() const { return pfftjax::IsMessage(operation); }
  // Whether it makes no more calls, seen from here: where all ranks have come to a departure, it
  // is no departure from this one any more, even if this answer was given before it was over.
  bool IsLeaving() const { return departures > *completed_departures; }

  // "in alltoall float32[12], after 3 collectives"
  std::string Say() const {
    const std::string after = ", after " + std::to_string(passed - (InCollective() ? 1 : 0)) +
                              " collectives on this communicator";
    if (is_elsewhere) return SayElsewhere();
    if (stage == Stage::kIdle) {
      return (IsLeaving() ? "has ended" : "is in no operation of pfftjax") + after;
    }
    return std::string(stage == Stage::kChecking ? "waits in the check before " : "is in ") +
           Describe(operation, element, count) + called.Text() + after;
  }
  // The same of an answer from Anywhere: "is in alltoall float32[12] on communicator 0".
  std::string SayAnywhere() const {
    if (is_gathering || stage != Stage::kIdle) return SayElsewhere();
    return IsLeaving() ? "has ended" : "is in no operation of pfftjax";
  }
  bool InCollective() const { return stage == Stage::kRunning && !IsPointToPoint(); }

 private:
  // This is said of a communicator on which it is in no call.
  static State Idle(std::int64_t comm, std::int64_t question) {
    State state;
    state.question = question;
    state.departures = *announced_departures;
    state.comm = comm;
    return state;
  }
  std::string SayElsewhere() const {
    const std::string where = "communicator " + std::to_string(comm);
    if (is_gathering) {
      const std::string at = called.Text();
      return "waits" + (at.empty() ? at : at + ",") +
             " for the other ranks to come to a first collective on " + where;
    }
    return "is in " + Describe(operation, element, count) + " on " + where + called.Text();
  }
  // All kNumbers of them, in the order in which they travel.
  template <typename Self, typename Visit>
  static void ForEachNumber(Self& self, Visit&& visit) {
    const auto each = [&visit](auto&... numbers) {
      static_assert(sizeof...(numbers) == kNumbers);
      (visit(numbers), ...);
    };
    each(self.question, self.passed, self.stage, self.operation, self.element, self.count,
         self.departures, self.comm, self.is_gathering, self.entered, self.source, self.dest,
         self.send_tag, self.recv_tag, self.latest, self.previous, self.round, self.checks,
         self.group, self.begun, self.awaited, self.is_elsewhere, self.waits_for_asker,
         self.has_threads);
  }
};

}  // namespace pfftjax

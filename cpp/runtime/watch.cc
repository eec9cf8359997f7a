#include "runtime/watch.h"

#include <algorithm>
#include <array>
#include <chrono>
#include <cstdio>
#include <functional>
#include <list>
#include <map>
#include <mutex>
#include <random>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "base/options.h"
#include "base/pages.h"
#include "base/stepped_clock.h"
#include "mpi/tags.h"
#include "runtime/abort.h"
#include "runtime/communicator.h"
#include "runtime/crossing.h"
#include "runtime/deadlock.h"
#include "runtime/errors.h"
#include "runtime/gathering.h"
#include "runtime/inquiry.h"
#include "runtime/state.h"

namespace pfftjax {
namespace {

constexpr int kCircularRounds = 3;
constexpr double kSecondsToWarn = 8.0;
// A rank that receives from itself waits for nothing if it takes longer than this, and than a copy
// of so many bytes a second.
constexpr double kSecondsAlone = 6.0;
constexpr double kSlowestCopy = 50e6;

// One communicator as the thread sees it: how long its present call has waited, and what the
// others have answered.
struct Watched {
  std::int64_t entered = -1;
  Awaited awaited;
  double since = 0.0;  // when it was first seen, as the watch counts time
  Inquiry inquiry;
  Deadlock deadlock;
  Crossings crossings;
};

struct Outgoing {
  State::Words words;
  MpiHandle request = 0;
};

class Watch {
 public:
  void Start() {
    const std::lock_guard lock(mutex_);
    if (started_) return;
    started_ = true;
    thread_ = process::Thread([this] { Loop(); });
  }

  void Stop() {
    {
      const std::lock_guard lock(mutex_);
      if (!started_ || stop_) return;
      stop_ = true;
    }
    wake_.notify_all();
    thread_.join();
  }

  void Also(std::function<void()> look) {
    const std::lock_guard lock(looks_mutex_);
    looks_.push_back(std::move(look));
  }

 private:
  void Loop() {
    const std::chrono::duration<double> tick(GetOptions().tick);
    SteppedClock clock(2 * tick.count());
    std::unique_lock lock(mutex_);
    while (!wake_.wait_for(lock, tick, [this] { return stop_; })) {
      lock.unlock();
      const double before = now_;
      now_ = clock.Look();
      LookAtMemory();  // a rank that waits makes no result, before which it would
      Tick(now_ - before);
      lock.lock();
    }
  }

  void Tick(double passed) {
    for (std::int64_t i = 0; i < CommunicatorCount(); ++i) {
      Communicator* comm = FindCommunicator(i);
      if (!comm || comm->size == 1) continue;
      Watched& watched = watched_[i];
      if (comm->is_private) {
        Answer(*comm);
        Collect(*comm, watched);
      }
      Look(*comm, watched);
      gatherings_.Look(*comm, passed);
    }
    outgoing_.remove_if([](Outgoing& out) {
      int done = 0;
      Mpi()->test(&out.request, &done, nullptr);
      return done != 0;
    });
    const std::lock_guard lock(looks_mutex_);
    for (const std::function<void()>& look : looks_) look();
  }

  void Send(const Communicator& comm, int rank, int tag, const State& state) {
    outgoing_.push_back({state.ToWords(), 0});
    Outgoing& out = outgoing_.back();
    Mpi()->send_start(out.words.data(), sizeof out.words, rank, tag, comm.control, &out.request);
  }

  static bool Receive(const Communicator& comm, int tag, int* source, State* state) {
    State::Words words{};
    int found = 0;
    const int code =
        Mpi()->receive_words(words.data(), State::kWords, tag, comm.control, source, &found);
    if (code != 0 || !found) return false;
    *state = State::From(words);
    return true;
  }

  void Answer(const Communicator& comm) {
    int source = 0;
    State asked{};
    while (Receive(comm, kAskTag, &source, &asked)) {
      State answer = Gatherings::AreMeantBy(asked.question) ? Gatherings::Answer(asked)
                                                            : State::Of(comm, asked.question);
      if (!Gatherings::AreMeantBy(asked.question) && answer.stage == Stage::kIdle) {
        AddElsewhere(answer, comm, WorldRank(comm, source));
      }
      answer.has_threads = HasThreads();
      answer.round = asked.round;
      Send(comm, source, kAnswerTag, answer);
    }
  }

  // Adds to the answer of this rank, which is in no call on `comm`, on which other communicator it
  // waits, and whether it does so for the one that asks.
  void AddElsewhere(State& answer, const Communicator& comm, int asker) {
    const State there = State::Anywhere(answer.question, &comm);
    const Communicator& other = *FindCommunicator(there.comm);
    if (other.size == 1 || (there.stage == Stage::kIdle && !there.is_gathering)) return;
    answer.AddElsewhere(there, there.is_gathering ? gatherings_.IsWaitingFor(other, asker)
                                                  : IsWaitingFor(other, there, asker));
  }

  // Says whether this rank, in `here`, waits for a rank that has answered that it is in no call on
  // that communicator.
  bool IsWaitingFor(const Communicator& comm, const State& here, int world_rank) {
    const Watched& watched = watched_[comm.number];
    if (watched.entered != here.entered || watched.awaited != here.awaited) return false;
    for (const auto& [rank, answer] : watched.inquiry.answers) {
      if (WorldRank(comm, rank) == world_rank) {
        return here.WaitsFor(rank, answer);
      }
    }
    return false;
  }

  void Collect(const Communicator& comm, Watched& watched) {
    int source = 0;
    State answer{};
    while (Receive(comm, kAnswerTag, &source, &answer)) {
      if (Gatherings::AreMeantBy(answer.question)) {
        gatherings_.Hear(source, answer);
        continue;
      }
      const std::int64_t entered = comm.progress.entered;
      const int from = comm.progress.source;
      const int to = comm.progress.dest;
      const State here = State::Of(comm, entered);
      if (answer.question != entered || here.stage == Stage::kIdle) continue;
      // Read again: what was read in between may be of the call after the one asked about. A
      // message may wait for something else than it did when it asked.
      if (comm.progress.entered != entered || here.awaited != watched.awaited) continue;
      Inquiry& inquiry = watched.inquiry;
      inquiry.answers[source] = answer;
      const bool is_later = inquiry.IsLater(source, answer.round);
      watched.deadlock.Hear(source, answer, is_later, inquiry.asked());
      AbortIfCircular(comm, here, watched);
      watched.crossings.Hear(source, here, answer, is_later);
      AbortIfCrossing(comm, here, source, watched);
      const std::string why = WhyNever(here, source, answer);
      int& times = inquiry.suspicions[source];
      times = why.empty() ? 0 : times + is_later;
      if (times > 0 && is_later) inquiry.Postpone(now_ - watched.since);
      // Twice, a while apart: the first may have crossed with the end of the wait. The half of a
      // message that has ended waits for nobody: its partner may have left since.
      const bool certain = here.IsPointToPoint()
                               ? (here.awaited.IsReceive() && Suspected(watched, comm, from)) ||
                                     (here.awaited.IsSend() && Suspected(watched, comm, to))
                               : times >= kRounds;
      if (times >= kRounds && certain) AbortJob(Waits(comm, here) + ", but " + why);
    }
  }

  // Answers of a whole circle, three times: what was on its way at the first has arrived since.
  // The first of its ranks speaks; the others do if it does not.
  static void AbortIfCircular(const Communicator& comm, const State& here,
                              const Watched& watched) {
    const std::vector<int> circle = watched.deadlock.Circle(comm.rank, here, kCircularRounds);
    if (circle.empty()) return;
    const int first = *std::min_element(circle.begin(), circle.end());
    if (first != comm.rank &&
        watched.deadlock.Circle(comm.rank, here, kCircularRounds + 1).empty()) {
      return;
    }
    std::string text = Waits(comm, here);
    for (std::size_t i = 1; i < circle.size(); ++i) {
      text += "; it waits for rank " + std::to_string(circle[i]) + ", which " +
              watched.inquiry.answers.at(circle[i]).Say();
    }
    text += "; and that rank waits for rank " + std::to_string(comm.rank) +
            ": none of them can go on. Look at ranks and tags, or let one of them come to the "
            "other's call first; sendrecv sends and receives at once";
    AbortJob(text);
  }

  // Twice: the first time the other rank already had its own answer from this one.
  static void AbortIfCrossing(const Communicator& comm, const State& here, int rank,
                              const Watched& watched) {
    const State& there = watched.inquiry.answers.at(rank);
    // The first of them speaks, and the other one if it does not; one that gathers does not.
    const bool is_first = there.is_gathering || WorldRank(comm, comm.rank) < WorldRank(comm, rank);
    if (HasThreads() || there.has_threads) return;
    if (watched.crossings.Times(rank) < kRounds + (is_first ? 0 : 1)) return;
    AbortJob(Waits(comm, here) + "; it waits for rank " + std::to_string(rank) + ", which " +
             there.Say() +
             ", and waits there for this rank: neither can go on. Let all ranks of " +
             "a communicator make its calls, in one order with those on other communicators");
  }

  // A rank that receives from itself waits for nobody: what it has sent before is there, and has
  // only to be copied.
  static void AbortIfAlone(const Communicator& comm, const Watched& watched, double waited) {
    if (waited < kSecondsAlone || !comm.is_private) return;
    const State here = State::Of(comm, watched.entered);
    const auto bytes = static_cast<double>(here.count * InfoOf(here.element).bytes);
    if (waited < kSecondsAlone + bytes / kSlowestCopy) return;
    const bool is_alone = here.stage == Stage::kRunning && here.IsPointToPoint() &&
                          here.operation != Operation::kSend && here.source == kNobody &&
                          here.dest == kNobody;
    if (!is_alone || comm.progress.entered != watched.entered) return;
    AbortJob(Waits(comm, here) +
             ", and waits for a message from itself that it has not sent: let the send come "
             "first; sendrecv sends and receives at once");
  }

  // Says whether nothing can come from (or be taken by) `rank`, which may be kNobody or kAnybody.
  static bool Suspected(const Watched& watched, const Communicator& comm, int rank) {
    if (rank == kNobody) return false;
    if (rank == kAnybody) {
      for (int other = 0; other < comm.size; ++other) {
        if (other != comm.rank && !Suspected(watched, comm, other)) return false;
      }
      return true;
    }
    const auto& suspicions = watched.inquiry.suspicions;
    const auto found = suspicions.find(rank);
    return found != suspicions.end() && found->second >= kRounds;
  }

  // False if the latest collective that both ranks have begun was not the same, where both know.
  static bool HaveMadeTheSame(const State& here, const State& there) {
    const auto are_equal = [](std::int64_t mine, std::int64_t theirs) {
      return mine == theirs || mine == kUnknown || theirs == kUnknown;
    };
    if (here.passed == there.passed) return are_equal(here.latest, there.latest);
    if (here.passed + 1 == there.passed) return are_equal(here.latest, there.previous);
    if (here.passed == there.passed + 1) return are_equal(here.previous, there.latest);
    return true;
  }

  // Why `rank`, which answered `there`, can never meet this rank, which waits `here`.
  static std::string WhyNever(const State& here, int rank, const State& there) {
    const std::string who = "rank " + std::to_string(rank) + " ";
    if (here.IsPointToPoint()) {
      if (there.IsLeaving()) return who + "has ended without the matching call";
      return {};
    }
    // The collective waited for is number `here.passed + 1` while checking, `here.passed` after.
    const std::int64_t wanted = here.Wanted();
    // A call under way is still made by a rank that is about to leave.
    if (there.IsLeaving() && there.Wanted() < wanted) {
      return who + there.Say() + "; every rank of a communicator must make the same collectives";
    }
    // A rank that has taken part in this comparison, and has only come out of it first, is no
    // evidence: a third rank may be stopped in the middle of it.
    if (here.stage == Stage::kChecking && there.passed >= wanted && there.checks < here.checks) {
      return who + there.Say() +
             ": the ranks run different programs; make every rank call the "
             "same collectives in the same order (PFFTJAX_CHECK=1 finds where)";
    }
    if (here.InCollective() && !HaveMadeTheSame(here, there)) {
      const char* const remedy =
          ": the ranks call different collectives; PFFTJAX_CHECK=1 finds where they part";
      // Calls in several pieces may go on, each with the first pieces of another call.
      if (!there.InCollective() || there.passed != here.passed) {
        return who + "has made another collective as number " +
               std::to_string(std::min(here.passed, there.passed)) + ", and " + there.Say() +
               remedy;
      }
      const bool is_named = there.operation != here.operation || there.count != here.count ||
                            there.element != here.element;
      return who + there.Say() +
             (is_named ? "" : ", of another shape, root, operation, axis or width") + remedy;
    }
    return {};
  }

  static std::string Waits(const Communicator& comm, const State& here) {
    return comm.Where() + " (communicator " + std::to_string(comm.number) + ") " + here.Say();
  }

  void Look(Communicator& comm, Watched& watched) {
    const std::int64_t entered = comm.progress.entered;
    if (comm.progress.stage == Stage::kIdle || entered != watched.entered || comm.is_gathering) {
      watched = Watched{};
      watched.entered = entered;
      if (comm.progress.stage != Stage::kIdle) {
        comm.progress.called = lines_.insert(CalledAt(comm)).first->c_str();
        comm.progress.called_for = entered;
      }
      watched.awaited = comm.progress.awaited;
      watched.since = now_;
      return;
    }
    if (const Awaited awaited = comm.progress.awaited; awaited != watched.awaited) {
      watched.awaited = awaited;
      watched.inquiry.Restart();
      watched.deadlock = Deadlock();
      watched.crossings = Crossings();
      watched.since = now_;
    }
    const double waited = now_ - watched.since;
    if (watched.inquiry.HasTimedOut(waited)) Report(comm, watched, waited);
    Warn(comm, watched, waited);
    AbortIfAlone(comm, watched, waited);
    const bool is_urgent = watched.deadlock.IsPossible() || watched.crossings.ArePossible();
    if (comm.is_private && watched.inquiry.IsTimeToAsk(waited, is_urgent)) {
      Ask(comm, entered, watched);
    }
  }

  // Once: that a message waits for long and its partner too, or two ranks for each other on
  // different communicators, where it is not certain that neither can go on. The message may be a
  // very large one; or its tag may be another one, say. Another thread may come.
  void Warn(const Communicator& comm, const Watched& watched, double waited) {
    if (has_warned_ || waited < kSecondsToWarn) return;
    const State here = State::Of(comm, watched.entered);
    for (const auto& [rank, there] : watched.inquiry.answers) {
      const bool is_message =
          there.stage != Stage::kIdle && (here.IsPointToPoint() || there.IsPointToPoint());
      const bool is_crossing = watched.crossings.Times(rank) > 0;
      if (here.stage == Stage::kIdle || !(is_message || is_crossing)) continue;
      has_warned_ = true;
      process::WriteError("pfftjax: warning: " + Waits(comm, here) + ", and has waited for " +
                          std::to_string(static_cast<int>(waited)) + " s, while rank " +
                          std::to_string(rank) + " " + there.Say() +
                          ". If they never go on, look at communicators, ranks, tags and order; "
                          "PFFTJAX_TIMEOUT=60 ends such a wait\n");
      return;
    }
  }

  void Ask(const Communicator& comm, std::int64_t call, Watched& watched) {
    // All is decided by one reading. A message may be over by now, and the next one be of other
    // ranks: of two readings the first may say that it waits for a rank, and the second for none.
    State question = State::Of(comm, call);
    if (question.stage == Stage::kIdle || question.entered != call) return;
    std::vector<int> ranks;
    const int source = question.source;
    const int dest = question.dest;
    const bool is_message = question.IsPointToPoint();
    if (is_message && source != kAnybody) {
      if (source >= 0) ranks.push_back(source);
      if (dest >= 0 && dest != source) ranks.push_back(dest);
      for (int rank : watched.deadlock.WorthAsking(comm.rank)) {
        if (rank != source && rank != dest) ranks.push_back(rank);
      }
    } else {
      for (int r = 0; r < comm.size; ++r) {
        // A rank that is certain need not be asked again: a message from anybody waits for all.
        if (r != comm.rank && !(is_message && Suspected(watched, comm, r))) ranks.push_back(r);
      }
    }
    watched.inquiry.ChooseAmong(ranks, random_);
    question.round = watched.inquiry.Ask();
    for (int rank : ranks) Send(comm, rank, kAskTag, question);
  }

  [[noreturn]] static void Report(const Communicator& comm, const Watched& watched,
                                  double waited) {
    const State here = State::Of(comm, watched.entered);
    std::string text = After(waited) + Waits(comm, here);
    for (const auto& [rank, state] : watched.inquiry.answers) {
      text += "\n  rank " + std::to_string(rank) + " " + state.Say();
    }
    const auto asked = static_cast<std::size_t>(std::min(comm.size - 1, kMostAsked));
    if (watched.inquiry.answers.size() < asked) {
      text +=
          "\n  the other ranks asked gave no answer: they have not used this communicator "
          "yet, or their process is stopped or gone";
    }
    AbortJob(text);
  }

  process::Mutex mutex_;
  process::Condition wake_;
  bool started_ = false;
  bool stop_ = false;
  process::Thread thread_;
  double now_ = 0.0;  // seconds, as the thread sees them go by
  std::map<std::int64_t, Watched> watched_;
  Gatherings gatherings_{[this](const Communicator& world, int rank, const State& question) {
    Send(world, rank, kAskTag, question);
  }};
  bool has_warned_ = false;
  std::set<std::string> lines_;   // kept: see Progress::called
  std::list<Outgoing> outgoing_;  // a list: MPI keeps the addresses of the words
  std::minstd_rand random_{process::Entropy()};
  process::Mutex looks_mutex_;
  std::vector<std::function<void()>> looks_;
};

Watch& TheWatch() { return process::Lasting<Watch>(); }

}  // namespace

void StartWatch() { TheWatch().Start(); }

void AlsoWatch(std::function<void()> look) { TheWatch().Also(std::move(look)); }

void StopWatch() { TheWatch().Stop(); }

}  // namespace pfftjax

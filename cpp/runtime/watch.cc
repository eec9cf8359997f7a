#include "runtime/watch.h"

#include <algorithm>
#include <array>
#include <chrono>
#include <cstdio>
#include <cstdlib>
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
#include "base/stepped_clock.h"
#include "runtime/communicator.h"
#include "runtime/deadlock.h"
#include "runtime/errors.h"
#include "runtime/state.h"

namespace pfftjax {
namespace {

constexpr int kAskTag = 1;
constexpr int kAnswerTag = 2;
constexpr int kRounds = 2;  // answers in a row before they are believed
constexpr int kCircularRounds = 3;
constexpr double kSecondsToWarn = 8.0;
// A rank that receives from itself waits for nothing if it takes longer than this, and than a copy
// of so many bytes a second.
constexpr double kSecondsAlone = 6.0;
constexpr double kSlowestCopy = 50e6;
constexpr int kMostAsked = 32;  // ranks asked in one round, drawn at random beyond that
// How often a rank that waits for a communicator's duplicates looks for them between two answers
// that are to be believed: what the other rank did before it left has arrived by then.
constexpr std::int64_t kLooks = 10;

// Which answers are apart in time. A question that was on its way when another answer came is
// answered out of the same moment, as far as the asker can tell, however slow the messages are.
class Rounds {
 public:
  // The number of a round that begins.
  std::int64_t Ask() { return ++asked_; }
  // Whether `rank` was asked, in that round, after the last answer for which this was true.
  bool IsLater(int rank, std::int64_t round) {
    std::int64_t& heard = heard_[rank];
    if (round <= heard) return false;
    heard = asked_;
    return true;
  }

 private:
  std::int64_t asked_ = 0;
  std::map<int, std::int64_t> heard_;
};

// One communicator as the thread sees it: how long its present call has waited, and what the
// others have answered.
struct Watched {
  std::int64_t entered = -1;
  double since = 0.0;       // when it was first seen, as the watch counts time
  double next_round = 0.0;  // seconds of waiting at which to ask
  bool timed_out = false;
  Rounds rounds;
  std::map<int, State> answers;
  std::map<int, int> suspicions;  // answers in a row that cannot be reconciled with waiting
  Deadlock deadlock;
};

// The same of one whose duplicates are being made.
struct Gathering {
  double waited = 0.0;
  std::int64_t looks = 0;
  double next_round = GetOptions().patience;
  bool timed_out = false;
  Rounds rounds;
  std::map<int, State> answers;
  std::map<int, int> suspicions;
  std::map<int, std::int64_t> suspected_at;  // how often this rank had looked
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
      if (comm->is_gathering.load(std::memory_order_acquire)) {
        LookAtGathering(*comm, gatherings_[i], passed);
      } else {
        gatherings_.erase(i);
      }
    }
    outgoing_.remove_if([](Outgoing& out) {
      int done = 0;
      Mpi()->test(&out.request, &done);
      return done != 0;
    });
    const std::lock_guard lock(looks_mutex_);
    for (const std::function<void()>& look : looks_) look();
  }

  void Send(const Communicator& comm, int rank, int tag, const State& state) {
    outgoing_.push_back({state.ToWords(), 0});
    Outgoing& out = outgoing_.back();
    Mpi()->send_words_start(out.words.data(), State::kWords, rank, tag, comm.control,
                            &out.request);
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
      State answer = IsAboutGathering(asked.question) ? State::Anywhere(asked.question)
                                                      : State::Of(comm, asked.question);
      answer.round = asked.round;
      Send(comm, source, kAnswerTag, answer);
    }
  }

  void Collect(const Communicator& comm, Watched& watched) {
    int source = 0;
    State answer{};
    while (Receive(comm, kAnswerTag, &source, &answer)) {
      if (IsAboutGathering(answer.question)) {
        HearOfGathering(source, answer);
        continue;
      }
      const std::int64_t entered = comm.progress.entered;
      const int from = comm.progress.source;
      const int to = comm.progress.dest;
      const State here = State::Of(comm, entered);
      if (answer.question != entered || here.stage == Stage::kIdle) continue;
      // Read again: what was read in between may be of the call after the one asked about.
      if (comm.progress.entered != entered) continue;
      watched.answers[source] = answer;
      const bool is_later = watched.rounds.IsLater(source, answer.round);
      watched.deadlock.Hear(source, answer.AsWait(), is_later);
      AbortIfCircular(comm, here, watched);
      const std::string why = WhyNever(here, source, answer);
      int& times = watched.suspicions[source];
      times = why.empty() ? 0 : times + is_later;
      if (times > 0 && is_later) Postpone(watched, now_ - watched.since);
      // Twice, a while apart: the first may have crossed with the end of the wait. A message waits
      // for either partner, and may have come from one that has left since.
      const bool certain = here.IsPointToPoint()
                               ? Suspected(watched, comm, from) && Suspected(watched, comm, to)
                               : times >= kRounds;
      if (times >= kRounds && certain) AbortJob((Waits(comm, here) + ", but " + why).c_str());
    }
  }

  // Answers of a whole circle, three times: what was on its way at the first has arrived since.
  // The first of its ranks speaks; the others do if it does not.
  static void AbortIfCircular(const Communicator& comm, const State& here,
                              const Watched& watched) {
    const std::vector<int> circle =
        watched.deadlock.Circle(comm.rank, here.AsWait(), kCircularRounds);
    if (circle.empty()) return;
    const int first = *std::min_element(circle.begin(), circle.end());
    if (first != comm.rank &&
        watched.deadlock.Circle(comm.rank, here.AsWait(), kCircularRounds + 1).empty()) {
      return;
    }
    std::string text = Waits(comm, here);
    for (std::size_t i = 1; i < circle.size(); ++i) {
      text += "; it waits for rank " + std::to_string(circle[i]) + ", which " +
              watched.answers.at(circle[i]).Say();
    }
    text += "; and that rank waits for rank " + std::to_string(comm.rank) +
            ": none of them can go on. Let one of them come to the other's call first; sendrecv "
            "sends and receives at once";
    AbortJob(text.c_str());
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
    AbortJob((Waits(comm, here) +
              ", and waits for a message from itself that it has not sent: let the send come "
              "first; sendrecv sends and receives at once")
                 .c_str());
  }

  // Whether nothing can come from (or be taken by) `rank`, which may be kNobody or kAnybody.
  static bool Suspected(const Watched& watched, const Communicator& comm, int rank) {
    if (rank == kNobody) return true;
    if (rank == kAnybody) {
      for (int other = 0; other < comm.size; ++other) {
        if (other != comm.rank && !Suspected(watched, comm, other)) return false;
      }
      return true;
    }
    const auto found = watched.suspicions.find(rank);
    return found != watched.suspicions.end() && found->second >= kRounds;
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
    const std::int64_t wanted = here.passed + (here.stage == Stage::kChecking ? 1 : 0);
    // A call under way is still made by a rank that is about to leave.
    const std::int64_t made = there.passed + (there.stage == Stage::kChecking ? 1 : 0);
    if (there.IsLeaving() && made < wanted) {
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
      watched.since = now_;
      watched.next_round = GetOptions().patience;
      return;
    }
    const double waited = now_ - watched.since;
    if (HasTimedOut(watched, waited)) Report(comm, watched, waited);
    Warn(comm, watched, waited);
    AbortIfAlone(comm, watched, waited);
    if (comm.is_private && IsTimeToAsk(watched, waited)) Ask(comm, entered, watched);
  }

  // Whether the other ranks have had time to answer since PFFTJAX_TIMEOUT.
  template <typename Waiting>
  static bool HasTimedOut(Waiting& watched, double waited) {
    const double timeout = GetOptions().timeout;
    if (timeout > 0 && waited > timeout && !watched.timed_out) {
      watched.timed_out = true;
      watched.next_round = waited;
    }
    return watched.timed_out && waited > timeout + 1.0;
  }

  template <typename Waiting>
  static bool IsTimeToAsk(Waiting& watched, double waited) {
    if (waited < watched.next_round) return false;
    // The second round follows soon, and so does one that may confirm a suspicion; the others
    // are ever rarer.
    const double patience = GetOptions().patience;
    const bool soon = waited < 2 * patience || Suspects(watched) || MayBeCircular(watched);
    watched.next_round = waited + (soon ? patience : std::min(waited, 60.0));
    return true;
  }

  // The next round waits: what the other rank sent before it gave rise to a suspicion may take
  // that long to come.
  template <typename Waiting>
  static void Postpone(Waiting& watched, double waited) {
    watched.next_round = std::max(watched.next_round, waited + GetOptions().patience);
  }

  // Questions about communicators that are being duplicated go over MPI_COMM_WORLD, and have
  // negative numbers: one for each communicator.
  static bool IsAboutGathering(std::int64_t question) { return question < 0; }

  void LookAtGathering(const Communicator& comm, Gathering& gathering, double passed) {
    // Nobody looks while it is interrupted, or has no core to run on.
    if (comm.looks == gathering.looks) return;
    gathering.looks = comm.looks;
    gathering.waited += passed;
    if (HasTimedOut(gathering, gathering.waited)) ReportGathering(comm, gathering);
    if (!IsTimeToAsk(gathering, gathering.waited) || comm.world_ranks.empty()) return;
    const Communicator* world = FindCommunicator(0);
    if (!world || !world->is_private) return;
    std::vector<int> ranks;
    for (int r = 0; r < comm.size; ++r) {
      if (r != comm.rank && comm.world_ranks[r] >= 0) ranks.push_back(r);
    }
    ChooseAmong(ranks, gathering);
    State question = State::Anywhere(-1 - comm.number);
    question.round = gathering.rounds.Ask();
    for (int rank : ranks) Send(*world, comm.world_ranks[rank], kAskTag, question);
  }

  void HearOfGathering(int world_rank, const State& answer) {
    const std::int64_t number = -1 - answer.question;
    const Communicator* comm = FindCommunicator(number);
    const auto found = gatherings_.find(number);
    if (!comm || !comm->is_gathering || found == gatherings_.end()) return;
    Gathering& gathering = found->second;
    const auto& ranks = comm->world_ranks;
    const auto at = std::find(ranks.begin(), ranks.end(), world_rank);
    const auto rank = static_cast<int>(at - ranks.begin());
    gathering.answers[rank] = answer;
    int& times = gathering.suspicions[rank];
    std::int64_t& looks = gathering.suspected_at[rank];
    if (!answer.IsLeaving()) {
      times = 0;
    } else if (gathering.rounds.IsLater(rank, answer.round) &&
               (times == 0 || comm->looks >= looks + kLooks)) {
      ++times;
      looks = comm->looks;
      Postpone(gathering, gathering.waited);
    }
    if (times < kRounds) return;
    AbortJob((Gathers(*comm) + ", but " + Member(*comm, rank) +
              " has ended; every rank of a communicator must make the same collectives: let all "
              "of them call " +
              comm->gathers_for + ", or make a communicator of those that do")
                 .c_str());
  }

  static std::string Gathers(const Communicator& comm) {
    return comm.Where() + " (communicator " + std::to_string(comm.number) + ") waits in " +
           comm.gathers_for + " for the other ranks to come to their first collective on this " +
           "communicator";
  }

  // "rank 1 (rank 3 of MPI_COMM_WORLD)"
  static std::string Member(const Communicator& comm, int rank) {
    const std::string here = "rank " + std::to_string(rank);
    const int in_world = comm.world_ranks[rank];
    if (in_world == rank) return here;
    return here + " (rank " + std::to_string(in_world) + " of MPI_COMM_WORLD)";
  }

  [[noreturn]] static void ReportGathering(const Communicator& comm, const Gathering& gathering) {
    std::string text = After(gathering.waited) + Gathers(comm);
    for (const auto& [rank, state] : gathering.answers) {
      text += "\n  " + Member(comm, rank) + " " + state.SayAnywhere();
    }
    AbortJob(text.c_str());
  }

  // "after 61.2 s (PFFTJAX_TIMEOUT) "
  static std::string After(double waited) {
    std::array<char, 64> text{};
    std::snprintf(text.data(), text.size(), "after %.1f s (PFFTJAX_TIMEOUT) ", waited);
    return text.data();
  }

  // Once: that a message waits for long and its partner too, where it is not certain that neither
  // can go on. It may be a very large one; or its tag may be another one, say.
  void Warn(const Communicator& comm, const Watched& watched, double waited) {
    if (has_warned_ || waited < kSecondsToWarn) return;
    const State here = State::Of(comm, watched.entered);
    for (const auto& [rank, there] : watched.answers) {
      const bool is_message = here.IsPointToPoint() || there.IsPointToPoint();
      if (here.stage == Stage::kIdle || there.stage == Stage::kIdle || !is_message) continue;
      has_warned_ = true;
      process::WriteError("pfftjax: warning: " + Waits(comm, here) + ", and has waited for " +
                          std::to_string(static_cast<int>(waited)) + " s, while rank " +
                          std::to_string(rank) + " " + there.Say() +
                          ". If they never go on, look at ranks, tags and order; "
                          "PFFTJAX_TIMEOUT=60 ends such a wait\n");
      return;
    }
  }

  template <typename Waiting>
  static bool Suspects(const Waiting& watched) {
    return std::any_of(watched.suspicions.begin(), watched.suspicions.end(),
                       [](const auto& entry) { return entry.second > 0; });
  }

  static bool MayBeCircular(const Watched& watched) { return watched.deadlock.IsPossible(); }
  static bool MayBeCircular(const Gathering&) { return false; }

  void Ask(const Communicator& comm, std::int64_t call, Watched& watched) {
    std::vector<int> ranks;
    const Progress& now = comm.progress;
    const bool is_message = IsMessage(now.operation);
    if (is_message && now.source != kAnybody) {
      if (now.source >= 0) ranks.push_back(now.source);
      if (now.dest >= 0 && now.dest != now.source) ranks.push_back(now.dest);
      for (int rank : watched.deadlock.WorthAsking(comm.rank)) {
        if (rank != now.source && rank != now.dest) ranks.push_back(rank);
      }
    } else {
      for (int r = 0; r < comm.size; ++r) {
        // Whose answer is certain need not be asked again: a message from anybody waits for all.
        if (r != comm.rank && !(is_message && Suspected(watched, comm, r))) ranks.push_back(r);
      }
    }
    ChooseAmong(ranks, watched);
    State question = State::Of(comm, call);
    question.round = watched.rounds.Ask();
    for (int rank : ranks) Send(comm, rank, kAskTag, question);
  }

  // Not all of very many.
  template <typename Waiting>
  void ChooseAmong(std::vector<int>& ranks, const Waiting& watched) {
    if (ranks.size() > kMostAsked) {
      std::shuffle(ranks.begin(), ranks.end(), random_);
      // Those under suspicion are asked again, whoever else is.
      std::stable_partition(ranks.begin(), ranks.end(), [&](int rank) {
        const auto found = watched.suspicions.find(rank);
        return found != watched.suspicions.end() && found->second > 0;
      });
      ranks.resize(kMostAsked);
    }
  }

  [[noreturn]] static void Report(const Communicator& comm, const Watched& watched,
                                  double waited) {
    const State here = State::Of(comm, watched.entered);
    std::string text = After(waited) + Waits(comm, here);
    for (const auto& [rank, state] : watched.answers) {
      text += "\n  rank " + std::to_string(rank) + " " + state.Say();
    }
    const auto asked = static_cast<std::size_t>(std::min(comm.size - 1, kMostAsked));
    if (watched.answers.size() < asked) {
      text +=
          "\n  the other ranks asked gave no answer: they have not used this communicator "
          "yet, or their process is stopped or gone";
    }
    AbortJob(text.c_str());
  }

  process::Mutex mutex_;
  process::Condition wake_;
  bool started_ = false;
  bool stop_ = false;
  process::Thread thread_;
  double now_ = 0.0;  // seconds, as the thread sees them go by
  std::map<std::int64_t, Watched> watched_;
  std::map<std::int64_t, Gathering> gatherings_;
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

void AnnounceDeparture() { ++*announced_departures; }

void CompleteDeparture() { ++*completed_departures; }

void AbortJob(const char* text) {
  const std::string line = std::string("pfftjax: ") + text + "\npfftjax: ending the job\n";
  process::WriteError(line);
  // Launchers kill at once, before they have passed on what was written (MPICH's does).
  process::SleepFor(std::chrono::milliseconds(300));
  Mpi()->abort(1);
  std::abort();
}

}  // namespace pfftjax

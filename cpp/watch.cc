#include "watch.h"

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
#include <string>
#include <utility>
#include <vector>

#include "communicator.h"
#include "errors.h"
#include "options.h"

namespace pfftjax {
namespace {

using Clock = process::Clock;
using Seconds = std::chrono::duration<double>;

constexpr int kAskTag = 1;
constexpr int kAnswerTag = 2;
constexpr int kRounds = 2;      // answers in a row before they are believed
constexpr int kMostAsked = 32;  // ranks asked in one round, drawn at random beyond that

process::Own<process::Atomic<bool>> is_leaving;

// What one rank tells another about itself.
struct State {
  std::int64_t question;  // echoed: the asker's count of calls begun
  std::int64_t passed;
  Stage stage;
  Operation operation;
  Element element;
  std::int64_t count;
  bool leaving;

  static constexpr int kWords = 7;
  using Words = std::array<std::int64_t, kWords>;

  static State Of(const Communicator& comm, std::int64_t question) {
    const Progress& now = comm.progress;
    // First: who has left has passed no fewer than is read after it.
    const bool leaving = *is_leaving;
    const std::int64_t entered = now.entered;
    State state{question, now.passed, now.stage, now.operation, now.element, now.count, leaving};
    // The call moved on while it was read: it waits for nobody. `entered` last: it counts before
    // the stage of a new call is set.
    if (now.passed != state.passed || now.stage != state.stage || now.entered != entered) {
      state.stage = Stage::kIdle;
    }
    return state;
  }
  static State From(const Words& w) {
    return {w[0],
            w[1],
            static_cast<Stage>(w[2]),
            static_cast<Operation>(w[3]),
            static_cast<Element>(w[4]),
            w[5],
            w[6] != 0};
  }
  Words ToWords() const {
    return {question,
            passed,
            static_cast<std::int64_t>(stage),
            static_cast<std::int64_t>(operation),
            static_cast<std::int64_t>(element),
            count,
            leaving};
  }
  bool IsPointToPoint() const { return IsMessage(operation); }

  // "in alltoall float32[12], after 3 collectives"
  std::string Say() const {
    const std::string after = ", after " + std::to_string(passed - (InCollective() ? 1 : 0)) +
                              " collectives on this communicator";
    if (stage == Stage::kIdle) {
      return (leaving ? "has ended" : "is in no operation of pfftjax") + after;
    }
    return std::string(stage == Stage::kChecking ? "waits in the check before " : "is in ") +
           Describe(operation, element, count) + after;
  }
  bool InCollective() const { return stage == Stage::kRunning && !IsPointToPoint(); }
};

// One communicator as the thread sees it: how long its present call has waited, and what the
// others have answered.
struct Watched {
  std::int64_t entered = -1;
  Clock::time_point since;
  double next_round = 0.0;  // seconds of waiting at which to ask
  bool timed_out = false;
  std::map<int, State> answers;
  std::map<int, int> suspicions;  // answers in a row that cannot be reconciled with waiting
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
    const Seconds tick(GetOptions().tick);
    std::unique_lock lock(mutex_);
    while (!wake_.wait_for(lock, tick, [this] { return stop_; })) {
      lock.unlock();
      Tick();
      lock.lock();
    }
  }

  void Tick() {
    for (std::int64_t i = 0; i < CommunicatorCount(); ++i) {
      Communicator* comm = FindCommunicator(i);
      if (!comm || comm->size == 1) continue;
      Watched& watched = watched_[i];
      if (comm->is_private) {
        Answer(*comm);
        Collect(*comm, watched);
      }
      Look(*comm, watched);
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
      Send(comm, source, kAnswerTag, State::Of(comm, asked.question));
    }
  }

  void Collect(const Communicator& comm, Watched& watched) {
    int source = 0;
    State answer{};
    while (Receive(comm, kAnswerTag, &source, &answer)) {
      const State here = State::Of(comm, comm.progress.entered);
      if (answer.question != here.question || here.stage == Stage::kIdle) continue;
      watched.answers[source] = answer;
      const std::string why = WhyNever(here, source, answer);
      int& times = watched.suspicions[source];
      times = why.empty() ? 0 : times + 1;
      // Twice, a round apart: the first may have crossed with the end of the wait. A message waits
      // for either partner, and may have come from one that has left since.
      const bool certain = here.IsPointToPoint()
                               ? Suspected(watched, comm, comm.progress.source) &&
                                     Suspected(watched, comm, comm.progress.dest)
                               : times >= kRounds;
      if (times >= kRounds && certain) AbortJob((Waits(comm, here) + ", but " + why).c_str());
    }
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

  // Why `rank`, which answered `there`, can never meet this rank, which waits `here`.
  static std::string WhyNever(const State& here, int rank, const State& there) {
    const std::string who = "rank " + std::to_string(rank) + " ";
    if (here.IsPointToPoint()) {
      if (there.leaving) return who + "has ended without the matching call";
      return {};
    }
    // The collective waited for is number `here.passed + 1` while checking, `here.passed` after.
    const std::int64_t wanted = here.passed + (here.stage == Stage::kChecking ? 1 : 0);
    if (there.leaving && there.passed < wanted) {
      return who + there.Say() + "; every rank of a communicator must make the same collectives";
    }
    if (here.stage == Stage::kChecking && there.passed >= wanted) {
      return who + there.Say() +
             ": the ranks run different programs; make every rank call the "
             "same collectives in the same order (PFFTJAX_CHECK=1 finds where)";
    }
    if (here.InCollective() && there.InCollective() && there.passed == here.passed &&
        (there.operation != here.operation ||
         // All ranks of a transform say the same of it.
         (here.operation == Operation::kFft &&
          (there.count != here.count || there.element != here.element)))) {
      return who + there.Say() +
             ": the ranks call different collectives; PFFTJAX_CHECK=1 finds "
             "where they part";
    }
    return {};
  }

  static std::string Waits(const Communicator& comm, const State& here) {
    return comm.Where() + " (communicator " + std::to_string(comm.number) + ") " + here.Say();
  }

  void Look(Communicator& comm, Watched& watched) {
    const std::int64_t entered = comm.progress.entered;
    if (comm.progress.stage == Stage::kIdle || entered != watched.entered) {
      watched = Watched{};
      watched.entered = entered;
      watched.since = Clock::now();
      watched.next_round = GetOptions().patience;
      return;
    }
    const double waited = Seconds(Clock::now() - watched.since).count();
    const double timeout = GetOptions().timeout;
    if (timeout > 0 && waited > timeout && !watched.timed_out) {
      watched.timed_out = true;
      watched.next_round = waited;
    } else if (watched.timed_out && waited > timeout + 1.0) {
      Report(comm, watched, waited);
    }
    if (comm.is_private && waited >= watched.next_round) {
      // The second round follows soon, and so does one that may confirm a suspicion; the others
      // are ever rarer.
      const double patience = GetOptions().patience;
      const bool soon = waited < 2 * patience || Suspects(watched);
      watched.next_round = waited + (soon ? patience : std::min(waited, 60.0));
      Ask(comm, entered, watched);
    }
  }

  static bool Suspects(const Watched& watched) {
    return std::any_of(watched.suspicions.begin(), watched.suspicions.end(),
                       [](const auto& entry) { return entry.second > 0; });
  }

  void Ask(const Communicator& comm, std::int64_t question, const Watched& watched) {
    std::vector<int> ranks;
    const Progress& now = comm.progress;
    const bool is_message = IsMessage(now.operation);
    if (is_message && now.source != kAnybody) {
      if (now.source >= 0) ranks.push_back(now.source);
      if (now.dest >= 0 && now.dest != now.source) ranks.push_back(now.dest);
    } else {
      for (int r = 0; r < comm.size; ++r) {
        // Whose answer is certain need not be asked again: a message from anybody waits for all.
        if (r != comm.rank && !(is_message && Suspected(watched, comm, r))) ranks.push_back(r);
      }
    }
    if (ranks.size() > kMostAsked) {
      std::shuffle(ranks.begin(), ranks.end(), random_);
      // Those under suspicion are asked again, whoever else is.
      std::stable_partition(ranks.begin(), ranks.end(), [&](int rank) {
        const auto found = watched.suspicions.find(rank);
        return found != watched.suspicions.end() && found->second > 0;
      });
      ranks.resize(kMostAsked);
    }
    for (int rank : ranks) Send(comm, rank, kAskTag, State::Of(comm, question));
  }

  [[noreturn]] static void Report(const Communicator& comm, const Watched& watched,
                                  double waited) {
    const State here = State::Of(comm, watched.entered);
    std::array<char, 64> head{};
    std::snprintf(head.data(), head.size(), "after %.1f s (PFFTJAX_TIMEOUT) ", waited);
    std::string text = head.data() + Waits(comm, here);
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
  std::map<std::int64_t, Watched> watched_;
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

void AnnounceLeaving() { *is_leaving = true; }

void AbortJob(const char* text) {
  const std::string line = std::string("pfftjax: ") + text + "\npfftjax: ending the job\n";
  process::WriteError(line);
  // Launchers kill at once, before they have passed on what was written (MPICH's does).
  process::SleepFor(std::chrono::milliseconds(300));
  Mpi()->abort(1);
  std::abort();
}

}  // namespace pfftjax

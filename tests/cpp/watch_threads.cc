// The threads of one rank under ThreadSanitizer: calls (call.cc), threads that make communicators
// (communicator.cc), the watch (watch.cc) and the way out (departure.cc). The other ranks are
// threads that answer and ask as their watches would.
//
// Built and run by tests/jobs/test_threads.py, on the MPI of peers_mpi.h.
#include <array>
#include <atomic>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <mutex>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "base/options.h"
#include "mpi/tags.h"
#include "peers_mpi.h"
#include "runtime/call.h"
#include "runtime/communicator.h"
#include "runtime/departure.h"

namespace pfftjax::peers {
namespace {

using Clock = std::chrono::steady_clock;
using std::chrono::microseconds;
using std::chrono::milliseconds;

std::atomic<bool> announced{false};  // LeaveStart was called, or is about to be
std::atomic<bool> joined{false};     // LeavePoll has said that all ranks leave
std::atomic<bool> peers_end{false};
std::atomic<std::int64_t> calls{0};
std::atomic<std::int64_t> clashes{0};
std::atomic<std::int64_t> refusals{0};
std::atomic<std::int64_t> answers{0};    // that the peers got
std::atomic<std::int64_t> questions{0};  // that they were asked

void Pause(microseconds time) { std::this_thread::sleep_for(time); }

// ---- The calls -------------------------------------------------------------------------------

// Operation and element follow from the count, so that an answer made of two calls is noticed.
constexpr bool IsMessageCall(std::int64_t count) { return count % 4 == 0; }

Operation OperationOf(std::int64_t count) {
  if (IsMessageCall(count)) return Operation::kSendrecv;
  return static_cast<Operation>(1 + count % 14);
}

Element ElementOf(std::int64_t count) { return static_cast<Element>(count % 15); }

// How many of the calls 1 ... `count` are collectives.
std::int64_t Collectives(std::int64_t count) { return count - count / 4; }

// Waits until all peers have come. They are slow now and then, so that the watch asks them.
int Meet(const Communicator& comm) {
  Channel& channel = ChannelOf(comm.data ? comm.data : comm.user);
  const std::int64_t meeting = channel.met.fetch_add(1, kRelaxed) + 1;
  for (int rank = 1; rank < channel.size; ++rank) {
    while (channel.peer_met[rank].load(kRelaxed) < meeting) {
      Pause(microseconds(100));
      Expect(!over, "a call was under way in MPI_Finalize");
    }
  }
  return 0;
}

enum class Outcome { kDone, kClash, kRefused };

// Call `count` on `comm`; the first of a program where `signature` is not 0.
template <typename Body>
Outcome Make(std::int64_t comm, std::int64_t count, std::int64_t signature, Body&& body) {
  const CallSite site{OperationOf(count), comm, FindCommunicator(comm)->size, signature,
                      signature == 0 ? "" : "program"};
  Payload payload{ElementOf(count), count};
  if (IsMessageCall(count)) {
    payload.source = count % 8 == 0 ? kAnybody : 1;
    payload.dest = 2;
  }
  const ffi::Error error = Run(site, payload, body);
  if (!error.failure()) {
    calls.fetch_add(1, kRelaxed);
    return Outcome::kDone;
  }
  if (error.message().find("another thread") != std::string::npos) {
    clashes.fetch_add(1, kRelaxed);
    return Outcome::kClash;
  }
  Expect(error.message().find("after MPI_Finalize") != std::string::npos, error.message());
  refusals.fetch_add(1, kRelaxed);
  return Outcome::kRefused;
}

int Body(const Communicator& comm, std::int64_t count) { return count % 60 < 2 ? Meet(comm) : 0; }

// One thread on a communicator: call n has count n. What is asked about it is known exactly.
void CallInOrder(std::int64_t comm, const std::atomic<bool>& stop) {
  for (std::int64_t n = 1; !stop.load(kRelaxed); ++n) {
    const auto outcome = Make(comm, n, n % 64, [&](Communicator& c) { return Body(c, n); });
    Expect(outcome == Outcome::kDone, "a call failed");
  }
}

// One of several threads on a communicator, until calls are refused.
void CallUntilRefused(std::int64_t comm, unsigned seed) {
  std::minstd_rand random(seed);
  for (;;) {
    const auto n = static_cast<std::int64_t>(random() % 1000);
    const auto outcome = Make(comm, n, n % 8, [&](Communicator& c) {
      const int code = Meet(c);
      // Long ones where the way out no longer waits, so that MPI_Finalize finds one under way.
      Pause(microseconds(joined.load(kRelaxed) ? 100'000 : random() % 3000));
      return code + Meet(c);
    });
    if (outcome == Outcome::kRefused) return;
    // The way out waits for a moment without calls.
    Pause(microseconds(random() % (joined.load(kRelaxed) ? 500 : 6000)));
  }
}

// ---- The other ranks -------------------------------------------------------------------------

struct Seen {
  std::int64_t asked = 0;
  std::int64_t answered = 0;
  std::int64_t passed = 0;
  bool leaving = false;
  std::int64_t suspect = -1;
  Clock::time_point next_asking;
};

struct State {
  explicit State(const Message& m)
      : question(m.words[0]),
        passed(m.words[1]),
        stage(static_cast<Stage>(m.words[2])),
        operation(static_cast<Operation>(m.words[3])),
        element(static_cast<Element>(m.words[4])),
        count(m.words[5]),
        leaving(m.words[6] != 0) {}
  std::int64_t question, passed;
  Stage stage;
  Operation operation;
  Element element;
  std::int64_t count;
  bool leaving;
};

constexpr int kInOrder = 2;  // of the first communicators, one thread each

void Check(int group, const Message& message, Seen& seen) {
  const State state(message);
  const std::string all = "stage " + std::to_string(static_cast<int>(state.stage)) + ", passed " +
                          std::to_string(state.passed) + ", operation " +
                          std::to_string(static_cast<int>(state.operation)) + ", count " +
                          std::to_string(state.count) + " on " + std::to_string(group);
  Expect(state.passed >= seen.passed, "passed fewer than before: " + all);
  Expect(state.leaving || !seen.leaving, "leaves no longer");
  Expect(!state.leaving || announced, "leaves already");
  seen.passed = state.passed;
  seen.leaving = state.leaving;
  if (state.stage == Stage::kIdle) return;
  Expect(state.operation == OperationOf(state.count), "the operation of another call: " + all);
  Expect(state.element == ElementOf(state.count), "the element of another call: " + all);
  if (group >= kInOrder) return;
  const bool checking = state.stage == Stage::kChecking;
  Expect(state.passed == Collectives(state.count) - (checking ? 1 : 0), "number of calls: " + all);
}

// This thread does what a watch does for its rank on one communicator.
void Watch(int rank, int number, Channel& control, Seen& seen) {
  Message message{};
  while (control.mail.Take({rank, kAnswerTag}, &message)) {
    Expect(message.words[0] == ++seen.answered, "an answer to another question");
    Check(number, message, seen);
    answers.fetch_add(1, kRelaxed);
    seen.next_asking = Clock::now() + milliseconds(number < kInOrder ? 2 : 10);
  }
  while (control.mail.Take({rank, kAskTag}, &message)) {
    questions.fetch_add(1, kRelaxed);
    // This rank is where the asker is, but its first answer crosses with that: it has left.
    Message answer = message;
    answer.source = rank;
    answer.words[6] = 0;
    if (message.words[0] != seen.suspect) {
      answer.words[1] = 0;
      answer.words[6] = 1;
    }
    seen.suspect = message.words[0];
    control.mail.Put({0, kAnswerTag}, answer);
  }
  // The watch answers as long as it is asked: with one asker, and pauses, it gets to the rest.
  if (number % 2 != rank % 2 || seen.asked != seen.answered || Clock::now() < seen.next_asking) {
    return;
  }
  for (int i = 0; i < (number < kInOrder ? 512 : 16); ++i) {
    control.mail.Put({0, kAskTag}, {rank, {++seen.asked, 0, 0, 0, 0, 0, 0, 0, 0}});
  }
}

void MeetRankZero(int rank, Channel& channel) {
  const std::int64_t met = channel.peer_met[rank].load(kRelaxed);
  if (channel.met.load(kRelaxed) == met) return;
  channel.peer_met[rank].store(met + 1, kRelaxed);
}

void BePeer(int rank) {
  std::minstd_rand random(rank);
  std::array<Seen, kGroups> seen;
  std::array<Clock::time_point, kGroups> slow{};
  while (!peers_end.load(kRelaxed)) {
    const int count = used_groups.load(std::memory_order_acquire);
    for (int i = 0; i < count; ++i) {
      Group& group = *groups[i];
      if (group.user.size == 1) continue;
      if (group.duplicates.load(kRelaxed) == 2 && !over) {
        Watch(rank, i, group.control, seen[i]);
        if (group.control.departures.load(kRelaxed) > 0 || (announced && random() % 8 == 0)) {
          group.control.peer_has_left[rank].store(true, kRelaxed);
        }
      }
      if (Clock::now() < slow[i]) continue;
      // Long enough for two rounds of questions.
      if (random() % 1000 == 0) slow[i] = Clock::now() + milliseconds(60);
      MeetRankZero(rank, group.user);
      MeetRankZero(rank, group.data);
    }
    Pause(microseconds(200));
  }
}

// ---- Rank 0 ----------------------------------------------------------------------------------

std::mutex python;  // the lock of the interpreter

std::int64_t Register(int size) {
  const std::lock_guard lock(python);
  const int number = used_groups.load(kRelaxed);
  Expect(number < kGroups, "room for communicators");
  groups[number] = std::make_unique<Group>(size);
  used_groups.store(number + 1, std::memory_order_release);
  const std::int64_t added = AddCommunicator(groups[number].get());
  Expect(added == number, "the number of a communicator");
  return added;
}

// As as_private in pfftjax/_runtime/communicators.py.
void BecomePrivate(std::int64_t comm) {
  {
    const std::lock_guard lock(python);
    Expect(MakePrivateStart(*FindCommunicator(comm), "allreduce") == 0, "duplicate_start");
  }
  for (bool done = false; !done; Pause(microseconds(100))) {
    const std::lock_guard lock(python);
    Expect(MakePrivatePoll(*FindCommunicator(comm), &done) == 0, "duplicate_poll");
  }
}

// The error of a duplicate that cannot be made stays: nothing is tried again, which other ranks
// would not do, and nothing says that this rank waits for them.
void FailToBecomePrivate(int possible_duplicates) {
  const std::int64_t number = Register(kRanks);
  groups[number]->possible_duplicates = possible_duplicates;
  Communicator& comm = *FindCommunicator(number);
  for (int attempt = 0; attempt < 2; ++attempt) {
    bool done = true;
    Expect(MakePrivateStart(comm, "allreduce") == kNoDuplicate, "duplicate_start did not fail");
    Expect(MakePrivatePoll(comm, &done) == kNoDuplicate && !done, "duplicate_poll did not fail");
    Expect(!comm.is_gathering && !comm.is_duplicating, "waits for duplicates that nobody makes");
  }
  Expect(groups[number]->duplicates == possible_duplicates, "tried again");
}

// A thread of Python's that makes communicators, and calls on them.
void KeepRegistering(int communicators, unsigned seed, microseconds pause) {
  std::minstd_rand random(seed);
  for (int i = 0; i < communicators; ++i) {
    const std::int64_t comm = Register(random() % 8 == 0 ? 1 : kRanks);
    // One from jax.export becomes private in its first call.
    if (random() % 2 == 0) BecomePrivate(comm);
    for (std::int64_t n = 1; n < 30; ++n) {
      const auto body = [&](Communicator& c) { return Body(c, n); };
      Expect(Make(comm, n, 0, body) == Outcome::kDone, "a call on a new communicator failed");
    }
    Pause(pause);
  }
}

// A call under way holds back the way out, for as long as it takes.
void LeaveUnderACall(std::int64_t comm) {
  std::atomic<bool> has_begun{false};
  std::atomic<bool> may_end{false};
  std::thread caller([&] {
    const auto body = [&](Communicator&) {
      has_begun.store(true, kRelaxed);
      while (!may_end.load(kRelaxed)) Pause(microseconds(100));
      return 0;
    };
    Expect(Make(comm, 1, 0, body) == Outcome::kDone, "the call that the way out waits for failed");
  });
  while (!has_begun.load(kRelaxed)) Pause(microseconds(100));
  announced = true;
  LeaveStart();
  // Until the watch has asked both peers twice.
  const std::int64_t before = questions;
  for (int i = 0; questions < before + 4; ++i) {
    Expect(i < 5000, "the watch asks where a call waits");
    const std::lock_guard lock(python);
    Expect(!LeavePoll(), "the way out waits for a call");
    Pause(milliseconds(1));
  }
  may_end.store(true, kRelaxed);
  caller.join();
}

void Main(double seconds) {
  Options& options = GetOptions();
  options.tick = 0.001;
  options.patience = 0.02;
  LoadMpi("");  // this program itself

  std::vector<std::thread> peers;
  for (int rank = 1; rank < kRanks; ++rank) peers.emplace_back(BePeer, rank);
  for (int i = 0; i < kInOrder; ++i) Register(kRanks);
  const std::int64_t shared = Register(kRanks);
  const std::int64_t alone = Register(1);
  const std::int64_t held = Register(kRanks);

  for (int possible = 0; possible < 2; ++possible) FailToBecomePrivate(possible);

  // The watch looks at each of these before any thread has called on it.
  for (int i = 0; i < 16; ++i, Pause(milliseconds(4))) BecomePrivate(Register(kRanks));

  std::atomic<bool> stop{false};
  std::vector<std::thread> ordered;
  for (int i = 0; i < kInOrder; ++i) {
    ordered.emplace_back([&stop, i] {
      if (i == 0) BecomePrivate(i);  // the other one in its first call
      CallInOrder(i, stop);
    });
  }
  std::vector<std::thread> late;
  for (unsigned i = 0; i < 2; ++i) late.emplace_back(CallUntilRefused, shared, i);
  late.emplace_back(CallUntilRefused, alone, 2);
  constexpr int kNew = 12;
  const auto pause = microseconds(static_cast<std::int64_t>(seconds * 1e6 / kNew));
  for (unsigned i = 0; i < 2; ++i) ordered.emplace_back(KeepRegistering, kNew, i, pause);

  Pause(microseconds(static_cast<std::int64_t>(seconds * 8e5)));
  LeaveUnderACall(held);
  stop.store(true, kRelaxed);
  // As atexit does, while another thread is in MPI_Finalize, without Python's lock.
  std::thread leaver(Leave);
  for (bool done = false; !done; Pause(milliseconds(1))) {
    const std::lock_guard lock(python);
    done = LeavePoll();
  }
  leaver.join();
  joined.store(true, kRelaxed);
  for (std::thread& thread : ordered) thread.join();
  Pause(milliseconds(10));
  at_finalize();
  over = true;
  for (std::thread& thread : late) thread.join();
  peers_end.store(true, kRelaxed);
  for (std::thread& thread : peers) thread.join();

  Expect(refusals == 3, "a thread was not refused");
  Expect(clashes > 0, "two calls never met");
  Expect(answers > 0, "nothing was answered");
  std::printf("all right: %ld calls, %ld met another, %ld answers, %ld questions\n",
              static_cast<long>(calls), static_cast<long>(clashes), static_cast<long>(answers),
              static_cast<long>(questions));
}

}  // namespace
}  // namespace pfftjax::peers

extern "C" const pfftjax::MpiApi* pfftjax_mpi_api() { return pfftjax::peers::FakeMpi(); }

int main(int count, char** arguments) {
  pfftjax::peers::Main(count > 1 ? std::atof(arguments[1]) : 4.0);
}

// What a rank's threads see of each other where loads find older values, as on Arm: the watch of
// calls that go on, and whoever finalizes MPI of calls that begin.
#include "base/options.h"
#include "runtime/call.h"
#include "runtime/state.h"
#include "scenario.h"

namespace pfftjax::simulated {
namespace {

// All that a call says of itself follows from its number: what is made of two calls is noticed.
constexpr bool IsMessageCall(std::int64_t number) { return number % 3 == 0; }

Operation OperationOf(std::int64_t number) {
  constexpr Operation collectives[] = {Operation::kAlltoall, Operation::kAllgather,
                                       Operation::kBcast, Operation::kGather};
  return IsMessageCall(number) ? Operation::kSendrecv : collectives[number % 4];
}
Element ElementOf(std::int64_t number) {
  return static_cast<Element>(number % static_cast<std::int64_t>(kElements.size()));
}
// How many of the calls 1 ... `number` are collectives.
std::int64_t Collectives(std::int64_t number) { return number - number / 3; }

// What the watch of this rank would tell the others of the calls that it is in.
void ExpectOneCall(const State& seen) {
  if (seen.stage == Stage::kIdle) return;
  const std::int64_t number = seen.entered;
  const auto wrong = [&](const char* what) {
    Wrong(std::string("what is seen of call ") + std::to_string(number) + " has " + what +
          " another call");
  };
  if (seen.operation != OperationOf(number)) wrong("the operation of");
  if (seen.element != ElementOf(number)) wrong("the element of");
  if (seen.count != 10 * number) wrong("the count of");
  const bool is_running = seen.stage == Stage::kRunning;
  const bool is_collective = !IsMessageCall(number);
  if (seen.passed != Collectives(is_collective && !is_running ? number - 1 : number)) {
    wrong("the number of collectives of");
  }
  if (is_collective) return;
  if (seen.source != static_cast<int>(number % 5)) wrong("the source of");
  if (seen.send_tag != static_cast<int>(number % 7)) wrong("the tag of");
  if (seen.awaited.piece() > number) wrong("the piece of");
}

// Reads what calls say of themselves while they go on, again and again, as the watch does now and
// then.
void CallsAreSeen(Case& c) {
  Options options = OptionsOf(c);
  options.check = false;
  SetOptions(c, options);
  Pace& pace = c.job.scheduler.pace;
  pace.stops = 0;
  pace.older_values = c.random.Chance(0.5) ? 0.8 : 0.3;
  const std::int64_t calls = c.random.Between(3, 40);
  c.Run([&](Rank& rank) {
    rank.Begin(true);
    process::Atomic<bool> is_over{false};
    process::Thread reader([&] {
      // Without a pause: pauses of who finds nothing become long.
      while (!is_over.load()) ExpectOneCall(State::Of(rank.On(kWorld), 0));
    });
    for (std::int64_t n = 1; n <= calls; ++n) {
      const CallSite site{OperationOf(n), kWorld, rank.size(), 0, ""};
      Payload payload{ElementOf(n), 10 * n};
      if (IsMessageCall(n)) {
        payload.source = static_cast<int>(n % 5);
        payload.send_tag = static_cast<int>(n % 7);
      }
      Expect(Run(site, payload, [&](Communicator& comm) {
        if (IsMessageCall(n)) {
          comm.progress.awaited.store(Awaited::Piece(n, true, true), std::memory_order_release);
        }
        if (rank.job.scheduler.random.Chance(0.3)) process::Pause();
        return 0;
      }));
    }
    is_over.store(true);
    reader.join();
    rank.End();
  });
}

// A thread of each rank makes calls until they are refused, since MPI is being finalized: none is
// under way then.
void CallsAreRefused(Case& c) {
  c.job.scheduler.pace.stops = 0;
  c.job.scheduler.pace.older_values = 0.5;
  c.Run([&](Rank& rank) {
    rank.Begin(true);
    const CallSite site{Operation::kSend, kOther, rank.size(), 0, ""};
    process::Thread caller([&] {
      for (bool is_refused = false; !is_refused;) {
        const Payload payload{Element::kF32, 3};
        is_refused = Run(site, payload, [&](Communicator&) {
                       if (CurrentProcess().is_finalized) {
                         Wrong("a call was under way in MPI_Finalize");
                       }
                       process::Pause();
                       return 0;
                     }).failure();
        process::SleepFor(std::chrono::microseconds(rank.job.scheduler.random.Below(400)));
      }
    });
    rank.Finalize();
    caller.join();
  });
}

}  // namespace

std::vector<Scenario> MemoryScenarios() {
  return {{"calls_are_seen", 3, 3, CallsAreSeen}, {"calls_are_refused", 2, 3, CallsAreRefused}};
}

}  // namespace pfftjax::simulated

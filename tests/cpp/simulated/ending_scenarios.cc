// These programs are right at their end, or after an error that was caught: nobody is ended for
// it.
#include <algorithm>

#include "base/options.h"
#include "pencils/box.h"
#include "plain_calls.h"
#include "scenario.h"

namespace pfftjax::simulated {
namespace {

std::vector<Time> DrawDelays(Case& c, Time most) {
  std::vector<Time> delays;
  for (int rank = 0; rank < c.job.ranks; ++rank) {
    delays.push_back(c.random.Chance(0.4) ? 0 : c.random.Spread(kMillisecond, most));
  }
  return delays;
}

void Wait(const Rank& rank, const std::vector<Time>& delays) {
  const Time delay = delays[static_cast<std::size_t>(rank.rank)];
  if (delay > 0) rank.job.scheduler.Sleep(delay);
}

// Ranks that have nothing more to do, one long after the other.
void StaggeredEnds(Case& c) {
  const auto delays = DrawDelays(c, 40 * kSecond);
  const std::uint64_t seed = c.random.Next();
  const bool makes_private = c.random.Chance(0.7);
  c.Run([&](Rank& rank) {
    rank.Begin(makes_private);
    RunStep(rank, {&StepNamed("alltoall"), kWorld, seed});
    RunStep(rank, {&StepNamed("halo"), kRows, seed});
    Wait(rank, delays);
    rank.End();
  });
}

// A thread is in a call when the main thread comes to the end.
void CallUnderWay(Case& c) {
  const auto delays = DrawDelays(c, 20 * kSecond);
  const std::uint64_t seed = c.random.Next();
  c.Run([&](Rank& rank) {
    rank.Begin(true);
    bool has_begun = false;
    process::Thread thread([&] {
      Wait(rank, delays);
      has_begun = true;
      StepNamed("alltoall").run(rank, kOther, Random(seed));
    });
    while (!has_begun) rank.job.scheduler.Nap(kMicrosecond);
    while (rank.On(kOther).progress.entered == 0) rank.job.scheduler.Nap(kMicrosecond);
    rank.Leave();
    thread.join();
    rank.Finalize();
  });
}

// Exit handlers that were registered before pfftjax was imported run when it has left.
void ExitHandlers(Case& c) {
  const auto delays = DrawDelays(c, 20 * kSecond);
  const std::uint64_t seed = c.random.Next();
  c.Run([&](Rank& rank) {
    rank.Begin(true);
    RunStep(rank, {&StepNamed("alltoall"), kWorld, seed});
    rank.Leave();
    Wait(rank, delays);
    RunStep(rank, {&StepNamed("allgather"), kWorld, seed + 1});
    RunStep(rank, {&StepNamed("halo"), kRows, seed + 2});
    rank.End();
  });
}

// The whole job is stopped for longer than PFFTJAX_TIMEOUT, as SIGSTOP and gang scheduling do.
void StoppedJob(Case& c) {
  Options options = OptionsOf(c);
  // The others wait for three seconds and for the weather; the stop is longer than all of it.
  options.timeout = static_cast<double>(c.random.Between(20, 40));
  SetOptions(c, options);
  const auto delays = DrawDelays(c, 2 * kSecond);
  const std::uint64_t seed = c.random.Next();
  const Time stop = c.random.Spread(50 * kSecond, 100 * kSecond);
  c.job.scheduler.pace.stops = 0;
  c.Run([&](Rank& rank) {
    rank.Begin(true);
    const Time begin = rank.job.scheduler.now();
    Wait(rank, delays);
    if (rank.rank == 0) {
      rank.job.scheduler.Sleep(3 * kSecond);
      for (const auto& process : rank.job.processes) {
        process->StopUntil(rank.job.scheduler.now() + stop);
      }
      rank.job.scheduler.Sleep(kSecond);
      Expect(rank.job.scheduler.now() >= begin + stop, "the job was not stopped");
    }
    RunStep(rank, {&StepNamed("alltoall"), kWorld, seed});
    rank.End();
  });
}

// Sizes that differ, caught on every rank; the exchanges after it are right. Where a third rank is
// late, the watch may find the difference first, and end the job.
void SizesDiffer(Case& c) {
  Options options = OptionsOf(c);
  options.shared_memory = true;
  SetOptions(c, options);
  c.job.refuses = 0;
  for (const auto& process : c.job.processes) process->node = 0;
  const bool are_late = c.random.Chance(0.3);
  if (are_late) {
    c.MayEnd({"the ranks call different collectives"});
  } else {
    c.job.scheduler.pace.stops = 0;
    c.job.network.longest = std::min(c.job.network.longest, 10 * kMillisecond);
    for (const auto& process : c.job.processes) process->slowness = 1;
  }
  const auto run = [are_late](Rank& rank, const char* step, std::uint64_t seed) {
    if (are_late) rank.Compute();
    StepNamed(step).run(rank, kWorld, Random(seed));
  };
  struct Round {
    Call call;
    std::vector<std::int64_t> counts;
    std::uint64_t seed;
  };
  std::vector<Round> rounds;
  for (std::int64_t i = c.random.Between(1, 5); i > 0; --i) {
    Round round{c.random.Chance(0.5) ? Call::kAlltoall : Call::kAllgather, {}, c.random.Next()};
    constexpr std::int64_t counts[] = {1, 5, 40, 400, 3000};
    const std::int64_t first = c.random.OneOf(counts);
    const std::int64_t second = first + (c.random.Chance(0.5) ? 1 : 2000);
    for (int rank = 0; rank < c.job.ranks; ++rank) {
      round.counts.push_back(c.random.Chance(0.5) ? first : second);
    }
    round.counts[0] = first;
    round.counts.back() = second;
    rounds.push_back(std::move(round));
  }
  // Nothing is wrong any more after the last error: one rank may take as long as it likes.
  const auto late_rank = static_cast<int>(c.random.Below(c.job.ranks));
  const Time delay = c.random.Chance(0.3) ? c.random.Spread(kSecond, 30 * kSecond) : 0;
  c.Run([&](Rank& rank) {
    rank.Begin(true);
    for (const Round& round : rounds) {
      if (are_late) rank.Compute();
      const ffi::Error error =
          Make(rank, kWorld, round.call, round.counts[static_cast<std::size_t>(rank.rank)]);
      Expect(error.failure(), "sizes that differ were noticed by nobody here");
      if (error.message().find(OptionsOf(c).check ? "differ" : "and this rank in") ==
          std::string::npos) {
        Wrong("another error: " + error.message());
      }
      if (round.seed % 3 != 0) run(rank, "alltoall", round.seed);
    }
    if (rank.rank == late_rank) rank.job.scheduler.Sleep(delay);
    run(rank, "alltoall", rounds[0].seed + 1);
    run(rank, "allgather", rounds[0].seed + 2);
    rank.End();
  });
}

// The ranks of a transposition mean arrays of different lengths: each is told, or the job ends.
void OtherPencils(Case& c) {
  constexpr Time kSoon = 60 * kSecond;
  c.job.scheduler.pace.stops = 0;
  c.job.network.longest = std::min(c.job.network.longest, 10 * kMillisecond);
  for (const auto& process : c.job.processes) process->slowness = 1;
  const auto rank_of = static_cast<int>(c.random.Below(c.job.ranks));
  const std::int64_t n[] = {c.random.Between(c.job.ranks, 3 * c.job.ranks),
                            c.random.Between(c.job.ranks, 3 * c.job.ranks),
                            c.random.Between(1, 5)};
  const auto which = c.random.Below(3);
  const auto longer = c.random.Between(1, 9);
  constexpr std::int64_t methods[] = {0, 3, 4};
  const std::int64_t method = c.random.OneOf(methods);
  c.MustEnd({"sizes that fit", "shorter than both sides", "truncated",
             "very rank of a communicator must make the same collectives",
             "the ranks call different collectives"},
            kSoon);
  c.Run([&](Rank& rank) {
    rank.Begin(true);
    std::int64_t mine[] = {n[0], n[1], n[2]};
    if (rank.rank == rank_of) mine[which] += longer;
    const Communicator& comm = rank.On(kWorld);
    const std::vector<std::int64_t> order{0, 1, 2};
    Array x(ffi::S32, {mine[0], BlockOf(mine[1], comm.size, comm.rank).count, mine[2]});
    Array y(ffi::S32, {BlockOf(mine[0], comm.size, comm.rank).count, mine[1], mine[2]});
    EndJobOn(CallOn<ffi::Span<const std::int64_t>, std::int64_t, std::int64_t, std::int64_t,
                    ffi::ThreadPool>("pfftjax_pencil_transpose", Site(kWorld),
                                     ffi::Span<const std::int64_t>(order), 0, 1, method, {}, x,
                                     y));
    rank.End();
  });
}

// The first collective on a communicator, which one rank never makes.
void NewCommunicator(Case& c) {
  c.job.scheduler.pace.stops = 0;
  const auto rank_of = static_cast<int>(c.random.Below(c.job.ranks));
  c.MustEnd({"very rank of a communicator must make the same collectives", "has ended"},
            60 * kSecond);
  c.Run([&](Rank& rank) {
    rank.Begin(false);
    Expect(Make(rank, kWorld, Call::kBarrier, 1));
    if (rank.rank != rank_of) EndJobOn(Make(rank, kOther, Call::kAllreduce, 1));
    rank.End();
  });
}

}  // namespace

std::vector<Scenario> EndingScenarios() {
  return {{"staggered_ends", 2, 16, StaggeredEnds},   {"call_under_way", 2, 8, CallUnderWay},
          {"exit_handlers", 2, 8, ExitHandlers},      {"stopped_job", 2, 8, StoppedJob},
          {"sizes_differ", 3, 16, SizesDiffer},       {"other_pencils", 2, 8, OtherPencils},
          {"new_communicator", 2, 8, NewCommunicator}};
}

}  // namespace pfftjax::simulated

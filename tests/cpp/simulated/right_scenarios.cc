// Right programs: whatever the weather, all data are right, nobody is ended, and nothing is left.
#include <algorithm>
#include <array>

#include "base/options.h"
#include "runtime/crossing.h"
#include "scenario.h"

namespace pfftjax::simulated {
namespace {

std::vector<Step> DrawSteps(Case& c, const std::vector<std::string>& kinds, std::int64_t most) {
  std::vector<Step> steps;
  const std::int64_t count =
      c.random.Between(1, c.job.ranks > 16 ? std::min<std::int64_t>(most, 3) : most);
  for (std::int64_t i = 0; i < count; ++i) {
    Step step;
    if (kinds.empty()) {
      const auto& all = StepKinds();
      step.kind =
          &all[static_cast<std::size_t>(c.random.Below(static_cast<std::int64_t>(all.size())))];
    } else {
      step.kind = &StepNamed(kinds[static_cast<std::size_t>(
          c.random.Below(static_cast<std::int64_t>(kinds.size())))]);
    }
    step.comm = c.random.Chance(0.6) ? std::int64_t{kWorld} : c.random.Between(kRows, kOther);
    step.seed = c.random.Next();
    steps.push_back(step);
  }
  return steps;
}

void RunSteps(Case& c, const std::vector<std::string>& kinds, std::int64_t most) {
  const std::vector<Step> steps = DrawSteps(c, kinds, most);
  const bool makes_private = c.random.Chance(0.7);
  c.Run([&](Rank& rank) {
    rank.Begin(makes_private);
    for (const Step& step : steps) RunStep(rank, step);
    rank.End();
  });
}

void Programs(Case& c) { RunSteps(c, {}, 10); }
void SharedMemoryOnly(Case& c) {
  Options options = OptionsOf(c);
  options.shared_memory = true;
  SetOptions(c, options);
  for (const auto& process : c.job.processes) process->node = 0;
  RunSteps(c, {"alltoall", "alltoall", "allgather", "transpose"}, 14);
}
void Exchanges(Case& c) { RunSteps(c, {"alltoallv", "alltoall", "allgather"}, 8); }
void Pencils(Case& c) { RunSteps(c, {"transpose", "halo"}, 8); }
void Particles(Case& c) { RunSteps(c, {"particles", "halo"}, 4); }
void Messages(Case& c) { RunSteps(c, {"ring", "pairs", "collect"}, 8); }
void SplitExchanges(Case& c) { RunSteps(c, {"split", "split", "alltoall"}, 5); }

// As many as a node of a cluster has, or eight of them.
void ManyRanks(Case& c) {
  RunSteps(c, {"alltoall", "alltoallv", "transpose", "halo", "particles"}, 3);
}

// Two threads of each rank, each with a communicator of its own, one of which may come late.
void Threads(Case& c) {
  std::vector<Step> first = DrawSteps(c, {}, 5);
  std::vector<Step> second = DrawSteps(c, {"alltoall", "halo", "ring", "split", "reductions"}, 5);
  for (Step& step : first) {
    if (step.comm == kOther) step.comm = kWorld;
  }
  for (Step& step : second) step.comm = kOther;
  const bool makes_private = c.random.Chance(0.7);
  std::vector<std::array<Time, 2>> delays;
  for (int rank = 0; rank < c.job.ranks; ++rank) {
    std::array<Time, 2> late{};
    if (c.random.Chance(0.5)) late[c.random.Chance(0.5)] = c.random.Spread(kSecond, 40 * kSecond);
    delays.push_back(late);
  }
  c.Run([&](Rank& rank) {
    rank.Begin(makes_private);
    NoteThread();
    const auto& late = delays[static_cast<std::size_t>(rank.rank)];
    process::Thread thread([&] {
      rank.job.scheduler.Sleep(late[1]);
      for (const Step& step : second) RunStep(rank, step);
    });
    rank.job.scheduler.Sleep(late[0]);
    for (const Step& step : first) RunStep(rank, step);
    thread.join();
    rank.End();
  });
}

// Some ranks come very late, and the watch asks why.
void LateRanks(Case& c) {
  const std::vector<Step> steps = DrawSteps(c, {}, 4);
  std::vector<Time> delays;
  for (int rank = 0; rank < c.job.ranks; ++rank) {
    delays.push_back(c.random.Chance(0.5) ? 0 : c.random.Spread(kMillisecond, 30 * kSecond));
  }
  const auto late =
      static_cast<std::size_t>(c.random.Below(static_cast<std::int64_t>(steps.size() + 1)));
  c.Run([&](Rank& rank) {
    rank.Begin(true);
    for (std::size_t i = 0; i <= steps.size(); ++i) {
      if (i == late) rank.job.scheduler.Sleep(delays[static_cast<std::size_t>(rank.rank)]);
      if (i < steps.size()) RunStep(rank, steps[i]);
    }
    rank.End();
  });
}

// A ring of sendrecvs to which some ranks come late: in the others one half of the message ends
// long before the other, and their neighbours go on to the next ring, or to the end.
void LatePartners(Case& c) {
  Options options = OptionsOf(c);
  options.max_chunk_bytes = c.random.Chance(0.5) ? 64 : options.max_chunk_bytes;
  SetOptions(c, options);
  c.job.scheduler.pace.stops = 0;
  c.job.network.eager_bytes = c.random.Chance(0.5) ? 0 : 64;
  const std::int64_t rings = c.random.Between(1, 3);
  const std::int64_t count = c.random.Between(1, 300);
  const bool turns = c.random.Chance(0.7);
  std::vector<Time> delays;
  for (int rank = 0; rank < c.job.ranks; ++rank) {
    delays.push_back(c.random.Chance(0.6) ? 0 : c.random.Spread(kSecond, 40 * kSecond));
  }
  c.Run([&](Rank& rank) {
    rank.Begin(true);
    rank.job.scheduler.Sleep(delays[static_cast<std::size_t>(rank.rank)]);
    for (std::int64_t i = 0; i < rings; ++i) {
      const std::int32_t to = turns && i % 2 == 1 ? rank.size() - 1 : 1;
      const auto tag = static_cast<std::int32_t>(10 + i);
      Array x(ffi::U8, {count});
      Array y(ffi::U8, {count});
      std::fill(x.data.begin(), x.data.end(), static_cast<char>(i + 3 * rank.rank));
      Expect(CallOn<std::int32_t, std::int32_t, std::int32_t, std::int32_t>(
          "pfftjax_sendrecv", Site(kWorld), rank.size() - to, to, tag, tag, x, y));
      const int from = (rank.rank + rank.size() - to) % rank.size();
      Expect(std::all_of(y.data.begin(), y.data.end(),
                         [&](char byte) { return byte == static_cast<char>(i + 3 * from); }),
             "a message of a ring is wrong");
    }
    rank.End();
  });
}

// A network on which the ranks learn of the same thing nearly two seconds apart, which is the
// watch's patience: its answers cross with what they are about.
void SlowNetwork(Case& c) {
  Options options = OptionsOf(c);
  options.check = c.random.Chance(0.7);
  SetOptions(c, options);
  c.job.scheduler.pace.stops = 0;
  c.job.network.jitter = 0.5;
  const std::uint64_t seed = c.random.Next();
  // A rank that has sent a message, as even ranks do, may end while it is on its way.
  const bool ends_in_messages = c.random.Chance(0.5);
  std::vector<Time> delays;
  for (int rank = 0; rank < c.job.ranks; ++rank) {
    const bool is_late = ends_in_messages ? rank % 2 == 0 : c.random.Chance(0.5);
    delays.push_back(is_late ? c.random.Spread(kSecond, 4 * kSecond) : 0);
  }
  c.Run([&](Rank& rank) {
    rank.Begin(true);
    rank.job.network.shortest = kSecond / 10;
    rank.job.network.longest = 19 * kSecond / 10;
    const auto run = [&](const char* step, std::uint64_t i) {
      RunStep(rank, {&StepNamed(step), kWorld, seed + i});
    };
    run("reductions", 0);
    rank.job.scheduler.Sleep(delays[static_cast<std::size_t>(rank.rank)]);
    if (ends_in_messages) {
      run("pairs", 1);
    } else {
      run("barrier", 1);
      run("reductions", 2);
    }
    rank.End();
  });
}

// A rank is stopped while the ranks compare a call before they make it: some of the others come
// out of the comparison, and some wait until it goes on.
void StoppedInCheck(Case& c) {
  Options options = OptionsOf(c);
  options.check = true;
  SetOptions(c, options);
  c.job.scheduler.pace.stops = 0;
  c.job.network.relays = 0.5;
  const auto victim = static_cast<std::size_t>(c.random.Below(c.job.ranks));
  const auto late = static_cast<int>(c.random.Below(c.job.ranks));
  const std::uint64_t seed = c.random.Next();
  c.Run([&](Rank& rank) {
    rank.Begin(true);
    Scheduler& scheduler = rank.job.scheduler;
    for (std::uint64_t i = 0; i < 3; ++i) {
      if (rank.rank == late) {
        scheduler.Sleep(scheduler.random.Spread(kMillisecond, kSecond));
        Process& process = *rank.job.processes[victim];
        process.StopUntil(scheduler.now() + scheduler.random.Spread(kSecond, 20 * kSecond));
      }
      RunStep(rank, {&StepNamed(i == 1 ? "barrier" : "reductions"), kWorld, seed + i});
    }
    rank.End();
  });
}

// A rank is stopped while the duplicates of communicators are made, for their first collectives:
// some of the others have theirs, make the collective and end, and some wait until it goes on.
void StoppedInDuplication(Case& c) {
  c.job.scheduler.pace.older_values = 0;  // ranks look for too long
  c.job.scheduler.pace.stops = 0;
  c.job.network.relays = 0.5;
  const auto victim = static_cast<std::size_t>(c.random.Below(c.job.ranks));
  const auto late = static_cast<int>(c.random.Below(c.job.ranks));
  const std::uint64_t seed = c.random.Next();
  const std::int64_t first = c.random.Between(kRows, kOther);
  const std::int64_t most = c.random.Between(1, 2);
  c.Run([&](Rank& rank) {
    rank.Begin(false);
    Scheduler& scheduler = rank.job.scheduler;
    for (std::int64_t i = 0; i < most; ++i) {
      if (rank.rank == late) {
        scheduler.Sleep(scheduler.random.Spread(kMillisecond, kSecond));
        Process& process = *rank.job.processes[victim];
        process.StopUntil(scheduler.now() + scheduler.random.Spread(kSecond, 60 * kSecond));
      }
      // The roots of these may end as soon as they have the duplicates.
      const std::int64_t comm = (first + i) % (kOther + 1);
      RunStep(rank, {&StepNamed("rooted"), comm, seed + static_cast<std::uint64_t>(i)});
    }
    rank.End();
  });
}

// A token goes around a ring, and its first holder comes late. Each rank waits for the one before
// it, and a rank is stopped when its turn has come: what the others know of it is out of date.
void StoppedInRing(Case& c) {
  c.job.scheduler.pace.stops = 0;
  const auto victim = static_cast<std::size_t>(c.random.Below(c.job.ranks));
  const Time late =
      c.random.Spread(c.random.Chance(0.2) ? kMillisecond : 6 * kSecond, 40 * kSecond);
  const Time stop = c.random.Spread(5 * kSecond, 60 * kSecond);
  const std::int64_t count = c.random.Between(1, 100);
  const auto rounds = static_cast<int>(c.random.Between(1, 2));
  c.Run([&](Rank& rank) {
    rank.Begin(true);
    Scheduler& scheduler = rank.job.scheduler;
    Array x(ffi::U8, {count});
    Array y(ffi::U8, {count});
    const auto send = [&] {
      Expect(CallHandler<std::int32_t, std::int32_t, Operand, Token, TokenResult>(
          "pfftjax_send", Site(kWorld), 1, 11, x.Any(), Token{}, TokenResult{}));
    };
    const auto receive = [&] {
      Expect(CallHandler<std::int32_t, std::int32_t, std::int64_t, bool, Operand, Token, Result,
                         TokenResult>("pfftjax_recv", Site(kWorld), rank.size() - 1, 11, -1, true,
                                      x.Any(), Token{}, Result(y.Any()), TokenResult{}));
    };
    for (int i = 0; i < rounds; ++i) {
      if (rank.rank == 0) {
        scheduler.Sleep(late);
        rank.job.processes[victim]->StopUntil(scheduler.now() + stop);
        send();
        receive();
      } else {
        receive();
        send();
      }
    }
    rank.End();
  });
}

// The duplicates of communicators come late to one rank, which looks for them all the time. Others
// have theirs, and wait for it on a new communicator, which may be of the same ranks.
void LateDuplicates(Case& c) {
  c.job.scheduler.pace.older_values = 0;  // ranks look for too long
  c.job.network.late_rank = static_cast<int>(c.random.Below(c.job.ranks));
  c.job.network.lateness = c.random.Spread(kSecond, 60 * kSecond);
  const std::uint64_t seed = c.random.Next();
  c.Run([&](Rank& rank) {
    rank.Begin(false);
    for (const std::int64_t comm : {kRows, kColumns, kOther}) {
      RunStep(rank, {&StepNamed("rooted"), comm, seed + static_cast<std::uint64_t>(comm)});
    }
    rank.End();
  });
}

}  // namespace

std::vector<Scenario> RightScenarios() {
  return {{"programs", 20, 64, Programs},
          {"shared_memory", 20, 64, SharedMemoryOnly},
          {"exchanges", 10, 64, Exchanges},
          {"pencils", 14, 64, Pencils},
          {"particles", 8, 64, Particles},
          {"messages", 6, 64, Messages},
          {"split", 6, 16, SplitExchanges},
          {"threads", 5, 8, Threads},
          {"late_ranks", 3, 8, LateRanks},
          {"late_partners", 3, 8, LatePartners},
          {"many_ranks", 0.25, 64, ManyRanks, 64},
          {"slow_network", 8, 8, SlowNetwork},
          {"stopped_in_check", 4, 8, StoppedInCheck},
          {"stopped_in_duplication", 4, 16, StoppedInDuplication},
          {"late_duplicates", 4, 16, LateDuplicates},
          {"stopped_in_ring", 4, 8, StoppedInRing}};
}

}  // namespace pfftjax::simulated

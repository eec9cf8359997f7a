// Wrong programs: pfftjax must end each with a text that says what is wrong, in bounded time.
#include <algorithm>

#include "base/options.h"
#include "plain_calls.h"
#include "runtime/crossing.h"
#include "scenario.h"

namespace pfftjax::simulated {
namespace {

constexpr Time kSoon = 60 * kSecond;

// The texts about ranks that do not make the same calls.
std::vector<std::string> Differ() {
  return {"very rank of a communicator must make the same collectives",
          "the ranks run different programs", "the ranks call different collectives",
          "has ended without the matching call",
          // of what MPI, or the receiver, sees first
          "a message was truncated", "shorter than both sides had agreed"};
}

// Nobody is stopped, and no message takes for ever: what is wrong must be found in time.
void Calm(Case& c) {
  c.job.scheduler.pace.stops = 0;
  c.job.network.longest = std::min(c.job.network.longest, 10 * kMillisecond);
  for (const auto& process : c.job.processes) {
    process->slowness = std::min(process->slowness, 50.0);
  }
}

struct PlainCall {
  Call call;
  std::int64_t count;
};

std::vector<PlainCall> DrawCalls(Case& c, std::int64_t most) {
  std::vector<PlainCall> calls;
  for (std::int64_t i = c.random.Between(1, most); i > 0; --i) {
    calls.push_back({c.random.OneOf(kCalls), c.random.Between(1, 40)});
  }
  return calls;
}

// One rank leaves out a call. Of calls in several pieces, a short one is matched by the first
// pieces of a longer one, and its rank goes on.
void MissingCall(Case& c) {
  Calm(c);
  const auto calls = DrawCalls(c, 6);
  const auto which =
      static_cast<std::size_t>(c.random.Below(static_cast<std::int64_t>(calls.size())));
  const auto rank_of = static_cast<int>(c.random.Below(c.job.ranks));
  const bool makes_private = c.random.Chance(0.7);
  c.MustEnd(Differ(), kSoon);
  c.Run([&](Rank& rank) {
    rank.Begin(makes_private);
    for (std::size_t i = 0; i < calls.size(); ++i) {
      if (i == which && rank.rank == rank_of) continue;
      rank.Compute();
      EndJobOn(Make(rank, kWorld, calls[i].call, calls[i].count));
    }
    rank.End();
  });
}

// The programs differ, and the first call says so on every rank, before anything is exchanged.
void OtherProgram(Case& c) {
  Calm(c);
  Options options = OptionsOf(c);
  options.first_call = true;
  SetOptions(c, options);
  const auto rank_of = static_cast<int>(c.random.Below(c.job.ranks));
  int refused = 0;
  c.Run([&](Rank& rank) {
    rank.Begin(c.job.ranks % 2 == 0);
    rank.Compute();
    const ffi::Error error =
        Make(rank, kWorld, Call::kAllreduce, 3,
             rank.rank == rank_of ? "allreduce float32[4]" : "allreduce float32[3]");
    Expect(error.failure() && error.message().find("differ between ranks") != std::string::npos,
           "programs that differ were not refused");
    ++refused;
    // It can be caught, and the next program is right.
    Expect(Make(rank, kWorld, Call::kAllreduce, 3, "allreduce float32[3]"));
    rank.End();
  });
}

// Under PFFTJAX_CHECK=1 calls that differ are refused on every rank, and the next ones go on.
void CheckedCalls(Case& c) {
  Calm(c);
  Options options = OptionsOf(c);
  options.check = true;
  SetOptions(c, options);
  const auto rank_of = static_cast<int>(c.random.Below(c.job.ranks));
  const Call call = c.random.OneOf(kCalls);
  const Call other = c.random.Chance(0.5) ? Call::kAllreduce : call;
  c.Run([&](Rank& rank) {
    rank.Begin(true);
    for (int i = 0; i < 3; ++i) {
      rank.Compute();
      const bool is_other = rank.rank == rank_of;
      const ffi::Error error =
          Make(rank, kWorld, is_other ? other : call, is_other ? 5 + i : 3 + i);
      const bool differs = other != call || call != Call::kBarrier;
      Expect(error.failure() == differs, "calls that differ were not refused on every rank");
      Expect(Make(rank, kWorld, Call::kAlltoall, 4));
    }
    rank.End();
  });
}

// A rank ends, and the others go on.
void EarlyEnd(Case& c) {
  Calm(c);
  const auto calls = DrawCalls(c, 5);
  const std::int64_t until = c.random.Below(static_cast<std::int64_t>(calls.size()));
  const auto rank_of = static_cast<int>(c.random.Below(c.job.ranks));
  c.MustEnd(Differ(), kSoon);
  c.Run([&](Rank& rank) {
    rank.Begin(true);
    for (std::size_t i = 0; i < calls.size(); ++i) {
      if (rank.rank == rank_of && static_cast<std::int64_t>(i) >= until) break;
      rank.Compute();
      EndJobOn(Make(rank, kWorld, calls[i].call, calls[i].count));
    }
    rank.End();
  });
}

// Somebody waits for a message that nobody sends, or sends one that nobody takes.
void LonelyMessage(Case& c) {
  Calm(c);
  c.job.network.eager_bytes = 0;
  const auto rank_of = static_cast<int>(c.random.Below(c.job.ranks));
  const auto shift = static_cast<std::int32_t>(c.random.Between(1, c.job.ranks - 1));
  const bool sends = c.random.Chance(0.5);
  const bool from_anybody = c.random.Chance(0.3);
  c.MustEnd(Differ(), kSoon);
  c.Run([&](Rank& rank) {
    rank.Begin(true);
    Expect(Make(rank, kWorld, Call::kBarrier, 1));
    if (rank.rank == rank_of) {
      Array x(ffi::S32, {10});
      Array y(ffi::S32, {10});
      EndJobOn(sends
                   ? CallHandler<std::int32_t, std::int32_t, Operand, Token, TokenResult>(
                         "pfftjax_send", Site(kWorld), shift, 11, x.Any(), Token{}, TokenResult{})
                   : CallHandler<std::int32_t, std::int32_t, std::int64_t, bool, Operand, Token,
                                 Result, TokenResult>(
                         "pfftjax_recv", Site(kWorld), from_anybody ? -2 : shift, 11, -1, true,
                         x.Any(), Token{}, Result(y.Any()), TokenResult{}));
    }
    rank.End();
  });
}

// A process is gone without a word: PFFTJAX_TIMEOUT ends the job.
void DeadRank(Case& c) {
  Calm(c);
  Options options = OptionsOf(c);
  options.timeout = static_cast<double>(c.random.Between(3, 20));
  SetOptions(c, options);
  const auto calls = DrawCalls(c, 5);
  const std::int64_t until = c.random.Below(static_cast<std::int64_t>(calls.size()));
  const auto rank_of = static_cast<int>(c.random.Below(c.job.ranks));
  c.MustEnd({"(PFFTJAX_TIMEOUT)"}, kSoon);
  c.Run([&](Rank& rank) {
    rank.Begin(true);
    for (std::size_t i = 0; i < calls.size(); ++i) {
      if (rank.rank == rank_of && static_cast<std::int64_t>(i) == until) rank.job.Die();
      EndJobOn(Make(rank, kWorld, calls[i].call, calls[i].count));
    }
    rank.End();
  });
}

// Two threads in one communicator: one of them is refused, and nothing else is harmed.
void TwoThreads(Case& c) {
  Calm(c);
  const std::int64_t calls = c.random.Between(2, 12);
  c.Run([&](Rank& rank) {
    rank.Begin(true);
    Array x(ffi::S64, {2});
    Array y(ffi::S64, {2});
    std::int64_t done = 0;
    const auto work = [&] {
      // Until so many are through, together: the other ranks make so many.
      while (done < calls) {
        Array mine(ffi::S64, {1});
        Array result(ffi::S64, {1});
        *mine.At<std::int64_t>() = 1;
        ++done;
        const ffi::Error error =
            CallOn<std::int32_t>("pfftjax_allreduce", Site(kWorld), 0, mine, result);
        if (error.failure()) {
          --done;
          Expect(error.message().find("another thread") != std::string::npos, "another error");
          rank.job.scheduler.Nap(kMicrosecond);
        } else {
          Expect(*result.At<std::int64_t>() == rank.size(), "a mixed-up result");
        }
      }
    };
    if (rank.rank == 0) {
      NoteThread();
      process::Thread other(work);
      work();
      other.join();
    } else {
      work();
    }
    rank.End();
  });
}

// A sendrecv of all ranks in which one means another size or partner: refused on every rank.
void OtherPartners(Case& c) {
  Calm(c);
  const auto rank_of = static_cast<int>(c.random.Below(c.job.ranks));
  const auto shift = static_cast<std::int32_t>(c.random.Between(1, c.job.ranks - 1));
  const bool is_size = c.job.ranks == 2 || c.random.Chance(0.5);
  const std::int64_t count = c.random.Between(1, 100);
  c.Run([&](Rank& rank) {
    rank.Begin(true);
    for (int i = 0; i < 2; ++i) {
      const bool is_other = rank.rank == rank_of && i == 0;
      const std::int32_t to = is_other && !is_size ? shift % (rank.size() - 1) + 1 : shift;
      const std::int64_t sent = count + (is_other && is_size);
      Array x(ffi::U8, {sent});
      Array y(ffi::U8, {count});
      const ffi::Error error = CallOn<std::int32_t, std::int32_t>(
          "pfftjax_sendrecv_all", Site(kWorld), rank.size() - shift, to, x, y);
      if (i == 1) Expect(error);
      Expect(i == 1 || (error.failure() &&
                        error.message().find(OptionsOf(c).check ? "i" : "does not fit") !=
                            std::string::npos),
             "partners that do not fit were not refused on every rank");
    }
    rank.End();
  });
}

// A ring of sendrecvs in which one rank sends, or receives, with another tag: one half of its
// message goes on, and one half of its neighbour's.
void HalfMessage(Case& c) {
  Calm(c);
  c.job.network.eager_bytes = c.random.Chance(0.5) ? 0 : c.job.network.eager_bytes;
  const auto rank_of = static_cast<int>(c.random.Below(c.job.ranks));
  const bool sends_otherwise = c.random.Chance(0.5);
  const std::int64_t count = c.random.Between(1, 100);
  std::vector<std::string> words = Differ();
  words.push_back("none of them can go on");
  c.MustEnd(words, kSoon);
  c.Run([&](Rank& rank) {
    rank.Begin(true);
    rank.Compute();
    const std::int32_t tag = rank.rank == rank_of ? 12 : 11;
    Array x(ffi::U8, {count});
    Array y(ffi::U8, {count});
    EndJobOn(CallOn<std::int32_t, std::int32_t, std::int32_t, std::int32_t>(
        "pfftjax_sendrecv", Site(kWorld), rank.size() - 1, 1, sends_otherwise ? tag : 11,
        sends_otherwise ? 11 : tag, x, y));
    rank.End();
  });
}

// One rank makes its calls on two communicators of the same ranks in another order than the rest.
void OtherCommunicator(Case& c) {
  Calm(c);
  const auto rank_of = static_cast<int>(c.random.Below(c.job.ranks));
  const bool makes_private = c.random.Chance(0.5);
  const Call call = c.random.OneOf(kCalls);
  const std::int64_t calls = c.random.Between(0, 2);
  c.MustEnd({"neither can go on", "but not for this one"}, kSoon);
  c.Run([&](Rank& rank) {
    rank.Begin(makes_private);
    for (std::int64_t i = 0; i < calls; ++i) EndJobOn(Make(rank, kWorld, call, 3));
    rank.Compute();
    const bool is_other = rank.rank == rank_of;
    EndJobOn(Make(rank, is_other ? kOther : kWorld, call, 3));
    EndJobOn(Make(rank, is_other ? kWorld : kOther, call, 3));
    rank.End();
  });
}

}  // namespace

std::vector<Scenario> WrongScenarios() {
  return {
      {"missing_call", 4, 16, MissingCall},    {"other_program", 2, 16, OtherProgram},
      {"checked_calls", 2, 16, CheckedCalls},  {"early_end", 2, 16, EarlyEnd},
      {"lonely_message", 2, 8, LonelyMessage}, {"dead_rank", 1, 8, DeadRank},
      {"two_threads", 1, 8, TwoThreads},       {"other_partners", 2, 16, OtherPartners},
      {"half_message", 2, 8, HalfMessage},     {"other_communicator", 2, 16, OtherCommunicator}};
}

}  // namespace pfftjax::simulated

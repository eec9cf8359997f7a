// Keeps what a rank that waits has asked the others, and what it has heard: the part of the watch
// that calls and communicators in the making have in common.
#pragma once

#include <cstdint>
#include <map>
#include <random>
#include <string>
#include <vector>

#include "runtime/state.h"

namespace pfftjax {

inline constexpr int kRounds = 2;      // answers in a row before they are believed
inline constexpr int kMostAsked = 32;  // ranks asked in one round, drawn at random beyond that

class Inquiry {
 public:
  Inquiry();

  // Says whether the other ranks have had time to answer since PFFTJAX_TIMEOUT.
  bool HasTimedOut(double waited);
  // Says whether to ask now. A round follows soon where it may confirm what an earlier one has
  // shown, as `is_urgent` says of more than suspicions; the others are ever rarer.
  bool IsTimeToAsk(double waited, bool is_urgent);
  // The next round waits: what another rank sent before it gave rise to a suspicion may take that
  // long to come.
  void Postpone(double waited);
  // Leaves some out of very many; those under suspicion are asked again, whoever else is.
  void ChooseAmong(std::vector<int>& ranks, std::minstd_rand& random) const;

  // What this rank waits for is another thing from now on: what it has heard so far counts no
  // more, and neither does what is still to come of earlier rounds.
  void Restart();

  // The number of a round that begins.
  std::int64_t Ask() { return ++asked_; }
  std::int64_t asked() const { return asked_; }
  // Whether `rank` was asked, in that round, after the last answer for which this was true. A
  // question that was on its way when another answer came is answered out of the same moment, as
  // far as the asker can tell, however slow the messages are.
  bool IsLater(int rank, std::int64_t round);

  std::map<int, State> answers;
  std::map<int, int> suspicions;  // answers in a row that cannot be reconciled with waiting

 private:
  bool Suspects() const;

  double next_round_;  // seconds of waiting at which to ask
  bool has_timed_out_ = false;
  std::int64_t asked_ = 0;
  std::int64_t asked_in_vain_ = 0;  // before the latest restart
  std::map<int, std::int64_t> heard_;
};

// "after 61.2 s (PFFTJAX_TIMEOUT) "
std::string After(double waited);

}  // namespace pfftjax

#include "runtime/inquiry.h"

#include <algorithm>
#include <array>
#include <cstdio>

#include "base/options.h"

namespace pfftjax {

Inquiry::Inquiry() : next_round_(GetOptions().patience) {}

bool Inquiry::HasTimedOut(double waited) {
  const double timeout = GetOptions().timeout;
  if (timeout > 0 && waited > timeout && !has_timed_out_) {
    has_timed_out_ = true;
    next_round_ = waited;
  }
  return has_timed_out_ && waited > timeout + 1.0;
}

bool Inquiry::IsTimeToAsk(double waited, bool is_urgent) {
  if (waited < next_round_) return false;
  const double patience = GetOptions().patience;
  const bool is_soon = waited < 2 * patience || is_urgent || Suspects();
  next_round_ = waited + (is_soon ? patience : std::min(waited, 60.0));
  return true;
}

void Inquiry::Postpone(double waited) {
  next_round_ = std::max(next_round_, waited + GetOptions().patience);
}

void Inquiry::ChooseAmong(std::vector<int>& ranks, std::minstd_rand& random) const {
  if (ranks.size() <= kMostAsked) return;
  std::shuffle(ranks.begin(), ranks.end(), random);
  std::stable_partition(ranks.begin(), ranks.end(), [&](int rank) {
    const auto found = suspicions.find(rank);
    return found != suspicions.end() && found->second > 0;
  });
  ranks.resize(kMostAsked);
}

void Inquiry::Restart() {
  const std::int64_t asked = asked_;
  *this = Inquiry();
  asked_ = asked_in_vain_ = asked;
}

bool Inquiry::IsLater(int rank, std::int64_t round) {
  std::int64_t& heard = heard_[rank];
  if (round <= std::max(heard, asked_in_vain_)) return false;
  heard = asked_;
  return true;
}

bool Inquiry::Suspects() const {
  return std::any_of(suspicions.begin(), suspicions.end(),
                     [](const auto& entry) { return entry.second > 0; });
}

std::string After(double waited) {
  std::array<char, 64> text{};
  std::snprintf(text.data(), text.size(), "after %.1f s (PFFTJAX_TIMEOUT) ", waited);
  return text.data();
}

}  // namespace pfftjax

#include "runtime/crossing.h"

#include <algorithm>

namespace pfftjax {
namespace {

process::Own<process::Atomic<bool>> has_threads;

}  // namespace

void NoteThread() { has_threads->store(true); }

bool HasThreads() { return has_threads->load(); }

void Crossings::Hear(int rank, const State& here, const State& there, bool is_later) {
  Heard& heard = heard_[rank];
  if (!there.waits_for_asker || !here.WaitsFor(rank, there)) {
    heard = {};
    return;
  }
  const bool is_still = heard.comm == there.comm && heard.entered == there.entered;
  heard = {there.comm, there.entered, (is_still ? heard.times : 0) + is_later};
}

int Crossings::Times(int rank) const {
  const auto found = heard_.find(rank);
  return found == heard_.end() ? 0 : found->second.times;
}

bool Crossings::ArePossible() const {
  return std::any_of(heard_.begin(), heard_.end(), [](const auto& entry) {
    return entry.second.times > 0 && entry.second.times <= kMostOfInterest;
  });
}

}  // namespace pfftjax

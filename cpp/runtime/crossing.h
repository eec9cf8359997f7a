// Two ranks that wait for each other on different communicators.
//
// MPI allows that: another thread of either rank may be about to make the call that the other one
// waits for. A process that has never had a second thread of Python's makes its calls one after
// the other, as pfftjax orders them, so that two ranks of this kind wait for ever.
#pragma once

#include <cstdint>
#include <map>

#include "runtime/state.h"

namespace pfftjax {

// This process has, or has had, another thread of Python's, which may communicate.
void NoteThread();
bool HasThreads();

// What the watch of one communicator has heard of ranks that wait elsewhere.
class Crossings {
 public:
  // `rank` has answered `there` to this one, which waits `here`. An answer to a question that was
  // not asked later than the answer before came (`is_later`) is none more in a row.
  void Hear(int rank, const State& here, const State& there, bool is_later);
  // How often in a row it has said that it waits for this rank in the same call elsewhere.
  int Times(int rank) const;
  // Says whether answers may soon show that two ranks wait for each other.
  bool ArePossible() const;

 private:
  struct Heard {
    std::int64_t comm = -1;
    std::int64_t entered = -1;
    int times = 0;
  };
  std::map<int, Heard> heard_;
};

}  // namespace pfftjax

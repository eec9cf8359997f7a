// These are set by the environment, which is read once (pfftjax/_runtime/options.py checks and
// documents it).
#pragma once

#include <cstdint>

#include "base/process.h"

namespace pfftjax {

struct Options {
  // The most that one MPI call moves. 1 GiB keeps every product of counts and sizes inside an MPI
  // library below 2^31, and costs no bandwidth.
  std::int64_t max_chunk_bytes = std::int64_t{1} << 30;
  bool check = false;        // PFFTJAX_CHECK: compare each call across ranks before it runs
  bool debug = false;        // PFFTJAX_DEBUG: one line a call
  bool profile = false;      // PFFTJAX_PROFILE: a table at exit
  bool is_observed = false;  // by the profile, or by a tool that traces GPUs (runtime/profile.h)
  double timeout = 0.0;    // PFFTJAX_TIMEOUT: seconds until a waiting call ends the job; 0: never
  bool first_call = true;  // PFFTJAX_FIRST_CALL_CHECK
  bool shared_memory = true;  // PFFTJAX_SHARED_MEMORY
  int local_ranks = 0;        // of the job on this node; 0: unknown (pfftjax/_runtime/launcher.py)
  // An alltoall goes by nodes where that spares each rank so many messages.
  std::int64_t least_spared = process::Size(32);
  // A transform by nodes cuts messages of twice so many bytes and more into pieces.
  std::int64_t least_piece = process::Size(std::int64_t{512} << 10);
  std::int64_t node = 0;  // for tests: ranks of different numbers take part in no node's memory
  bool deterministic = false;  // PFFTJAX_DETERMINISTIC: the same bits on every run
  double patience = 2.0;       // seconds until a waiting call asks the other ranks where they are
  double tick = 0.25;          // seconds between two looks of the watch
};

inline Options& GetOptions() {
  static process::Own<Options> options;
  return *options;
}

}  // namespace pfftjax

// The cores that this process may use.
#pragma once

#include <sched.h>

#include <cstring>

namespace pfftjax {

// All that a set holds, on machines with more cores than that, which the kernel does not tell of.
inline cpu_set_t AllowedCores() {
  cpu_set_t set;
  CPU_ZERO(&set);
  if (sched_getaffinity(0, sizeof set, &set) != 0) std::memset(&set, 0xff, sizeof set);
  return set;
}

}  // namespace pfftjax

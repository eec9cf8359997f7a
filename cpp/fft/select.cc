#include "select.h"

#include <atomic>

namespace pfftjax::fft {
namespace {

std::atomic<const Lanes*> chosen{&baseline::kLanes};

bool CanRun(const Lanes& lanes) {
#ifdef PFFTJAX_X86
  __builtin_cpu_init();
  if (&lanes == &avx512::kLanes) {
    return __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512dq") &&
           __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("fma");
  }
  if (&lanes == &avx2::kLanes) {
    return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma");
  }
#endif
  return &lanes == &baseline::kLanes;
}

}  // namespace

bool ChooseLanes(std::string_view name) {
  const Lanes* const widest_first[] = {
#ifdef PFFTJAX_X86
      &avx512::kLanes,
      &avx2::kLanes,
#endif
      &baseline::kLanes,
  };
  for (const Lanes* lanes : widest_first) {
    if ((name.empty() || name == lanes->name) && CanRun(*lanes)) {
      chosen = lanes;
      return true;
    }
  }
  return false;
}

const Lanes& ChosenLanes() { return *chosen; }

}  // namespace pfftjax::fft

#include "fft/select.h"

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

const Lanes* const kWidestFirst[] = {
#ifdef PFFTJAX_X86
    &avx512::kLanes,
    &avx2::kLanes,
#endif
    &baseline::kLanes,
};

}  // namespace

bool ChooseLanes(std::string_view name) {
  for (const Lanes* lanes : kWidestFirst) {
    if ((name.empty() || name == lanes->name) && CanRun(*lanes)) {
      chosen = lanes;
      return true;
    }
  }
  return false;
}

std::vector<std::string> RunnableLanes() {
  std::vector<std::string> names;
  for (const Lanes* lanes : kWidestFirst) {
    if (CanRun(*lanes)) names.emplace_back(lanes->name);
  }
  return names;
}

const Lanes& ChosenLanes() { return *chosen; }

}  // namespace pfftjax::fft

#include "fft/select.h"

#if defined(PFFTJAX_SVE256) || defined(PFFTJAX_SVE512)
#include <sys/auxv.h>
#include <sys/prctl.h>
#define PFFTJAX_HAS_SVE_LANES
#endif

#include <atomic>

namespace pfftjax::fft {
namespace {

std::atomic<const Lanes*> chosen{&baseline::kLanes};

#ifdef PFFTJAX_HAS_SVE_LANES
// Bytes of an SVE register in this process; 0 without SVE. The system may give a process less than
// the processor has, and code for another size would compute nonsense.
int SveBytes() {
  if ((getauxval(AT_HWCAP) & HWCAP_SVE) == 0) return 0;
  const int length = prctl(PR_SVE_GET_VL);
  return length < 0 ? 0 : length & PR_SVE_VL_LEN_MASK;
}
#endif

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
#ifdef PFFTJAX_ARM
  if (&lanes == &neon::kLanes) return true;  // part of the architecture
#endif
#ifdef PFFTJAX_SVE256
  if (&lanes == &sve256::kLanes) return SveBytes() == sve256::kLanes.vector_bytes;
#endif
#ifdef PFFTJAX_SVE512
  if (&lanes == &sve512::kLanes) return SveBytes() == sve512::kLanes.vector_bytes;
#endif
  return &lanes == &baseline::kLanes;
}

const Lanes* const kWidestFirst[] = {
#ifdef PFFTJAX_X86
    &avx512::kLanes,   &avx2::kLanes,
#endif
#ifdef PFFTJAX_SVE512
    &sve512::kLanes,
#endif
#ifdef PFFTJAX_SVE256
    &sve256::kLanes,
#endif
#ifdef PFFTJAX_ARM
    &neon::kLanes,
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

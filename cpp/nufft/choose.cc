#include "nufft/points.h"

namespace pfftjax::nufft {

const PointLanes& PointLanesFor(const fft::Lanes& chosen) {
#ifdef PFFTJAX_X86
  if (&chosen == &fft::avx512::kLanes) return avx512::kPointLanes;
  if (&chosen == &fft::avx2::kLanes) return avx2::kPointLanes;
#endif
#ifdef PFFTJAX_ARM
  if (&chosen == &fft::neon::kLanes) return neon::kPointLanes;
#endif
#ifdef PFFTJAX_SVE256
  if (&chosen == &fft::sve256::kLanes) return sve256::kPointLanes;
#endif
#ifdef PFFTJAX_SVE512
  if (&chosen == &fft::sve512::kLanes) return sve512::kPointLanes;
#endif
  return baseline::kPointLanes;
}

}  // namespace pfftjax::nufft

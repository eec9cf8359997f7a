// Marks functions that kernels of a GPU call as well as the host.
#pragma once

#include <cstring>

#ifdef __HIP__
#include <hip/hip_runtime.h>  // has the marks, which nvcc knows by itself
#endif

#if defined(__CUDACC__) || defined(__HIP__)
#define PFFTJAX_HOST_DEVICE __host__ __device__
#else
#define PFFTJAX_HOST_DEVICE
#endif

namespace pfftjax {

// The bits of a number as one of another type.
template <typename To, typename From>
PFFTJAX_HOST_DEVICE inline To BitCast(const From& from) {
  static_assert(sizeof(To) == sizeof(From));
  To to;
#ifdef __HIP__  // whose kernels may not call std::memcpy
  __builtin_memcpy(&to, &from, sizeof to);
#else
  std::memcpy(&to, &from, sizeof to);
#endif
  return to;
}

}  // namespace pfftjax

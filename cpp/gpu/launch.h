// Starts kernels by the runtime of CUDA or HIP, or on threads that tests/cpp/cuda_emulator.h
// makes: nothing in a file of kernels may need more of CUDA than is there.
#pragma once

#if defined(__CUDACC__) || defined(__HIP__)
#include "gpu/cuda_or_hip.h"
#else
#include "cuda_emulator.h"
#endif

#include <cstdint>

#include "gpu/device.h"

namespace pfftjax::gpu {

template <typename... Parameters, typename... Arguments>
int LaunchBlocks(void (*kernel)(Parameters...), std::int64_t blocks, unsigned threads,
                 StreamHandle stream, const Arguments&... arguments) {
  cudaLaunchConfig_t config{};
  config.gridDim = dim3(static_cast<unsigned>(blocks));
  config.blockDim = dim3(threads);
  config.stream = static_cast<cudaStream_t>(stream);
  const int launched = cudaLaunchKernelEx(&config, kernel, arguments...);
  // An error that stays would be found by whoever asks next.
  const int left = cudaGetLastError();
  return launched != 0 ? launched : left;
}

}  // namespace pfftjax::gpu

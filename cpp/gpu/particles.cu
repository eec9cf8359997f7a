// Paint, readout and the derivatives of readout: a thread for each particle.
//
// Like kernels.cu it is also compiled by g++, with tests/cpp/cuda_emulator.h.
#ifdef __CUDACC__
#include <cuda_runtime.h>
#else
#include "cuda_emulator.h"
#endif

#include <algorithm>
#include <cmath>
#include <cstdint>

#include "gpu/kernels.h"
#include "gpu/particle_row.h"

namespace pfftjax::gpu {
namespace {

constexpr unsigned kRowsPerBlock = 128;

// Sums in no fixed order. From sm_90 on, two or four floating-point numbers at once take about as
// long as one.
struct Atomics {
  template <typename T>
  static __device__ void Add(T* at, T value) {
    atomicAdd(at, value);
  }
#if !defined(__CUDACC__) || (__CUDACC_VER_MAJOR__ >= 13 && __CUDA_ARCH__ >= 900)
  template <typename T>
  static constexpr bool kAddsTwo = sizeof(T) == sizeof(float);
  static __device__ void AddTwo(float* at, float first, float second) {
    atomicAdd(reinterpret_cast<float2*>(at), make_float2(first, second));
  }
  template <typename T>
  static constexpr bool kAddsFour = sizeof(T) == sizeof(float);
  static __device__ void AddFour(float* at, float first, float second, float third, float fourth) {
    atomicAdd(reinterpret_cast<float4*>(at), make_float4(first, second, third, fourth));
  }
#else
  template <typename T>
  static constexpr bool kAddsTwo = false;
  template <typename T>
  static constexpr bool kAddsFour = false;
#endif
};

template <typename T, int kPoints, ParticleOperation kOperation>
__global__ void __launch_bounds__(kRowsPerBlock)
    RowKernel(const __grid_constant__ ParticleCall call) {
  const std::int64_t row = std::int64_t{blockIdx.x} * kRowsPerBlock + threadIdx.x;
  if (row < call.rows) ParticleRow<T, kPoints>(call, row).template Run<kOperation, Atomics>();
}

// From the sums that lie together to components one after the other.
__global__ void __launch_bounds__(kRowsPerBlock)
    SplitKernel(const float4* together, float* result, std::int64_t volume) {
  const std::int64_t i = std::int64_t{blockIdx.x} * kRowsPerBlock + threadIdx.x;
  if (i >= volume) return;
  const float4 sums = together[i];
  result[i] = sums.x;
  result[i + volume] = sums.y;
  result[i + 2 * volume] = sums.z;
}

// Writes NaN everywhere, where a particle was lost.
template <typename T>
__global__ void __launch_bounds__(kRowsPerBlock)
    LostKernel(const std::int32_t* lost, T* result, std::int64_t count) {
  if (*lost == 0) return;
  const std::int64_t all = std::int64_t{gridDim.x} * kRowsPerBlock;
  for (std::int64_t i = std::int64_t{blockIdx.x} * kRowsPerBlock + threadIdx.x; i < count;
       i += all) {
    result[i] = static_cast<T>(NAN);
  }
}

using ParticleKernel = void (*)(ParticleCall);

template <typename T, int kPoints>
ParticleKernel ParticleKernelOf(ParticleOperation operation) {
  switch (operation) {
    case ParticleOperation::kPaint:
      return RowKernel<T, kPoints, ParticleOperation::kPaint>;
    case ParticleOperation::kReadout:
      return RowKernel<T, kPoints, ParticleOperation::kReadout>;
    case ParticleOperation::kAlong:
      return RowKernel<T, kPoints, ParticleOperation::kAlong>;
    case ParticleOperation::kAcross:
      return RowKernel<T, kPoints, ParticleOperation::kAcross>;
  }
  return nullptr;
}

template <typename T>
ParticleKernel ParticleKernelOf(const ParticleCall& call) {
  switch (call.points) {
    case 1:
      return ParticleKernelOf<T, 1>(call.operation);
    case 2:
      return ParticleKernelOf<T, 2>(call.operation);
    case 3:
      return ParticleKernelOf<T, 3>(call.operation);
    case 4:
      return ParticleKernelOf<T, 4>(call.operation);
    default:
      return nullptr;
  }
}

template <typename... Parameters, typename... Arguments>
int Launch(void (*kernel)(Parameters...), std::int64_t blocks, StreamHandle stream,
           const Arguments&... arguments) {
  cudaLaunchConfig_t config{};
  config.gridDim = dim3(static_cast<unsigned>(blocks));
  config.blockDim = dim3(kRowsPerBlock);
  config.stream = static_cast<cudaStream_t>(stream);
  const int launched = cudaLaunchKernelEx(&config, kernel, arguments...);
  // What is left of an error would be found by whoever asks next.
  const int left = cudaGetLastError();
  return launched != 0 ? launched : left;
}

template <typename T>
int Run(const ParticleCall& call, StreamHandle stream) {
  const ParticleKernel kernel = ParticleKernelOf<T>(call);
  if (!kernel) return cudaErrorInvalidValue;
  const auto blocks = [](std::int64_t threads) {
    return (threads + kRowsPerBlock - 1) / kRowsPerBlock;
  };
  const std::int64_t results = call.results();
  if (call.rows > 0) {
    if (const int code = Launch(kernel, blocks(call.rows), stream, call)) return code;
  }
  if (call.together) {
    if (const int code = Launch(SplitKernel, blocks(call.volume()), stream,
                                static_cast<const float4*>(call.together),
                                static_cast<float*>(call.result), call.volume())) {
      return code;
    }
  }
  if (call.rows == 0 || results == 0) return 0;
  constexpr std::int64_t most_blocks = 1 << 10;
  return Launch(LostKernel<T>, std::min(blocks(results), most_blocks), stream,
                static_cast<const std::int32_t*>(call.lost), static_cast<T*>(call.result),
                results);
}

}  // namespace

// Devices that add four numbers at once have components side by side.
std::int64_t ParticleScratch(const ParticleCall* call) {
  if (call->operation != ParticleOperation::kPaint || call->is_double || !call->is_plain ||
      call->components != 3) {
    return 0;
  }
  int device = 0;
  int major = 0;
  if (cudaGetDevice(&device) != cudaSuccess ||
      cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, device) != cudaSuccess) {
    static_cast<void>(cudaGetLastError());
    return 0;
  }
  return major >= 9 ? call->volume() * static_cast<std::int64_t>(sizeof(float4)) : 0;
}

int RunParticles(const ParticleCall* call, StreamHandle stream) {
  return call->is_double ? Run<double>(*call, stream) : Run<float>(*call, stream);
}

}  // namespace pfftjax::gpu

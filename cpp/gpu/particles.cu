// Paint, readout and the derivatives of readout: a thread for each particle.
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <type_traits>

#include "gpu/kernels.h"
#include "gpu/launch.h"
#include "gpu/particle_row.h"

namespace pfftjax::gpu {
namespace {

constexpr unsigned kRowsPerBlock = 128;

// Two or four floating-point numbers at once take about as long as one. Compilers before CUDA 13
// cannot add them so, nor can code for devices before sm_90, which may run on later ones as well.
#if defined(__CUDACC__) && (__CUDACC_VER_MAJOR__ < 13 || __CUDA_ARCH__ < 900)
#define PFFTJAX_ADDS_ONE_BY_ONE
#endif

// Sums in no fixed order.
struct Atomics {
  template <typename T>
  static __device__ void Add(T* at, T value) {
    atomicAdd(at, value);
  }
  static __device__ void AddTwo(float* at, float first, float second) {
#ifdef PFFTJAX_ADDS_ONE_BY_ONE
    Add(at, first);
    Add(at + 1, second);
#else
    atomicAdd(reinterpret_cast<float2*>(at), make_float2(first, second));
#endif
  }
  static __device__ void AddThree(float* at, float first, float second, float third) {
#ifdef PFFTJAX_ADDS_ONE_BY_ONE
    AddTwo(at, first, second);
    Add(at + 2, third);
#else
    atomicAdd(reinterpret_cast<float4*>(at), make_float4(first, second, third, 0.0f));
#endif
  }
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

std::int64_t BlocksFor(std::int64_t threads) {
  return (threads + kRowsPerBlock - 1) / kRowsPerBlock;
}

template <typename T, int kPoints, ParticleOperation kOperation>
int Run(const ParticleCall& call, StreamHandle stream) {
  const auto launch = [&](auto kernel, std::int64_t blocks, const auto&... arguments) {
    return LaunchBlocks(kernel, blocks, kRowsPerBlock, stream, arguments...);
  };
  T* const result = static_cast<T*>(call.result);
  if (call.rows > 0) {
    if (const int code = launch(RowKernel<T, kPoints, kOperation>, BlocksFor(call.rows), call)) {
      return code;
    }
  }
  if constexpr (std::is_same_v<T, float> && kOperation == ParticleOperation::kPaint) {
    if (call.together) {
      const auto* const together = static_cast<const float4*>(call.together);
      const std::int64_t volume = call.volume();
      if (const int code = launch(SplitKernel, BlocksFor(volume), together, result, volume)) {
        return code;
      }
    }
  }
  if (call.rows == 0 || call.results == 0) return 0;
  constexpr std::int64_t most_blocks = 1 << 10;
  const std::int32_t* const lost = call.lost;
  return launch(LostKernel<T>, std::min(BlocksFor(call.results), most_blocks), lost, result,
                call.results);
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
  int code = cudaSuccess;
  WithTypes(*call, [&](auto zero, auto points, auto operation) {
    code = Run<decltype(zero), points, operation>(*call, stream);
  });
  return code;
}

}  // namespace pfftjax::gpu

// Paint, readout and the derivatives of readout: a thread for each particle.
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <type_traits>

#include "base/host_device.h"
#include "gpu/kernels.h"
#include "gpu/launch.h"
#include "gpu/particle_row.h"

namespace pfftjax::gpu {
namespace {

constexpr unsigned kRowsPerBlock = 128;

// Two or four floating-point numbers at once take about as long as one. Compilers before CUDA 13
// cannot add them so, nor can code for devices before sm_90, which may run on later ones as well,
// nor AMD's.
#if defined(__HIP__) || (defined(__CUDACC__) && (__CUDACC_VER_MAJOR__ < 13 || __CUDA_ARCH__ < 900))
#define PFFTJAX_ADDS_ONE_BY_ONE
#endif

// Sums in no fixed order.
struct Atomics {
  template <typename T>
  __device__ void Add(T* at, T value) const {
    atomicAdd(at, value);
  }
  __device__ void AddTwo(float* at, float first, float second) const {
#ifdef PFFTJAX_ADDS_ONE_BY_ONE
    Add(at, first);
    Add(at + 1, second);
#else
    atomicAdd(reinterpret_cast<float2*>(at), make_float2(first, second));
#endif
  }
  __device__ void AddThree(float* at, float first, float second, float third) const {
#ifdef PFFTJAX_ADDS_ONE_BY_ONE
    AddTwo(at, first, second);
    Add(at + 2, third);
#else
    atomicAdd(reinterpret_cast<float4*>(at), make_float4(first, second, third, 0.0f));
#endif
  }
};

// Sums whose bits do not depend on their order: those of integers, which are multiples of a unit
// that the largest value and the number of rows decide, so that no sum leaves 64 bits. What is
// left of a double-precision number below that unit is summed apart, in units that are 2^31 times
// finer.
class FixedPoint {
 public:
  using Integer = unsigned long long;  // CUDA adds these; signed ones wrap around to the same bits

  // The scratch of a call: the largest magnitude of its values, as bits, and the sums.
  static __host__ __device__ std::int64_t Bytes(const ParticleCall& call) {
    return kHeader + call.results * static_cast<std::int64_t>(sizeof(Integer)) * Parts(call);
  }
  static __device__ Integer* Largest(const ParticleCall& call) {
    return static_cast<Integer*>(call.fixed);
  }

  __device__ explicit FixedPoint(const ParticleCall& call)
      : result_(call.result),
        sums_(reinterpret_cast<Integer*>(static_cast<char*>(call.fixed) + kHeader)),
        results_(call.results) {
    const auto largest = BitCast<double>(*Largest(call));
    is_finite_ = largest < HUGE_VAL;
    if (!is_finite_ || largest == 0) return;
    int bits = 62 - (ilogb(largest) + 1);
    const std::int64_t most = call.rows * call.derivatives;  // that may add to one number
    for (std::int64_t n = 1; n < most; n *= 2) --bits;
    // The weights of a particle add up to one. Each derivative along an axis, of which a kernel
    // has one less than points, at most doubles the sum of their magnitudes.
    if (!call.is_plain) bits -= 3 * (static_cast<int>(pm::kMostPoints) - 1);
    units_ = ldexp(1.0, bits < 900 ? bits : 900);
  }

  template <typename T>
  __device__ void Add(T* at, T value) const {
    if (!is_finite_) return;
    const std::int64_t i = at - static_cast<T*>(result_);
    const double scaled = static_cast<double>(value) * units_;
    const double whole = rint(scaled);
    AddTo(sums_ + i, whole);
    if constexpr (std::is_same_v<T, double>)
      AddTo(sums_ + results_ + i, (scaled - whole) * kFiner);
  }
  __device__ void AddTwo(float* at, float first, float second) const {
    Add(at, first);
    Add(at + 1, second);
  }
  __device__ void AddThree(float*, float, float, float) const {}  // of `together`, which is null

  // A result, once all is summed.
  template <typename T>
  __device__ T Sum(std::int64_t i) const {
    if (!is_finite_) return static_cast<T>(NAN);
    double sum = static_cast<double>(static_cast<long long>(sums_[i]));
    if constexpr (std::is_same_v<T, double>) {
      sum += static_cast<double>(static_cast<long long>(sums_[results_ + i])) / kFiner;
    }
    return static_cast<T>(sum / units_);
  }

 private:
  static constexpr std::int64_t kHeader = 16;
  static constexpr double kFiner = 2147483648.0;

  static __host__ __device__ std::int64_t Parts(const ParticleCall& call) {
    return call.is_double ? 2 : 1;
  }
  static __device__ void AddTo(Integer* at, double whole) {
    atomicAdd(at, static_cast<Integer>(llrint(whole)));
  }

  void* result_;
  Integer* sums_;
  std::int64_t results_;
  bool is_finite_ = false;
  double units_ = 1;  // in one
};

// The largest magnitude of all values that are painted: the bits of numbers that are not negative
// have their order, and those of what is no number come last.
template <typename T>
__global__ void __launch_bounds__(kRowsPerBlock)
    LargestKernel(const __grid_constant__ ParticleCall call) {
  const std::int64_t row = std::int64_t{blockIdx.x} * kRowsPerBlock + threadIdx.x;
  if (row >= call.rows || row >= *call.used) return;
  const std::int64_t each = call.components * call.derivatives;
  for (std::int64_t i = 0; i < each; ++i) {
    const double magnitude =
        std::abs(static_cast<double>(static_cast<const T*>(call.given)[row * each + i]));
    const auto bits = BitCast<FixedPoint::Integer>(magnitude);
    // Nearly all are smaller than what is there, and need not wait for each other.
    FixedPoint::Integer* const largest = FixedPoint::Largest(call);
    if (bits > *static_cast<volatile FixedPoint::Integer*>(largest)) atomicMax(largest, bits);
  }
}

template <typename T>
__global__ void __launch_bounds__(kRowsPerBlock)
    SumKernel(const __grid_constant__ ParticleCall call) {
  const std::int64_t i = std::int64_t{blockIdx.x} * kRowsPerBlock + threadIdx.x;
  if (i < call.results) static_cast<T*>(call.result)[i] = FixedPoint(call).template Sum<T>(i);
}

template <typename T, int kPoints, ParticleOperation kOperation>
__global__ void __launch_bounds__(kRowsPerBlock)
    RowKernel(const __grid_constant__ ParticleCall call) {
  const std::int64_t row = std::int64_t{blockIdx.x} * kRowsPerBlock + threadIdx.x;
  if (row < call.rows) ParticleRow<T, kPoints>(call, row).template Run<kOperation>(Atomics{});
}

template <typename T, int kPoints>
__global__ void __launch_bounds__(kRowsPerBlock)
    FixedPointKernel(const __grid_constant__ ParticleCall call) {
  const std::int64_t row = std::int64_t{blockIdx.x} * kRowsPerBlock + threadIdx.x;
  if (row >= call.rows) return;
  ParticleRow<T, kPoints>(call, row).template Run<ParticleOperation::kPaint>(FixedPoint(call));
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
  const bool is_fixed = kOperation == ParticleOperation::kPaint && call.fixed;
  if (call.rows > 0) {
    if (is_fixed) {
      if (const int code = launch(LargestKernel<T>, BlocksFor(call.rows), call)) return code;
    }
    const auto kernel =
        is_fixed ? FixedPointKernel<T, kPoints> : RowKernel<T, kPoints, kOperation>;
    if (const int code = launch(kernel, BlocksFor(call.rows), call)) return code;
  }
  if (is_fixed && call.results > 0) {
    if (const int code = launch(SumKernel<T>, BlocksFor(call.results), call)) return code;
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
  if (call->operation != ParticleOperation::kPaint) return 0;
  if (call->is_deterministic) return FixedPoint::Bytes(*call);
  if (call->is_double || !call->is_plain || call->components != 3) {
    return 0;
  }
  return AddsFourAtOnce() ? call->volume() * static_cast<std::int64_t>(sizeof(float4)) : 0;
}

int RunParticles(const ParticleCall* call, StreamHandle stream) {
  int code = cudaSuccess;
  WithTypes(*call, [&](auto zero, auto points, auto operation) {
    code = Run<decltype(zero), points, operation>(*call, stream);
  });
  return code;
}

}  // namespace pfftjax::gpu

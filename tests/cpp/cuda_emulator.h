// Enough of CUDA to run cpp/gpu/kernels.cu without it, compiled by g++ under sanitizers.
//
// Blocks run one after the other, and so do the threads of a block, each until it ends or meets
// __syncthreads: a thread that does not wait for the others, where it should, finds in the shared
// memory what was there before.
#pragma once

#include <ucontext.h>

#include <algorithm>
#include <cstddef>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <memory>
#include <utility>
#include <vector>

#ifdef __SANITIZE_ADDRESS__
#include <sanitizer/common_interface_defs.h>
#endif

#define __global__
#define __device__
#define __host__
#define __grid_constant__
#define __launch_bounds__(...)
#define __shared__ static

struct alignas(16) uint4 {
  unsigned x, y, z, w;
};

struct alignas(8) float2 {
  float x, y;
};
inline float2 make_float2(float x, float y) { return {x, y}; }

struct alignas(16) float4 {
  float x, y, z, w;
};
inline float4 make_float4(float x, float y, float z, float w) { return {x, y, z, w}; }

struct dim3 {
  dim3(unsigned x = 1) : x(x) {}  // NOLINT: as CUDA has it, not explicit
  unsigned x;
};

using cudaStream_t = void*;
enum cudaError_t { cudaSuccess = 0, cudaErrorInvalidValue = 1, cudaErrorInvalidConfiguration = 9 };
enum cudaDeviceAttr { cudaDevAttrMultiProcessorCount };

struct cudaLaunchConfig_t {
  dim3 gridDim;
  dim3 blockDim;
  std::size_t dynamicSmemBytes = 0;
  cudaStream_t stream = nullptr;
};

inline dim3 threadIdx(0);
inline dim3 blockIdx(0);
inline dim3 blockDim;
inline dim3 gridDim;

namespace emulator {

inline int launches = 0;

// Runs the threads of one block at a time. Threads that never wait share a fibre.
class Block {
 public:
  static Block& Get() {
    static Block block;
    return block;
  }

  void Run(unsigned threads, const std::function<void()>& body) {
    threads_ = threads;
    body_ = &body;
    next_ = 0;
    while (next_ < threads_) Switch(Idle());
    for (bool backward = true; !waiting_.empty(); backward = !backward) {
      if (waiting_.size() != threads_) {
        std::fprintf(stderr, "%zu of %u threads met a barrier\n", waiting_.size(), threads_);
        std::abort();
      }
      std::vector<Fibre*> all;
      all.swap(waiting_);
      for (std::size_t i = 0; i < all.size(); ++i) {
        Switch(all[backward ? all.size() - 1 - i : i]);
      }
    }
  }

  void Wait() {
    Fibre* fibre = running_;
    waiting_.push_back(fibre);
    Return(fibre);
  }

 private:
  static constexpr std::size_t kStackBytes = 256 << 10;

  struct Fibre {
    ucontext_t context{};
    std::unique_ptr<char[]> stack{new char[kStackBytes]};
    unsigned thread = 0;
    void* shadow = nullptr;  // AddressSanitizer's
  };

  Fibre* Idle() {
    if (idle_.empty()) {
      fibres_.push_back(std::make_unique<Fibre>());
      Fibre* fibre = fibres_.back().get();
      getcontext(&fibre->context);
      fibre->context.uc_stack.ss_sp = fibre->stack.get();
      fibre->context.uc_stack.ss_size = kStackBytes;
      makecontext(&fibre->context, &Block::Enter, 0);
      idle_.push_back(fibre);
    }
    Fibre* fibre = idle_.back();
    idle_.pop_back();
    return fibre;
  }

  void Switch(Fibre* fibre) {
    running_ = fibre;
    threadIdx.x = fibre->thread;
#ifdef __SANITIZE_ADDRESS__
    void* shadow = nullptr;
    __sanitizer_start_switch_fiber(&shadow, fibre->stack.get(), kStackBytes);
#endif
    swapcontext(&main_, &fibre->context);
#ifdef __SANITIZE_ADDRESS__
    __sanitizer_finish_switch_fiber(shadow, nullptr, nullptr);
#endif
  }

  void Return(Fibre* fibre) {
#ifdef __SANITIZE_ADDRESS__
    __sanitizer_start_switch_fiber(&fibre->shadow, main_stack_, main_stack_bytes_);
#endif
    swapcontext(&fibre->context, &main_);
    Entered(fibre);
  }

  void Entered([[maybe_unused]] Fibre* fibre) {
#ifdef __SANITIZE_ADDRESS__
    __sanitizer_finish_switch_fiber(fibre->shadow, &main_stack_, &main_stack_bytes_);
#endif
  }

  static void Enter() {
    Block& block = Get();
    Fibre* fibre = block.running_;
    block.Entered(fibre);
    while (true) {
      while (block.next_ < block.threads_) {
        fibre->thread = block.next_++;
        threadIdx.x = fibre->thread;
        (*block.body_)();
      }
      block.idle_.push_back(fibre);
      block.Return(fibre);
    }
  }

  unsigned threads_ = 0;
  unsigned next_ = 0;  // the first thread that has not begun
  const std::function<void()>* body_ = nullptr;
  Fibre* running_ = nullptr;
  std::vector<std::unique_ptr<Fibre>> fibres_;
  std::vector<Fibre*> idle_;
  std::vector<Fibre*> waiting_;
  ucontext_t main_{};
  const void* main_stack_ = nullptr;
  std::size_t main_stack_bytes_ = 0;
};

}  // namespace emulator

inline void __syncthreads() { emulator::Block::Get().Wait(); }  // NOLINT: CUDA's name

// Threads run one after the other.
template <typename T>
T atomicAdd(T* at, T value) {
  const T before = *at;
  *at += value;
  return before;
}
template <typename T>
T atomicMax(T* at, T value) {
  const T before = *at;
  *at = std::max(before, value);
  return before;
}
inline float2 atomicAdd(float2* at, float2 value) {
  const float2 before = *at;
  *at = {before.x + value.x, before.y + value.y};
  return before;
}

inline float4 atomicAdd(float4* at, float4 value) {
  const float4 before = *at;
  *at = {before.x + value.x, before.y + value.y, before.z + value.z, before.w + value.w};
  return before;
}

namespace pfftjax::gpu {

inline bool adds_four_at_once = true;
inline bool AddsFourAtOnce() { return adds_four_at_once; }

}  // namespace pfftjax::gpu

inline cudaError_t cudaGetLastError() { return cudaSuccess; }
inline cudaError_t cudaGetDevice(int* device) {
  *device = 0;
  return cudaSuccess;
}
inline cudaError_t cudaDeviceGetAttribute(int* value, cudaDeviceAttr, int) {
  *value = 1;
  return cudaSuccess;
}

template <typename... Parameters, typename... Arguments>
cudaError_t cudaLaunchKernelEx(const cudaLaunchConfig_t* config, void (*kernel)(Parameters...),
                               Arguments&&... arguments) {
  ++emulator::launches;
  gridDim = config->gridDim;
  blockDim = config->blockDim;
  if (gridDim.x == 0 || blockDim.x == 0 || blockDim.x > 1024) return cudaErrorInvalidConfiguration;
  const std::function<void()> body = [&] { kernel(arguments...); };
  for (blockIdx.x = 0; blockIdx.x < gridDim.x; ++blockIdx.x) {
    emulator::Block::Get().Run(blockDim.x, body);
  }
  return cudaSuccess;
}

// The runtime library that cuda_device.cc and the kernels call: CUDA's, or HIP under CUDA's names.
// What else differs between the two is here as well, so that no other file asks which it is.
#pragma once

#include <cstddef>
#include <cstdio>
#include <string>

#ifdef __HIP__
#include <hip/hip_runtime.h>
#include <hip/hip_version.h>
#define __grid_constant__  // AMD GPUs have all parameters of kernels in constant memory
#else
#include <cuda_runtime.h>
#endif

namespace pfftjax::gpu {

// The device's platform, as XLA calls it, and the library in which NCCL's functions are found.
struct Vendor {
  const char* runtime;
  int major;
  int minor;
  const char* platform;
  const char* nccl;
  const char* nccl_file;
};

#ifdef __HIP__

inline constexpr Vendor kVendor{"HIP",  HIP_VERSION_MAJOR, HIP_VERSION_MINOR, "ROCM",
                                "RCCL", "librccl.so.1"};

using cudaError_t = hipError_t;
inline constexpr cudaError_t cudaSuccess = hipSuccess;
inline constexpr cudaError_t cudaErrorInvalidValue = hipErrorInvalidValue;
inline constexpr cudaError_t cudaErrorNotReady = hipErrorNotReady;
inline constexpr auto& cudaGetLastError = hipGetLastError;
inline constexpr auto& cudaGetErrorString = hipGetErrorString;

using cudaStream_t = hipStream_t;
using cudaEvent_t = hipEvent_t;
inline constexpr unsigned cudaStreamNonBlocking = hipStreamNonBlocking;
inline constexpr unsigned cudaEventDisableTiming = hipEventDisableTiming;
inline constexpr unsigned cudaEventInterprocess = hipEventInterprocess;
inline constexpr auto& cudaDeviceGetStreamPriorityRange = hipDeviceGetStreamPriorityRange;
inline constexpr auto& cudaStreamCreateWithPriority = hipStreamCreateWithPriority;
inline constexpr auto& cudaStreamDestroy = hipStreamDestroy;
inline constexpr auto& cudaStreamQuery = hipStreamQuery;
inline constexpr auto& cudaStreamWaitEvent = hipStreamWaitEvent;
inline constexpr auto& cudaEventCreateWithFlags = hipEventCreateWithFlags;
inline constexpr auto& cudaEventDestroy = hipEventDestroy;
inline constexpr auto& cudaEventRecord = hipEventRecord;
inline constexpr auto& cudaEventQuery = hipEventQuery;

using cudaMemcpyKind = hipMemcpyKind;
inline constexpr cudaMemcpyKind cudaMemcpyDeviceToDevice = hipMemcpyDeviceToDevice;
inline constexpr cudaMemcpyKind cudaMemcpyDeviceToHost = hipMemcpyDeviceToHost;
inline constexpr cudaMemcpyKind cudaMemcpyHostToDevice = hipMemcpyHostToDevice;
inline constexpr unsigned cudaHostAllocPortable = hipHostMallocPortable;
inline constexpr unsigned cudaHostRegisterPortable = hipHostRegisterPortable;
// These have overloads.
inline constexpr hipError_t (&cudaMalloc)(void**, std::size_t) = hipMalloc;
inline constexpr hipError_t (&cudaHostAlloc)(void**, std::size_t, unsigned) = hipHostMalloc;
inline constexpr auto& cudaFree = hipFree;
inline constexpr auto& cudaFreeHost = hipHostFree;
inline constexpr auto& cudaHostRegister = hipHostRegister;
inline constexpr auto& cudaHostUnregister = hipHostUnregister;
inline constexpr auto& cudaMemcpyAsync = hipMemcpyAsync;
inline constexpr auto& cudaMemsetAsync = hipMemsetAsync;

using cudaIpcEventHandle_t = hipIpcEventHandle_t;
using cudaIpcMemHandle_t = hipIpcMemHandle_t;
inline constexpr unsigned cudaIpcMemLazyEnablePeerAccess = hipIpcMemLazyEnablePeerAccess;
inline constexpr auto& cudaIpcGetEventHandle = hipIpcGetEventHandle;
inline constexpr auto& cudaIpcOpenEventHandle = hipIpcOpenEventHandle;
inline constexpr auto& cudaIpcGetMemHandle = hipIpcGetMemHandle;
inline constexpr auto& cudaIpcOpenMemHandle = hipIpcOpenMemHandle;
inline constexpr auto& cudaIpcCloseMemHandle = hipIpcCloseMemHandle;

inline constexpr auto cudaDevAttrMultiProcessorCount = hipDeviceAttributeMultiprocessorCount;
inline constexpr auto& cudaGetDevice = hipGetDevice;
inline constexpr auto& cudaSetDevice = hipSetDevice;
inline constexpr auto& cudaDeviceGetAttribute = hipDeviceGetAttribute;
using cudaStreamCaptureMode = hipStreamCaptureMode;
inline constexpr auto cudaStreamCaptureModeThreadLocal = hipStreamCaptureModeThreadLocal;
inline constexpr auto& cudaThreadExchangeStreamCaptureMode = hipThreadExchangeStreamCaptureMode;

struct cudaLaunchConfig_t {
  dim3 gridDim;
  dim3 blockDim;
  cudaStream_t stream;
};

// Takes copies, which have the types of the kernel's parameters, by their addresses.
template <typename... Parameters, typename... Arguments>
cudaError_t cudaLaunchKernelEx(const cudaLaunchConfig_t* config, void (*kernel)(Parameters...),
                               const Arguments&... arguments) {
  const auto launch = [&](Parameters... copies) {
    void* addresses[] = {const_cast<void*>(static_cast<const void*>(&copies))...};
    return hipLaunchKernel(reinterpret_cast<const void*>(kernel), config->gridDim,
                           config->blockDim, addresses, 0, config->stream);
  };
  return launch(arguments...);
}

// No AMD GPU adds several floats at once.
inline bool AddsFourAtOnce() { return false; }

// As ROCR_VISIBLE_DEVICES names it. The place on the bus tells the partitions of a GPU apart,
// which may have one name.
inline cudaError_t NameDevice(int device, char* text, std::size_t size) {
  hipUUID uuid{};
  if (const hipError_t code = hipDeviceGetUuid(&uuid, device)) return code;
  char bus[32] = {};
  if (const hipError_t code = hipDeviceGetPCIBusId(bus, sizeof bus, device)) return code;
  std::snprintf(text, size, "GPU-%.16s at %s", uuid.bytes, bus);
  return hipSuccess;
}

#else

inline constexpr Vendor kVendor{"CUDA", CUDART_VERSION / 1000, CUDART_VERSION % 1000 / 10, "CUDA",
                                "NCCL", "libnccl.so.2"};

// Whether the current device does (from sm_90 on).
inline bool AddsFourAtOnce() {
  int device = 0;
  int major = 0;
  if (cudaGetDevice(&device) != cudaSuccess ||
      cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, device) != cudaSuccess) {
    static_cast<void>(cudaGetLastError());
    return false;
  }
  return major >= 9;
}

// By the UUID, as nvidia-smi writes it: numbers of devices depend on CUDA_VISIBLE_DEVICES.
inline cudaError_t NameDevice(int device, char* text, std::size_t size) {
  cudaDeviceProp properties{};
  if (const cudaError_t code = cudaGetDeviceProperties(&properties, device)) return code;
  char hex[2 * sizeof properties.uuid.bytes + 1] = {};
  for (std::size_t i = 0; i < sizeof properties.uuid.bytes; ++i) {
    std::snprintf(hex + 2 * i, 3, "%02x", static_cast<unsigned char>(properties.uuid.bytes[i]));
  }
  std::snprintf(text, size, "GPU-%.8s-%.4s-%.4s-%.4s-%.12s", hex, hex + 8, hex + 12, hex + 16,
                hex + 20);
  return cudaSuccess;
}

#endif

}  // namespace pfftjax::gpu

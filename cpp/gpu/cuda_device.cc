// DeviceApi by the runtime of CUDA or HIP, which is linked into this shared object and nowhere
// else.
#include "gpu/cuda_or_hip.h"
#if !defined(__HIP__) && __has_include(<nvtx3/nvToolsExt.h>)
#include <nvtx3/nvToolsExt.h>
#define PFFTJAX_NVTX
#endif

#include <cstring>
#include <string>

#include "gpu/device.h"
#include "gpu/kernels.h"

namespace pfftjax::gpu {
namespace {

// The runtime keeps the last error until somebody asks for it; then it would be taken for his.
int Code(cudaError_t error) {
  if (error != cudaSuccess) static_cast<void>(cudaGetLastError());
  return error;
}

// Queries: not yet is no error.
int Answer(cudaError_t error, int* yes) {
  *yes = error == cudaSuccess;
  return error == cudaErrorNotReady ? Code(error), 0 : Code(error);
}

cudaStream_t Stream(StreamHandle stream) { return static_cast<cudaStream_t>(stream); }
cudaEvent_t Event(EventHandle event) { return static_cast<cudaEvent_t>(event); }

// Does not wait for the default stream, which nothing here uses. Ahead of XLA's: what runs here is
// little work that other ranks wait for, beside computations that fill the device.
int MakeStream(StreamHandle* stream) {
  *stream = nullptr;
  int least = 0;
  int greatest = 0;
  if (const int code = Code(cudaDeviceGetStreamPriorityRange(&least, &greatest))) return code;
  cudaStream_t made = nullptr;
  const int code = Code(cudaStreamCreateWithPriority(&made, cudaStreamNonBlocking, greatest));
  *stream = made;
  return code;
}

int FreeStream(StreamHandle stream) { return Code(cudaStreamDestroy(Stream(stream))); }

int MakeEventWith(unsigned flags, EventHandle* event) {
  cudaEvent_t made = nullptr;
  const int code = Code(cudaEventCreateWithFlags(&made, flags));
  *event = made;
  return code;
}

int MakeEvent(EventHandle* event) { return MakeEventWith(cudaEventDisableTiming, event); }

int FreeEvent(EventHandle event) { return Code(cudaEventDestroy(Event(event))); }

int Record(EventHandle event, StreamHandle stream) {
  return Code(cudaEventRecord(Event(event), Stream(stream)));
}

int IsDone(EventHandle event, int* done) { return Answer(cudaEventQuery(Event(event)), done); }

int IsIdle(StreamHandle stream, int* idle) {
  return Answer(cudaStreamQuery(Stream(stream)), idle);
}

int Wait(StreamHandle stream, EventHandle event) {
  return Code(cudaStreamWaitEvent(Stream(stream), Event(event), 0));
}

// `body(bytes)` where there are any.
template <typename Body>
int WithBytes(std::int64_t bytes, Body&& body) {
  if (bytes < 0) return cudaErrorInvalidValue;
  return bytes == 0 ? 0 : Code(body(static_cast<std::size_t>(bytes)));
}

int Allocate(void** memory, std::int64_t bytes) {
  *memory = nullptr;
  return WithBytes(bytes, [=](std::size_t size) { return cudaMalloc(memory, size); });
}

int Free(void* memory) { return Code(cudaFree(memory)); }

int AllocatePinned(void** memory, std::int64_t bytes) {
  *memory = nullptr;
  // Portable: pinned for all devices of the process, not for the current one only.
  return WithBytes(
      bytes, [=](std::size_t size) { return cudaHostAlloc(memory, size, cudaHostAllocPortable); });
}

int FreePinned(void* memory) { return Code(cudaFreeHost(memory)); }

int Pin(void* memory, std::int64_t bytes) {
  return WithBytes(bytes, [=](std::size_t size) {
    return cudaHostRegister(memory, size, cudaHostRegisterPortable);
  });
}

int Unpin(void* memory) { return Code(cudaHostUnregister(memory)); }

int Copy(void* target, const void* source, std::int64_t bytes, Direction direction,
         StreamHandle stream) {
  cudaMemcpyKind kind = cudaMemcpyDeviceToDevice;
  if (direction == Direction::kToHost) kind = cudaMemcpyDeviceToHost;
  if (direction == Direction::kToDevice) kind = cudaMemcpyHostToDevice;
  return WithBytes(bytes, [=](std::size_t size) {
    return cudaMemcpyAsync(target, source, size, kind, Stream(stream));
  });
}

int Clear(void* memory, std::int64_t bytes, StreamHandle stream) {
  return WithBytes(
      bytes, [=](std::size_t size) { return cudaMemsetAsync(memory, 0, size, Stream(stream)); });
}

template <typename Handle>
void ToShared(const Handle& handle, SharedHandle* shared) {
  static_assert(sizeof(Handle) == sizeof(SharedHandle));
  std::memcpy(shared->bytes, &handle, sizeof handle);
}

template <typename Handle>
Handle FromShared(const SharedHandle& shared) {
  Handle handle;
  static_assert(sizeof(Handle) == sizeof(SharedHandle));
  std::memcpy(&handle, shared.bytes, sizeof handle);
  return handle;
}

int MakeSharedEvent(EventHandle* event, SharedHandle* handle) {
  if (const int code = MakeEventWith(cudaEventDisableTiming | cudaEventInterprocess, event)) {
    return code;
  }
  cudaIpcEventHandle_t exported{};
  if (const int code = Code(cudaIpcGetEventHandle(&exported, Event(*event)))) {
    FreeEvent(*event);
    *event = nullptr;
    return code;
  }
  ToShared(exported, handle);
  return 0;
}

int OpenEvent(const SharedHandle* handle, EventHandle* event) {
  cudaEvent_t opened = nullptr;
  const int code =
      Code(cudaIpcOpenEventHandle(&opened, FromShared<cudaIpcEventHandle_t>(*handle)));
  *event = opened;
  return code;
}

int ExportMemory(void* memory, SharedHandle* handle) {
  cudaIpcMemHandle_t exported{};
  const int code = Code(cudaIpcGetMemHandle(&exported, memory));
  ToShared(exported, handle);
  return code;
}

int OpenMemory(const SharedHandle* handle, void** memory) {
  *memory = nullptr;
  return Code(cudaIpcOpenMemHandle(memory, FromShared<cudaIpcMemHandle_t>(*handle),
                                   cudaIpcMemLazyEnablePeerAccess));
}

int CloseMemory(void* memory) { return Code(cudaIpcCloseMemHandle(memory)); }

int CurrentDevice(int* device) { return Code(cudaGetDevice(device)); }

// The order matters: the second call would make a context of its own on another device.
int UseDevice(int device) {
  if (const int code = Code(cudaSetDevice(device))) return code;
  cudaStreamCaptureMode mode = cudaStreamCaptureModeThreadLocal;
  return Code(cudaThreadExchangeStreamCaptureMode(&mode));
}

int Identity(int device, char* text, std::size_t size) {
  return Code(NameDevice(device, text, size));
}

const char* ErrorText(int code) { return cudaGetErrorString(static_cast<cudaError_t>(code)); }

#ifdef PFFTJAX_NVTX
nvtxDomainHandle_t Domain() {
  static const nvtxDomainHandle_t domain = nvtxDomainCreateA("pfftjax");
  return domain;
}

void PushRange(const char* name) {
  nvtxEventAttributes_t attributes{};
  attributes.version = NVTX_VERSION;
  attributes.size = NVTX_EVENT_ATTRIB_STRUCT_SIZE;
  attributes.messageType = NVTX_MESSAGE_TYPE_ASCII;
  attributes.message.ascii = name;
  nvtxDomainRangePushEx(Domain(), &attributes);
}

void PopRange() { nvtxDomainRangePop(Domain()); }
#else
constexpr void (*PushRange)(const char*) = nullptr;
constexpr void (*PopRange)() = nullptr;
#endif

std::string Name() {
  return std::string(kVendor.runtime) + " " + std::to_string(kVendor.major) + "." +
         std::to_string(kVendor.minor);
}

const DeviceApi& Api() {
  static const std::string name = Name();
  static const DeviceApi api = {
      kDeviceApiVersion,
      name.c_str(),
      kVendor.platform,
      kVendor.nccl,
      kVendor.nccl_file,
      false,
      MakeStream,
      FreeStream,
      MakeEvent,
      FreeEvent,
      Record,
      IsDone,
      IsIdle,
      Wait,
      Allocate,
      Free,
      AllocatePinned,
      FreePinned,
      Pin,
      Unpin,
      Copy,
      Clear,
      CopyBoxes,
      AddBoxes,
      ParticleScratch,
      RunParticles,
      MakeSharedEvent,
      OpenEvent,
      ExportMemory,
      OpenMemory,
      CloseMemory,
      CurrentDevice,
      UseDevice,
      Identity,
      ErrorText,
      PushRange,
      PopRange,
  };
  return api;
}

}  // namespace
}  // namespace pfftjax::gpu

extern "C" __attribute__((visibility("default"))) const pfftjax::gpu::DeviceApi*
pfftjax_device_api() {
  return &pfftjax::gpu::Api();
}

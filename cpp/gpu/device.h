// The one interface between pfftjax and a GPU's runtime library, as mpi_api.h is to MPI.
//
// cuda_device.cc and the kernels implement it for CUDA and for HIP, in a shared object of their
// own that is built where CMake finds CUDA, or is told to find HIP, and opened where it is there;
// tools/fake_device/ implements it without a GPU. Nothing else in pfftjax includes a header of
// either, so the logic of all transports is compiled, and tested, everywhere.
//
// Functions return 0 or the runtime's error code. They need not wait for what they enqueue.
#pragma once

#include <cstddef>
#include <cstdint>
#include <stdexcept>
#include <string>

#include "base/element.h"
#include "gpu/particles.h"
#include "pencils/box.h"

namespace pfftjax::gpu {

using StreamHandle = void*;  // cudaStream_t, hipStream_t
using EventHandle = void*;   // cudaEvent_t, hipEvent_t

inline constexpr int kDeviceApiVersion = 6;

enum class Direction : std::int32_t { kToHost, kToDevice, kOnDevice };

// Another process of the node needs this to open memory, or an event, of this one.
struct SharedHandle {
  char bytes[64] = {};
};

// A box of one buffer of the device and where its elements go in another; equal extents.
struct BoxCopy {
  const void* source = nullptr;
  Box from;
  void* target = nullptr;
  Box to;
};

struct DeviceApi {
  int version;
  const char* name;      // "CUDA 13.0"
  const char* platform;  // of XLA: "CUDA", "ROCM", or "cpu" for one without a device
  // The library with the functions of nccl_api.h: "NCCL" and "libnccl.so.2". Null where the
  // runtime has none, and PFFTJAX_NCCL does not name one either.
  const char* nccl;
  const char* nccl_file;
  // The host may touch the device's memory: only where there is no device.
  bool is_host_memory;

  // Streams and events, of the device that is current. Events that were never recorded are done.
  int (*make_stream)(StreamHandle* stream);
  int (*free_stream)(StreamHandle stream);
  int (*make_event)(EventHandle* event);
  int (*free_event)(EventHandle event);
  int (*record)(EventHandle event, StreamHandle stream);
  int (*is_done)(EventHandle event, int* done);
  int (*is_idle)(StreamHandle stream, int* idle);
  // The stream waits, not the caller.
  int (*wait)(StreamHandle stream, EventHandle event);

  // Memory of the host must be pinned, or a copy does not return before it has ended.
  int (*allocate)(void** memory, std::int64_t bytes);
  int (*free)(void* memory);
  int (*allocate_pinned)(void** memory, std::int64_t bytes);
  int (*free_pinned)(void* memory);
  int (*pin)(void* memory, std::int64_t bytes);
  int (*unpin)(void* memory);
  int (*copy)(void* target, const void* source, std::int64_t bytes, Direction direction,
              StreamHandle stream);
  int (*clear)(void* memory, std::int64_t bytes, StreamHandle stream);

  // Kernels. All copies of one call may run at once: their targets do not overlap. Additions of
  // one call run one after the other, in this order, so that sums do not depend on chance.
  int (*copy_boxes)(const BoxCopy* copies, int count, std::int64_t element_bytes,
                    StreamHandle stream);
  int (*add_boxes)(const BoxCopy* copies, int count, Element element, StreamHandle stream);
  // Bytes of memory of the device for `together`; 0 where the call does without.
  std::int64_t (*particle_scratch)(const ParticleCall* call);
  // Where paint does without scratch it adds to a result that is zero. Its sums are in no fixed
  // order.
  int (*run_particles)(const ParticleCall* call, StreamHandle stream);

  // Processes of a node share memory from `allocate` and events of this kind by these.
  int (*make_shared_event)(EventHandle* event, SharedHandle* handle);
  int (*open_event)(const SharedHandle* handle, EventHandle* event);
  int (*export_memory)(void* memory, SharedHandle* handle);
  int (*open_memory)(const SharedHandle* handle, void** memory);
  int (*close_memory)(void* memory);

  // The device of the calling thread. `use_device` is for threads of our own: what they ask then
  // disturbs nothing that another thread records into a graph. `identity` is the same in every
  // process that sees the device.
  int (*current_device)(int* device);
  int (*use_device)(int device);
  int (*identity)(int device, char* text, std::size_t size);

  const char* (*error_text)(int code);

  // Ranges of time by name, for tools that trace; null where the runtime has none.
  void (*push_range)(const char* name);
  void (*pop_range)();
};

// The loaded runtime. Null where there is none.
const DeviceApi* Device();
// Opens the shared object at `path`; throws std::runtime_error with the loader's words.
void LoadDevice(const std::string& path);

// Turns the runtime's error into an exception. The frame of an operation (call.h) adds operation
// and rank, and hands it to XLA.
inline void Check(int code, const char* what) {
  if (code == 0) return;
  throw std::runtime_error(std::string(Device()->name) + " says '" + Device()->error_text(code) +
                           "' in " + what);
}

}  // namespace pfftjax::gpu

// The symbol that each implementation exports.
extern "C" const pfftjax::gpu::DeviceApi* pfftjax_device_api();

// The stream that XLA gives to a handler, as everything in cpp/gpu/ sees it.
#pragma once

#include <optional>
#include <utility>
#include <vector>

#include "../errors.h"
#include "device.h"

namespace pfftjax::gpu {

// An event of this process, returned to the runtime at its end.
class Event {
 public:
  Event() { Check(Device()->make_event(&handle_), "making an event"); }
  Event(Event&& other) noexcept : handle_(std::exchange(other.handle_, nullptr)) {}
  Event& operator=(Event&&) = delete;
  ~Event() {
    if (handle_) Device()->free_event(handle_);
  }
  void Record(StreamHandle stream) { Check(Device()->record(handle_, stream), "recording"); }
  bool IsDone() const {
    int done = 0;
    Check(Device()->is_done(handle_, &done), "asking for an event");
    return done != 0;
  }
  EventHandle handle() const { return handle_; }

 private:
  EventHandle handle_ = nullptr;
};

// What a handler may enqueue on, for the duration of a call. Work that was enqueued before it is
// ordered before everything that is enqueued here, and the operations that follow after it.
class Queue {
 public:
  // `stream` is XLA's; none where XLA has no streams and the runtime is one without a device.
  explicit Queue(StreamHandle stream);
  Queue(Queue&& other) noexcept;
  Queue& operator=(Queue&&) = delete;
  // Without a device: runs what was enqueued, as XLA's next operation takes the memory as it is.
  ~Queue();

  StreamHandle stream() const { return stream_; }

  void Copy(void* target, const void* source, std::int64_t bytes, Direction direction) {
    if (bytes == 0) return;
    Check(Device()->copy(target, source, bytes, direction, stream_), "copying");
  }
  void Clear(void* memory, std::int64_t bytes) {
    if (bytes == 0) return;
    Check(Device()->clear(memory, bytes, stream_), "clearing memory");
  }
  // Enqueues nothing: waits until everything before has run, and lets MPI go on meanwhile.
  void Synchronize(MpiHandle progress);

 private:
  StreamHandle stream_;
  bool is_own_ = false;
};

}  // namespace pfftjax::gpu

namespace xla::ffi {

// A handler asks for it by `.Ctx<pfftjax::gpu::Queue>()`.
template <>
struct CtxDecoding<pfftjax::gpu::Queue> {
  using Type = pfftjax::gpu::Queue;
  static std::optional<Type> Decode(const XLA_FFI_Api* api, XLA_FFI_ExecutionContext* ctx,
                                    DiagnosticEngine& diagnostic) {
    if (pfftjax::gpu::Device()->is_host_memory) return Type(nullptr);
    const std::optional<void*> stream =
        CtxDecoding<PlatformStream<void*>>::Decode(api, ctx, diagnostic);
    if (!stream) return std::nullopt;
    return Type(*stream);
  }
};

}  // namespace xla::ffi

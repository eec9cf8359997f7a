// The stream that XLA gives to a handler, as everything in cpp/gpu/ sees it.
#pragma once

#include <functional>
#include <utility>
#include <vector>

#include "gpu/device.h"
#include "runtime/communicator.h"

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

// A stream of our own, which stays.
class Stream {
 public:
  Stream() { Check(Device()->make_stream(&handle_), "making a stream"); }
  Stream(const Stream&) = delete;
  Stream& operator=(const Stream&) = delete;
  ~Stream() { Device()->free_stream(handle_); }
  StreamHandle handle() const { return handle_; }
  void WaitFor(const Event& event) {
    Check(Device()->wait(handle_, event.handle()), "waiting for an event");
  }

 private:
  StreamHandle handle_ = nullptr;
};

// Memory of the host that belongs to the device's runtime.
class PinnedMemory {
 public:
  explicit PinnedMemory(std::int64_t bytes) {
    void* pinned = nullptr;
    if (bytes > 0) Check(Device()->allocate_pinned(&pinned, bytes), "pinning memory");
    data_ = static_cast<char*>(pinned);
  }
  PinnedMemory(const PinnedMemory&) = delete;
  PinnedMemory& operator=(const PinnedMemory&) = delete;
  ~PinnedMemory() {
    if (data_) Device()->free_pinned(data_);
  }
  char* data() const { return data_; }

 private:
  char* data_ = nullptr;
};

// What a host does between two looks at its device: lets other threads run, and MPI, since another
// rank may wait for a message that only this one can move on. A call that has begun (call.h) names
// its communicator; before, MPI may be on its way out.
void GiveWay(MpiHandle progress = 0);

// A handler may enqueue on this for the duration of a call. Work that was enqueued before it is
// ordered before everything that is enqueued here, and the operations that follow after it.
class Queue {
 public:
  // Memory of the device that is XLA's, and goes back to it after the call.
  using Allocator = std::function<void*(std::int64_t bytes)>;

  // `stream` is XLA's; none where XLA has no streams and the runtime is one without a device.
  explicit Queue(StreamHandle stream, Allocator allocate = {});
  // This one is on a stream of our own, which goes on after the call.
  explicit Queue(const Stream& own) : stream_(own.handle()), goes_on_(true) {}
  Queue(Queue&& other) noexcept;
  Queue& operator=(Queue&&) = delete;
  // Without a device: runs what was enqueued, as XLA's next operation takes the memory as it is.
  ~Queue();

  StreamHandle stream();
  void WaitFor(const Event& event) {
    Check(Device()->wait(stream(), event.handle()), "waiting for an event");
  }

  void Copy(void* target, const void* source, std::int64_t bytes, Direction direction) {
    if (bytes == 0) return;
    Check(Device()->copy(target, source, bytes, direction, stream()), "copying");
  }
  void Clear(void* memory, std::int64_t bytes) {
    if (bytes == 0) return;
    Check(Device()->clear(memory, bytes, stream()), "clearing memory");
  }
  // Memory of the device, for what is enqueued in this call. Null for no bytes.
  void* Allocate(std::int64_t bytes);

  // Enqueues nothing: waits until everything before has run, and gives way meanwhile.
  void Synchronize(MpiHandle progress = 0);

 private:
  StreamHandle stream_;
  bool goes_on_ = false;
  Allocator allocate_;
  std::vector<void*> own_;  // memory that did not come from XLA
};

}  // namespace pfftjax::gpu

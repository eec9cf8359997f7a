#include "gpu/queue.h"

#include <sched.h>

#include "runtime/departure.h"

namespace pfftjax::gpu {

void GiveWay(MpiHandle progress) {
  if (const int code = progress ? Mpi()->progress(progress) : LetMpiGoOn()) {
    throw std::runtime_error("MPI's progress failed with code " + std::to_string(code));
  }
  sched_yield();
}

Queue::Queue(StreamHandle stream, Allocator allocate)
    : stream_(stream), allocate_(std::move(allocate)) {}

Queue::Queue(Queue&& other) noexcept
    : stream_(std::exchange(other.stream_, nullptr)),
      goes_on_(other.goes_on_),
      allocate_(std::move(other.allocate_)),
      own_(std::exchange(other.own_, {})) {}

StreamHandle Queue::stream() {
  // Here and not when a handler's arguments are decoded, where an error could name no operation.
  if (!stream_ && Device()->is_host_memory) {
    Check(Device()->make_stream(&stream_), "making a stream");
  }
  return stream_;
}

Queue::~Queue() {
  if (Device()->is_host_memory && stream_ && !goes_on_) {
    constexpr int kMostFailures = 100;
    for (int idle = 0, failures = 0; !idle && failures < kMostFailures;) {
      failures += Device()->is_idle(stream_, &idle) != 0;
      if (!idle) sched_yield();  // it may wait for an event of another process
    }
    Device()->free_stream(stream_);
  }
  for (void* memory : own_) Device()->free(memory);
}

void* Queue::Allocate(std::int64_t bytes) {
  if (bytes == 0) return nullptr;
  if (allocate_) return allocate_(bytes);
  void* memory = nullptr;
  Check(Device()->allocate(&memory, bytes), "allocating memory");
  own_.push_back(memory);
  return memory;
}

void Queue::Synchronize(MpiHandle progress) {
  for (int idle = 0; !idle;) {
    Check(Device()->is_idle(stream(), &idle), "waiting for the device");
    if (!idle) GiveWay(progress);
  }
}

}  // namespace pfftjax::gpu

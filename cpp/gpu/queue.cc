#include "queue.h"

#include <thread>

namespace pfftjax::gpu {

Queue::Queue(StreamHandle stream) : stream_(stream) {
  if (Device()->is_host_memory) {
    Check(Device()->make_stream(&stream_), "making a stream");
    is_own_ = true;
  }
}

Queue::Queue(Queue&& other) noexcept
    : stream_(other.stream_), is_own_(std::exchange(other.is_own_, false)) {}

Queue::~Queue() {
  if (!is_own_) return;
  for (int idle = 0; !idle && Device()->is_idle(stream_, &idle) == 0;) {
  }
  Device()->free_stream(stream_);
}

void Queue::Synchronize(MpiHandle progress) {
  for (int idle = 0; !idle;) {
    Check(Device()->is_idle(stream_, &idle), "waiting for the device");
    if (idle) break;
    // A rank whose host blocks here could starve a message that another one waits for.
    if (const int code = Mpi()->progress(progress)) {
      throw std::runtime_error("MPI's progress failed with code " + std::to_string(code));
    }
    std::this_thread::yield();
  }
}

}  // namespace pfftjax::gpu

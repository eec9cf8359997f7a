// Tests what the watch says of exchanges on a GPU (gpu/in_flight.h), while one thread enqueues
// them and another looks. The device is a counter: it has done the first so many of all records.
//
// Built and run by tests/jobs/test_threads.py.
#include "gpu/in_flight.h"

#include <atomic>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <thread>

namespace pfftjax {

const MpiApi* Mpi() { return nullptr; }

namespace gpu {
namespace {

std::atomic<int> recorded{0};
std::atomic<int> done{0};
std::atomic<int> made{0};

DeviceApi Api() {
  DeviceApi api{};
  api.make_event = [](EventHandle* event) { return ++made, *event = new std::atomic<int>(0), 0; };
  api.free_event = [](EventHandle event) {
    return delete static_cast<std::atomic<int>*>(event), 0;
  };
  api.record = [](EventHandle event, StreamHandle) {
    return static_cast<std::atomic<int>*>(event)->store(++recorded), 0;
  };
  api.is_done = [](EventHandle event, int* yes) {
    return *yes = *static_cast<std::atomic<int>*>(event) <= done, 0;
  };
  api.current_device = [](int* device) { return *device = 7, 0; };
  api.use_device = [](int device) { return device == 7 ? 0 : 1; };
  return api;
}

void Expect(bool is_right, const char* what) {
  if (is_right) return;
  std::fprintf(stderr, "not so: %s\n", what);
  std::exit(1);
}

void Sleep(int milliseconds) {
  std::this_thread::sleep_for(std::chrono::milliseconds(milliseconds));
}

void InOrder() {
  InFlight in_flight;
  Progress call;
  call.operation = Operation::kAlltoall;
  call.element = Element::kF32;
  const auto enqueue = [&] {
    call.count = call.count + 12;
    call.passed = call.passed + 1;
    in_flight.Begin(call, nullptr);
    in_flight.End(nullptr);
  };
  Expect(!in_flight.Look(), "nothing is enqueued");
  enqueue();  // records 1 and 2
  enqueue();  // 3 and 4
  Expect(!in_flight.Look(), "what is before the first exchange is not done");
  Sleep(30);
  done = 1;
  auto seen = in_flight.Look();
  Expect(seen && seen->seconds < 0.02, "time counts from when what is before is done");
  Expect(seen && seen->what == "alltoall float32[12], collective 1", "it is the first");
  Sleep(30);
  seen = in_flight.Look();
  Expect(seen && seen->seconds >= 0.03, "it is there for so long");
  done = 2;
  Expect(!in_flight.Look(), "between two exchanges");
  done = 3;
  seen = in_flight.Look();
  Expect(seen && seen->seconds < 0.02, "the second has a time of its own");
  Expect(seen && seen->what == "alltoall float32[24], collective 2", "it is the second");

  in_flight.Begin(call, nullptr);  // and the call fails
  done = recorded.load();
  Expect(!in_flight.Look(), "what was not enqueued is not in flight");
  enqueue();
  done = recorded - 1;
  Expect(in_flight.Look().has_value(), "an exchange after one that failed");
  done = recorded.load();
  for (int i = 0; i < 100; ++i, done = recorded.load()) enqueue();
  Expect(made <= 10, "events are used again");
}

void InThreads() {
  InFlight in_flight;
  std::atomic<bool> over{false};
  std::thread watch([&] {
    while (!over) {
      in_flight.Look();
      done = recorded - 1;
    }
  });
  Progress call;
  for (int i = 0; i < 2000; ++i) {
    in_flight.Begin(call, nullptr);
    in_flight.End(nullptr);
  }
  over = true;
  watch.join();
  done = recorded.load();
  Expect(!in_flight.Look(), "all is over");
}

}  // namespace

const DeviceApi* Device() {
  static const DeviceApi api = Api();
  return &api;
}

}  // namespace gpu
}  // namespace pfftjax

int main() {
  pfftjax::gpu::InOrder();
  pfftjax::gpu::InThreads();
  std::puts("all right");
}

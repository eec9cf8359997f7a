// Work shared out over threads (tasks.h): each task is done once, also where memory for a helper
// is short, and what a task throws arrives after the others. Built and run by
// tests/jobs/test_threads.py.
#include "runtime/tasks.h"

#include <array>
#include <cstdio>
#include <stdexcept>
#include <string>

#include "fake_mpi.h"

namespace {

using namespace pfftjax;  // NOLINT: of what is tested

constexpr std::int64_t kTasks = 1000;

void EachIsDoneOnce(int room) {
  ffi::ThreadPool pool(room);
  std::array<int, kTasks> done{};  // helpers that go on after the call would write to it
  ForEachTask(pool, kTasks, 3, [&done](std::int64_t task) { ++done[task]; });
  for (const int times : done) Expect(times == 1, "a task was not done once");
}

void AnErrorArrives() {
  ffi::ThreadPool pool(3);
  std::string said;
  try {
    ForEachTask(pool, kTasks, 3, [](std::int64_t task) {
      if (task == kTasks / 2) throw std::runtime_error("in the middle");
    });
  } catch (const std::runtime_error& error) {
    said = error.what();
  }
  Expect(said == "in the middle", "the error of a task was lost");
}

}  // namespace

int main() {
  for (int round = 0; round < 20; ++round) {
    for (int room = 0; room <= 3; ++room) EachIsDoneOnce(room);
    AnErrorArrives();
  }
  std::puts("all right");
}

// Work shared out over XLA's threads.
#pragma once

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <exception>
#include <memory>
#include <new>
#include <thread>
#include <utility>

#include "runtime/errors.h"

namespace pfftjax {

// body(task) for all tasks, on this thread and whichever of the pool's come to help. Waits only
// for tasks that a thread has begun, so that a pool whose threads are all busy delays nothing.
// What a task throws is thrown here, when no thread is in one any more.
template <typename Body>
void ForEachTask(ffi::ThreadPool& pool, std::int64_t tasks, std::int64_t helpers, Body body) {
  struct Shared {
    std::atomic<std::int64_t> next{0};
    std::atomic<std::int64_t> done{0};
    std::atomic<bool> has_thrown{false};
    std::exception_ptr thrown;  // by the first that sets has_thrown, before its tasks are done
  };
  const auto shared = std::make_shared<Shared>();
  const auto work = [shared, tasks](const Body& run) {
    std::int64_t finished = 0;
    for (std::int64_t task; (task = shared->next.fetch_add(1)) < tasks; ++finished) {
      if (shared->has_thrown.load(std::memory_order_relaxed)) continue;
      try {
        run(task);
      } catch (...) {
        if (!shared->has_thrown.exchange(true)) shared->thrown = std::current_exception();
      }
    }
    shared->done.fetch_add(finished, std::memory_order_release);
  };
  for (std::int64_t i = 0; i < std::min(helpers, tasks - 1); ++i) {
    // A helper that comes late finds no task left, and touches nothing of this call's.
    try {
      pool.Schedule([work, body] { work(body); });
    } catch (const std::bad_alloc&) {
      break;  // Those that were scheduled may be in tasks, and this thread must wait for them.
    }
  }
  work(body);
  while (shared->done.load(std::memory_order_acquire) < tasks) std::this_thread::yield();
  if (shared->thrown) std::rethrow_exception(std::move(shared->thrown));
}

}  // namespace pfftjax

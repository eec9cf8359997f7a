// This is as much of XLA's header as cpp/runtime/errors.h, tasks.h and call.cc use; the header
// takes five times as long to compile.
#pragma once

#include <new>
#include <string>
#include <thread>
#include <utility>
#include <vector>

namespace xla::ffi {

enum class ErrorCode { kInternal, kFailedPrecondition };

class Error {
 public:
  Error(ErrorCode, std::string message) : message_(std::move(message)), failed_(true) {}
  static Error Success() { return {}; }
  bool failure() const { return failed_; }
  const std::string& message() const { return message_; }

 private:
  Error() = default;
  std::string message_;
  bool failed_ = false;
};

// Has room for so many tasks, each of which gets a thread.
class ThreadPool {
 public:
  explicit ThreadPool(int room) : room_(room) {}
  ThreadPool(const ThreadPool&) = delete;
  ThreadPool& operator=(const ThreadPool&) = delete;
  ~ThreadPool() {
    for (std::thread& thread : threads_) thread.join();
  }
  template <typename Task>
  void Schedule(Task&& task) {
    if (--room_ < 0) throw std::bad_alloc();
    threads_.emplace_back(std::forward<Task>(task));
  }

 private:
  int room_;
  std::vector<std::thread> threads_;
};

}  // namespace xla::ffi

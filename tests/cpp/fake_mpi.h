// The MPIs of threads_mpi.h and peers_mpi.h have this in common: handles that are pointers, and
// messages in the order in which they were sent. Each box has a lock of its own, so that nothing
// is ordered that a job would not order.
#pragma once

#include <cstdio>
#include <cstdlib>
#include <deque>
#include <map>
#include <mutex>
#include <string>
#include <utility>

#include "mpi/mpi_api.h"

namespace pfftjax {

inline void Expect(bool is_right, const std::string& what) {
  if (is_right) return;
  std::fprintf(stderr, "wrong: %s\n", what.c_str());
  std::abort();
}

inline MpiHandle HandleOf(void* thing) { return reinterpret_cast<MpiHandle>(thing); }

template <typename T>
T& At(MpiHandle handle) {
  return *reinterpret_cast<T*>(handle);
}

template <typename Address, typename Message>
class Mail {
 public:
  void Put(const Address& address, Message message) {
    const std::lock_guard lock(mutex_);
    boxes_[address].push_back(std::move(message));
  }
  // Whether there was one.
  bool Take(const Address& address, Message* message) {
    const std::lock_guard lock(mutex_);
    std::deque<Message>& box = boxes_[address];
    if (box.empty()) return false;
    *message = std::move(box.front());
    box.pop_front();
    return true;
  }

 private:
  std::mutex mutex_;
  std::map<Address, std::deque<Message>> boxes_;
};

}  // namespace pfftjax

// Pinned memory of the host in which a call mirrors memory of the device; kept from call to call,
// as pinning costs more than most copies.
#pragma once

#include <cstdint>
#include <memory>

#include "gpu/queue.h"

namespace pfftjax::gpu {

class Mirror {
 public:
  explicit Mirror(std::int64_t bytes);
  Mirror(const Mirror&) = delete;
  Mirror& operator=(const Mirror&) = delete;
  // What was not given back is lost: after an error a copy may still be under way.
  ~Mirror();

  char* data() const;
  // Keeps the memory for the next call. Nothing that was enqueued uses it any more.
  void GiveBack();
  // The same, once everything that is in `queue` by now has run.
  void GiveBackAfter(Queue& queue);

  // Frees what is kept and not in use.
  static void Release();

 private:
  struct Memory;
  struct Pool;
  static Pool& ThePool();
  std::unique_ptr<Memory> memory_;
};

}  // namespace pfftjax::gpu

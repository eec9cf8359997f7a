#include "gpu/mirror.h"

#include <algorithm>
#include <mutex>

#include "base/alignment.h"

namespace pfftjax::gpu {
namespace {

constexpr std::int64_t kLeast = std::int64_t{64} << 10;
constexpr std::int64_t kStep = std::int64_t{32} << 20;
// Two of one size are kept: the copies of the last call may be under way in one of them.
constexpr int kKept = 2;

// Sizes double while they are small, so that slowly growing arrays pin rarely.
std::int64_t PinnedSize(std::int64_t bytes) {
  std::int64_t size = kLeast;
  while (size < bytes && size < kStep) size *= 2;
  return size >= bytes ? size : RoundUp(bytes, kStep);
}

}  // namespace

struct Mirror::Memory {
  Memory(std::int64_t size, int its_device) : bytes(size), device(its_device), pinned(size) {}

  std::int64_t bytes;
  int device;  // of the event
  PinnedMemory pinned;
  Event used;  // the copies that were enqueued last; none: done
};

struct Mirror::Pool {
  // The smallest that is large enough and not in use, or null; `*waiting`: those that will be.
  std::unique_ptr<Memory> Take(std::int64_t bytes, int device, int* waiting) {
    const std::lock_guard lock(mutex);
    *waiting = 0;
    auto best = kept.end();
    for (auto it = kept.begin(); it != kept.end(); ++it) {
      if ((*it)->bytes < bytes || (*it)->device != device) continue;
      if (!(*it)->used.IsDone()) {
        ++*waiting;
      } else if (best == kept.end() || (*it)->bytes < (*best)->bytes) {
        best = it;
      }
    }
    if (best == kept.end()) return nullptr;
    std::unique_ptr<Memory> found = std::move(*best);
    kept.erase(best);
    return found;
  }
  void Put(std::unique_ptr<Memory> memory) {
    const std::lock_guard lock(mutex);
    kept.push_back(std::move(memory));
  }
  // Those that are smaller than `bytes` and not in use.
  void Free(std::int64_t bytes) {
    const std::lock_guard lock(mutex);
    const auto end = std::stable_partition(kept.begin(), kept.end(), [bytes](const auto& memory) {
      return memory->bytes >= bytes || !memory->used.IsDone();
    });
    kept.erase(end, kept.end());
  }

  std::mutex mutex;
  std::vector<std::unique_ptr<Memory>> kept;
};

// Never destroyed: at the end of the process the runtime may be gone.
Mirror::Pool& Mirror::ThePool() {
  static auto* const pool = new Pool;
  return *pool;
}

Mirror::Mirror(std::int64_t bytes) {
  if (bytes == 0) return;
  Pool& pool = ThePool();
  int device = 0;
  Check(Device()->current_device(&device), "asking for the device");
  for (int waiting = kKept; waiting >= kKept; GiveWay()) {
    memory_ = pool.Take(bytes, device, &waiting);
    if (memory_) return;
  }
  const std::int64_t size = PinnedSize(bytes);
  pool.Free(size);  // they would never be large enough again
  memory_ = std::make_unique<Memory>(size, device);
}

Mirror::~Mirror() { static_cast<void>(memory_.release()); }

char* Mirror::data() const { return memory_ ? memory_->pinned.data() : nullptr; }

void Mirror::GiveBack() {
  if (memory_) ThePool().Put(std::move(memory_));
}

void Mirror::GiveBackAfter(Queue& queue) {
  if (!memory_) return;
  memory_->used.Record(queue.stream());
  GiveBack();
}

void Mirror::Release() { ThePool().Free(INT64_MAX); }

}  // namespace pfftjax::gpu

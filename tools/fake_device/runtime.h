// The fake device (fake_device.cc) keeps its streams, events and regions of memory here, and
// decides which piece of work runs next.
#pragma once

#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <random>
#include <set>
#include <string>
#include <vector>

#include "gpu/device.h"

namespace pfftjax::gpu::fake {

enum Code { kOk, kInjected, kNotPinned, kPinned, kUnknown, kFreed, kNoMemory };

inline const char* ErrorText(int code) {
  switch (code) {
    case kInjected:
      return "a failure that a test has asked for";
    case kNotPinned:
      return "a copy to or from memory of the host that is not pinned";
    case kPinned:
      return "memory of the host in place of memory of the device";
    case kUnknown:
      return "an unknown handle";
    case kFreed:
      return "use of memory that has been freed";
    case kNoMemory:
      return "out of memory";
    default:
      return "no error";
  }
}

// How often an event was recorded, and which of these records has run; shared by processes, if so.
struct Counts {
  std::atomic<std::int64_t> recorded;
  std::atomic<std::int64_t> done;
  bool is_shared;
};
using Event = std::shared_ptr<Counts>;

struct Work {
  std::function<void()> run;
  Event event;  // it waits for, if any
  std::int64_t record = 0;
  std::function<bool()> is_ready{};  // it waits for this, if any

  bool IsReady() const {
    if (is_ready) return is_ready();
    if (!event) return true;
    // What another process does to an event shows when the stream comes to it, not when the wait
    // was made.
    return event->done.load() >= (event->is_shared ? event->recorded.load() : record);
  }
};

struct Stream {
  std::deque<Work> work;
  bool is_freed = false;
};

struct Region {
  std::int64_t bytes = 0;
  bool is_pinned = false;
  bool is_freed = false;
  int file = -1;  // of what other processes may open
};

// At most so much is filled with garbage, and so many regions stay reserved after they are freed.
constexpr std::int64_t kGarbage = std::int64_t{1} << 20;
constexpr std::size_t kReserved = 64;

class Runtime {
 public:
  std::mutex mutex;
  std::set<Stream*> streams;
  std::map<const char*, Region> regions;
  std::deque<const char*> freed;
  std::mt19937 random{Seed()};

  // These checks stand in front of every call.
  int Begin(const char* call) {
    const char* fail = std::getenv("PFFTJAX_FAKE_FAIL");
    if (fail_ != (fail ? fail : "")) {
      fail_ = fail ? fail : "";
      calls_.clear();
    }
    const std::int64_t all = ++calls_["any"];
    const std::int64_t same = ++calls_[call];
    if (fail_.empty()) return kOk;
    const std::size_t colon = fail_.find(':');
    const bool is_any = colon == std::string::npos;
    const std::int64_t when = std::atoll(fail_.c_str() + (is_any ? 0 : colon + 1));
    if (is_any) return all == when ? kInjected : kOk;
    return fail_.substr(0, colon) == call && same == when ? kInjected : kOk;
  }

  // Runs at most three pieces, and none at times.
  void RunSome() {
    for (int steps = static_cast<int>(random() % 4); steps > 0; --steps) {
      std::vector<Stream*> ready;
      for (Stream* stream : streams) {
        if (!stream->work.empty() && stream->work.front().IsReady()) ready.push_back(stream);
      }
      if (ready.empty()) return;
      Stream* const stream = ready[random() % ready.size()];
      if (stream->work.front().run) stream->work.front().run();
      stream->work.pop_front();
      if (stream->is_freed && stream->work.empty()) {
        streams.erase(stream);
        delete stream;
      }
    }
  }

  Region* Find(const void* address) {
    const auto* at = static_cast<const char*>(address);
    auto it = regions.upper_bound(at);
    if (it == regions.begin()) return nullptr;
    --it;
    return at < it->first + it->second.bytes ? &it->second : nullptr;
  }
  int CheckPinned(const void* address, std::int64_t bytes) {
    const Region* first = Find(address);
    const Region* last = Find(static_cast<const char*>(address) + bytes - 1);
    if (!first || first != last || !first->is_pinned) return kNotPinned;
    return first->is_freed ? kFreed : kOk;
  }
  // Memory that is in no table is XLA's.
  int CheckDevice(const void* address) {
    const Region* region = Find(address);
    if (!region) return kOk;
    if (region->is_freed) return kFreed;
    return region->is_pinned ? kPinned : kOk;
  }

  void* Map(std::int64_t bytes, Region region) {
    const auto size = static_cast<std::size_t>(bytes);
    if (!region.is_pinned) {
      region.file = memfd_create("pfftjax_fake_device", MFD_CLOEXEC);
      if (region.file < 0 || ftruncate(region.file, bytes) != 0) return nullptr;
    }
    void* memory =
        mmap(nullptr, size, PROT_READ | PROT_WRITE,
             region.is_pinned ? MAP_PRIVATE | MAP_ANONYMOUS : MAP_SHARED, region.file, 0);
    if (memory == MAP_FAILED) return nullptr;
    std::memset(memory, 0xA5, static_cast<std::size_t>(std::min(bytes, kGarbage)));
    region.bytes = bytes;
    regions[static_cast<char*>(memory)] = region;
    return memory;
  }
  int Unmap(void* memory) {
    const auto it = regions.find(static_cast<char*>(memory));
    if (it == regions.end() || it->second.is_freed) return kUnknown;
    Region& region = it->second;
    const auto size = static_cast<std::size_t>(region.bytes);
    std::memset(memory, 0xFF, static_cast<std::size_t>(std::min(region.bytes, kGarbage)));
    mprotect(memory, size, PROT_NONE);
    if (region.file >= 0) close(region.file);
    region.is_freed = true;
    freed.push_back(it->first);
    if (freed.size() > kReserved) {
      const auto oldest = regions.find(freed.front());
      munmap(const_cast<char*>(oldest->first), static_cast<std::size_t>(oldest->second.bytes));
      regions.erase(oldest);
      freed.pop_front();
    }
    return kOk;
  }

 private:
  static unsigned Seed() {
    const char* seed = std::getenv("PFFTJAX_FAKE_SEED");
    unsigned value = seed ? static_cast<unsigned>(std::atoi(seed)) : 0;
    for (const char* name : {"OMPI_COMM_WORLD_RANK", "PMI_RANK", "PMIX_RANK"}) {
      if (const char* rank = std::getenv(name)) {
        return 1000 * value + static_cast<unsigned>(std::atoi(rank));
      }
    }
    return 1000 * value;
  }

  std::map<std::string, std::int64_t> calls_;
  std::string fail_;
};

inline Runtime& The() {
  static auto* const runtime = new Runtime;
  return *runtime;
}

// body(runtime) under the lock.
template <typename Body>
int Call(const char* name, Body&& body) {
  Runtime& runtime = The();
  const std::lock_guard lock(runtime.mutex);
  if (const int code = runtime.Begin(name)) return code;
  return body(runtime);
}

inline Event& AsEvent(EventHandle handle) { return *static_cast<Event*>(handle); }
inline Stream& AsStream(StreamHandle handle) { return *static_cast<Stream*>(handle); }

}  // namespace pfftjax::gpu::fake

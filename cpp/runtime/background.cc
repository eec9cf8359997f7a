#include "runtime/background.h"

#include <algorithm>
#include <array>
#include <chrono>
#include <cstdlib>
#include <map>
#include <new>
#include <utility>

#include "base/alignment.h"
#include "base/chunks.h"
#include "base/pages.h"
#include "mpi/tags.h"

namespace pfftjax {
namespace {

struct Spare {
  char* data = nullptr;
  std::size_t bytes = 0;
};
std::mutex spare_mutex;
std::array<Spare, 2> spares;  // what is sent, and what is received

class Background {
 public:
  std::int64_t Add(std::shared_ptr<Pending> pending) {
    const std::lock_guard lock(mutex_);
    Move(pending);
    pending_.emplace(++last_, std::move(pending));
    return last_;
  }

  void Detach(std::shared_ptr<Pending> pending) {
    const std::lock_guard lock(mutex_);
    Move(std::move(pending));
  }

  std::shared_ptr<Pending> Take(std::int64_t ticket, std::int64_t comm, std::int64_t about) {
    const std::lock_guard lock(mutex_);
    const auto found = pending_.find(ticket);
    if (found == pending_.end() || found->second->comm != comm || found->second->about != about) {
      return nullptr;
    }
    auto taken = std::move(found->second);
    pending_.erase(found);
    return taken;
  }

  std::int64_t NotWaitedFor(std::int64_t comm) {
    const std::lock_guard lock(mutex_);
    return std::count_if(pending_.begin(), pending_.end(),
                         [&](const auto& entry) { return entry.second->comm == comm; });
  }

  void Stop() {
    {
      const std::lock_guard lock(mutex_);
      stop_ = true;
    }
    wake_.notify_all();
    if (thread_.joinable()) thread_.join();
  }

 private:
  void Move(std::shared_ptr<Pending> pending) {
    if (!thread_.joinable() && !stop_) thread_ = process::Thread([this] { Loop(); });
    moving_.push_back(std::move(pending));
    wake_.notify_one();
  }

  void Loop() {
    constexpr auto kPause = std::chrono::microseconds(50);
    std::unique_lock lock(mutex_);
    while (!stop_) {
      if (moving_.empty()) {
        wake_.wait(lock);
        continue;
      }
      auto moving = std::exchange(moving_, {});
      lock.unlock();
      moving.erase(std::remove_if(moving.begin(), moving.end(),
                                  [](const auto& pending) { return pending->TryTest(); }),
                   moving.end());
      process::SleepFor(kPause);
      lock.lock();
      moving_.insert(moving_.end(), moving.begin(), moving.end());
    }
  }

  process::Mutex mutex_;
  process::Condition wake_;
  std::map<std::int64_t, std::shared_ptr<Pending>> pending_;
  std::vector<std::shared_ptr<Pending>> moving_;  // of which messages may be on their way
  std::int64_t last_ = 0;
  bool stop_ = false;
  process::Thread thread_;
};

Background& TheBackground() { return process::Lasting<Background>(); }

}  // namespace

MessageMemory::MessageMemory(std::size_t bytes) {
  {
    const std::lock_guard lock(spare_mutex);
    for (Spare& spare : spares) {
      if (!spare.data || spare.bytes < bytes) continue;
      data_ = std::exchange(spare.data, nullptr);
      bytes_ = std::exchange(spare.bytes, 0);
      return;
    }
  }
  constexpr std::size_t kHuge = std::size_t{2} << 20;
  const std::size_t page = bytes < kHuge ? 4096 : kHuge;
  bytes_ = RoundUp(std::max<std::size_t>(bytes, 1), page);
  data_ = static_cast<char*>(std::aligned_alloc(page, bytes_));
  if (!data_) throw std::bad_alloc();
  PrepareToWrite(data_, bytes_);
}

MessageMemory::~MessageMemory() {
  if (!data_) return;
  const std::lock_guard lock(spare_mutex);
  for (Spare& spare : spares) {
    if (bytes_ <= spare.bytes) continue;
    std::swap(data_, spare.data);
    std::swap(bytes_, spare.bytes);
  }
  std::free(data_);
}

Pending::~Pending() {
  if (messages_.empty() && code_ == 0) return;
  outgoing.Lose();
  incoming.Lose();
}

template <typename Start>
int Pending::Begin(std::int64_t expected, Start&& start) {
  messages_.push_back({0, expected});
  const int code = start(&messages_.back().request);
  if (code != 0) messages_.pop_back();
  return code;
}

int Pending::Post(const Communicator& comm, std::int64_t bytes, bool is_same_for_all) {
  const MpiApi& mpi = *Mpi();
  const std::int64_t limit = GetOptions().max_chunk_bytes;
  const int tag = is_same_for_all ? kAllgatherTag : kAlltoallTag;
  const std::lock_guard lock(mutex_);
  for (int step = 1; step < comm.size; ++step) {
    const int dest = (comm.rank + step) % comm.size;
    const int source = (comm.rank - step + comm.size) % comm.size;
    const char* out = outgoing.data() + (is_same_for_all ? 0 : dest * bytes);
    char* in = incoming.data() + source * bytes;
    const int code = ForEachChunk(bytes, limit, [&](std::int64_t offset, std::int64_t piece) {
      const int failed = Begin(piece, [&](MpiHandle* request) {
        return mpi.receive_start(in + offset, piece, source, tag, comm.control, request);
      });
      if (failed != 0) return failed;
      return Begin(-1, [&](MpiHandle* request) {
        return mpi.send_start(out + offset, piece, dest, tag, comm.control, request);
      });
    });
    if (code != 0) return code;
  }
  return 0;
}

int Pending::PostPieces(MpiHandle comm, int dest, int tag, std::int64_t bytes,
                        std::int64_t limit) {
  const std::lock_guard lock(mutex_);
  for (std::int64_t offset = 0; offset <= bytes; offset += limit) {
    const int code = Begin(-1, [&](MpiHandle* request) {
      return Mpi()->send_start(outgoing.data() + offset, std::min(limit, bytes - offset), dest,
                               tag, comm, request);
    });
    if (code != 0) return code;
  }
  return 0;
}

bool Pending::TestLocked() {
  while (!messages_.empty() && code_ == 0) {
    Message& message = messages_.back();
    const bool is_received = message.expected >= 0;
    int done = 0;
    std::int64_t arrived = 0;
    code_ = Mpi()->test(&message.request, &done, is_received ? &arrived : nullptr);
    if (code_ == 0 && !done) return false;
    if (code_ == 0 && is_received && arrived != message.expected) code_ = kShortMessage;
    messages_.pop_back();
  }
  return true;
}

bool Pending::Test() {
  const std::lock_guard lock(mutex_);
  return TestLocked();
}

bool Pending::TryTest() {
  const std::unique_lock lock(mutex_, std::try_to_lock);
  return lock.owns_lock() && TestLocked();
}

int Pending::code() {
  const std::lock_guard lock(mutex_);
  return code_;
}

std::int64_t Add(std::shared_ptr<Pending> pending) {
  return TheBackground().Add(std::move(pending));
}

void Detach(std::shared_ptr<Pending> pending) { TheBackground().Detach(std::move(pending)); }

std::shared_ptr<Pending> Take(std::int64_t ticket, std::int64_t comm, std::int64_t about) {
  return TheBackground().Take(ticket, comm, about);
}

std::int64_t NotWaitedFor(std::int64_t comm) { return TheBackground().NotWaitedFor(comm); }

void StopBackground() { TheBackground().Stop(); }

}  // namespace pfftjax

// start: copies the operand aside, posts all messages and returns a ticket. A thread lets MPI move
// them meanwhile. wait: waits for the messages of a ticket and copies what has arrived.
//
// XLA may move or reuse a buffer as soon as the call that it was passed to returns. So messages
// are sent from, and received into, memory of our own; a ticket is a number, which XLA may copy
// freely.
#include "split.h"

#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <cstdlib>
#include <cstring>
#include <map>
#include <memory>
#include <mutex>
#include <new>
#include <thread>
#include <vector>

#include "exchange.h"
#include "handlers.h"

namespace pfftjax {
namespace {

// Apart from kExchangeTag: other exchanges go on while these are on their way.
constexpr int kSplitTag = 5;

// Memory for messages. What was used last is kept: fresh pages cost as much as the copies.
class Staging {
 public:
  explicit Staging(std::size_t bytes) : bytes_(bytes) {
    const std::lock_guard lock(mutex_);
    if (spare_bytes_ >= bytes && spare_) {
      data_ = std::exchange(spare_, nullptr);
      bytes_ = std::exchange(spare_bytes_, 0);
      return;
    }
    constexpr std::size_t kPage = std::size_t{2} << 20;
    bytes_ = (std::max<std::size_t>(bytes, 1) + kPage - 1) / kPage * kPage;
    data_ = static_cast<char*>(std::aligned_alloc(kPage, bytes_));
    if (!data_) throw std::bad_alloc();
    AdviseHugePages(data_, bytes_);
  }
  ~Staging() {
    const std::lock_guard lock(mutex_);
    if (bytes_ > spare_bytes_) {
      std::swap(data_, spare_);
      std::swap(bytes_, spare_bytes_);
    }
    std::free(data_);
  }
  Staging(const Staging&) = delete;
  Staging& operator=(const Staging&) = delete;
  char* data() const { return data_; }

 private:
  static inline std::mutex mutex_;
  static inline char* spare_ = nullptr;
  static inline std::size_t spare_bytes_ = 0;
  char* data_ = nullptr;
  std::size_t bytes_;
};

// One exchange that was started.
struct Pending {
  Pending(std::int64_t comm, std::int64_t about, std::size_t out, std::size_t in)
      : comm(comm), about(about), outgoing(out), incoming(in) {}

  std::int64_t comm;
  std::int64_t about;  // the same for start and wait
  Staging outgoing;
  Staging incoming;
  std::mutex mutex;  // of what follows
  std::vector<MpiHandle> requests;
  int code = 0;

  // Whether all messages are through. With `mutex` held.
  bool Test() {
    while (!requests.empty() && code == 0) {
      int done = 0;
      code = Mpi()->test(&requests.back(), &done);
      if (!done) return code != 0;
      requests.pop_back();
    }
    return true;
  }
};

// The thread that lets MPI move messages while XLA computes.
class Progressor {
 public:
  std::int64_t Add(std::shared_ptr<Pending> pending) {
    const std::lock_guard lock(mutex_);
    if (!thread_.joinable() && !stop_) thread_ = std::thread([this] { Loop(); });
    const std::int64_t ticket = ++last_;
    pending_.emplace(ticket, std::move(pending));
    wake_.notify_one();
    return ticket;
  }

  std::shared_ptr<Pending> Take(std::int64_t ticket) {
    const std::lock_guard lock(mutex_);
    const auto found = pending_.find(ticket);
    if (found == pending_.end()) return nullptr;
    auto taken = std::move(found->second);
    pending_.erase(found);
    return taken;
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
  void Loop() {
    constexpr auto kPause = std::chrono::microseconds(50);
    std::unique_lock lock(mutex_);
    while (!stop_) {
      std::vector<std::shared_ptr<Pending>> moving;
      for (const auto& [ticket, pending] : pending_) {
        const std::unique_lock held(pending->mutex, std::try_to_lock);
        if (held.owns_lock() && !pending->requests.empty()) moving.push_back(pending);
      }
      if (moving.empty()) {
        wake_.wait(lock);
        continue;
      }
      lock.unlock();
      for (const auto& pending : moving) {
        const std::lock_guard held(pending->mutex);
        pending->Test();
      }
      moving.clear();
      std::this_thread::sleep_for(kPause);
      lock.lock();
    }
  }

  std::mutex mutex_;
  std::condition_variable wake_;
  std::map<std::int64_t, std::shared_ptr<Pending>> pending_;
  std::int64_t last_ = 0;
  bool stop_ = false;
  std::thread thread_;
};

// Never destroyed, as the watch.
Progressor& TheProgressor() {
  static auto* progressor = new Progressor;
  return *progressor;
}

// Posts the messages of an exchange of `bytes` a block, sent from block `dest` (or the only one)
// of `outgoing` and received into block `source` of `incoming`.
int Post(const Communicator& comm, Pending& pending, std::int64_t bytes, bool is_same_for_all) {
  const MpiApi& mpi = *Mpi();
  const std::int64_t limit = GetOptions().max_chunk_bytes;
  const std::lock_guard held(pending.mutex);
  for (int step = 1; step < comm.size; ++step) {
    const int dest = (comm.rank + step) % comm.size;
    const int source = (comm.rank - step + comm.size) % comm.size;
    const char* out = pending.outgoing.data() + (is_same_for_all ? 0 : dest * bytes);
    char* in = pending.incoming.data() + source * bytes;
    const int code = ForEachChunk(bytes, limit, [&](std::int64_t offset, std::int64_t piece) {
      pending.requests.emplace_back();
      if (const int failed = mpi.receive_start(in + offset, piece, source, kSplitTag, comm.control,
                                               &pending.requests.back())) {
        return failed;
      }
      pending.requests.emplace_back();
      return mpi.send_start(out + offset, piece, dest, kSplitTag, comm.control,
                            &pending.requests.back());
    });
    if (code != 0) return code;
  }
  return 0;
}

std::int64_t About(std::int64_t block, bool is_same_for_all) {
  return 2 * block + is_same_for_all;
}

using Ticket = ffi::Buffer<ffi::U32>;  // the two halves of a number

// same_for_all: an allgather, else an alltoall.
ffi::Error Start(std::int64_t number, std::int64_t ranks, std::int64_t signature,
                 std::string_view program, bool same_for_all, Operand x, Token,
                 ffi::Result<Ticket> ticket, TokenResult) {
  const std::optional<Element> element = ElementOf(x.element_type());
  if (!element) return BadElement(Operation::kStart, x.element_type());
  const auto count = static_cast<std::int64_t>(x.element_count());
  const CallSite site{Operation::kStart, number, ranks, signature, program};
  return Run(site, Payload{*element, count}, [&](Communicator& comm) {
    const auto all = static_cast<std::int64_t>(x.size_bytes());
    const std::int64_t block = same_for_all ? all : all / comm.size;
    auto pending = std::make_shared<Pending>(number, About(block, same_for_all), x.size_bytes(),
                                             static_cast<std::size_t>(block * comm.size));
    std::memcpy(pending->outgoing.data(), x.untyped_data(), x.size_bytes());
    if (const int code = Post(comm, *pending, block, same_for_all)) {
      // What MPI has begun may still be read and written.
      static_cast<void>(new std::shared_ptr<Pending>(std::move(pending)));
      return MpiFailed(site.operation, comm, *element, count, code);
    }
    const auto value = static_cast<std::uint64_t>(TheProgressor().Add(std::move(pending)));
    ticket->typed_data()[0] = static_cast<std::uint32_t>(value);
    ticket->typed_data()[1] = static_cast<std::uint32_t>(value >> 32);
    return ffi::Error::Success();
  });
}

ffi::Error Wait(std::int64_t number, std::int64_t ranks, std::int64_t signature,
                std::string_view program, bool same_for_all, Operand x, Ticket ticket, Token,
                Result y, TokenResult) {
  const std::optional<Element> element = ElementOf(x.element_type());
  if (!element) return BadElement(Operation::kWait, x.element_type());
  const auto count = static_cast<std::int64_t>(x.element_count());
  const CallSite site{Operation::kWait, number, ranks, signature, program};
  AdviseHugePages(y->untyped_data(), y->size_bytes());
  return Run(site, Payload{*element, count}, [&](Communicator& comm) {
    const std::uint64_t value =
        ticket.typed_data()[0] | (std::uint64_t{ticket.typed_data()[1]} << 32);
    const auto pending = TheProgressor().Take(static_cast<std::int64_t>(value));
    const auto all = static_cast<std::int64_t>(x.size_bytes());
    const std::int64_t block = same_for_all ? all : all / comm.size;
    if (!pending || pending->comm != number || pending->about != About(block, same_for_all)) {
      return Failed(site.operation, comm,
                    "this exchange has been waited for already, or was not started in this way; "
                    "wait once for each start");
    }
    while (true) {
      {
        const std::lock_guard held(pending->mutex);
        if (pending->Test()) break;
      }
      std::this_thread::yield();
    }
    if (pending->code != 0) {
      return MpiFailed(site.operation, comm, *element, count, pending->code);
    }
    auto* to = static_cast<char*>(y->untyped_data());
    const char* kept = pending->outgoing.data() + (same_for_all ? 0 : comm.rank * block);
    std::memcpy(to + comm.rank * block, kept, static_cast<std::size_t>(block));
    const char* from = pending->incoming.data();
    const std::int64_t before = comm.rank * block;
    const std::int64_t after = before + block;
    std::memcpy(to, from, static_cast<std::size_t>(before));
    std::memcpy(to + after, from + after, static_cast<std::size_t>(comm.size * block - after));
    return ffi::Error::Success();
  });
}

XLA_FFI_DEFINE_HANDLER(kStart, Start,
                       BindSite(ffi::Ffi::Bind())
                           .Attr<bool>("same_for_all")
                           .Arg<ffi::AnyBuffer>()
                           .Arg<ffi::Token>()
                           .Ret<Ticket>()
                           .Ret<ffi::Token>());
XLA_FFI_DEFINE_HANDLER(kWait, Wait,
                       BindSite(ffi::Ffi::Bind())
                           .Attr<bool>("same_for_all")
                           .Arg<ffi::AnyBuffer>()
                           .Arg<Ticket>()
                           .Arg<ffi::Token>()
                           .Ret<ffi::AnyBuffer>()
                           .Ret<ffi::Token>());

}  // namespace

void StopProgress() { TheProgressor().Stop(); }

std::vector<Registration> SplitHandlers() {
  return {{"pfftjax_start", reinterpret_cast<void*>(kStart)},
          {"pfftjax_wait", reinterpret_cast<void*>(kWait)}};
}

}  // namespace pfftjax

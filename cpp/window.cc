#include "window.h"

#include <string>
#include <utility>

#include "node.h"

namespace pfftjax {
namespace {

constexpr std::int64_t kPage = 4096;
// A window grows by more than is asked for, so that slowly growing exchanges make few of them.
constexpr std::int64_t kStep = process::Size(std::int64_t{1} << 20);

constexpr std::uint64_t kGaveUp = 0;  // in place of what an exchange is about

std::int64_t RoundUp(std::int64_t value, std::int64_t to) { return (value + to - 1) / to * to; }

}  // namespace

// Of one rank: the last exchange that it has published, and what it was about; the last one that
// it has read. On cache lines of their own.
struct Window::Flags {
  alignas(kCacheLine) process::Atomic<std::int64_t> written;
  process::Atomic<std::uint64_t> about;
  alignas(kCacheLine) process::Atomic<std::int64_t> read;
};

std::unique_ptr<Window> Window::Make(const Communicator& comm, std::int64_t bytes_a_rank) {
  const std::int64_t bytes = RoundUp(bytes_a_rank, kStep);
  const auto flags = static_cast<std::int64_t>(sizeof(Flags)) * comm.size;
  std::unique_ptr<SharedMemory> memory = SharedMemory::Make(
      comm, static_cast<std::size_t>(RoundUp(flags, kPage) + kPage + comm.size * bytes));
  if (!memory) return nullptr;
  return std::unique_ptr<Window>(new Window(std::move(memory), comm.size, bytes));
}

Window::Window(std::unique_ptr<SharedMemory> memory, int ranks, std::int64_t bytes)
    : memory_(std::move(memory)), bytes_(bytes) {
  // Parts begin on pages of their own, so that each lies near the rank that writes it.
  const auto end = reinterpret_cast<std::uintptr_t>(&FlagsOf(ranks));
  data_ = memory_->data() +
          (RoundUp(static_cast<std::int64_t>(end), kPage) -
           static_cast<std::int64_t>(reinterpret_cast<std::uintptr_t>(memory_->data())));
}

Window::Flags& Window::FlagsOf(int rank) const {
  return reinterpret_cast<Flags*>(memory_->data())[rank];
}

int Window::Round::Begin() {
  const std::int64_t round = ++window_.round_;
  return window_.memory_->WaitFor(comm_, [&] {
    for (int rank = 0; rank < comm_.size; ++rank) {
      if (window_.FlagsOf(rank).read.load(std::memory_order_acquire) < round - 1) return false;
    }
    return true;
  });
}

void Window::Round::Publish(std::uint64_t about) {
  Flags& mine = window_.FlagsOf(comm_.rank);
  mine.about.store(about, std::memory_order_relaxed);
  mine.written.store(window_.round_, std::memory_order_release);
  is_published_ = true;
}

int Window::Round::WaitForAll(std::uint64_t about) {
  for (int rank = 0; rank < comm_.size; ++rank) {
    const Flags& theirs = window_.FlagsOf(rank);
    const int code = window_.memory_->WaitFor(
        comm_, [&] { return theirs.written.load(std::memory_order_acquire) >= window_.round_; });
    if (code != 0) return code;
    const std::uint64_t other = theirs.about.load(std::memory_order_relaxed);
    if (other == about) continue;
    comm_.difference = "rank " + std::to_string(rank) +
                       (other == kGaveUp ? " has given up this transform"
                                         : " is in a transform of another shape, kind, dtype or "
                                           "norm than this rank");
    return kOtherSizes;
  }
  return 0;
}

Window::Round::~Round() {
  if (!is_published_) Publish(kGaveUp);
  window_.FlagsOf(comm_.rank).read.store(window_.round_, std::memory_order_release);
}

Window* WindowOf(Communicator& comm, std::int64_t bytes_a_rank) {
  // Where the ranks cannot share a little, they cannot share much.
  if (!NodeOf(comm)) return nullptr;
  if (!comm.window || comm.window->bytes_a_rank() < bytes_a_rank) {
    if (comm.refused_window > 0 && bytes_a_rank >= comm.refused_window) return nullptr;
    comm.window.reset();  // first, as there may not be room for both
    comm.window = Window::Make(comm, bytes_a_rank);
    if (!comm.window) comm.refused_window = bytes_a_rank;
  }
  return comm.window.get();
}

}  // namespace pfftjax

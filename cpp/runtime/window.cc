#include "runtime/window.h"

#include <algorithm>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "base/alignment.h"
#include "base/options.h"
#include "base/pages.h"
#include "runtime/errors.h"
#include "runtime/node.h"

namespace pfftjax {
namespace {

// A window grows by more than is asked for, so that slowly growing exchanges make few of them.
constexpr std::int64_t kStep = process::Size(std::int64_t{1} << 20);

// Stands in place of what an exchange is about, which is odd.
std::uint64_t Growth(std::int64_t bytes_a_rank) {
  return 2 * static_cast<std::uint64_t>(bytes_a_rank);
}

}  // namespace

// What one rank has done: how much it has published, and the meaning of that; the last exchange
// that it has read. On cache lines of their own. `call` is for people: what `about` tells apart.
struct Window::Flags {
  struct Call {
    Operation operation;
    Element element;
    std::int64_t count;

    static Call Of(const Communicator& comm) {
      const Progress& now = comm.progress;
      return {now.operation, now.element, now.count};
    }
    std::string Say() const { return Describe(operation, element, count); }
  };
  alignas(kCacheLine) process::Atomic<std::int64_t> written;
  process::Atomic<std::uint64_t> about;
  Call call;
  alignas(kCacheLine) process::Atomic<std::int64_t> read;
};

std::unique_ptr<Window> Window::Make(const Communicator& comm, const Nodes& nodes,
                                     std::int64_t bytes_a_rank) {
  const std::int64_t bytes = RoundUp(bytes_a_rank, kStep);
  const std::vector<int>& ranks = nodes.RanksOn(nodes.Of(comm.rank));
  const auto count = static_cast<int>(ranks.size());
  const std::int64_t all = FlagsBytes(count) + count * bytes;
  std::unique_ptr<SharedMemory> memory = SharedMemory::Make(
      comm, nodes.first(), static_cast<std::size_t>(all), static_cast<std::size_t>(bytes));
  if (!memory) return nullptr;
  return std::unique_ptr<Window>(new Window(std::move(memory), ranks, nodes.places(), bytes));
}

Window::Window(std::unique_ptr<SharedMemory> memory, std::vector<int> ranks,
               std::vector<int> places, std::int64_t bytes)
    : memory_(std::move(memory)),
      ranks_(std::move(ranks)),
      places_(std::move(places)),
      bytes_(bytes),
      data_(memory_->data() + FlagsBytes(static_cast<int>(ranks_.size()))) {}

// Up to the parts, which begin on pages of their own, so that each lies near the rank that writes
// it.
std::int64_t Window::FlagsBytes(int ranks) {
  const auto before = static_cast<std::int64_t>(SharedMemory::kBefore);
  return RoundUp(before + ranks * static_cast<std::int64_t>(sizeof(Flags)),
                 static_cast<std::int64_t>(kPage)) -
         before;
}

Window::Flags& Window::FlagsOf(int rank) const {
  return reinterpret_cast<Flags*>(memory_->data())[places_[rank]];
}

int Window::Round::Begin() {
  has_begun_ = true;
  const std::int64_t round = ++window_.round_;
  return window_.memory_->WaitFor(comm_, [&] {
    for (const int rank : window_.ranks_) {
      if (window_.FlagsOf(rank).read.load(std::memory_order_acquire) < round - 1) return false;
    }
    return true;
  });
}

void Window::Round::Publish(std::uint64_t about, int piece) {
  Flags& mine = window_.FlagsOf(comm_.rank);
  if (published_ == 0) mine.call = Flags::Call::Of(comm_);  // others may read it from then on
  mine.about.store(about, std::memory_order_relaxed);
  mine.written.store(Mark(piece), std::memory_order_release);
  published_ = piece + 1;
}

bool Window::Round::IsThere(int piece) const {
  return std::all_of(window_.ranks_.begin(), window_.ranks_.end(), [&](int rank) {
    return window_.FlagsOf(rank).written.load(std::memory_order_acquire) >= Mark(piece);
  });
}

int Window::Round::WaitForAll(std::uint64_t about, int piece) {
  for (const int rank : window_.ranks_) {
    const Flags& theirs = window_.FlagsOf(rank);
    const int code = window_.memory_->WaitFor(
        comm_, [&] { return theirs.written.load(std::memory_order_acquire) >= Mark(piece); });
    if (code != 0) return code;
    const std::uint64_t other = theirs.about.load(std::memory_order_relaxed);
    if (other == about) continue;
    const std::string who = "rank " + std::to_string(rank);
    const std::string there = theirs.call.Say();
    const std::string here = Flags::Call::Of(comm_).Say();
    comm_.difference = other == kGaveUp ? who + " has given up " + there
                       : there == here
                           ? who + " is in " + there + " of another shape, order, kind or norm"
                           : who + " is in " + there + ", and this rank in " + here;
    return kOtherCall;
  }
  return 0;
}

Window::Round::~Round() {
  // Where memory ran out before it began, the others wait in this round and not in the last one.
  if (!has_begun_) Begin();
  if (published_ < kMostPieces) GiveUp();
  window_.FlagsOf(comm_.rank).read.store(window_.round_, std::memory_order_release);
}

namespace {

struct MadeWindow {
  std::optional<bool> shares_memory;  // of more ranks than those that have a node
  std::optional<Nodes> nodes;
  std::unique_ptr<Window> window;
  std::int64_t refused = 0;  // so many bytes a rank could not be had; 0: all could
};

// Says whether all ranks are about to make a window of this size. Some may be in an exchange for
// which the old one is large enough, and wait there. On another node such ranks wait for messages,
// and the watch finds that they are in another call.
int AgreeOn(Communicator& comm, std::int64_t bytes_a_rank) {
  const auto& made = comm.Attached<MadeWindow>();
  if (made.window) {
    Window::Round round(*made.window, comm);
    if (const int code = round.Begin()) return code;
    round.Publish(Growth(bytes_a_rank));
    const int code = round.WaitForAll(Growth(bytes_a_rank));
    if (code != 0 || made.nodes->count() == 1) return code;
  }
  std::vector<std::int64_t> all(static_cast<std::size_t>(comm.size));
  if (const int code =
          Mpi()->allgather(&bytes_a_rank, all.data(), 1, Element::kS64, comm.control)) {
    return code;
  }
  for (int rank = 0; rank < comm.size; ++rank) {
    if (all[rank] == bytes_a_rank) continue;
    comm.difference = "rank " + std::to_string(rank) + " is in an exchange that takes " +
                      std::to_string(all[rank]) +
                      " bytes of shared memory a rank, and this rank in one of " +
                      std::to_string(bytes_a_rank);
    return kOtherCall;
  }
  return 0;
}

}  // namespace

bool SharesMemory(Communicator& comm) {
  if (comm.size <= kMostRanksWithSlots) return NodeOf(comm) != nullptr;
  std::optional<bool>& shares = comm.Attached<MadeWindow>().shares_memory;
  if (!shares) {
    constexpr std::size_t kLittle = 1;
    shares = GetOptions().shared_memory && SharedMemory::Make(comm, kLittle) != nullptr;
  }
  return *shares;
}

const Nodes& NodesOf(Communicator& comm) {
  std::optional<Nodes>& nodes = comm.Attached<MadeWindow>().nodes;
  if (!nodes) nodes.emplace(FirstRanksOnNodes(comm));
  return *nodes;
}

int WindowOf(Communicator& comm, std::int64_t bytes_a_rank, Window** window) {
  *window = nullptr;
  return SharesMemory(comm) ? WindowOnNode(comm, bytes_a_rank, window) : 0;
}

int WindowOnNode(Communicator& comm, std::int64_t bytes_a_rank, Window** window) {
  *window = nullptr;
  if (!GetOptions().shared_memory) return 0;
  const Nodes& nodes = NodesOf(comm);
  auto& made = comm.Attached<MadeWindow>();
  if (!made.window || made.window->bytes_a_rank() < bytes_a_rank) {
    if (made.refused > 0 && bytes_a_rank >= made.refused) return 0;
    if (const int code = AgreeOn(comm, bytes_a_rank)) return code;
    made.window.reset();  // first, as there may not be room for both
    made.window = Window::Make(comm, nodes, bytes_a_rank);
    if (!made.window) made.refused = bytes_a_rank;
  }
  *window = made.window.get();
  return 0;
}

void ReleaseWindow(Communicator& comm) {
  auto& made = comm.Attached<MadeWindow>();
  made.window.reset();
  made.refused = 0;  // there may be memory now
}

}  // namespace pfftjax

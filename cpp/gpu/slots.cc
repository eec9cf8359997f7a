#include "gpu/slots.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "base/alignment.h"
#include "base/pages.h"
#include "gpu/transport.h"

namespace pfftjax::gpu {
namespace {

constexpr auto kPageBytes = static_cast<std::int64_t>(kPage);
// Each process pins the rings of all ranks of its node, and keeps counts for all pairs.
constexpr std::int64_t kMostRanks = 64;

}  // namespace

std::int64_t Slots::HeaderBytes(std::int64_t ranks) {
  return ranks * static_cast<std::int64_t>(sizeof(Flags)) +
         ranks * ranks * static_cast<std::int64_t>(sizeof(Channel));
}

std::unique_ptr<Slots> Slots::Make(Communicator& comm, std::int64_t ring_bytes, std::string* how) {
  if (!GetOptions().shared_memory) {
    *how = "by messages, PFFTJAX_SHARED_MEMORY=0";
    return nullptr;
  }
  const std::vector<int> nodes = FirstRanksOnNodes(comm);
  std::int64_t most = 0;
  for (const int node : nodes) {
    most = std::max<std::int64_t>(most, std::count(nodes.begin(), nodes.end(), node));
  }
  if (most == 1) {
    *how = "by messages, each rank on a node of its own";
    return nullptr;
  }
  if (most > kMostRanks) {
    *how = "by messages, " + std::to_string(most) + " ranks on a node";
    return nullptr;
  }
  ring_bytes = RoundUp(ring_bytes, kPageBytes);
  const std::int64_t ranks = std::count(nodes.begin(), nodes.end(), nodes[comm.rank]);
  const std::int64_t bytes = ranks == 1 ? 0 : HeaderBytes(ranks) + kPageBytes + ranks * ring_bytes;
  std::unique_ptr<SharedMemory> memory =
      SharedMemory::Make(comm, nodes, static_cast<std::size_t>(bytes),
                         static_cast<std::size_t>(ranks == 1 ? 0 : ring_bytes));
  std::unique_ptr<Slots> slots;
  std::string why = Attempt(comm, [&]() -> std::string {
    if (ranks == 1) return {};
    if (!memory) return "the processes of a node cannot share memory";
    slots.reset(new Slots(comm, nodes, ring_bytes, std::move(memory)));
    slots->Touch();
    return {};
  });
  // After all have touched theirs: pinning gives pages to what has none.
  if (why.empty()) {
    why = Attempt(comm, [&]() -> std::string {
      if (slots) slots->Pin();
      return {};
    });
  }
  if (!why.empty()) {
    *how = "by messages, " + why;
    return nullptr;
  }
  *how = most == comm.size ? "through memory that the ranks share"
                           : "through shared memory within a node, by messages between nodes";
  return slots;
}

Slots::Slots(const Communicator& comm, const std::vector<int>& nodes, std::int64_t ring_bytes,
             std::unique_ptr<SharedMemory> memory)
    : rank_(comm.rank),
      members_(comm.size, -1),
      filled_(comm.size, 0),
      expected_(comm.size, 0),
      ring_bytes_(ring_bytes),
      memory_(std::move(memory)) {
  for (int rank = 0; rank < comm.size; ++rank) {
    if (nodes[rank] == nodes[comm.rank]) members_[rank] = size_++;
  }
  // Whole pages are pinned.
  rings_ = memory_->data() + HeaderBytes(size_);
  const auto at = static_cast<std::int64_t>(reinterpret_cast<std::uintptr_t>(rings_));
  rings_ += RoundUp(at, kPageBytes) - at;
}

Slots::~Slots() {
  if (is_pinned_) Device()->unpin(rings_);
}

// Pages near the rank that writes them.
void Slots::Touch() { std::memset(ring(), 0, static_cast<std::size_t>(ring_bytes_)); }

void Slots::Pin() {
  Check(Device()->pin(rings_, size_ * ring_bytes_), "pinning memory that the ranks share");
  is_pinned_ = true;
}

std::int64_t Slots::Fill(int rank, const char* data, std::int64_t bytes,
                         const Exchange& exchange) {
  Channel& channel = ChannelOf(rank_, rank);
  const std::int64_t number = filled_[rank]++;
  channel.notes[number % kPieces] = {data - ring(), bytes, exchange};
  channel.filled.store(number + 1, std::memory_order_release);
  return number;
}

Slots::Found Slots::Find(int rank, std::int64_t number) const {
  const Channel& channel = ChannelOf(rank, rank_);
  if (channel.filled.load(std::memory_order_acquire) <= number) return {};
  const Note& note = channel.notes[number % kPieces];
  return {RingOf(rank) + note.offset, note.bytes, note.exchange};
}

}  // namespace pfftjax::gpu

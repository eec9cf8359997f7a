// Rings of pinned memory from which the GPUs of other ranks copy: those of a node lie in memory
// that all of its processes map, and have pinned.
//
// The pieces from one rank to another are numbered. The sender's host has filled one when the copy
// from its device has ended; it notes where the piece lies, and counts. The receiver's host counts
// it as free when its copy to the device has ended. The host copies nothing.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "base/alignment.h"
#include "runtime/communicator.h"
#include "runtime/shared_memory.h"

namespace pfftjax::gpu {

// At most so many pieces of a rank are on their way.
inline constexpr std::int64_t kPieces = 64;

class Slots {
 public:
  // Null where the ranks are to use messages only, on all of them alike: no two are on one node,
  // or some could not share or pin the memory; one slow node makes an exchange slow for all. `how`
  // says which, alike on all ranks. Collective.
  static std::unique_ptr<Slots> Make(Communicator& comm, std::int64_t ring_bytes,
                                     std::string* how);
  ~Slots();
  Slots(const Slots&) = delete;
  Slots& operator=(const Slots&) = delete;

  // Whether `rank` maps this memory; never this rank itself.
  bool Reach(int rank) const { return rank != rank_ && members_[rank] >= 0; }
  // This rank's, of the size that was asked for.
  char* ring() const { return RingOf(rank_); }

  // Says what a piece belongs to: exchange number `number` of the communicator, which is `about`
  // this.
  struct Exchange {
    std::int64_t number = 0;
    std::uint64_t about = 0;
  };
  // The sender says that `data` in its ring is there for `rank`. Returns the number of the piece.
  std::int64_t Fill(int rank, const char* data, std::int64_t bytes, const Exchange& exchange);
  // Whether `rank` has read that piece.
  bool IsFree(int rank, std::int64_t number) const {
    return ChannelOf(rank_, rank).freed.load(std::memory_order_acquire) > number;
  }

  // Returns, to the receiver, the number of the next piece from `rank`.
  std::int64_t Expect(int rank) { return expected_[rank]++; }
  struct Found {
    char* data = nullptr;  // null before it is filled
    std::int64_t bytes = 0;
    Exchange exchange;
  };
  Found Find(int rank, std::int64_t number) const;
  // It has been read, and so have all before it.
  void Free(int rank, std::int64_t number) {
    ChannelOf(rank, rank_).freed.store(number + 1, std::memory_order_release);
  }

  // The sender says that all it sends in that exchange, and in those before, is in its ring.
  // Until then it may need the room of what others have read.
  void NeedNoRoom(std::int64_t exchange) {
    FlagsOf(rank_).taken_all.store(exchange, std::memory_order_release);
  }
  bool NeedsRoom(int rank, std::int64_t exchange) const {
    return FlagsOf(rank).taken_all.load(std::memory_order_acquire) < exchange;
  }

  // A rank that has failed neither fills nor frees any more. Ask before looking at its counts:
  // what it did before still holds.
  void Fail() { FlagsOf(rank_).has_failed.store(1, std::memory_order_release); }
  bool HasFailed(int rank) const {
    return FlagsOf(rank).has_failed.load(std::memory_order_acquire) != 0;
  }

 private:
  struct Note {
    std::int64_t offset;
    std::int64_t bytes;
    Exchange exchange;
  };
  // Leads from one rank to another. No two ranks write to one cache line.
  struct Channel {
    alignas(kCacheLine) std::atomic<std::int64_t> filled;
    Note notes[kPieces];
    alignas(kCacheLine) std::atomic<std::int64_t> freed;
  };
  struct Flags {
    alignas(kCacheLine) std::atomic<std::int64_t> taken_all;
    std::atomic<std::int32_t> has_failed;
  };

  Slots(const Communicator& comm, const std::vector<int>& nodes, std::int64_t ring_bytes,
        std::unique_ptr<SharedMemory> memory);
  static std::int64_t HeaderBytes(std::int64_t ranks);
  void Touch();
  void Pin();

  Flags& FlagsOf(int rank) const {
    return reinterpret_cast<Flags*>(memory_->data())[members_[rank]];
  }
  Channel& ChannelOf(int source, int dest) const {
    auto* channels = reinterpret_cast<Channel*>(memory_->data() + size_ * sizeof(Flags));
    return channels[members_[source] * size_ + members_[dest]];
  }
  char* RingOf(int rank) const { return rings_ + members_[rank] * ring_bytes_; }

  int rank_;
  int size_ = 0;              // ranks of the node
  std::vector<int> members_;  // for each rank its number on the node, or -1
  std::vector<std::int64_t> filled_;
  std::vector<std::int64_t> expected_;
  std::int64_t ring_bytes_;
  std::unique_ptr<SharedMemory> memory_;
  char* rings_;
  bool is_pinned_ = false;
};

}  // namespace pfftjax::gpu

// Memory shared by the ranks of a communicator that all run on one node, and exchanges through it.
//
// Each rank owns two slots. In a round it copies what the others are to have into one of them and
// leaves each a note with the number of the round, on which up to 48 bytes travel themselves; then
// it waits for the notes of the others and copies its part out of their slots. A slot is written
// again two rounds later, when the notes in between have shown that all have read it: no rank
// waits for a round trip. MPI's own single copy goes through the kernel, page by page.
#pragma once

#include <array>
#include <chrono>
#include <cstdint>
#include <memory>

#include "runtime/communicator.h"
#include "runtime/shared_memory.h"

namespace pfftjax {

// Beyond, a rank's share of a slot is less than 8 KiB and a round has so many notes that MPI's own
// algorithms may be faster; nobody has measured it. Transforms (window.h) know no such limit.
inline constexpr int kMostRanksWithSlots = 64;

class Node {
 public:
  // Null where the ranks cannot share memory (more than one node, or they may not open each
  // other's files), on all ranks alike. Collective.
  static std::unique_ptr<Node> Make(Communicator& comm);
  ~Node();
  Node(const Node&) = delete;
  Node& operator=(const Node&) = delete;

  // All ranks must mean these alike.
  struct Blocks {
    std::int64_t bytes;  // of one block
    Element element;
    bool is_same_for_all;
  };

  // Alltoall: block j of `send` becomes block i of `recv` on rank j, where i is this rank; both
  // may be the same memory. Allgather (`is_same_for_all`): all of `send` becomes block i of `recv`
  // on every rank. `mpi()` does the same, in place or not. kOtherCall on every rank if any of
  // them means something else; then the next exchange can be right again.
  //
  // Small exchanges are always faster through shared memory. For large ones it depends on their
  // size, how far apart the cores are and on the pages of the buffers, so all ways are timed, on
  // rank 0, which tells the others. In place, MPI would want a copy: rank 0 leaves it out.
  template <typename ByMpi>
  int Exchange(const void* send, void* recv, const Blocks& blocks, ByMpi&& mpi) {
    const std::int64_t bytes = blocks.bytes * comm_.size;
    if (bytes < kLargeBytes) return ThroughSlots(send, recv, blocks, Slots::kPastCache);
    Trials& trials = TrialsOf(bytes, send == recv);
    int method = 0;
    if (const int code = Choose(trials, send == recv ? kMpi : kMethods, &method)) return code;
    const auto start = Clock::now();
    int code = 0;
    if (method != kMpi) {
      code = ThroughSlots(send, recv, blocks, static_cast<Slots>(method));
    } else if ((code = Compare(blocks)) == 0) {
      code = mpi();
    }
    if (code == 0)
      trials.Took(method, std::chrono::duration<double>(Clock::now() - start).count());
    return code;
  }

  // Slots are written in one of two ways: kThroughCache is the fastest where the ranks' cores
  // share a cache, and several times slower than kPastCache where not.
  enum class Slots { kPastCache, kThroughCache };
  // An exchange in one way.
  int ThroughSlots(const void* send, void* recv, const Blocks& blocks, Slots slots);

 private:
  struct Note;
  using Clock = process::Clock;
  static constexpr std::int64_t kLargeBytes = process::Size(std::int64_t{1} << 20);
  static constexpr int kMpi = 2;  // after those of Slots
  static constexpr int kMethods = 3;

  // This is known of exchanges of about one size.
  struct Trials {
    std::int64_t number = 0;
    std::array<double, kMethods> seconds{};  // of late
    int Next(int methods) const;
    void Took(int method, double seconds);
  };
  static constexpr int kSizes = 16;

  Trials& TrialsOf(std::int64_t bytes, bool is_in_place);
  int Choose(Trials& trials, int methods, int* method);

  Node(Communicator& comm, std::unique_ptr<SharedMemory> memory);
  // A round without data: whether all ranks mean the same.
  int Compare(const Blocks& blocks);
  // Waits until all ranks have come to `round`, and calls read(source, note) for the others; after
  // the first of them that is about something else, no more of it.
  template <typename Read>
  int EndRound(std::int64_t round, std::int64_t about, Read&& read);
  static std::size_t HeaderBytes(int ranks);
  Note& NoteOf(int source, int dest, std::int64_t round) const;
  char* Slot(int rank, std::int64_t round) const;

  Communicator& comm_;
  std::unique_ptr<SharedMemory> memory_;
  char* base_;
  std::int64_t round_ = 0;
  std::array<std::array<Trials, kSizes>, 2> trials_{};
};

// The shared memory of `comm`, made on the first call; null where there is none. Collective.
Node* NodeOf(Communicator& comm);

}  // namespace pfftjax

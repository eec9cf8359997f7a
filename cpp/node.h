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

#include "communicator.h"
#include "shared_memory.h"

namespace pfftjax {

class Node {
 public:
  // Null where the ranks cannot share memory (more than one node, or they may not open each
  // other's files), on all ranks alike. Collective.
  static std::unique_ptr<Node> Make(Communicator& comm);
  ~Node();
  Node(const Node&) = delete;
  Node& operator=(const Node&) = delete;

  // How the slots are written: kThroughCache is the fastest where the ranks' cores share a cache,
  // and several times slower than kPastCache where not.
  enum class Slots { kPastCache, kThroughCache };

  // Block j of `send` becomes block i of `recv` on rank j, where i is this rank; `block` bytes
  // each. Both may be the same memory.
  int Alltoall(const void* send, void* recv, std::int64_t block, Slots slots);
  // All of `send`, `block` bytes, becomes block i of `recv` on every rank.
  int Allgather(const void* send, void* recv, std::int64_t block, Slots slots);

  // Runs `shared(slots)` or `mpi()`, which do the same, for an exchange with a result of `bytes`.
  // Small ones are always faster through shared memory. For large ones it depends on their size,
  // how far apart the cores are and on the pages of the buffers, so all ways are timed, on rank 0,
  // which tells the others. In place, MPI would want a copy: rank 0 leaves it out.
  template <typename Shared, typename ByMpi>
  int Fastest(std::int64_t bytes, bool is_in_place, Shared&& shared, ByMpi&& mpi) {
    if (bytes < kLargeBytes) return shared(Slots::kPastCache);
    Trials& trials = TrialsOf(bytes, is_in_place);
    int method = 0;
    if (const int code = Choose(trials, is_in_place ? kMpi : kMethods, &method)) return code;
    const auto start = Clock::now();
    const int code = method == kMpi ? mpi() : shared(static_cast<Slots>(method));
    trials.Took(method, std::chrono::duration<double>(Clock::now() - start).count());
    return code;
  }

 private:
  struct Note;
  using Clock = process::Clock;
  static constexpr std::int64_t kLargeBytes = process::Size(std::int64_t{1} << 20);
  static constexpr int kMpi = 2;  // after those of Slots
  static constexpr int kMethods = 3;

  // Of exchanges of about one size.
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
  int Exchange(const char* send, char* recv, std::int64_t block, bool is_same_for_all,
               Slots slots);
  static std::size_t HeaderBytes(int ranks);
  Note& NoteOf(int source, int dest, std::int64_t round) const;
  char* Slot(int rank, std::int64_t round) const;

  Communicator& comm_;
  std::unique_ptr<SharedMemory> memory_;
  char* base_;
  std::int64_t round_ = 0;
  std::int64_t choices_ = 0;  // large exchanges so far
  std::array<std::array<Trials, kSizes>, 2> trials_{};
};

// The shared memory of `comm`, made on the first call; null where there is none. Collective.
Node* NodeOf(Communicator& comm);

}  // namespace pfftjax

// Memory in which each rank of a node leaves what the others are to read, as large as an exchange.
//
// An exchange has three parts: Begin, after which this rank may write its part of the window;
// Publish, after which the others may read it, once they have waited for it; and End.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>

#include "communicator.h"
#include "shared_memory.h"

namespace pfftjax {

class Window {
 public:
  // Null where the ranks cannot share so much memory, on all of them alike. Collective.
  static std::unique_ptr<Window> Make(const Communicator& comm, std::int64_t bytes_a_rank);

  std::int64_t bytes_a_rank() const { return bytes_; }
  char* PartOf(int rank) const { return data_ + rank * bytes_; }

  // Waits until the others have read what this rank left in the last exchange.
  int Begin(const Communicator& comm);
  // `about` is the same on all ranks that are in the same call.
  void Publish(const Communicator& comm, std::uint64_t about);
  // Waits for all ranks; kOtherSizes if one is in another call.
  int WaitForAll(Communicator& comm, std::uint64_t about) const;
  void End(const Communicator& comm);

 private:
  struct Flags;
  Window(std::unique_ptr<SharedMemory> memory, int ranks, std::int64_t bytes);
  Flags& FlagsOf(int rank) const;

  std::unique_ptr<SharedMemory> memory_;
  std::int64_t bytes_;
  char* data_;
  std::int64_t round_ = 0;
};

// The window of `comm`, with at least `bytes_a_rank`, the same number on all ranks; null where
// there is none. Collective where it grows.
Window* WindowOf(Communicator& comm, std::int64_t bytes_a_rank);

}  // namespace pfftjax

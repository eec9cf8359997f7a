// Exchanges that are on their way: their memory, their messages, and the thread that lets MPI move
// them while XLA computes something else.
#pragma once

#include <cstdint>
#include <memory>
#include <mutex>
#include <vector>

#include "runtime/communicator.h"

namespace pfftjax {

// Memory for messages. What was used last is kept, twice: fresh pages cost as much as the copies.
class MessageMemory {
 public:
  explicit MessageMemory(std::size_t bytes);
  ~MessageMemory();
  MessageMemory(const MessageMemory&) = delete;
  MessageMemory& operator=(const MessageMemory&) = delete;
  char* data() const { return data_; }
  // Leaves the memory to MPI, which may still read or write it.
  void Lose() { data_ = nullptr; }

 private:
  char* data_ = nullptr;
  std::size_t bytes_;
};

// One exchange that was started. If it goes before its messages are through, as after an error,
// its memory stays.
class Pending {
 public:
  // `about` tells what is exchanged; start and wait must mean the same.
  Pending(std::int64_t comm, std::int64_t about, std::size_t out, std::size_t in)
      : comm(comm), about(about), outgoing(out), incoming(in) {}

  ~Pending();
  Pending(const Pending&) = delete;
  Pending& operator=(const Pending&) = delete;

  // Posts the messages of an exchange of `bytes` a block: block `dest` of `outgoing` (or the only
  // one) to each rank, and into block `source` of `incoming` from each.
  int Post(const Communicator& comm, std::int64_t bytes, bool is_same_for_all);
  // Sends the first `bytes` of `outgoing` in pieces of `limit`, the last of which is shorter.
  int PostPieces(MpiHandle comm, int dest, int tag, std::int64_t bytes, std::int64_t limit);
  // Moves on what can be moved; true once all messages are through, or one has failed.
  bool Test();
  // Does what Test does, but returns false where another thread is at it.
  bool TryTest();
  int code();

  const std::int64_t comm;
  const std::int64_t about;
  MessageMemory outgoing;
  MessageMemory incoming;

 private:
  bool TestLocked();
  // An MPI code. `start(request)` begins a message, which is never forgotten: the room for it is
  // there first.
  template <typename Start>
  int Begin(std::int64_t expected, Start&& start);

  process::Mutex mutex_;  // of what follows
  struct Message {
    MpiHandle request = 0;
    std::int64_t expected = 0;  // bytes; -1 for one that is sent
  };
  std::vector<Message> messages_;
  int code_ = 0;
};

// Leaves `pending` to the thread; the ticket to take it back by.
std::int64_t Add(std::shared_ptr<Pending> pending);
// Leaves `pending` to the thread for good.
void Detach(std::shared_ptr<Pending> pending);
// Null for a ticket that is unknown, was taken already, or stands for something else.
std::shared_ptr<Pending> Take(std::int64_t ticket, std::int64_t comm, std::int64_t about);
// Returns how many exchanges were started on this communicator and not waited for.
std::int64_t NotWaitedFor(std::int64_t comm);
// Ends the thread. Called before MPI_Finalize.
void StopBackground();

}  // namespace pfftjax

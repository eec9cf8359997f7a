// Bytes go from the memory of one rank's GPU to that of another's by NCCL, by memory that the
// processes of a node open of each other (CUDA IPC), by an MPI that takes device pointers, or by
// staging in pinned memory of the host.
#pragma once

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "collectives/exchange.h"
#include "collectives/reductions.h"
#include "gpu/queue.h"
#include "runtime/agreement.h"
#include "runtime/communicator.h"

namespace pfftjax::gpu {

class Transport {
 public:
  virtual ~Transport() = default;
  // "staging", as PFFTJAX_GPU_TRANSPORT has it.
  virtual const char* name() const = 0;
  // The same with what else is worth knowing: "nccl (NCCL 2.27.3)". Alike on all ranks.
  virtual std::string description() const { return name(); }

  // Whether Exchange returns before it can know of any other rank that it is in the same call.
  // The hosts then compare all calls (call.cc), which takes them less than the device needs.
  virtual bool RunsAhead() const { return false; }
  // Whether Exchange keeps the host until the device has come to what is to be sent. The others
  // enqueue, and may wait for other hosts to enqueue, or for a device that is many exchanges
  // behind.
  virtual bool WaitsForDevice() const { return false; }

  // A new one is on trial (probe.h): what goes wrong in it later than in a call is not the end of
  // the job, but is told here. It is then accepted, or discarded; in the second case nobody waits
  // in it any more, and it stays, as a device may be at work on what it holds.
  virtual std::string Trouble() { return {}; }
  // Lets `queue` wait for all that is before an exchange in it for other reasons than the
  // exchange.
  virtual void Follow(Queue&) {}
  virtual void Accept() {}
  virtual void Discard() {}

  // Sends to[p] of `send` to rank p and receives from[p] of `recv` from it, for every rank p, this
  // one included; blocks of bytes, of which both sides know the size, so that empty ones cost
  // nothing. After all that is in the queue and before all that follows; what is sent and what is
  // received do not overlap, but may lie in one buffer. Collective over `comm`, in one call at a
  // time. Returns MPI's code; throws what the runtime says. No exchange begins after one that has
  // failed here: what is left of that on its way would be taken for the next one's.
  //
  // Ranks whose calls mean different things do not take each other's bytes: they fail, or wait for
  // each other until the watch finds them.
  int Exchange(Communicator& comm, const void* send, const std::vector<Block>& to, void* recv,
               const std::vector<Block>& from, Queue& queue);

  // The root's `bytes` at `data` to the same place on all ranks; under the rules of Exchange.
  virtual int Bcast(Communicator& comm, void* data, std::int64_t bytes, int root, Queue& queue);

  // Whether Reduce can do it, with the results that the CPU's has; alike on all ranks.
  virtual bool CanReduce(Element, Reduction) const { return false; }
  // A reduction over the ranks, under the rules of Exchange, but that `send` and `recv` may be the
  // same. Where the result is on one rank, `recv` may hold anything elsewhere.
  virtual int Reduce(Communicator&, const Reducing&, const void* /*send*/, void* /*recv*/,
                     Queue&) {
    throw std::logic_error(std::string(name()) + " does not reduce");
  }

 protected:
  // Does what Exchange says.
  virtual int Move(Communicator& comm, const void* send, const std::vector<Block>& to, void* recv,
                   const std::vector<Block>& from, Queue& queue) = 0;
  // This follows an exchange that has failed here.
  virtual void GiveUp(Queue&) {}

  void ThrowIfFailed() const;
  // What all ranks mean alike by the call that exchanges (MeaningOf).
  std::uint64_t about() const { return about_; }
  // Threads that drive other streams read and set it as well.
  std::atomic<bool> has_failed_{false};

 private:
  std::uint64_t about_ = 0;
};

// This is what the environment says of them (pfftjax/_runtime/options.py), and Python of this job.
struct TransportOptions {
  std::string name;        // PFFTJAX_GPU_TRANSPORT; empty: the first that can be had
  std::string nccl;        // PFFTJAX_NCCL: the path of the library to take, and of no other
  std::string nccl_wheel;  // the path of the one that was installed beside JAX; may be empty
  std::int64_t arena_bytes = std::int64_t{256} << 20;  // PFFTJAX_GPU_ARENA_BYTES: of CUDA IPC
  // PFFTJAX_GPU_CHUNK_BYTES: the most that one copy between the host and a GPU moves by staging.
  std::int64_t chunk_bytes = std::int64_t{4} << 20;
  // PFFTJAX_GPU_PROBE_BYTES: the largest message by which a transport is tried out; 0: none is.
  std::int64_t probe_bytes = std::int64_t{1} << 20;
  // Whether the MPI says that it takes pointers to a GPU's memory; nothing where it does not say.
  bool does_mpi_say = false;
  bool does_mpi_take_pointers = false;
  // Whether it is Cray's, whose query is known to be right, and MPICH_GPU_SUPPORT_ENABLED is set.
  bool is_cray = false;
  bool is_cray_enabled = false;
};

inline TransportOptions& GetTransportOptions() {
  static TransportOptions options;
  return options;
}

// NCCL and an MPI on device pointers must not be at work on one device at the same time: the first
// of them that a process has chosen keeps the other out, unless that is named.
inline std::atomic<const char*> device_transport{nullptr};
// Why `name`, one of the two, is not to be taken.
std::string KeptOut(const char* name);

// The transport of a communicator, chosen when it is first wanted, the same on all of its ranks.
// Throws the reason where the one that was asked for cannot be had. Collective.
Transport& TransportOf(Communicator& comm);

// Transport::Exchange of what each rank sends and receives in elements, as `blocks.To(rank)` and
// `blocks.From(rank)`.
template <typename Blocks>
int ExchangeBlocks(Communicator& comm, const void* send, void* recv, const Blocks& blocks,
                   Element element, Queue& queue) {
  const std::int64_t bytes = InfoOf(element).bytes;
  std::vector<Block> to;
  std::vector<Block> from;
  for (int rank = 0; rank < comm.size; ++rank) {
    const Block out = blocks.To(rank);
    const Block in = blocks.From(rank);
    to.push_back({out.offset * bytes, out.count * bytes});
    from.push_back({in.offset * bytes, in.count * bytes});
  }
  return TransportOf(comm).Exchange(comm, send, to, recv, from, queue);
}

// Lists what has been chosen so far in this process, for pfftjax.info(): numbers of communicators
// with the texts of their choices. It may be asked at any time.
struct Chosen {
  std::int64_t comm = 0;
  std::string text;
  std::string device;
};
std::vector<Chosen> ChosenTransports();

// The transports, in the order in which they are tried. Null where one cannot work for `comm`, on
// all of its ranks alike, with the reason. `devices` are the identities of the ranks' devices.
// Collective.
using Devices = std::vector<std::string>;
std::unique_ptr<Transport> MakeNccl(Communicator& comm, const Devices& devices, std::string* why);
std::unique_ptr<Transport> MakeIpc(Communicator& comm, const Devices& devices, std::string* why);
std::unique_ptr<Transport> MakeGpuAwareMpi(Communicator& comm, const Devices& devices,
                                           std::string* why);
std::unique_ptr<Transport> MakeStaging(Communicator& comm, const Devices& devices,
                                       std::string* why);

// ---- For implementations ------------------------------------------------------------------

// Runs `body()`, which communicates with nobody and returns why it cannot, on all ranks; the first
// reason, or exception, on all of them, empty if there is none. Collective: what one rank cannot
// do all must leave, before any of them waits for it.
template <typename Body>
std::string Attempt(Communicator& comm, Body&& body) {
  std::string mine;
  try {
    mine = body();
  } catch (const std::exception& error) {
    mine = error.what();
  }
  return FirstText(comm, mine);
}

// Runs `body()`, which returns MPI's code, and `give_up()` after a code that is not 0 or an
// exception. What `give_up` throws is forgotten, as the first error says more.
template <typename Body, typename GiveUp>
int OrGiveUp(Body&& body, GiveUp&& give_up) {
  const auto try_to_give_up = [&] {
    try {
      give_up();
    } catch (const std::exception&) {
    }
  };
  try {
    const int code = body();
    if (code != 0) try_to_give_up();
    return code;
  } catch (...) {
    try_to_give_up();
    throw;
  }
}

// Says that another rank means another call than this one, where an exchange has seen it.
inline std::string InAnotherCall(int rank) {
  return "rank " + std::to_string(rank) + " is in another call than this rank";
}

// The part of an exchange that stays on this rank.
inline void CopyOwnBlock(Place place, const void* send, const std::vector<Block>& to, void* recv,
                         const std::vector<Block>& from, Queue& queue) {
  const Block& mine = to[place.rank];
  if (mine.count != from[place.rank].count) {
    throw std::logic_error("a rank has " + std::to_string(mine.count) +
                           " bytes for itself, and expects " +
                           std::to_string(from[place.rank].count));
  }
  queue.Copy(static_cast<char*>(recv) + from[place.rank].offset,
             static_cast<const char*>(send) + mine.offset, mine.count, Direction::kOnDevice);
}

// All pieces of at most `largest` bytes to (or from) the other ranks: the first of each, nearest
// rank first, then the second of each, and so on. What all ranks are to have alike so comes at
// once, piece by piece. This is one order for the pieces between any two ranks: by their offset,
// then by how far the receiver is from the sender.
class BlockPieces {
 public:
  enum class Side { kTo, kFrom };
  BlockPieces(Place place, const std::vector<Block>& blocks, Side side, std::int64_t largest)
      : place_(place), blocks_(blocks), side_(side), largest_(largest) {
    for (int rank = 0; rank < place.size; ++rank) {
      if (rank != place.rank) most_ = std::max(most_, blocks[rank].count);
    }
    SkipMissing();
  }
  bool AtEnd() const { return at_ >= most_; }
  int Rank() const {
    return (place_.rank + (side_ == Side::kTo ? step_ : place_.size - step_)) % place_.size;
  }
  std::int64_t Offset() const { return blocks_[Rank()].offset + at_; }
  std::int64_t Bytes() const { return std::min(largest_, blocks_[Rank()].count - at_); }
  void Advance() {
    ++step_;
    SkipMissing();
  }

 private:
  void SkipMissing() {
    for (; !AtEnd(); at_ += largest_, step_ = 1) {
      for (; step_ < place_.size; ++step_) {
        if (at_ < blocks_[Rank()].count) return;
      }
    }
  }

  Place place_;
  const std::vector<Block>& blocks_;
  Side side_;
  std::int64_t largest_;
  std::int64_t most_ = 0;
  std::int64_t at_ = 0;
  int step_ = 1;
};

}  // namespace pfftjax::gpu

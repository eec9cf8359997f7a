#include "pencils/stream.h"

#include <cstring>
#include <optional>
#include <string>

#include "base/alignment.h"
#include "base/copies.h"
#include "base/options.h"
#include "base/scratch.h"
#include "collectives/exchange.h"
#include "runtime/tasks.h"

namespace pfftjax {
namespace {

// A piece stays in L2 from packing to sending.
constexpr std::int64_t kPieceBytes = std::int64_t{256} << 10;
constexpr int kInFlight = 4;  // pieces, each way

std::int64_t PieceElements(Element element) {
  const std::int64_t bytes = std::min(kPieceBytes, GetOptions().max_chunk_bytes);
  return std::max<std::int64_t>(bytes / InfoOf(element).bytes, 1);
}

// The buffers of one exchange by messages. If it does not end well, MPI may still write to them.
class PieceBuffers {
 public:
  ~PieceBuffers() {
    if (!has_ended_well_) memory_.Lose();
  }
  char* Sending(int slot) const { return At(slot); }
  char* Receiving(int slot) const { return At(kInFlight + slot); }
  void EndWell() { has_ended_well_ = true; }

 private:
  char* At(int slot) const { return static_cast<char*>(memory_.data()) + slot * kPieceBytes; }

  ScratchFor<struct ForPieces> memory_{2 * kInFlight * kPieceBytes};
  bool has_ended_well_ = false;
};

// Memory for one piece, which each of some threads has at a time.
using OnePiece = ScratchFor<struct ForOnePiece, 16>;

// All pieces to (or from) the other ranks, nearest first.
template <bool kTo>
class Sequence {
 public:
  Sequence(Place place, const BoxesOf& boxes, std::int64_t limit)
      : place_(place), boxes_(boxes), limit_(limit) {}

  bool Next(int* rank, Box* piece) {
    while (!pieces_ || !pieces_->Next(piece)) {
      while (box_ == current_.size()) {
        if (++step_ == place_.size) return false;
        current_ = kTo ? boxes_.To(Partner()) : boxes_.From(Partner());
        box_ = 0;
      }
      pieces_.emplace(current_[box_++], limit_);
    }
    *rank = Partner();
    return true;
  }

 private:
  int Partner() const { return (place_.rank + (kTo ? step_ : place_.size - step_)) % place_.size; }

  Place place_;
  const BoxesOf& boxes_;
  std::int64_t limit_;
  int step_ = 0;
  std::vector<Box> current_;
  std::size_t box_ = 0;
  std::optional<Pieces> pieces_;
};

// body(buffer, piece of from, its piece of to) for all pieces of two boxes with the same extents,
// shared out over threads. buffer() is memory of a thread's own for one piece, in the cache. What
// threads have written past the cache is there in the end.
template <typename Body>
void ForEachPiece(ffi::ThreadPool& pool, const Box& from, const Box& to, Element element,
                  Body body) {
  constexpr std::int64_t worth_a_thread = 4;  // pieces
  const std::int64_t limit = PieceElements(element);
  const std::int64_t most = std::max<std::int64_t>(pool.num_threads(), 1);
  const std::int64_t threads =
      std::clamp<std::int64_t>(from.count() / limit / worth_a_thread, 1, most);
  ForEachTask(pool, threads, threads - 1, [&](std::int64_t thread) {
    std::optional<OnePiece> memory;
    const auto buffer = [&] {
      if (!memory) memory.emplace(kPieceBytes);
      return static_cast<char*>(memory->data());
    };
    Pieces of_from(from, limit);
    Pieces of_to(to, limit);
    Box from_piece;
    Box to_piece;
    for (std::int64_t number = 0; of_from.Next(&from_piece) && of_to.Next(&to_piece); ++number) {
      if (number % threads == thread) body(buffer, from_piece, to_piece);
    }
    if (threads > 1) Drain();
  });
}

void Deliver(const void* source, const Box& from, void* target, const Box& to, Element element,
             Arrival arrival) {
  if (arrival == Arrival::kSum) {
    AddBox(source, from, target, to, element);
  } else {
    CopyBox(source, from, target, to, InfoOf(element).bytes);
  }
}

// Parts for the others begin on cache lines, in the order of the ranks.
std::int64_t PartBytes(std::int64_t most, Element element) {
  return RoundUp(most * InfoOf(element).bytes, static_cast<std::int64_t>(kCacheLine));
}
std::int64_t PlaceOf(int source, int dest) { return dest < source ? dest : dest - 1; }

using AlltoallScratch = ScratchFor<struct ForAlltoall>;

}  // namespace

void ReleaseAlltoall() { AlltoallScratch::Release(); }

void CopyOwn(ffi::ThreadPool& pool, Place place, const void* source, void* target,
             const BoxesOf& boxes, Element element, Arrival arrival) {
  const std::int64_t bytes = InfoOf(element).bytes;
  const std::vector<Box> mine = boxes.To(place.rank);
  const std::vector<Box> theirs = boxes.From(place.rank);
  for (std::size_t i = 0; i < mine.size(); ++i) {
    const Arrival here = i == 0 ? Arrival::kStore : arrival;
    const bool changes = ChangesOrder(mine[i], theirs[i]);
    const auto move = [&](const auto& buffer, const Box& from, const Box& to) {
      if (!changes) {
        Deliver(source, from, target, to, element, here);
        return;
      }
      // Packing and unpacking in two steps takes half the time of one that scatters cache lines
      // over memory.
      CopyBox(source, from, buffer(), Contiguous(from), bytes);
      Deliver(buffer(), Contiguous(to), target, to, element, here);
    };
    ForEachPiece(pool, mine[i], theirs[i], element, move);
  }
}

int StreamBoxes(ffi::ThreadPool& pool, const Communicator& comm, const void* source, void* target,
                const BoxesOf& boxes, Element element, Arrival arrival) {
  CopyOwn(pool, comm, source, target, boxes, element, arrival);
  if (comm.size == 1) return 0;

  const std::int64_t bytes = InfoOf(element).bytes;
  PieceBuffers buffers;

  struct Incoming {
    Box piece;
    std::int64_t bytes = 0;
  };
  const MpiApi& mpi = *Mpi();
  const int tag = ExchangeTag(comm);
  Sequence<true> outgoing(comm, boxes, PieceElements(element));
  Sequence<false> incoming(comm, boxes, PieceElements(element));
  std::array<MpiHandle, kInFlight> sends{};
  std::array<MpiHandle, kInFlight> receives{};
  std::array<Incoming, kInFlight> arriving{};
  std::int64_t sent = 0;       // begun
  std::int64_t sent_done = 0;  // of those, complete
  std::int64_t received = 0;
  std::int64_t received_done = 0;
  bool more_out = true;
  bool more_in = true;

  while (true) {
    int rank = 0;
    Box piece;
    while (more_in && received - received_done < kInFlight) {
      if (!(more_in = incoming.Next(&rank, &piece))) break;
      const int slot = static_cast<int>(received++ % kInFlight);
      arriving[slot] = {piece, piece.count() * bytes};
      const int code = mpi.receive_start(buffers.Receiving(slot), arriving[slot].bytes, rank, tag,
                                         comm.control, &receives[slot]);
      if (code != 0) return code;
    }
    while (more_out && sent - sent_done < kInFlight) {
      if (!(more_out = outgoing.Next(&rank, &piece))) break;
      const int slot = static_cast<int>(sent++ % kInFlight);
      CopyBox(source, piece, buffers.Sending(slot), Contiguous(piece), bytes);
      const int code = mpi.send_start(buffers.Sending(slot), piece.count() * bytes, rank, tag,
                                      comm.control, &sends[slot]);
      if (code != 0) return code;
    }
    // Whichever of the two oldest comes first: a rank that waited for one kind only, with a full
    // window of the other, could be part of a circle of ranks that wait for each other.
    if (received_done == received && sent_done == sent) {
      buffers.EndWell();
      return 0;
    }
    int is_receive = 0;
    std::int64_t arrived = 0;
    const int code = mpi.wait_either(
        received_done < received ? &receives[received_done % kInFlight] : nullptr,
        sent_done < sent ? &sends[sent_done % kInFlight] : nullptr, &is_receive, &arrived);
    if (code != 0) return code;
    if (is_receive) {
      const int slot = static_cast<int>(received_done++ % kInFlight);
      if (arrived != arriving[slot].bytes) return kShortMessage;
      const Box& there = arriving[slot].piece;
      Deliver(buffers.Receiving(slot), Contiguous(there), target, there, element, arrival);
    } else {
      ++sent_done;
    }
  }
}

std::int64_t WindowBytes(int ranks, std::int64_t most, Element element) {
  return (ranks - 1) * PartBytes(most, element);
}

void LeaveBox(ffi::ThreadPool& pool, const void* source, const Box& box, char* to,
              Element element) {
  const std::int64_t bytes = InfoOf(element).bytes;
  const auto leave = [&](const auto& buffer, const Box& piece, const Box& there) {
    const auto size = static_cast<std::size_t>(piece.count() * bytes);
    char* const at = to + there.offset * bytes;
    CopyBox(source, piece, buffer(), Contiguous(piece), bytes);
    process::Writes(at, size);
    CopyUndrained(at, buffer(), size);
  };
  ForEachPiece(pool, box, Contiguous(box), element, leave);
}

void FetchBox(ffi::ThreadPool& pool, const char* from, void* target, const Box& box,
              Element element) {
  const std::int64_t bytes = InfoOf(element).bytes;
  const auto fetch = [&](const auto&, const Box& there, const Box& piece) {
    process::Reads(from + there.offset * bytes, static_cast<std::size_t>(piece.count() * bytes));
    CopyBox(from, there, target, piece, bytes);
  };
  ForEachPiece(pool, Contiguous(box), box, element, fetch);
}

int ShareBoxes(ffi::ThreadPool& pool, Communicator& comm, Window& window, const void* source,
               void* target, const BoxesOf& boxes, std::int64_t most, Element element) {
  const std::int64_t part = PartBytes(most, element);
  Window::Round round(window, comm);
  if (const int code = round.Begin()) return code;
  for (int step = 1; step < comm.size; ++step) {
    const int dest = (comm.rank + step) % comm.size;
    char* to = window.PartOf(comm.rank) + PlaceOf(comm.rank, dest) * part;
    LeaveBox(pool, source, boxes.To(dest).at(0), to, element);
  }
  Drain();
  round.Publish(MeaningOf(comm));
  CopyOwn(pool, comm, source, target, boxes, element, Arrival::kStore);
  if (const int code = round.WaitForAll(MeaningOf(comm))) return code;
  for (int step = 1; step < comm.size; ++step) {
    const int from = (comm.rank + step) % comm.size;
    const char* at = window.PartOf(from) + PlaceOf(from, comm.rank) * part;
    FetchBox(pool, at, target, boxes.From(from).at(0), element);
  }
  return 0;
}

int AlltoallBoxes(Communicator& comm, const void* source, void* target, const BoxesOf& boxes,
                  std::int64_t most, Element element) {
  const std::int64_t bytes = InfoOf(element).bytes;
  // MPI does not compare sizes, and cannot compare shapes of one size.
  constexpr std::int64_t kHeaderBytes = 64;
  const std::uint64_t meaning = MeaningOf(comm);
  const std::int64_t block = most + kHeaderBytes / bytes;
  const std::int64_t total = block * comm.size;
  AlltoallScratch scratch(static_cast<std::size_t>(2 * total * bytes));
  auto* const send = static_cast<char*>(scratch.data());
  char* const recv = send + total * bytes;
  for (int rank = 0; rank < comm.size; ++rank) {
    char* const to = send + rank * block * bytes;
    std::memcpy(to, &meaning, sizeof meaning);
    // The one box of a pair; callers may keep their own.
    for (const Box& box : boxes.To(rank)) {
      CopyBox(source, box, to + kHeaderBytes, Contiguous(box), bytes);
    }
  }
  if (const int code = AlltoallInChunks(comm, send, recv, block, element)) {
    scratch.Lose();  // MPI may still write there
    return code;
  }
  for (int rank = 0; rank < comm.size; ++rank) {
    const char* const from = recv + rank * block * bytes;
    if (std::memcmp(from, &meaning, sizeof meaning) != 0) {
      comm.difference = "rank " + std::to_string(rank) +
                        " makes a transposition of another shape, order or dtype than this rank";
      return kOtherCall;
    }
    for (const Box& box : boxes.From(rank)) {
      CopyBox(from + kHeaderBytes, Contiguous(box), target, box, bytes);
    }
  }
  return 0;
}

}  // namespace pfftjax

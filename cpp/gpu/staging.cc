// Messages between GPUs by way of the host: to pinned memory, through MPI, and to the device, in
// pieces, several of which are on their way at a time.
//
// The host polls: what the device has copied is sent, what has arrived is copied to the device. It
// returns as soon as the last piece has arrived; XLA's stream then waits for the last copy.
#include <sched.h>

#include <algorithm>
#include <exception>

#include "transport.h"

namespace pfftjax::gpu {
namespace {

// So many of the largest pieces fit in a ring, and of smaller ones at most kPieces.
constexpr std::int64_t kLargest = 4;
constexpr std::int64_t kPieces = 64;

// Pieces begin where copies are fastest.
std::int64_t RoundUp(std::int64_t bytes) {
  constexpr std::int64_t alignment = 256;
  return (bytes + alignment - 1) / alignment * alignment;
}

struct Piece {
  char* data = nullptr;  // in the ring
  std::int64_t bytes = 0;
  int rank = 0;
  const char* source = nullptr;  // on the device, of what leaves
  char* place = nullptr;         // and of what arrives
  MpiHandle request = 0;
  Event copied;  // from or to the device
};

// Pinned memory that is used round and round, by pieces that are freed in the order in which they
// were taken.
class Ring {
 public:
  explicit Ring(std::int64_t largest) : bytes_(kLargest * RoundUp(largest)) {
    void* pinned = nullptr;
    Check(Device()->allocate_pinned(&pinned, bytes_), "pinning memory for messages");
    data_ = static_cast<char*>(pinned);
    pieces_.resize(kPieces);
  }
  Ring(const Ring&) = delete;
  Ring& operator=(const Ring&) = delete;
  ~Ring() { Device()->free_pinned(data_); }

  // Null where there is no room before others are freed.
  Piece* Take(std::int64_t bytes) {
    if (taken_ - freed_ == kPieces) return nullptr;
    std::int64_t begin = RoundUp(end_);
    if (begin % bytes_ + bytes > bytes_) begin = (begin / bytes_ + 1) * bytes_;
    const std::int64_t oldest = freed_ == taken_ ? begin : At(freed_).begin;
    if (begin + bytes - oldest > bytes_) return nullptr;
    Slot& slot = At(taken_++);
    slot.begin = begin;
    slot.piece.data = data_ + begin % bytes_;
    slot.piece.bytes = bytes;
    end_ = begin + bytes;
    return &slot.piece;
  }
  // The piece that was taken last, once more, if it has come from `source`; or null.
  Piece* TakeAgain(const char* source, std::int64_t bytes) {
    if (freed_ == taken_ || taken_ - freed_ == kPieces) return nullptr;
    const Slot& last = At(taken_ - 1);
    if (last.piece.source != source || last.piece.bytes != bytes) return nullptr;
    Slot& slot = At(taken_++);
    slot.begin = last.begin;
    slot.piece.data = last.piece.data;
    slot.piece.bytes = bytes;
    slot.piece.source = source;
    return &slot.piece;
  }
  void FreeOldest() { ++freed_; }

  // Pieces are numbered from the first that was ever taken.
  std::int64_t taken() const { return taken_; }
  std::int64_t freed() const { return freed_; }
  Piece& operator[](std::int64_t number) { return At(number).piece; }

 private:
  struct Slot {
    Piece piece;
    std::int64_t begin = 0;  // in the ring, as if that went on for ever
  };
  Slot& At(std::int64_t number) { return pieces_[static_cast<std::size_t>(number % kPieces)]; }

  std::int64_t bytes_;
  char* data_;
  std::vector<Slot> pieces_;
  std::int64_t taken_ = 0;
  std::int64_t freed_ = 0;
  std::int64_t end_ = 0;
};

// All pieces to (or from) the other ranks: the first of each, nearest rank first, then the second
// of each, and so on. What all ranks are to have alike so comes at once, piece by piece.
class Sequence {
 public:
  Sequence(const Communicator& comm, const std::vector<Block>& blocks, bool to,
           std::int64_t largest)
      : comm_(comm), blocks_(blocks), to_(to), largest_(largest) {
    for (int rank = 0; rank < comm.size; ++rank) {
      if (rank != comm.rank) most_ = std::max(most_, blocks[rank].count);
    }
    SkipMissing();
  }
  bool AtEnd() const { return at_ >= most_; }
  int Rank() const { return (comm_.rank + (to_ ? step_ : comm_.size - step_)) % comm_.size; }
  std::int64_t Offset() const { return blocks_[Rank()].offset + at_; }
  std::int64_t Bytes() const { return std::min(largest_, blocks_[Rank()].count - at_); }
  void Advance() {
    ++step_;
    SkipMissing();
  }

 private:
  void SkipMissing() {
    for (; !AtEnd(); at_ += largest_, step_ = 1) {
      for (; step_ < comm_.size; ++step_) {
        if (at_ < blocks_[Rank()].count) return;
      }
    }
  }

  const Communicator& comm_;
  const std::vector<Block>& blocks_;
  bool to_;
  std::int64_t largest_;
  std::int64_t most_ = 0;
  std::int64_t at_ = 0;
  int step_ = 1;
};

// A stream of our own, which stays.
class Stream {
 public:
  Stream() { Check(Device()->make_stream(&handle_), "making a stream"); }
  Stream(const Stream&) = delete;
  Stream& operator=(const Stream&) = delete;
  ~Stream() { Device()->free_stream(handle_); }
  StreamHandle handle() const { return handle_; }
  void WaitFor(const Event& event) {
    Check(Device()->wait(handle_, event.handle()), "waiting for an event");
  }

 private:
  StreamHandle handle_ = nullptr;
};

class Staging final : public Transport {
 public:
  explicit Staging(std::int64_t largest) : largest_(largest) { MakeRings(); }

  const char* name() const override { return "staging"; }

  int Exchange(Communicator& comm, const void* send, const std::vector<Block>& to, void* recv,
               const std::vector<Block>& from, Queue& queue) override {
    CopyOwnBlock(comm, send, to, recv, from, queue);
    const Sequence outgoing(comm, to, true, largest_);
    const Sequence incoming(comm, from, false, largest_);
    if (outgoing.AtEnd() && incoming.AtEnd()) return 0;
    if (!out_ || !in_) MakeRings();  // lost in an error
    begin_.Record(queue.stream());
    to_host_.WaitFor(begin_);
    to_device_.WaitFor(begin_);  // what was there before may still be read
    try {
      const int code =
          Move(comm, static_cast<const char*>(send), outgoing, static_cast<char*>(recv), incoming);
      if (code != 0) GiveUp(queue);
      if (code == 0) LetWait(queue, to_device_);
      return code;
    } catch (const std::exception&) {
      GiveUp(queue);
      throw;
    }
  }

 private:
  void MakeRings() {
    out_ = std::make_unique<Ring>(largest_);
    in_ = std::make_unique<Ring>(largest_);
  }

  void LetWait(Queue& queue, const Stream& stream) {
    end_.Record(stream.handle());
    Check(Device()->wait(queue.stream(), end_.handle()), "waiting for an event");
  }

  // After an error MPI may still write to the rings, and copies may be under way that XLA's next
  // operations must not overtake.
  void GiveUp(Queue& queue) {
    static_cast<void>(out_.release());
    static_cast<void>(in_.release());
    for (const Stream* stream : {&to_host_, &to_device_}) {
      try {
        LetWait(queue, *stream);
      } catch (const std::exception&) {  // the first error says more
      }
    }
  }

  // Pieces of `in` are posted, have arrived, are freed; those of `out` are taken, sent, freed.
  // Each in order, as messages of a pair of ranks are: the piece that all others on their way come
  // after is never held up.
  int Move(const Communicator& comm, const char* send, Sequence outgoing, char* recv,
           Sequence incoming) {
    const MpiApi& mpi = *Mpi();
    Ring& in = *in_;
    Ring& out = *out_;
    std::int64_t arrived = in.taken();
    std::int64_t sent = out.taken();
    while (true) {
      bool has_moved = false;

      while (in.freed() < arrived && in[in.freed()].copied.IsDone()) in.FreeOldest();
      for (Piece* piece; !incoming.AtEnd() && (piece = in.Take(incoming.Bytes()));) {
        piece->rank = incoming.Rank();
        piece->place = recv + incoming.Offset();
        incoming.Advance();
        const int code = mpi.receive_start(piece->data, piece->bytes, piece->rank, kExchangeTag,
                                           comm.control, &piece->request);
        if (code != 0) return code;
        has_moved = true;
      }
      while (arrived < in.taken()) {
        Piece& piece = in[arrived];
        int done = 0;
        std::int64_t bytes = 0;
        if (const int code = mpi.test_bytes(&piece.request, &done, &bytes)) return code;
        if (!done) break;
        if (bytes != piece.bytes) return kShortMessage;
        Check(Device()->copy(piece.place, piece.data, bytes, Direction::kToDevice,
                             to_device_.handle()),
              "copying to the device");
        piece.copied.Record(to_device_.handle());
        ++arrived;
        has_moved = true;
      }

      while (!outgoing.AtEnd()) {
        const char* const source = send + outgoing.Offset();
        const std::int64_t bytes = outgoing.Bytes();
        // Sent in order, and so after the one whose copy it shares.
        Piece* piece = out.TakeAgain(source, bytes);
        if (!piece) {
          piece = out.Take(bytes);
          if (!piece) break;
          piece->source = source;
          Check(Device()->copy(piece->data, source, bytes, Direction::kToHost, to_host_.handle()),
                "copying from the device");
          piece->copied.Record(to_host_.handle());
        }
        piece->rank = outgoing.Rank();
        outgoing.Advance();
        has_moved = true;
      }
      while (sent < out.taken() && out[sent].copied.IsDone()) {
        Piece& piece = out[sent];
        const int code = mpi.send_start(piece.data, piece.bytes, piece.rank, kExchangeTag,
                                        comm.control, &piece.request);
        if (code != 0) return code;
        ++sent;
        has_moved = true;
      }
      while (out.freed() < sent) {
        int done = 0;
        if (const int code = mpi.test(&out[out.freed()].request, &done)) return code;
        if (!done) break;
        out.FreeOldest();
        has_moved = true;
      }

      if (outgoing.AtEnd() && incoming.AtEnd() && arrived == in.taken() &&
          out.freed() == out.taken()) {
        return 0;
      }
      if (!has_moved) sched_yield();
    }
  }

  std::int64_t largest_;
  Stream to_host_;
  Stream to_device_;
  Event begin_;
  Event end_;
  std::unique_ptr<Ring> out_;
  std::unique_ptr<Ring> in_;
};

}  // namespace

std::unique_ptr<Transport> MakeStaging(Communicator& comm, std::string* why) {
  const Options& options = GetOptions();
  std::unique_ptr<Transport> made;
  *why = Attempt(comm, [&]() -> std::string {
    made = std::make_unique<Staging>(std::min(options.gpu_chunk_bytes, options.max_chunk_bytes));
    return {};
  });
  if (!why->empty()) made = nullptr;
  return made;
}

}  // namespace pfftjax::gpu

// Pieces go between GPUs by way of the host, several of which are on their way at a time: to
// pinned memory, and from there to the other device, where the processes of a node have that
// memory in common (slots.h); through MPI, and from pinned memory of the receiver's, where not.
//
// The host polls: what the device has copied is sent, what has arrived is copied to the device. It
// returns as soon as the last piece has arrived; XLA's stream then waits for the last copy.
#include <exception>

#include "gpu/ring.h"
#include "gpu/slots.h"
#include "gpu/transport.h"
#include "mpi/tags.h"
#include "runtime/shared_memory.h"

namespace pfftjax::gpu {
namespace {

class Staging final : public Transport {
 public:
  Staging(const Communicator& comm, std::int64_t largest, std::unique_ptr<Slots> slots,
          std::string how)
      : largest_(largest),
        slots_(std::move(slots)),
        description_("staging (" + how + ")"),
        for_out_(slots_ ? 0 : Ring::BytesFor(largest)),
        for_in_(NeedsMessages(comm) ? Ring::BytesFor(largest) : 0),
        out_(slots_ ? slots_->ring() : for_out_.data(), Ring::BytesFor(largest)),
        in_(for_in_.data(), Ring::BytesFor(largest)) {}

  const char* name() const override { return "staging"; }
  bool WaitsForDevice() const override { return true; }
  std::string description() const override { return description_; }
  void Discard() override {
    if (slots_) slots_->Fail();
  }

 protected:
  int Move(Communicator& comm, const void* send, const std::vector<Block>& to, void* recv,
           const std::vector<Block>& from, Queue& queue) override {
    ++exchange_;
    CopyOwnBlock(comm, send, to, recv, from, queue);
    Traffic traffic{comm,
                    static_cast<const char*>(send),
                    {comm, to, BlockPieces::Side::kTo, largest_},
                    static_cast<char*>(recv),
                    {comm, from, BlockPieces::Side::kFrom, largest_}};
    // A rank without traffic frees all the same what it has read in the exchange before.
    if (traffic.AtEnd() && (!slots_ || in_.freed() == in_.taken())) return 0;
    begin_.Record(queue.stream());
    to_host_.WaitFor(begin_);
    to_device_.WaitFor(begin_);  // what was there before may still be read
    const int code = Run(traffic);
    if (code == 0) LetWait(queue, to_device_);
    return code;
  }

  // After an error MPI, and other ranks, may still use the rings, and copies may be under way that
  // XLA's next operations must not overtake.
  void GiveUp(Queue& queue) override {
    Discard();
    for (const Stream* stream : {&to_host_, &to_device_}) {
      try {
        LetWait(queue, *stream);
      } catch (const std::exception&) {  // the first error says more
      }
    }
  }

 private:
  // One exchange.
  struct Traffic {
    Communicator& comm;
    const char* send;
    BlockPieces outgoing;
    char* recv;
    BlockPieces incoming;
    bool has_moved = false;

    bool AtEnd() const { return outgoing.AtEnd() && incoming.AtEnd(); }
  };

  bool HasSlots(int rank) const { return slots_ && slots_->Reach(rank); }
  bool NeedsMessages(const Communicator& comm) const {
    for (int rank = 0; rank < comm.size; ++rank) {
      if (rank != comm.rank && !HasSlots(rank)) return true;
    }
    return false;
  }

  void LetWait(Queue& queue, const Stream& stream) {
    end_.Record(stream.handle());
    queue.WaitFor(end_);
  }

  // Each in order, as the pieces of a pair of ranks are: the piece that all others on their way
  // come after is never held up.
  int Run(Traffic& traffic) {
    const std::int64_t before = in_.taken();
    out_.Forget();
    for (Waiting waiting;;) {
      traffic.has_moved = false;
      if (const int code = Receive(traffic)) return code;
      if (const int code = Send(traffic)) return code;
      bool has_sent = false;
      if (const int code = FinishSends(&has_sent)) return code;
      if (slots_ && traffic.outgoing.AtEnd()) slots_->NeedNoRoom(exchange_);
      if (has_sent && traffic.AtEnd() && arrived_ == in_.taken() && in_.freed() >= before &&
          MayLeave()) {
        return 0;
      }
      if (traffic.has_moved) {
        waiting.Restart();
      } else if (const int code = waiting.Step(traffic.comm)) {
        return code;
      }
    }
  }

  // Whether no sender needs the room of what is still being copied here. It would wait for a rank
  // that may come back only when it is done.
  bool MayLeave() {
    for (std::int64_t number = in_.freed(); number < in_.taken(); ++number) {
      const Piece& piece = in_[number];
      if (piece.number >= 0 && slots_->NeedsRoom(piece.rank, exchange_)) return false;
    }
    return true;
  }

  // Pieces of `in_` are posted, have arrived, are freed.
  int Receive(Traffic& traffic) {
    while (in_.freed() < arrived_ && in_[in_.freed()].copied.IsDone()) {
      const Piece& piece = in_[in_.freed()];
      if (piece.number >= 0) slots_->Free(piece.rank, piece.number);
      in_.FreeOldest();
      traffic.has_moved = true;
    }
    BlockPieces& incoming = traffic.incoming;
    while (!incoming.AtEnd()) {
      const int rank = incoming.Rank();
      const bool is_there = HasSlots(rank);
      Piece* piece = is_there ? in_.TakeElsewhere(incoming.Bytes()) : in_.Take(incoming.Bytes());
      if (!piece) break;
      piece->rank = rank;
      piece->place = traffic.recv + incoming.Offset();
      incoming.Advance();
      if (is_there) {
        piece->number = slots_->Expect(rank);
      } else if (const int code = Mpi()->receive_start(piece->data, piece->bytes, rank,
                                                       kStagingTags.Of(about()),
                                                       traffic.comm.control, &piece->request)) {
        return code;
      }
      traffic.has_moved = true;
    }
    while (arrived_ < in_.taken()) {
      Piece& piece = in_[arrived_];
      bool is_there = false;
      const int code =
          piece.number >= 0 ? Find(traffic.comm, piece, &is_there) : Test(piece, &is_there);
      if (code != 0) return code;
      if (!is_there) break;
      Check(Device()->copy(piece.place, piece.data, piece.bytes, Direction::kToDevice,
                           to_device_.handle()),
            "copying to the device");
      piece.copied.Record(to_device_.handle());
      ++arrived_;
      traffic.has_moved = true;
    }
    return 0;
  }

  // Whether a message has arrived.
  static int Test(Piece& piece, bool* is_there) {
    int done = 0;
    std::int64_t bytes = 0;
    if (const int code = Mpi()->test(&piece.request, &done, &bytes)) return code;
    *is_there = done != 0;
    return done && bytes != piece.bytes ? kShortMessage : 0;
  }

  // Whether another rank has filled a slot, and with what is expected.
  int Find(Communicator& comm, Piece& piece, bool* is_there) const {
    const bool has_failed = slots_->HasFailed(piece.rank);
    const Slots::Found found = slots_->Find(piece.rank, piece.number);
    if (!found.data) return has_failed ? GivenUp(comm, piece.rank) : 0;
    const Slots::Exchange& theirs = found.exchange;
    if (theirs.number == exchange_ && theirs.about != about()) {
      comm.difference = InAnotherCall(piece.rank);
      return kOtherCall;
    }
    if (found.bytes != piece.bytes || theirs.number != exchange_) {
      comm.difference = "rank " + std::to_string(piece.rank) + " sends " +
                        std::to_string(found.bytes) + " bytes in exchange number " +
                        std::to_string(theirs.number) + " between GPUs, and this rank expects " +
                        std::to_string(piece.bytes) + " in number " + std::to_string(exchange_);
      return kOtherCall;
    }
    piece.data = found.data;
    *is_there = true;
    return 0;
  }

  static int GivenUp(Communicator& comm, int rank) {
    comm.difference = "rank " + std::to_string(rank) + " has given up an exchange between GPUs";
    return kOtherCall;
  }

  // Pieces of `out_` are taken, sent, freed.
  int Send(Traffic& traffic) {
    BlockPieces& outgoing = traffic.outgoing;
    while (!outgoing.AtEnd()) {
      const char* const source = traffic.send + outgoing.Offset();
      const std::int64_t bytes = outgoing.Bytes();
      // Sent in order, and so after the one whose copy it shares.
      Piece* piece = out_.TakeAgain(source, bytes);
      if (!piece) {
        piece = out_.Take(bytes);
        if (!piece) break;
        piece->source = source;
        Check(Device()->copy(piece->data, source, bytes, Direction::kToHost, to_host_.handle()),
              "copying from the device");
        piece->copied.Record(to_host_.handle());
      }
      piece->rank = outgoing.Rank();
      outgoing.Advance();
      traffic.has_moved = true;
    }
    while (sent_ < out_.taken() && out_[sent_].copied.IsDone()) {
      Piece& piece = out_[sent_];
      if (HasSlots(piece.rank)) {
        piece.number = slots_->Fill(piece.rank, piece.data, piece.bytes, {exchange_, about()});
      } else if (const int code = Mpi()->send_start(piece.data, piece.bytes, piece.rank,
                                                    kStagingTags.Of(about()), traffic.comm.control,
                                                    &piece.request)) {
        return code;
      }
      ++sent_;
      traffic.has_moved = true;
    }
    while (out_.freed() < sent_) {
      Piece& piece = out_[out_.freed()];
      bool is_free = false;
      if (piece.number >= 0) {
        const bool has_failed = slots_->HasFailed(piece.rank);
        is_free = slots_->IsFree(piece.rank, piece.number);
        if (!is_free && has_failed && !outgoing.AtEnd()) return GivenUp(traffic.comm, piece.rank);
      } else if (const int code = IsSent(piece, &is_free)) {
        return code;
      }
      if (!is_free) break;
      out_.FreeOldest();
      traffic.has_moved = true;
    }
    return 0;
  }

  // Whether a message has left. May be asked again when it has.
  static int IsSent(Piece& piece, bool* is_sent) {
    int done = 0;
    const int code = Mpi()->test(&piece.request, &done, nullptr);
    *is_sent = code == 0 && done;
    return code;
  }

  // Whether everything has left the device, and MPI. What is in slots stays there until it is
  // read.
  int FinishSends(bool* is_done) {
    *is_done = sent_ == out_.taken();
    for (std::int64_t number = out_.freed(); *is_done && number < sent_; ++number) {
      if (out_[number].number >= 0) continue;
      if (const int code = IsSent(out_[number], is_done)) return code;
    }
    return 0;
  }

  std::int64_t largest_;
  std::unique_ptr<Slots> slots_;
  std::string description_;
  PinnedMemory for_out_;  // none where it lies in slots
  PinnedMemory for_in_;   // none where no messages come
  Ring out_;
  Ring in_;
  // These count pieces from the first that was ever taken.
  std::int64_t sent_ = 0;
  std::int64_t arrived_ = 0;
  std::int64_t exchange_ = 0;
  Stream to_host_;
  Stream to_device_;
  Event begin_;
  Event end_;
};

}  // namespace

std::unique_ptr<Transport> MakeStaging(Communicator& comm, const Devices&, std::string* why) {
  const std::int64_t largest =
      std::min(GetTransportOptions().chunk_bytes, GetOptions().max_chunk_bytes);
  std::string how;
  std::unique_ptr<Slots> slots = Slots::Make(comm, Ring::BytesFor(largest), &how);
  std::unique_ptr<Transport> made;
  *why = Attempt(comm, [&]() -> std::string {
    made = std::make_unique<Staging>(comm, largest, std::move(slots), how);
    return {};
  });
  if (!why->empty()) made = nullptr;
  return made;
}

}  // namespace pfftjax::gpu

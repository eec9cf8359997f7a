// Messages between two ranks: send, recv and sendrecv.
//
// A message of n elements travels in n / limit + 1 pieces, the last of which is shorter than the
// limit of one MPI call, and may be empty: so the receiver knows where a message ends that is
// shorter than its buffer.
#include "collectives/messages.h"

#include <array>
#include <atomic>
#include <cstring>
#include <stdexcept>
#include <string>

#include "base/copies.h"
#include "collectives/exchange.h"
#include "runtime/background.h"
#include "runtime/handlers.h"

namespace pfftjax {
namespace {

// The user's MPI_Status objects, by number. Python keeps them alive.
constexpr std::int64_t kMaxStatuses = 1 << 16;
constexpr std::int64_t kNoStatus = -1;
std::array<std::atomic<void*>, kMaxStatuses> statuses{};
std::atomic<std::int64_t> status_count{0};

// One direction of a message; by default nothing is sent or received.
struct Side {
  Side() = default;
  Side(const char* name, const Operand& x, std::int32_t shift, std::int32_t tag)
      : name(name),
        shift(shift),
        tag(tag),
        element(ElementOf(x.element_type())),
        count(CountOf(x)),
        data(x.untyped_data()) {}

  const char* name = "";
  std::int32_t shift = kShiftToNobody;
  std::int32_t tag = 0;
  Element element = Element::kBool;
  std::int64_t count = 0;
  const void* data = nullptr;

  bool IsNothing() const { return shift == kShiftToNobody; }
  // The rank, as MPI takes it.
  int Rank(const Communicator& comm) const {
    if (shift == kShiftToNobody) return Mpi()->proc_null;
    if (shift == kShiftToAnybody) return Mpi()->any_source;
    return RankAt(comm, shift);
  }
  // The rank, as the watch takes it: nobody has to come for a message to oneself.
  int Partner(const Communicator* comm) const {
    if (shift == kShiftToNobody || !comm) return kNobody;
    if (shift == kShiftToAnybody) return kAnybody;
    const int rank = Rank(*comm);
    return rank == comm->rank ? kNobody : rank;
  }
  std::int64_t Pieces() const { return IsNothing() ? 0 : count / ChunkElements(element) + 1; }
};

// Tells the watch what one piece of a message waits for.
class Waits {
 public:
  Waits(Progress& progress, Awaited piece) : progress_(progress), piece_(piece) { Tell(piece); }

  static void HalfEnded(void* waits, bool is_receive) {
    const Waits& self = *static_cast<const Waits*>(waits);
    self.Tell(self.piece_.Without(is_receive ? Awaited::kReceiveEnded : Awaited::kSendEnded));
  }

 private:
  void Tell(Awaited what) const { progress_.awaited.store(what, std::memory_order_release); }

  Progress& progress_;
  Awaited piece_;
};

// Where a message arrives. What it does not fill is that of the template, or zero without one.
struct Buffer {
  const Operand* y = nullptr;
  const void* recv_template = nullptr;
  std::int64_t status = kNoStatus;
  bool is_exact = true;  // a message that is shorter is an error

  void* data() const { return y ? y->untyped_data() : nullptr; }
};

// A call that sends `out` and receives `in`, one of which may be nothing.
class Exchanged {
 public:
  Exchanged(const CallSite& site, Communicator& comm, const Side& out, const Side& in)
      : site_(site), comm_(comm), out_(out), in_(in) {}

  ffi::Error Into(const Buffer& buffer) {
    if (!PointToPoint(comm_, out_.tag, in_.IsNothing() ? out_.tag : in_.tag, &channel_)) {
      return Failed(site_.operation, comm_,
                    "tag MPI.ANY_TAG on a communicator that pfftjax has no private duplicate of "
                    "would take other libraries' messages; give the tag, or call "
                    "pfftjax.collectives.duplicate(comm) once on all ranks of the communicator");
    }
    const bool is_to_itself = in_.IsNothing() && out_.Rank(comm_) == comm_.rank;
    ffi::Error error = is_to_itself ? SendToSelf() : MovePieces(buffer.data());
    if (error.failure()) return error;
    if (!in_.IsNothing() && arrived_.count != in_.count && buffer.is_exact) return TooShort();
    FillRest(buffer);
    return buffer.status == kNoStatus ? ffi::Error::Success() : WriteStatus(buffer.status);
  }

 private:
  // A copy travels in the background: this rank itself is to receive it, later.
  ffi::Error SendToSelf() {
    const std::int64_t size = out_.count * InfoOf(out_.element).bytes;
    auto pending = std::make_shared<Pending>(site_.comm, 0, static_cast<std::size_t>(size), 0);
    std::memcpy(pending->outgoing.data(), out_.data, static_cast<std::size_t>(size));
    const int code = pending->PostPieces(channel_.comm, comm_.rank, channel_.send_tag, size,
                                         ChunkElements(out_.element) * InfoOf(out_.element).bytes);
    if (code != 0) return MpiFailed(site_.operation, comm_, out_.element, out_.count, code);
    Detach(std::move(pending));
    return ffi::Error::Success();
  }

  ffi::Error MovePieces(void* recv) {
    const std::int64_t send_limit = ChunkElements(out_.element);
    const std::int64_t recv_limit = ChunkElements(in_.element);
    const std::int64_t sends = out_.Pieces();
    std::int64_t recvs = in_.Pieces();
    int source = in_.Rank(comm_);
    int recv_tag = channel_.recv_tag;
    for (std::int64_t i = 0; i < std::max(sends, recvs); ++i) {
      const bool sending = i < sends;
      const bool receiving = i < recvs;
      const std::int64_t sent = sending ? std::min(send_limit, out_.count - i * send_limit) : 0;
      const std::int64_t room = receiving ? std::min(recv_limit, in_.count - i * recv_limit) : 0;
      Envelope piece;
      Waits waits{comm_.progress, Awaited::Piece(i, sending, receiving)};
      const int code =
          Mpi()->sendrecv(At(out_.data, sending ? i * send_limit : 0, out_.element), sent,
                          out_.element, sending ? out_.Rank(comm_) : Mpi()->proc_null,
                          channel_.send_tag, At(recv, receiving ? i * recv_limit : 0, in_.element),
                          room, in_.element, receiving ? source : Mpi()->proc_null, recv_tag,
                          channel_.comm, &piece, {Waits::HalfEnded, &waits});
      if (code != 0) return FailureOf(code, receiving);
      if (!receiving) continue;
      if (piece.count < 0) {
        return Failed(site_.operation, comm_,
                      "rank " + std::to_string(piece.source) +
                          " sent bytes that are no whole number of " + InfoOf(in_.element).name +
                          " elements; give " + in_.name + " the dtype that is sent");
      }
      // The other pieces come from the one whose message this is.
      source = piece.source;
      recv_tag = piece.tag;
      arrived_ = {piece.source, piece.tag, arrived_.count + piece.count};
      if (piece.count < recv_limit) recvs = i + 1;
    }
    return ffi::Error::Success();
  }

  ffi::Error FailureOf(int code, bool receiving) const {
    const std::string remedy = std::string("; if the message is longer than the ") +
                               std::to_string(in_.count) + " " + InfoOf(in_.element).name +
                               " elements of " + in_.name + ", give " + in_.name +
                               " the shape that is sent (under jax.vmap: with its batch)";
    return Failed(site_.operation, comm_, ReasonOf(code, comm_) + (receiving ? remedy : ""));
  }

  ffi::Error TooShort() const {
    return Failed(site_.operation, comm_,
                  "rank " + std::to_string(arrived_.source) + " sent " +
                      std::to_string(arrived_.count) + " elements where " + in_.name + " has " +
                      std::to_string(in_.count) + " " + InfoOf(in_.element).name + "; give " +
                      in_.name +
                      " the shape that is sent (a shorter message is possible by status=, outside "
                      "of jax.vmap and of derivatives)");
  }

  void FillRest(const Buffer& buffer) const {
    if (!buffer.y || arrived_.count >= in_.count) return;
    char* const rest = At(buffer.data(), arrived_.count, in_.element);
    const std::int64_t size = (in_.count - arrived_.count) * InfoOf(in_.element).bytes;
    if (buffer.recv_template) {
      std::memcpy(rest, At(buffer.recv_template, arrived_.count, in_.element),
                  static_cast<std::size_t>(size));
    } else {
      Clear(rest, static_cast<std::size_t>(size));
    }
  }

  ffi::Error WriteStatus(std::int64_t status) const {
    void* const address =
        status < kMaxStatuses ? statuses[status].load(std::memory_order_acquire) : nullptr;
    if (!address) {
      return Failed(site_.operation, comm_,
                    "this process has not made the MPI.Status that the program writes to; "
                    "programs from jax.export cannot have one");
    }
    Envelope all = arrived_;
    if (channel_.comm == comm_.user && all.tag >= 0) all.tag -= channel_.tag_base;
    Mpi()->write_status(address, all, in_.element);
    return ffi::Error::Success();
  }

  const CallSite& site_;
  Communicator& comm_;
  const Side& out_;
  const Side& in_;
  Channel channel_;
  Envelope arrived_{Mpi()->proc_null, Mpi()->any_tag, 0};  // what MPI says where nobody sends
};

ffi::Error Exchange(const CallSite& site, const Side& out, const Side& in, const Buffer& buffer) {
  if (buffer.y) PrepareToWrite(buffer.data(), buffer.y->size_bytes());
  const Communicator* registered = FindCommunicator(site.comm);
  const Side& one = out.IsNothing() ? in : out;
  const Payload payload{
      one.element, one.count, {}, 0, in.Partner(registered), out.Partner(registered),
      out.tag,     in.tag};
  return Run(site, payload,
             [&](Communicator& comm) { return Exchanged(site, comm, out, in).Into(buffer); });
}

ffi::Error Sendrecv(const CallSite& site, std::int32_t source, std::int32_t dest,
                    std::int32_t send_tag, std::int32_t recv_tag, Operand x, Token, Result y,
                    TokenResult) {
  return Exchange(site, {"sendbuf", x, dest, send_tag}, {"recvbuf", *y, source, recv_tag}, {&*y});
}

// The status takes messages that are shorter than the buffer: the rest is the template's.
ffi::Error SendrecvStatus(const CallSite& site, std::int32_t source, std::int32_t dest,
                          std::int32_t send_tag, std::int32_t recv_tag, std::int64_t status,
                          bool exact, Operand x, Operand recv_template, Token, Result y,
                          TokenResult) {
  return Exchange(site, {"sendbuf", x, dest, send_tag},
                  {"recvbuf", recv_template, source, recv_tag},
                  {&*y, recv_template.untyped_data(), status, exact});
}

// A sendrecv that all ranks of the communicator make, those without a partner too: by exchanges
// between pairs, as a GPU makes them. Where nothing arrives the result is zero.
ffi::Error SendrecvAll(const CallSite& site, std::int32_t source, std::int32_t dest, Operand x,
                       Token, Result y, TokenResult) {
  PrepareToWrite(y->untyped_data(), y->size_bytes());
  return RunOn(site, x, {}, 0, [&](Communicator& comm, Element element) {
    const Partners mine(comm, source, dest, CountOf(*y), CountOf(x));
    if (ffi::Error error = CheckPartners(site.operation, comm, mine); error.failure())
      return error;
    if (mine.source == kNobody) Clear(y->untyped_data(), y->size_bytes());
    const int code = ExchangeBlocks(comm, x.untyped_data(), y->untyped_data(), mine, element);
    return code == 0 ? ffi::Error::Success()
                     : MpiFailed(site.operation, comm, element, CountOf(x), code);
  });
}

ffi::Error Send(const CallSite& site, std::int32_t dest, std::int32_t tag, Operand x, Token,
                TokenResult) {
  return Exchange(site, {"x", x, dest, tag}, {}, {});
}

ffi::Error Recv(const CallSite& site, std::int32_t source, std::int32_t tag, std::int64_t status,
                bool exact, Operand recv_template, Token, Result y, TokenResult) {
  return Exchange(site, {}, {"x", recv_template, source, tag},
                  {&*y, recv_template.untyped_data(), status, exact});
}

}  // namespace

std::int64_t AddStatus(void* address) {
  const std::int64_t number = status_count.fetch_add(1);
  if (number >= kMaxStatuses) {
    throw std::runtime_error("more than " + std::to_string(kMaxStatuses) +
                             " MPI.Status objects in compiled programs; make them once and reuse "
                             "them");
  }
  statuses[number].store(address, std::memory_order_release);
  return number;
}

std::vector<Registration> MessageHandlers() {
  return {
      SiteHandler<Operation::kSendrecv, Sendrecv>("pfftjax_sendrecv", "source", "dest", "sendtag",
                                                  "recvtag"),
      SiteHandler<Operation::kSendrecvAll, SendrecvAll>("pfftjax_sendrecv_all", "source", "dest"),
      SiteHandler<Operation::kSendrecv, SendrecvStatus>(
          "pfftjax_sendrecv_status", "source", "dest", "sendtag", "recvtag", "status", "exact"),
      SiteHandler<Operation::kSend, Send>("pfftjax_send", "dest", "tag"),
      SiteHandler<Operation::kRecv, Recv>("pfftjax_recv", "source", "tag", "status", "exact")};
}

}  // namespace pfftjax

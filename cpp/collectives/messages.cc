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

// Sends `out` and receives `in`, one of which may be nothing, into `y`. Where nothing arrives the
// result is that of the template, or zero without one. Unless `is_exact`, a message may be shorter
// than its buffer.
ffi::Error Exchange(const CallSite& site, const Side& out, const Side& in, const Operand* y,
                    const void* recv_template = nullptr, std::int64_t status = kNoStatus,
                    bool is_exact = true) {
  void* const recv = y ? y->untyped_data() : nullptr;
  if (y) PrepareToWrite(recv, y->size_bytes());
  const Communicator* registered = FindCommunicator(site.comm);
  const Payload payload{out.IsNothing() ? in.element : out.element,
                        out.IsNothing() ? in.count : out.count,
                        {},
                        0,
                        in.Partner(registered),
                        out.Partner(registered),
                        out.tag,
                        in.tag};
  return Run(site, payload, [&](Communicator& comm) {
    Channel channel;
    if (!PointToPoint(comm, out.tag, in.IsNothing() ? out.tag : in.tag, &channel)) {
      return Failed(site.operation, comm,
                    "tag MPI.ANY_TAG on a communicator that pfftjax has no private duplicate of "
                    "would take other libraries' messages; give the tag, or call "
                    "pfftjax.collectives.duplicate(comm) once on all ranks of the communicator");
    }
    if (in.IsNothing() && out.Rank(comm) == comm.rank) {
      // A copy travels in the background: this rank itself is to receive it, later.
      const std::int64_t size = out.count * InfoOf(out.element).bytes;
      auto pending = std::make_shared<Pending>(site.comm, 0, static_cast<std::size_t>(size), 0);
      std::memcpy(pending->outgoing.data(), out.data, static_cast<std::size_t>(size));
      const int code = pending->PostPieces(channel.comm, comm.rank, channel.send_tag, size,
                                           ChunkElements(out.element) * InfoOf(out.element).bytes);
      if (code != 0) return MpiFailed(site.operation, comm, out.element, out.count, code);
      Detach(std::move(pending));
      return ffi::Error::Success();
    }
    const std::int64_t bytes = InfoOf(in.element).bytes;
    const std::int64_t send_limit = ChunkElements(out.element);
    const std::int64_t recv_limit = ChunkElements(in.element);
    const std::int64_t sends = out.Pieces();
    std::int64_t recvs = in.Pieces();
    int source = in.Rank(comm);
    int recv_tag = channel.recv_tag;
    Envelope all{Mpi()->proc_null, Mpi()->any_tag, 0};  // what MPI says of a receive from nobody
    for (std::int64_t i = 0; i < std::max(sends, recvs); ++i) {
      const bool sending = i < sends;
      const bool receiving = i < recvs;
      const std::int64_t sent = sending ? std::min(send_limit, out.count - i * send_limit) : 0;
      const std::int64_t room = receiving ? std::min(recv_limit, in.count - i * recv_limit) : 0;
      Envelope arrived;
      Waits waits{comm.progress, Awaited::Piece(i, sending, receiving)};
      const int code =
          Mpi()->sendrecv(At(out.data, sending ? i * send_limit : 0, out.element), sent,
                          out.element, sending ? out.Rank(comm) : Mpi()->proc_null,
                          channel.send_tag, At(recv, receiving ? i * recv_limit : 0, in.element),
                          room, in.element, receiving ? source : Mpi()->proc_null, recv_tag,
                          channel.comm, &arrived, {Waits::HalfEnded, &waits});
      if (code != 0) {
        return Failed(
            site.operation, comm,
            ReasonOf(code, comm) +
                (receiving ? std::string("; if the message is longer than the ") +
                                 std::to_string(in.count) + " " + InfoOf(in.element).name +
                                 " elements of " + in.name + ", give " + in.name +
                                 " the shape that is sent (under jax.vmap: with its batch)"
                           : std::string()));
      }
      if (!receiving) continue;
      if (arrived.count < 0) {
        return Failed(site.operation, comm,
                      "rank " + std::to_string(arrived.source) +
                          " sent bytes that are no whole number of " + InfoOf(in.element).name +
                          " elements; give " + in.name + " the dtype that is sent");
      }
      // The other pieces come from the one whose message this is.
      source = arrived.source;
      recv_tag = arrived.tag;
      all = {arrived.source, arrived.tag, all.count + arrived.count};
      if (arrived.count < recv_limit) recvs = i + 1;
    }
    if (!in.IsNothing() && all.count != in.count && is_exact) {
      return Failed(
          site.operation, comm,
          "rank " + std::to_string(all.source) + " sent " + std::to_string(all.count) +
              " elements where " + in.name + " has " + std::to_string(in.count) + " " +
              InfoOf(in.element).name + "; give " + in.name +
              " the shape that is sent (a shorter message is possible by status=, outside of "
              "jax.vmap and of derivatives)");
    }
    if (recv && all.count < in.count) {
      char* rest = At(recv, all.count, in.element);
      const auto size = static_cast<std::size_t>((in.count - all.count) * bytes);
      if (recv_template) {
        std::memcpy(rest, At(recv_template, all.count, in.element), size);
      } else {
        std::memset(rest, 0, size);
      }
    }
    if (status != kNoStatus) {
      void* address =
          status < kMaxStatuses ? statuses[status].load(std::memory_order_acquire) : nullptr;
      if (!address) {
        return Failed(site.operation, comm,
                      "this process has not made the MPI.Status that the program writes to; "
                      "programs from jax.export cannot have one");
      }
      if (channel.comm == comm.user && all.tag >= 0) all.tag -= channel.tag_base;
      Mpi()->write_status(address, all, in.element);
    }
    return ffi::Error::Success();
  });
}

ffi::Error Sendrecv(const CallSite& site, std::int32_t source, std::int32_t dest,
                    std::int32_t send_tag, std::int32_t recv_tag, Operand x, Token, Result y,
                    TokenResult) {
  return Exchange(site, {"sendbuf", x, dest, send_tag}, {"recvbuf", *y, source, recv_tag}, &*y);
}

// The status takes messages that are shorter than the buffer: the rest is the template's.
ffi::Error SendrecvStatus(const CallSite& site, std::int32_t source, std::int32_t dest,
                          std::int32_t send_tag, std::int32_t recv_tag, std::int64_t status,
                          bool exact, Operand x, Operand recv_template, Token, Result y,
                          TokenResult) {
  return Exchange(site, {"sendbuf", x, dest, send_tag},
                  {"recvbuf", recv_template, source, recv_tag}, &*y, recv_template.untyped_data(),
                  status, exact);
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
  return Exchange(site, {"x", x, dest, tag}, {}, nullptr);
}

ffi::Error Recv(const CallSite& site, std::int32_t source, std::int32_t tag, std::int64_t status,
                bool exact, Operand recv_template, Token, Result y, TokenResult) {
  return Exchange(site, {}, {"x", recv_template, source, tag}, &*y, recv_template.untyped_data(),
                  status, exact);
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

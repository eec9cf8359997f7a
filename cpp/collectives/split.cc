// Exchanges that are started, and waited for later.
//
// start copies the operand aside, posts all messages and returns a ticket; wait copies out what
// has arrived. XLA may move or reuse a buffer as soon as the call that it was passed to returns,
// so messages are sent from, and received into, memory of our own; a ticket is a number, which XLA
// may copy freely.
#include <cstring>
#include <memory>
#include <stdexcept>
#include <string>

#include "runtime/background.h"
#include "runtime/handlers.h"

namespace pfftjax {
namespace {

// Returns what start and wait of an exchange must agree on.
std::int64_t About(Element element, std::int64_t block, bool is_same_for_all) {
  return (2 * block + is_same_for_all) * static_cast<std::int64_t>(kElements.size()) +
         static_cast<std::int64_t>(element);
}

std::string Manner(bool is_same_for_all) {
  return Detail{-1, -1, is_same_for_all ? " of an allgather" : " of an alltoall"}.Say();
}

using Ticket = ffi::Buffer<ffi::U32>;  // the two halves of a number

// same_for_all: an allgather, else an alltoall.
ffi::Error Start(const CallSite& site, bool same_for_all, Operand x, Token,
                 ffi::Result<Ticket> ticket, TokenResult) {
  return RunOn(
      site, x, Manner(same_for_all), same_for_all, [&](Communicator& comm, Element element) {
        const std::int64_t all = BytesOf(x);
        const std::int64_t block = same_for_all ? all : all / comm.size;
        auto pending =
            std::make_shared<Pending>(site.comm, About(element, block, same_for_all),
                                      x.size_bytes(), static_cast<std::size_t>(block * comm.size));
        std::memcpy(pending->outgoing.data(), x.untyped_data(), x.size_bytes());
        if (const int code = pending->Post(comm, block, same_for_all)) return code;
        const auto value = static_cast<std::uint64_t>(Add(std::move(pending)));
        ticket->typed_data()[0] = static_cast<std::uint32_t>(value);
        ticket->typed_data()[1] = static_cast<std::uint32_t>(value >> 32);
        return 0;
      });
}

ffi::Error Wait(const CallSite& site, bool same_for_all, Operand x, Ticket ticket, Token, Result y,
                TokenResult) {
  PrepareToWrite(y->untyped_data(), y->size_bytes());
  return RunOn(
      site, x, Manner(same_for_all), same_for_all, [&](Communicator& comm, Element element) {
        const std::uint64_t value =
            ticket.typed_data()[0] | (std::uint64_t{ticket.typed_data()[1]} << 32);
        const std::int64_t all = BytesOf(x);
        const std::int64_t block = same_for_all ? all : all / comm.size;
        const auto pending =
            Take(static_cast<std::int64_t>(value), site.comm, About(element, block, same_for_all));
        if (!pending) {
          throw std::runtime_error(
              "this exchange has been waited for already, or was not started in this way; wait "
              "once for each start");
        }
        while (!pending->Test()) process::Yield();
        if (const int code = pending->code()) return code;
        auto* to = static_cast<char*>(y->untyped_data());
        const char* kept = pending->outgoing.data() + (same_for_all ? 0 : comm.rank * block);
        std::memcpy(to + comm.rank * block, kept, static_cast<std::size_t>(block));
        const char* from = pending->incoming.data();
        const std::int64_t before = comm.rank * block;
        const std::int64_t after = before + block;
        std::memcpy(to, from, static_cast<std::size_t>(before));
        std::memcpy(to + after, from + after, static_cast<std::size_t>(comm.size * block - after));
        return 0;
      });
}

}  // namespace

std::vector<Registration> SplitHandlers() {
  return {SiteHandler<Operation::kStart, Start>("pfftjax_start", "same_for_all"),
          SiteHandler<Operation::kWait, Wait>("pfftjax_wait", "same_for_all")};
}

}  // namespace pfftjax

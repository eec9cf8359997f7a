// alltoallv and allgatherv on GPUs. The counts lie on the device, too, and decide what is sent:
// the host waits for them, and then for nothing more.
#include <array>
#include <cstring>

#include "collectives/rows.h"
#include "gpu/context.h"
#include "gpu/gpu_handlers.h"
#include "gpu/mirror.h"
#include "gpu/transport.h"

namespace pfftjax::gpu {
namespace {

using Counts = ffi::Buffer<ffi::S32>;

// Both, on the host.
std::array<std::vector<std::int32_t>, 2> OnHost(Queue& queue, const Communicator& comm,
                                                const Counts& first, const Counts& second) {
  std::array<std::vector<std::int32_t>, 2> result;
  const std::array<const Counts*, 2> buffers{&first, &second};
  Mirror mirror(static_cast<std::int64_t>(first.size_bytes() + second.size_bytes()));
  char* at = mirror.data();
  for (const Counts* buffer : buffers) {
    const auto bytes = static_cast<std::int64_t>(buffer->size_bytes());
    queue.Copy(at, buffer->untyped_data(), bytes, Direction::kToHost);
    at += bytes;
  }
  queue.Synchronize(comm.control);
  at = mirror.data();
  for (std::size_t i = 0; i < buffers.size(); ++i) {
    result[i].resize(buffers[i]->element_count());
    std::memcpy(result[i].data(), at, buffers[i]->size_bytes());
    at += buffers[i]->size_bytes();
  }
  mirror.GiveBack();
  return result;
}

// `outgoing`: rows for each rank, one after the other; or (kSame) the first rows, for all.
template <bool kSame>
ffi::Error MoveRows(const CallSite& site, Queue queue, Operand x, Counts outgoing, Counts incoming,
                    Token, Result y, TokenResult) {
  const auto move = [&](Communicator& comm, Element element, std::int64_t width) {
    const auto [leave, arrive] = OnHost(queue, comm, outgoing, incoming);
    const auto size = static_cast<std::size_t>(comm.size);
    if (leave.size() != (kSame ? 1 : size) || arrive.size() != size) {
      return RowsDoNotFit(site.operation, comm);
    }
    const auto blocks = RaggedBlocks::Make<kSame>(comm.size, leave.data(), arrive.data(), width);
    if (!blocks.Fit(x, *y)) return RowsDoNotFit(site.operation, comm);
    comm.given_bytes = blocks.sent * InfoOf(element).bytes;
    const int code =
        ExchangeBlocks(comm, x.untyped_data(), y->untyped_data(), blocks, element, queue);
    if (code != 0) return MpiFailed(site.operation, comm, element, blocks.sent, code);
    const std::int64_t filled = blocks.received * InfoOf(element).bytes;
    queue.Clear(static_cast<char*>(y->untyped_data()) + filled, BytesOf(*y) - filled);
    return ffi::Error::Success();
  };
  return RunOnRows(site, x, move);
}

}  // namespace

std::vector<Registration> RowHandlers() {
  return {SiteHandler<Operation::kAlltoallv, MoveRows<false>>("pfftjax_alltoallv").OnDevice(),
          SiteHandler<Operation::kAllgatherv, MoveRows<true>>("pfftjax_allgatherv").OnDevice()};
}

}  // namespace pfftjax::gpu

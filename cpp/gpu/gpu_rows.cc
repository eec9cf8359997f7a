// alltoallv and allgatherv on GPUs. The counts lie on the device, too, and decide what is sent:
// the host waits for them, and then for nothing more.
#include "collectives/rows.h"
#include "gpu/context.h"
#include "gpu/mirror.h"
#include "gpu/transport.h"

namespace pfftjax::gpu {
namespace {

using Counts = ffi::Buffer<ffi::S32>;

// `outgoing`: rows for each rank, one after the other; or (kSame) the first rows, for all.
template <bool kSame>
ffi::Error MoveRows(const CallSite& site, Queue queue, Operand x, Counts outgoing, Counts incoming,
                    Token, Result y, TokenResult) {
  const auto move = [&](Communicator& comm, Element element, std::int64_t width) {
    const auto size = static_cast<std::size_t>(comm.size);
    if (outgoing.element_count() != (kSame ? 1 : size) || incoming.element_count() != size) {
      return RowsDoNotFit(site.operation, comm);
    }
    const auto outgoing_bytes = static_cast<std::int64_t>(outgoing.size_bytes());
    const auto incoming_bytes = static_cast<std::int64_t>(incoming.size_bytes());
    Mirror mirror(outgoing_bytes + incoming_bytes);
    auto* const leaving = reinterpret_cast<std::int32_t*>(mirror.data());
    std::int32_t* const arriving = leaving + outgoing.element_count();
    queue.Copy(leaving, outgoing.untyped_data(), outgoing_bytes, Direction::kToHost);
    queue.Copy(arriving, incoming.untyped_data(), incoming_bytes, Direction::kToHost);
    queue.Synchronize(comm.control);
    const auto blocks = RaggedBlocks::Make<kSame>(comm.size, leaving, arriving, width);
    mirror.GiveBack();
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
  return {DeviceHandler<Operation::kAlltoallv, MoveRows<false>>("pfftjax_alltoallv"),
          DeviceHandler<Operation::kAllgatherv, MoveRows<true>>("pfftjax_allgatherv")};
}

}  // namespace pfftjax::gpu

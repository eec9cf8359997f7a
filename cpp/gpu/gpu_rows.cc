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

std::vector<Block> InBytes(std::vector<Block> blocks, Element element) {
  for (Block& block : blocks) {
    block.offset *= InfoOf(element).bytes;
    block.count *= InfoOf(element).bytes;
  }
  return blocks;
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
    auto [to, sent] = BlocksTo<kSame>(comm.size, leave.data(), width);
    const auto [from, received] = Blocks(comm.size, arrive.data(), width);
    if (!RowsFit(x, sent, y, received)) return RowsDoNotFit(site.operation, comm);
    comm.given_bytes = sent * InfoOf(element).bytes;
    const int code = ExchangeBytes(comm, x.untyped_data(), InBytes(std::move(to), element),
                                   y->untyped_data(), InBytes(from, element), queue);
    if (code != 0) return MpiFailed(site.operation, comm, element, sent, code);
    const std::int64_t filled = received * InfoOf(element).bytes;
    queue.Clear(static_cast<char*>(y->untyped_data()) + filled,
                static_cast<std::int64_t>(y->size_bytes()) - filled);
    return ffi::Error::Success();
  };
  return RunOnRows(site, x, move);
}

XLA_FFI_DEFINE_HANDLER(kAlltoallv, (WithSite<Operation::kAlltoallv, MoveRows<false>>),
                       BindRaggedRows(BindSite().Ctx<Queue>()));
XLA_FFI_DEFINE_HANDLER(kAllgatherv, (WithSite<Operation::kAllgatherv, MoveRows<true>>),
                       BindRaggedRows(BindSite().Ctx<Queue>()));

}  // namespace

std::vector<Registration> RowHandlers() {
  return {{"pfftjax_alltoallv", nullptr, reinterpret_cast<void*>(kAlltoallv)},
          {"pfftjax_allgatherv", nullptr, reinterpret_cast<void*>(kAllgatherv)}};
}

}  // namespace pfftjax::gpu

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
ffi::Error MoveRows(Queue queue, std::int64_t number, std::int64_t ranks, std::int64_t signature,
                    std::string_view program, Operand x, Counts outgoing, Counts incoming, Token,
                    Result y, TokenResult) {
  constexpr Operation operation = kSame ? Operation::kAllgatherv : Operation::kAlltoallv;
  const std::optional<Element> element = ElementOf(x.element_type());
  if (!element) return BadElement(operation, x.element_type());
  const CallSite site{operation, number, ranks, signature, program};
  const std::int64_t width = ElementsInARow(x);
  return Run(site, Payload{*element, width}, [&](Communicator& comm) {
    const auto [leave, arrive] = OnHost(queue, comm, outgoing, incoming);
    const auto size = static_cast<std::size_t>(comm.size);
    if (leave.size() != (kSame ? 1 : size) || arrive.size() != size) {
      return RowsDoNotFit(operation, comm);
    }
    const auto [from, received] = Blocks(comm, arrive.data(), width);
    auto [to, sent] =
        kSame ? std::pair(std::vector<Block>(size, {0, leave[0] * width}), leave[0] * width)
              : Blocks(comm, leave.data(), width);
    if (!RowsFit(x, sent, y, received)) return RowsDoNotFit(operation, comm);
    const int code = ExchangeBytes(comm, x.untyped_data(), InBytes(std::move(to), *element),
                                   y->untyped_data(), InBytes(from, *element), queue);
    if (code != 0) return MpiFailed(operation, comm, *element, sent, code);
    const std::int64_t filled = received * InfoOf(*element).bytes;
    queue.Clear(static_cast<char*>(y->untyped_data()) + filled,
                static_cast<std::int64_t>(y->size_bytes()) - filled);
    return ffi::Error::Success();
  });
}

XLA_FFI_DEFINE_HANDLER(kAlltoallv, MoveRows<false>,
                       BindRaggedRows(BindSite(ffi::Ffi::Bind().Ctx<Queue>())));
XLA_FFI_DEFINE_HANDLER(kAllgatherv, MoveRows<true>,
                       BindRaggedRows(BindSite(ffi::Ffi::Bind().Ctx<Queue>())));

}  // namespace

std::vector<Registration> RowHandlers() {
  return {{"pfftjax_alltoallv", nullptr, reinterpret_cast<void*>(kAlltoallv)},
          {"pfftjax_allgatherv", nullptr, reinterpret_cast<void*>(kAllgatherv)}};
}

}  // namespace pfftjax::gpu

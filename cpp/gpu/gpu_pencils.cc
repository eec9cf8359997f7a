// Between pencils on GPUs: the transposition, the halo and its adjoint.
#include "gpu/beside.h"
#include "gpu/boxes.h"
#include "gpu/context.h"
#include "gpu/gpu_handlers.h"
#include "pencils/pencils.h"
#include "pencils/redistribute.h"

namespace pfftjax::gpu {
namespace {

ffi::Error Transpose(const CallSite& site, Queue queue, Dimensions order, std::int64_t scatter,
                     std::int64_t gather, std::int64_t method, Operand x, Token, Result y,
                     TokenResult) {
  return RunTranspose(site, order, scatter, gather, method, x, y->dimensions(),
                      [&](Communicator& comm, const Transposition& boxes, Element element) {
                        const auto by = static_cast<Method>(method);
                        if (by == Method::kFused || by == Method::kShared) {
                          throw std::runtime_error(
                              "its method of exchange goes through memory that CPUs share; "
                              "between GPUs take ExchangeMethod.AUTOMATIC, MESSAGES or ALLTOALL");
                        }
                        if (boxes.MostElements() == 0) return 0;  // on all ranks
                        return ExchangeBoxes(comm, x.untyped_data(), y->untyped_data(), boxes,
                                             element, Arrival::kStore, queue);
                      });
}

using Bytes = ffi::Buffer<ffi::U8>;  // packed boxes
using BytesResult = ffi::Result<Bytes>;

// The shape of this rank's block after a transposition; none where there is no such communicator,
// or no such transposition, which RunTranspose says.
std::vector<std::int64_t> ShapeAfter(std::int64_t number, Dimensions from, Dimensions order,
                                     std::int64_t scatter, std::int64_t gather,
                                     std::int64_t whole) {
  const Communicator* comm = FindCommunicator(number);
  if (!comm || !IsOrder(order, from.size())) return {};
  std::vector<std::int64_t> to;
  for (const std::int64_t d : order) {
    to.push_back(d == scatter ? BlockOf(from[d], *comm).count : d == gather ? whole : from[d]);
  }
  return to;
}

Halves HalvesOf(const Operand& x, void* packed, std::size_t packed_bytes, void* received,
                std::size_t received_bytes) {
  return {x.untyped_data(), packed, static_cast<std::int64_t>(packed_bytes), received,
          static_cast<std::int64_t>(received_bytes)};
}

ffi::Error TransposeStart(const CallSite& site, Queue queue, Dimensions order,
                          std::int64_t scatter, std::int64_t gather, std::int64_t whole,
                          std::int64_t index, Operand x, Token, BytesResult packed,
                          BytesResult received, TokenResult) {
  const auto to = ShapeAfter(site.comm, x.dimensions(), order, scatter, gather, whole);
  return RunTranspose(site, order, scatter, gather, index, x, Dimensions(to.data(), to.size()),
                      [&](Communicator& comm, const Transposition& boxes, Element element) {
                        if (boxes.MostElements() == 0) return 0;  // on all ranks
                        const Halves halves =
                            HalvesOf(x, packed->untyped_data(), packed->size_bytes(),
                                     received->untyped_data(), received->size_bytes());
                        return StartTranspose(comm, index, halves, boxes, element, queue);
                      });
}

ffi::Error TransposeWait(const CallSite& site, Queue queue, Dimensions order, std::int64_t scatter,
                         std::int64_t gather, std::int64_t, std::int64_t index, Operand x,
                         Bytes packed, Bytes received, ffi::RemainingArgs, Result y, TokenResult) {
  return RunTranspose(
      site, order, scatter, gather, index, x, y->dimensions(),
      [&](Communicator& comm, const Transposition& boxes, Element element) {
        if (boxes.MostElements() == 0) return 0;
        const Halves halves = HalvesOf(x, packed.untyped_data(), packed.size_bytes(),
                                       received.untyped_data(), received.size_bytes());
        return WaitForTranspose(comm, index, halves, y->untyped_data(), boxes, element, queue);
      });
}

template <bool kToGhosts>
ffi::Error MoveHalo(const CallSite& site, Queue queue, std::int64_t axis, std::int64_t whole,
                    std::int64_t before, std::int64_t after, bool periodic, Operand x, Token,
                    Result y, TokenResult) {
  const Halo halo{axis, whole, before, after, periodic};
  return RunHalo<kToGhosts>(
      site, halo, x, y, [&](Communicator& comm, const HaloBoxes& boxes, Element element) {
        if (StartsFromZeros<kToGhosts>(halo)) {
          queue.Clear(y->untyped_data(), static_cast<std::int64_t>(y->size_bytes()));
        }
        return ExchangeBoxes(comm, x.untyped_data(), y->untyped_data(), boxes, element,
                             kToGhosts ? Arrival::kStore : Arrival::kAdd, queue);
      });
}

auto Site() { return BindSite().Ctx<Queue>(); }

// The attributes of both halves of a transposition. `index` counts the chunks of a pipeline.
auto BindHalf() {
  return Site()
      .Attr<Dimensions>("order")
      .Attr<std::int64_t>("scatter")
      .Attr<std::int64_t>("gather")
      .Attr<std::int64_t>("whole")
      .Attr<std::int64_t>("index");
}

XLA_FFI_DEFINE_HANDLER(kTranspose, (WithSite<Operation::kTranspose, Transpose>),
                       BindTranspose(Site()));
// x -> what leaves this rank, packed, and memory for what arrives.
XLA_FFI_DEFINE_HANDLER(kTransposeStart, (WithSite<Operation::kTransposeStart, TransposeStart>),
                       BindHalf()
                           .Arg<ffi::AnyBuffer>()
                           .Arg<ffi::Token>()
                           .Ret<Bytes>()
                           .Ret<Bytes>()
                           .Ret<ffi::Token>());
// x and the results of its start, and whatever is to be computed before; then the token.
XLA_FFI_DEFINE_HANDLER(kTransposeWait, (WithSite<Operation::kTransposeWait, TransposeWait>),
                       BindHalf()
                           .Arg<ffi::AnyBuffer>()
                           .Arg<Bytes>()
                           .Arg<Bytes>()
                           .RemainingArgs()
                           .Ret<ffi::AnyBuffer>()
                           .Ret<ffi::Token>());
XLA_FFI_DEFINE_HANDLER(kHaloExchange, (WithSite<Operation::kHaloExchange, MoveHalo<true>>),
                       BindHalo(Site()));
XLA_FFI_DEFINE_HANDLER(kHaloReduce, (WithSite<Operation::kHaloReduce, MoveHalo<false>>),
                       BindHalo(Site()));

}  // namespace

std::vector<Registration> PencilHandlers() {
  return {{"pfftjax_pencil_transpose", nullptr, reinterpret_cast<void*>(kTranspose)},
          {"pfftjax_transpose_start", nullptr, reinterpret_cast<void*>(kTransposeStart)},
          {"pfftjax_transpose_wait", nullptr, reinterpret_cast<void*>(kTransposeWait)},
          {"pfftjax_halo_exchange", nullptr, reinterpret_cast<void*>(kHaloExchange)},
          {"pfftjax_halo_reduce", nullptr, reinterpret_cast<void*>(kHaloReduce)}};
}

}  // namespace pfftjax::gpu

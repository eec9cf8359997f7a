// The handlers for GPUs between pencils: the transposition, the halo and its adjoint.
#include "gpu/beside.h"
#include "gpu/boxes.h"
#include "gpu/context.h"
#include "pencils/pencils.h"
#include "pencils/redistribute.h"

namespace pfftjax::gpu {
namespace {

ffi::Error Transpose(const CallSite& site, Queue queue, Dimensions order, std::int64_t scatter,
                     std::int64_t gather, std::int64_t method, Operand x, Token, Result y,
                     TokenResult) {
  return RunTranspose(
      site, order, scatter, gather, method, x, y->dimensions(),
      [&](Communicator& comm, const Transposition& boxes, Element element) {
        const auto by = static_cast<Method>(method);
        if (by == Method::kFused || by == Method::kShared || by == Method::kHierarchical) {
          throw std::runtime_error(
              "its method of exchange goes through memory that CPUs share; "
              "between GPUs take ExchangeMethod.AUTOMATIC, MESSAGES or ALLTOALL");
        }
        if (boxes.MostElements() == 0) return 0;  // on all ranks
        return ExchangeBoxes(comm, x.untyped_data(), y->untyped_data(), boxes, element,
                             Arrival::kStore, queue);
      });
}

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

ffi::Error TransposeStart(const CallSite& site, Queue queue, Dimensions order,
                          std::int64_t scatter, std::int64_t gather, std::int64_t whole,
                          std::int64_t index, Operand x, Token, ffi::Result<Bytes> packed,
                          ffi::Result<Bytes> received, TokenResult) {
  const auto to = ShapeAfter(site.comm, x.dimensions(), order, scatter, gather, whole);
  return RunTranspose(site, order, scatter, gather, index, x, Dimensions(to.data(), to.size()),
                      [&](Communicator& comm, const Transposition& boxes, Element element) {
                        if (boxes.MostElements() == 0) return 0;  // on all ranks
                        const Halves halves{x.untyped_data(), *packed, *received};
                        Transport& transport =
                            TransportOf(comm);  // before anything is made on the device
                        return comm.Attached<Beside>().Start(comm, transport, index, halves, boxes,
                                                             element, queue);
                      });
}

ffi::Error TransposeWait(const CallSite& site, Queue queue, Dimensions order, std::int64_t scatter,
                         std::int64_t gather, std::int64_t, std::int64_t index, Operand x,
                         Bytes packed, Bytes received, ffi::RemainingArgs, Result y, TokenResult) {
  return RunTranspose(site, order, scatter, gather, index, x, y->dimensions(),
                      [&](Communicator& comm, const Transposition& boxes, Element element) {
                        if (boxes.MostElements() == 0) return 0;
                        const Halves halves{x.untyped_data(), packed, received};
                        Transport& transport = TransportOf(comm);
                        return comm.Attached<Beside>().Wait(comm, transport, index, halves,
                                                            y->untyped_data(), boxes, element,
                                                            queue);
                      });
}

template <bool kToGhosts>
ffi::Error MoveHalo(const CallSite& site, Queue queue, std::int64_t axis, std::int64_t whole,
                    std::int64_t before, std::int64_t after, bool periodic, Operand x, Token,
                    Result y, TokenResult) {
  const Halo halo{axis, whole, before, after, periodic};
  return RunHalo<kToGhosts>(
      site, halo, x, y, [&](Communicator& comm, const HaloBoxes& boxes, Element element) {
        if (LeavesGhosts<kToGhosts>(halo)) queue.Clear(y->untyped_data(), BytesOf(*y));
        return ExchangeBoxes(comm, x.untyped_data(), y->untyped_data(), boxes, element,
                             kToGhosts ? Arrival::kStore : Arrival::kSum, queue);
      });
}

}  // namespace

std::vector<Registration> PencilHandlers() {
  return {DeviceHandler<Operation::kTranspose, Transpose>("pfftjax_pencil_transpose", "order",
                                                          "scatter", "gather", "method"),
          DeviceHandler<Operation::kTransposeStart, TransposeStart>(
              "pfftjax_transpose_start", "order", "scatter", "gather", "whole", "index"),
          DeviceHandler<Operation::kTransposeWait, TransposeWait>(
              "pfftjax_transpose_wait", "order", "scatter", "gather", "whole", "index"),
          DeviceHandler<Operation::kHaloExchange, MoveHalo<true>>(
              "pfftjax_halo_exchange", "axis", "whole", "before", "after", "periodic"),
          DeviceHandler<Operation::kHaloReduce, MoveHalo<false>>(
              "pfftjax_halo_reduce", "axis", "whole", "before", "after", "periodic")};
}

}  // namespace pfftjax::gpu

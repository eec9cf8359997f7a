// The FFI handlers between pencils: the transposition, the halo and its adjoint, and where this
// rank stands in a row of the grid.
#include "pencils/pencils.h"

#include <cstring>
#include <string>

#include "base/copies.h"
#include "pencils/redistribute.h"
#include "runtime/profile.h"

namespace pfftjax {
namespace {

ffi::Error Transpose(const CallSite& site, Dimensions order, std::int64_t scatter,
                     std::int64_t gather, std::int64_t method, ffi::ThreadPool pool, Operand x,
                     Token, Result y, TokenResult) {
  PrepareToWrite(y->untyped_data(), y->size_bytes());
  return RunTranspose(site, order, scatter, gather, method, x, y->dimensions(),
                      [&](Communicator& comm, const Transposition& boxes, Element element) {
                        return Redistribute(pool, comm, static_cast<Method>(method),
                                            x.untyped_data(), y->untyped_data(), boxes, element);
                      });
}

// A transposition on one rank: a change of memory order, and no communication.
ffi::Error Permute(Dimensions order, ffi::ThreadPool pool, Operand x, Result y) {
  const Timed timed(Operation::kPermute, BytesOf(x));
  const Element element = ElementOf(x.element_type());
  if (!IsOrder(order, x.dimensions().size()) || order.size() != y->dimensions().size()) {
    return Invalid("permute of a wrong rank");
  }
  PrepareToWrite(y->untyped_data(), y->size_bytes());
  const Place alone;
  const Transposition boxes(alone, x.dimensions(), y->dimensions(), order, -1, -1);
  CopyOwn(pool, alone, x.untyped_data(), y->untyped_data(), boxes, element, Arrival::kStore);
  return ffi::Error::Success();
}

template <bool kToGhosts>
ffi::Error MoveHalo(const CallSite& site, std::int64_t axis, std::int64_t whole,
                    std::int64_t before, std::int64_t after, bool periodic, ffi::ThreadPool pool,
                    Operand x, Token, Result y, TokenResult) {
  const Halo halo{axis, whole, before, after, periodic};
  PrepareToWrite(y->untyped_data(), y->size_bytes());
  return RunHalo<kToGhosts>(
      site, halo, x, y, [&](Communicator& comm, const HaloBoxes& boxes, Element element) {
        if (LeavesGhosts<kToGhosts>(halo)) Clear(y->untyped_data(), y->size_bytes());
        return StreamBoxes(pool, comm, x.untyped_data(), y->untyped_data(), boxes, element,
                           kToGhosts ? Arrival::kStore : Arrival::kSum);
      });
}

// Read when the program runs, so that the program is the same on all ranks.
ffi::Error Coordinate(std::int64_t number, ffi::Result<ffi::BufferR0<ffi::S32>> coordinate) {
  const Communicator* comm = FindCommunicator(number);
  if (!comm) {
    return ffi::Error(ffi::ErrorCode::kFailedPrecondition,
                      "pfftjax: a coordinate on communicator number " + std::to_string(number) +
                          ", which this process has not made");
  }
  *coordinate->typed_data() = comm->rank;
  return ffi::Error::Success();
}

}  // namespace

std::vector<Registration> PencilHandlers() {
  return {SiteHandler<Operation::kTranspose, Transpose>("pfftjax_pencil_transpose", "order",
                                                        "scatter", "gather", "method"),
          Handler<Permute>("pfftjax_permute", "order").OnHost(),
          SiteHandler<Operation::kHaloExchange, MoveHalo<true>>(
              "pfftjax_halo_exchange", "axis", "whole", "before", "after", "periodic"),
          SiteHandler<Operation::kHaloReduce, MoveHalo<false>>(
              "pfftjax_halo_reduce", "axis", "whole", "before", "after", "periodic"),
          Handler<Coordinate>("pfftjax_coordinate", "comm").WithStaging()};
}

}  // namespace pfftjax

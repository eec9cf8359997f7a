// Handlers between pencils share this on all platforms: everything but the way in which boxes
// travel, which is the `body`: (communicator, boxes, element) -> MPI's code.
#pragma once

#include <stdexcept>
#include <utility>
#include <vector>

#include "pencils/halo.h"
#include "runtime/agreement.h"
#include "runtime/handlers.h"

namespace pfftjax {

inline constexpr const char* kOtherShapes =
    "the buffers do not have the shapes of this rank's blocks";

// `manner`: the method, or the number of a chunk.
template <typename Body>
ffi::Error RunTranspose(const CallSite& site, Dimensions order, std::int64_t scatter,
                        std::int64_t gather, std::int64_t manner, const Operand& x, Dimensions to,
                        Body&& body) {
  const Element element = ElementOf(x.element_type());
  const auto from = x.dimensions();
  const auto rank = static_cast<std::int64_t>(from.size());
  const bool is_order = IsOrder(order, from.size()) && from.size() == to.size() && scatter >= 0 &&
                        gather >= 0 && scatter < rank && gather < rank && scatter != gather;
  std::int64_t count = is_order ? 1 : 0;  // of the row, the same on all of its ranks
  std::vector<std::int64_t> whole;
  for (std::size_t d = 0; is_order && d < from.size(); ++d) {
    whole.push_back(order[d] == scatter ? from[scatter] : to[d]);
    count *= whole.back();
  }
  Parameters parameters(GetOptions().check);
  parameters.Add("order", order).Add("shape", whole).Add("split axis", scatter);
  parameters.Add("gathered axis", gather).Add("manner", manner);
  return Run(site, Payload{element, count, parameters.words(), parameters.hash()},
             [&](Communicator& comm) {
               comm.given_bytes = BytesOf(x);
               if (!is_order) throw std::runtime_error(kOtherShapes);
               const Transposition boxes(comm, from, to, order, scatter, gather);
               if (!boxes.Fits()) throw std::runtime_error(kOtherShapes);
               return body(comm, boxes, element);
             });
}

// Runs a halo to the ghosts, or back from them to their owners.
template <bool kToGhosts, typename Body>
ffi::Error RunHalo(const CallSite& site, const Halo& halo, const Operand& x, Result& y,
                   Body&& body) {
  const Element element = ElementOf(x.element_type());
  const Dimensions block = kToGhosts ? x.dimensions() : y->dimensions();
  const Dimensions padded = kToGhosts ? y->dimensions() : x.dimensions();
  std::int64_t count = halo.whole;
  for (std::size_t d = 0; d < block.size(); ++d) {
    if (static_cast<std::int64_t>(d) != halo.axis) count *= block[d];
  }
  Parameters parameters(GetOptions().check);
  parameters.Add("axis", halo.axis).Add("length", halo.whole).Add("before", halo.before);
  parameters.Add("after", halo.after).Add("periodic", std::int64_t{halo.is_periodic});
  return Run(site, Payload{element, count, parameters.words(), parameters.hash()},
             [&](Communicator& comm) {
               comm.given_bytes = BytesOf(x);
               if (!HaloFits(halo, block, padded, comm)) throw std::runtime_error(kOtherShapes);
               return body(comm, HaloBoxes(comm, halo, block, kToGhosts), element);
             });
}

// Says whether there are ghosts to which nothing comes, beyond the end of an axis that does not go
// round: they are zeros.
template <bool kToGhosts>
bool LeavesGhosts(const Halo& halo) {
  return kToGhosts && !halo.is_periodic;
}

}  // namespace pfftjax

// Between pencils, as FFI handlers: the transposition, the halo and its adjoint, and where this
// rank stands in a row of the grid.
#include <cstring>
#include <string>

#include "handlers.h"
#include "redistribute.h"

namespace pfftjax {
namespace {

ffi::Error DoNotFit(Operation operation, const Communicator& comm) {
  return Failed(operation, comm, "the buffers do not have the shapes of this rank's blocks");
}

// ---- Transposition -----------------------------------------------------------------------------

ffi::Error Transpose(std::int64_t number, std::int64_t ranks, std::int64_t signature,
                     std::string_view program, Dimensions order, std::int64_t scatter,
                     std::int64_t gather, std::int64_t method, Operand x, Token, Result y,
                     TokenResult) {
  const CallSite site{Operation::kTranspose, number, ranks, signature, program};
  const std::optional<Element> element = ElementOf(x.element_type());
  if (!element) return BadElement(site.operation, x.element_type());
  AdviseHugePages(y->untyped_data(), y->size_bytes());
  const auto from = x.dimensions();
  const auto to = y->dimensions();
  const auto rank = static_cast<std::int64_t>(from.size());
  const bool is_order = IsOrder(order, from.size()) && from.size() == to.size() && scatter >= 0 &&
                        gather >= 0 && scatter < rank && gather < rank && scatter != gather;
  std::int64_t count = is_order ? 1 : 0;  // of the row, the same on all of its ranks
  for (std::size_t d = 0; is_order && d < from.size(); ++d) {
    count *= order[d] == scatter ? from[scatter] : to[d];
  }
  return Run(site, Payload{*element, count}, [&](Communicator& comm) {
    if (!is_order) return DoNotFit(site.operation, comm);
    const Transposition boxes(comm, from, to, order, scatter, gather);
    if (!boxes.Fits()) return DoNotFit(site.operation, comm);
    const int code = Redistribute(comm, static_cast<Method>(method), x.untyped_data(),
                                  y->untyped_data(), boxes, *element);
    return code == 0 ? ffi::Error::Success()
                     : MpiFailed(site.operation, comm, *element, count, code);
  });
}

// The same on one rank: a change of memory order, and no communication.
ffi::Error Permute(Dimensions order, Operand x, Result y) {
  const std::optional<Element> element = ElementOf(x.element_type());
  if (!element) return BadElement(Operation::kTranspose, x.element_type());
  if (!IsOrder(order, x.dimensions().size()) || order.size() != y->dimensions().size()) {
    return ffi::Error(ffi::ErrorCode::kInvalidArgument, "pfftjax: permute of a wrong rank");
  }
  AdviseHugePages(y->untyped_data(), y->size_bytes());
  Communicator alone;
  const Transposition boxes(alone, x.dimensions(), y->dimensions(), order, -1, -1);
  StreamBoxes(alone, x.untyped_data(), y->untyped_data(), boxes, *element, Arrival::kStore);
  return ffi::Error::Success();
}

// ---- Halo --------------------------------------------------------------------------------------

// An axis of length `whole` in blocks, and the same blocks with `before` and `after` ghosts.
struct Halo {
  std::int64_t axis;
  std::int64_t whole;
  std::int64_t before;
  std::int64_t after;
  bool is_periodic;
};

// Between each owner's block and the padded blocks in which parts of it appear, possibly more than
// once, where the padding goes round the whole axis.
class HaloBoxes : public BoxesOf {
 public:
  // `block` is the array without ghosts.
  HaloBoxes(const Communicator& comm, const Halo& halo, Dimensions block, bool to_ghosts)
      : comm_(comm), halo_(halo), block_(block), to_ghosts_(to_ghosts) {}

  void To(int rank, std::vector<Box>* boxes) const override {
    to_ghosts_ ? Owned(comm_.rank, rank, boxes) : Padded(rank, comm_.rank, boxes);
  }
  void From(int rank, std::vector<Box>* boxes) const override {
    to_ghosts_ ? Padded(rank, comm_.rank, boxes) : Owned(comm_.rank, rank, boxes);
  }

 private:
  // The parts that `owner` owns of what `holder` holds, as boxes of the owner's block.
  void Owned(int owner, int holder, std::vector<Box>* boxes) const {
    const Range owned = BlockOf(halo_.whole, comm_.size, owner);
    ForEachPart(owner, holder, [&](std::int64_t start, std::int64_t count, std::int64_t shift) {
      boxes->push_back(Part(owned.count, start - shift - owned.start, count));
    });
  }
  // The same as boxes of the holder's padded block.
  void Padded(int owner, int holder, std::vector<Box>* boxes) const {
    const Range held = BlockOf(halo_.whole, comm_.size, holder);
    ForEachPart(owner, holder, [&](std::int64_t start, std::int64_t count, std::int64_t) {
      boxes->push_back(Part(held.count + halo_.before + halo_.after,
                            start - (held.start - halo_.before), count));
    });
  }

  // body(start, count, shift): the owner's block, shifted by a multiple of the axis, inside the
  // holder's padded range. Its own place first.
  template <typename Body>
  void ForEachPart(int owner, int holder, Body&& body) const {
    const Range owned = BlockOf(halo_.whole, comm_.size, owner);
    const Range held = BlockOf(halo_.whole, comm_.size, holder);
    const std::int64_t begin = held.start - halo_.before;
    const std::int64_t end = held.start + held.count + halo_.after;
    const std::int64_t n = halo_.whole;
    const auto part = [&](std::int64_t shift) {
      const std::int64_t start = std::max(begin, owned.start + shift);
      const std::int64_t stop = std::min(end, owned.start + owned.count + shift);
      if (start < stop) body(start, stop - start, shift);
    };
    part(0);
    if (!halo_.is_periodic) return;
    for (std::int64_t shift = n; owned.start + shift < end; shift += n) part(shift);
    for (std::int64_t shift = -n; owned.start + owned.count + shift > begin; shift -= n)
      part(shift);
  }

  // `count` slices from `start` of an array that has `length` of them.
  Box Part(std::int64_t length, std::int64_t start, std::int64_t count) const {
    Box box;
    box.dims = static_cast<int>(block_.size());
    std::int64_t stride = 1;
    for (int d = box.dims - 1; d >= 0; --d) {
      const bool here = d == halo_.axis;
      box.extent[d] = here ? count : block_[d];
      box.stride[d] = stride;
      if (here) box.offset = start * stride;
      stride *= here ? length : block_[d];
    }
    return box;
  }

  const Communicator& comm_;
  const Halo& halo_;
  Dimensions block_;
  bool to_ghosts_;
};

bool HaloFits(const Halo& halo, Dimensions block, Dimensions padded, const Communicator& comm) {
  const auto rank = static_cast<std::int64_t>(block.size());
  if (rank > kMaxDims || block.size() != padded.size() || halo.axis < 0 || halo.axis >= rank ||
      halo.before < 0 || halo.after < 0 || halo.whole < 1) {
    return false;
  }
  for (std::int64_t d = 0; d < rank; ++d) {
    const std::int64_t ghosts = d == halo.axis ? halo.before + halo.after : 0;
    if (padded[d] != block[d] + ghosts) return false;
  }
  return block[halo.axis] == BlockOf(halo.whole, comm.size, comm.rank).count;
}

// The exchange to the ghosts, or the sum of what they have gathered at their owners.
template <bool kToGhosts>
ffi::Error RunHalo(std::int64_t number, std::int64_t ranks, std::int64_t signature,
                   std::string_view program, std::int64_t axis, std::int64_t whole,
                   std::int64_t before, std::int64_t after, bool periodic, Operand x, Token,
                   Result y, TokenResult) {
  const Halo halo{axis, whole, before, after, periodic};
  const CallSite site{kToGhosts ? Operation::kHaloExchange : Operation::kHaloReduce, number, ranks,
                      signature, program};
  const std::optional<Element> element = ElementOf(x.element_type());
  if (!element) return BadElement(site.operation, x.element_type());
  AdviseHugePages(y->untyped_data(), y->size_bytes());
  const Dimensions block = kToGhosts ? x.dimensions() : y->dimensions();
  const Dimensions padded = kToGhosts ? y->dimensions() : x.dimensions();
  std::int64_t count = halo.whole;
  for (std::size_t d = 0; d < block.size(); ++d) {
    if (static_cast<std::int64_t>(d) != halo.axis) count *= block[d];
  }
  return Run(site, Payload{*element, count}, [&](Communicator& comm) {
    if (!HaloFits(halo, block, padded, comm)) return DoNotFit(site.operation, comm);
    // Sums start from nothing, and so do ghosts beyond the end of an axis that does not go round.
    if (!kToGhosts || !halo.is_periodic) std::memset(y->untyped_data(), 0, y->size_bytes());
    const HaloBoxes boxes(comm, halo, block, kToGhosts);
    const int code = StreamBoxes(comm, x.untyped_data(), y->untyped_data(), boxes, *element,
                                 kToGhosts ? Arrival::kStore : Arrival::kAdd);
    return code == 0 ? ffi::Error::Success()
                     : MpiFailed(site.operation, comm, *element, count, code);
  });
}

// ---- Coordinates -------------------------------------------------------------------------------

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

template <typename Binding>
auto BindHalo(Binding binding) {
  return std::move(binding)
      .template Attr<std::int64_t>("axis")
      .template Attr<std::int64_t>("whole")
      .template Attr<std::int64_t>("before")
      .template Attr<std::int64_t>("after")
      .template Attr<bool>("periodic")
      .template Arg<ffi::AnyBuffer>()
      .template Arg<ffi::Token>()
      .template Ret<ffi::AnyBuffer>()
      .template Ret<ffi::Token>();
}

XLA_FFI_DEFINE_HANDLER(kTranspose, Transpose,
                       BindSite(ffi::Ffi::Bind())
                           .Attr<Dimensions>("order")
                           .Attr<std::int64_t>("scatter")
                           .Attr<std::int64_t>("gather")
                           .Attr<std::int64_t>("method")
                           .Arg<ffi::AnyBuffer>()
                           .Arg<ffi::Token>()
                           .Ret<ffi::AnyBuffer>()
                           .Ret<ffi::Token>());
XLA_FFI_DEFINE_HANDLER(
    kPermute, Permute,
    ffi::Ffi::Bind().Attr<Dimensions>("order").Arg<ffi::AnyBuffer>().Ret<ffi::AnyBuffer>());
XLA_FFI_DEFINE_HANDLER(kHaloExchange, RunHalo<true>, BindHalo(BindSite(ffi::Ffi::Bind())));
XLA_FFI_DEFINE_HANDLER(kHaloReduce, RunHalo<false>, BindHalo(BindSite(ffi::Ffi::Bind())));
XLA_FFI_DEFINE_HANDLER(kCoordinate, Coordinate,
                       ffi::Ffi::Bind().Attr<std::int64_t>("comm").Ret<ffi::BufferR0<ffi::S32>>());

}  // namespace

std::vector<Registration> PencilHandlers() {
  return {{"pfftjax_pencil_transpose", reinterpret_cast<void*>(kTranspose)},
          {"pfftjax_permute", reinterpret_cast<void*>(kPermute)},
          {"pfftjax_halo_exchange", reinterpret_cast<void*>(kHaloExchange)},
          {"pfftjax_halo_reduce", reinterpret_cast<void*>(kHaloReduce)},
          {"pfftjax_coordinate", reinterpret_cast<void*>(kCoordinate)}};
}

}  // namespace pfftjax

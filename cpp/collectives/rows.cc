// alltoallv and allgatherv: rows between all pairs of ranks, counted at run time, in results of
// static size.
#include "collectives/rows.h"

#include <array>

#include "base/copies.h"
#include "collectives/exchange.h"
#include "runtime/handlers.h"

namespace pfftjax {
namespace {

// counts (ranks, batch): how many rows go to each rank; the result: how many come from each. Every
// rank learns whether all of it fits everywhere, before any row moves.
ffi::Error ExchangeCounts(const CallSite& site, std::int64_t rows, std::int64_t capacity,
                          std::string_view what, ffi::Buffer<ffi::S32> counts, Token,
                          ffi::Result<ffi::Buffer<ffi::S32>> incoming, TokenResult) {
  const auto total = static_cast<std::int64_t>(counts.element_count());
  return Run(
      site,
      Payload{Element::kS32, total, " of " + std::string(what), Hash(what.data(), what.size())},
      [&](Communicator& comm) {
        const std::int64_t batch = total / comm.size;
        const std::int32_t* out = counts.typed_data();
        std::int32_t* in = incoming->typed_data();
        const int code = AlltoallInChunks(comm, out, in, batch, Element::kS32);
        if (code != 0) return MpiFailed(site.operation, comm, Element::kS32, total, code);

        // Each rank tells what is wrong with its counts, if anything, and the capacity it needs.
        enum { kNeeded, kTooMany, kBadRank, kWords };
        std::array<std::int64_t, kWords> mine{0, 0, -1};
        for (std::int64_t b = 0; b < batch; ++b) {
          std::int64_t leaving = 0;
          std::int64_t arriving = 0;
          for (int rank = 0; rank < comm.size; ++rank) {
            leaving += out[rank * batch + b];
            arriving += in[rank * batch + b];
            if (out[rank * batch + b] < 0) mine[kBadRank] = comm.rank;
          }
          if (leaving > rows) mine[kBadRank] = comm.rank;
          mine[kNeeded] = std::max(mine[kNeeded], arriving);
        }
        mine[kTooMany] = mine[kNeeded] > capacity;
        std::array<std::int64_t, kWords> all{};
        const int reduced = Mpi()->allreduce(mine.data(), all.data(), kWords, Element::kS64,
                                             Reduction::kMax, comm.data);
        if (reduced != 0) return MpiFailed(site.operation, comm, Element::kS64, kWords, reduced);
        const Operation operation =
            what == "gathered rows" ? Operation::kAllgatherv : Operation::kAlltoallv;
        if (all[kBadRank] >= 0) {
          const std::string there = " on rank " + std::to_string(all[kBadRank]);
          return Failed(operation, comm,
                        what == "particles"
                            ? "a position" + there +
                                  " is not finite, or 2^30 cells or more away, or its number of "
                                  "particles is negative, or more than its rows"
                            : "the counts" + there +
                                  " are negative, or add up to more than the rows of x there");
        }
        if (all[kTooMany]) {
          return Failed(operation, comm,
                        std::to_string(mine[kNeeded]) + " " + std::string(what) +
                            " arrive here, where capacity is " + std::to_string(capacity) +
                            "; a capacity of " + std::to_string(all[kNeeded]) +
                            " is enough on every rank");
        }
        return ffi::Error::Success();
      });
}

// x (rows, ...): the rows for rank 0 first, then those for rank 1, and so on; or (kSame) the first
// rows, for all ranks. y (capacity, ...): the rows from rank 0 first; zeros after the last.
template <bool kSame>
ffi::Error MoveRows(const CallSite& site, Operand x, ffi::Buffer<ffi::S32> outgoing,
                    ffi::Buffer<ffi::S32> incoming, Token, Result y, TokenResult) {
  PrepareToWrite(y->untyped_data(), y->size_bytes());
  const auto move = [&](Communicator& comm, Element element, std::int64_t width) {
    const auto blocks =
        RaggedBlocks::Make<kSame>(comm.size, outgoing.typed_data(), incoming.typed_data(), width);
    if (!blocks.Fit(x, *y)) return RowsDoNotFit(site.operation, comm);
    comm.given_bytes = blocks.sent * InfoOf(element).bytes;
    const int code = ExchangeBlocks(comm, x.untyped_data(), y->untyped_data(), blocks, element);
    if (code != 0) return MpiFailed(site.operation, comm, element, blocks.sent, code);
    const auto filled = static_cast<std::size_t>(blocks.received * InfoOf(element).bytes);
    Clear(static_cast<char*>(y->untyped_data()) + filled, y->size_bytes() - filled);
    return ffi::Error::Success();
  };
  return RunOnRows(site, x, move);
}

}  // namespace

std::vector<Registration> RowHandlers() {
  return {SiteHandler<Operation::kExchangeCounts, ExchangeCounts>("pfftjax_exchange_counts",
                                                                  "rows", "capacity", "what"),
          SiteHandler<Operation::kAllgatherv, MoveRows<true>>("pfftjax_allgatherv"),
          SiteHandler<Operation::kAlltoallv, MoveRows<false>>("pfftjax_alltoallv")};
}

}  // namespace pfftjax

// Particles to the ranks that own their cells: who goes where, and the way there and back.
#include <algorithm>
#include <memory>
#include <numeric>
#include <vector>

#include "collectives/rows.h"
#include "pm/mesh.h"
#include "pm/shares.h"
#include "runtime/handlers.h"
#include "runtime/profile.h"

namespace pfftjax {
namespace {

using pm::Coordinate;
using pm::kAxes;
using pm::Mesh;

using Cells = ffi::Buffer<ffi::S32, 2>;
using Count = ffi::BufferR0<ffi::S32>;
using Integers = ffi::Buffer<ffi::S32>;

// ---- Order -------------------------------------------------------------------------------------

// Rows from `begin` to that of the next, which belong to one rank. Rows that are near each other
// often do: there are far fewer of these than rows.
struct OwnedRun {
  std::int64_t rank;
  std::int64_t begin;
};

// Returns whether an offset is no finite number, or one that no box has room for. It looks at many
// at once, so that compilers take several at a time.
template <typename T>
bool IsAnyNowhere(const T* offsets, std::int64_t count) {
  constexpr auto most = static_cast<T>(pm::kMostCells);
  int nowhere = 0;
  for (std::int64_t i = 0; i < count; ++i) nowhere |= !(std::abs(offsets[i]) < most);
  return nowhere != 0;
}

// Finds the part of an axis that has a cell. It remembers the last one, which most particles are
// in.
class Parts {
 public:
  Parts(std::int64_t n, std::int64_t parts) : n_(n), parts_(parts) {}
  bool IsOne() const { return parts_ == 1; }
  bool IsInLast(std::int64_t cell) const {
    return cell >= range_.start && cell < range_.start + range_.count;
  }
  std::int64_t last() const { return part_; }
  void Find(std::int64_t cell) {
    const std::int64_t wrapped = pm::Wrapped(cell, n_);
    // The first n % parts have a cell more than the others.
    const std::int64_t size = n_ / parts_;
    const std::int64_t longer = n_ % parts_ * (size + 1);
    part_ = wrapped < longer ? wrapped / (size + 1) : n_ % parts_ + (wrapped - longer) / size;
    range_ = BlockOf(n_, parts_, part_);
  }

 private:
  std::int64_t n_;
  std::int64_t parts_;
  std::int64_t part_ = 0;
  Range range_{};
};

// The rows sorted by owner, in their order within each; rows from `count` on come last.
template <typename T>
void Sort(const Mesh& mesh, const std::int32_t* cells, const T* offsets, std::int64_t count,
          std::int64_t rows, std::int32_t* order, std::int32_t* counts) {
  const std::int64_t columns = mesh.along[1].size;
  const std::int64_t ranks = mesh.along[0].size * columns;
  std::array<Parts, 2> parts = {Parts(mesh.shape[0], mesh.along[0].size),
                                Parts(mesh.shape[1], columns)};
  std::vector<OwnedRun> runs;
  constexpr std::int64_t kPiece = 1024;  // stays in cache
  for (std::int64_t begin = 0; begin < count; begin += kPiece) {
    const std::int64_t end = std::min(begin + kPiece, count);
    if (IsAnyNowhere(offsets + kAxes * begin, kAxes * (end - begin))) {
      // Impossible counts are refused by the next step, on every rank together.
      std::fill(counts, counts + ranks, -1);
      std::fill(order, order + rows, 0);
      return;
    }
    for (std::int64_t row = begin; row < end; ++row) {
      bool is_same = !runs.empty();
      for (int axis = 0; axis < 2; ++axis) {
        Parts& along = parts[axis];
        if (along.IsOne()) continue;
        Coordinate<T> at{};
        pm::Locate(cells[kAxes * row + axis], offsets[kAxes * row + axis], &at);
        if (along.IsInLast(at.cell)) continue;
        along.Find(at.cell);
        is_same = false;
      }
      if (!is_same) runs.push_back({parts[0].last() * columns + parts[1].last(), row});
    }
  }
  runs.push_back({ranks, count});
  const auto for_each_run = [&](auto&& body) {
    for (auto run = runs.begin(); run + 1 != runs.end(); ++run) {
      body(run->rank, run->begin, (run + 1)->begin - run->begin);
    }
  };
  std::fill(counts, counts + ranks, 0);
  for_each_run([&](std::int64_t rank, std::int64_t, std::int64_t n) {
    counts[rank] += static_cast<std::int32_t>(n);
  });
  std::vector<std::int64_t> place(static_cast<std::size_t>(ranks));
  std::exclusive_scan(counts, counts + ranks, place.begin(), std::int64_t{0});
  for_each_run([&](std::int64_t rank, std::int64_t begin, std::int64_t n) {
    std::int32_t* const first = order + place[static_cast<std::size_t>(rank)];
    std::iota(first, first + n, static_cast<std::int32_t>(begin));
    place[static_cast<std::size_t>(rank)] += n;
  });
  std::iota(order + count, order + rows, static_cast<std::int32_t>(count));
}

ffi::Error OrderByOwner(std::int64_t n0, std::int64_t n1, std::int64_t n2, std::int64_t rows_comm,
                        std::int64_t columns_comm, Cells cells, Operand offsets, Count count,
                        ffi::Result<Integers> order, ffi::Result<Integers> counts) {
  const Timed timed(Operation::kOrderByOwner, BytesOf(offsets));
  const auto mesh = pm::FindMesh({n0, n1, n2}, rows_comm, columns_comm);
  const std::int64_t rows = order->dimensions()[0];
  if (!mesh || counts->dimensions()[0] != mesh->along[0].size * mesh->along[1].size ||
      cells.dimensions()[0] != rows || cells.dimensions()[1] != kAxes ||
      CountOf(offsets) != kAxes * rows) {
    return Invalid("an exchange of particles with buffers that do not fit");
  }
  const std::int64_t used = *count.typed_data();
  if (used < 0 || used > rows) {
    return Invalid("an exchange of " + std::to_string(used) + " particles in arrays of " +
                   std::to_string(rows) + " rows");
  }
  const auto sort = [&](auto zero) {
    Sort(*mesh, cells.typed_data(), static_cast<const decltype(zero)*>(offsets.untyped_data()),
         used, rows, order->typed_data(), counts->typed_data());
  };
  if (offsets.element_type() == ffi::DataType::F64) {
    sort(double{});
  } else {
    sort(float{});
  }
  return ffi::Error::Success();
}

// ---- The way there and back --------------------------------------------------------------------

// A piece stays in cache from packing to sending.
constexpr std::int64_t kRowPieceBytes = std::int64_t{256} << 10;

// There: x (rows, ...) in order[0], order[1], ... to rank 0 first, then to rank 1, and so on;
// y (capacity, ...) has what came from rank 0 first, and zeros after the last row. Back is the
// transpose: y's rows return to where they left x, and rows that were not sent are zero. All
// arrays may have a batch in front, whose members go in the same messages.
template <bool kThere>
ffi::Error MoveRows(const CallSite& site, Operand source, Integers order, Integers outgoing,
                    Integers incoming, Token, Result target, TokenResult) {
  AdviseHugePages(target->untyped_data(), target->size_bytes());
  const std::size_t axes = order.dimensions().size();
  const auto move = [&](Communicator& comm, Element element, std::int64_t width) {
    const Operand& of_x = kThere ? source : *target;
    const Operand& of_y = kThere ? *target : source;
    const std::int64_t members = axes == 1 ? 1 : order.dimensions()[0];
    const auto counts = static_cast<std::size_t>(members * comm.size);
    if (outgoing.element_count() != counts || incoming.element_count() != counts ||
        CountOf(of_x) != static_cast<std::int64_t>(order.element_count()) * width) {
      return RowsDoNotFit(site.operation, comm);
    }
    const std::int64_t bytes = width * InfoOf(element).bytes;
    pm::OrderedRows x({members, of_x.dimensions()[axes - 1], comm.size, outgoing.typed_data()},
                      static_cast<char*>(of_x.untyped_data()), bytes, order.typed_data());
    pm::PlainRows y({members, of_y.dimensions()[axes - 1], comm.size, incoming.typed_data()},
                    static_cast<char*>(of_y.untyped_data()), bytes);
    if (!x.shares().Fit() || !y.shares().Fit() ||
        x.shares().Of(comm.rank) != y.shares().Of(comm.rank)) {
      return RowsDoNotFit(site.operation, comm);
    }
    comm.given_bytes = (kThere ? x.shares() : y.shares()).Used() * bytes;
    if (bytes == 0) return ffi::Error::Success();

    if (kThere) {
      y.ClearUnused();
    } else {
      x.ClearUnused();
    }
    const std::int64_t piece =
        std::max<std::int64_t>(std::min(kRowPieceBytes, GetOptions().max_chunk_bytes) / bytes, 1);
    const auto buffer_bytes = static_cast<std::size_t>(piece * bytes);
    const std::unique_ptr<char[]> out(new char[buffer_bytes]);
    const std::unique_ptr<char[]> in(new char[buffer_bytes]);
    const auto pass = [&](auto& from, auto& to) {
      for (int step = 0; step < comm.size; ++step) {
        const int dest = (comm.rank + step) % comm.size;
        const int origin = (comm.rank - step + comm.size) % comm.size;
        const std::int64_t all_out = from.shares().Of(dest);
        const std::int64_t all_in = to.shares().Of(origin);
        for (std::int64_t at = 0; at < std::max(all_out, all_in); at += piece) {
          const std::int64_t leaving = std::clamp<std::int64_t>(all_out - at, 0, piece);
          const std::int64_t arriving = std::clamp<std::int64_t>(all_in - at, 0, piece);
          char* received = to.PlaceFor(origin, at, arriving, in.get());
          if (step == 0) {
            // What stays here may go where it belongs at once.
            to.Put(origin, at, arriving, from.Take(dest, at, leaving, received));
            continue;
          }
          const char* sent = from.Take(dest, at, leaving, out.get());
          const int code = SendrecvInChunks(comm, sent, leaving * width, dest, received,
                                            arriving * width, origin, element);
          if (code != 0) return MpiFailed(site.operation, comm, element, leaving * width, code);
          to.Put(origin, at, arriving, received);
        }
      }
      return ffi::Error::Success();
    };
    const ffi::Error result = kThere ? pass(x, y) : pass(y, x);
    if (result.failure() || x.IsOrder()) return result;
    return Failed(site.operation, comm, "the order of the rows leads outside the buffers");
  };
  return RunOnRows(site, source, move, axes);
}

}  // namespace

std::vector<Registration> ParticleHandlers() {
  return {Handler<OrderByOwner>("pfftjax_order_by_owner", "n0", "n1", "n2", "rows_comm",
                                "columns_comm")
              .OnHost(),
          SiteHandler<Operation::kMoveRows, MoveRows<true>>("pfftjax_move_rows"),
          SiteHandler<Operation::kReturnRows, MoveRows<false>>("pfftjax_return_rows")};
}

}  // namespace pfftjax

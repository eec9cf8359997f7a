// Particles to the ranks that own their cells: who goes where, and the way there and back.
#include <cstring>
#include <memory>

#include "collectives/rows.h"
#include "pm/mesh.h"
#include "runtime/handlers.h"
#include "runtime/profile.h"

namespace pfftjax {
namespace {

using pm::Coordinate;
using pm::kAxes;
using pm::Mesh;

using Cells = ffi::Buffer<ffi::S32, 2>;
using Count = ffi::BufferR0<ffi::S32>;
using Integers = ffi::Buffer<ffi::S32, 1>;

// ---- Order -------------------------------------------------------------------------------------

// The rows sorted by owner, in their order within each; rows from `count` on come last.
template <typename T>
void Sort(const Mesh& mesh, const std::int32_t* cells, const T* offsets, std::int64_t count,
          std::int64_t rows, std::int32_t* order, std::int32_t* counts) {
  const std::int64_t columns = mesh.along[1].size;
  const std::int64_t ranks = mesh.along[0].size * columns;
  const std::array<std::vector<std::int32_t>, 2> owners = {
      pm::Owners(mesh.shape[0], mesh.along[0].size),
      pm::Owners(mesh.shape[1], mesh.along[1].size)};
  std::vector<std::int32_t> owner(static_cast<std::size_t>(count));
  std::vector<std::int64_t> place(static_cast<std::size_t>(ranks) + 1);
  for (std::int64_t row = 0; row < count; ++row) {
    std::int64_t rank = 0;
    for (int axis = 0; axis < kAxes; ++axis) {
      Coordinate<T> at;
      if (!pm::Locate(cells[kAxes * row + axis], offsets[kAxes * row + axis], &at)) {
        // Impossible counts are refused by the next step, on every rank together.
        std::fill(counts, counts + ranks, -1);
        std::fill(order, order + rows, 0);
        return;
      }
      if (axis < 2) {
        const std::int64_t cell = pm::Wrapped(at.cell, mesh.shape[axis]);
        rank = rank * mesh.along[axis].size + owners[axis][static_cast<std::size_t>(cell)];
      }
    }
    owner[static_cast<std::size_t>(row)] = static_cast<std::int32_t>(rank);
    ++place[static_cast<std::size_t>(rank) + 1];
  }
  for (std::int64_t rank = 0; rank < ranks; ++rank) {
    counts[rank] = static_cast<std::int32_t>(place[rank + 1]);
    place[rank + 1] += place[rank];
  }
  for (std::int64_t row = 0; row < count; ++row) {
    order[place[owner[row]]++] = static_cast<std::int32_t>(row);
  }
  for (std::int64_t row = count; row < rows; ++row) order[row] = static_cast<std::int32_t>(row);
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
constexpr std::int64_t kPieceBytes = std::int64_t{256} << 10;

// Rows of `width` elements between an array that is visited in `order` and one that is not.
class Rows {
 public:
  Rows(const std::int32_t* order, std::int64_t rows, std::int64_t width, Element element)
      : order_(order), rows_(rows), bytes_(width * InfoOf(element).bytes) {}

  // Rows order[first], order[first + 1], ... of `from`, one after the other; false for an order
  // that leads outside.
  bool Gather(const char* from, std::int64_t first, std::int64_t count, char* to) const {
    return ForEach(first, count, [&](std::int64_t row, std::int64_t i) {
      Copy(from + row * bytes_, to + i * bytes_);
    });
  }
  bool Scatter(const char* from, std::int64_t first, std::int64_t count, char* to) const {
    return ForEach(first, count, [&](std::int64_t row, std::int64_t i) {
      Copy(from + i * bytes_, to + row * bytes_);
    });
  }
  bool Clear(std::int64_t first, std::int64_t count, char* to) const {
    return ForEach(first, count, [&](std::int64_t row, std::int64_t) {
      std::memset(to + row * bytes_, 0, static_cast<std::size_t>(bytes_));
    });
  }

 private:
  template <typename Body>
  bool ForEach(std::int64_t first, std::int64_t count, Body&& body) const {
    for (std::int64_t i = 0; i < count; ++i) {
      const std::int64_t row = order_[first + i];
      if (row < 0 || row >= rows_) return false;
      body(row, i);
    }
    return true;
  }
  void Copy(const char* from, char* to) const {
    // Rows of particles have these sizes, which the compiler can then copy by.
    if (bytes_ == 12) {
      std::memcpy(to, from, 12);
    } else if (bytes_ == 24) {
      std::memcpy(to, from, 24);
    } else {
      std::memcpy(to, from, static_cast<std::size_t>(bytes_));
    }
  }

  const std::int32_t* order_;
  std::int64_t rows_;
  std::int64_t bytes_;
};

// There: x (rows, ...) in order[0], order[1], ... to rank 0 first, then to rank 1, and so on;
// y (capacity, ...) has what came from rank 0 first, and zeros after the last row. Back is the
// transpose: y's rows return to where they left x, and rows that were not sent are zero.
template <bool kThere>
ffi::Error MoveRows(const CallSite& site, Operand source, Integers order, Integers outgoing,
                    Integers incoming, Token, Result target, TokenResult) {
  AdviseHugePages(target->untyped_data(), target->size_bytes());
  const auto move = [&](Communicator& comm, Element element, std::int64_t width) {
    // The rows of x, in their order, and those of y.
    const auto [apart, sent] = Blocks(comm.size, outgoing.typed_data(), 1);
    const auto [together, received] = Blocks(comm.size, incoming.typed_data(), 1);
    const std::int64_t rows = order.dimensions()[0];
    const std::int64_t capacity = (kThere ? target->dimensions() : source.dimensions())[0];
    const char* from = static_cast<const char*>(source.untyped_data());
    char* to = static_cast<char*>(target->untyped_data());
    const std::int64_t bytes = width * InfoOf(element).bytes;
    const Rows x(order.typed_data(), rows, width, element);
    const auto is_possible = [](const Block& block) { return block.count >= 0; };
    if (!std::all_of(apart.begin(), apart.end(), is_possible) ||
        !std::all_of(together.begin(), together.end(), is_possible) || sent > rows ||
        received > capacity || (kThere ? source.dimensions() : target->dimensions())[0] != rows) {
      return Failed(site.operation, comm, "the counts exceed the rows of the buffers");
    }

    comm.given_bytes = (kThere ? sent : received) * bytes;
    if (bytes == 0) return ffi::Error::Success();

    const Block kept_of_x = apart[comm.rank];
    const Block kept_of_y = together[comm.rank];
    bool is_order = kept_of_x.count == kept_of_y.count;
    if (is_order && kThere) {
      is_order = x.Gather(from, kept_of_x.offset, kept_of_x.count, to + kept_of_y.offset * bytes);
      std::memset(to + received * bytes, 0,
                  static_cast<std::size_t>((capacity - received) * bytes));
    } else if (is_order) {
      is_order =
          x.Scatter(from + kept_of_y.offset * bytes, kept_of_x.offset, kept_of_x.count, to) &&
          x.Clear(sent, rows - sent, to);
    }

    const std::int64_t piece =
        std::max<std::int64_t>(std::min(kPieceBytes, GetOptions().max_chunk_bytes) / bytes, 1);
    const std::unique_ptr<char[]> buffer(new char[static_cast<std::size_t>(piece * bytes)]);
    for (int step = 1; step < comm.size; ++step) {
      const int dest = (comm.rank + step) % comm.size;
      const int origin = (comm.rank - step + comm.size) % comm.size;
      const Block out = kThere ? apart[dest] : together[dest];
      const Block in = kThere ? together[origin] : apart[origin];
      for (std::int64_t at = 0; at < std::max(out.count, in.count); at += piece) {
        const std::int64_t leaving = std::clamp<std::int64_t>(out.count - at, 0, piece);
        const std::int64_t arriving = std::clamp<std::int64_t>(in.count - at, 0, piece);
        const char* outbox =
            kThere ? buffer.get() : from + (out.offset + (leaving ? at : 0)) * bytes;
        char* inbox = kThere ? to + (in.offset + (arriving ? at : 0)) * bytes : buffer.get();
        if (kThere) is_order &= x.Gather(from, out.offset + at, leaving, buffer.get());
        const int code = SendrecvInChunks(comm, outbox, leaving * width, dest, inbox,
                                          arriving * width, origin, element);
        if (code != 0) return MpiFailed(site.operation, comm, element, leaving * width, code);
        if (!kThere) is_order &= x.Scatter(buffer.get(), in.offset + at, arriving, to);
      }
    }
    return is_order
               ? ffi::Error::Success()
               : Failed(site.operation, comm, "the order of the rows leads outside the buffers");
  };
  return RunOnRows(site, source, move);
}

}  // namespace

std::vector<Registration> ParticleHandlers() {
  return {
      Handler<OrderByOwner>("pfftjax_order_by_owner", "n0", "n1", "n2", "rows_comm",
                            "columns_comm")
          .OnHost(),
      SiteHandler<Operation::kMoveRows, MoveRows<true>>("pfftjax_move_rows").WithStaging(),
      SiteHandler<Operation::kReturnRows, MoveRows<false>>("pfftjax_return_rows").WithStaging()};
}

}  // namespace pfftjax

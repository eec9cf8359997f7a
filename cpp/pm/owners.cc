// Which rank owns a particle's cell, and the order of rows by it.
#include <algorithm>
#include <numeric>
#include <utility>
#include <vector>

#include "pm/mesh.h"
#include "runtime/handlers.h"
#include "runtime/profile.h"
#include "runtime/tasks.h"

namespace pfftjax {
namespace {

using pm::kAxes;
using pm::Mesh;

using Cells = ffi::Buffer<ffi::S32, 2>;
using Count = ffi::BufferR0<ffi::S32>;
using Integers = ffi::Buffer<ffi::S32>;

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

// Some of the rows, which one thread looks at.
struct Chunk {
  std::int64_t begin = 0;
  std::int64_t end = 0;
  std::vector<OwnedRun> runs;
  std::vector<std::int64_t> places;  // of its first row for each rank, in the order of all
  bool is_nowhere = false;           // has a row that no box has room for
};

// Finds the runs of a chunk.
template <typename T>
void FindOwners(const Mesh& mesh, const std::int32_t* cells, const T* offsets, Chunk* chunk) {
  const std::int64_t columns = mesh.along[1].size;
  std::array<Parts, 2> parts = {Parts(mesh.shape[0], mesh.along[0].size),
                                Parts(mesh.shape[1], columns)};
  std::vector<OwnedRun> runs;  // not the chunk's, whose neighbours in memory are of other threads
  constexpr std::int64_t kPiece = 1024;  // stays in cache
  for (std::int64_t begin = chunk->begin; begin < chunk->end; begin += kPiece) {
    const std::int64_t end = std::min(begin + kPiece, chunk->end);
    chunk->is_nowhere = IsAnyNowhere(offsets + kAxes * begin, kAxes * (end - begin));
    if (chunk->is_nowhere) return;
    for (std::int64_t row = begin; row < end; ++row) {
      bool is_same = !runs.empty();
      for (int axis = 0; axis < 2; ++axis) {
        Parts& along = parts[axis];
        if (along.IsOne()) continue;
        pm::Coordinate<T> at{};
        pm::Locate(cells[kAxes * row + axis], offsets[kAxes * row + axis], &at);
        if (along.IsInLast(at.cell)) continue;
        along.Find(at.cell);
        is_same = false;
      }
      if (!is_same) runs.push_back({parts[0].last() * columns + parts[1].last(), row});
    }
  }
  chunk->runs = std::move(runs);
}

// Counts that the next step refuses, on every rank together.
void SayImpossible(std::int32_t* counts, std::int64_t ranks, std::int32_t* order,
                   std::int64_t rows) {
  std::fill(counts, counts + ranks, -1);
  std::fill(order, order + rows, 0);
}

// The rows sorted by rank, in their order within each, and how many each rank has; rows from
// `count` on come last. find(chunk) finds the runs of a chunk.
template <typename Find>
void Sort(ffi::ThreadPool& pool, std::int64_t ranks, std::int64_t count, std::int64_t rows,
          const Find& find, std::int32_t* order, std::int32_t* counts) {
  constexpr std::int64_t kWorthAThread = 1 << 14;
  const std::int64_t threads = std::max<std::int64_t>(pool.num_threads(), 1);
  // Chunks have numbers for all ranks, which together take less memory than the order itself.
  const std::int64_t most =
      std::min({threads > 1 ? 4 * threads : 1, count / kWorthAThread, count / (2 * ranks)});
  const std::int64_t tasks = std::max<std::int64_t>(most, 1);
  std::vector<Chunk> chunks(static_cast<std::size_t>(tasks));
  for (std::int64_t i = 0; i < tasks; ++i) {
    chunks[i].begin = count * i / tasks;
    chunks[i].end = count * (i + 1) / tasks;
  }
  const auto for_each_run = [](const Chunk& chunk, auto&& body) {
    for (std::size_t run = 0; run < chunk.runs.size(); ++run) {
      const auto [rank, begin] = chunk.runs[run];
      body(rank, begin,
           (run + 1 < chunk.runs.size() ? chunk.runs[run + 1].begin : chunk.end) - begin);
    }
  };
  ForEachTask(pool, tasks, threads - 1, [&](std::int64_t task) {
    Chunk& chunk = chunks[task];
    find(&chunk);
    chunk.places.resize(static_cast<std::size_t>(ranks));
    for_each_run(
        chunk, [&](std::int64_t rank, std::int64_t, std::int64_t n) { chunk.places[rank] += n; });
  });
  if (std::any_of(chunks.begin(), chunks.end(), [](const Chunk& c) { return c.is_nowhere; })) {
    SayImpossible(counts, ranks, order, rows);
    return;
  }
  std::int64_t next = 0;
  for (std::int64_t rank = 0; rank < ranks; ++rank) {
    const std::int64_t first = next;
    for (Chunk& chunk : chunks) next += std::exchange(chunk.places[rank], next);
    counts[rank] = static_cast<std::int32_t>(next - first);
  }
  ForEachTask(pool, tasks, threads - 1, [&](std::int64_t task) {
    Chunk& chunk = chunks[task];
    for_each_run(chunk, [&](std::int64_t rank, std::int64_t begin, std::int64_t n) {
      std::int32_t* const first = order + chunk.places[rank];
      std::iota(first, first + n, static_cast<std::int32_t>(begin));
      chunk.places[rank] += n;
    });
  });
  std::iota(order + count, order + rows, static_cast<std::int32_t>(count));
}

ffi::Error OrderByOwner(std::int64_t n0, std::int64_t n1, std::int64_t n2, std::int64_t rows_comm,
                        std::int64_t columns_comm, ffi::ThreadPool pool, Cells cells,
                        Operand offsets, Count count, ffi::Result<Integers> order,
                        ffi::Result<Integers> counts) {
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
    SayImpossible(counts->typed_data(), counts->dimensions()[0], order->typed_data(), rows);
    return ffi::Error::Success();
  }
  const auto sort = [&](auto zero) {
    const auto* const data = static_cast<const decltype(zero)*>(offsets.untyped_data());
    Sort(
        pool, counts->dimensions()[0], used, rows,
        [&](Chunk* chunk) { FindOwners(*mesh, cells.typed_data(), data, chunk); },
        order->typed_data(), counts->typed_data());
  };
  offsets.element_type() == ffi::DataType::F64 ? sort(double{}) : sort(float{});
  return ffi::Error::Success();
}

// Sorts rows by the rank that each has; those that have the number of ranks come last.
ffi::Error OrderByRank(ffi::ThreadPool pool, Integers rank_of, ffi::Result<Integers> order,
                       ffi::Result<Integers> counts) {
  const std::int64_t rows = order->dimensions()[0];
  const Timed timed(Operation::kOrderByRank, rows * sizeof(std::int32_t));
  const std::int64_t ranks = counts->dimensions()[0];
  const std::int32_t* const at = rank_of.typed_data();
  const auto is_no_rank = [=](std::int32_t rank) { return rank < 0 || rank > ranks; };
  if (rank_of.dimensions()[0] != rows || std::any_of(at, at + rows, is_no_rank)) {
    return Invalid("an order of rows by other ranks than " + std::to_string(ranks));
  }
  std::vector<std::int32_t> each(static_cast<std::size_t>(ranks) + 1);
  const auto find = [at](Chunk* chunk) {
    std::vector<OwnedRun> runs;
    for (std::int64_t row = chunk->begin; row < chunk->end; ++row) {
      if (runs.empty() || runs.back().rank != at[row]) runs.push_back({at[row], row});
    }
    chunk->runs = std::move(runs);
  };
  Sort(pool, ranks + 1, rows, rows, find, order->typed_data(), each.data());
  std::copy(each.begin(), each.end() - 1, counts->typed_data());
  return ffi::Error::Success();
}

}  // namespace

std::vector<Registration> OwnerHandlers() {
  return {Handler<OrderByOwner>("pfftjax_order_by_owner", "n0", "n1", "n2", "rows_comm",
                                "columns_comm")
              .OnHost(),
          Handler<OrderByRank>("pfftjax_order_by_rank").OnHost()};
}

}  // namespace pfftjax

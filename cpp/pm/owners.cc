// Particles to the ranks that own their cells: who goes where, and the way there and back.
#include <algorithm>
#include <cstring>
#include <memory>
#include <numeric>
#include <optional>
#include <utility>
#include <vector>

#include "collectives/exchange.h"
#include "collectives/rows.h"
#include "pm/mesh.h"
#include "pm/way.h"
#include "runtime/agreement.h"
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

// ---- The way there and back --------------------------------------------------------------------

// One array of rows, of a batch of `members`: memory that is read and memory that is written,
// which may be the same.
struct RowArray {
  const char* from;
  char* to;
  std::int64_t from_rows;  // of each member
  std::int64_t to_rows;
  std::int64_t bytes;  // of a row

  const char* FromRow(std::size_t member, std::int64_t row) const {
    return from + (static_cast<std::int64_t>(member) * from_rows + row) * bytes;
  }
  char* ToRow(std::size_t member, std::int64_t row) const {
    return to + (static_cast<std::int64_t>(member) * to_rows + row) * bytes;
  }
  std::size_t Bytes(std::int64_t rows) const { return static_cast<std::size_t>(rows * bytes); }
};

// Copies rows of particles, which have these sizes: the compiler can then copy one by its size.
void CopyRows(const char* from, char* to, std::int64_t rows, std::int64_t bytes) {
  if (rows > 1) {
    std::memcpy(to, from, static_cast<std::size_t>(rows * bytes));
  } else if (bytes == 12) {
    std::memcpy(to, from, 12);
  } else if (bytes == 24) {
    std::memcpy(to, from, 24);
  } else {
    std::memcpy(to, from, static_cast<std::size_t>(bytes));
  }
}

// Moves the rows of several arrays that all go the same ways, one for each member of a batch. A
// message has the rows of the first array, member after member, and then those of the next.
template <bool kThere>
class Mover {
 public:
  Mover(const Communicator& comm, const std::vector<pm::Way>& ways,
        const std::vector<RowArray>& arrays, ffi::ThreadPool& pool)
      : comm_(comm), ways_(ways), arrays_(arrays), pool_(pool) {
    for (const RowArray& array : arrays) row_bytes_ += array.bytes;
  }

  // Returns a code of MPI's. All that leaves is packed before anything arrives, as it may arrive
  // in the same memory.
  int Run() {
    const std::vector<Packed> leaving = Pack();
    Stay();
    std::int64_t most = 0;
    for (int origin = 0; origin < comm_.size; ++origin) {
      most = std::max(most, BytesOf(To(), origin));
    }
    const std::unique_ptr<char[]> arrived(new char[static_cast<std::size_t>(most)]);
    for (int step = 1; step < comm_.size; ++step) {
      const int dest = (comm_.rank + step) % comm_.size;
      const int origin = (comm_.rank - step + comm_.size) % comm_.size;
      const Packed& sent = leaving[static_cast<std::size_t>(dest)];
      const int code = SendrecvInChunks(comm_, sent.data.get(), sent.bytes, dest, arrived.get(),
                                        BytesOf(To(), origin), origin, Element::kU8);
      if (code != 0) return code;
      Unpack(origin, arrived.get());
    }
    ClearUnused();
    return 0;
  }

 private:
  struct Packed {
    std::unique_ptr<char[]> data;
    std::int64_t bytes = 0;
  };
  static constexpr auto From() { return kThere ? &pm::Way::there : &pm::Way::here; }
  static constexpr auto To() { return kThere ? &pm::Way::here : &pm::Way::there; }

  std::int64_t BytesOf(pm::Side pm::Way::* side, int rank) const {
    std::int64_t rows = 0;
    for (const pm::Way& way : ways_) rows += pm::CountIn((way.*side).of[rank]);
    return rows * row_bytes_;
  }
  // Calls `body(member, runs)` for the rows of one rank.
  template <typename Body>
  void ForEachMember(pm::Side pm::Way::* side, int rank, Body&& body) const {
    for (std::size_t member = 0; member < ways_.size(); ++member) {
      for (const pm::Run& run : (ways_[member].*side).of[rank]) body(member, run);
    }
  }

  // Calls `body(array)` for each, on threads that are worth it for so many bytes.
  template <typename Body>
  void ForEachArray(std::int64_t bytes, Body&& body) const {
    ForEach(1, bytes, [&](std::int64_t, const RowArray& array) { body(array); });
  }
  // The same with a number below `count`.
  template <typename Body>
  void ForEach(std::int64_t count, std::int64_t bytes, Body&& body) const {
    constexpr std::int64_t worth_a_thread = 1 << 18;
    const std::int64_t helpers = std::min(pool_.num_threads() - 1, bytes / worth_a_thread);
    const auto arrays = static_cast<std::int64_t>(arrays_.size());
    ForEachTask(pool_, arrays * count, helpers, [&](std::int64_t task) {
      body(task / arrays, arrays_[static_cast<std::size_t>(task % arrays)]);
    });
  }

  std::vector<Packed> Pack() const {
    std::vector<Packed> leaving(static_cast<std::size_t>(comm_.size));
    std::int64_t bytes = 0;
    for (int dest = 0; dest < comm_.size; ++dest) {
      auto& [data, size] = leaving[static_cast<std::size_t>(dest)];
      size = BytesOf(From(), dest);
      data.reset(new char[static_cast<std::size_t>(size)]);
      bytes += size;
    }
    ForEach(comm_.size, bytes, [&](std::int64_t dest, const RowArray& array) {
      const Packed& packed = leaving[static_cast<std::size_t>(dest)];
      char* to = packed.data.get() + PlaceOf(array, packed.bytes);
      ForEachMember(From(), static_cast<int>(dest), [&](std::size_t member, const pm::Run& run) {
        CopyRows(array.FromRow(member, run.row), to, run.count, array.bytes);
        to += array.Bytes(run.count);
      });
    });
    return leaving;
  }
  void Unpack(int origin, const char* message) const {
    const std::int64_t bytes = BytesOf(To(), origin);
    ForEachArray(bytes, [&](const RowArray& array) {
      const char* from = message + PlaceOf(array, bytes);
      ForEachMember(To(), origin, [&](std::size_t member, const pm::Run& run) {
        CopyRows(from, array.ToRow(member, run.row), run.count, array.bytes);
        from += array.Bytes(run.count);
      });
    });
  }
  // Where the rows of an array begin in a message of so many bytes.
  std::int64_t PlaceOf(const RowArray& array, std::int64_t bytes) const {
    std::int64_t before = 0;
    for (const RowArray* other = arrays_.data(); other != &array; ++other) before += other->bytes;
    return row_bytes_ == 0 ? 0 : bytes / row_bytes_ * before;
  }

  void Stay() const {
    for (std::size_t member = 0; member < ways_.size(); ++member) {
      const std::vector<pm::Stay>& stays = ways_[member].stays;
      const auto count = static_cast<std::int64_t>(stays.size());
      constexpr std::int64_t some = 16;  // of at most pm::kMostInRun rows
      ForEach((count + some - 1) / some, ways_[member].used() * row_bytes_,
              [&](std::int64_t task, const RowArray& array) {
                for (std::int64_t i = task * some; i < std::min((task + 1) * some, count); ++i) {
                  const pm::Stay& stay = stays[static_cast<std::size_t>(i)];
                  const char* const from = array.FromRow(member, kThere ? stay.from : stay.to);
                  char* const to = array.ToRow(member, kThere ? stay.to : stay.from);
                  if (from != to) CopyRows(from, to, stay.count, array.bytes);
                }
              });
    }
  }
  void ClearUnused() const {
    for (std::size_t member = 0; member < ways_.size(); ++member) {
      const std::vector<pm::Run>& unused = (ways_[member].*To()).unused;
      ForEachArray(pm::CountIn(unused) * row_bytes_, [&](const RowArray& array) {
        for (const pm::Run& run : unused) {
          std::memset(array.ToRow(member, run.row), 0, array.Bytes(run.count));
        }
      });
    }
  }

  const Communicator& comm_;
  const std::vector<pm::Way>& ways_;
  const std::vector<RowArray>& arrays_;
  ffi::ThreadPool& pool_;
  std::int64_t row_bytes_ = 0;
};

// The arrays of a call, or nothing if their rows do not fit the order, or each other.
struct RowArrays {
  std::vector<RowArray> all;
  std::int64_t capacity = 0;  // rows where they arrive
  Payload payload;
};
template <bool kThere>
std::optional<RowArrays> FindRowArrays(const Integers& order, const ffi::RemainingArgs& sources,
                                       const ffi::RemainingRets& targets) {
  const std::size_t axes = order.dimensions().size();
  const std::int64_t members = axes == 1 ? 1 : order.dimensions()[0];
  RowArrays found;
  Parameters parameters(GetOptions().check);
  if (sources.size() != targets.size()) return std::nullopt;
  for (std::size_t i = 0; i + 1 < sources.size(); ++i) {  // the token is the last
    const auto source = sources.get<Operand>(i);
    auto target = targets.get<ffi::AnyBuffer>(i);
    if (!source || !target || source->dimensions().size() < axes ||
        (*target)->dimensions().size() < axes) {
      return std::nullopt;
    }
    const ffi::AnyBuffer& into = **target;
    const Element element = ElementOf(source->element_type());
    const std::int64_t width = WidthOf(*source, axes);
    const RowArray array{static_cast<const char*>(source->untyped_data()),
                         static_cast<char*>(into.untyped_data()), source->dimensions()[axes - 1],
                         into.dimensions()[axes - 1], width * InfoOf(element).bytes};
    const std::int64_t rows = kThere ? array.from_rows : array.to_rows;
    const std::int64_t capacity = kThere ? array.to_rows : array.from_rows;
    if (i == 0) {
      found.capacity = capacity;
      found.payload.element = element;
      found.payload.count = width;
    }
    if (rows != order.dimensions()[axes - 1] || capacity != found.capacity ||
        into.element_type() != source->element_type() ||
        CountOf(*source) != members * array.from_rows * width ||
        CountOf(into) != members * array.to_rows * width) {
      return std::nullopt;
    }
    parameters.Add("width", width).Add("type", static_cast<std::int64_t>(element));
    found.all.push_back(array);
  }
  found.payload.detail = parameters.words();
  found.payload.parameters = parameters.hash();
  return found;
}

// There: rows of arrays x (rows, ...) in order[0], order[1], ... go to rank 0 first, then to rank
// 1, and so on, to the places in y (capacity, ...) that `Way` finds. Back is the transpose: y's
// rows return to where they left x. In both, rows that nobody has sent are zero. All arrays may
// have a batch in front, whose members go in the same messages.
template <bool kThere>
ffi::Error MoveRows(const CallSite& site, ffi::ThreadPool pool, Integers order, Integers outgoing,
                    Integers incoming, ffi::RemainingArgs sources, ffi::RemainingRets targets) {
  const auto arrays = FindRowArrays<kThere>(order, sources, targets);
  if (!arrays) return Invalid("an exchange of rows of arrays that do not fit");
  const std::size_t axes = order.dimensions().size();
  const std::int64_t members = axes == 1 ? 1 : order.dimensions()[0];
  const std::int64_t rows = order.dimensions()[axes - 1];
  for (const RowArray& array : arrays->all) {
    if (array.from == array.to) continue;
    PrepareToWrite(array.to, array.Bytes(members * array.to_rows));
  }
  return Run(site, arrays->payload, [&](Communicator& comm) {
    const auto counts = static_cast<std::size_t>(members * comm.size);
    if (outgoing.element_count() != counts || incoming.element_count() != counts) {
      return RowsDoNotFit(site.operation, comm);
    }
    std::vector<pm::Way> ways;
    std::int64_t used = 0;
    for (std::int64_t member = 0; member < members; ++member) {
      const std::int64_t at = member * comm.size;
      ways.emplace_back(pool, comm.rank, comm.size, order.typed_data() + member * rows, rows,
                        outgoing.typed_data() + at, incoming.typed_data() + at, arrays->capacity);
      if (!ways.back().fits()) return RowsDoNotFit(site.operation, comm);
      if (!ways.back().is_order()) {
        return Failed(site.operation, comm, "the order of the rows leads outside the buffers");
      }
      used += ways.back().used();
    }
    comm.given_bytes = 0;
    for (const RowArray& array : arrays->all) comm.given_bytes += used * array.bytes;
    const int code = Mover<kThere>(comm, ways, arrays->all, pool).Run();
    if (code != 0) return MpiFailed(site.operation, comm, Element::kU8, comm.given_bytes, code);
    return ffi::Error::Success();
  });
}

}  // namespace

std::vector<Registration> ParticleHandlers() {
  return {Handler<OrderByOwner>("pfftjax_order_by_owner", "n0", "n1", "n2", "rows_comm",
                                "columns_comm")
              .OnHost(),
          Handler<OrderByRank>("pfftjax_order_by_rank").OnHost(),
          SiteHandler<Operation::kMoveRows, MoveRows<true>>("pfftjax_move_rows"),
          SiteHandler<Operation::kReturnRows, MoveRows<false>>("pfftjax_return_rows")};
}

}  // namespace pfftjax

// The way of rows to the ranks that own them, and back.
#include <algorithm>
#include <cstring>
#include <memory>
#include <optional>
#include <vector>

#include "collectives/exchange.h"
#include "collectives/rows.h"
#include "pm/way.h"
#include "runtime/agreement.h"
#include "runtime/handlers.h"
#include "runtime/tasks.h"

namespace pfftjax {
namespace {

using Integers = ffi::Buffer<ffi::S32>;

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

std::vector<Registration> RouteHandlers() {
  return {SiteHandler<Operation::kMoveRows, MoveRows<true>>("pfftjax_move_rows"),
          SiteHandler<Operation::kReturnRows, MoveRows<false>>("pfftjax_return_rows")};
}

}  // namespace pfftjax

// scan and exscan: reductions over the ranks up to this one.
#include <algorithm>
#include <cstring>
#include <limits>
#include <vector>

#include "base/types.h"
#include "collectives/exchange.h"
#include "runtime/handlers.h"

namespace pfftjax {
namespace {

// The value that changes nothing. Python lets only numbers that have one come this far; zero for
// an operation of the user's.
template <typename T>
T Identity(Reduction reduction) {
  if constexpr (kIsHalf<T>) {
    return T::From(Identity<float>(reduction));
  } else if constexpr (kIsComplex<T>) {
    return reduction == Reduction::kProd ? T{1} : T{};
  } else {
    using Limits = std::numeric_limits<T>;
    switch (reduction) {
      case Reduction::kProd:
      case Reduction::kLand:
        return T{1};
      case Reduction::kMin:
        return Limits::has_infinity ? Limits::infinity() : Limits::max();
      case Reduction::kMax:
        return Limits::has_infinity ? -Limits::infinity() : Limits::lowest();
      case Reduction::kBand:
        return static_cast<T>(-1);  // all bits, of an integer
      default:
        return T{};
    }
  }
}

void FillIdentity(void* data, std::int64_t count, Element element, Reduction reduction) {
  WithType(element, [&](auto zero) {
    using T = decltype(zero);
    std::fill_n(static_cast<T*>(data), count, Identity<T>(reduction));
  });
}

// One way to add over the ranks from this one to the last: each step doubles how many are in.
// A piece at a time, so that what is received needs little room. An MPI code.
int ScanFromTheEnd(const Communicator& comm, Element element, Reduction reduction, bool exclusive,
                   const char* x, char* y, std::int64_t count) {
  constexpr std::int64_t kPieceBytes = std::int64_t{1} << 20;
  const std::int64_t bytes = InfoOf(element).bytes;
  const std::int64_t limit = std::min(ChunkElements(element), kPieceBytes / bytes);
  std::vector<char> arriving(static_cast<std::size_t>(std::min(limit, count) * bytes));
  return ForEachChunk(count, limit, [&](std::int64_t offset, std::int64_t piece) {
    const char* const from = x + offset * bytes;
    char* const to = y + offset * bytes;
    // Sends to the rank `distance` before this one, and receives from the one after.
    const auto shift = [&](const char* send, char* recv, int distance) {
      const int dest = comm.rank - distance;
      const int source = comm.rank + distance;
      return SendrecvInChunks(comm, send, dest >= 0 ? piece : 0, dest, recv,
                              source < comm.size ? piece : 0, source, element);
    };
    if (exclusive) {
      FillIdentity(to, piece, element, reduction);
      if (const int code = shift(from, to, 1)) return code;
    } else {
      std::memcpy(to, from, static_cast<std::size_t>(piece * bytes));
    }
    for (int distance = 1; distance < comm.size; distance *= 2) {
      if (const int code = shift(to, arriving.data(), distance)) return code;
      if (comm.rank + distance >= comm.size) continue;
      const int code = Mpi()->reduce_local(arriving.data(), to, piece, element, reduction);
      if (code != 0) return code;
    }
    return 0;
  });
}

// Over the ranks from the first to this one, or (`reverse`) from this one to the last; without
// this one itself if `exclusive`.
ffi::Error Scan(const CallSite& site, std::int32_t op, bool exclusive, bool reverse, Operand x,
                Token, Result y, TokenResult) {
  const std::int64_t count = CountOf(x);
  const auto reduction = static_cast<Reduction>(op);
  PrepareToWrite(y->untyped_data(), y->size_bytes());
  const char* manner = exclusive ? (reverse ? " exclusive, from the end" : " exclusive")
                                 : (reverse ? " from the end" : "");
  const Detail detail{op, -1, manner};
  return RunOn(site, x, detail.Say(), detail.Number(), [&](Communicator& comm, Element element) {
    const auto* from = static_cast<const char*>(x.untyped_data());
    auto* to = static_cast<char*>(y->untyped_data());
    if (reverse) return ScanFromTheEnd(comm, element, reduction, exclusive, from, to, count);
    const auto scan = exclusive ? Mpi()->exscan : Mpi()->scan;
    const int code =
        ForEachChunk(count, ChunkElements(element), [&](std::int64_t offset, std::int64_t piece) {
          return scan(At(x.untyped_data(), offset, element),
                      At(y->untyped_data(), offset, element), piece, element, reduction,
                      comm.data);
        });
    // MPI leaves the first rank's result undefined.
    if (code == 0 && exclusive && comm.rank == 0) FillIdentity(to, count, element, reduction);
    return code;
  });
}

}  // namespace

std::vector<Registration> ScanHandlers() {
  return {SiteHandler<Operation::kScan, Scan>("pfftjax_scan", "op", "exclusive", "reverse")};
}

}  // namespace pfftjax

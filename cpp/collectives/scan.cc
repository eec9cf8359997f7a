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
// A piece at a time, so that what is received needs little room.
class FromTheEnd {
 public:
  FromTheEnd(const Communicator& comm, Element element, Reduction reduction, bool exclusive)
      : comm_(comm), element_(element), reduction_(reduction), exclusive_(exclusive) {}

  int Run(const char* x, char* y, std::int64_t count) {
    constexpr std::int64_t kPieceBytes = std::int64_t{1} << 20;
    const std::int64_t bytes = InfoOf(element_).bytes;
    const std::int64_t limit = std::min(ChunkElements(element_), kPieceBytes / bytes);
    arriving_.resize(static_cast<std::size_t>(std::min(limit, count) * bytes));
    return ForEachChunk(count, limit, [&](std::int64_t offset, std::int64_t piece) {
      return RunPiece(x + offset * bytes, y + offset * bytes, piece);
    });
  }

 private:
  int RunPiece(const char* x, char* y, std::int64_t count) {
    const auto bytes = static_cast<std::size_t>(count * InfoOf(element_).bytes);
    if (exclusive_) {
      FillIdentity(y, count, element_, reduction_);
      if (const int code = Shift(x, y, count, 1)) return code;
    } else {
      std::memcpy(y, x, bytes);
    }
    for (int distance = 1; distance < comm_.size; distance *= 2) {
      if (const int code = Shift(y, arriving_.data(), count, distance)) return code;
      if (comm_.rank + distance >= comm_.size) continue;
      const int code = Mpi()->reduce_local(arriving_.data(), y, count, element_, reduction_);
      if (code != 0) return code;
    }
    return 0;
  }

  // Sends to the rank `distance` before this one, and receives from the one after.
  int Shift(const char* send, char* recv, std::int64_t count, int distance) {
    const bool sending = comm_.rank - distance >= 0;
    const bool receiving = comm_.rank + distance < comm_.size;
    const int tag = ExchangeTag(comm_);
    Envelope arrived;
    const int code = Mpi()->sendrecv(
        send, count, element_, sending ? comm_.rank - distance : Mpi()->proc_null, tag, recv,
        count, element_, receiving ? comm_.rank + distance : Mpi()->proc_null, tag, comm_.control,
        &arrived, {});
    return code == 0 && receiving && arrived.count != count ? kShortMessage : code;
  }

  const Communicator& comm_;
  Element element_;
  Reduction reduction_;
  bool exclusive_;
  std::vector<char> arriving_;
};

// Over the ranks from the first to this one, or (`reverse`) from this one to the last; without
// this one itself if `exclusive`.
ffi::Error Scan(const CallSite& site, std::int32_t op, bool exclusive, bool reverse, Operand x,
                Token, Result y, TokenResult) {
  const std::int64_t count = CountOf(x);
  const auto reduction = static_cast<Reduction>(op);
  AdviseHugePages(y->untyped_data(), y->size_bytes());
  const char* manner = exclusive ? (reverse ? " exclusive, from the end" : " exclusive")
                                 : (reverse ? " from the end" : "");
  const Detail detail{op, -1, manner};
  return RunOn(site, x, detail.Say(), detail.Number(), [&](Communicator& comm, Element element) {
    const auto* from = static_cast<const char*>(x.untyped_data());
    auto* to = static_cast<char*>(y->untyped_data());
    if (reverse) return FromTheEnd(comm, element, reduction, exclusive).Run(from, to, count);
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
  return {SiteHandler<Operation::kScan, Scan>("pfftjax_scan", "op", "exclusive", "reverse")
              .WithStaging()};
}

}  // namespace pfftjax

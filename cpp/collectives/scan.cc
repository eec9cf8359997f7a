// scan and exscan: reductions over the ranks up to this one.
#include <cstring>
#include <limits>
#include <vector>

#include "base/half.h"
#include "collectives/exchange.h"
#include "runtime/handlers.h"

namespace pfftjax {
namespace {

template <typename T>
void Fill(void* data, std::int64_t count, T value) {
  std::fill_n(static_cast<T*>(data), count, value);
}

// The value that changes nothing. Python lets only numbers that have one come this far; zeros for
// an operation of the user's.
template <typename T>
void FillIdentity(void* data, std::int64_t count, Reduction reduction) {
  using Limits = std::numeric_limits<T>;
  switch (reduction) {
    case Reduction::kProd:
    case Reduction::kLand:
      return Fill<T>(data, count, T{1});
    case Reduction::kMin:
      return Fill<T>(data, count, Limits::has_infinity ? Limits::infinity() : Limits::max());
    case Reduction::kMax:
      return Fill<T>(data, count, Limits::has_infinity ? -Limits::infinity() : Limits::lowest());
    default:
      std::memset(data, reduction == Reduction::kBand ? 0xff : 0,
                  static_cast<std::size_t>(count) * sizeof(T));
  }
}

template <typename Half>
void FillHalfIdentity(void* data, std::int64_t count, Reduction reduction) {
  constexpr float kInfinity = std::numeric_limits<float>::infinity();
  const float value = reduction == Reduction::kProd  ? 1.0F
                      : reduction == Reduction::kMin ? kInfinity
                      : reduction == Reduction::kMax ? -kInfinity
                                                     : 0.0F;
  Fill<Half>(data, count, Half::From(value));
}

// A complex number is two numbers, of which the second is zero.
template <typename T>
void FillComplexIdentity(void* data, std::int64_t count, Reduction reduction) {
  for (std::int64_t i = 0; i < count; ++i) {
    static_cast<T*>(data)[2 * i] = reduction == Reduction::kProd ? T{1} : T{0};
    static_cast<T*>(data)[2 * i + 1] = T{0};
  }
}

void FillIdentity(void* data, std::int64_t count, Element element, Reduction reduction) {
  switch (element) {
    case Element::kBool: {
      const bool value = reduction == Reduction::kLand || reduction == Reduction::kBand;
      return Fill<bool>(data, count, value);
    }
    case Element::kS8:
      return FillIdentity<std::int8_t>(data, count, reduction);
    case Element::kS16:
      return FillIdentity<std::int16_t>(data, count, reduction);
    case Element::kS32:
      return FillIdentity<std::int32_t>(data, count, reduction);
    case Element::kS64:
      return FillIdentity<std::int64_t>(data, count, reduction);
    case Element::kU8:
      return FillIdentity<std::uint8_t>(data, count, reduction);
    case Element::kU16:
      return FillIdentity<std::uint16_t>(data, count, reduction);
    case Element::kU32:
      return FillIdentity<std::uint32_t>(data, count, reduction);
    case Element::kU64:
      return FillIdentity<std::uint64_t>(data, count, reduction);
    case Element::kF16:
      return FillHalfIdentity<Float16>(data, count, reduction);
    case Element::kBF16:
      return FillHalfIdentity<BFloat16>(data, count, reduction);
    case Element::kF32:
      return FillIdentity<float>(data, count, reduction);
    case Element::kF64:
      return FillIdentity<double>(data, count, reduction);
    case Element::kC64:
      return FillComplexIdentity<float>(data, count, reduction);
    case Element::kC128:
      return FillComplexIdentity<double>(data, count, reduction);
  }
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

  // To the rank `distance` before this one, from the one after.
  int Shift(const char* send, char* recv, std::int64_t count, int distance) {
    const bool sending = comm_.rank - distance >= 0;
    const bool receiving = comm_.rank + distance < comm_.size;
    const int tag = ExchangeTag(comm_);
    Envelope arrived;
    const int code = Mpi()->sendrecv(
        send, count, element_, sending ? comm_.rank - distance : Mpi()->proc_null, tag, recv,
        count, element_, receiving ? comm_.rank + distance : Mpi()->proc_null, tag, comm_.control,
        &arrived);
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
ffi::Error Scan(std::int64_t number, std::int64_t ranks, std::int64_t signature,
                std::string_view program, std::int32_t op, bool exclusive, bool reverse, Operand x,
                Token, Result y, TokenResult) {
  const std::optional<Element> element = ElementOf(x.element_type());
  if (!element) return BadElement(Operation::kScan, x.element_type());
  const auto count = static_cast<std::int64_t>(x.element_count());
  const auto reduction = static_cast<Reduction>(op);
  const CallSite site{Operation::kScan, number, ranks, signature, program};
  AdviseHugePages(y->untyped_data(), y->size_bytes());
  const char* manner = exclusive ? (reverse ? " exclusive, from the end" : " exclusive")
                                 : (reverse ? " from the end" : "");
  const Detail detail{op, -1, manner};
  return Run(site, Payload{*element, count, detail.Say(), detail.Number()},
             [&](Communicator& comm) {
               const auto* from = static_cast<const char*>(x.untyped_data());
               auto* to = static_cast<char*>(y->untyped_data());
               if (reverse)
                 return FromTheEnd(comm, *element, reduction, exclusive).Run(from, to, count);
               const auto scan = exclusive ? Mpi()->exscan : Mpi()->scan;
               const int code = ForEachChunk(count, ChunkElements(*element),
                                             [&](std::int64_t offset, std::int64_t piece) {
                                               return scan(At(x.untyped_data(), offset, *element),
                                                           At(y->untyped_data(), offset, *element),
                                                           piece, *element, reduction, comm.data);
                                             });
               // MPI leaves the first rank's result undefined.
               if (code == 0 && exclusive && comm.rank == 0)
                 FillIdentity(to, count, *element, reduction);
               return code;
             });
}

XLA_FFI_DEFINE_HANDLER(kScan, Scan,
                       BindSite(ffi::Ffi::Bind())
                           .Attr<std::int32_t>("op")
                           .Attr<bool>("exclusive")
                           .Attr<bool>("reverse")
                           .Arg<ffi::AnyBuffer>()
                           .Arg<ffi::Token>()
                           .Ret<ffi::AnyBuffer>()
                           .Ret<ffi::Token>());

}  // namespace

std::vector<Registration> ScanHandlers() { return {WithStaging<kScan>("pfftjax_scan")}; }

}  // namespace pfftjax

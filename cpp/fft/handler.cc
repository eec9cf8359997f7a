// The FFT of a rank's own data as an XLA FFI handler: no communication, no order.
#include "fft/planes.h"
#include "runtime/handlers.h"
#include "runtime/profile.h"

namespace pfftjax {
namespace {

using fft::IsReal;
using fft::Kind;
using fft::PlaneFft;

template <typename T>
ffi::Error Transform(Kind kind, std::int64_t axes, std::int64_t n, double scale,
                     ffi::ThreadPool& pool, const Operand& x, Result& y) {
  const auto from = x.dimensions();
  const auto to = y->dimensions();
  const std::size_t rank = from.size();
  const std::int64_t spectrum = n / 2 + 1;
  const std::int64_t complex = kind <= Kind::kBackward ? n : spectrum;
  const std::int64_t in_n = IsReal(kind, true) ? n : complex;
  const std::int64_t out_n = IsReal(kind, false) ? n : complex;
  bool fits = (axes == 1 || axes == 2) && rank == to.size() &&
              static_cast<std::int64_t>(rank) >= axes && n > 0 && from[rank - 1] == in_n &&
              to[rank - 1] == out_n;
  std::int64_t lines = 1;
  for (std::size_t i = 0; fits && i + 1 < rank; ++i) {
    fits = from[i] == to[i];
    lines *= from[i];
  }
  if (!fits) return Invalid("fft of buffers that do not fit");
  if (lines == 0) return ffi::Error::Success();

  const std::int64_t rows = axes == 2 ? from[rank - 2] : 1;
  const PlaneFft<T> transform(kind, n, axes == 2, rows, static_cast<T>(scale));
  fft::TransformPlanes(pool, transform, static_cast<const T*>(x.untyped_data()),
                       static_cast<T*>(y->untyped_data()), lines, rows);
  return ffi::Error::Success();
}

ffi::Error Fft(std::int32_t kind, std::int32_t axes, std::int64_t n, double scale,
               ffi::ThreadPool pool, Operand x, Result y) {
  const Timed timed(Operation::kFftOfLines, BytesOf(x));
  PrepareToWrite(y->untyped_data(), y->size_bytes());
  return IsDouble(x) ? Transform<double>(static_cast<Kind>(kind), axes, n, scale, pool, x, y)
                     : Transform<float>(static_cast<Kind>(kind), axes, n, scale, pool, x, y);
}

}  // namespace

std::vector<Registration> FftHandlers() {
  return {Handler<Fft>("pfftjax_fft", "kind", "axes", "n", "scale").OnHost()};
}

}  // namespace pfftjax

// The FFT of a rank's own data as an XLA FFI handler: no communication, no order.
#include <algorithm>
#include <cstdlib>
#include <memory>
#include <new>

#include "../handlers.h"
#include "../tasks.h"
#include "select.h"

namespace pfftjax {
namespace {

using fft::Kind;
using fft::Lines;

bool IsReal(Kind kind, bool of_input) {
  if (kind == Kind::kForward || kind == Kind::kBackward) return false;
  const bool from_real = kind == Kind::kRealToComplex || kind == Kind::kComplexToRealTransposed;
  return from_real == of_input;
}

// Memory for one thread: small ones are kept for its next transform.
class Workspace {
 public:
  explicit Workspace(std::size_t bytes) {
    constexpr std::size_t line = 64;
    bytes = (bytes + line - 1) / line * line;
    std::unique_ptr<void, Free>& data = bytes <= kKeptBytes ? kept_ : own_;
    if (bytes > kKeptBytes || bytes > kept_bytes_) {
      data.reset(std::aligned_alloc(line, bytes));
      if (&data == &kept_) kept_bytes_ = data ? bytes : 0;
      if (!data) throw std::bad_alloc();
    }
    data_ = data.get();
  }
  void* data() const { return data_; }

 private:
  struct Free {
    void operator()(void* data) const { std::free(data); }
  };
  static constexpr std::size_t kKeptBytes = std::size_t{4} << 20;
  static inline thread_local std::unique_ptr<void, Free> kept_;
  static inline thread_local std::size_t kept_bytes_ = 0;
  std::unique_ptr<void, Free> own_;
  void* data_ = nullptr;
};

template <typename T>
struct Job {
  Kind kind;
  std::int64_t n;     // of the last axis
  std::int64_t in_n;  // elements of a line, complex or real
  std::int64_t out_n;
  std::int64_t rows;  // lines of a plane, and, with two axes, the length of the second
  bool both_axes;
  T scale;
  const T* in;
  T* out;
  std::int64_t in_plane;  // numbers of type T in a plane
  std::int64_t out_plane;

  const fft::Lanes& lanes = fft::ChosenLanes();
  int width = lanes.lines<T>();
  const fft::Plan<T>& last =
      fft::PlanFor<T>(n % 2 == 0 && (IsReal(kind, true) || IsReal(kind, false)) ? n / 2 : n);
  const fft::Plan<T>* across = both_axes ? &fft::PlanFor<T>(rows) : nullptr;

  // Along the last axis, `count` rows.
  void Along(const T* from, T* to, std::int64_t count, T factor, void* workspace) const {
    const std::int64_t in_step = in_n * (IsReal(kind, true) ? 1 : 2);
    const std::int64_t out_step = out_n * (IsReal(kind, false) ? 1 : 2);
    for (std::int64_t row = 0; row < count; row += width) {
      lanes.transform<T>()(last, kind, n, Lines<const T>{from + row * in_step, 1, in_n},
                           Lines<T>{to + row * out_step, 1, out_n},
                           static_cast<int>(std::min<std::int64_t>(width, count - row)), factor,
                           workspace);
    }
  }

  // Along the axis before it, `columns` complex numbers wide.
  void Across(const T* from, T* to, std::int64_t columns, T factor, void* workspace) const {
    const bool backward = kind == Kind::kBackward || kind == Kind::kComplexToReal ||
                          kind == Kind::kComplexToRealTransposed;
    for (std::int64_t column = 0; column < columns; column += width) {
      lanes.transform<T>()(
          *across, backward ? Kind::kBackward : Kind::kForward, rows,
          Lines<const T>{from + 2 * column, columns, 1}, Lines<T>{to + 2 * column, columns, 1},
          static_cast<int>(std::min<std::int64_t>(width, columns - column)), factor, workspace);
    }
  }

  std::size_t WorkspaceBytes() const {
    const std::int64_t vectors =
        std::max(last.workspace + n / 2 + 1, across ? across->workspace : 0);
    return static_cast<std::size_t>(vectors) * 2 * lanes.vector_bytes;
  }
  // A plane between the axes, where neither side has room for complex numbers.
  std::size_t PlaneBytes() const {
    const bool needs = both_axes && IsReal(kind, false);
    return needs ? static_cast<std::size_t>(rows * in_n) * 2 * sizeof(T) : 0;
  }

  // The last axis first on the way to a spectrum, and last on the way back.
  void Plane(std::int64_t plane) const {
    const std::size_t bytes = (WorkspaceBytes() + 63) / 64 * 64;
    const Workspace memory(bytes + PlaneBytes());
    void* const workspace = memory.data();
    const T* const from = in + plane * in_plane;
    T* const to = out + plane * out_plane;
    if (!both_axes) {
      Along(from, to, rows, scale, workspace);
    } else if (kind == Kind::kForward || kind == Kind::kRealToComplex ||
               kind == Kind::kComplexToRealTransposed) {
      Along(from, to, rows, T(1), workspace);
      Across(to, to, out_n, scale, workspace);
    } else {
      T* const between =
          PlaneBytes() > 0 ? reinterpret_cast<T*>(static_cast<char*>(workspace) + bytes) : to;
      Across(from, between, in_n, T(1), workspace);
      Along(between, to, rows, scale, workspace);
    }
  }
};

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
  bool fits = rank == to.size() && static_cast<std::int64_t>(rank) >= axes && n > 0 &&
              from[rank - 1] == in_n && to[rank - 1] == out_n;
  std::int64_t lines = 1;
  for (std::size_t i = 0; fits && i + 1 < rank; ++i) {
    fits = from[i] == to[i];
    lines *= from[i];
  }
  if (!fits || (axes != 1 && axes != 2)) {
    return ffi::Error(ffi::ErrorCode::kInvalidArgument, "pfftjax: fft of buffers that do not fit");
  }
  if (lines == 0) return ffi::Error::Success();

  // Without a second axis, some lines at a time serve as a plane.
  const int width = fft::ChosenLanes().lines<T>();
  const std::int64_t rows = axes == 2 ? from[rank - 2] : std::min<std::int64_t>(lines, 4 * width);
  Job<T> job{kind,
             n,
             in_n,
             out_n,
             rows,
             axes == 2,
             static_cast<T>(scale),
             static_cast<const T*>(x.untyped_data()),
             static_cast<T*>(y->untyped_data()),
             rows * in_n * (IsReal(kind, true) ? 1 : 2),
             rows * out_n * (IsReal(kind, false) ? 1 : 2)};
  constexpr std::int64_t worth_a_thread = 1 << 15;
  const std::int64_t helpers =
      std::min<std::int64_t>(pool.num_threads() - 1, lines * n / worth_a_thread);
  const std::int64_t planes = (lines + rows - 1) / rows;
  ForEachTask(pool, planes, helpers, [job, lines, planes](std::int64_t plane) {
    if (job.both_axes || plane + 1 < planes) {
      job.Plane(plane);
    } else {
      Job<T> rest = job;
      rest.rows = lines - plane * job.rows;
      rest.Plane(plane);
    }
  });
  return ffi::Error::Success();
}

ffi::Error Fft(std::int32_t kind, std::int32_t axes, std::int64_t n, double scale,
               ffi::ThreadPool pool, Operand x, Result y) {
  AdviseHugePages(y->untyped_data(), y->size_bytes());
  const bool is_double =
      x.element_type() == ffi::DataType::F64 || x.element_type() == ffi::DataType::C128;
  return is_double ? Transform<double>(static_cast<Kind>(kind), axes, n, scale, pool, x, y)
                   : Transform<float>(static_cast<Kind>(kind), axes, n, scale, pool, x, y);
}

XLA_FFI_DEFINE_HANDLER(kFft, Fft,
                       ffi::Ffi::Bind()
                           .Attr<std::int32_t>("kind")
                           .Attr<std::int32_t>("axes")
                           .Attr<std::int64_t>("n")
                           .Attr<double>("scale")
                           .Ctx<ffi::ThreadPool>()
                           .Arg<ffi::AnyBuffer>()
                           .Ret<ffi::AnyBuffer>());

}  // namespace

std::vector<Registration> FftHandlers() {
  return {{"pfftjax_fft", reinterpret_cast<void*>(kFft)}};
}

}  // namespace pfftjax

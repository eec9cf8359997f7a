// Transforms of a rank's own data, plane by plane.
#pragma once

#include <algorithm>
#include <cstdlib>
#include <memory>
#include <new>

#include "fft/select.h"
#include "runtime/tasks.h"

namespace pfftjax::fft {

inline bool IsReal(Kind kind, bool of_input) {
  if (kind == Kind::kForward || kind == Kind::kBackward) return false;
  const bool from_real = kind == Kind::kRealToComplex || kind == Kind::kComplexToRealTransposed;
  return from_real == of_input;
}

// Memory for one thread, for a purpose: small ones are kept for its next transform. One at a time.
template <typename Purpose>
class ThreadMemory {
 public:
  explicit ThreadMemory(std::size_t bytes) {
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
  static constexpr std::size_t kKeptBytes = std::size_t{32} << 20;
  static inline thread_local std::unique_ptr<void, Free> kept_;
  static inline thread_local std::size_t kept_bytes_ = 0;
  std::unique_ptr<void, Free> own_;
  void* data_ = nullptr;
};

using Workspace = ThreadMemory<struct ForTransforms>;

// The transforms along the last axis of an array, or the last two.
template <typename T>
class PlaneFft {
 public:
  // `n` is the length of the last axis in real space, `rows` the length of the axis before it,
  // where that is transformed as well.
  PlaneFft(Kind kind, std::int64_t n, bool both_axes, std::int64_t rows, T scale)
      : kind_(kind), n_(n), both_axes_(both_axes), scale_(scale) {
    const bool is_real = IsReal(kind, true) || IsReal(kind, false);
    const std::int64_t complex = is_real ? n / 2 + 1 : n;
    in_length_ = IsReal(kind, true) ? n : complex;
    out_length_ = IsReal(kind, false) ? n : complex;
    in_numbers_ = in_length_ * (IsReal(kind, true) ? 1 : 2);
    out_numbers_ = out_length_ * (IsReal(kind, false) ? 1 : 2);
    last_ = &PlanFor<T>(is_real && n % 2 == 0 ? n / 2 : n);
    if (both_axes) across_ = &PlanFor<T>(rows);
  }

  // Elements of a line, complex or real; and numbers of type T in it.
  std::int64_t in_length() const { return in_length_; }
  std::int64_t out_length() const { return out_length_; }
  std::int64_t in_numbers() const { return in_numbers_; }
  std::int64_t out_numbers() const { return out_numbers_; }
  std::int64_t length() const { return n_; }  // of the last axis in real space
  bool both_axes() const { return both_axes_; }
  int width() const { return width_; }

  // `rows` lines that follow each other, a whole plane where both axes are transformed. In place
  // if `to` is `from` and lines keep their size. The last axis comes first on the way to a
  // spectrum, and last on the way back.
  void Run(const T* from, T* to, std::int64_t rows) const {
    const bool needs_plane = both_axes_ && IsReal(kind_, false);
    RunBy(from, to, rows, needs_plane ? nullptr : to);
  }

  // The same from memory that may be written: what is between two axes stays there, and `to` is
  // written once.
  void RunOver(T* from, T* to, std::int64_t rows) const { RunBy(from, to, rows, from); }

  // `count` lines, at most `width`, wherever their elements are; the last axis only.
  void RunLines(Lines<const T> from, Lines<T> to, int count) const {
    const Workspace memory(WorkspaceBytes());
    lanes_->transform<T>()(*last_, kind_, n_, from, to, count, scale_, memory.data());
  }

 private:
  // `between` is for planes of which the last axis comes last; null for memory of our own.
  void RunBy(const T* from, T* to, std::int64_t rows, T* between) const {
    const std::size_t bytes = (WorkspaceBytes() + 63) / 64 * 64;
    const auto plane = static_cast<std::size_t>(rows * in_numbers_) * sizeof(T);
    const Workspace memory(bytes + (between ? 0 : plane));
    void* const workspace = memory.data();
    if (!both_axes_) {
      Along(from, to, rows, scale_, workspace);
    } else if (kind_ == Kind::kForward || kind_ == Kind::kRealToComplex ||
               kind_ == Kind::kComplexToRealTransposed) {
      Along(from, to, rows, T(1), workspace);
      Across(to, to, rows, out_length_, scale_, workspace);
    } else {
      if (!between) between = reinterpret_cast<T*>(static_cast<char*>(workspace) + bytes);
      Across(from, between, rows, in_length_, T(1), workspace);
      Along(between, to, rows, scale_, workspace);
    }
  }

  void Along(const T* from, T* to, std::int64_t rows, T factor, void* workspace) const {
    for (std::int64_t row = 0; row < rows; row += width_) {
      lanes_->transform<T>()(
          *last_, kind_, n_, Lines<const T>{from + row * in_numbers_, 1, in_length_},
          Lines<T>{to + row * out_numbers_, 1, out_length_},
          static_cast<int>(std::min<std::int64_t>(width_, rows - row)), factor, workspace);
    }
  }

  // Along the axis before the last, `columns` complex numbers wide.
  void Across(const T* from, T* to, std::int64_t rows, std::int64_t columns, T factor,
              void* workspace) const {
    const bool backward = kind_ == Kind::kBackward || kind_ == Kind::kComplexToReal ||
                          kind_ == Kind::kComplexToRealTransposed;
    for (std::int64_t column = 0; column < columns; column += width_) {
      lanes_->transform<T>()(
          *across_, backward ? Kind::kBackward : Kind::kForward, rows,
          Lines<const T>{from + 2 * column, columns, 1}, Lines<T>{to + 2 * column, columns, 1},
          static_cast<int>(std::min<std::int64_t>(width_, columns - column)), factor, workspace);
    }
  }

  std::size_t WorkspaceBytes() const {
    const std::int64_t vectors =
        std::max(last_->workspace + n_ / 2 + 1, across_ ? across_->workspace : 0);
    return static_cast<std::size_t>(vectors) * 2 * lanes_->vector_bytes;
  }

  Kind kind_;
  std::int64_t n_;
  bool both_axes_;
  T scale_;
  std::int64_t in_length_ = 0;
  std::int64_t out_length_ = 0;
  std::int64_t in_numbers_ = 0;
  std::int64_t out_numbers_ = 0;
  const Plan<T>* last_ = nullptr;
  const Plan<T>* across_ = nullptr;
  const Lanes* lanes_ = &ChosenLanes();
  int width_ = lanes_->lines<T>();
};

// Transforms `lines` lines, which follow each other in planes of `rows`, on several threads: a
// plane at a time, or some lines where the last axis only is transformed.
template <typename T>
void TransformPlanes(ffi::ThreadPool& pool, const PlaneFft<T>& transform, const T* from, T* to,
                     std::int64_t lines, std::int64_t rows) {
  const std::int64_t tile = transform.both_axes() ? rows : 4 * transform.width();
  if (lines == 0) return;
  constexpr std::int64_t worth_a_thread = 1 << 15;
  const std::int64_t helpers =
      std::min<std::int64_t>(pool.num_threads() - 1, lines * transform.length() / worth_a_thread);
  ForEachTask(pool, (lines + tile - 1) / tile, helpers, [=, &transform](std::int64_t task) {
    const std::int64_t line = task * tile;
    transform.Run(from + line * transform.in_numbers(), to + line * transform.out_numbers(),
                  std::min(tile, lines - line));
  });
}

}  // namespace pfftjax::fft

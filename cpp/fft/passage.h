// Through the cache from one pencil to another: what the first transform makes of a plane goes
// from the cache to where the other rank reads it, and what arrives is transformed in the cache on
// its way to the result. On a node each element crosses memory four times, in runs.
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <cstring>
#include <optional>
#include <vector>

#include "../box.h"
#include "../copies.h"
#include "../tasks.h"
#include "planes.h"

namespace pfftjax::fft {

using Three = std::array<std::int64_t, 3>;

// What is worked on at a time stays in L2.
inline constexpr std::int64_t kTileBytes = std::int64_t{512} << 10;
inline constexpr std::int64_t kWorthAThread = std::int64_t{1} << 16;  // complex numbers

// The change of pencil between the transforms. Axes are those of the array that comes in, without
// its batch; all extents are those of what travels, complex numbers.
struct Change {
  int ranks = 1;
  int rank = 0;
  std::int64_t batch = 1;
  int scatter = 0;             // the axis that is whole and becomes split
  int gather = 0;              // the one that is split and becomes whole
  std::array<int, 3> order{};  // of the axes in the result
  Three whole{};               // extents; the third axis is not touched, and this rank's

  Range Scattered(int to) const { return BlockOf(whole[scatter], ranks, to); }
  Range Gathered(int from) const { return BlockOf(whole[gather], ranks, from); }
  Three Before() const {
    Three extents = whole;
    extents[gather] = Gathered(rank).count;
    return extents;
  }
  Three After() const {
    Three extents = whole;
    extents[scatter] = Scattered(rank).count;
    return extents;
  }
};

// What one rank leaves for another: a box without gaps, but for rows that begin on cache lines.
struct Parcel {
  std::int64_t offset = 0;  // in complex numbers, as all that follow
  std::int64_t count = 0;
  std::int64_t batch_stride = 0;
  Three stride{};  // by axis
};

// Of the boxes between all ranks, those of this one: where the rows of `axes[2]` are contiguous.
template <typename T>
class Parcels {
 public:
  Parcels(const Change& change, std::array<int, 3> axes) : change_(change), axes_(axes) {
    for (int other = 0; other < change.ranks; ++other) {
      out_.push_back(Make(change.rank, other));
      in_.push_back(Make(other, change.rank));
    }
  }
  const Parcel& To(int rank) const { return out_[rank]; }
  const Parcel& From(int rank) const { return in_[rank]; }

  // For what any rank leaves for all others, the same number on all ranks. Rank 0 has the largest
  // blocks, and the last rank the smallest.
  std::int64_t MostBytes() const {
    std::int64_t count = 0;
    for (int to = 0; to + 1 < change_.ranks; ++to) count += Shape(0, to).count;
    return count * static_cast<std::int64_t>(2 * sizeof(T));
  }
  std::size_t OwnBytes() const {
    return static_cast<std::size_t>(out_[change_.rank].count) * 2 * sizeof(T);
  }

 private:
  Parcel Shape(int from, int to) const {
    constexpr std::int64_t line = 64 / (2 * sizeof(T));
    Three extents = change_.whole;
    extents[change_.scatter] = change_.Scattered(to).count;
    extents[change_.gather] = change_.Gathered(from).count;
    Parcel parcel;
    parcel.stride[axes_[2]] = 1;
    parcel.stride[axes_[1]] = (extents[axes_[2]] + line - 1) / line * line;
    parcel.stride[axes_[0]] = parcel.stride[axes_[1]] * extents[axes_[1]];
    parcel.batch_stride = parcel.stride[axes_[0]] * extents[axes_[0]];
    parcel.count = parcel.batch_stride * change_.batch;
    return parcel;
  }
  // Parcels for others follow each other; that for itself lies elsewhere.
  Parcel Make(int from, int to) const {
    Parcel parcel = Shape(from, to);
    for (int before = 0; before < to && from != to; ++before) {
      if (before != from) parcel.offset += Shape(from, before).count;
    }
    return parcel;
  }

  const Change& change_;
  std::array<int, 3> axes_;
  std::vector<Parcel> out_;
  std::vector<Parcel> in_;
};

template <typename T>
struct Ends {
  std::vector<T*> to;          // where this rank leaves what is for each
  std::vector<const T*> from;  // where it finds what each has left
};

template <typename T>
using MaybeFft = std::optional<PlaneFft<T>>;

template <typename T>
void CopyRow(T* to, const T* from, std::int64_t complex_numbers) {
  CopyUndrained(reinterpret_cast<char*>(to), reinterpret_cast<const char*>(from),
                static_cast<std::size_t>(complex_numbers) * 2 * sizeof(T));
}
template <typename T>
void LoadRow(T* to, const T* from, std::int64_t complex_numbers) {
  std::memcpy(to, from, static_cast<std::size_t>(complex_numbers) * 2 * sizeof(T));
}

using TileMemory = ThreadMemory<struct ForTiles>;

template <typename T>
T* TileIn(const TileMemory& memory) {
  return static_cast<T*>(memory.data());
}

// How many of `all` rows (or columns) of `length` complex numbers make a tile, in whole groups.
template <typename T>
std::int64_t TileOf(std::int64_t length, std::int64_t all, std::int64_t group) {
  const std::int64_t most =
      kTileBytes / std::max<std::int64_t>(length * static_cast<std::int64_t>(2 * sizeof(T)), 1);
  const std::int64_t groups = (all + group - 1) / group;
  return std::clamp<std::int64_t>(most / group, 1, std::max<std::int64_t>(groups, 1)) * group;
}

// Four ways through the cache. Either the parcels have the order of what comes in, their rows are
// written as they are, and the second transform reads columns; or they have the order of the
// result, and the first transform writes columns.
template <typename T>
class Passage {
 public:
  Passage(const Change& change, const MaybeFft<T>& first, const MaybeFft<T>& second,
          ffi::ThreadPool& pool)
      : change_(change),
        first_(first),
        second_(second),
        pool_(pool),
        reads_columns_(change.order[2] == change.gather && change.order[2] != 2 && second &&
                       !second->both_axes()),
        parcels_(change, reads_columns_ ? std::array<int, 3>{0, 1, 2} : change.order) {}

  // Whether one of the ways is for these transforms.
  bool IsPossible() const {
    if (reads_columns_) return true;
    return first_ && !first_->both_axes() && change_.scatter == 2 && change_.order[2] != 2;
  }
  const Parcels<T>& parcels() const { return parcels_; }

  void Leave(const T* x, const Ends<T>& ends) const {
    reads_columns_ ? LeaveRows(x, ends) : LeaveColumns(x, ends);
  }
  void Fetch(const Ends<T>& ends, T* y) const {
    reads_columns_ ? FetchColumns(ends, y) : FetchRows(ends, y);
  }

 private:
  template <typename Body>
  void ForEach(std::int64_t tasks, Body body) const {
    std::int64_t numbers = change_.batch;
    for (const std::int64_t extent : change_.Before()) numbers *= extent;
    const std::int64_t helpers =
        std::min<std::int64_t>(pool_.num_threads() - 1, numbers / kWorthAThread);
    ForEachTask(pool_, tasks, helpers, body);
  }

  // Planes of axes 1 and 2, transformed along both or the last, in the order of the parcels.
  void LeaveRows(const T* x, const Ends<T>& ends) const {
    const Three extents = change_.Before();
    const bool is_whole = first_ && first_->both_axes();
    const std::int64_t rows =
        is_whole ? extents[1] : TileOf<T>(extents[2], extents[1], ChosenLanes().lines<T>());
    const std::int64_t tiles = rows > 0 ? (extents[1] + rows - 1) / rows : 0;
    if (extents[2] == 0) return;
    ForEach(change_.batch * extents[0] * tiles, [=, &ends](std::int64_t task) {
      const std::int64_t plane = task / tiles;
      const std::int64_t row = task % tiles * rows;
      const std::int64_t count = std::min(rows, extents[1] - row);
      const std::int64_t line = plane * extents[1] + row;
      const TileMemory memory(first_ ? static_cast<std::size_t>(count * extents[2]) * 2 * sizeof(T)
                                     : 0);
      const T* tile = x + line * 2 * extents[2];
      if (first_) {
        first_->Run(x + line * first_->in_numbers(), TileIn<T>(memory), count);
        tile = TileIn<T>(memory);
      }
      for (int to = 0; to < change_.ranks; ++to) {
        LeaveIn(to, tile, {plane % extents[0], row, 0}, {1, count, extents[2]}, plane / extents[0],
                ends);
      }
      Drain();
    });
  }

  // The part for rank `to` of a tile of rows along axis 2, which begins at `at`.
  void LeaveIn(int to, const T* tile, const Three& at, const Three& size, std::int64_t batch,
               const Ends<T>& ends) const {
    const Parcel& parcel = parcels_.To(to);
    Three begin = at;  // in the array
    Three end{at[0] + size[0], at[1] + size[1], at[2] + size[2]};
    Three place = at;  // in the parcel
    const int s = change_.scatter;
    const Range block = change_.Scattered(to);
    begin[s] = std::max(begin[s], block.start);
    end[s] = std::min(end[s], block.start + block.count);
    if (begin[s] >= end[s]) return;
    place[s] = begin[s] - block.start;
    T* target = ends.to[to] + 2 * (batch * parcel.batch_stride + place[0] * parcel.stride[0] +
                                   place[1] * parcel.stride[1] + place[2]);
    const T* source = tile + 2 * ((begin[1] - at[1]) * size[2] + begin[2] - at[2]);
    const std::int64_t length = end[2] - begin[2];
    for (std::int64_t row = begin[1]; row < end[1]; ++row) {
      CopyRow(target, source, length);
      target += 2 * parcel.stride[1];
      source += 2 * size[2];
    }
  }

  // Lines along axis 2, which is scattered, transformed into columns next to each other along the
  // fastest axis of the result.
  void LeaveColumns(const T* x, const Ends<T>& ends) const {
    const Three extents = change_.Before();
    const int across = change_.order[2];
    const int other = 1 - across;
    const std::int64_t length = extents[2];
    const std::int64_t width = first_->width();
    const std::int64_t columns = TileOf<T>(length, extents[across], width);
    const std::int64_t tiles = (extents[across] + columns - 1) / columns;
    const Three lines{extents[1], 1, 0};  // strides in lines
    ForEach(change_.batch * extents[other] * tiles, [=, &ends](std::int64_t task) {
      const std::int64_t outer = task / tiles;
      const std::int64_t batch = outer / extents[other];
      const std::int64_t at = outer % extents[other];
      const std::int64_t column = task % tiles * columns;
      const std::int64_t count = std::min(columns, extents[across] - column);
      const TileMemory memory(static_cast<std::size_t>(length * columns) * 2 * sizeof(T));
      T* const tile = TileIn<T>(memory);
      const std::int64_t line =
          batch * extents[0] * extents[1] + at * lines[other] + column * lines[across];
      for (std::int64_t c = 0; c < count; c += width) {
        first_->RunLines(Lines<const T>{x + (line + c * lines[across]) * first_->in_numbers(), 1,
                                        lines[across] * first_->in_length()},
                         Lines<T>{tile + 2 * c, columns, 1},
                         static_cast<int>(std::min(width, count - c)));
      }
      for (int to = 0; to < change_.ranks; ++to) {
        const Parcel& parcel = parcels_.To(to);
        const Range block = change_.Scattered(to);
        T* target = ends.to[to] + 2 * (batch * parcel.batch_stride + at * parcel.stride[other] +
                                       column * parcel.stride[across]);
        for (std::int64_t i = 0; i < block.count; ++i) {
          CopyRow(target, tile + 2 * (block.start + i) * columns, count);
          target += 2 * parcel.stride[2];
        }
      }
      Drain();
    });
  }

  // Columns along the gathered axis, a tile of them next to each other along axis 2, to lines of
  // the result.
  void FetchColumns(const Ends<T>& ends, T* y) const {
    const Three extents = change_.After();
    const int along = change_.gather;
    const int other = 1 - along;
    const std::int64_t length = extents[along];
    const std::int64_t width = second_->width();
    const std::int64_t columns = TileOf<T>(length, extents[2], width);
    const std::int64_t tiles = (extents[2] + columns - 1) / columns;
    Three lines{};  // strides of the result, in lines
    lines[change_.order[1]] = 1;
    lines[change_.order[0]] = extents[change_.order[1]];
    ForEach(change_.batch * extents[other] * tiles, [=, &ends](std::int64_t task) {
      const std::int64_t outer = task / tiles;
      const std::int64_t batch = outer / extents[other];
      const std::int64_t at = outer % extents[other];
      const std::int64_t column = task % tiles * columns;
      const std::int64_t count = std::min(columns, extents[2] - column);
      const TileMemory memory(static_cast<std::size_t>(length * columns) * 2 * sizeof(T));
      T* const tile = TileIn<T>(memory);
      for (int from = 0; from < change_.ranks; ++from) {
        const Parcel& parcel = parcels_.From(from);
        const Range block = change_.Gathered(from);
        const T* source = ends.from[from] +
                          2 * (batch * parcel.batch_stride + at * parcel.stride[other] + column);
        for (std::int64_t i = 0; i < block.count; ++i) {
          LoadRow(tile + 2 * (block.start + i) * columns, source, count);
          source += 2 * parcel.stride[along];
        }
      }
      const std::int64_t line =
          batch * extents[other] * extents[2] + at * lines[other] + column * lines[2];
      for (std::int64_t c = 0; c < count; c += width) {
        second_->RunLines(Lines<const T>{tile + 2 * c, columns, 1},
                          Lines<T>{y + (line + c * lines[2]) * second_->out_numbers(), 1,
                                   lines[2] * second_->out_length()},
                          static_cast<int>(std::min(width, count - c)));
      }
    });
  }

  // Planes of the last two axes of the result, put together in a tile, and transformed.
  void FetchRows(const Ends<T>& ends, T* y) const {
    const Three extents = change_.After();
    const std::array<int, 3>& order = change_.order;
    const std::int64_t length = extents[order[2]];
    const bool is_whole = second_ && second_->both_axes();
    const std::int64_t rows = is_whole
                                  ? extents[order[1]]
                                  : TileOf<T>(length, extents[order[1]], ChosenLanes().lines<T>());
    const std::int64_t tiles = rows > 0 ? (extents[order[1]] + rows - 1) / rows : 0;
    if (length == 0) return;
    ForEach(change_.batch * extents[order[0]] * tiles, [=, &ends](std::int64_t task) {
      const std::int64_t plane = task / tiles;
      const std::int64_t batch = plane / extents[order[0]];
      const std::int64_t row = task % tiles * rows;
      const std::int64_t count = std::min(rows, extents[order[1]] - row);
      const std::int64_t line = plane * extents[order[1]] + row;
      const TileMemory memory(second_ ? static_cast<std::size_t>(count * length) * 2 * sizeof(T)
                                      : 0);
      T* const tile = second_ ? TileIn<T>(memory) : y + line * 2 * length;
      Three at{};  // by axis
      at[order[0]] = plane % extents[order[0]];
      at[order[1]] = row;
      Three size{};
      size[order[0]] = 1;
      size[order[1]] = count;
      size[order[2]] = length;
      for (int from = 0; from < change_.ranks; ++from) {
        FetchInto(tile, from, at, size, batch, ends);
      }
      if (second_) second_->Run(tile, y + line * second_->out_numbers(), count);
    });
  }

  void FetchInto(T* tile, int from, const Three& at, const Three& size, std::int64_t batch,
                 const Ends<T>& ends) const {
    const Parcel& parcel = parcels_.From(from);
    const int g = change_.gather;
    const Range block = change_.Gathered(from);
    Three begin = at;
    Three end{at[0] + size[0], at[1] + size[1], at[2] + size[2]};
    begin[g] = std::max(begin[g], block.start);
    end[g] = std::min(end[g], block.start + block.count);
    if (begin[g] >= end[g]) return;
    Three place = begin;
    place[g] -= block.start;
    const int rows = change_.order[1];
    const int along = change_.order[2];
    const T* source =
        ends.from[from] + 2 * (batch * parcel.batch_stride + place[0] * parcel.stride[0] +
                               place[1] * parcel.stride[1] + place[2] * parcel.stride[2]);
    T* target = tile + 2 * ((begin[rows] - at[rows]) * size[along] + begin[along] - at[along]);
    for (std::int64_t row = begin[rows]; row < end[rows]; ++row) {
      LoadRow(target, source, end[along] - begin[along]);
      target += 2 * size[along];
      source += 2 * parcel.stride[rows];
    }
  }

  const Change& change_;
  const MaybeFft<T>& first_;
  const MaybeFft<T>& second_;
  ffi::ThreadPool& pool_;
  bool reads_columns_;
  Parcels<T> parcels_;
};

}  // namespace pfftjax::fft

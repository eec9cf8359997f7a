// Through the cache from one pencil to another: what the first transform makes of a plane goes
// from the cache to where the other rank reads it, and what arrives is transformed in the cache on
// its way to the result. On a node each element crosses memory four times, in runs.
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <functional>
#include <optional>
#include <thread>
#include <vector>

#include "base/copies.h"
#include "fft/parcels.h"
#include "fft/pieces.h"
#include "fft/planes.h"
#include "fft/terms.h"
#include "runtime/tasks.h"

namespace pfftjax::fft {

// What is worked on at a time stays in L2.
inline constexpr std::int64_t kTileBytes = std::int64_t{512} << 10;
inline constexpr std::int64_t kWorthAThread = std::int64_t{1} << 16;  // complex numbers

template <typename T>
using MaybeFft = std::optional<PlaneFft<T>>;

// Rows of complex numbers go so many at a time through memory on the stack where they are coded:
// whole blocks, and whole cache lines of code.
inline constexpr std::int64_t kCodedAtOnce = 512;

// A row to its place in a parcel, past the cache.
template <typename T>
void LeaveRow(char* to, const T* from, std::int64_t n, const Parcel& parcel) {
  if (parcel.precision == Precision::kFull) {
    CopyUndrained(to, reinterpret_cast<const char*>(from),
                  static_cast<std::size_t>(n) * 2 * sizeof(T));
    return;
  }
  alignas(64) char code[CodeBytes<T>(2 * kCodedAtOnce)];
  for (std::int64_t done = 0; done < n; done += kCodedAtOnce) {
    const std::int64_t count = std::min(n - done, kCodedAtOnce);
    ChosenLanes().Encode(from + 2 * done, 2 * count, code);
    CopyUndrained(to + parcel.row(done), code, static_cast<std::size_t>(parcel.row(count)));
  }
}

// A row of a parcel into a tile, times `wave`. It begins at `at`, by axis, and runs along an axis.
template <typename T>
void FetchRow(T* to, const char* from, std::int64_t n, const Parcel& parcel, const Wave<T>& wave,
              Three at, int along) {
  if (parcel.precision == Precision::kFull) {
    LoadRow(to, reinterpret_cast<const T*>(from), n, wave, at, along);
    return;
  }
  if (!wave.k) {
    ChosenLanes().Decode(from, 2 * n, to);
    return;
  }
  alignas(64) T row[2 * kCodedAtOnce];
  for (std::int64_t done = 0; done < n; done += kCodedAtOnce) {
    const std::int64_t count = std::min(n - done, kCodedAtOnce);
    ChosenLanes().Decode(from + parcel.row(done), 2 * count, row);
    LoadRow(to + 2 * done, row, count, wave, at, along);
    at[along] += count;
  }
}

using TileMemory = ThreadMemory<struct ForTiles>;

template <typename T>
T* TileIn(const TileMemory& memory) {
  return static_cast<T*>(memory.data());
}

// Returns how many of `all` rows (or columns) of `length` complex numbers make a tile, in whole
// groups: about the same number in each.
template <typename T>
std::int64_t TileOf(std::int64_t length, std::int64_t all, std::int64_t group) {
  const std::int64_t most =
      kTileBytes / std::max<std::int64_t>(length * static_cast<std::int64_t>(2 * sizeof(T)), 1);
  const std::int64_t groups = std::max<std::int64_t>((all + group - 1) / group, 1);
  const std::int64_t tiles = (groups - 1) / std::clamp<std::int64_t>(most / group, 1, groups) + 1;
  return ((groups - 1) / tiles + 1) * group;
}

// A part of an array, in memory as rows along one axis, which follow each other along another.
struct Tile {
  std::int64_t batch;  // the member of the batch
  Three at;            // where it begins in the array, by axis
  Three size;
  int rows;
  int along;
  std::int64_t pitch;  // complex numbers from row to row
};

// Four ways through the cache. Either the parcels have the order of what comes in, their rows are
// written as they are, and the second transform reads columns; or they have the order of the
// result, and the first transform writes columns.
//
// Several arrays may go in, travel, and come out, as `Sums` has it: each tile is then worked on
// for all of them, while it is in the cache.
template <typename T>
class Passage {
 public:
  Passage(const Change& change, const MaybeFft<T>& first, const MaybeFft<T>& second,
          const Sums<T>& sums, ffi::ThreadPool& pool, Cuts cuts = {})
      : change_(change),
        first_(first),
        second_(second),
        sums_(sums),
        pool_(pool),
        reads_columns_(change.order[2] == change.gather && change.order[2] != 2 && second &&
                       !second->both_axes()),
        pieces_(change, reads_columns_ ? std::array<int, 3>{0, 1, 2} : change.order,
                first && first->both_axes(), second && second->both_axes(), cuts) {}

  // Says whether one of the ways is for these transforms and sums.
  bool IsPossible() const {
    if (reads_columns_) return true;
    return first_ && !first_->both_axes() && change_.scatter == 2 && change_.order[2] != 2 &&
           std::all_of(
               sums_.leaving.begin(), sums_.leaving.end(),
               [](const Sum<T>& sum) { return sum.size() == 1 && !sum[0].travelling.k; }) &&
           std::all_of(sums_.arriving.begin(), sums_.arriving.end(),
                       [](const Sum<T>& sum) { return sum.size() == 1 && !sum[0].lines; });
  }
  std::int64_t arrays() const { return static_cast<std::int64_t>(sums_.leaving.size()); }
  const Pieces<T>& pieces() const { return pieces_; }
  const Change& change(int piece = 0) const { return pieces_.change(piece); }
  const Parcels<T>& parcels(int piece = 0) const { return pieces_.parcels(piece); }

  // By piece and array that travels.
  using AllEnds = std::vector<std::vector<Ends>>;
  // Called on the thread of the caller, between two tasks.
  using Between = std::function<void()>;

  // Leaves what is made of the arrays that come in.
  void Leave(const std::vector<const T*>& x, const AllEnds& ends, const Some& some,
             const Between& between) const {
    const Step step{ends, some, between};
    reads_columns_ ? LeaveRows(x, step) : LeaveColumns(x, step);
  }
  void Fetch(const AllEnds& ends, const std::vector<T*>& y, const Some& some,
             const Between& between) const {
    const Step step{ends, some, between};
    reads_columns_ ? FetchColumns(step, y) : FetchRows(step, y);
  }

 private:
  struct Step {
    const AllEnds& ends;
    const Some& some;
    const Between& between;
  };

  // The tasks are about so many complex numbers of each array.
  template <typename Body>
  void ForEach(std::int64_t tasks, std::int64_t numbers, const Step& step, Body body) const {
    const std::int64_t helpers =
        std::min<std::int64_t>(pool_.num_threads() - 1, numbers / kWorthAThread);
    if (!step.between) return ForEachTask(pool_, tasks, helpers, body);
    ForEachTask(pool_, tasks, helpers,
                [&step, body, caller = std::this_thread::get_id()](std::int64_t task) {
                  body(task);
                  if (std::this_thread::get_id() == caller) step.between();
                });
  }

  // Columns of a tile come in groups of lines that are transformed together, and of numbers that
  // are coded together. Both are powers of two.
  std::int64_t Group(std::int64_t width) const {
    return std::max(width, RowBytes<T>(change_.precision).block);
  }

  // Planes of axes 1 and 2, transformed along both or the last, in the order of the parcels.
  void LeaveRows(const std::vector<const T*>& x, const Step& step) const {
    const Three extents = change_.Before();
    const Range planes = pieces_.PartBefore(step.some, 0);
    const Range part = pieces_.PartBefore(step.some, 1);
    const bool is_whole = first_ && first_->both_axes();
    const std::int64_t rows =
        is_whole ? part.count : TileOf<T>(extents[2], part.count, ChosenLanes().lines<T>());
    const std::int64_t tiles = rows > 0 ? (part.count + rows - 1) / rows : 0;
    if (extents[2] == 0) return;
    const bool has_products =
        std::any_of(sums_.leaving.begin(), sums_.leaving.end(), [](const Sum<T>& sum) {
          return std::any_of(sum.begin(), sum.end(),
                             [](const Term<T>& term) { return term.travelling.k != nullptr; });
        });
    const std::int64_t all = change_.batch * planes.count;
    ForEach(all * tiles, all * part.count * extents[2], step, [=, &x, &step](std::int64_t task) {
      const std::int64_t batch = task / tiles / planes.count;
      const std::int64_t plane = planes.start + task / tiles % planes.count;
      const std::int64_t row = task % tiles * rows;
      const std::int64_t count = std::min(rows, part.count - row);
      const std::int64_t line = (batch * extents[0] + plane) * extents[1] + part.start + row;
      const std::int64_t numbers = first_ ? count * extents[2] * 2 : 0;
      const TileMemory memory(static_cast<std::size_t>(numbers) * (has_products ? 2 : 1) *
                              sizeof(T));
      const Three at{plane, part.start + row, 0};
      const Tile tile{batch, at, {1, count, extents[2]}, 1, 2, extents[2]};
      for (std::size_t i = 0; i < sums_.leaving.size(); ++i) {
        const Sum<T>& sum = sums_.leaving[i];
        const T* data = x[sum[0].array] + line * 2 * extents[2];
        if (first_) {
          AddUpRows(sum, x, line, at, count, TileIn<T>(memory), TileIn<T>(memory) + numbers);
          data = TileIn<T>(memory);
        }
        LeaveTile(data, tile, step, i);
      }
      Drain();
    });
  }

  // A sum of rows, the first of which is `line` of the arrays and lies at `at`, in a tile; `other`
  // is room for a second one.
  void AddUpRows(const Sum<T>& sum, const std::vector<const T*>& x, std::int64_t line,
                 const Three& at, std::int64_t rows, T* tile, T* other) const {
    const std::int64_t length = first_->out_length();
    for (const Term<T>& term : sum) {
      const T* from = x[term.array] + line * first_->in_numbers();
      T* const result = term.travelling.k ? other : tile;
      if (term.lines) {
        for (std::int64_t row = 0; row < rows; ++row) {
          LineTimesI(result + 2 * row * length, from + 2 * row * length, length, Into::kStore,
                     term.lines);
        }
        from = result;
      }
      first_->Run(from, result, rows);
      if (!term.travelling.k) continue;
      const Into into = &term == &sum.front() ? Into::kStore : Into::kAdd;
      for (std::int64_t row = 0; row < rows; ++row) {
        RowTimes(term.travelling, tile + 2 * row * length, other + 2 * row * length, length, into,
                 {at[0], at[1] + row, at[2]}, 2);
      }
    }
  }

  // The part of a tile that lies in what one rank has of an axis.
  struct Part {
    Three begin;                 // in the array
    std::int64_t rows = 0;       // none where the block has nothing of the tile
    std::int64_t length = 0;     // of a row
    std::int64_t in_tile = 0;    // offset in complex numbers
    std::int64_t in_parcel = 0;  // offset in bytes
  };
  // `origin` is where the parcel begins in the array, but for the axis that is split.
  static Part PartOf(const Tile& tile, int split, const Range& block, const Three& origin,
                     const Parcel& parcel) {
    Part part{tile.at};
    Three& begin = part.begin;
    Three end{};
    for (int axis = 0; axis < 3; ++axis) end[axis] = begin[axis] + tile.size[axis];
    begin[split] = std::max(begin[split], block.start);
    end[split] = std::min(end[split], block.start + block.count);
    if (begin[split] >= end[split]) return part;
    Three place{};  // in the parcel
    for (int axis = 0; axis < 3; ++axis) {
      place[axis] = begin[axis] - (axis == split ? block.start : origin[axis]);
    }
    part.rows = end[tile.rows] - begin[tile.rows];
    part.length = end[tile.along] - begin[tile.along];
    part.in_tile = (begin[tile.rows] - tile.at[tile.rows]) * tile.pitch + begin[tile.along] -
                   tile.at[tile.along];
    part.in_parcel = tile.batch * parcel.batch_stride;
    for (int axis = 0; axis < 3; ++axis) {
      part.in_parcel +=
          axis == tile.along ? parcel.row(place[axis]) : place[axis] * parcel.stride[axis];
    }
    return part;
  }

  // Leaves each rank its part of a tile of what travels as array i.
  void LeaveTile(const T* data, const Tile& tile, const Step& step, std::size_t i) const {
    for (const int piece : step.some.pieces) {
      const Change& of = change(piece);
      const Three origin{of.PartBefore(0).start, of.PartBefore(1).start, of.PartBefore(2).start};
      const Ends& ends = step.ends[piece][i];
      for (int to = 0; to < change_.ranks; ++to) {
        const Parcel& parcel = parcels(piece).To(to);
        const Part part = PartOf(tile, change_.scatter, of.Scattered(to), origin, parcel);
        const std::int64_t stride = parcel.stride[tile.rows];
        const T* source = data + 2 * part.in_tile;
        char* target = ends.to[to] + part.in_parcel;
        for (std::int64_t row = 0; row < part.rows; ++row) {
          LeaveRow(target, source, part.length, parcel);
          target += stride;
          source += 2 * tile.pitch;
        }
      }
    }
  }

  // Fills a tile with what each rank has left of array i, times `wave`.
  void FetchTile(T* data, const Tile& tile, const Step& step, std::size_t i,
                 const Wave<T>& wave) const {
    for (const int piece : step.some.pieces) {
      const Change& of = change(piece);
      const Three origin{of.PartAfter(0).start, of.PartAfter(1).start, of.PartAfter(2).start};
      const Ends& ends = step.ends[piece][i];
      for (int from = 0; from < change_.ranks; ++from) {
        const Parcel& parcel = parcels(piece).From(from);
        const Part part = PartOf(tile, change_.gather, of.Gathered(from), origin, parcel);
        const std::int64_t stride = parcel.stride[tile.rows];
        const char* source = ends.from[from] + part.in_parcel;
        T* target = data + 2 * part.in_tile;
        Three at = part.begin;
        for (std::int64_t row = 0; row < part.rows; ++row, ++at[tile.rows]) {
          FetchRow(target, source, part.length, parcel, wave, at, tile.along);
          target += 2 * tile.pitch;
          source += stride;
        }
      }
    }
  }

  // Lines along axis 2, which is scattered, transformed into columns next to each other along the
  // fastest axis of the result.
  void LeaveColumns(const std::vector<const T*>& x, const Step& step) const {
    const Three extents = change_.Before();
    const int across = change_.order[2];
    const int other = 1 - across;
    const Range planes = pieces_.PartBefore(step.some, other);
    const std::int64_t length = extents[2];
    const std::int64_t width = first_->width();
    // All arrays are made of the same lines while those are in the cache.
    const std::size_t arrays = sums_.leaving.size();
    const std::int64_t columns =
        TileOf<T>(length * static_cast<std::int64_t>(arrays), extents[across], Group(width));
    const std::int64_t tiles = (extents[across] + columns - 1) / columns;
    const Three lines{extents[1], 1, 0};  // strides in lines
    const std::int64_t all = change_.batch * planes.count;
    ForEach(all * tiles, all * extents[across] * length, step, [=, &x, &step](std::int64_t task) {
      const std::int64_t batch = task / tiles / planes.count;
      const std::int64_t column = task % tiles * columns;
      const std::int64_t count = std::min(columns, extents[across] - column);
      Three at{};
      at[other] = planes.start + task / tiles % planes.count;
      at[across] = column;
      Three size{1, 1, length};
      size[across] = count;
      const TileMemory memory(static_cast<std::size_t>(length * (columns + width)) * 2 *
                              sizeof(T));
      T* const data = TileIn<T>(memory);
      const Tile tile{batch, at, size, 2, across, columns};
      T* const products = data + 2 * length * columns;
      const std::int64_t line =
          batch * extents[0] * extents[1] + at[other] * lines[other] + column * lines[across];
      for (std::size_t i = 0; i < arrays; ++i) {
        const Term<T>& term = sums_.leaving[i][0];
        const std::int64_t stride = lines[across] * first_->in_numbers();
        for (std::int64_t c = 0; c < count; c += width) {
          const std::int64_t group = std::min(width, count - c);
          const T* const group_of_x = x[term.array] + line * first_->in_numbers() + c * stride;
          Lines<const T> from{group_of_x, 1, lines[across] * first_->in_length()};
          if (term.lines) {
            for (std::int64_t l = 0; l < group; ++l) {
              LineTimesI(products + 2 * l * length, group_of_x + l * stride, length, Into::kStore,
                         term.lines);
            }
            from = {products, 1, length};
          }
          first_->RunLines(from, Lines<T>{data + 2 * c, columns, 1}, static_cast<int>(group));
        }
        LeaveTile(data, tile, step, i);
      }
      Drain();
    });
  }

  // Columns along the gathered axis, a tile of them next to each other along axis 2, to lines of
  // the result.
  void FetchColumns(const Step& step, const std::vector<T*>& y) const {
    const Three extents = change_.After();
    const int along = change_.gather;
    const int other = 1 - along;
    const Range planes = pieces_.PartAfter(step.some, other);
    const std::int64_t length = extents[along];
    const std::int64_t width = second_->width();
    const std::int64_t columns = TileOf<T>(length, extents[2], Group(width));
    const std::int64_t tiles = (extents[2] + columns - 1) / columns;
    Three lines{};  // strides of the result, in lines
    lines[change_.order[1]] = 1;
    lines[change_.order[0]] = extents[change_.order[1]];
    const std::int64_t all = change_.batch * planes.count;
    ForEach(all * tiles, all * extents[2] * length, step, [=, &y, &step](std::int64_t task) {
      const std::int64_t batch = task / tiles / planes.count;
      const std::int64_t column = task % tiles * columns;
      const std::int64_t count = std::min(columns, extents[2] - column);
      Three at{};
      at[other] = planes.start + task / tiles % planes.count;
      at[2] = column;
      Three size{1, 1, count};
      size[along] = length;
      const TileMemory memory(static_cast<std::size_t>(length * (columns + width)) * 2 *
                              sizeof(T));
      const Tile tile{batch, at, size, along, 2, columns};
      T* const data = TileIn<T>(memory);
      T* const lines_of_term = data + 2 * length * columns;
      const std::int64_t line =
          batch * extents[other] * extents[2] + at[other] * lines[other] + column * lines[2];
      for (std::size_t i = 0; i < y.size(); ++i) {
        for (const Term<T>& term : sums_.arriving[i]) {
          FetchTile(data, tile, step, term.array, term.travelling);
          const Into into = &term == &sums_.arriving[i].front() ? Into::kStore : Into::kAdd;
          const std::int64_t stride = lines[2] * second_->out_numbers();
          for (std::int64_t c = 0; c < count; c += width) {
            const int group = static_cast<int>(std::min(width, count - c));
            const Lines<const T> from{data + 2 * c, columns, 1};
            T* const to = y[i] + line * second_->out_numbers() + c * stride;
            if (!term.lines) {
              second_->RunLines(from, Lines<T>{to, 1, lines[2] * second_->out_length()}, group);
              continue;
            }
            second_->RunLines(from, Lines<T>{lines_of_term, 1, length}, group);
            for (int l = 0; l < group; ++l) {
              LineTimesI(to + l * stride, lines_of_term + 2 * l * length, length, into,
                         term.lines);
            }
          }
        }
      }
    });
  }

  // Planes of the last two axes of the result, put together in a tile, and transformed.
  void FetchRows(const Step& step, const std::vector<T*>& y) const {
    const Three extents = change_.After();
    const std::array<int, 3>& order = change_.order;
    const Range planes = pieces_.PartAfter(step.some, order[0]);
    const Range part = pieces_.PartAfter(step.some, order[1]);
    const std::int64_t length = extents[order[2]];
    const bool is_whole = second_ && second_->both_axes();
    const std::int64_t rows =
        is_whole ? part.count : TileOf<T>(length, part.count, ChosenLanes().lines<T>());
    const std::int64_t tiles = rows > 0 ? (part.count + rows - 1) / rows : 0;
    if (length == 0) return;
    const std::int64_t all = change_.batch * planes.count;
    ForEach(all * tiles, all * part.count * length, step, [=, &y, &step](std::int64_t task) {
      const std::int64_t batch = task / tiles / planes.count;
      const std::int64_t plane = planes.start + task / tiles % planes.count;
      const std::int64_t row = task % tiles * rows;
      const std::int64_t count = std::min(rows, part.count - row);
      const std::int64_t line =
          (batch * extents[order[0]] + plane) * extents[order[1]] + part.start + row;
      const TileMemory memory(second_ ? static_cast<std::size_t>(count * length) * 2 * sizeof(T)
                                      : 0);
      Three at{};
      at[order[0]] = plane;
      at[order[1]] = part.start + row;
      Three size{};
      size[order[0]] = 1;
      size[order[1]] = count;
      size[order[2]] = length;
      const Tile tile{batch, at, size, order[1], order[2], length};
      for (std::size_t i = 0; i < y.size(); ++i) {
        const Term<T>& term = sums_.arriving[i][0];
        T* const data = second_ ? TileIn<T>(memory) : y[i] + line * 2 * length;
        FetchTile(data, tile, step, term.array, term.travelling);
        if (second_) second_->RunOver(data, y[i] + line * second_->out_numbers(), count);
      }
    });
  }

  const Change& change_;
  const MaybeFft<T>& first_;
  const MaybeFft<T>& second_;
  const Sums<T>& sums_;
  ffi::ThreadPool& pool_;
  bool reads_columns_;
  Pieces<T> pieces_;
};

}  // namespace pfftjax::fft

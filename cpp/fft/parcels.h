// The ranks leave these parcels for each other on a change of pencil.
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "fft/codes.h"
#include "pencils/box.h"

namespace pfftjax::fft {

using Three = std::array<std::int64_t, 3>;

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
  std::vector<int> nodes;      // of the ranks, where what goes between nodes has no gaps
  Precision precision = Precision::kFull;  // of what goes between ranks
  bool has_gaps = true;                    // where memory is shared
  // What follows is of this piece, by axis: of the third one, and of the blocks of the others.
  std::array<Piece, 3> piece{};

  int third() const { return 3 - scatter - gather; }
  bool IsPadded(int from, int to) const {
    return has_gaps && (nodes.empty() || nodes[from] == nodes[to]);
  }
  // What stays on its rank is not rounded.
  Precision PrecisionOf(int from, int to) const {
    return from == to ? Precision::kFull : precision;
  }

  // Where the blocks of ranks lie in the axes of which they are.
  Range Scattered(int to) const { return PieceOf(scatter, BlockOf(whole[scatter], ranks, to)); }
  Range Gathered(int from) const { return PieceOf(gather, BlockOf(whole[gather], ranks, from)); }
  Range Third() const { return PieceOf(third(), {0, whole[third()]}); }

  // The arrays that come in and go out, whatever the piece.
  Three Before() const {
    Three extents = whole;
    extents[gather] = BlockOf(whole[gather], ranks, rank).count;
    return extents;
  }
  Three After() const {
    Three extents = whole;
    extents[scatter] = BlockOf(whole[scatter], ranks, rank).count;
    return extents;
  }
  // The part of them that the piece is made of, and what is made of it. A piece of the blocks of
  // an axis has parts of all lines along it.
  Range PartBefore(int axis) const {
    return axis == scatter ? Range{0, whole[axis]} : PieceOf(axis, {0, Before()[axis]});
  }
  Range PartAfter(int axis) const {
    return axis == gather ? Range{0, whole[axis]} : PieceOf(axis, {0, After()[axis]});
  }

 private:
  Range PieceOf(int axis, Range range) const { return piece[axis].In(range); }
};

// One rank leaves this for another: a box without gaps, but for rows that begin on cache lines in
// memory that both of them have.
struct Parcel {
  std::int64_t offset = 0;  // among the parcels for others; in bytes, as all that follow
  std::int64_t bytes = 0;
  std::int64_t batch_stride = 0;
  Three stride{};  // by axis, but for that of rows
  RowSize row{};
  Precision precision = Precision::kFull;
};

// The boxes that this rank sends and receives, in which the rows of `axes[2]` are contiguous.
template <typename T>
class Parcels {
 public:
  // Parcels for others follow each other; that for itself lies elsewhere.
  Parcels(const Change& change, std::array<int, 3> axes) : change_(change), axes_(axes) {
    std::int64_t offset = 0;
    for (int other = 0; other < change.ranks; ++other) {
      out_.push_back(Shape(change.rank, other, change.PrecisionOf(change.rank, other)));
      in_.push_back(Shape(other, change.rank, change.PrecisionOf(other, change.rank)));
      if (other == change.rank) continue;
      out_.back().offset = offset;
      offset += out_.back().bytes;
      in_.back().offset = BytesBefore(other, change.rank);
    }
  }
  const Parcel& To(int rank) const { return out_[rank]; }
  const Parcel& From(int rank) const { return in_[rank]; }

  // Returns the most that any rank leaves for all others, the same number on all ranks. Rank 0 has
  // the largest blocks, and the last rank the smallest.
  std::int64_t MostBytes() const {
    std::int64_t bytes = 0;
    for (int to = 0; to + 1 < change_.ranks; ++to) {
      bytes += Shape(0, to, change_.precision).bytes;
    }
    return bytes;
  }
  // The most for one rank, the same number on all ranks.
  std::int64_t MostBytesOfOne() const { return Shape(0, 0, change_.precision).bytes; }
  std::int64_t OwnBytes() const { return out_[change_.rank].bytes; }
  int row_axis() const { return axes_[2]; }

 private:
  Parcel Shape(int from, int to, Precision precision) const {
    const std::int64_t line = change_.IsPadded(from, to) ? 64 : 1;
    Three extents{};
    extents[change_.scatter] = change_.Scattered(to).count;
    extents[change_.gather] = change_.Gathered(from).count;
    extents[change_.third()] = change_.Third().count;
    Parcel parcel;
    parcel.precision = precision;
    parcel.row = RowBytes<T>(precision);
    parcel.stride[axes_[1]] = (parcel.row(extents[axes_[2]]) + line - 1) / line * line;
    parcel.stride[axes_[0]] = parcel.stride[axes_[1]] * extents[axes_[1]];
    parcel.batch_stride = parcel.stride[axes_[0]] * extents[axes_[0]];
    parcel.bytes = parcel.batch_stride * change_.batch;
    return parcel;
  }
  // What a rank leaves for others that come before `to`, where all of them share memory or none
  // do. Blocks have two sizes, so this takes two products: a sum for each rank would take long
  // with many.
  std::int64_t BytesBefore(int from, int to) const {
    const auto larger = static_cast<int>(change_.whole[change_.scatter] % change_.ranks);
    const int of_larger = std::min(to, larger);
    const int of_smaller = to - of_larger;
    const bool is_among = from < to;
    return (of_larger - (is_among && from < larger)) * Shape(from, 0, change_.precision).bytes +
           (of_smaller - (is_among && from >= larger)) *
               Shape(from, change_.ranks - 1, change_.precision).bytes;
  }

  const Change& change_;
  std::array<int, 3> axes_;
  std::vector<Parcel> out_;
  std::vector<Parcel> in_;
};

struct Ends {
  std::vector<char*> to;          // where this rank leaves what is for each
  std::vector<const char*> from;  // where it finds what each has left
};

}  // namespace pfftjax::fft

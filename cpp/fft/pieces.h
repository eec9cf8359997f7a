// How a change of pencil is cut into pieces along an axis, each of which is an exchange.
//
// Along the third axis, which the change does not touch, a piece is left, travels and is fetched
// by itself. Where one of the transforms makes planes, these have all of that axis. If it is the
// first one, pieces are of the planes, which are then gathered: they are left one after the other,
// and fetched together. If it is the second one, they are of the planes that are made by
// scattering: they are left together, and fetched one after the other.
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <deque>
#include <vector>

#include "fft/parcels.h"

namespace pfftjax::fft {

// Pieces that follow each other, and are left or fetched together.
struct Some {
  int begin = 0;
  int end = 1;
};

template <typename T>
class Pieces {
 public:
  // The rows of parcels run along axes[2]. The first transform makes planes of the last two axes,
  // or the second one those of the last two axes of the result, or neither does.
  Pieces(const Change& change, std::array<int, 3> axes, bool first_makes_planes,
         bool second_makes_planes, int count)
      : axis_(AxisOf(change, axes[2], first_makes_planes, second_makes_planes)) {
    for (int piece = 0; piece < count; ++piece) {
      pieces_.emplace_back(change, count > 1 ? axis_ : Change::kNoAxis, Piece{piece, count}, axes);
    }
  }
  Pieces(const Pieces&) = delete;
  Pieces& operator=(const Pieces&) = delete;

  int count() const { return static_cast<int>(pieces_.size()); }
  const Change& change(int piece) const { return pieces_[piece].change; }
  const Parcels<T>& parcels(int piece) const { return pieces_[piece].parcels; }

  // The most pieces of which all ranks have something.
  std::int64_t Most() const {
    if (axis_ == Change::kNoAxis) return 1;
    const Change& all = change(0);
    const std::int64_t length = all.whole[axis_];
    const std::int64_t most =
        axis_ == all.third() ? length : BlockOf(length, all.ranks, all.ranks - 1).count;
    return std::max<std::int64_t>(most, 1);
  }

  // All of them, in this order.
  std::vector<Some> LeftTogether() const { return Together(change(0).scatter); }
  std::vector<Some> FetchedTogether() const { return Together(change(0).gather); }

  // What some are made of in the array that comes in, and what is made of them, along an axis.
  Range PartBefore(const Some& some, int axis) const {
    return UpTo(change(some.begin).PartBefore(axis), change(some.end - 1).PartBefore(axis));
  }
  Range PartAfter(const Some& some, int axis) const {
    return UpTo(change(some.begin).PartAfter(axis), change(some.end - 1).PartAfter(axis));
  }

 private:
  struct Cut {
    Cut(const Change& of, int axis, const Piece& piece, std::array<int, 3> axes)
        : change(With(of, axis, piece)), parcels(change, axes) {}

    static Change With(Change change, int axis, const Piece& piece) {
      change.cut = axis;
      change.piece = piece;
      return change;
    }

    Change change;
    Parcels<T> parcels;  // keep where their change lies
  };

  static int AxisOf(const Change& change, int rows, bool first_makes_planes,
                    bool second_makes_planes) {
    const auto can_leave = [&](int axis) {
      return axis != rows && (!first_makes_planes || axis == 0);
    };
    const auto can_fetch = [&](int axis) {
      return axis != rows && (!second_makes_planes || axis == change.order[0]);
    };
    if (can_leave(change.third()) && can_fetch(change.third())) return change.third();
    const bool fetches = can_fetch(change.scatter);
    if (can_leave(change.gather) && (first_makes_planes || !fetches)) return change.gather;
    return fetches ? change.scatter : Change::kNoAxis;
  }
  // One by one, or all where they are of an axis along which lines are transformed.
  std::vector<Some> Together(int axis) const {
    if (change(0).cut == axis) return {{0, count()}};
    std::vector<Some> each;
    for (int piece = 0; piece < count(); ++piece) each.push_back({piece, piece + 1});
    return each;
  }
  static Range UpTo(const Range& first, const Range& last) {
    return {first.start, last.start + last.count - first.start};
  }

  int axis_;  // along which it can be cut, or none
  std::deque<Cut> pieces_;
};

}  // namespace pfftjax::fft

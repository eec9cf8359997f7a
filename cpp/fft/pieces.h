// How a change of pencil is cut into pieces, each of which is an exchange.
//
// Along the third axis, which the change does not touch, a piece is left, travels and is fetched
// by itself. Where rows run along that axis, or a transform makes planes that have all of it,
// pieces are of the axis that is gathered, or of the one that is scattered.
//
// Pieces of the axis that is gathered are left one after the other, as the planes of a first
// transform are made. Lines along that axis can be fetched when the last piece is there; so that
// piece is cut again, along the axis that is scattered, and with each of its parts a part of the
// lines is complete. Pieces of the axis that is scattered are the other way round: they are
// fetched one after the other, and the first of them is cut again, to leave before all lines are
// there.
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <deque>
#include <optional>
#include <vector>

#include "fft/parcels.h"

namespace pfftjax::fft {

struct Cuts {
  int pieces = 1;
  int parts = 1;  // of the piece that is cut again

  // The most of either: docs/design/transforms.md has what other numbers took.
  static constexpr std::int64_t kMost = 8;
};

// What is left or fetched at a time.
struct Some {
  std::vector<int> pieces;  // that it has something of
  int last = 0;             // the pieces up to this one have been left then, or have to be there
};

template <typename T>
class Pieces {
 public:
  // The rows of parcels run along axes[2]. The first transform makes planes of the last two axes,
  // or the second one those of the last two axes of the result, or neither does.
  Pieces(const Change& change, std::array<int, 3> axes, bool first_makes_planes,
         bool second_makes_planes, Cuts cuts)
      : change_(change), parts_(cuts.parts) {
    FindAxes(axes[2], first_makes_planes, second_makes_planes);
    // Without an axis to cut along there is one piece of one part, which is the whole change.
    for (int piece = 0; piece < cuts.pieces; ++piece) {
      const bool is_cut_again = piece == (LeavesOneByOne() ? cuts.pieces - 1 : 0);
      if (is_cut_again) first_part_ = count();
      for (int part = 0; part < (is_cut_again ? cuts.parts : 1); ++part) {
        Change of = change;
        if (axis_) of.piece[*axis_] = {piece, cuts.pieces};
        if (is_cut_again && other_axis_) of.piece[*other_axis_] = {part, cuts.parts};
        pieces_.emplace_back(of, axes);
      }
    }
  }
  Pieces(const Pieces&) = delete;
  Pieces& operator=(const Pieces&) = delete;

  int count() const { return static_cast<int>(pieces_.size()); }
  const Change& change(int piece) const { return pieces_[piece].change; }
  const Parcels<T>& parcels(int piece) const { return pieces_[piece].parcels; }

  // Into how many a change that is not cut yet may be cut, so that no message becomes shorter than
  // `least` bytes. All ranks have something of each.
  Cuts CutsOf(std::int64_t message, std::int64_t least) const {
    const auto cut = [&](std::optional<int> axis) {
      const std::int64_t most = MostAlong(axis);
      const auto smallest = [&](std::int64_t count) { return message / most * (most / count); };
      std::int64_t count = std::min(Cuts::kMost, most);
      while (count > 1 && smallest(count) < least) --count;
      message = smallest(count);
      return static_cast<int>(count);
    };
    Cuts cuts;
    cuts.pieces = cut(axis_);
    cuts.parts = cut(other_axis_);
    return cuts;
  }

  // All of them, in this order.
  std::vector<Some> LeftTogether() const { return Together(change_.scatter); }
  std::vector<Some> FetchedTogether() const { return Together(change_.gather); }

  // What some are made of in the array that comes in, and what is made of them, along an axis.
  Range PartBefore(const Some& some, int axis) const {
    return Common(some, [&](const Change& change) { return change.PartBefore(axis); });
  }
  Range PartAfter(const Some& some, int axis) const {
    return Common(some, [&](const Change& change) { return change.PartAfter(axis); });
  }

 private:
  struct Cut {
    Cut(const Change& of, std::array<int, 3> axes) : change(of), parcels(change, axes) {}

    Change change;
    Parcels<T> parcels;  // keep where their change lies
  };

  void FindAxes(int rows, bool first_makes_planes, bool second_makes_planes) {
    const Change& change = change_;
    const auto can_leave = [&](int axis) {
      return axis != rows && (!first_makes_planes || axis == 0);
    };
    const auto can_fetch = [&](int axis) {
      return axis != rows && (!second_makes_planes || axis == change.order[0]);
    };
    const bool leaves = can_leave(change.gather);
    const bool fetches = can_fetch(change.scatter);
    if (can_leave(change.third()) && can_fetch(change.third())) {
      axis_ = change.third();
    } else if (leaves && (first_makes_planes || !fetches)) {
      axis_ = change.gather;
      if (fetches) other_axis_ = change.scatter;
    } else if (fetches) {
      axis_ = change.scatter;
      if (leaves) other_axis_ = change.gather;
    }
  }
  bool LeavesOneByOne() const { return axis_ == change_.gather; }

  // The most pieces of which all ranks have something.
  std::int64_t MostAlong(std::optional<int> axis) const {
    if (!axis) return 1;
    const std::int64_t length = change_.whole[*axis];
    const std::int64_t most = *axis == change_.third()
                                  ? length
                                  : BlockOf(length, change_.ranks, change_.ranks - 1).count;
    return std::max<std::int64_t>(most, 1);
  }

  bool IsPart(int piece) const { return piece >= first_part_ && piece < first_part_ + parts_; }

  // Where pieces are cut along the axis whose lines are transformed, a line is spread over all
  // pieces. A step then has the lines of one part, and takes that part and all whole pieces.
  // Otherwise each whole piece is a step, and the parts together are one.
  std::vector<Some> Together(int axis_of_lines) const {
    std::vector<Some> all;
    const int last_part = first_part_ + parts_ - 1;
    if (axis_ == axis_of_lines) {
      for (int part = first_part_; part <= last_part; ++part) {
        Some some{{}, part < last_part ? part : count() - 1};
        for (int piece = 0; piece < count(); ++piece) {
          if (piece == part || !IsPart(piece)) some.pieces.push_back(piece);
        }
        all.push_back(some);
      }
      return all;
    }
    for (int piece = 0; piece < count(); ++piece) {
      if (piece == first_part_ || !IsPart(piece)) all.push_back({});
      all.back().pieces.push_back(piece);
      all.back().last = piece;
    }
    return all;
  }
  template <typename Part>
  Range Common(const Some& some, Part part) const {
    Range common = part(change(some.pieces[0]));
    for (const int piece : some.pieces) {
      const Range range = part(change(piece));
      const std::int64_t end = std::min(common.start + common.count, range.start + range.count);
      common.start = std::max(common.start, range.start);
      common.count = end - common.start;
    }
    return common;
  }

  Change change_;
  std::optional<int> axis_;        // along which it can be cut, or none
  std::optional<int> other_axis_;  // along which one of the pieces can be cut again
  int first_part_ = 0;
  int parts_;
  std::deque<Cut> pieces_;
};

}  // namespace pfftjax::fft

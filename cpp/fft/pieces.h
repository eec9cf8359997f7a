// How a change of pencil is cut into pieces, each of which is an exchange.
//
// Along the third axis, which the change does not touch, a piece is left, travels and is fetched
// by itself. Where one of the transforms makes planes, these have all of that axis. If it is the
// first one, pieces are of the planes, which are then gathered: they are left one after the other.
// Lines across all planes can be fetched when the last piece is there; so that one is cut again,
// along the axis that is scattered, and with each of its parts a part of the lines is complete. If
// the second transform makes planes, it is the other way round: pieces are of the planes that are
// made by scattering, and the first of them is cut again, to leave before all lines are there.
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
};

// What is left or fetched at a time.
struct Some {
  std::vector<int> pieces;  // it is a part of each of these
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
    // Where there is no axis to cut along, there is one piece, and all cuts are none.
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

  // The most pieces, and the most parts of one, of which all ranks have something.
  std::int64_t Most() const { return MostAlong(axis_); }
  std::int64_t MostParts() const { return MostAlong(other_axis_); }

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

  std::int64_t MostAlong(std::optional<int> axis) const {
    if (!axis) return 1;
    const std::int64_t length = change_.whole[*axis];
    const std::int64_t most = *axis == change_.third()
                                  ? length
                                  : BlockOf(length, change_.ranks, change_.ranks - 1).count;
    return std::max<std::int64_t>(most, 1);
  }

  // Pieces that are cut along the axis of lines have parts of all lines: as many lines as a part
  // of a piece has go with all pieces. Others go one by one, but for the parts of one, together.
  std::vector<Some> Together(int axis_of_lines) const {
    std::vector<Some> all;
    const int end_of_parts = first_part_ + parts_;
    if (axis_ == axis_of_lines) {
      for (int part = first_part_; part < end_of_parts; ++part) {
        Some some{{}, part + 1 < end_of_parts ? part : count() - 1};
        for (int piece = 0; piece < count(); ++piece) {
          const bool is_other_part = piece >= first_part_ && piece < end_of_parts && piece != part;
          if (!is_other_part) some.pieces.push_back(piece);
        }
        all.push_back(some);
      }
      return all;
    }
    for (int piece = 0; piece < count(); ++piece) {
      if (piece <= first_part_ || piece >= end_of_parts) all.push_back({});
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

// Friends of friends on one rank.
//
// The box is divided into cells whose diagonal is no longer than the linking length: particles of
// one cell are always friends, so that the union-find is one of cells. Two cells need one pair of
// friends to become one group, and cells that are in one group already need none. The dense middle
// of a halo therefore costs little more than sorting its particles.
#include "pm/friends.h"

#include <algorithm>
#include <cmath>
#include <iterator>
#include <numeric>
#include <utility>
#include <vector>

namespace pfftjax::pm {
namespace {

using Point = std::array<double, kAxes>;

// Cells are smaller than they need to be by this share, and filters of pairs wider, so that
// rounding decides nothing.
constexpr double kMargin = 1e-6;

// Disjoint sets of numbers; the lowest number of a set stands for it.
class DisjointSets {
 public:
  explicit DisjointSets(std::int64_t count) : parent_(static_cast<std::size_t>(count)) {
    std::iota(parent_.begin(), parent_.end(), std::int64_t{0});
  }
  std::int64_t Find(std::int64_t i) {
    while (At(i) != i) {
      At(i) = At(At(i));  // halves the path for the next search
      i = At(i);
    }
    return i;
  }
  void Join(std::int64_t a, std::int64_t b) {
    a = Find(a);
    b = Find(b);
    At(std::max(a, b)) = std::min(a, b);
  }

 private:
  std::int64_t& At(std::int64_t i) { return parent_[static_cast<std::size_t>(i)]; }

  std::vector<std::int64_t> parent_;
};

struct Box {
  Point sides;

  double SquaredDistance(const Point& a, const Point& b) const {
    double sum = 0;
    for (int d = 0; d < kAxes; ++d) {
      double apart = std::abs(a[d] - b[d]);
      apart = std::min(apart, sides[d] - apart);
      sum += apart * apart;
    }
    return sum;
  }
};

// The least box around some points, none of which are on both sides of an edge of the periodic
// box.
struct Bounds {
  Point low;
  Point high;

  Bounds(const Point* first, const Point* last) : low(*first), high(*first) {
    for (const Point* p = first; p != last; ++p) {
      for (int d = 0; d < kAxes; ++d) {
        low[d] = std::min(low[d], (*p)[d]);
        high[d] = std::max(high[d], (*p)[d]);
      }
    }
  }
  double SquaredDistance(const Point& a, const Box& box) const {
    double sum = 0;
    for (int d = 0; d < kAxes; ++d) {
      double apart = box.sides[d];
      for (const double image : {a[d] - box.sides[d], a[d], a[d] + box.sides[d]}) {
        apart = std::min(apart, std::max({0.0, low[d] - image, image - high[d]}));
      }
      sum += apart * apart;
    }
    return sum;
  }
};

// The particles in the order of the cells that have any, and these cells in rows along axis 2.
class CellList {
 public:
  CellList(const double* positions, std::int64_t count, const Point& sides,
           const std::array<std::int64_t, kAxes>& shape)
      : shape_(shape), order_(static_cast<std::size_t>(count)) {
    for (std::int64_t row = 0; row < count; ++row) {
      std::uint64_t key = 0;
      for (int d = 0; d < kAxes; ++d) {
        const double n = static_cast<double>(shape[d]);
        const auto cell = static_cast<std::int64_t>(positions[kAxes * row + d] / sides[d] * n);
        const std::int64_t inside = std::clamp<std::int64_t>(cell, 0, shape[d] - 1);
        key =
            key * static_cast<std::uint64_t>(kMostLinkCells) + static_cast<std::uint64_t>(inside);
      }
      order_[static_cast<std::size_t>(row)] = {key, row};
    }
    std::sort(order_.begin(), order_.end());
    points_.reserve(order_.size());
    std::uint64_t last_row = 0;
    for (const auto& [key, row] : order_) {
      const std::uint64_t cell_row = key / static_cast<std::uint64_t>(kMostLinkCells);
      if (cells_.empty() || cells_.back().key != key) {
        if (cells_.empty() || cell_row != last_row) {
          rows_.push_back({cell_row, static_cast<std::int64_t>(cells_.size())});
        }
        last_row = cell_row;
        cells_.push_back({key, static_cast<std::int64_t>(points_.size())});
      }
      const double* at = positions + kAxes * row;
      points_.push_back({at[0], at[1], at[2]});
    }
  }

  std::int64_t size() const { return static_cast<std::int64_t>(cells_.size()); }
  std::int64_t rows() const { return static_cast<std::int64_t>(rows_.size()); }
  std::int64_t RowBegin(std::int64_t row) const {
    return row < rows() ? rows_[static_cast<std::size_t>(row)].begin : size();
  }
  std::int64_t RowNumber(std::int64_t row, int axis) const {
    const std::uint64_t key = rows_[static_cast<std::size_t>(row)].key;
    constexpr auto most = static_cast<std::uint64_t>(kMostLinkCells);
    return static_cast<std::int64_t>(axis == 0 ? key / most : key % most);
  }
  // Returns the row with these numbers, or -1 for an empty one. `hint` is a row to begin from, and
  // becomes the first one that is not before: searches in order cost a few steps each.
  std::int64_t FindRow(std::int64_t n0, std::int64_t n1, std::int64_t* hint) const {
    const auto key = static_cast<std::uint64_t>(n0 * kMostLinkCells + n1);
    const auto key_at = [&](std::int64_t row) { return rows_[static_cast<std::size_t>(row)].key; };
    std::int64_t low = *hint;
    std::int64_t high = rows();
    if (low == high || key_at(low) > key) {
      high = low;
      low = 0;
    } else {
      for (std::int64_t step = 1; low + step < rows(); step *= 2) {
        if (key_at(low + step) >= key) {
          high = low + step;
          break;
        }
        low += step;
      }
    }
    const auto first = rows_.begin();
    const auto found = std::lower_bound(
        first + low, first + high, key,
        [](const Named& named, std::uint64_t wanted) { return named.key < wanted; });
    *hint = found - first;
    return found != rows_.end() && found->key == key ? *hint : -1;
  }
  std::int64_t Along(std::int64_t cell) const {
    constexpr auto most = static_cast<std::uint64_t>(kMostLinkCells);
    return static_cast<std::int64_t>(cells_[static_cast<std::size_t>(cell)].key % most);
  }
  const Point* Begin(std::int64_t cell) const {
    const bool is_end = cell == size();
    return points_.data() + (is_end ? static_cast<std::int64_t>(points_.size())
                                    : cells_[static_cast<std::size_t>(cell)].begin);
  }
  const Point* End(std::int64_t cell) const { return Begin(cell + 1); }
  // The row of the caller's array that a point is from.
  std::int64_t Origin(const Point* point) const {
    return order_[static_cast<std::size_t>(point - points_.data())].second;
  }
  const std::array<std::int64_t, kAxes>& shape() const { return shape_; }

 private:
  struct Named {
    std::uint64_t key;
    std::int64_t begin;
  };

  std::array<std::int64_t, kAxes> shape_;
  std::vector<std::pair<std::uint64_t, std::int64_t>> order_;
  std::vector<Point> points_;
  std::vector<Named> cells_;
  std::vector<Named> rows_;
};

class Linker {
 public:
  Linker(const CellList& cells, const Point& sides, double length)
      : cells_(cells), box_{sides}, squared_(length * length), sets_(cells.size()) {
    for (int d = 0; d < kAxes; ++d) {
      // Between cells that are farther apart there is more than the linking length.
      const double side = sides[d] / static_cast<double>(cells.shape()[d]);
      reach_[d] = static_cast<std::int64_t>(length * (1 + kMargin) / side) + 1;
    }
  }

  DisjointSets& Link() {
    for (std::int64_t row = 0; row < cells_.rows(); ++row) LinkRows(row, row, true);
    for (std::int64_t step0 = 0; step0 <= reach_[0]; ++step0) {
      // Each pair of rows is met from one side.
      for (std::int64_t step1 = step0 == 0 ? 1 : -reach_[1]; step1 <= reach_[1]; ++step1) {
        std::int64_t hint = 0;
        for (std::int64_t row = 0; row < cells_.rows(); ++row) {
          const std::int64_t other =
              cells_.FindRow(Wrapped(cells_.RowNumber(row, 0) + step0, cells_.shape()[0]),
                             Wrapped(cells_.RowNumber(row, 1) + step1, cells_.shape()[1]), &hint);
          if (other >= 0) LinkRows(row, other, false);
        }
      }
    }
    return sets_;
  }

 private:
  // Links the cells of a row with those of another, or of the same, that are within reach.
  void LinkRows(std::int64_t row, std::int64_t other, bool is_same) {
    const std::int64_t n = cells_.shape()[2];
    const std::int64_t begin = cells_.RowBegin(other);
    const std::int64_t end = cells_.RowBegin(other + 1);
    std::int64_t first = begin;
    const auto link_range = [&](std::int64_t cell, std::int64_t from, std::int64_t low,
                                std::int64_t high) {
      for (std::int64_t to = from; to < end && cells_.Along(to) <= high; ++to) {
        if (cells_.Along(to) >= low) LinkCells(cell, to);
      }
    };
    for (std::int64_t cell = cells_.RowBegin(row); cell < cells_.RowBegin(row + 1); ++cell) {
      const std::int64_t at = cells_.Along(cell);
      const std::int64_t low = is_same ? at + 1 : at - reach_[2];
      const std::int64_t high = at + reach_[2];
      while (first < end && cells_.Along(first) < low) ++first;
      link_range(cell, first, low, high);
      if (high >= n) link_range(cell, begin, 0, high - n);
      if (low < 0) {
        std::int64_t from = end;
        while (from > begin && cells_.Along(from - 1) >= low + n) --from;
        link_range(cell, from, low + n, n - 1);
      }
    }
  }

  void LinkCells(std::int64_t a, std::int64_t b) {
    if (sets_.Find(a) != sets_.Find(b) && HaveFriends(a, b)) sets_.Join(a, b);
  }

  bool HaveFriends(std::int64_t a, std::int64_t b) {
    const Point* first_a = cells_.Begin(a);
    const Point* last_a = cells_.End(a);
    const Point* first_b = cells_.Begin(b);
    const Point* last_b = cells_.End(b);
    constexpr std::int64_t kFewPairs = 256;
    if ((last_a - first_a) * (last_b - first_b) > kFewPairs) {
      // Most particles of large cells are too far from all of the other cell.
      near_a_.clear();
      near_b_.clear();
      KeepNear(first_a, last_a, Bounds(first_b, last_b), &near_a_);
      if (near_a_.empty()) return false;
      first_a = near_a_.data();
      last_a = first_a + near_a_.size();
      KeepNear(first_b, last_b, Bounds(first_a, last_a), &near_b_);
      first_b = near_b_.data();
      last_b = first_b + near_b_.size();
    }
    for (const Point* p = first_a; p != last_a; ++p) {
      for (const Point* q = first_b; q != last_b; ++q) {
        if (box_.SquaredDistance(*p, *q) <= squared_) return true;
      }
    }
    return false;
  }

  void KeepNear(const Point* first, const Point* last, const Bounds& bounds,
                std::vector<Point>* near) const {
    std::copy_if(first, last, std::back_inserter(*near), [&](const Point& p) {
      return bounds.SquaredDistance(p, box_) <= squared_ * (1 + kMargin);
    });
  }

  const CellList& cells_;
  const Box box_;
  const double squared_;
  std::array<std::int64_t, kAxes> reach_{};
  DisjointSets sets_;
  std::vector<Point> near_a_;
  std::vector<Point> near_b_;
};

}  // namespace

bool LinkFriends(const double* positions, std::int64_t count,
                 const std::array<double, kAxes>& sides, double length, std::int64_t* group) {
  if (!(length > 0)) return false;
  std::array<std::int64_t, kAxes> shape{};
  for (int d = 0; d < kAxes; ++d) {
    const double cells = std::ceil(sides[d] / length * std::sqrt(3.0) * (1 + kMargin));
    if (!(2 * length <= sides[d]) || cells > static_cast<double>(kMostLinkCells)) return false;
    shape[d] = static_cast<std::int64_t>(cells);
  }
  const CellList cells(positions, count, sides, shape);
  Linker linker(cells, sides, length);
  DisjointSets& sets = linker.Link();
  std::vector<std::int64_t> lowest(static_cast<std::size_t>(cells.size()), count);
  const auto for_each_point = [&](auto&& body) {
    for (std::int64_t cell = 0; cell < cells.size(); ++cell) {
      std::int64_t& low = lowest[static_cast<std::size_t>(sets.Find(cell))];
      for (const Point* p = cells.Begin(cell); p != cells.End(cell); ++p) {
        body(cells.Origin(p), &low);
      }
    }
  };
  for_each_point([](std::int64_t row, std::int64_t* low) { *low = std::min(*low, row); });
  for_each_point([&](std::int64_t row, const std::int64_t* low) { group[row] = *low; });
  return true;
}

}  // namespace pfftjax::pm

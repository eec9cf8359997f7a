// The way of rows of arrays from the ranks that have them to those that want them, and back.
#pragma once

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <numeric>
#include <utility>
#include <vector>

#include "runtime/tasks.h"

namespace pfftjax::pm {

// Rows that lie together, at most kMostInRun: threads take runs, so none is long.
inline constexpr std::int64_t kMostInRun = 1 << 14;
struct Run {
  std::int32_t row;
  std::int32_t count;
};

// Rows that stay on their rank, from `from` in the array that is sent to `to` in the one that
// arrives.
struct Stay {
  std::int32_t from;
  std::int32_t to;
  std::int32_t count;
};

// The rows of one of the two arrays: those for or from each rank, and those of no rank.
struct Side {
  std::vector<std::vector<Run>> of;  // of each rank; of this one none, as they stay
  std::vector<Run> unused;
};

inline std::int64_t CountIn(const std::vector<Run>& runs) {
  std::int64_t count = 0;
  for (const Run& run : runs) count += run.count;
  return count;
}

// Takes rows one after the other from a list of runs.
class Taker {
 public:
  explicit Taker(const std::vector<Run>& runs) : runs_(runs) {}
  // Calls `body(run)` for the next `count` rows, of which the list has as many.
  template <typename Body>
  void Take(std::int64_t count, Body&& body) {
    while (count > 0) {
      const Run& run = runs_[at_];
      const auto n = static_cast<std::int32_t>(std::min<std::int64_t>(run.count - done_, count));
      body(Run{run.row + done_, n});
      count -= n;
      done_ += n;
      if (done_ == run.count) {
        ++at_;
        done_ = 0;
      }
    }
  }

 private:
  const std::vector<Run>& runs_;
  std::size_t at_ = 0;
  std::int32_t done_ = 0;
};

// The way of the rows of one array, which `order` has by the rank that they go to. A row that
// stays keeps its place, so that an array which arrives where it was is hardly touched. Rows that
// arrive take the places of those that leave, and then those after them. The rows in use come
// first: those that stay, but lie beyond them, take free places, too.
class Way {
 public:
  // `order` has `rows` rows, of which outgoing[0] go to rank 0, and so on. What arrives has room
  // for `capacity` rows.
  Way(ffi::ThreadPool& pool, int rank, int ranks, const std::int32_t* order, std::int64_t rows,
      const std::int32_t* outgoing, const std::int32_t* incoming, std::int64_t capacity) {
    const auto is_negative = [](std::int32_t count) { return count < 0; };
    const std::int64_t sent = std::accumulate(outgoing, outgoing + ranks, std::int64_t{0});
    const std::int64_t used = std::accumulate(incoming, incoming + ranks, std::int64_t{0});
    fits_ = std::none_of(outgoing, outgoing + ranks, is_negative) &&
            std::none_of(incoming, incoming + ranks, is_negative) && sent <= rows &&
            used <= capacity && outgoing[rank] == incoming[rank];
    if (!fits_) return;
    used_ = used;
    const auto find = [&](std::int64_t begin, std::int64_t count) {
      std::vector<Run> runs;
      is_order_ &= FindRuns(pool, order + begin, count, rows, &runs);
      return runs;
    };
    there.of.resize(static_cast<std::size_t>(ranks));
    std::vector<Run> staying;
    std::int64_t begin = 0;
    for (int to = 0; to < ranks; ++to) {
      (to == rank ? staying : there.of[to]) = find(begin, outgoing[to]);
      begin += outgoing[to];
    }
    there.unused = find(sent, rows - sent);
    if (is_order_) FindPlaces(rank, ranks, staying, incoming, capacity);
  }

  // False for counts that exceed the rows.
  bool fits() const { return fits_; }
  // False for an order that leads outside the array.
  bool is_order() const { return is_order_; }
  // The rows that arrive, those that stay among them.
  std::int64_t used() const { return used_; }

  Side there;  // rows of the array that is sent
  Side here;   // rows of the one that arrives
  std::vector<Stay> stays;

 private:
  // The runs of rows that follow each other in `order`; false if one is none of `rows`.
  static bool FindRuns(ffi::ThreadPool& pool, const std::int32_t* order, std::int64_t count,
                       std::int64_t rows, std::vector<Run>* runs) {
    const std::int64_t pieces = (count + kMostInRun - 1) / kMostInRun;
    std::vector<std::vector<Run>> found(static_cast<std::size_t>(pieces));
    std::atomic<bool> is_order{true};
    ForEachTask(pool, pieces, pool.num_threads() - 1, [&](std::int64_t piece) {
      const std::int64_t end = std::min((piece + 1) * kMostInRun, count);
      std::vector<Run> its;
      for (std::int64_t i = piece * kMostInRun, run = 0; i < end; i += run) {
        const std::int64_t row = order[i];
        run = 1;
        while (i + run < end && order[i + run] == row + run) ++run;
        if (row < 0 || row + run > rows) {
          is_order = false;
          return;
        }
        its.push_back({static_cast<std::int32_t>(row), static_cast<std::int32_t>(run)});
      }
      found[static_cast<std::size_t>(piece)] = std::move(its);
    });
    for (const std::vector<Run>& of : found) runs->insert(runs->end(), of.begin(), of.end());
    return is_order;
  }

  void FindPlaces(int rank, int ranks, const std::vector<Run>& staying,
                  const std::int32_t* incoming, std::int64_t capacity) {
    const auto used = static_cast<std::int32_t>(used_);
    std::vector<Run> free;
    std::vector<Run> beyond;
    std::int32_t next = 0;  // the first place that is not known to be taken or free
    for (const Run& run : staying) {
      is_order_ &= run.row >= next;  // rows that stay follow each other
      if (!is_order_) return;
      const std::int32_t kept = std::clamp(used - run.row, 0, run.count);
      if (kept > 0) {
        if (run.row > next) free.push_back({next, run.row - next});
        stays.push_back({run.row, run.row, kept});
        next = run.row + kept;
      }
      if (kept < run.count) beyond.push_back({run.row + kept, run.count - kept});
    }
    if (used > next) free.push_back({next, used - next});
    Taker places(free);
    for (const Run& run : beyond) {
      std::int32_t from = run.row;
      places.Take(run.count, [&](const Run& place) {
        stays.push_back({from, place.row, place.count});
        from += place.count;
      });
    }
    here.of.resize(static_cast<std::size_t>(ranks));
    for (int from = 0; from < ranks; ++from) {
      if (from == rank) continue;
      places.Take(incoming[from], [&](const Run& place) { here.of[from].push_back(place); });
    }
    if (capacity > used) here.unused = {{used, static_cast<std::int32_t>(capacity - used)}};
  }

  bool fits_ = false;
  bool is_order_ = true;
  std::int64_t used_ = 0;
};

}  // namespace pfftjax::pm

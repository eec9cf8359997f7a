// Rows of arrays that ranks exchange, of one array or of a batch of arrays: the rows for each rank
// go member after member.
#pragma once

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <utility>
#include <vector>

#include "collectives/rows.h"

namespace pfftjax::pm {

// How many rows of each member belong to each rank, in arrays that have so many `rows` a member:
// those for rank 0 first.
class Shares {
 public:
  Shares(std::int64_t members, std::int64_t rows, int ranks, const std::int32_t* counts)
      : rows_(rows) {
    for (std::int64_t member = 0; member < members; ++member) {
      auto [blocks, used] = Blocks(ranks, counts + member * ranks, 1);
      for (Block& block : blocks) {
        fit_ &= block.count >= 0;
        block.offset += member * rows;
      }
      fit_ &= used <= rows;
      used_.push_back(used);
      blocks_.push_back(std::move(blocks));
    }
  }
  bool Fit() const { return fit_; }
  std::int64_t rows() const { return rows_; }

  // The number of rows for one rank, and for all.
  std::int64_t Of(int rank) const {
    std::int64_t count = 0;
    for (const std::vector<Block>& blocks : blocks_) count += blocks[rank].count;
    return count;
  }
  std::int64_t Used() const {
    std::int64_t count = 0;
    for (std::int64_t used : used_) count += used;
    return count;
  }
  // Calls `body(place, n, done)` for rows [first, first + count) of those for a rank, for each
  // part that lies together: n rows at that place in the batch, after `done` others.
  template <typename Body>
  void ForEachPart(int rank, std::int64_t first, std::int64_t count, Body&& body) const {
    std::int64_t done = 0;
    for (auto blocks = blocks_.begin(); done < count; ++blocks) {
      const Block& block = (*blocks)[rank];
      const std::int64_t n = std::min(block.count - first, count - done);
      if (n > 0) {
        body(block.offset + first, n, done);
        done += n;
      }
      first = std::max<std::int64_t>(first - block.count, 0);
    }
  }
  // Calls `body(place, n)` for the n rows of each member that belong to no rank.
  template <typename Body>
  void ForEachUnused(Body&& body) const {
    for (std::size_t member = 0; member < used_.size(); ++member) {
      body(static_cast<std::int64_t>(member) * rows_ + used_[member], rows_ - used_[member]);
    }
  }

 private:
  std::int64_t rows_;
  bool fit_ = true;
  std::vector<std::int64_t> used_;
  std::vector<std::vector<Block>> blocks_;  // of each member, for each rank
};

// Rows of an array that lie where they belong.
class PlainRows {
 public:
  PlainRows(Shares shares, char* data, std::int64_t bytes)
      : shares_(std::move(shares)), data_(data), bytes_(bytes) {}
  const Shares& shares() const { return shares_; }

  // Some of the rows for a rank, one after the other: here, or in a buffer that has room for them.
  const char* Take(int rank, std::int64_t first, std::int64_t count, char* buffer) const {
    const char* found = PlaceFor(rank, first, count, buffer);
    if (found == buffer) {
      shares_.ForEachPart(rank, first, count, [&](auto place, auto n, auto done) {
        std::memcpy(buffer + done * bytes_, data_ + place * bytes_, Bytes(n));
      });
    }
    return found;
  }
  // Where rows from a rank may be put before they come to their place by `Put`: it is their place
  // if they lie together.
  char* PlaceFor(int rank, std::int64_t first, std::int64_t count, char* buffer) const {
    char* found = buffer;
    shares_.ForEachPart(rank, first, count, [&](auto place, auto n, auto) {
      if (n == count) found = data_ + place * bytes_;
    });
    return found;
  }
  void Put(int rank, std::int64_t first, std::int64_t count, const char* from) const {
    shares_.ForEachPart(rank, first, count, [&](auto place, auto n, auto done) {
      char* to = data_ + place * bytes_;
      if (to != from) std::memcpy(to, from + done * bytes_, Bytes(n));
    });
  }
  void ClearUnused() const {
    shares_.ForEachUnused(
        [&](auto place, auto n) { std::memset(data_ + place * bytes_, 0, Bytes(n)); });
  }

 private:
  std::size_t Bytes(std::int64_t rows) const { return static_cast<std::size_t>(rows * bytes_); }

  Shares shares_;
  char* data_;
  std::int64_t bytes_;
};

// Rows of an array that are gone through in an order, which each member has of its own.
class OrderedRows {
 public:
  OrderedRows(Shares shares, char* data, std::int64_t bytes, const std::int32_t* order)
      : shares_(std::move(shares)), data_(data), bytes_(bytes), order_(order) {}
  const Shares& shares() const { return shares_; }
  // False once the order has led outside the array.
  bool IsOrder() const { return is_order_; }

  // As of `PlainRows`; all go through the buffer.
  const char* Take(int rank, std::int64_t first, std::int64_t count, char* buffer) {
    shares_.ForEachPart(rank, first, count, [&](auto place, auto n, auto done) {
      ForEachRun(place, n, [&](const char* rows, std::int64_t i, std::int64_t run) {
        Copy(rows, buffer + (done + i) * bytes_, run);
      });
    });
    return buffer;
  }
  static char* PlaceFor(int, std::int64_t, std::int64_t, char* buffer) { return buffer; }
  void Put(int rank, std::int64_t first, std::int64_t count, const char* from) {
    shares_.ForEachPart(rank, first, count, [&](auto place, auto n, auto done) {
      ForEachRun(place, n, [&](char* rows, std::int64_t i, std::int64_t run) {
        Copy(from + (done + i) * bytes_, rows, run);
      });
    });
  }
  void ClearUnused() {
    shares_.ForEachUnused([&](auto place, auto n) {
      ForEachRun(place, n, [&](char* rows, std::int64_t, std::int64_t run) {
        std::memset(rows, 0, static_cast<std::size_t>(run * bytes_));
      });
    });
  }

 private:
  // Calls `body(rows, i, run)` for order[first + i], i < count, of one member: `run` rows in the
  // order lie together there. Particles that stay on their rank do, between those that leave it.
  template <typename Body>
  void ForEachRun(std::int64_t first, std::int64_t count, Body&& body) {
    if (count == 0) return;
    const std::int64_t rows = shares_.rows();
    char* const member = data_ + first / rows * rows * bytes_;
    const std::int32_t* const order = order_ + first;
    for (std::int64_t i = 0, run = 0; i < count; i += run) {
      const std::int64_t row = order[i];
      run = 1;
      while (i + run < count && order[i + run] == row + run) ++run;
      if (row < 0 || row + run > rows) {
        is_order_ = false;
        return;
      }
      body(member + row * bytes_, i, run);
    }
  }
  void Copy(const char* from, char* to, std::int64_t rows) const {
    // Rows of particles have these sizes, which the compiler can then copy by.
    if (rows > 1) {
      std::memcpy(to, from, static_cast<std::size_t>(rows * bytes_));
    } else if (bytes_ == 12) {
      std::memcpy(to, from, 12);
    } else if (bytes_ == 24) {
      std::memcpy(to, from, 24);
    } else {
      std::memcpy(to, from, static_cast<std::size_t>(bytes_));
    }
  }

  Shares shares_;
  char* data_;
  std::int64_t bytes_;
  const std::int32_t* order_;
  bool is_order_ = true;
};

}  // namespace pfftjax::pm

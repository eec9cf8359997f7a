#include "rounds.h"

#include <algorithm>
#include <vector>

#include "job.h"

namespace pfftjax::simulated {
namespace {

// MPICH's defaults, in bytes (MPIR_CVAR_ALLTOALL_SHORT_MSG_SIZE and so on), and its algorithms:
// Thakur, Rabenseifner and Gropp, "Optimization of collective communication operations in MPICH",
// 2005.
constexpr std::int64_t kShortAlltoall = 256;     // for each rank
constexpr std::int64_t kMediumAlltoall = 32768;  // for each rank
constexpr int kThrottle = 32;                    // messages of a medium one at a time
constexpr std::int64_t kShortAllgather = 81920;  // of all ranks
constexpr std::int64_t kLongAllgather = 524288;  // of all ranks
constexpr std::int64_t kShortAllreduce = 2048;
constexpr std::int64_t kShortReduceScatter = 524288;  // for all ranks
constexpr std::int64_t kShortReduce = 2048;
constexpr std::int64_t kShortBcast = 12288;
constexpr int kFewRanks = 8;  // too few for Bruck's algorithm, or for a broadcast in parts

struct Piece {
  int rank;
  std::int64_t bytes;
};

// One rank's messages, round by round.
class Rounds {
 public:
  Rounds(Comm& comm, int rank, std::int64_t all_bytes)
      : comm_(comm),
        clock_(*TheJob().clock),
        rank_(rank),
        size_(comm.size()),
        is_cached_(2 * static_cast<double>(all_bytes) <= clock_.machine.cache) {}

  int rank() const { return rank_; }
  int size() const { return size_; }
  int At(int distance) const { return ((rank_ + distance) % size_ + size_) % size_; }

  void Exchange(const std::vector<Piece>& to, const std::vector<Piece>& from) {
    std::vector<Request*> requests;
    for (const Piece& piece : from) {
      requests.push_back(comm_.Post(nullptr, piece.bytes, piece.rank, kCollectiveTag));
    }
    for (const Piece& piece : to) {
      requests.push_back(
          comm_.SendOnClock(nullptr, piece.bytes, piece.rank, kCollectiveTag, is_cached_));
    }
    for (Request* request : requests) {
      WaitFor(request);
      delete request;
    }
  }
  void With(int other, std::int64_t bytes) { Exchange({{other, bytes}}, {{other, bytes}}); }
  void Shift(int distance, std::int64_t bytes) {
    Exchange({{At(distance), bytes}}, {{At(-distance), bytes}});
  }
  void Send(int to, std::int64_t bytes) { Exchange({{to, bytes}}, {}); }
  void Receive(int from, std::int64_t bytes) { Exchange({}, {{from, bytes}}); }
  // Reads and writes them once.
  void Copy(std::int64_t bytes) { Do(2 * bytes); }
  // Reads two operands and writes one.
  void Combine(std::int64_t bytes) { Do(3 * bytes); }

 private:
  void Do(std::int64_t bytes) {
    const auto size = static_cast<double>(bytes);
    clock_.Do(is_cached_ ? Clock::Work{size, 0} : Clock::Work{0, size});
  }

  Comm& comm_;
  Clock& clock_;
  const int rank_;
  const int size_;
  const bool is_cached_;
};

int PowerBelow(int size) {
  int power = 1;
  while (2 * power <= size) power *= 2;
  return power;
}
bool IsPower(int size) { return PowerBelow(size) == size; }

// ceil(log2(P)) rounds: in each, the blocks whose number has that bit.
void BruckAlltoall(Rounds& r, std::int64_t block) {
  r.Copy(block * r.size());
  for (int bit = 1; bit < r.size(); bit *= 2) {
    std::int64_t blocks = 0;
    for (int i = 0; i < r.size(); ++i) blocks += (i & bit) != 0;
    r.Copy(blocks * block);
    r.Shift(bit, blocks * block);
    r.Copy(blocks * block);
  }
  r.Copy(block * r.size());
}

void ScatteredAlltoall(Rounds& r, std::int64_t block) {
  r.Copy(block);
  for (int first = 1; first < r.size(); first += kThrottle) {
    std::vector<Piece> to;
    std::vector<Piece> from;
    for (int i = first; i < std::min(first + kThrottle, r.size()); ++i) {
      to.push_back({r.At(-i), block});
      from.push_back({r.At(i), block});
    }
    r.Exchange(to, from);
  }
}

void PairwiseAlltoall(Rounds& r, std::int64_t block) {
  r.Copy(block);
  for (int i = 1; i < r.size(); ++i) {
    if (IsPower(r.size())) {
      r.With(r.rank() ^ i, block);
    } else {
      r.Shift(i, block);
    }
  }
}

void Alltoall(Rounds& r, std::int64_t block) {
  if (block <= kShortAlltoall && r.size() >= kFewRanks) return BruckAlltoall(r, block);
  block <= kMediumAlltoall ? ScatteredAlltoall(r, block) : PairwiseAlltoall(r, block);
}

// By recursive doubling, Bruck's algorithm or a ring.
void Allgather(Rounds& r, std::int64_t block) {
  const std::int64_t all = block * r.size();
  r.Copy(block);
  if (IsPower(r.size()) && all < kLongAllgather) {
    for (int bit = 1; bit < r.size(); bit *= 2) r.With(r.rank() ^ bit, bit * block);
  } else if (all < kShortAllgather) {
    for (int bit = 1; bit < r.size(); bit *= 2) {
      r.Shift(-bit, std::min(bit, r.size() - bit) * block);
    }
    r.Copy(all);
  } else {
    for (int i = 1; i < r.size(); ++i) r.Shift(1, block);
  }
}

// Ranks beyond a power of two leave what they have to their neighbours, and get the result back.
template <typename Body>
void OnPower(Rounds& r, std::int64_t bytes, Body&& body) {
  const int power = PowerBelow(r.size());
  const int rest = r.size() - power;
  const bool is_paired = r.rank() < 2 * rest;
  if (is_paired && r.rank() % 2 == 0) {
    r.Send(r.rank() + 1, bytes);
    r.Receive(r.rank() + 1, bytes);
    return;
  }
  if (is_paired) {
    r.Receive(r.rank() - 1, bytes);
    r.Combine(bytes);
  }
  const auto real = [rest](int rank) { return rank < rest ? 2 * rank + 1 : rank + rest; };
  body(is_paired ? r.rank() / 2 : r.rank() - rest, power, real);
  if (is_paired) r.Send(r.rank() - 1, bytes);
}

// Recursive doubling; or Rabenseifner's reduce_scatter by halving and allgather by doubling.
void Allreduce(Rounds& r, std::int64_t bytes, std::int64_t count) {
  OnPower(r, bytes, [&](int rank, int power, auto&& real) {
    if (bytes <= kShortAllreduce || count < power) {
      for (int bit = 1; bit < power; bit *= 2) {
        r.With(real(rank ^ bit), bytes);
        r.Combine(bytes);
      }
      return;
    }
    std::int64_t part = bytes;
    for (int bit = power / 2; bit > 0; bit /= 2) {
      part = (part + 1) / 2;
      r.With(real(rank ^ bit), part);
      r.Combine(part);
    }
    for (int bit = 1; bit < power; bit *= 2) {
      r.With(real(rank ^ bit), part);
      part *= 2;
    }
  });
}

// Recursive halving, or between pairs.
void ReduceScatter(Rounds& r, std::int64_t block) {
  const std::int64_t all = block * r.size();
  if (all >= kShortReduceScatter) {
    for (int i = 1; i < r.size(); ++i) {
      r.Shift(i, block);
      r.Combine(block);
    }
    return;
  }
  OnPower(r, all, [&](int rank, int power, auto&& real) {
    std::int64_t part = all;
    for (int bit = power / 2; bit > 0; bit /= 2) {
      part = (part + 1) / 2;
      r.With(real(rank ^ bit), part);
      r.Combine(part);
    }
  });
}

// Along a binomial tree, down from the root or up to it: a subtree of n ranks has n parts.
void Tree(Rounds& r, int root, bool is_down, std::int64_t bytes, bool is_by_rank, bool combines) {
  const int place = r.At(-root);
  const auto size_of = [&](int at, int bit) {
    return is_by_rank ? std::min(bit, r.size() - at) * bytes : bytes;
  };
  int parent = 1;
  while (parent < r.size() && (place & parent) == 0) parent *= 2;
  const auto rank_at = [&](int at) { return (at + root) % r.size(); };
  const auto with_parent = [&] {
    if (place == 0) return;
    const int rank = rank_at(place - parent);
    const std::int64_t size = size_of(place, parent);
    is_down ? r.Receive(rank, size) : r.Send(rank, size);
  };
  if (is_down) with_parent();
  std::vector<int> bits;
  for (int bit = 1; bit < parent && place + bit < r.size(); bit *= 2) bits.push_back(bit);
  if (is_down) std::reverse(bits.begin(), bits.end());
  for (const int bit : bits) {
    const std::int64_t size = size_of(place + bit, bit);
    if (is_down) {
      r.Send(rank_at(place + bit), size);
    } else {
      r.Receive(rank_at(place + bit), size);
      if (combines) r.Combine(size);
    }
  }
  if (!is_down) with_parent();
}

// A tree, or a scatter and an allgather.
void Bcast(Rounds& r, int root, std::int64_t bytes) {
  if (bytes < kShortBcast || r.size() < kFewRanks) {
    return Tree(r, root, true, bytes, false, false);
  }
  const std::int64_t part = (bytes + r.size() - 1) / r.size();
  Tree(r, root, true, part, true, false);
  Allgather(r, part);
}

// A tree; or halving, and a tree of parts.
void Reduce(Rounds& r, int root, std::int64_t bytes, std::int64_t count) {
  if (bytes <= kShortReduce || count < PowerBelow(r.size())) {
    return Tree(r, root, false, bytes, false, true);
  }
  const std::int64_t part = (bytes + r.size() - 1) / r.size();
  ReduceScatter(r, part);
  Tree(r, root, false, part, true, false);
}

// Recursive doubling over the ranks before.
void Scan(Rounds& r, std::int64_t bytes) {
  for (int bit = 1; bit < r.size(); bit *= 2) {
    const int other = r.rank() ^ bit;
    if (other >= r.size()) continue;
    r.With(other, bytes);
    r.Combine(bytes);
  }
}

}  // namespace

void MakeRounds(Comm& comm, int rank, const Part& part) {
  const std::int64_t bytes = part.count * InfoOf(part.element).bytes;
  const bool is_of_one = part.kind == Kind::kAllreduce || part.kind == Kind::kReduce ||
                         part.kind == Kind::kScan || part.kind == Kind::kExscan ||
                         part.kind == Kind::kBcast;
  Rounds r(comm, rank, is_of_one ? bytes : bytes * comm.size());
  if (comm.size() == 1) return;
  switch (part.kind) {
    case Kind::kAlltoall:
      return Alltoall(r, bytes);
    case Kind::kAllgather:
      return Allgather(r, bytes);
    case Kind::kReduceScatter:
      return ReduceScatter(r, bytes);
    case Kind::kAllreduce:
      return Allreduce(r, bytes, part.count);
    case Kind::kReduce:
      return Reduce(r, part.root, bytes, part.count);
    case Kind::kScan:
    case Kind::kExscan:
      return Scan(r, bytes);
    case Kind::kBcast:
      return Bcast(r, part.root, bytes);
    case Kind::kGather:
    case Kind::kScatter:
      return Tree(r, part.root, part.kind == Kind::kScatter, bytes, true, false);
    case Kind::kBarrier:  // dissemination
      for (int bit = 1; bit < comm.size(); bit *= 2) r.Shift(bit, 0);
      return;
    case Kind::kDuplicate:
      scheduler->Fail("a duplicate is begun, and goes on by itself");
  }
}

}  // namespace pfftjax::simulated

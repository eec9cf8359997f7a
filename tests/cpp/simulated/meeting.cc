// Collectives of the simulated MPI.
#include <algorithm>
#include <cstring>
#include <memory>
#include <type_traits>

#include "job.h"
#include "mpi.h"
#include "rounds.h"

namespace pfftjax::simulated {
namespace {

template <typename T>
T Combine(Reduction reduction, T a, T b) {
  switch (reduction) {
    case Reduction::kSum:
      return static_cast<T>(a + b);
    case Reduction::kProd:
      return static_cast<T>(a * b);
    case Reduction::kMin:
      return std::min(a, b);
    case Reduction::kMax:
      return std::max(a, b);
    default:
      scheduler->Fail("a reduction that the simulated MPI does not have");
  }
}

}  // namespace

// inout = in (op) inout
void ReduceInto(const void* in, void* inout, std::int64_t count, Element element,
                Reduction reduction) {
  const auto all = [&](auto zero) {
    using T = decltype(zero);
    for (std::int64_t i = 0; i < count; ++i) {
      T a;
      T b;
      std::memcpy(&a, static_cast<const char*>(in) + i * sizeof a, sizeof a);
      std::memcpy(&b, static_cast<char*>(inout) + i * sizeof b, sizeof b);
      const T both = Combine(reduction, a, b);
      std::memcpy(static_cast<char*>(inout) + i * sizeof both, &both, sizeof both);
    }
  };
  switch (element) {
    case Element::kS32:
      return all(std::int32_t{});
    case Element::kS64:
      return all(std::int64_t{});
    case Element::kU64:
      return all(std::uint64_t{});
    case Element::kU8:
      return all(std::uint8_t{});
    case Element::kF32:
      return all(float{});
    case Element::kF64:
      return all(double{});
    default:
      scheduler->Fail("a reduction of a type that the simulated MPI does not have");
  }
}

class Meeting {
 public:
  explicit Meeting(Comm& comm) : comm_(comm) {
    const auto size = static_cast<std::size_t>(comm.size());
    parts_.resize(size);
    is_synchronizing_ = scheduler->random.Chance(TheJob().network.synchronizes);
  }

  // On a clock: what a rank brings to a collective that it makes by messages of known sizes.
  void Bring(int rank, const Part& part) {
    Seat& seat = parts_[static_cast<std::size_t>(rank)];
    seat.part = part;
    seat.stage = Stage::kHere;
    seat.source = static_cast<const char*>(part.send);
    const Part& first = parts_[static_cast<std::size_t>(first_ < 0 ? first_ = rank : first_)].part;
    if (part.kind != first.kind || part.root != first.root || part.count != first.count ||
        part.element != first.element || part.reduction != first.reduction) {
      scheduler->Fail("a collective of ranks that mean different things");
    }
    if (!IsForAll(part.kind) && part.send) {
      seat.data.assign(seat.source, seat.source + SendBytes(part, rank));
      seat.source = seat.data.data();
    }
    // Nobody has left it yet, so that what everybody sends is still there.
    if (++here_ == comm_.size() && IsForAll(part.kind)) {
      for (int other = 0; other < comm_.size(); ++other) Give(other, PartOf(other));
    }
  }
  // Once the messages of this rank are done. True for the last one.
  bool Take(int rank) {
    const Part& part = PartOf(rank);
    if (!IsForAll(part.kind)) Give(rank, part);
    return ++gone_ == comm_.size();
  }
  // A collective that is begun and goes on by itself; it is done on all ranks at one time.
  Request* Begin(int rank, const Part& part) {
    auto* request = new Request;
    request->owner = &CurrentProcess();
    ++request->owner->open_requests;
    Seat& seat = parts_[static_cast<std::size_t>(rank)];
    seat.part = part;
    seat.request = request;
    seat.meeting = this;
    seat.rank = rank;
    if (++here_ < comm_.size()) return request;
    const Machine& machine = TheJob().clock->machine;
    double rounds = 0;
    for (int ranks = 1; ranks < comm_.size(); ranks *= 2) ++rounds;
    for (Seat& one : parts_) {
      endings_.push_back(std::make_unique<Ending>());
      endings_.back()->seat = &one;
      const auto time = static_cast<Time>(rounds * (machine.latency + 2 * machine.overhead));
      scheduler->Schedule(*endings_.back(), scheduler->now() + time);
    }
    return request;
  }

  Request* Enter(int rank, const Part& part) {
    auto* request = new Request;
    request->owner = &CurrentProcess();
    ++request->owner->open_requests;
    Seat& seat = parts_[static_cast<std::size_t>(rank)];
    seat.part = part;
    seat.request = request;
    seat.meeting = this;
    seat.rank = rank;
    seat.knowledge = Tell();
    const char* from = static_cast<const char*>(part.send);
    if (from) seat.data.assign(from, from + SendBytes(part, rank));
    seat.source = seat.data.data();
    seat.stage = Stage::kHere;
    // A root of a broadcast, or a leaf of a reduction, may be done and not have sent anything yet.
    LetGo(*request->owner, seat, 0);
    Look();
    return request;
  }

 private:
  enum class Stage { kAway, kHere, kEnding, kEnded };

  struct Seat : Event {
    Meeting* meeting = nullptr;
    int rank = 0;
    Part part;
    std::vector<char> data;
    const char* source = nullptr;  // data, or on a clock what the rank has lent
    Request* request = nullptr;
    Stage stage = Stage::kAway;
    bool has_left = false;  // the others can have its data
    Knowledge knowledge;

    void Happen() override {
      has_left = true;
      meeting->Look();
    }
  };
  struct Ending : Event {
    Seat* seat = nullptr;
    void Happen() override { seat->meeting->End(*seat); }
  };

  std::int64_t SendBytes(const Part& part, int rank) const {
    const std::int64_t bytes = part.count * InfoOf(part.element).bytes;
    switch (part.kind) {
      case Kind::kAlltoall:
      case Kind::kReduceScatter:
        return bytes * comm_.size();
      case Kind::kScatter:
        return rank == part.root ? bytes * comm_.size() : 0;
      case Kind::kBcast:
        return rank == part.root ? bytes : 0;
      default:
        return bytes;
    }
  }

  // Whether `other` must be there before `rank` has its result.
  bool Needs(int rank, int other) const {
    const Part& part = parts_[static_cast<std::size_t>(rank)].part;
    if (is_synchronizing_) return true;
    switch (part.kind) {
      case Kind::kBcast:
      case Kind::kScatter:
        return other == part.root && rank != part.root;
      case Kind::kReduce:
      case Kind::kGather:
        return rank == part.root;
      case Kind::kScan:
      case Kind::kExscan:
        return other < rank;
      default:
        return true;
    }
  }

  // Whether those that have come mean the same, but for how much.
  bool IsOneCollective() const {
    const Part* first = nullptr;
    for (const Seat& seat : parts_) {
      if (seat.stage == Stage::kAway) continue;
      if (!first) first = &seat.part;
      if (seat.part.kind != first->kind || seat.part.root != first->root ||
          seat.part.reduction != first->reduction) {
        return false;
      }
    }
    return true;
  }
  bool IsOneSize() const {
    std::int64_t size = -1;
    for (const Seat& seat : parts_) {
      if (seat.stage == Stage::kAway) continue;
      const std::int64_t bytes = seat.part.count * InfoOf(seat.part.element).bytes;
      if (size >= 0 && size != bytes) return false;
      size = bytes;
    }
    return true;
  }

  // MPI does not define what happens to ranks that do not fit. Here they wait for ever, or, if
  // only the sizes differ, get an error.
  void Look() {
    if (!IsOneCollective()) return;
    if (!IsOneSize()) {
      for (Seat& seat : parts_) {
        if (seat.stage != Stage::kHere) continue;
        seat.stage = Stage::kEnded;
        seat.request->Complete(kErrorTruncate);
      }
      return;
    }
    for (Seat& seat : parts_) {
      if (seat.stage != Stage::kHere) continue;
      bool is_ready = true;
      for (int rank = 0; rank < comm_.size(); ++rank) {
        if (rank == seat.rank || !Needs(seat.rank, rank)) continue;
        if (!parts_[static_cast<std::size_t>(rank)].has_left) is_ready = false;
      }
      if (!is_ready) continue;
      seat.stage = Stage::kEnding;
      endings_.push_back(std::make_unique<Ending>());
      endings_.back()->seat = &seat;
      const Process& process = comm_.ProcessOf(seat.rank);
      Time arrival = Arrival(process, process, static_cast<Time>(seat.data.size()));
      const Network& network = TheJob().network;
      if (seat.part.kind == Kind::kDuplicate && process.rank == network.late_rank) {
        arrival += network.lateness;
      }
      const Time relayed = comm_.ProcessOf(RelayOf(seat.rank)).stopped_until;
      scheduler->Schedule(*endings_.back(), std::max(arrival, relayed));
    }
  }

  // A rank that is still in the collective, by way of which `rank` has its result.
  int RelayOf(int rank) const {
    Random& random = scheduler->random;
    const double relays = TheJob().network.relays;
    if (relays == 0 || !random.Chance(relays)) return rank;
    const int other = static_cast<int>(random.Below(comm_.size()));
    const Stage stage = parts_[static_cast<std::size_t>(other)].stage;
    return stage == Stage::kHere || stage == Stage::kEnding ? other : rank;
  }

  const Part& PartOf(int rank) const { return parts_[static_cast<std::size_t>(rank)].part; }
  const char* DataOf(int rank) const { return parts_[static_cast<std::size_t>(rank)].source; }
  // Whether no rank can be done before all have come.
  static bool IsForAll(Kind kind) {
    return kind == Kind::kAlltoall || kind == Kind::kAllgather || kind == Kind::kReduceScatter ||
           kind == Kind::kAllreduce || kind == Kind::kBarrier;
  }

  void End(Seat& seat) {
    seat.stage = Stage::kEnded;
    if (comm_.ProcessOf(seat.rank).is_dead) return;
    Give(seat.rank, seat.part);
    Knowledge& all = seat.request->knowledge;
    for (int rank = 0; rank < comm_.size(); ++rank) {
      const Knowledge& told = parts_[static_cast<std::size_t>(rank)].knowledge;
      if (Needs(seat.rank, rank)) all.Add(told);
    }
    seat.request->Complete(0);
  }

  void Give(int rank, const Part& part) {
    const int size = comm_.size();
    const auto bytes = static_cast<std::size_t>(part.count * InfoOf(part.element).bytes);
    auto* to = static_cast<char*>(part.recv);
    const auto reduce = [&](int begin, int end, std::size_t offset) {
      for (int other = begin; other < end; ++other) {
        const char* data = DataOf(other) + offset;
        if (other == begin) {
          std::memcpy(to, data, bytes);
        } else {
          ReduceInto(data, to, part.count, part.element, part.reduction);
        }
      }
    };
    const auto mine = static_cast<std::size_t>(rank);
    switch (part.kind) {
      case Kind::kAlltoall:
        for (int other = 0; other < size; ++other) {
          std::memcpy(to + static_cast<std::size_t>(other) * bytes, DataOf(other) + mine * bytes,
                      bytes);
        }
        return;
      case Kind::kGather:
        if (rank != part.root) return;
        [[fallthrough]];
      case Kind::kAllgather:
        for (int other = 0; other < size; ++other) {
          std::memcpy(to + static_cast<std::size_t>(other) * bytes, DataOf(other), bytes);
        }
        return;
      case Kind::kReduceScatter:
        return reduce(0, size, mine * bytes);
      case Kind::kReduce:
        if (rank != part.root) return;
        [[fallthrough]];
      case Kind::kAllreduce:
        return reduce(0, size, 0);
      case Kind::kScan:
        return reduce(0, rank + 1, 0);
      case Kind::kExscan:
        return reduce(0, rank, 0);
      case Kind::kBcast:
        if (rank != part.root) std::memcpy(to, DataOf(part.root), bytes);
        return;
      case Kind::kScatter:
        std::memcpy(to, DataOf(part.root) + mine * bytes, bytes);
        return;
      case Kind::kBarrier:
        return;
      case Kind::kDuplicate: {
        if (!duplicate_) {
          auto& comms = TheJob().comms;
          comms.push_back(std::make_unique<Comm>(comm_.members, static_cast<int>(comms.size())));
          duplicate_ = comms.back().get();
        }
        *part.duplicate = reinterpret_cast<MpiHandle>(duplicate_);
        return;
      }
    }
  }

  Comm& comm_;
  std::vector<Seat> parts_;
  int first_ = -1;  // to come
  int here_ = 0;
  int gone_ = 0;
  std::vector<std::unique_ptr<Ending>> endings_;
  bool is_synchronizing_;
  Comm* duplicate_ = nullptr;
};

Comm::Comm(std::vector<int> all, int number) : members(std::move(all)), number(number) {
  ranks.assign(static_cast<std::size_t>(TheJob().ranks), -1);
  for (std::size_t i = 0; i < members.size(); ++i) {
    ranks[static_cast<std::size_t>(members[i])] = static_cast<int>(i);
  }
  entered.resize(members.size());
  boxes = std::vector<Box>(members.size());
}

Comm::~Comm() = default;

namespace {

std::unique_ptr<Meeting>& NextMeeting(Comm& comm, int rank, const Part& part) {
  scheduler->Note(static_cast<std::uint64_t>(part.kind) << 40 ^
                  static_cast<std::uint64_t>(part.count));
  const std::int64_t index = comm.entered[static_cast<std::size_t>(rank)]++;
  while (static_cast<std::int64_t>(comm.meetings.size()) <= index) {
    comm.meetings.push_back(std::make_unique<Meeting>(comm));
  }
  return comm.meetings[static_cast<std::size_t>(index)];
}

}  // namespace

Request* Enter(Comm& comm, const Part& part) {
  const int rank = comm.RankOf(CurrentProcess());
  Meeting& meeting = *NextMeeting(comm, rank, part);
  return TheJob().clock ? meeting.Begin(rank, part) : meeting.Enter(rank, part);
}

void CollectOnClock(Comm& comm, const Part& part) {
  const int rank = comm.RankOf(CurrentProcess());
  TheJob().clock->HandToMpi(nullptr);
  std::unique_ptr<Meeting>& meeting = NextMeeting(comm, rank, part);
  meeting->Bring(rank, part);
  MakeRounds(comm, rank, part);
  if (meeting->Take(rank)) meeting.reset();
}

}  // namespace pfftjax::simulated

// Steps that are collectives of MPI's.
#include <algorithm>
#include <limits>
#include <string_view>

#include "base/options.h"
#include "collectives/same.h"
#include "steps.h"

namespace pfftjax::simulated {
namespace {

// Large exchanges of many ranks take long to check, and so do those in many pieces.
std::int64_t Fewer(std::int64_t count, const Communicator& comm, std::int64_t bytes = 4) {
  constexpr std::int64_t kPieces = 60;
  const std::int64_t pieces = kPieces * GetOptions().max_chunk_bytes / bytes;
  return std::max<std::int64_t>(
      1, std::min<std::int64_t>({count, 30'000 / comm.size / comm.size, pieces}));
}

void Fill(Array& x, std::uint64_t step, int from, int to, std::int64_t begin, std::int64_t bytes) {
  for (std::int64_t i = 0; i < bytes; ++i) {
    x.data[static_cast<std::size_t>(begin + i)] = static_cast<char>(ByteOf(step, from, to, i));
  }
}

void Check(Array& y, std::uint64_t step, int from, int to, std::int64_t begin, std::int64_t bytes,
           const char* what) {
  for (std::int64_t i = 0; i < bytes; ++i) {
    const auto found = static_cast<std::uint8_t>(y.data[static_cast<std::size_t>(begin + i)]);
    ExpectOr(found == ByteOf(step, from, to, i), [&] {
      return std::string(what) + ": byte " + std::to_string(i) + " of " + std::to_string(bytes) +
             " from rank " + std::to_string(from) + " is wrong";
    });
  }
}

void Alltoall(Rank& rank, std::int64_t number, Random random) {
  const Communicator& comm = rank.On(number);
  const std::uint64_t step = random.Next();
  const ffi::DataType type = DrawType(random);
  const std::int64_t count =
      Fewer(DrawCount(random), comm, static_cast<std::int64_t>(ffi::ByteWidth(type)));
  const auto bytes = count * static_cast<std::int64_t>(ffi::ByteWidth(type));
  Array x(type, {comm.size, count});
  Array y(type, {comm.size, count});
  for (int to = 0; to < comm.size; ++to) Fill(x, step, comm.rank, to, to * bytes, bytes);
  // Each rank decides for itself whether XLA gives one buffer for both.
  const bool is_in_place = scheduler->random.Chance(0.3);
  Array& result = is_in_place ? x : y;
  Expect(CallOn<>("pfftjax_alltoall", Site(number), x, result));
  for (int from = 0; from < comm.size; ++from) {
    Check(result, step, from, comm.rank, from * bytes, bytes, "alltoall");
  }
}

void Allgather(Rank& rank, std::int64_t number, Random random) {
  const Communicator& comm = rank.On(number);
  const std::uint64_t step = random.Next();
  const ffi::DataType type = DrawType(random);
  const std::int64_t count =
      Fewer(DrawCount(random), comm, static_cast<std::int64_t>(ffi::ByteWidth(type)));
  const auto bytes = count * static_cast<std::int64_t>(ffi::ByteWidth(type));
  Array x(type, {count});
  Array y(type, {comm.size, count});
  Fill(x, step, comm.rank, -1, 0, bytes);
  Expect(CallOn<>("pfftjax_allgather", Site(number), x, y));
  for (int from = 0; from < comm.size; ++from) {
    Check(y, step, from, -1, from * bytes, bytes, "allgather");
  }
}

// Rows of two numbers; from rank a to rank b as many as both can tell.
void Alltoallv(Rank& rank, std::int64_t number, Random random) {
  const Communicator& comm = rank.On(number);
  const std::uint64_t step = random.Next();
  const std::int64_t most = random.Chance(0.8) ? 4 : Fewer(200, comm) + 1;
  const auto rows = [&](int from, int to) {
    return static_cast<std::int32_t>(NumberOf(step, from, to, 1'000'000) % most);
  };
  const bool is_gather = random.Chance(0.3);
  const auto sent_to = [&](int from, int to) { return rows(from, is_gather ? 0 : to); };
  std::int64_t sent = 0;
  std::int64_t received = 0;
  Array outgoing(ffi::S32, {comm.size});
  Array incoming(ffi::S32, {comm.size});
  for (int other = 0; other < comm.size; ++other) {
    *outgoing.At<std::int32_t>(other) = sent_to(comm.rank, other);
    sent += sent_to(comm.rank, other);
    received += sent_to(other, comm.rank);
  }
  if (is_gather) sent = rows(comm.rank, 0);
  std::int64_t capacity = 0;
  for (int to = 0; to < comm.size; ++to) {
    std::int64_t all = 0;
    for (int from = 0; from < comm.size; ++from) all += sent_to(from, to);
    capacity = std::max(capacity, all);
  }
  const bool overflows = random.Chance(0.1) && capacity > 1;
  capacity += overflows ? -1 : static_cast<std::int64_t>(random.Below(3));
  const std::int64_t width = 2;
  Array x(ffi::S32, {sent, width});
  Array y(ffi::S32, {capacity, width});
  const ffi::Error counted =
      CallHandler<std::int64_t, std::int64_t, std::string_view, ffi::Buffer<ffi::S32>, Token,
                  ffi::Result<ffi::Buffer<ffi::S32>>, TokenResult>(
          "pfftjax_exchange_counts", Site(number),
          is_gather ? std::numeric_limits<std::int32_t>::max() : sent, capacity,
          is_gather ? "gathered rows" : "rows", outgoing.As<ffi::S32>(), Token{},
          ffi::Result<ffi::Buffer<ffi::S32>>(incoming.As<ffi::S32>()), TokenResult{});
  if (overflows) {
    ExpectOr(
        counted.failure() &&
            counted.message().find(" is enough on every rank") != std::string::npos,
        [&] { return std::string("rows that overflow were not refused: ") + counted.message(); });
    return;
  }
  Expect(counted);
  for (int other = 0; other < comm.size; ++other) {
    Expect(*incoming.At<std::int32_t>(other) == sent_to(other, comm.rank), "a wrong count");
  }
  std::int64_t at = 0;
  for (int to = 0; to < (is_gather ? 1 : comm.size); ++to) {
    for (std::int64_t i = 0; i < width * rows(comm.rank, to); ++i) {
      *x.At<std::int32_t>(at++) = static_cast<std::int32_t>(NumberOf(step, comm.rank, to, i));
    }
  }
  using Counts = ffi::Buffer<ffi::S32>;
  if (is_gather) {
    Array count(ffi::S32, {});
    *count.At<std::int32_t>() = rows(comm.rank, 0);
    Expect(CallHandler<Operand, Counts, Counts, Token, Result, TokenResult>(
        "pfftjax_allgatherv", Site(number), x.Any(), count.As<ffi::S32>(), incoming.As<ffi::S32>(),
        Token{}, Result(y.Any()), TokenResult{}));
  } else {
    Expect(CallHandler<Operand, Counts, Counts, Token, Result, TokenResult>(
        "pfftjax_alltoallv", Site(number), x.Any(), outgoing.As<ffi::S32>(),
        incoming.As<ffi::S32>(), Token{}, Result(y.Any()), TokenResult{}));
  }
  at = 0;
  for (int from = 0; from < comm.size; ++from) {
    const int to = is_gather ? 0 : comm.rank;
    for (std::int64_t i = 0; i < width * rows(from, to); ++i) {
      ExpectOr(*y.At<std::int32_t>(at++) == static_cast<std::int32_t>(NumberOf(step, from, to, i)),
               [&] { return std::string("a wrong row from rank ") + std::to_string(from); });
    }
  }
  for (; at < capacity * width; ++at) Expect(*y.At<std::int32_t>(at) == 0, "no zeros at the end");
}

constexpr std::int32_t kSum = static_cast<std::int32_t>(Reduction::kSum);
constexpr std::int32_t kMax = static_cast<std::int32_t>(Reduction::kMax);

// Over the ranks begin ... end - 1.
std::int64_t Reduced(std::uint64_t step, int begin, int end, int to, std::int64_t i,
                     std::int32_t op) {
  std::int64_t result = op == kSum ? 0 : std::numeric_limits<std::int64_t>::lowest();
  for (int from = begin; from < end; ++from) {
    const std::int64_t value = NumberOf(step, from, to, i);
    result = op == kSum ? result + value : std::max(result, value);
  }
  return result;
}

void Reductions(Rank& rank, std::int64_t number, Random random) {
  const Communicator& comm = rank.On(number);
  const std::uint64_t step = random.Next();
  const std::int64_t count = std::min<std::int64_t>(DrawCount(random), 40);
  const std::int32_t op = random.Chance(0.5) ? kSum : kMax;
  const auto root = static_cast<std::int32_t>(random.Below(comm.size));
  Array x(ffi::S64, {count});
  Array y(ffi::S64, {count});
  for (std::int64_t i = 0; i < count; ++i) {
    *x.At<std::int64_t>(i) = NumberOf(step, comm.rank, -1, i);
  }
  int begin = 0;
  int end = comm.size;
  bool is_here = true;
  switch (random.Below(3)) {
    case 0:
      Expect(CallOn<std::int32_t>("pfftjax_allreduce", Site(number), op, x, y));
      break;
    case 1:
      Expect(CallOn<std::int32_t, std::int32_t>("pfftjax_reduce", Site(number), op, root, x, y));
      is_here = comm.rank == root;
      break;
    default: {
      const bool exclusive = random.Chance(0.5);
      const bool reverse = random.Chance(0.5);
      Expect(CallOn<std::int32_t, bool, bool>("pfftjax_scan", Site(number), op, exclusive, reverse,
                                              x, y));
      begin = reverse ? comm.rank + exclusive : 0;
      end = reverse ? comm.size : comm.rank + !exclusive;
    }
  }
  for (std::int64_t i = 0; i < count; ++i) {
    const std::int64_t expected = is_here ? Reduced(step, begin, end, -1, i, op) : 0;
    Expect(*y.At<std::int64_t>(i) == expected, "a wrong reduction");
  }
}

void ReduceScatter(Rank& rank, std::int64_t number, Random random) {
  const Communicator& comm = rank.On(number);
  const std::uint64_t step = random.Next();
  const std::int64_t count = std::min<std::int64_t>(DrawCount(random), 20);
  Array x(ffi::S64, {comm.size, count});
  Array y(ffi::S64, {count});
  for (int to = 0; to < comm.size; ++to) {
    for (std::int64_t i = 0; i < count; ++i) {
      *x.At<std::int64_t>(to * count + i) = NumberOf(step, comm.rank, to, i);
    }
  }
  Expect(CallOn<std::int32_t>("pfftjax_reduce_scatter", Site(number), kSum, x, y));
  for (std::int64_t i = 0; i < count; ++i) {
    Expect(*y.At<std::int64_t>(i) == Reduced(step, 0, comm.size, comm.rank, i, kSum),
           "a wrong reduce_scatter");
  }
}

void Rooted(Rank& rank, std::int64_t number, Random random) {
  const Communicator& comm = rank.On(number);
  const std::uint64_t step = random.Next();
  const std::int64_t count = Fewer(DrawCount(random), comm);
  const auto root = static_cast<std::int32_t>(random.Below(comm.size));
  const bool is_root = comm.rank == root;
  switch (random.Below(3)) {
    case 0: {
      Array x(ffi::U8, {count});
      Array y(ffi::U8, {count});
      Fill(x, step, comm.rank, -1, 0, count);
      Expect(CallOn<std::int32_t>("pfftjax_bcast", Site(number), root, x, y));
      return Check(y, step, root, -1, 0, count, "bcast");
    }
    case 1: {
      Array x(ffi::U8, {count});
      Array y(ffi::U8, {comm.size, count});
      Fill(x, step, comm.rank, -1, 0, count);
      Expect(CallOn<std::int32_t>("pfftjax_gather", Site(number), root, x, y));
      for (int from = 0; is_root && from < comm.size; ++from) {
        Check(y, step, from, -1, from * count, count, "gather");
      }
      return;
    }
    default: {
      Array x(ffi::U8, {comm.size, count});
      Array y(ffi::U8, {count});
      for (int to = 0; to < comm.size; ++to) Fill(x, step, comm.rank, to, to * count, count);
      Expect(CallOn<std::int32_t>("pfftjax_scatter", Site(number), root, x, y));
      return Check(y, step, root, comm.rank, 0, count, "scatter");
    }
  }
}

void Barrier(Rank&, std::int64_t number, Random) {
  Expect(CallHandler<Token, TokenResult>("pfftjax_barrier", Site(number), Token{}, TokenResult{}));
}

void Replicate(Rank&, std::int64_t number, Random random) {
  Array x(ffi::S64, {3});
  Array y(ffi::S64, {3});
  for (std::int64_t i = 0; i < 3; ++i) *x.At<std::int64_t>(i) = random.Below(1000);
  using Text = std::string_view;
  Expect(CallOn<std::int64_t, bool, std::int32_t, Text, Text, Text, Text>(
      "pfftjax_replicate", Site(number), 0, true, static_cast<std::int32_t>(Expected::kSameBits),
      "replicate", "a value", "", "", x, y));
  Expect(x.data == y.data, "replicate");
}

// Exchanges that are on their way beside others, and are waited for in any order.
void Split(Rank& rank, std::int64_t number, Random random) {
  const Communicator& comm = rank.On(number);
  struct Started {
    bool same_for_all;
    std::uint64_t step;
    std::int64_t bytes;
    Array x;
    Array y;
    Array ticket;
  };
  using Ticket = ffi::Buffer<ffi::U32>;
  std::vector<Started> started;
  const auto wait = [&](std::size_t which) {
    Started& one = started[which];
    // A wait for another kind of start is refused, and the start can still be waited for as it
    // was.
    if (random.Chance(0.2)) {
      const ffi::Error error = CallHandler<bool, Operand, Ticket, Token, Result, TokenResult>(
          "pfftjax_wait", Site(number), !one.same_for_all, one.x.Any(), one.ticket.As<ffi::U32>(),
          Token{}, Result(one.y.Any()), TokenResult{});
      ExpectOr(
          error.failure() && error.message().find("not started in this way") != std::string::npos,
          [&] { return "a wait for another exchange was not refused: " + error.message(); });
    }
    Expect(CallHandler<bool, Operand, Ticket, Token, Result, TokenResult>(
        "pfftjax_wait", Site(number), one.same_for_all, one.x.Any(), one.ticket.As<ffi::U32>(),
        Token{}, Result(one.y.Any()), TokenResult{}));
    for (int from = 0; from < comm.size; ++from) {
      Check(one.y, one.step, from, one.same_for_all ? -1 : comm.rank, from * one.bytes, one.bytes,
            "split exchange");
    }
    started.erase(started.begin() + static_cast<std::ptrdiff_t>(which));
  };
  const std::int64_t exchanges = random.Between(1, 4);
  for (std::int64_t i = 0; i < exchanges; ++i) {
    const bool same_for_all = random.Chance(0.5);
    const std::int64_t bytes = Fewer(DrawCount(random), comm);
    started.push_back({same_for_all, random.Next(), bytes,
                       Array(ffi::U8, same_for_all ? std::vector<std::int64_t>{bytes}
                                                   : std::vector<std::int64_t>{comm.size, bytes}),
                       Array(ffi::U8, {comm.size, bytes}), Array(ffi::U32, {2})});
    Started& one = started.back();
    for (int to = 0; to < (same_for_all ? 1 : comm.size); ++to) {
      Fill(one.x, one.step, comm.rank, same_for_all ? -1 : to, to * bytes, bytes);
    }
    Expect(CallHandler<bool, Operand, Token, ffi::Result<Ticket>, TokenResult>(
        "pfftjax_start", Site(number), same_for_all, one.x.Any(), Token{},
        ffi::Result<Ticket>(one.ticket.As<ffi::U32>()), TokenResult{}));
    if (random.Chance(0.5)) Barrier(rank, number, random);
    if (random.Chance(0.3)) {
      wait(static_cast<std::size_t>(random.Below(static_cast<std::int64_t>(started.size()))));
    }
    rank.Compute();
  }
  while (!started.empty()) {
    wait(static_cast<std::size_t>(random.Below(static_cast<std::int64_t>(started.size()))));
  }
}

}  // namespace

std::vector<StepKind> CollectiveSteps() {
  return {{"alltoall", Alltoall},     {"allgather", Allgather},          {"alltoallv", Alltoallv},
          {"reductions", Reductions}, {"reduce_scatter", ReduceScatter}, {"rooted", Rooted},
          {"barrier", Barrier},       {"replicate", Replicate},          {"split", Split}};
}

}  // namespace pfftjax::simulated

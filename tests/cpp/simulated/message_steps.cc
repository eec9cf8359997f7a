// Steps that are messages between two ranks.
#include <algorithm>

#include "collectives/messages.h"
#include "steps.h"

namespace pfftjax::simulated {
namespace {

constexpr std::int64_t kNoStatus = -1;

std::int64_t DrawLength(Random& random) {
  return random.Chance(0.7) ? random.Between(1, 20) : random.Between(1, 900);
}

void Fill(Array& x, std::uint64_t step, int from, int to) {
  for (std::int64_t i = 0; i < x.bytes(); ++i) {
    x.data[static_cast<std::size_t>(i)] = static_cast<char>(ByteOf(step, from, to, i));
  }
}
void Check(Array& y, std::uint64_t step, int from, int to, std::int64_t bytes) {
  for (std::int64_t i = 0; i < bytes; ++i) {
    ExpectOr(static_cast<std::uint8_t>(y.data[static_cast<std::size_t>(i)]) ==
                 ByteOf(step, from, to, i),
             [&] {
               return std::string("byte ") + std::to_string(i) + " of a message from rank " +
                      std::to_string(from) + " is wrong";
             });
  }
}

void Ring(Rank& rank, std::int64_t number, Random random) {
  const Communicator& comm = rank.On(number);
  const std::uint64_t step = random.Next();
  const auto shift = static_cast<std::int32_t>(random.Below(comm.size));
  const std::int32_t back = (comm.size - shift) % comm.size;
  const auto tag = static_cast<std::int32_t>(random.Between(10, 12));
  const std::int64_t count = DrawLength(random);
  Array x(ffi::U8, {count});
  Array y(ffi::U8, {count});
  const int to = (comm.rank + shift) % comm.size;
  const int from = (comm.rank + back) % comm.size;
  Fill(x, step, comm.rank, to);
  if (random.Chance(0.5)) {
    Expect(CallOn<std::int32_t, std::int32_t>("pfftjax_sendrecv_all", Site(number), back, shift, x,
                                              y));
  } else {
    Expect(CallOn<std::int32_t, std::int32_t, std::int32_t, std::int32_t>(
        "pfftjax_sendrecv", Site(number), back, shift, tag, tag, x, y));
  }
  Check(y, step, from, comm.rank, count);
}

ffi::Error Send(std::int64_t number, std::int32_t shift, std::int32_t tag, Array& x) {
  return CallHandler<std::int32_t, std::int32_t, Operand, Token, TokenResult>(
      "pfftjax_send", Site(number), shift, tag, x.Any(), Token{}, TokenResult{});
}
ffi::Error Receive(std::int64_t number, std::int32_t shift, std::int32_t tag, Array& like,
                   Array& y) {
  return CallHandler<std::int32_t, std::int32_t, std::int64_t, bool, Operand, Token, Result,
                     TokenResult>("pfftjax_recv", Site(number), shift, tag, kNoStatus, true,
                                  like.Any(), Token{}, Result(y.Any()), TokenResult{});
}

// Pairs of neighbours; and a rank that sends to itself.
void Pairs(Rank& rank, std::int64_t number, Random random) {
  const Communicator& comm = rank.On(number);
  const std::uint64_t step = random.Next();
  const auto tag = static_cast<std::int32_t>(random.Between(10, 12));
  const std::int64_t count = DrawLength(random);
  const bool to_itself = random.Chance(0.2);
  Array x(ffi::U8, {count});
  Array y(ffi::U8, {count});
  if (to_itself) {
    Fill(x, step, comm.rank, comm.rank);
    Expect(Send(number, 0, tag, x));
    Expect(Receive(number, 0, tag, x, y));
    return Check(y, step, comm.rank, comm.rank, count);
  }
  const bool is_first = comm.rank % 2 == 0;
  const int other = comm.rank + (is_first ? 1 : -1);
  if (other >= comm.size) return;
  const auto shift = static_cast<std::int32_t>(is_first ? 1 : comm.size - 1);
  const std::int64_t messages = random.Between(1, 4);
  // Messages of one pair and tag come in the order in which they were sent.
  for (std::int64_t i = 0; i < messages; ++i) {
    if (is_first) {
      Fill(x, step + static_cast<std::uint64_t>(i), comm.rank, other);
      Expect(Send(number, shift, tag, x));
    } else {
      Expect(Receive(number, shift, tag, x, y));
      Check(y, step + static_cast<std::uint64_t>(i), other, comm.rank, count);
    }
  }
}

void Barrier(std::int64_t number) {
  Expect(CallHandler<Token, TokenResult>("pfftjax_barrier", Site(number), Token{}, TokenResult{}));
}

// Everybody to rank 0, in any order: the first byte says who it is. With a tag and a barrier of
// its own, since what the next step sends must not be taken for it.
void Collect(Rank& rank, std::int64_t number, Random random) {
  const Communicator& comm = rank.On(number);
  const std::uint64_t step = random.Next();
  const auto tag = std::int32_t{13};
  const std::int64_t count = 4 + DrawLength(random);
  Array x(ffi::U8, {count});
  if (comm.rank != 0) {
    Fill(x, step, comm.rank, 0);
    x.data[0] = static_cast<char>(comm.rank);
    Expect(Send(number, static_cast<std::int32_t>(comm.size - comm.rank), tag, x));
    return Barrier(number);
  }
  std::vector<bool> has_come(static_cast<std::size_t>(comm.size));
  for (int i = 1; i < comm.size; ++i) {
    Array y(ffi::U8, {count});
    Expect(Receive(number, kShiftToAnybody, tag, x, y));
    const int from = y.data[0];
    Expect(from > 0 && from < comm.size && !has_come[static_cast<std::size_t>(from)],
           "a message from nobody, or twice");
    has_come[static_cast<std::size_t>(from)] = true;
    y.data[0] = static_cast<char>(ByteOf(step, from, 0, 0));
    Check(y, step, from, 0, count);
  }
  Barrier(number);
}

}  // namespace

std::vector<StepKind> MessageSteps() {
  return {{"ring", Ring}, {"pairs", Pairs}, {"collect", Collect}};
}

}  // namespace pfftjax::simulated

// --clock EXCHANGE SIZE [--nodes N] [--ranks-per-node R] [--method M] [--grid RxC] [--axis A]
//         [--repeats K] [--machine NAME=VALUE ...]
#include "measured.h"

#include <sys/prctl.h>
#include <sys/resource.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <map>
#include <memory>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "base/options.h"
#include "base/types.h"
#include "pencils/redistribute.h"
#include "scenario.h"

namespace pfftjax::simulated {
namespace {

// What is measured, and of how much.
struct Wanted {
  std::string exchange;
  std::int64_t size = 0;
  int nodes = 2;
  int ranks_a_node = 1;
  Method method = Method::kMessages;
  Grid grid;
  int axis = 1;
  int repeats = 2;
  Options options;
  Machine machine;
};

struct NamedMethod {
  const char* name;
  Method method;
};
// Methods of transposition.
constexpr NamedMethod kMethods[] = {
    {"MESSAGES", Method::kMessages},
    {"ALLTOALL", Method::kAlltoall},
    {"SHARED", Method::kShared},
    {"HIERARCHICAL", Method::kHierarchical},
};

// One rank's part of a program.
struct Program {
  std::function<void()> run;
  std::function<void()> check;
};

// ---- Exchanges of users
// --------------------------------------------------------------------------

// Blocks of `size` bytes between all ranks.
struct Blocks {
  Blocks(const Rank& rank, std::int64_t size)
      : rank(rank),
        words(size / 4),
        x(ffi::S32, {rank.size(), words}),
        y(ffi::S32, {rank.size(), words}) {
    for (int to = 0; to < rank.size(); ++to) {
      for (std::int64_t i = 0; i < words; ++i) {
        *x.At<std::int32_t>(to * words + i) = Value(rank.rank, to, i);
      }
    }
  }
  static std::int32_t Value(int from, int to, std::int64_t i) {
    return static_cast<std::int32_t>(NumberOf(1, from, to, i));
  }
  void Check() {
    for (int from = 0; from < rank.size(); ++from) {
      for (std::int64_t i = 0; i < words; ++i) {
        Expect(*y.At<std::int32_t>(from * words + i) == Value(from, rank.rank, i),
               "an exchange gives wrong numbers");
      }
    }
  }

  const Rank& rank;
  std::int64_t words;
  Array x;
  Array y;
};

Program Alltoall(const Rank& rank, const Wanted& wanted) {
  auto blocks = std::make_shared<Blocks>(rank, wanted.size);
  return {[=] { Expect(CallOn<>("pfftjax_alltoall", Site(kWorld), blocks->x, blocks->y)); },
          [=] { blocks->Check(); }};
}

Program Alltoallv(const Rank& rank, const Wanted& wanted) {
  using Counts = ffi::Buffer<ffi::S32>;
  auto blocks = std::make_shared<Blocks>(rank, wanted.size);
  auto counts = std::make_shared<Array>(ffi::S32, std::vector<std::int64_t>{rank.size()});
  std::fill_n(counts->At<std::int32_t>(), rank.size(), 1);
  return {[=] {
            Expect(CallHandler<Operand, Counts, Counts, Token, Result, TokenResult>(
                "pfftjax_alltoallv", Site(kWorld), blocks->x.Any(), counts->As<ffi::S32>(),
                counts->As<ffi::S32>(), Token{}, Result(blocks->y.Any()), TokenResult{}));
          },
          [=] { blocks->Check(); }};
}

// A block of `size` bytes of each rank to all.
Program Allgather(const Rank& rank, const Wanted& wanted) {
  const std::int64_t words = wanted.size / 4;
  auto x = std::make_shared<Array>(ffi::S32, std::vector<std::int64_t>{words});
  auto y = std::make_shared<Array>(ffi::S32, std::vector<std::int64_t>{rank.size(), words});
  std::fill_n(x->At<std::int32_t>(), words, rank.rank + 1);
  return {[=] { Expect(CallOn<>("pfftjax_allgather", Site(kWorld), *x, *y)); },
          [=] {
            for (std::int64_t i = 0; i < y->shape[0] * words; ++i) {
              Expect(*y->At<std::int32_t>(i) == i / words + 1, "an allgather gives wrong numbers");
            }
          }};
}

constexpr auto kSum = static_cast<std::int32_t>(Reduction::kSum);

// Sums of blocks of `size` bytes, one for each rank.
Program ReduceScatter(const Rank& rank, const Wanted& wanted) {
  const std::int64_t words = wanted.size / 4;
  auto x = std::make_shared<Array>(ffi::S32, std::vector<std::int64_t>{rank.size(), words});
  auto y = std::make_shared<Array>(ffi::S32, std::vector<std::int64_t>{words});
  for (std::int64_t i = 0; i < rank.size() * words; ++i) {
    *x->At<std::int32_t>(i) = static_cast<std::int32_t>(i / words);
  }
  const std::int32_t sum = rank.size() * rank.rank;
  return {
      [=] { Expect(CallOn<std::int32_t>("pfftjax_reduce_scatter", Site(kWorld), kSum, *x, *y)); },
      [=] {
        for (std::int64_t i = 0; i < words; ++i) {
          Expect(*y->At<std::int32_t>(i) == sum, "a reduce_scatter gives a wrong sum");
        }
      }};
}

// Vectors of `size` bytes.
Program Allreduce(const Rank& rank, const Wanted& wanted) {
  const std::vector<std::int64_t> shape{wanted.size / 4};
  auto x = std::make_shared<Array>(ffi::S32, shape);
  auto y = std::make_shared<Array>(ffi::S32, shape);
  std::fill_n(x->At<std::int32_t>(), shape[0], rank.rank + 1);
  const std::int32_t sum = rank.size() * (rank.size() + 1) / 2;
  return {[=] { Expect(CallOn<std::int32_t>("pfftjax_allreduce", Site(kWorld), kSum, *x, *y)); },
          [=] {
            for (std::int64_t i = 0; i < shape[0]; ++i) {
              Expect(*y->At<std::int32_t>(i) == sum, "an allreduce gives a wrong sum");
            }
          }};
}

Program Barrier(const Rank&, const Wanted&) {
  return {[] { Expect(CallHandler<Token, TokenResult>("pfftjax_barrier", Site(kWorld), {}, {})); },
          [] {}};
}

// ---- Messages
// ------------------------------------------------------------------------------------

struct Packet {
  Packet(int rank, std::int64_t size) : x(ffi::U8, {size}), y(ffi::U8, {size}) {
    std::fill(x.data.begin(), x.data.end(), static_cast<char>(rank + 1));
  }
  Array x;
  Array y;
};

// From each rank to the next one.
Program Ring(const Rank& rank, const Wanted& wanted) {
  auto packet = std::make_shared<Packet>(rank.rank, wanted.size);
  const std::int32_t back = rank.size() - 1;
  const char left = static_cast<char>((rank.rank + back) % rank.size() + 1);
  return {[=] {
            Expect(CallOn<std::int32_t, std::int32_t, std::int32_t, std::int32_t>(
                "pfftjax_sendrecv", Site(kWorld), back, 1, 0, 0, packet->x, packet->y));
          },
          [=] {
            Expect(packet->y.data == std::vector<char>(packet->y.data.size(), left),
                   "a ring gives wrong bytes");
          }};
}

// To, or from, the rank that is so far away.
void SendTo(int away, const Rank& rank, Packet& packet) {
  const std::int32_t shift = (away + rank.size()) % rank.size();
  Expect(CallHandler<std::int32_t, std::int32_t, Operand, Token, TokenResult>(
      "pfftjax_send", Site(kWorld), shift, 0, packet.x.Any(), Token{}, TokenResult{}));
}
void ReceiveFrom(int away, const Rank& rank, Packet& packet) {
  constexpr std::int64_t kNoStatus = -1;
  const std::int32_t shift = (away + rank.size()) % rank.size();
  Expect(CallHandler<std::int32_t, std::int32_t, std::int64_t, bool, Operand, Token, Result,
                     TokenResult>("pfftjax_recv", Site(kWorld), shift, 0, kNoStatus, true,
                                  packet.x.Any(), Token{}, Result(packet.y.Any()), TokenResult{}));
}

// From the first `senders` ranks to those of the next node.
Program ToNextNode(const Rank& rank, const Wanted& wanted, int senders) {
  auto packet = std::make_shared<Packet>(rank.rank, wanted.size);
  const int away = wanted.ranks_a_node;
  if (rank.rank < senders) return {[=, &rank] { SendTo(away, rank, *packet); }, [] {}};
  if (rank.rank < away || rank.rank >= away + senders) return {[] {}, [] {}};
  return {[=, &rank] { ReceiveFrom(-away, rank, *packet); },
          [=, first = static_cast<char>(rank.rank - away + 1)] {
            Expect(packet->y.data == std::vector<char>(packet->y.data.size(), first),
                   "a message gives wrong bytes");
          }};
}

// From the first rank of each other node to rank 0.
Program Incast(const Rank& rank, const Wanted& wanted) {
  auto packet = std::make_shared<Packet>(rank.rank, wanted.size);
  if (rank.rank % wanted.ranks_a_node != 0) return {[] {}, [] {}};
  if (rank.rank > 0) return {[=, &rank] { SendTo(-rank.rank, rank, *packet); }, [] {}};
  return {[=, &rank] {
            for (int node = 1; node < wanted.nodes; ++node) {
              ReceiveFrom(node * wanted.ranks_a_node, rank, *packet);
              Expect(*packet->y.At<std::uint8_t>() ==
                         static_cast<std::uint8_t>(node * wanted.ranks_a_node + 1),
                     "an incast gives wrong bytes");
            }
          },
          [] {}};
}

Program OneMessage(const Rank& rank, const Wanted& wanted) { return ToNextNode(rank, wanted, 1); }
Program OneLink(const Rank& rank, const Wanted& wanted) {
  return ToNextNode(rank, wanted, wanted.ranks_a_node);
}

// ---- Transposes
// ----------------------------------------------------------------------------------

// Calls body(linear index here, global indices) for a block that has `ranges`.
template <typename Body>
void ForEach(const std::array<Range, 3>& ranges, Body&& body) {
  std::int64_t at = 0;
  for (std::int64_t i = 0; i < ranges[0].count; ++i) {
    for (std::int64_t j = 0; j < ranges[1].count; ++j) {
      for (std::int64_t k = 0; k < ranges[2].count; ++k) {
        body(at++, std::array<std::int64_t, 3>{ranges[0].start + i, ranges[1].start + j,
                                               ranges[2].start + k});
      }
    }
  }
}

struct Pencils {
  Pencils(const std::array<Range, 3>& from, const std::array<Range, 3>& to)
      : from(from), to(to), x(ffi::C64, Extents(from)), y(ffi::C64, Extents(to)) {}
  static std::vector<std::int64_t> Extents(const std::array<Range, 3>& ranges) {
    return {ranges[0].count, ranges[1].count, ranges[2].count};
  }
  std::array<Range, 3> from;
  std::array<Range, 3> to;
  Array x;
  Array y;
};

// An array of `size`^3 complex numbers of 8 bytes, from pencils along axis 2 to those along axis 1
// (axis 1, between neighbours), or from those to the ones along axis 0 (axis 0).
Program Transpose(const Rank& rank, const Wanted& wanted) {
  const std::int64_t n = wanted.size;
  const int row = rank.rank / rank.grid.columns;
  const int column = rank.rank % rank.grid.columns;
  const Range whole{0, n};
  const Range rows = BlockOf(n, rank.grid.rows, row);
  const Range columns = BlockOf(n, rank.grid.columns, column);
  const bool is_near = wanted.axis == 1;
  // x: (rows of axis 0, columns of axis 1, axis 2), then (rows of 0, columns of 2, axis 1).
  const std::vector<std::int64_t> order =
      is_near ? std::vector<std::int64_t>{0, 2, 1} : std::vector<std::int64_t>{2, 1, 0};
  const std::array<Range, 3> from{rows, columns, whole};
  // Either way the ranks' own parts of the two axes are of one size before and after.
  const std::array<Range, 3> to = from;
  auto pencils = std::make_shared<Pencils>(from, to);
  const auto value = [n](std::int64_t i, std::int64_t j, std::int64_t k) {
    return (i * n + j) * n + k;
  };
  ForEach(from, [&](std::int64_t at, const std::array<std::int64_t, 3>& global) {
    *pencils->x.At<std::int64_t>(at) = value(global[0], global[1], global[2]);
  });
  const std::int64_t gather = is_near ? 1 : 0;
  const Number number = is_near ? kColumns : kRows;
  const Method method = wanted.method;
  return {[=] {
            Expect(CallOn<Dimensions, std::int64_t, std::int64_t, std::int64_t, ffi::ThreadPool>(
                "pfftjax_pencil_transpose", Site(number), Dimensions(order), 2, gather,
                static_cast<std::int64_t>(method), {}, pencils->x, pencils->y));
          },
          [=] {
            ForEach(to, [&](std::int64_t at, const std::array<std::int64_t, 3>& global) {
              std::array<std::int64_t, 3> of_x{};
              for (std::size_t d = 0; d < 3; ++d) {
                of_x[static_cast<std::size_t>(order[d])] = global[d];
              }
              Expect(*pencils->y.At<std::int64_t>(at) == value(of_x[0], of_x[1], of_x[2]),
                     "a transpose gives wrong numbers");
            });
          }};
}

using MakeProgram = Program (*)(const Rank&, const Wanted&);
const std::map<std::string, MakeProgram>& Programs() {
  static const std::map<std::string, MakeProgram> all = {
      {"allgather", Allgather}, {"allreduce", Allreduce}, {"alltoall", Alltoall},
      {"alltoallv", Alltoallv}, {"barrier", Barrier},     {"incast", Incast},
      {"link", OneLink},        {"message", OneMessage},  {"reduce_scatter", ReduceScatter},
      {"ring", Ring},           {"transpose", Transpose}};
  return all;
}

// ---- The command
// ---------------------------------------------------------------------------------

Wanted Parse(int count, char** arguments) {
  const auto wrong = [](const std::string& why) -> std::runtime_error {
    return std::runtime_error("simulated --clock: " + why);
  };
  Wanted wanted;
  if (count < 2) throw wrong("give an exchange and a size");
  wanted.exchange = arguments[0];
  wanted.size = std::atoll(arguments[1]);
  if (Programs().count(wanted.exchange) == 0) throw wrong("there is no " + wanted.exchange);
  for (int i = 2; i + 1 < count; i += 2) {
    const std::string name = arguments[i];
    const std::string value = arguments[i + 1];
    if (name == "--nodes") {
      wanted.nodes = std::stoi(value);
    } else if (name == "--ranks-per-node") {
      wanted.ranks_a_node = std::stoi(value);
    } else if (name == "--repeats") {
      wanted.repeats = std::stoi(value);
    } else if (name == "--axis") {
      wanted.axis = std::stoi(value);
    } else if (name == "--grid") {
      wanted.grid = {std::stoi(value), std::stoi(value.substr(value.find('x') + 1))};
    } else if (name == "--method" && value == "PLAIN") {
      wanted.options.shared_memory = false;
    } else if (name == "--method") {
      const auto* found = std::find_if(std::begin(kMethods), std::end(kMethods),
                                       [&](const NamedMethod& one) { return one.name == value; });
      if (found == std::end(kMethods)) throw wrong("there is no method " + value);
      wanted.method = found->method;
    } else if (name == "--machine") {
      const std::size_t equals = value.find('=');
      if (equals == std::string::npos ||
          !wanted.machine.Set(value.substr(0, equals), std::stod(value.substr(equals + 1)))) {
        throw wrong("a machine has no " + value);
      }
    } else {
      throw wrong("what is " + name + "?");
    }
  }
  const int ranks = wanted.nodes * wanted.ranks_a_node;
  if (wanted.grid.rows * wanted.grid.columns != ranks) {
    if (wanted.exchange == "transpose") throw wrong("the grid has not as many ranks as the job");
    wanted.grid = {1, ranks};
  }
  return wanted;
}

}  // namespace

int Measure(int count, char** arguments) {
  const auto begin = std::chrono::steady_clock::now();
  Wanted wanted;
  try {
    wanted = Parse(count, arguments);
  } catch (const std::exception& error) {
    std::fprintf(stderr, "%s\n", error.what());
    return 2;
  }
  // Huge pages under the buffers of a thousand ranks would be a thousand times 2 MiB.
  prctl(PR_SET_THP_DISABLE, 1, 0, 0, 0);
  const int ranks = wanted.nodes * wanted.ranks_a_node;
  Case c(1, ranks, wanted.grid);
  Job& job = c.job;
  MakeComms(job, c.grid);
  job.clock = std::make_unique<Clock>(wanted.machine, ranks, wanted.ranks_a_node);
  job.scheduler.pace.is_exact = true;
  job.cores = wanted.ranks_a_node;
  for (const auto& process : job.processes) process->node = job.clock->NodeOf(*process);
  SetOptions(c, wanted.options);
  // The first exchange also makes what the others use again.
  Clock::Meeting before;
  Clock::Meeting after;
  c.Run([&](Rank& rank) {
    rank.Begin(true);
    const Program program = Programs().at(wanted.exchange)(rank, wanted);
    for (int repeat = 0; repeat < wanted.repeats; ++repeat) {
      job.clock->Meet();
      before = job.clock->met();
      program.run();
      job.clock->Meet();
      after = job.clock->met();
    }
    program.check();
    rank.End();
  });
  const Verdict verdict = c.Judge();
  if (!verdict.is_right) {
    std::fprintf(stderr, "simulated --clock: %s\n", verdict.why.c_str());
    return 1;
  }
  struct rusage usage{};
  getrusage(RUSAGE_SELF, &usage);
  std::printf(
      "{\"seconds\": %.9f, \"messages_between_nodes\": %lld, \"bytes_between_nodes\": %lld, "
      "\"steps\": %lld, \"real_seconds\": %.2f, \"real_mebibytes\": %lld}\n",
      static_cast<double>(after.time - before.time) * 1e-9,
      static_cast<long long>(after.traffic.messages - before.traffic.messages),
      static_cast<long long>(after.traffic.bytes - before.traffic.bytes),
      static_cast<long long>(verdict.steps),
      std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count(),
      static_cast<long long>(usage.ru_maxrss >> 10));
  return 0;
}

}  // namespace pfftjax::simulated

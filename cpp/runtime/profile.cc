#include "runtime/profile.h"

#include <algorithm>
#include <array>
#include <chrono>
#include <cstdio>
#include <mutex>
#include <string>
#include <vector>

#include "runtime/communicator.h"

namespace pfftjax {
namespace {

constexpr std::size_t kOperations = kOperationNames.size();

struct Row {
  std::int64_t calls = 0;
  std::int64_t bytes = 0;
  std::int64_t ns = 0;
  std::int64_t waited_ns = 0;
  std::int64_t ahead = 0;  // calls that have run ahead of a GPU
};
// Every rank has all operations in the same places, so that ranks can add up their tables without
// asking each other which operations they have called.
using Table = std::array<Row, kOperations>;
constexpr auto kTableWords = static_cast<std::int64_t>(sizeof(Table) / sizeof(std::int64_t));

struct Profile {
  std::int64_t since_ns = 0;
  bool is_reported = false;
  process::Mutex mutex;  // of the table
  Table table{};
};

process::Own<Profile> profile;

template <typename... Values>
std::string Line(const char* format, Values... values) {
  std::array<char, 160> text{};
  std::snprintf(text.data(), text.size(), format, values...);
  return text.data();
}

std::string Text(const Table& total, const Table& most, const std::string& whose, int ranks) {
  std::vector<std::size_t> order;
  for (std::size_t i = 0; i < kOperations; ++i) {
    if (total[i].calls > 0) order.push_back(i);
  }
  std::sort(order.begin(), order.end(), [&](std::size_t a, std::size_t b) {
    return total[a].ns != total[b].ns ? total[a].ns > total[b].ns : a < b;
  });
  std::string text = "pfftjax: profile of " + whose +
                     Line(", %.3f s\n%-22s %10s %16s %10s %10s %8s %8s\n",
                          static_cast<double>(Nanoseconds() - profile->since_ns) * 1e-9,
                          "operation", "calls", "bytes", "mean s", "slowest s", "waiting", "GB/s");
  for (const std::size_t i : order) {
    const Row& row = total[i];
    const auto operation = static_cast<Operation>(i);
    const auto ns = static_cast<double>(row.ns);
    const auto moving_ns = static_cast<double>(row.ns - row.waited_ns);
    const bool has_met = MeetsForProfile(operation) && row.ahead == 0;
    const std::string waiting =
        has_met && row.ns > 0 ? Line("%.0f %%", 100.0 * static_cast<double>(row.waited_ns) / ns)
                              : "-";
    const bool has_rate = (has_met || IsLocal(operation)) && row.bytes > 0 && moving_ns > 0;
    const std::string rate =
        has_rate ? Line("%.3f", static_cast<double>(row.bytes) / moving_ns) : "-";
    text += Line("%-22s %10lld %16lld %10.3f %10.3f %8s %8s\n", kOperationNames[i],
                 static_cast<long long>(row.calls), static_cast<long long>(row.bytes),
                 ns * 1e-9 / ranks, static_cast<double>(most[i].ns) * 1e-9, waiting.c_str(),
                 rate.c_str());
  }
  return text +
         "calls, bytes: sums over ranks; mean s: over all ranks; waiting: share of these seconds "
         "before\nall ranks had come; GB/s: of one rank, in the rest of them; -: not known\n";
}

}  // namespace

std::int64_t Nanoseconds() {
  return std::chrono::duration_cast<std::chrono::nanoseconds>(
             process::Clock::now().time_since_epoch())
      .count();
}

void Timed::Begin() {
  is_running_ = true;
  if (trace_ranges.push) trace_ranges.push(NameOf(operation_));
  if (GetOptions().profile) began_ns_ = Nanoseconds();
}

void Timed::HasWaited() { waited_ns_ = Nanoseconds() - began_ns_; }

void Timed::End() const {
  if (GetOptions().profile) {
    const std::int64_t ns = Nanoseconds() - began_ns_;
    const std::lock_guard lock(profile->mutex);
    Row& row = profile->table[static_cast<std::size_t>(operation_)];
    ++row.calls;
    row.bytes += bytes_;
    row.ns += ns;
    row.waited_ns += waited_ns_;
    row.ahead += runs_ahead_ ? 1 : 0;
  }
  if (trace_ranges.pop) trace_ranges.pop();
}

void StartProfile() {
  GetOptions().profile = GetOptions().is_observed = true;
  profile->since_ns = Nanoseconds();
}

void ReportProfile() {
  const Communicator* world = FindCommunicator(0);
  if (!GetOptions().profile || profile->is_reported || !world) return;
  profile->is_reported = true;
  Table mine;
  {
    const std::lock_guard lock(profile->mutex);
    mine = profile->table;
  }
  Table total = mine;
  Table most = mine;
  if (world->size == 1 || !world->is_private) {
    process::WriteError(Text(total, most, world->Where(), 1));
    return;
  }
  const auto reduce = [&](Table& table, Reduction reduction) {
    return Mpi()->reduce(&mine, &table, kTableWords, Element::kS64, reduction, 0, world->control);
  };
  // An error has lost a rank, and then there is no table.
  if (reduce(total, Reduction::kSum) != 0 || reduce(most, Reduction::kMax) != 0) return;
  if (world->rank == 0) {
    process::WriteError(Text(total, most, std::to_string(world->size) + " ranks", world->size));
  }
}

}  // namespace pfftjax

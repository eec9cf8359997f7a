#include "scenario.h"

#include <algorithm>

#include "base/options.h"
#include "mpi.h"

namespace pfftjax::simulated {
namespace {

int DrawRanks(Random& random, int most) {
  constexpr int few[] = {2, 2, 2, 3, 3, 4, 4, 5};
  constexpr int many[] = {6, 7, 8, 9, 12, 13, 16};
  int ranks = random.OneOf(few);
  if (random.Chance(0.12)) ranks = random.OneOf(many);
  if (random.Chance(0.004)) ranks = random.Chance(0.5) ? 64 : 32;
  return std::min(ranks, most);
}

Grid DrawGrid(Random& random, int ranks) {
  std::vector<int> rows;
  for (int n = 1; n <= ranks; ++n) {
    if (ranks % n == 0) rows.push_back(n);
  }
  const int chosen =
      rows[static_cast<std::size_t>(random.Below(static_cast<std::int64_t>(rows.size())))];
  return {chosen, ranks / chosen};
}

const Scenario& DrawScenario(Random& random) {
  double all = 0;
  for (const Scenario& one : Scenarios()) all += one.share;
  double at = random.Unit() * all;
  for (const Scenario& one : Scenarios()) {
    at -= one.share;
    if (at < 0) return one;
  }
  return Scenarios().front();
}

}  // namespace

const std::vector<Scenario>& Scenarios() {
  static const auto* const all = [] {
    auto* scenarios = new std::vector<Scenario>;
    for (const auto& some :
         {RightScenarios(), WrongScenarios(), EndingScenarios(), MemoryScenarios()}) {
      scenarios->insert(scenarios->end(), some.begin(), some.end());
    }
    return scenarios;
  }();
  return *all;
}

Case::Case(std::uint64_t seed, int ranks, const Grid& grid)
    : random(seed), job(random.Next(), ranks), grid(grid) {}

Verdict Case::Judge() const {
  Verdict verdict;
  verdict.ranks = job.ranks;
  verdict.trace = job.scheduler.trace();
  verdict.steps = job.scheduler.steps();
  verdict.time = job.scheduler.now();
  const auto wrong = [&](const std::string& why) {
    verdict.why = why + (job.errors.empty() ? "" : "\n" + job.errors);
    return verdict;
  };
  if (!job.scheduler.failure.empty()) return wrong(job.scheduler.failure);
  if (job.is_aborted) {
    if (words_.empty()) return wrong("a right job was ended");
    const bool has_said = std::any_of(words_.begin(), words_.end(), [&](const std::string& words) {
      return job.errors.find(words) != std::string::npos;
    });
    if (!has_said) return wrong("the job was ended, but without '" + words_[0] + "'");
    if (job.aborted_at > deadline_) {
      return wrong("the job was ended only after " +
                   std::to_string(job.aborted_at / kMillisecond) + " ms");
    }
  } else {
    if (!words_.empty() && !may_run_through_) return wrong("a wrong job went on to its end");
    bool has_lost_a_rank = false;
    for (const auto& process : job.processes) {
      has_lost_a_rank |= process->is_dead;
      if (process->open_requests != 0 && !process->is_dead) {
        return wrong("rank " + std::to_string(process->rank) + " has left " +
                     std::to_string(process->open_requests) + " requests");
      }
    }
    if (words_.empty() && job.errors.find(" ends, and has not") != std::string::npos) {
      return wrong("a right job was warned of something lost");
    }
    const std::string left = has_lost_a_rank ? std::string() : LeftOver();
    if (!left.empty()) return wrong("left over:" + left);
  }
  verdict.is_right = true;
  return verdict;
}

Options& OptionsOf(Case& c) {
  process_outside = c.job.processes[0].get();
  return GetOptions();
}

void SetOptions(Case& c, const Options& options) {
  for (const auto& process : c.job.processes) {
    process_outside = process.get();
    GetOptions() = options;
  }
}

void DrawOptions(Case& c) {
  Options options;
  constexpr std::int64_t chunks[] = {1 << 30, 1 << 30, 4096, 600, 64, 24};
  options.max_chunk_bytes = c.random.OneOf(chunks);
  options.check = c.random.Chance(0.2);
  options.first_call = c.random.Chance(0.8);
  options.shared_memory = c.random.Chance(0.85);
  SetOptions(c, options);
}

void DrawWeather(Case& c) {
  Random& random = c.random;
  Job& job = c.job;
  Pace& pace = job.scheduler.pace;
  constexpr std::int64_t points[] = {1, 3, 3, 12, 12, 60};
  pace.points_a_turn = random.OneOf(points);
  constexpr double pauses[] = {0, 0.01, 0.05};
  pace.pauses = random.OneOf(pauses);
  if (random.Chance(0.25)) {
    pace.stops = 0.002;
    pace.longest_stop = random.Chance(0.3) ? 8 * kSecond : 50 * kMillisecond;
    // A job of many ranks that are stopped so often, and for so long, takes its time.
    pace.limit = 100'000 * kSecond;
  }
  pace.wakes_without_reason = random.Chance(0.1);
  // What threads know of each other is kept by pairs: not for very many.
  if (random.Chance(0.06) && job.ranks <= 8) {
    constexpr double shares[] = {0.05, 0.3, 0.8};
    pace.older_values = random.OneOf(shares);
  }

  Network& network = job.network;
  network.latency = random.Spread(100, 20 * kMicrosecond);
  network.between_nodes = random.Spread(100, 100 * kMicrosecond);
  constexpr double jitters[] = {0, 0.1, 0.5};
  network.jitter = random.OneOf(jitters);
  network.longest = random.Spread(10 * kMicrosecond, 100 * kMillisecond);
  network.bytes_a_second = 1e6 * static_cast<double>(random.Spread(10, 10000));
  constexpr std::int64_t eager[] = {0, 40, 400, 4096, 1 << 20};
  network.eager_bytes = random.OneOf(eager);
  constexpr double shares[] = {0, 0.1, 0.5};
  network.waits_anyway = random.OneOf(shares);
  constexpr double backs[] = {0, 0.2, 1};
  network.keeps_back = random.OneOf(backs);
  constexpr double synchronous[] = {0, 0.5, 1};
  network.synchronizes = random.OneOf(synchronous);
  constexpr double relays[] = {0, 0.5};
  network.relays = random.OneOf(relays);

  job.cores = random.Chance(0.5) ? 1 : 128;
  const bool is_one_node = random.Chance(0.7);
  const auto nodes = is_one_node ? 1 : random.Between(1, job.ranks);
  for (const auto& process : job.processes) {
    process->node = static_cast<int>(process->rank * nodes / job.ranks);
    if (random.Chance(0.15)) process->slowness = static_cast<double>(random.Spread(2, 1000));
  }
  if (random.Chance(0.05)) job.refuses = 0.1;
}

Verdict RunSeed(std::uint64_t seed, const std::string& name) {
  Random random(seed * 0x9e3779b97f4a7c15u + 1);
  const Scenario* scenario = &DrawScenario(random);
  if (!name.empty()) {
    const auto found = std::find_if(Scenarios().begin(), Scenarios().end(),
                                    [&](const Scenario& one) { return one.name == name; });
    if (found == Scenarios().end())
      return {false, "there is no scenario " + name, name, 0, 0, 0, 0};
    scenario = &*found;
  }
  const int ranks =
      scenario->ranks > 0 ? scenario->ranks : DrawRanks(random, scenario->most_ranks);
  const Grid grid = DrawGrid(random, ranks);
  Case c(random.Next(), ranks, grid);
  MakeComms(c.job, c.grid);
  DrawWeather(c);
  DrawOptions(c);
  scenario->run(c);
  Verdict verdict = c.Judge();
  verdict.scenario = scenario->name;
  return verdict;
}

}  // namespace pfftjax::simulated

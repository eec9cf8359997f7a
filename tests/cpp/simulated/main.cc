// simulated [--first S] [--seeds N] [--scenario X] [--most-failures M] [--twice] [--names]
//
// Runs the seeds S ... S + N - 1, prints each failure, and a summary. With --twice every seed runs
// two times, and must leave the same trace. With --clock it measures an exchange (measured.cc).
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <map>
#include <string>

#include "measured.h"
#include "scenario.h"

using pfftjax::simulated::RunSeed;
using pfftjax::simulated::Scenarios;
using pfftjax::simulated::Verdict;

int main(int count, char** arguments) {
  if (count > 1 && std::strcmp(arguments[1], "--clock") == 0) {
    return pfftjax::simulated::Measure(count - 2, arguments + 2);
  }
  std::map<std::string, std::string> options{
      {"--first", "0"}, {"--seeds", "100"}, {"--scenario", ""}, {"--most-failures", "5"}};
  bool twice = false;
  bool verbose = false;
  for (int i = 1; i < count; ++i) {
    const std::string name = arguments[i];
    if (name == "--names") {
      for (const auto& scenario : Scenarios()) std::printf("%s\n", scenario.name);
      return 0;
    }
    if (name == "--twice") {
      twice = true;
    } else if (name == "--verbose") {
      verbose = true;
    } else if (options.count(name) && i + 1 < count) {
      options[name] = arguments[++i];
    } else {
      std::fprintf(stderr, "simulated: what is %s?\n", name.c_str());
      return 2;
    }
  }
  const std::uint64_t first = std::strtoull(options["--first"].c_str(), nullptr, 10);
  const std::uint64_t seeds = std::strtoull(options["--seeds"].c_str(), nullptr, 10);
  const int most = std::atoi(options["--most-failures"].c_str());
  int failures = 0;
  std::uint64_t done = 0;
  std::uint64_t trace = 0;
  std::map<std::string, std::pair<long, double>> cost;
  for (std::uint64_t seed = first; seed < first + seeds && failures < most; ++seed) {
    const auto begin = std::chrono::steady_clock::now();
    const Verdict verdict = RunSeed(seed, options["--scenario"]);
    const double took =
        std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
    ++done;
    trace = trace * 31 + verdict.trace;
    auto& [number, seconds] = cost[verdict.scenario];
    ++number;
    seconds += took;
    if (verbose) {
      std::printf("seed %llu: %s, %d ranks, %lld steps, %.3f ms simulated, %.3f ms\n",
                  static_cast<unsigned long long>(seed), verdict.scenario.c_str(), verdict.ranks,
                  static_cast<long long>(verdict.steps), static_cast<double>(verdict.time) * 1e-6,
                  took * 1e3);
    }
    if (!verdict.is_right) {
      ++failures;
      std::printf("FAILED seed %llu, scenario %s, %d ranks, after %lld steps: %s\n",
                  static_cast<unsigned long long>(seed), verdict.scenario.c_str(), verdict.ranks,
                  static_cast<long long>(verdict.steps), verdict.why.c_str());
      std::fflush(stdout);
    }
    if (twice && RunSeed(seed, options["--scenario"]).trace != verdict.trace) {
      ++failures;
      std::printf("FAILED seed %llu, scenario %s: it does not repeat\n",
                  static_cast<unsigned long long>(seed), verdict.scenario.c_str());
    }
  }
  for (const auto& [name, entry] : cost) {
    std::printf("  %-18s %8ld schedules, %8.3f ms each\n", name.c_str(), entry.first,
                entry.second / static_cast<double>(entry.first) * 1e3);
  }
  std::printf("%llu schedules, %d failures, trace %016llx\n",
              static_cast<unsigned long long>(done), failures,
              static_cast<unsigned long long>(trace));
  return failures == 0 ? 0 : 1;
}

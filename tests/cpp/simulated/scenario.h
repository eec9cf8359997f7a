// Scenarios: what the ranks of a job do, under which weather, and how it must end.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "rank.h"
#include "steps.h"

namespace pfftjax::simulated {

// How a job ended, and whether that was right.
struct Verdict {
  bool is_right = false;
  std::string why;  // empty where it is right
  std::string scenario;
  int ranks = 0;
  std::uint64_t trace = 0;
  std::int64_t steps = 0;
  Time time = 0;
};

// One job as its scenario draws it.
class Case {
 public:
  Case(std::uint64_t seed, int ranks, const Grid& grid);

  // The job must be ended by pfftjax, with one of these texts among its words, before that time.
  void MustEnd(std::vector<std::string> words, Time before) {
    words_ = std::move(words);
    deadline_ = before;
  }
  // The job may be ended so, or run to its end.
  void MayEnd(std::vector<std::string> words) {
    words_ = std::move(words);
    deadline_ = job.scheduler.pace.limit;
    may_run_through_ = true;
  }
  // Runs `body` on all ranks.
  template <typename Body>
  void Run(Body&& body) {
    job.Run([&](int number) {
      Rank rank(job, grid, number);
      body(rank);
    });
  }
  Verdict Judge() const;

  Random random;
  Job job;
  Grid grid;

 private:
  std::vector<std::string> words_;
  Time deadline_ = 0;
  bool may_run_through_ = false;
};

struct Scenario {
  const char* name;
  // About how many schedules in a hundred are of this scenario.
  double share;
  int most_ranks;
  void (*run)(Case& c);
  int ranks = 0;  // so many; 0: drawn
};
const std::vector<Scenario>& Scenarios();

// These are the scenarios of each file.
std::vector<Scenario> RightScenarios();
std::vector<Scenario> WrongScenarios();
std::vector<Scenario> EndingScenarios();
std::vector<Scenario> MemoryScenarios();

// A job as it is in most cases: any latency, slow ranks, pauses.
void DrawWeather(Case& c);
// Options of pfftjax: all ranks have the same.
void DrawOptions(Case& c);
Options& OptionsOf(Case& c);
void SetOptions(Case& c, const Options& options);

Verdict RunSeed(std::uint64_t seed, const std::string& scenario);

}  // namespace pfftjax::simulated

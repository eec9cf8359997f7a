// The steps that programs of simulated ranks are made of: each an operation of pfftjax on data
// that every rank knows of all ranks, so that each can tell what it must find.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "rank.h"

namespace pfftjax::simulated {

// All ranks run a step with the same numbers drawn.
using StepFunction = void (*)(Rank& rank, std::int64_t comm, Random random);

struct StepKind {
  const char* name;
  StepFunction run;
  bool only_on_world = false;
};
const std::vector<StepKind>& StepKinds();
const StepKind& StepNamed(const std::string& name);

struct Step {
  const StepKind* kind = nullptr;
  std::int64_t comm = kWorld;
  std::uint64_t seed = 0;
};
void RunStep(Rank& rank, const Step& step);

// A byte of what rank `from` has for rank `to` in a step.
inline std::uint8_t ByteOf(std::uint64_t step, int from, int to, std::int64_t i) {
  std::uint64_t z = step ^ (static_cast<std::uint64_t>(from) << 40) ^
                    (static_cast<std::uint64_t>(to + 1) << 50) ^ static_cast<std::uint64_t>(i);
  z = (z ^ (z >> 31)) * 0x94d049bb133111ebu;
  return static_cast<std::uint8_t>(z >> 37);
}
// The same as a number that sums of 64 ranks do not overflow.
inline std::int64_t NumberOf(std::uint64_t step, int from, int to, std::int64_t i) {
  return 256 * std::int64_t{ByteOf(step, from, to, 2 * i)} + ByteOf(step, from, to, 2 * i + 1);
}

// These are the steps of each file.
std::vector<StepKind> CollectiveSteps();
std::vector<StepKind> ArraySteps();
std::vector<StepKind> MessageSteps();

// A count of elements: mostly few, at times enough for several slots or chunks.
std::int64_t DrawCount(Random& random);
ffi::DataType DrawType(Random& random);

}  // namespace pfftjax::simulated

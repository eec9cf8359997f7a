#include "steps.h"

#include "base/options.h"

namespace pfftjax::simulated {

const std::vector<StepKind>& StepKinds() {
  static const auto* const all = [] {
    auto* kinds = new std::vector<StepKind>;
    for (const auto& some : {CollectiveSteps(), ArraySteps(), MessageSteps()}) {
      kinds->insert(kinds->end(), some.begin(), some.end());
    }
    return kinds;
  }();
  return *all;
}

const StepKind& StepNamed(const std::string& name) {
  for (const StepKind& kind : StepKinds()) {
    if (kind.name == name) return kind;
  }
  scheduler->Fail("there is no step " + name);
}

void RunStep(Rank& rank, const Step& step) {
  rank.Compute();
  step.kind->run(rank, step.kind->only_on_world ? std::int64_t{kWorld} : step.comm,
                 Random(step.seed));
}

std::int64_t DrawCount(Random& random) {
  if (random.Chance(0.6)) return random.Between(1, 12);
  if (random.Chance(0.8)) return random.Between(1, 300);
  return random.Between(1, 4000);
}

ffi::DataType DrawType(Random& random) {
  constexpr ffi::DataType types[] = {ffi::U8, ffi::BF16, ffi::S32, ffi::F64, ffi::C128};
  return random.OneOf(types);
}

}  // namespace pfftjax::simulated

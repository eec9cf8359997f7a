// Chooses which of the compiled versions runs.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "fft/lanes.h"

namespace pfftjax::fft {

// Chooses one by name, or, for an empty name, the widest that this processor has. False if it has
// none of that name.
bool ChooseLanes(std::string_view name);
// The names that this processor can run, the widest first.
std::vector<std::string> RunnableLanes();
const Lanes& ChosenLanes();

}  // namespace pfftjax::fft

// Which of the compiled versions runs.
#pragma once

#include <string_view>

#include "lanes.h"

namespace pfftjax::fft {

// Chooses one by name, or, for an empty name, the widest that this processor has. False if it has
// none of that name.
bool ChooseLanes(std::string_view name);
const Lanes& ChosenLanes();

}  // namespace pfftjax::fft

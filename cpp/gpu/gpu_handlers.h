// The handlers for arrays on GPUs that do not go by way of the host's (staged.cc). They take the
// place of those.
#pragma once

#include <vector>

#include "runtime/handlers.h"

namespace pfftjax::gpu {

std::vector<Registration> CollectiveHandlers();
std::vector<Registration> PaintingHandlers();
std::vector<Registration> PencilHandlers();
std::vector<Registration> RowHandlers();

}  // namespace pfftjax::gpu

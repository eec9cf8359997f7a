// The end of a job, for a rank that has found that it cannot go on.
#pragma once

#include <string>

namespace pfftjax {

// Prints `text` to standard error in one piece and ends the job on all ranks.
[[noreturn]] void AbortJob(const std::string& text);

}  // namespace pfftjax

#include "runtime/abort.h"

#include <chrono>
#include <cstdlib>
#include <string>

#include "base/process.h"
#include "runtime/communicator.h"

namespace pfftjax {

void AbortJob(const char* text) {
  const std::string line = std::string("pfftjax: ") + text + "\npfftjax: ending the job\n";
  process::WriteError(line);
  // Launchers kill at once, before they have passed on what was written (MPICH's does).
  process::SleepFor(std::chrono::milliseconds(300));
  Mpi()->abort(1);
  std::abort();
}

}  // namespace pfftjax

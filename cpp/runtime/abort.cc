#include "runtime/abort.h"

#include <chrono>
#include <cstdlib>

#include "base/process.h"
#include "runtime/communicator.h"

namespace pfftjax {

void AbortJob(const std::string& text) {
  process::WriteError("pfftjax: " + text + "\npfftjax: ending the job\n");
  // Launchers kill at once, before they have passed on what was written (MPICH's does).
  process::SleepFor(std::chrono::milliseconds(300));
  Mpi()->abort(1);
  std::abort();
}

}  // namespace pfftjax

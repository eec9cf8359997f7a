// Exchanges that go on while something else is computed: start, and wait for what was started.
#pragma once

namespace pfftjax {

// Ends the thread that sees to exchanges which have been started. Called before MPI_Finalize.
void StopProgress();

}  // namespace pfftjax

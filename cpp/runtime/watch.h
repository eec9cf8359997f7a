// A thread that looks after calls that wait for long.
//
// When a call has waited for a while, the thread asks the ranks it waits for what they do. An
// answer that shows that they can never come (they have ended, or have gone past this point
// another way) ends the job with a message; under PFFTJAX_TIMEOUT any long wait does. It talks
// over the control communicators, so MPI_THREAD_MULTIPLE is needed, and it costs one probe a
// communicator four times a second. A communicator whose control communicator is still to be made
// is asked about over that of MPI_COMM_WORLD.
#pragma once

#include <functional>

namespace pfftjax {

// Starts the thread once; called with the first communicator of more than one rank whose private
// duplicates are made.
void StartWatch();
// Lets the thread call `look` at each of its ticks, as long as it runs: for what goes on where no
// call waits for it. It must neither wait nor throw.
void AlsoWatch(std::function<void()> look);
// Ends it and waits for it. Called before MPI_Finalize.
void StopWatch();

}  // namespace pfftjax

// The way out: ranks that have finished wait for the others before MPI is finalized, and go on
// answering the watch. One that still waits for them learns that they have ended.
#pragma once

namespace pfftjax {

// Says that this rank makes no further calls. Once; later calls do nothing.
void LeaveStart();
// True when every rank of every private communicator has said so.
bool LeavePoll();
// Both, until done.
void Leave();

}  // namespace pfftjax

// The way out: ranks that have finished wait for the others before MPI is finalized, and go on
// answering the watch. One that still waits for them learns that they have ended.
#pragma once

namespace pfftjax {

// Says that this rank makes no further calls. Once; later calls do nothing.
void LeaveStart();
// True when no call is under way here and every rank of every private communicator has said so.
bool LeavePoll();
// Both, until done.
void Leave();
// After Leave, when calls are refused: waits for those that had just begun.
void LeaveLastCalls();

}  // namespace pfftjax

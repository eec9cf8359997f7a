// The way out: ranks that have finished wait for the others before MPI is finalized, and go on
// answering the watch. One that still waits for them learns that they have ended.
//
// There are two departures, which all ranks come to. The first ends the program: nobody calls
// before all have come to it. After it, exit handlers that were registered before pfftjax was
// imported may still communicate; the second, in MPI_Finalize, ends these too.
#pragma once

namespace pfftjax {

// Says that this rank makes no further calls before all ranks have come to the first departure.
// Once; later calls do nothing.
void LeaveStart();
// True when no call is under way here and every rank of every private communicator has said so.
bool LeavePoll();
// Whether a call under way here, of a thread that goes on, is not to be waited for any longer
// before LeaveStart: the others have to learn that this rank has nothing else to do.
bool LeaveIsStuck();
// Both departures, until done.
void Leave();
// After Leave, when calls are refused: waits for those that had just begun.
void LeaveLastCalls();

}  // namespace pfftjax

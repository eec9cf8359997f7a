// The way out: ranks that have finished wait for the others before MPI is finalized, and go on
// answering the watch. One that still waits for them learns that they have ended.
//
// There are two departures, which all ranks come to. The first ends the program: nobody calls
// before all have come to it. After it, exit handlers that were registered before pfftjax was
// imported may still communicate; the second, before MPI_Finalize, ends these too.
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
// Leaves, refuses calls from then on, and ends the threads of pfftjax that call MPI. This comes
// before MPI_Finalize: from its first line on MPICH locks no more, and a thread that is in MPI
// then, or comes to it, destroys what the other one uses. Inside MPI_Finalize it does what is left
// to do for a program that got there past the wrapped one. Later calls do nothing.
void PrepareToFinalize();
// Says whether it has come to refuse calls: no MPI call may be made any more.
bool Finalized();
// Lets MPI see to messages that were begun before, for a thread that is in none of our calls: MPI
// is not finalized under it. Does nothing once calls are refused. Returns an MPI code.
int LetMpiGoOn();

}  // namespace pfftjax

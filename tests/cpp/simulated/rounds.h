// The messages of MPI's collectives, by the algorithms that MPICH documents.
#pragma once

#include "mpi.h"

namespace pfftjax::simulated {

// Sends and receives, on the running rank and a clock, what a collective sends and receives:
// messages of the right sizes, without data.
void MakeRounds(Comm& comm, int rank, const Part& part);

}  // namespace pfftjax::simulated

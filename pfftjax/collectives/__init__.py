"""MPI collectives on JAX arrays, inside jitted code.

Operations run in program order, which must be the same on every rank; there are no tokens. All
take ``comm=``, an mpi4py communicator (`MPI.COMM_WORLD` by default), and have exact forward and
reverse derivatives and batching rules.

What the environment sets (``PFFTJAX_CHECK``, ``PFFTJAX_TIMEOUT``, ...) is in `_options`.
"""

from . import _while_loop as _while_loop
from ._allgather import allgather as allgather
from ._allreduce import allreduce as allreduce
from ._allreduce import replicate as replicate
from ._alltoall import alltoall as alltoall
from ._alltoallv import alltoallv as alltoallv
from ._barrier import barrier as barrier
from ._bcast import bcast as bcast
from ._checkpoint import save_collectives as save_collectives
from ._comm import duplicate as duplicate
from ._job import abort_on_error as _abort_on_error
from ._ordering import recover as recover
from ._reduce_scatter import reduce_scatter as reduce_scatter
from ._sendrecv import sendrecv as sendrecv

_abort_on_error()

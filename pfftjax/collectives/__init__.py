"""MPI collectives on JAX arrays, inside jitted code.

Operations run in program order, which must be the same on every rank; there are no tokens. All
take ``comm=``, an mpi4py communicator (`MPI.COMM_WORLD` by default), and have exact forward and
reverse derivatives and batching rules.

What the environment sets (``PFFTJAX_CHECK``, ``PFFTJAX_TIMEOUT``, ...) is in
`pfftjax._runtime.options`.
"""

from pfftjax._runtime.communicators import communicator as communicator
from pfftjax._runtime.communicators import duplicate as duplicate
from pfftjax._runtime.ordering import recover as recover
from pfftjax._runtime.rematerialization import save_collectives as save_collectives
from pfftjax._runtime.support import has_cuda_support as has_cuda_support
from pfftjax._runtime.support import has_sycl_support as has_sycl_support

from ._allgather import allgather as allgather
from ._allgather import reduce_scatter as reduce_scatter
from ._allgatherv import allgatherv as allgatherv
from ._allreduce import allreduce as allreduce
from ._allreduce import replicate as replicate
from ._alltoall import alltoall as alltoall
from ._alltoallv import alltoallv as alltoallv
from ._barrier import barrier as barrier
from ._bcast import bcast as bcast
from ._bcast import reduce as reduce
from ._gather import gather as gather
from ._gather import scatter as scatter
from ._scan import exscan as exscan
from ._scan import scan as scan
from ._send import recv as recv
from ._send import send as send
from ._sendrecv import sendrecv as sendrecv
from ._split import Pending as Pending
from ._split import allgather_start as allgather_start
from ._split import alltoall_start as alltoall_start
from ._split import wait as wait

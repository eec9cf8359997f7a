"""The rank and the tag of a message, as programs hold them.

Ranks are kept as shifts from one's own rank, modulo the size: the program of a ring is the same on
every rank.
"""

from mpi4py import MPI

from pfftjax._runtime.arguments import static_int, where
from pfftjax._runtime.communicators import Communicator
from pfftjax._runtime.ffi import native

# These stand for MPI.PROC_NULL and MPI.ANY_SOURCE.
NOBODY = native.shift_to_nobody
ANYBODY = native.shift_to_anybody
_ANY_TAG = native.any_tag
DEFAULT_TAG = native.default_tag


def partner(rank: object, name: str, operation: str, comm: Communicator) -> int:
    """The shift to `rank`, checked; `name` is that of the argument: source or dest."""
    rank = static_int(rank, name, operation, comm)
    if rank == MPI.PROC_NULL:
        return NOBODY
    if rank == MPI.ANY_SOURCE and name == "source":
        return ANYBODY
    if not 0 <= rank < comm.size:
        raise ValueError(
            f"{where(operation, comm)}: {name} is {rank}, but the ranks are 0 to "
            f"{comm.size - 1} (MPI.PROC_NULL for nobody"
            f"{', MPI.ANY_SOURCE for any rank' if name == 'source' else ''})"
        )
    return (rank - comm.rank) % comm.size


def tag_number(tag: object, name: str, operation: str, comm: Communicator) -> int:
    """`tag`, checked; None and `MPI.ANY_TAG` are for what is received."""
    is_received = operation == "recv" or name == "recvtag"
    if tag is None and is_received:
        return DEFAULT_TAG
    tag = static_int(tag, name, operation, comm)
    if tag == MPI.ANY_TAG and is_received:
        return _ANY_TAG
    if not 0 <= tag <= native.max_tag():
        raise ValueError(
            f"{where(operation, comm)}: {name} is {tag}, but tags go from 0 to {native.max_tag()}"
        )
    return tag

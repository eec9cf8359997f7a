"""allgather and reduce_scatter: the arrays of all ranks on every rank, and the adjoint of that."""

from typing import Any

import jax
from mpi4py import MPI

from pfftjax._runtime.communicators import Communicator, as_private
from pfftjax._runtime.primitive import as_array, communicating, elements, linear, over_leaves

from ._reduce_scatter import reduce_scatter_p
from ._reduction import SUM

allgather_p = communicating(
    "allgather",
    result=lambda x, comm: x.update(shape=(comm.size, *x.shape), weak_type=False),
    agreement=elements,
)
# <allgather x, y> = sum over i, j of x_j y_i[j] = sum over j of <x_j, sum over i of y_i[j]>.
linear(
    allgather_p,
    batch=(0, 1),
    adjoint=lambda cotangent, _, comm: reduce_scatter_p.bind(cotangent, op=SUM, comm=comm),
)


@over_leaves
def allgather(x: Any, *, comm: MPI.Comm | Communicator | None = None) -> jax.Array:
    """Gather the arrays of all ranks on every rank.

    Args:
        x: array of any shape, of the same size and dtype on every rank, or a pytree of arrays.
        comm: communicator, `MPI.COMM_WORLD` by default.

    Returns:
        Array of shape ``(P, *x.shape)`` for the P ranks of `comm`; entry i is the array of rank i.

    Raises:
        TypeError: a dtype that cannot be sent.

    Its adjoint is `reduce_scatter`.

    Example:
        >>> from mpi4py import MPI
        >>> allgather(MPI.COMM_WORLD.rank).tolist() == list(range(MPI.COMM_WORLD.size))
        True

    """
    comm = as_private(comm, "allgather")
    return allgather_p.bind(as_array(x, "allgather", comm), comm=comm)

"""alltoall: block j of rank i becomes block i of rank j."""

import jax
from jax.interpreters import mlir
from jax.typing import ArrayLike

from pfftjax._runtime import launcher
from pfftjax._runtime.arguments import as_array, one_entry_a_rank, over_leaves
from pfftjax._runtime.communicators import Comm, Communicator, as_private
from pfftjax._runtime.options import options
from pfftjax._runtime.ordering import is_temporary
from pfftjax._runtime.primitive import communicating
from pfftjax._runtime.rules import linear


def _in_place(_: object, x: mlir.ir.Value, *, comm: Communicator, **__: object) -> dict[int, int]:
    """In place where ranks may share memory; MPI would want a copy of the operand first."""
    may_share = comm.size <= (launcher.here.local_ranks or comm.size)
    return {0: 0} if options.shared_memory and may_share and is_temporary(x) else {}


alltoall_p = communicating("alltoall", in_place=_in_place)
# <alltoall x, y> = sum over i, j of x_i[j] y_j[i] = <x, alltoall y>: its own adjoint.
linear(alltoall_p, batch=(1, 1), adjoint=alltoall_p)


@over_leaves
def alltoall(x: ArrayLike, *, comm: Comm = None) -> jax.Array:
    """Send block ``x[j]`` to rank j, for all j: a transposition between ranks and blocks.

    Args:
        x: array of shape (size of `comm`, ...), of the same size and dtype on every rank, or a
            pytree of such arrays.
        comm: communicator, `MPI.COMM_WORLD` by default.

    Returns:
        Array of the shape and dtype of `x`; block i came from rank i.

    Raises:
        ValueError: axis 0 of `x` does not count the ranks.
        TypeError: a dtype that cannot be sent.

    Its adjoint is itself.

    Example:
        >>> import jax.numpy as jnp
        >>> from mpi4py import MPI
        >>> x = jnp.zeros((MPI.COMM_WORLD.size, 3)) + MPI.COMM_WORLD.rank
        >>> [float(block[0]) for block in alltoall(x)] == list(range(MPI.COMM_WORLD.size))
        True

    """
    comm = as_private(comm, "alltoall")
    x = as_array(x, "alltoall", comm)
    one_entry_a_rank(x, "alltoall", comm)
    return alltoall_p.bind(x, comm=comm)

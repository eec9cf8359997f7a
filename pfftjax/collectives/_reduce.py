"""reduce: the arrays of all ranks, reduced, on one rank."""

from typing import Any

import jax
import numpy as np
from mpi4py import MPI

from pfftjax._runtime.communicators import Communicator, as_private
from pfftjax._runtime.primitive import as_array, over_leaves, root_rank

from ._bcast import reduce_p
from ._reduction import as_truth_values, reduction


@over_leaves
def reduce(
    x: Any, op: MPI.Op, root: int, *, comm: MPI.Comm | Communicator | None = None
) -> jax.Array:
    """Reduce the arrays of all ranks; rank `root` gets the result.

    Args:
        x: array of any shape, of the same size and dtype on every rank, or a pytree of arrays.
        op: one of MPI's reductions, or one made by `MPI.Op.Create`, as in `allreduce`.
        root: the rank that gets the result, a static integer.
        comm: communicator, `MPI.COMM_WORLD` by default.

    Returns:
        Array of the shape and dtype of `x`: the result on rank `root`, `x` elsewhere.

    Raises:
        ValueError: `root` is not a rank of `comm`, or an `op` that means nothing for arrays.
        TypeError: a dtype that cannot be sent or that `op` is not defined for; the derivative of
            any `op` but `MPI.SUM`.

    The adjoint of the sum is `bcast`.

    Example:
        >>> from mpi4py import MPI
        >>> rank, size = MPI.COMM_WORLD.rank, MPI.COMM_WORLD.size
        >>> float(reduce(2.0, MPI.SUM, 0)) == (2.0 * size if rank == 0 else 2.0)
        True

    """
    comm = as_private(comm, "reduce")
    x = as_array(x, "reduce", comm)
    root = root_rank(root, "reduce", comm)
    number = reduction(op, x.dtype, "reduce", comm)
    reduced = reduce_p.bind(as_truth_values(x, number), op=number, root=root, comm=comm)
    # As in gather: the derivative stays part of the program on every rank.
    return reduced if comm.rank == root else jax.lax.select(np.False_, reduced, x)

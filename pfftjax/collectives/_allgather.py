"""allgather and reduce_scatter: the arrays of all ranks on every rank; their sum, in blocks.

They are adjoints of each other.
"""

import functools

import jax
import numpy as np
from jax.typing import ArrayLike
from mpi4py import MPI

from pfftjax._runtime.arguments import as_array, one_entry_a_rank, over_leaves
from pfftjax._runtime.communicators import Comm, as_private
from pfftjax._runtime.primitive import communicating
from pfftjax._runtime.rules import linear

from ._reduction import SUM, elements_and_op, only_sums, reducible

allgather_p = communicating(
    "allgather", result=lambda x, comm: x.update(shape=(comm.size, *x.shape), weak_type=False)
)
reduce_scatter_p = communicating(
    "reduce_scatter",
    result=lambda x, **_: x.update(shape=x.shape[1:], weak_type=False),
    agreement=elements_and_op,
    attributes={"op": np.int32},
)
# <allgather x, y> = sum over i, j of x_j y_i[j] = sum over j of <x_j, sum over i of y_i[j]>.
linear(
    allgather_p,
    batch=(0, 1),
    adjoint=lambda cotangent, _, comm: reduce_scatter_p.bind(cotangent, op=SUM, comm=comm),
)
# <reduce_scatter x, y> = sum over i, j of x_i[j] y_j = sum over i of <x_i, allgather y>.
linear(
    reduce_scatter_p,
    batch=(1, 0),
    adjoint=lambda cotangent, _, op, comm: allgather_p.bind(cotangent, comm=comm),
    check_differentiable=functools.partial(only_sums, "reduce_scatter"),
)


@over_leaves
def allgather(x: ArrayLike, *, comm: Comm = None) -> jax.Array:
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


@over_leaves
def reduce_scatter(x: ArrayLike, op: MPI.Op = MPI.SUM, *, comm: Comm = None) -> jax.Array:
    """Reduce block ``x[j]`` over all ranks onto rank j, for all j.

    Args:
        x: array of shape (size of `comm`, ...), of the same size and dtype on every rank, or a
            pytree of such arrays.
        op: one of MPI's reductions, or one made by `MPI.Op.Create`, as in `allreduce`.
        comm: communicator, `MPI.COMM_WORLD` by default.

    Returns:
        Array of shape ``x.shape[1:]``.

    Raises:
        ValueError: axis 0 of `x` does not count the ranks, or an `op` that means nothing for
            arrays.
        TypeError: a dtype that cannot be sent or that `op` is not defined for; the derivative of
            any `op` but `MPI.SUM`.

    The adjoint of the sum is `allgather`.

    Example:
        >>> import jax.numpy as jnp
        >>> from mpi4py import MPI
        >>> size = MPI.COMM_WORLD.size
        >>> float(reduce_scatter(jnp.ones(size))) == size
        True

    """
    comm = as_private(comm, "reduce_scatter")
    x, params = reducible(x, op, "reduce_scatter", comm)
    one_entry_a_rank(x, "reduce_scatter", comm)
    return reduce_scatter_p.bind(x, **params)

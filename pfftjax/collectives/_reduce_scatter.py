"""reduce_scatter: block j of all ranks, reduced, on rank j."""

from typing import Any

import jax
import numpy as np
from mpi4py import MPI

from pfftjax._runtime.communicators import Communicator, as_private
from pfftjax._runtime.primitive import (
    as_array,
    communicating,
    elements,
    linear,
    one_entry_a_rank,
    over_leaves,
)

from ._reduction import as_truth_values, name_of, only_sums, reduction

reduce_scatter_p = communicating(
    "reduce_scatter",
    result=lambda x, **_: x.update(shape=x.shape[1:], weak_type=False),
    agreement=lambda x, *, op, **_: f"{elements(x)} {name_of(op)}",
    attributes=lambda op: {"op": np.int32(op)},
)


def _adjoint(cotangent: Any, _: Any, *, op: int, comm: Communicator) -> Any:
    # <reduce_scatter x, y> = sum over i, j of x_i[j] y_j = sum over i of <x_i, allgather y>.
    from ._allgather import allgather_p  # the two are each other's adjoints

    del op  # only sums get here
    return allgather_p.bind(cotangent, comm=comm)


linear(reduce_scatter_p, batch=(1, 0), adjoint=_adjoint, differentiable=only_sums)


@over_leaves
def reduce_scatter(
    x: Any, op: MPI.Op = MPI.SUM, *, comm: MPI.Comm | Communicator | None = None
) -> jax.Array:
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
    x = as_array(x, "reduce_scatter", comm)
    one_entry_a_rank(x, "reduce_scatter", comm)
    number = reduction(op, x.dtype, "reduce_scatter", comm)
    return reduce_scatter_p.bind(as_truth_values(x, number), op=number, comm=comm)

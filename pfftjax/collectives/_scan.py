"""scan and exscan: reductions over the ranks up to this one, and over those before it."""

import jax
import numpy as np
from jax.core import ShapedArray
from jax.typing import ArrayLike
from mpi4py import MPI

from pfftjax._runtime.arguments import over_leaves
from pfftjax._runtime.communicators import Comm, as_private
from pfftjax._runtime.primitive import communicating
from pfftjax._runtime.rules import linear

from ._reduction import elements_and_op, only_sums, reducible


def _agreement(x: ShapedArray, *, op: int, exclusive: bool, reverse: bool, **_: object) -> str:
    manner = f"{'exclusive ' if exclusive else ''}{'from the last rank ' if reverse else ''}"
    return manner + elements_and_op(x, op=op)


scan_p = communicating(
    "scan",
    agreement=_agreement,
    attributes={"op": np.int32, "exclusive": np.bool_, "reverse": np.bool_},
)
# <scan x, y> = sum over j <= i of <x_j, y_i> = <x, z> with z_j = sum over i >= j of y_i: the same
# from the last rank.
linear(
    scan_p,
    batch=(0, 0),
    adjoint=lambda cotangent, _, *, reverse, **params: scan_p.bind(
        cotangent, reverse=not reverse, **params
    ),
    check_differentiable=lambda *, op, exclusive, **_: only_sums(
        "exscan" if exclusive else "scan", op=op
    ),
)


@over_leaves
def scan(x: ArrayLike, op: MPI.Op = MPI.SUM, *, comm: Comm = None) -> jax.Array:
    """Reduce the arrays of the ranks up to and including this one.

    Args:
        x: array of any shape, of the same size and dtype on every rank, or a pytree of arrays.
        op: one of MPI's reductions, or one made by `MPI.Op.Create`, as in `allreduce`.
        comm: communicator, `MPI.COMM_WORLD` by default.

    Returns:
        Array of the shape and dtype of `x`.

    Raises:
        ValueError: an `op` that means nothing for arrays.
        TypeError: a dtype that cannot be sent or that `op` is not defined for; the derivative of
            any `op` but `MPI.SUM`.

    The adjoint of the sum is the sum over the ranks from this one to the last.

    Example:
        >>> from mpi4py import MPI
        >>> int(scan(1)) == MPI.COMM_WORLD.rank + 1
        True

    """
    return _scan(x, op, comm, "scan", exclusive=False)


@over_leaves
def exscan(x: ArrayLike, op: MPI.Op = MPI.SUM, *, comm: Comm = None) -> jax.Array:
    """Reduce the arrays of the ranks before this one: where a rank's part of a whole begins.

    Arguments and errors are those of `scan`.

    Returns:
        Array of the shape and dtype of `x`. Rank 0, where MPI leaves the result undefined, gets
        the value that changes nothing: 0 for a sum, 1 for a product, infinity (or the largest
        integer) for a minimum, and so on; zeros for an operation made by `MPI.Op.Create`.

    The adjoint of the sum is the sum over the ranks after this one.

    Example:
        >>> from mpi4py import MPI
        >>> int(exscan(5)) == 5 * MPI.COMM_WORLD.rank
        True

    """
    return _scan(x, op, comm, "exscan", exclusive=True)


def _scan(x: ArrayLike, op: MPI.Op, comm: Comm, operation: str, *, exclusive: bool) -> jax.Array:
    comm = as_private(comm, operation)
    x, params = reducible(x, op, operation, comm)
    return scan_p.bind(x, exclusive=exclusive, reverse=False, **params)

"""bcast and reduce: from one rank to all, and the arrays of all ranks, reduced, on one.

The primitives are adjoints of each other: reduce gives zeros where the result does not arrive.
"""

import functools

import jax
import numpy as np
from jax.typing import ArrayLike
from mpi4py import MPI

from pfftjax._runtime.arguments import as_array, over_leaves, root_rank
from pfftjax._runtime.communicators import Comm, as_private
from pfftjax._runtime.primitive import communicating, elements
from pfftjax._runtime.rules import linear, on_root_only

from ._reduction import SUM, elements_and_op, only_sums, reducible

bcast_p = communicating(
    "bcast",
    agreement=lambda x, *, root, **_: f"{elements(x)} from {root}",
    attributes={"root": np.int32},
)
reduce_p = communicating(
    "reduce",
    agreement=lambda x, *, root, **params: f"{elements_and_op(x, **params)} to {root}",
    attributes={"op": np.int32, "root": np.int32},
)
# <bcast x, y> = sum over i of <x_root, y_i> = <x, reduce y>, as only x_root enters.
linear(
    bcast_p,
    batch=(0, 0),
    adjoint=lambda cotangent, _, **params: reduce_p.bind(cotangent, op=SUM, **params),
)
linear(
    reduce_p,
    batch=(0, 0),
    adjoint=lambda cotangent, _, op, **params: bcast_p.bind(cotangent, **params),
    check_differentiable=functools.partial(only_sums, "reduce"),
)


@over_leaves
def bcast(x: ArrayLike, root: int, *, comm: Comm = None) -> jax.Array:
    """Give every rank the array of rank `root`.

    Args:
        x: array of the same size and dtype on every rank, or a pytree of arrays; only shape and
            dtype count on ranks other than `root`.
        root: the rank that sends, a static integer.
        comm: communicator, `MPI.COMM_WORLD` by default.

    Returns:
        The array of rank `root`.

    Raises:
        ValueError: `root` is not a rank of `comm`.
        TypeError: `root` is not static, or a dtype that cannot be sent.

    Its adjoint adds the cotangents of all ranks on the root; the other ranks' `x` get zeros.
    Where it is differentiated on one rank, let `x` depend on what is differentiated on the others
    too, if only as ``0 * x``: JAX leaves constants out of derivatives, and the ranks' programs
    would differ.

    Example:
        >>> from mpi4py import MPI
        >>> float(bcast(5.0 + MPI.COMM_WORLD.rank, 0))
        5.0

    """
    comm = as_private(comm, "bcast")
    return bcast_p.bind(as_array(x, "bcast", comm), root=root_rank(root, "bcast", comm), comm=comm)


@over_leaves
def reduce(x: ArrayLike, op: MPI.Op, root: int, *, comm: Comm = None) -> jax.Array:
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
    operand, params = reducible(x, op, "reduce", comm)
    return on_root_only(reduce_p.bind(operand, root=root, **params), x, root, comm)

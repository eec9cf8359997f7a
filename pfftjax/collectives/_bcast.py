"""bcast, and the reduction to one rank that is its adjoint."""

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
    over_leaves,
    root_rank,
)

from ._reduction import SUM, name_of, only_sums

bcast_p = communicating(
    "bcast",
    result=lambda x, **_: x.update(weak_type=False),
    agreement=lambda x, *, root, **_: f"{elements(x)} from {root}",
    attributes=lambda root: {"root": np.int32(root)},
)
# The reduction on the root, zeros elsewhere.
reduce_p = communicating(
    "reduce",
    result=lambda x, **_: x.update(weak_type=False),
    agreement=lambda x, *, op, root, **_: f"{elements(x)} {name_of(op)} to {root}",
    attributes=lambda op, root: {"op": np.int32(op), "root": np.int32(root)},
)
# <bcast x, y> = sum over i of <x_root, y_i> = <x, reduce y>, as only x_root enters.
linear(
    bcast_p,
    batch=(0, 0),
    adjoint=lambda cotangent, _, *, root, comm: reduce_p.bind(
        cotangent, op=SUM, root=root, comm=comm
    ),
)
linear(
    reduce_p,
    batch=(0, 0),
    adjoint=lambda cotangent, _, *, op, root, comm: bcast_p.bind(cotangent, root=root, comm=comm),
    differentiable=only_sums,
)


@over_leaves
def bcast(x: Any, root: int, *, comm: MPI.Comm | Communicator | None = None) -> jax.Array:
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

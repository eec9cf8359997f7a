"""gather and scatter: the blocks of all ranks on one rank, and from there; adjoints of each other.

The primitives are exact adjoints because what does not arrive is zero: gather gives zeros on the
other ranks, and scatter reads nothing there. The functions put the operand in place of those
zeros, as their users expect.
"""

import jax
import numpy as np
from jax.core import ShapedArray
from jax.typing import ArrayLike

from pfftjax._runtime.arguments import as_array, one_entry_a_rank, over_leaves, root_rank
from pfftjax._runtime.communicators import Comm, Communicator, as_private
from pfftjax._runtime.primitive import communicating, elements
from pfftjax._runtime.rules import linear, on_root_only


def _block(x: ShapedArray, *, root: int, comm: Communicator) -> str:
    size = x.size // comm.size if comm.rank == root else x.size
    return f"{np.dtype(x.dtype).name}[{size}] from {root}"


gather_p = communicating(
    "gather",
    result=lambda x, *, root, comm: x.update(
        shape=(comm.size, *x.shape) if comm.rank == root else x.shape, weak_type=False
    ),
    agreement=lambda x, *, root, **_: f"{elements(x)} to {root}",
    attributes={"root": np.int32},
)
scatter_p = communicating(
    "scatter",
    result=lambda x, *, root, comm: x.update(
        shape=x.shape[1:] if comm.rank == root else x.shape, weak_type=False
    ),
    agreement=_block,
    attributes={"root": np.int32},
)
# <gather x, y> = sum over j of <x_j, y_root[j]> = sum over j of <x_j, (scatter y)_j>.
linear(gather_p, batch=lambda root, comm: (0, int(comm.rank == root)), adjoint=scatter_p)
linear(scatter_p, batch=lambda root, comm: (int(comm.rank == root), 0), adjoint=gather_p)


@over_leaves
def gather(x: ArrayLike, root: int, *, comm: Comm = None) -> jax.Array:
    """Gather the arrays of all ranks on rank `root`.

    Args:
        x: array of any shape, of the same size and dtype on every rank, or a pytree of arrays.
        root: the rank that receives, a static integer.
        comm: communicator, `MPI.COMM_WORLD` by default.

    Returns:
        On rank `root` an array of shape ``(P, *x.shape)`` for the P ranks of `comm`, whose entry i
        is the array of rank i; elsewhere `x`.

    Raises:
        ValueError: `root` is not a rank of `comm`.
        TypeError: `root` is not static, or a dtype that cannot be sent.

    Its adjoint scatters the root's cotangent.

    Example:
        >>> from mpi4py import MPI
        >>> rank, size = MPI.COMM_WORLD.rank, MPI.COMM_WORLD.size
        >>> gather(rank, 0).tolist() == (list(range(size)) if rank == 0 else rank)
        True

    """
    comm = as_private(comm, "gather")
    x = as_array(x, "gather", comm)
    root = root_rank(root, "gather", comm)
    return on_root_only(gather_p.bind(x, root=root, comm=comm), x, root, comm)


@over_leaves
def scatter(x: ArrayLike, root: int, *, comm: Comm = None) -> jax.Array:
    """Give each rank its block of the array of rank `root`.

    Args:
        x: on rank `root` an array of shape (size of `comm`, ...), whose entry i goes to rank i;
            elsewhere an array of the shape and dtype of one entry, which is not read. Or a pytree
            of such arrays.
        root: the rank that sends, a static integer.
        comm: communicator, `MPI.COMM_WORLD` by default.

    Returns:
        Array of the shape of one entry.

    Raises:
        ValueError: `root` is not a rank of `comm`, or axis 0 of its `x` does not count the ranks.
        TypeError: `root` is not static, or a dtype that cannot be sent.

    Its adjoint gathers the cotangents on the root; the other ranks' `x` get zeros. Where it is
    differentiated on one rank, let `x` depend on what is differentiated on the others too, if only
    as ``0 * x``: JAX leaves constants out of derivatives, and the ranks' programs would differ.

    Example:
        >>> import jax.numpy as jnp
        >>> from mpi4py import MPI
        >>> rank, size = MPI.COMM_WORLD.rank, MPI.COMM_WORLD.size
        >>> x = jnp.arange(size) if rank == 0 else jnp.asarray(0)
        >>> int(scatter(x, 0)) == rank
        True

    """
    comm = as_private(comm, "scatter")
    x = as_array(x, "scatter", comm)
    root = root_rank(root, "scatter", comm)
    if comm.rank == root:
        one_entry_a_rank(x, "scatter", comm)
    return scatter_p.bind(x, root=root, comm=comm)

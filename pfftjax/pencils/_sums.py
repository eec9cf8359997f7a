"""Inner products and norms of distributed arrays."""

import jax
import jax.numpy as jnp
from jax.typing import ArrayLike

from pfftjax._runtime.arrays import Numbers, PyTree, Scalar
from pfftjax.collectives import allreduce

from ._process_grid import ProcessGrid, checked_grid


def vdot(x: PyTree, y: PyTree, grid: ProcessGrid) -> Numbers:
    """The inner product of distributed arrays: the sum over all ranks of conj(x) y.

    What optimisers and iterative solvers need in place of `jnp.vdot`, which sees this rank's block
    only.

    Args:
        x: this rank's block, or a pytree of blocks.
        y: the same for the other array.
        grid: the grid that they are distributed over.

    Returns:
        A scalar, the same on every rank. Under `jax.grad` it is a loss of all ranks together, as
        `allreduce` is.

    Raises:
        ValueError: blocks whose shapes differ.
        TypeError: no process grid.

    Example:
        >>> from pfftjax import ProcessGrid
        >>> grid = ProcessGrid()
        >>> x = jnp.arange(3.0)
        >>> bool(vdot(x, x, grid) == 5 * grid.size)
        True

    """
    checked_grid(grid, "vdot")
    pairs = jax.tree.map(_local_vdot, x, y)
    return allreduce(sum(jax.tree.leaves(pairs)), comm=grid.comm)


def _local_vdot(x: ArrayLike, y: ArrayLike) -> Numbers:
    x, y = jnp.asarray(x), jnp.asarray(y)
    if x.shape != y.shape:
        raise ValueError(f"vdot: the blocks have shapes {x.shape} and {y.shape}")
    # Summed by XLA's tree of sums: a dot product of float32 loses digits with its length. Products
    # of integers have the type of their sum, in which fewer of them wrap around.
    dtype = jnp.result_type(x, y)
    if jnp.issubdtype(dtype, jnp.integer):
        dtype = jnp.sum(jnp.zeros((), dtype)).dtype
    return jnp.sum(jnp.conj(x).astype(dtype) * y.astype(dtype))


def norm(x: PyTree, grid: ProcessGrid) -> Scalar:
    """The Euclidean norm of a distributed array, or of a pytree of them.

    Args:
        x: this rank's block, or a pytree of blocks.
        grid: the grid that they are distributed over.

    Returns:
        A real scalar, the same on every rank; integers become floating-point numbers first. Its
        derivative at zero is zero.

    Raises:
        TypeError: no process grid.

    Example:
        >>> from pfftjax import ProcessGrid
        >>> grid = ProcessGrid()
        >>> bool(jnp.isclose(norm(jnp.array([3.0, 4.0]), grid), 5 * grid.size**0.5))
        True

    """
    checked_grid(grid, "norm")
    x = jax.tree.map(_inexact, x)
    square = jnp.real(vdot(x, x, grid))
    zero = square == 0  # NaN is not
    return jnp.where(zero, 0, jnp.sqrt(jnp.where(zero, 1, square)))


def _inexact(x: ArrayLike) -> jax.Array:
    """`x` as numbers whose squares do not wrap around."""
    x = jnp.asarray(x)
    return x if jnp.issubdtype(x.dtype, jnp.inexact) else x.astype(float)

"""allgatherv: rows of every rank on every rank, as many as each has at run time."""

import functools

import jax
import jax.numpy as jnp
from jax.core import ShapedArray
from jax.interpreters import batching
from jax.typing import ArrayLike

from pfftjax._runtime.arguments import as_array, static_int, where
from pfftjax._runtime.communicators import Comm, Communicator, as_private
from pfftjax._runtime.rules import Axes, Operands, batch_in_front, linear

from ._alltoallv import (
    MOST_ROWS,
    alltoallv_p,
    exchange_counts_p,
    in_order,
    moving_rows,
    row_count,
    rows_of,
)

# x, the number of its rows that are sent, the numbers of all ranks -> rows.
allgatherv_p = moving_rows("allgatherv")


# <allgatherv x, y> pairs each row of x with the same row of y on every rank: the adjoint sends the
# part of y that belongs to each rank there, where the parts of all ranks add up.
def _adjoint(
    cotangent: jax.Array,
    x: ShapedArray,
    count: ArrayLike,
    counts: ArrayLike,
    *,
    capacity: int,
    comm: Communicator,
) -> jax.Array:
    del capacity
    rows = x.shape[0]
    if comm.size * rows > MOST_ROWS:
        raise ValueError(
            f"{where('the derivative of allgatherv', comm)}: {rows} rows from each of {comm.size} "
            "ranks, but counts are 32-bit; put more than one element in a row"
        )
    to = jnp.broadcast_to(count, (comm.size,))
    parts = alltoallv_p.bind(cotangent, counts, to, capacity=comm.size * rows, comm=comm)
    row = jnp.arange(rows)
    # Part i begins where i * count rows have come before it.
    places = jnp.arange(comm.size)[:, None] * count + row
    order = jnp.where(row < count, places, 0).reshape(-1)
    total = in_order(parts, order).reshape(comm.size, *x.shape).sum(0)
    is_sent = (row < count).reshape(-1, *[1] * (total.ndim - 1))
    return jnp.where(is_sent, total, jnp.zeros_like(total))


def _batched(
    operands: Operands, axes: Axes, *, capacity: int, comm: Communicator
) -> tuple[jax.Array, int]:
    gather = functools.partial(allgatherv_p.bind, capacity=capacity, comm=comm)
    x, count, counts = operands
    if axes[0] is not None and axes[1] is None and axes[2] is None:
        # The same rows of the whole batch: it travels inside them.
        return gather(jnp.moveaxis(x, axes[0], 1), count, counts), 1
    size, members = batch_in_front(operands, axes)
    if size == 0:
        return jnp.zeros((0, capacity, *members[0].shape[2:]), x.dtype), 0
    each = [gather(*(a[i] for a in members)) for i in range(size)]
    return jnp.stack(each), 0


linear(allgatherv_p, adjoint=_adjoint)
batching.primitive_batchers[allgatherv_p] = _batched


def allgatherv(
    x: ArrayLike,
    count: ArrayLike | None = None,
    *,
    capacity: int | None = None,
    return_mask: bool = False,
    comm: Comm = None,
) -> tuple[jax.Array, jax.Array]:
    """Gather the first `count` rows of every rank's `x` on every rank.

    Args:
        x: array of shape (rows, ...). Shapes may differ between ranks in axis 0 only.
        count: how many rows are sent, an integer, may be traced; all of them by default.
        capacity: rows of the result, a static integer; by default those of `x` times the number
            of ranks. It may differ between ranks.
        return_mask: return which rows are valid in place of the counts.
        comm: communicator, `MPI.COMM_WORLD` by default.

    Returns:
        A pair (y, received). y of shape (capacity, ...) has the rows of rank 0 first, then those
        of rank 1, and so on, then zeros. received is the number of rows from each rank, int32 of
        shape (size of `comm`,), or, with `return_mask`, a boolean array of shape (capacity,), true
        for the rows that were received.

    Raises:
        ValueError: `x` without rows, or a capacity that is negative or too large.
        TypeError: a count that is no integer, or a dtype that cannot be sent.
        jax.errors.JaxRuntimeError: when it runs, on every rank: more rows arrive somewhere than
            fit there (the text names the capacity that would do), or a count that is negative or
            exceeds the rows of `x`.

    Its adjoint sends each rank its rows back, where those of all ranks add up.

    Example:
        >>> import jax.numpy as jnp
        >>> from mpi4py import MPI
        >>> rank, size = MPI.COMM_WORLD.rank, MPI.COMM_WORLD.size
        >>> y, received = allgatherv(jnp.full(size, rank), rank + 1, capacity=size * (size + 1))
        >>> received.tolist() == list(range(1, size + 1))
        True
        >>> y[: received.sum()].tolist() == [r for r in range(size) for _ in range(r + 1)]
        True

    """
    comm = as_private(comm, "allgatherv")
    x = rows_of(x, "allgatherv", comm)
    rows = int(x.shape[0])
    sent = as_array(rows if count is None else count, "allgatherv", comm)
    if not jnp.issubdtype(sent.dtype, jnp.integer) or sent.ndim != 0:
        raise TypeError(
            f"{where('allgatherv', comm)}: count must be one integer, got {sent.dtype} of shape "
            f"{sent.shape}"
        )
    room = rows * comm.size
    if capacity is not None:
        room = static_int(capacity, "capacity", "allgatherv", comm)
    sent = row_count(sent, rows, room, "allgatherv", comm)
    # Every rank sends as many to each.
    counts = exchange_counts_p.bind(
        jnp.broadcast_to(sent, (comm.size, 1)),
        rows=rows * comm.size,
        capacity=room,
        what="gathered rows",
        comm=comm,
    )[:, 0]
    y = allgatherv_p.bind(x, sent, counts, capacity=room, comm=comm)
    return y, (jnp.less(jnp.arange(room), counts.sum()) if return_mask else counts)

"""alltoallv: rows to the ranks they belong to, in arrays of static size.

How many rows go where is only known at run time, as for particles that change owner. XLA wants
static shapes: the result has room for `capacity` rows, and more rows than that are an error on
every rank before any row has moved. None is ever dropped.
"""

import math
from collections.abc import Sequence

import jax
import jax.numpy as jnp
import numpy as np
from jax.core import ShapedArray
from jax.extend.core import Primitive
from jax.interpreters import batching
from jax.typing import ArrayLike

from pfftjax._runtime.arguments import as_array, one_entry_a_rank, static_int, where
from pfftjax._runtime.communicators import Comm, Communicator, as_private
from pfftjax._runtime.primitive import communicating
from pfftjax._runtime.rules import Axes, Operands, batch_in_front, constant, linear

MOST_ROWS = 2**31 - 1

# counts (ranks, batch) of rows to each rank -> of rows from each rank; fails on every rank where
# any count is impossible or any rank would receive more than its capacity.
exchange_counts_p: Primitive = communicating(
    "exchange_counts",
    agreement=lambda counts, *, what, **_: f"of {counts.shape[1]} exchanges of {what}",
    attributes={"rows": np.int64, "capacity": np.int64, "what": str},
)
constant(exchange_counts_p)


def moving_rows(name: str) -> Primitive:
    """A primitive of x (rows, ...) and counts, with a result of shape (capacity, ...)."""

    def agreement(x: ShapedArray, *_: ShapedArray, **__: object) -> str:
        return f"{np.dtype(x.dtype).name} rows of {math.prod(x.shape[1:])} elements"

    def result(x: ShapedArray, *_: ShapedArray, capacity: int, **__: object) -> ShapedArray:
        return x.update(shape=(capacity, *x.shape[1:]), weak_type=False)

    return communicating(name, result=result, agreement=agreement)


def rows_axis(counts: ShapedArray | jax.Array | np.ndarray) -> int:
    """The axis of the rows that go by these counts: 0, or 1 in a batch with counts for each."""
    return counts.ndim - 1


# x, counts to each rank, counts from each rank -> rows.
alltoallv_p: Primitive = moving_rows("alltoallv")
# Linear in x for given counts. <alltoallv x, y> pairs each row that moved from i to j with the
# same row of y on j: the adjoint moves the rows of y back, with the two counts exchanged.
linear(
    alltoallv_p,
    adjoint=lambda cotangent, x, to, from_, *, capacity, comm: alltoallv_p.bind(
        cotangent, from_, to, capacity=x.shape[0], comm=comm
    ),
)


def _exchange_counts_batched(
    operands: Operands, axes: Sequence[int], **params: object
) -> tuple[jax.Array, int]:
    (counts,), (axis,) = operands, axes
    moved = jnp.moveaxis(counts, axis, -1)
    flat = exchange_counts_p.bind(moved.reshape(moved.shape[0], -1), **params)
    return flat.reshape(moved.shape), moved.ndim - 1


batching.primitive_batchers[exchange_counts_p] = _exchange_counts_batched


def _batched(
    operands: Operands, axes: Axes, *, capacity: int, comm: Communicator
) -> tuple[jax.Array, int]:
    x, to, from_ = operands
    if axes[1] is None and axes[2] is None and axes[0] is not None:
        # The same counts for the whole batch: it travels inside the rows.
        moved = jnp.moveaxis(x, axes[0], 1)
        return alltoallv_p.bind(moved, to, from_, capacity=capacity, comm=comm), 1

    size, (x, to, from_) = batch_in_front(operands, axes)
    rows = x.shape[1]
    most = max(rows, capacity)
    if size * most > MOST_ROWS:
        raise ValueError(
            f"{where('alltoallv', comm)}: a batch of {size} with {most} rows each is more than "
            "32-bit counts can hold; use jax.lax.map over the batch"
        )
    # Members have counts of their own: one message carries, for each rank, the rows of member 0,
    # then those of member 1, and so on. Sorting and unsorting are gathers, and so differentiable.
    order = _inverse(_places_by_rank(to, rows))
    arrived = alltoallv_p.bind(
        in_order(x.reshape(size * rows, *x.shape[2:]), order),
        to.sum(0, dtype=to.dtype),
        from_.sum(0, dtype=from_.dtype),
        capacity=size * capacity,
        comm=comm,
    )
    y = in_order(arrived, _places_by_rank(from_, capacity))
    return y.reshape(size, capacity, *x.shape[2:]), 0


def _places_by_rank(counts: jax.Array, rows: int) -> jax.Array:
    """Where each row of a batch is when they are in order of rank, then of member.

    Args:
        counts: int32 (batch, ranks), the rows of each member for each rank, one after the other.
        rows: of each member; those after the counted ones come last.

    Returns:
        int32 (batch * rows,).

    """
    ends = jnp.cumsum(counts, axis=1)
    counts = jnp.concatenate([counts, rows - ends[:, -1:]], axis=1)
    in_member = jnp.cumsum(counts, axis=1) - counts
    in_batch = (jnp.cumsum(counts.T.reshape(-1)).reshape(counts.T.shape) - counts.T).T
    row = jnp.arange(rows, dtype=counts.dtype)
    rank = jax.vmap(lambda end: jnp.searchsorted(end, row, side="right"))(ends)
    return (row + jnp.take_along_axis(in_batch - in_member, rank, axis=1)).reshape(-1)


def _inverse(places: jax.Array) -> jax.Array:
    """The rows in their order, of where each row is in it."""
    rows = jnp.arange(places.size, dtype=places.dtype)
    return jnp.zeros_like(places).at[places].set(rows, unique_indices=True)


def in_order(rows: jax.Array, order: jax.Array) -> jax.Array:
    """The same rows in another order.

    JAX makes of an array without elements zeros that depend on nothing. This rank would then have
    no part in the exchange of the derivative, for which the others wait.
    """
    return rows[order] if rows.size else rows


def rows_of(x: ArrayLike, operation: str, comm: Communicator) -> jax.Array:
    """`x` as an array that has rows."""
    x = as_array(x, operation, comm)
    if x.ndim < 1:
        raise ValueError(f"{where(operation, comm)}: x must have rows along axis 0, got a scalar")
    return x


def row_count(
    counts: jax.Array, rows: int, room: int, operation: str, comm: Communicator
) -> jax.Array:
    """`counts` as int32, after a check that numbers of rows are possible.

    Clipped, so that what does not fit is refused as impossible, not wrapped into range.
    """
    if room < 0:
        raise ValueError(
            f"{where(operation, comm)}: capacity is {room}; give the number of rows that the "
            "result has room for"
        )
    if max(rows, room) > MOST_ROWS:
        raise ValueError(
            f"{where(operation, comm)}: {max(rows, room)} rows, but counts are 32-bit; put more "
            "than one element in a row"
        )
    if counts.dtype.itemsize < 4 or counts.dtype == jnp.int32:
        return counts.astype(jnp.int32)
    least = 0 if jnp.issubdtype(counts.dtype, jnp.unsignedinteger) else -1
    return jnp.clip(counts, least, MOST_ROWS).astype(jnp.int32)


batching.primitive_batchers[alltoallv_p] = _batched


def alltoallv(
    x: ArrayLike,
    counts: ArrayLike,
    *,
    capacity: int | None = None,
    return_mask: bool = False,
    comm: Comm = None,
) -> tuple[jax.Array, jax.Array]:
    """Send the first ``counts[0]`` rows of `x` to rank 0, the next ``counts[1]`` to rank 1, ...

    Args:
        x: array of shape (rows, ...), sorted by destination; rows after the first ``sum(counts)``
            are not sent. Shapes may differ between ranks in axis 0 only.
        counts: integer array of shape (size of `comm`,), a traced value.
        capacity: rows of the result, a static integer, the rows of `x` by default. It may differ
            between ranks.
        return_mask: return which rows are valid in place of the counts.
        comm: communicator, `MPI.COMM_WORLD` by default.

    Returns:
        A pair (y, received). y of shape (capacity, ...) has the rows from rank 0 first, then those
        from rank 1, and so on, in the order in which they were sent, then zeros. received is the
        number of rows from each rank, int32 of shape (size of `comm`,), or, with `return_mask`, a
        boolean array of shape (capacity,), true for the rows that were received.

    Raises:
        ValueError: shapes that do not fit, or a negative capacity.
        TypeError: counts that are not integers, or a dtype that cannot be sent.
        jax.errors.JaxRuntimeError: when it runs, on every rank: more rows arrive somewhere than
            fit there (the text names the capacity that would do), or counts that are negative or
            exceed the rows of `x`.

    The counts are piecewise constant, so the adjoint is the exchange back.

    Example:
        >>> import jax.numpy as jnp
        >>> from mpi4py import MPI
        >>> size = MPI.COMM_WORLD.size
        >>> y, received = alltoallv(jnp.arange(2.0 * size), jnp.full(size, 2))
        >>> y.shape == (2 * size,) and received.tolist() == [2] * size
        True

    """
    comm = as_private(comm, "alltoallv")
    x = rows_of(x, "alltoallv", comm)
    counts = as_array(counts, "alltoallv", comm)
    if not jnp.issubdtype(counts.dtype, jnp.integer) or counts.ndim != 1:
        raise TypeError(
            f"{where('alltoallv', comm)}: counts must be a vector of {comm.size} integers, got "
            f"{counts.dtype} of shape {counts.shape}"
        )
    one_entry_a_rank(counts, "alltoallv (counts)", comm)
    rows = int(x.shape[0])
    room = rows if capacity is None else static_int(capacity, "capacity", "alltoallv", comm)
    to = row_count(counts, rows, room, "alltoallv", comm)
    from_ = exchange_counts_p.bind(to[:, None], rows=rows, capacity=room, what="rows", comm=comm)[
        :, 0
    ]
    y = alltoallv_p.bind(x, to, from_, capacity=room, comm=comm)
    return y, (jnp.less(jnp.arange(room), from_.sum()) if return_mask else from_)

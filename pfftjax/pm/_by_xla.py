"""Paint, readout, their derivatives and the order of particles by XLA's scatters, gathers and
sorts: for GPUs, where our own code (cpp/pm/) does not run.

The same sums as there, to rounding; those of `paint` are in an order of XLA's own choice. A kernel
on a GPU cannot end a program with an error: a particle that is not in this rank's block, or whose
position is not finite, makes all of the result NaN.
"""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

from pfftjax._runtime.ffi import native
from pfftjax.pencils import Pencil
from pfftjax.pencils.internal import coordinate

# Offsets of so many cells or more are in no box that has room for them.
_MOST = float(native.most_cells)

Orders = tuple[tuple[int, int, int], ...]
Point = tuple[Any, Any, int]  # by its numbers along the axes


def _located(
    cell: jax.Array, offset: jax.Array, pencil: Pencil
) -> tuple[jax.Array, jax.Array, jax.Array]:
    """Global cells (rows, 3), fractions of a cell in [0, 1], and which rows are somewhere."""
    somewhere = jnp.all(jnp.abs(offset) < _MOST, axis=1)  # not NaN either
    offset = jnp.where(somewhere[:, None], offset, 0)
    whole = jnp.floor(offset)
    shape = jnp.asarray(pencil.global_shape, jnp.int32)
    # Each brought into the box before they are added: 32 bits hold that.
    wrapped = (cell % shape + whole.astype(jnp.int32) % shape) % shape
    return wrapped, offset - whole, somewhere


def _start(pencil: Pencil, axis: int) -> jax.Array | int:
    """Global index of this rank's first cell, known when the program runs: it is the same one on
    all ranks.
    """
    if axis == 2 or pencil.grid.dims[axis] == 1:
        return 0
    size, rest = divmod(pencil.global_shape[axis], pencil.grid.dims[axis])
    part = coordinate(pencil.grid.along(axis))
    return part * size + jnp.minimum(part, rest)


def _spline(fraction: jax.Array, point: Any, points: int, order: int) -> jax.Array:
    """Weight of one of the points that a particle reaches along an axis: a B-spline of 2 or 3
    points (CIC, TSC; Hockney & Eastwood 1988, section 5-3), differentiated `order` times.
    """
    one = jnp.ones_like(fraction)
    d = fraction - (fraction >= 0.5)  # from the nearest point
    if points == 2:
        weights = [1 - fraction, fraction] if order == 0 else [-one, one]
    elif order == 0:
        weights = [0.5 * (0.5 - d) ** 2, 0.75 - d * d, 0.5 * (0.5 + d) ** 2]
    else:
        weights = [d - 0.5, -2 * d, d + 0.5] if order == 1 else [one, -2 * one, one]
    last = weights.pop()
    for number, weight in reversed([*enumerate(weights)]):
        last = jnp.where(point == number, weight, last)
    return last


class _Stencil:
    """The mesh points near each particle, in the block with its ghosts.

    Attributes:
        used: bool (rows,), the rows that hold particles of this block.
        lost: bool, whether there is a particle that is elsewhere.

    """

    def __init__(
        self, cell: jax.Array, offset: jax.Array, used: jax.Array, pencil: Pencil, points: int
    ) -> None:
        wrapped, fraction, somewhere = _located(cell, offset, pencil)
        start = jnp.stack([jnp.asarray(_start(pencil, axis), jnp.int32) for axis in range(3)])
        local = wrapped - start
        block = jnp.asarray(pencil.local_shape, jnp.int32)
        here = somewhere & jnp.all((local >= 0) & (local < block), axis=1)
        rows = offset.shape[0]
        filled = jnp.arange(rows) < used
        self.used = filled & here
        self.lost = jnp.any(filled & ~here) | (used < 0) | (used > rows)
        # Rows of no account have a place in memory, too.
        self._fraction = jnp.where(self.used[:, None], fraction, 0)
        nearest = (self._fraction >= 0.5).astype(jnp.int32) if points == 3 else 0
        self._first = jnp.where(self.used[:, None], local, 0) + nearest
        self._points, self._n2 = points, pencil.global_shape[2]

    def over_points(self, body: Callable[[Point, Any], Any], state: Any) -> Any:
        """`body(point, state)` for one point after the other: a loop over lines along axis 2, so
        that programs stay short, and temporaries are those of a few points at a time.
        """
        n = self._points

        def over_line(line: jax.Array, state: Any) -> Any:
            for k in range(n):
                state = body((line // n, line % n, k), state)
            return state

        return jax.lax.fori_loop(0, n * n, over_line, state)

    def weight(self, point: Point, order: tuple[int, int, int]) -> jax.Array:
        """Of a point, (rows,), differentiated."""
        x, y, z = (
            _spline(self._fraction[:, axis], number, self._points, order[axis])
            for axis, number in enumerate(point)
        )
        return x * y * z

    def at(self, point: Point) -> tuple[slice | jax.Array, ...]:
        """Where it is in a padded field (components, ...), for each row."""
        x, y, z = (self._first[:, axis] + number for axis, number in enumerate(point))
        return slice(None), x, y, (z - (self._points - 2)) % self._n2  # no ghosts along axis 2

    def read(self, field: jax.Array, point: Point) -> jax.Array:
        """The field there: (components, rows)."""
        return field.at[self.at(point)].get(mode="clip", wrap_negative_indices=False)

    def checked(self, y: jax.Array) -> jax.Array:
        """`y`, or NaN where a particle is lost."""
        return jnp.where(self.lost, jnp.nan, y)


def paint(
    cell: jax.Array,
    offset: jax.Array,
    used: jax.Array,
    values: jax.Array,
    *,
    orders: Orders,
    points: int,
    pencil: Pencil,
) -> jax.Array:
    """Values (rows, components, orders) onto the block with its ghosts (components, *padded)."""
    stencil = _Stencil(cell, offset, used, pencil, points)
    values = jnp.where(stencil.used[:, None, None], values, 0)
    x, y, z = pencil.local_shape
    ghosts = 2 * points - 3

    def add(point: Point, field: jax.Array) -> jax.Array:
        share = jnp.zeros(values.shape[1::-1], values.dtype)
        for o, order in enumerate(orders):
            share = share + values[:, :, o].T * stencil.weight(point, order)
        return field.at[stencil.at(point)].add(share, mode="drop", wrap_negative_indices=False)

    field = jnp.zeros((values.shape[1], x + ghosts, y + ghosts, z), values.dtype)
    return stencil.checked(stencil.over_points(add, field))


def readout(
    cell: jax.Array,
    offset: jax.Array,
    used: jax.Array,
    field: jax.Array,
    *,
    orders: Orders,
    points: int,
    pencil: Pencil,
) -> jax.Array:
    """The transpose of `paint`: (rows, components, orders)."""
    stencil = _Stencil(cell, offset, used, pencil, points)

    def add(point: Point, sums: list[jax.Array]) -> list[jax.Array]:
        here = stencil.read(field, point)
        return [y + stencil.weight(point, o) * here for y, o in zip(sums, orders, strict=True)]

    nothing = jnp.zeros((field.shape[0], offset.shape[0]), field.dtype)
    sums = stencil.over_points(add, [nothing] * len(orders))
    values = jnp.stack(sums, axis=-1).swapaxes(0, 1)
    return stencil.checked(jnp.where(stencil.used[:, None, None], values, 0))


_SLOPES: Orders = ((1, 0, 0), (0, 1, 0), (0, 0, 1))


def readout_along(
    cell: jax.Array,
    offset: jax.Array,
    used: jax.Array,
    field: jax.Array,
    displacement: jax.Array,
    *,
    orders: Orders,
    points: int,
    pencil: Pencil,
) -> jax.Array:
    """What a small displacement (rows, 3) changes of `readout`: (rows, components)."""
    del orders
    stencil = _Stencil(cell, offset, used, pencil, points)

    def add(point: Point, values: jax.Array) -> jax.Array:
        x, y, z = (displacement[:, a] * stencil.weight(point, o) for a, o in enumerate(_SLOPES))
        return values + (x + y + z) * stencil.read(field, point)

    nothing = jnp.zeros((field.shape[0], offset.shape[0]), field.dtype)
    values = stencil.over_points(add, nothing)
    return stencil.checked(jnp.where(stencil.used[:, None], values.T, 0))


def readout_across(
    cell: jax.Array,
    offset: jax.Array,
    used: jax.Array,
    field: jax.Array,
    values: jax.Array,
    *,
    orders: Orders,
    points: int,
    pencil: Pencil,
) -> jax.Array:
    """The transpose of `readout_along`: values (rows, components) to displacements (rows, 3)."""
    del orders
    stencil = _Stencil(cell, offset, used, pencil, points)

    def add(point: Point, sums: list[jax.Array]) -> list[jax.Array]:
        together = (values.T * stencil.read(field, point)).sum(0)
        return [
            y + stencil.weight(point, o) * together for y, o in zip(sums, _SLOPES, strict=True)
        ]

    sums = stencil.over_points(add, [jnp.zeros(offset.shape[0], field.dtype)] * 3)
    return stencil.checked(jnp.where(stencil.used[:, None], jnp.stack(sums, axis=-1), 0))


def _owner(cell: jax.Array, n: int, parts: int) -> jax.Array:
    """The part of an axis of n cells, shared out as in `pencils.block`, that has each cell."""
    size, rest = divmod(n, parts)
    longer = rest * (size + 1)  # cells of parts that have one more
    others = rest + (cell - longer) // max(size, 1)
    return jnp.where(cell < longer, cell // (size + 1), others)


def order_by_owner(cell: Any, offset: Any, used: Any, *, pencil: Pencil) -> list[jax.Array]:
    """The rows sorted by the rank that owns their cell, unused ones last, and how many each has.

    Where a position is not finite all counts are -1, which the exchange of counts refuses on every
    rank.
    """
    rows, grid = cell.shape[0], pencil.grid
    wrapped, _, somewhere = _located(cell, offset, pencil)
    part0, part1 = (_owner(wrapped[:, d], pencil.global_shape[d], grid.dims[d]) for d in range(2))
    number = jnp.arange(rows, dtype=jnp.int32)
    filled = number < used
    rank = jnp.where(filled, part0 * grid.dims[1] + part1, grid.size)
    by_rank, order = jax.lax.sort((rank, number), num_keys=1, is_stable=True)
    ends = jnp.searchsorted(by_rank, jnp.arange(grid.size, dtype=rank.dtype), side="right")
    counts = jnp.diff(ends, prepend=0).astype(jnp.int32)
    possible = jnp.all(somewhere | ~filled) & (used >= 0) & (used <= rows)
    return [order, jnp.where(possible, counts, -1)]

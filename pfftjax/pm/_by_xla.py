"""Paint, readout, their derivatives and the order of particles by XLA's scatters, gathers and
sorts: for GPUs, where our own code (cpp/pm/) does not run.

The same sums as there, to rounding; those of `paint` are in an order of XLA's own choice. A kernel
on a GPU cannot end a program with an error: a particle that is not in this rank's block, or nowhere,
makes all of the result NaN.
"""

import itertools
from typing import Any

import jax
import jax.numpy as jnp

from pfftjax.pencils import Pencil
from pfftjax.pencils._coordinate import coordinate

# Offsets that no box has room for, as in cpp/pm/mesh.h.
_MOST = float(1 << 30)

Orders = tuple[tuple[int, int, int], ...]


def _located(
    cell: jax.Array, offset: jax.Array, pencil: Pencil
) -> tuple[jax.Array, jax.Array, jax.Array]:
    """Global cells (rows, 3), fractions of a cell in [0, 1], and which rows have a place at all."""
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


def _spline(fraction: jax.Array, points: int, order: int) -> list[jax.Array]:
    """Weights of the points that a particle reaches along an axis: a B-spline of 2 or 3 points
    (CIC, TSC; Hockney & Eastwood 1988, section 5-3), differentiated `order` times.
    """
    one = jnp.ones_like(fraction)
    if points == 2:
        return [1 - fraction, fraction] if order == 0 else [-one, one]
    d = fraction - (fraction >= 0.5)  # from the nearest point
    if order == 0:
        return [0.5 * (0.5 - d) ** 2, 0.75 - d * d, 0.5 * (0.5 + d) ** 2]
    return [d - 0.5, -2 * d, d + 0.5] if order == 1 else [one, -2 * one, one]


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

    def weights(self, order: tuple[int, int, int]) -> list[list[jax.Array]]:
        """Along each axis, of each point: (rows,)."""
        return [
            _spline(self._fraction[:, axis], self._points, n) for axis, n in enumerate(order)
        ]

    def points(self) -> list[tuple[int, int, int]]:
        """All points, by their numbers along each axis."""
        each = range(self._points)
        return list(itertools.product(each, each, each))

    def index(self, point: tuple[int, int, int]) -> tuple[jax.Array, jax.Array, jax.Array]:
        """Where one of them is in the padded block: (rows,) along each axis."""
        x, y, z = (self._first[:, axis] + n for axis, n in enumerate(point))
        return x, y, (z - (self._points - 2)) % self._n2  # no ghosts along axis 2

    def read(self, field: jax.Array, point: tuple[int, int, int]) -> jax.Array:
        """The field (components, *padded) there: (components, rows)."""
        at = (slice(None), *self.index(point))
        return field.at[at].get(mode="clip", wrap_negative_indices=False)

    def checked(self, y: jax.Array) -> jax.Array:
        """`y`, or NaN where a particle is lost."""
        return jnp.where(self.lost, jnp.nan, y)


def _product(weights: list[list[jax.Array]], point: tuple[int, int, int]) -> jax.Array:
    x, y, z = (of_axis[i] for of_axis, i in zip(weights, point, strict=True))
    return x * y * z


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
    weights = [stencil.weights(order) for order in orders]
    x, y, z = pencil.local_shape
    ghosts = 2 * points - 3
    field = jnp.zeros((values.shape[1], x + ghosts, y + ghosts, z), values.dtype)
    for point in stencil.points():
        share = sum(values[:, :, o].T * _product(w, point) for o, w in enumerate(weights))
        at = (slice(None), *stencil.index(point))
        field = field.at[at].add(share, mode="drop", wrap_negative_indices=False)
    return stencil.checked(field)


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
    weights = [stencil.weights(order) for order in orders]
    nothing = jnp.zeros((field.shape[0], offset.shape[0]), field.dtype)
    sums = [nothing] * len(orders)
    for point in stencil.points():
        here = stencil.read(field, point)
        sums = [y + _product(w, point) * here for y, w in zip(sums, weights, strict=True)]
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
    weights = [stencil.weights(order) for order in _SLOPES]
    values = jnp.zeros((field.shape[0], offset.shape[0]), field.dtype)
    for point in stencil.points():
        slope = sum(displacement[:, a] * _product(w, point) for a, w in enumerate(weights))
        values = values + slope * stencil.read(field, point)
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
    weights = [stencil.weights(order) for order in _SLOPES]
    sums = [jnp.zeros(offset.shape[0], field.dtype)] * 3
    for point in stencil.points():
        together = (values.T * stencil.read(field, point)).sum(0)
        sums = [y + _product(w, point) * together for y, w in zip(sums, weights, strict=True)]
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

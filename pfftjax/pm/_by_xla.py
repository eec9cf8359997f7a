"""Paint, readout, their derivatives and the order of particles by XLA's scatters, gathers and
sorts: where our own code (cpp/pm/, cpp/gpu/) does not run. The order of particles is found so on
GPUs, too.

The same sums as there, to rounding; those of `paint` are in an order of XLA's own choice. A
program that runs on a GPU cannot end with an error of ours: a particle that is not in this rank's
block, or whose position is not finite, makes all of the result NaN, as in our own kernels.
"""

from collections.abc import Callable
from typing import TypeVar

import jax
import jax.numpy as jnp

from pfftjax._runtime.ffi import native
from pfftjax.pencils import Pencil
from pfftjax.pencils.internal import coordinate

from ._assignment import Assignment, weights

# Offsets of so many cells or more are in no box that has room for them.
_MOST = float(native.most_cells)

# Orders of derivative along the axes; SLOPES are the three first derivatives.
Order = tuple[int, int, int]
Orders = tuple[Order, ...]
SLOPES: Orders = ((1, 0, 0), (0, 1, 0), (0, 0, 1))
# The numbers of a mesh point along the axes, among those that a particle reaches.
Point = tuple[jax.Array, jax.Array, int]
State = TypeVar("State")


def _located(
    cell: jax.Array, offset: jax.Array, pencil: Pencil
) -> tuple[jax.Array, jax.Array, jax.Array]:
    """Global cells (rows, 3), fractions of a cell in [0, 1], and which rows are somewhere."""
    somewhere = jnp.all(jnp.abs(offset) < _MOST, axis=1)  # not NaN either
    offset = jnp.where(somewhere[:, None], offset, 0)
    whole = jnp.floor(offset)
    shape = jnp.asarray(pencil.global_shape, jnp.int32)
    # Both are brought into the box before they are added, so that 32 bits hold the sum.
    wrapped = (cell % shape + whole.astype(jnp.int32) % shape) % shape
    return wrapped, offset - whole, somewhere


def _start(pencil: Pencil, axis: int) -> jax.Array | int:
    """Global index of this rank's first cell. It is read when the program runs, as all ranks have
    the same program.
    """
    if axis == 2 or pencil.grid.dims[axis] == 1:
        return 0
    size, rest = divmod(pencil.global_shape[axis], pencil.grid.dims[axis])
    part = coordinate(pencil.grid.along(axis))
    return part * size + jnp.minimum(part, rest)


class _Stencil:
    """The mesh points near each particle, in the block with its ghosts.

    Attributes:
        used: bool (rows,), the rows that hold particles of this block.
        lost: bool, whether there is a particle that is elsewhere.
        rows: how many rows there are.
        padded: shape of the block with its ghosts.

    """

    def __init__(
        self,
        cell: jax.Array,
        offset: jax.Array,
        used: jax.Array,
        pencil: Pencil,
        assignment: Assignment,
    ) -> None:
        wrapped, fraction, somewhere = _located(cell, offset, pencil)
        start = jnp.stack([jnp.asarray(_start(pencil, axis), jnp.int32) for axis in range(3)])
        local = wrapped - start
        block = jnp.asarray(pencil.local_shape, jnp.int32)
        here = somewhere & jnp.all((local >= 0) & (local < block), axis=1)
        self.rows = offset.shape[0]
        filled = jnp.arange(self.rows) < used
        self.used = filled & here
        self.lost = jnp.any(filled & ~here) | (used < 0) | (used > self.rows)
        # Unused rows are computed as well, and so need a place in the block.
        first, self._rest = assignment.placed(jnp.where(self.used[:, None], fraction, 0))
        self._first = jnp.where(self.used[:, None], local, 0) + first
        self._assignment, self._n2 = assignment, pencil.global_shape[2]
        self.padded = assignment.padded(pencil)

    def over_points(self, body: Callable[[Point, State], State], state: State) -> State:
        """`body(point, state)` for one point after the other: a loop over lines along axis 2, so
        that programs stay short, and temporaries are those of a few points at a time.
        """
        n = self._assignment.points

        def over_line(line: jax.Array, state: State) -> State:
            for k in range(n):
                state = body((line // n, line % n, k), state)
            return state

        return jax.lax.fori_loop(0, n * n, over_line, state)

    def weight(self, point: Point, order: Order) -> jax.Array:
        """The weight of a point for each row, or a derivative of it: (rows,)."""
        x, y, z = (
            _chosen(
                weights(self._rest[:, axis], self._assignment.points, order[axis]), point[axis]
            )
            for axis in range(3)
        )
        return x * y * z

    def at(self, point: Point) -> tuple[slice | jax.Array, ...]:
        """The index of a point in a padded field (components, ...), for each row."""
        x, y, z = (self._first[:, axis] + number for axis, number in enumerate(point))
        before = self._assignment.before
        return slice(None), x + before, y + before, z % self._n2  # no ghosts along axis 2

    def read(self, field: jax.Array, point: Point) -> jax.Array:
        """The field there: (components, rows)."""
        return field.at[self.at(point)].get(mode="clip", wrap_negative_indices=False)

    def checked(self, y: jax.Array) -> jax.Array:
        """`y`, or NaN where a particle is lost."""
        return jnp.where(self.lost, jnp.nan, y)


def _chosen(values: list[jax.Array], number: jax.Array | int) -> jax.Array:
    """The value of that number."""
    *others, chosen = values
    for i, value in reversed([*enumerate(others)]):
        chosen = jnp.where(number == i, value, chosen)
    return chosen


def _of_particles(function: Callable[..., jax.Array]) -> Callable[..., jax.Array]:
    """`function` of a stencil, an operand or two and the orders of derivative, in the form in
    which a primitive is lowered.
    """

    def by_xla(
        cell: jax.Array,
        offset: jax.Array,
        used: jax.Array,
        *operands: jax.Array,
        orders: Orders,
        assignment: Assignment,
        pencil: Pencil,
    ) -> jax.Array:
        return function(_Stencil(cell, offset, used, pencil, assignment), *operands, orders)

    return by_xla


@_of_particles
def paint(stencil: _Stencil, values: jax.Array, orders: Orders) -> jax.Array:
    """Values (rows, components, orders) onto the block with its ghosts (components, *padded)."""
    values = jnp.where(stencil.used[:, None, None], values, 0)

    def add(point: Point, field: jax.Array) -> jax.Array:
        share = jnp.zeros(values.shape[1::-1], values.dtype)
        for o, order in enumerate(orders):
            share = share + values[:, :, o].T * stencil.weight(point, order)
        return field.at[stencil.at(point)].add(share, mode="drop", wrap_negative_indices=False)

    field = jnp.zeros((values.shape[1], *stencil.padded), values.dtype)
    return stencil.checked(stencil.over_points(add, field))


@_of_particles
def readout(stencil: _Stencil, field: jax.Array, orders: Orders) -> jax.Array:
    """The transpose of `paint`: (rows, components, orders)."""

    def add(point: Point, sums: list[jax.Array]) -> list[jax.Array]:
        here = stencil.read(field, point)
        return [y + stencil.weight(point, o) * here for y, o in zip(sums, orders, strict=True)]

    nothing = jnp.zeros((field.shape[0], stencil.rows), field.dtype)
    sums = stencil.over_points(add, [nothing] * len(orders))
    values = jnp.stack(sums, axis=-1).swapaxes(0, 1)
    return stencil.checked(jnp.where(stencil.used[:, None, None], values, 0))


@_of_particles
def readout_along(
    stencil: _Stencil, field: jax.Array, displacement: jax.Array, _: Orders
) -> jax.Array:
    """The change of `readout` along a small displacement (rows, 3): (rows, components)."""

    def add(point: Point, values: jax.Array) -> jax.Array:
        x, y, z = (displacement[:, a] * stencil.weight(point, o) for a, o in enumerate(SLOPES))
        return values + (x + y + z) * stencil.read(field, point)

    nothing = jnp.zeros((field.shape[0], stencil.rows), field.dtype)
    values = stencil.over_points(add, nothing)
    return stencil.checked(jnp.where(stencil.used[:, None], values.T, 0))


@_of_particles
def readout_across(stencil: _Stencil, field: jax.Array, values: jax.Array, _: Orders) -> jax.Array:
    """The transpose of `readout_along`: values (rows, components) to displacements (rows, 3)."""

    def add(point: Point, sums: list[jax.Array]) -> list[jax.Array]:
        together = (values.T * stencil.read(field, point)).sum(0)
        return [y + stencil.weight(point, o) * together for y, o in zip(sums, SLOPES, strict=True)]

    sums = stencil.over_points(add, [jnp.zeros(stencil.rows, field.dtype)] * 3)
    return stencil.checked(jnp.where(stencil.used[:, None], jnp.stack(sums, axis=-1), 0))


def _owner(cell: jax.Array, n: int, parts: int) -> jax.Array:
    """The part of an axis of n cells, shared out as in `pencils.block`, that has each cell."""
    size, rest = divmod(n, parts)
    longer = rest * (size + 1)  # cells of parts that have one more
    others = rest + (cell - longer) // max(size, 1)
    return jnp.where(cell < longer, cell // (size + 1), others)


def by_rank(rank: jax.Array, ranks: int) -> tuple[jax.Array, jax.Array]:
    """The rows sorted by a rank that each has, and how many each has; those of none come last, and
    have the number of ranks.
    """
    number = jnp.arange(rank.shape[0], dtype=jnp.int32)
    sorted_rank, order = jax.lax.sort((rank, number), num_keys=1, is_stable=True)
    ends = jnp.searchsorted(sorted_rank, jnp.arange(ranks, dtype=rank.dtype), side="right")
    return order, jnp.diff(ends, prepend=0).astype(jnp.int32)


def order_by_owner(
    cell: jax.Array, offset: jax.Array, used: jax.Array, *, pencil: Pencil
) -> list[jax.Array]:
    """The rows sorted by the rank that owns their cell, unused ones last, and how many each has.

    Where a position is not finite all counts are -1, which the exchange of counts refuses on every
    rank.
    """
    rows, grid = cell.shape[0], pencil.grid
    wrapped, _, somewhere = _located(cell, offset, pencil)
    part0, part1 = (_owner(wrapped[:, d], pencil.global_shape[d], grid.dims[d]) for d in range(2))
    filled = jnp.arange(rows) < used
    order, counts = by_rank(jnp.where(filled, part0 * grid.dims[1] + part1, grid.size), grid.size)
    possible = jnp.all(somewhere | ~filled) & (used >= 0) & (used <= rows)
    return [order, jnp.where(possible, counts, -1)]

"""Paint, readout and their derivatives by XLA's scatters and gathers.

They are a second way to the same sums, to rounding, beside which the tests put our own. A particle
that is not in this rank's block, or whose position is not finite, makes all of the result NaN, as
in the kernels of GPUs.
"""

import functools
import itertools

import jax.numpy as jnp

from pfftjax.pencils.internal import coordinate
from pfftjax.pm._exchange import located
from pfftjax.pm._painting import SLOPES


def weights(rest, points, order):
    """The weight of each point that a particle reaches, differentiated `order` times.

    By the recursion of de Boor (1978, chapter X): a spline is a mean of two that have a point
    less, and its derivative their difference.
    """
    if points == 1:
        return [jnp.ones_like(rest)]
    nothing = jnp.zeros_like(rest)
    fewer = [nothing, *weights(rest, points - 1, max(order - 1, 0)), nothing]
    sides = itertools.pairwise(fewer)
    if order > 0:
        return [left - right for left, right in sides]
    return [
        ((rest + (points - 1 - i)) * left + ((1 + i) - rest) * right) / (points - 1)
        for i, (left, right) in enumerate(sides)
    ]


def _start(pencil, axis):
    """Global index of this rank's first cell, read when the program runs."""
    if axis == 2 or pencil.grid.dims[axis] == 1:
        return 0
    size, rest = divmod(pencil.global_shape[axis], pencil.grid.dims[axis])
    part = coordinate(pencil.grid.along(axis))
    return part * size + jnp.minimum(part, rest)


class _Stencil:
    """The mesh points near each particle, in the block with its ghosts."""

    def __init__(self, cell, offset, used, pencil, assignment):
        wrapped, fraction, is_somewhere = located(cell, offset, pencil)
        local = wrapped - jnp.stack(
            [jnp.asarray(_start(pencil, axis), jnp.int32) for axis in range(3)]
        )
        block = jnp.asarray(pencil.local_shape, jnp.int32)
        is_here = is_somewhere & jnp.all((local >= 0) & (local < block), axis=1)
        self.rows = offset.shape[0]
        is_filled = jnp.arange(self.rows) < used
        self.used = is_filled & is_here
        self.is_lost = jnp.any(is_filled & ~is_here) | (used < 0) | (used > self.rows)
        # The first point, counted from the particle's cell, and the rest of the way in [0, 1].
        whole, is_by_half = divmod(assignment.shift + 2 - assignment.points, 2)
        fraction = jnp.where(self.used[:, None], fraction, 0)
        is_upper = fraction >= (0.5 if is_by_half else 2.0)
        self.rest = fraction + jnp.where(is_upper, -0.5, 0.5) if is_by_half else fraction
        self.first = jnp.where(self.used[:, None], local, 0) + whole + is_upper
        self.assignment, self.n2 = assignment, pencil.global_shape[2]
        self.padded = assignment.padded(pencil)

    def points(self):
        return itertools.product(range(self.assignment.points), repeat=3)

    def weight(self, point, order):
        """The weight of a point for each row, or a derivative of it: (rows,)."""
        x, y, z = (
            weights(self.rest[:, axis], self.assignment.points, order[axis])[point[axis]]
            for axis in range(3)
        )
        return x * y * z

    def at(self, point):
        """The index of a point in a padded field (components, ...), for each row."""
        x, y, z = (self.first[:, axis] + number for axis, number in enumerate(point))
        before = self.assignment.before
        return slice(None), x + before, y + before, z % self.n2  # no ghosts along axis 2

    def sums(self, field, term):
        """The sum over points of a term of each point and the field there (components, rows)."""
        return sum(
            term(point, field.at[self.at(point)].get(mode="clip")) for point in self.points()
        )

    def given(self, y):
        """A result of each row: zero in unused rows, NaN where a particle is lost."""
        y = jnp.where(self.used.reshape(-1, *[1] * (y.ndim - 1)), y, 0)
        return jnp.where(self.is_lost, jnp.nan, y)


def _of_particles(function):
    """`function` of a stencil, operands and orders, as the primitives are called."""

    @functools.wraps(function)
    def by_xla(cell, offset, used, *operands, orders, assignment, pencil):
        return function(_Stencil(cell, offset, used, pencil, assignment), *operands, orders)

    return by_xla


@_of_particles
def paint(stencil, values, orders):
    """Values (rows, components, orders) onto the block with its ghosts (components, *padded)."""
    values = jnp.where(stencil.used[:, None, None], values, 0)
    field = jnp.zeros((values.shape[1], *stencil.padded), values.dtype)
    for point in stencil.points():
        shares = [values[:, :, o].T * stencil.weight(point, x) for o, x in enumerate(orders)]
        field = field.at[stencil.at(point)].add(sum(shares), mode="drop")
    return jnp.where(stencil.is_lost, jnp.nan, field)


@_of_particles
def readout(stencil, field, orders):
    """The transpose of `paint`: (rows, components, orders)."""
    values = [
        stencil.sums(field, lambda point, here, o=order: stencil.weight(point, o) * here)
        for order in orders
    ]
    return stencil.given(jnp.stack(values, axis=-1).swapaxes(0, 1))


@_of_particles
def readout_along(stencil, field, displacement, _):
    """The change of `readout` along a small displacement (rows, 3): (rows, components)."""

    def term(point, here):
        return here * sum(
            displacement[:, a] * stencil.weight(point, o) for a, o in enumerate(SLOPES)
        )

    return stencil.given(stencil.sums(field, term).T)


@_of_particles
def readout_across(stencil, field, values, _):
    """The transpose of `readout_along`: values (rows, components) to displacements (rows, 3)."""
    slopes = [
        stencil.sums(
            field, lambda point, here, o=o: stencil.weight(point, o) * (values.T * here).sum(0)
        )
        for o in SLOPES
    ]
    return stencil.given(jnp.stack(slopes, axis=-1))

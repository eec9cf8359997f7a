"""The search for those copies of particles that light passes on its way to an observer.

It goes on from a cursor and finds a limited number at a time, so that no number is too large. On
CPUs a handler (cpp/pm/light.cc) searches a few hundred rows in all copies of the box at a time.
Elsewhere blocks of rows are tested against one copy after the other, which is cheap, and those
that may have somebody are gathered.
"""

import functools
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.core import ShapedArray
from jax.extend.core import Primitive
from jax.interpreters import batching, mlir

from pfftjax._runtime.arrays import Displacements, Reals, Scalar, Vectors
from pfftjax._runtime.primitive import by_platform, constant, local
from pfftjax.pm.internal import Passage, largest_of_columns, one_by_one

# Neighbouring rows that are tested together.
_ROWS = 8
# Blocks that are gathered together: at least so many, and one of so many of all.
_LEAST_BLOCKS, _BLOCKS_OVER_GATHERED = 32, 32


class Found(NamedTuple):
    """Particles that light passes.

    Attributes:
        row: (room,), where each is among the particles, and no row of them where there is nobody.
        copy: (room,), the number of its copy of the box.
        number: how many there are, in front of the others.
        cursor: where the search goes on, negative where nobody is left.

    """

    row: jax.Array
    copy: jax.Array
    number: jax.Array
    cursor: jax.Array


class Search(NamedTuple):
    """What is searched: the operands of the operation that finds the next ones.

    Attributes:
        place: (rows, 3), from the observer, in the box's own copy [Mpc/h].
        momentum: (rows, 3).
        pull: (rows, 3), the force.
        displacements: (rows, 2, 3), or (rows, 0, 3).
        shifts: (copies, 3), those of the box that can be met first.
        met: how many these are.
        numbers: (16,), `near` and `far` of the passage, the smallest and the largest distance that
            is on the maps, and `Passage.ways`.
        margin: no particle goes farther from its place. Where a handler searches it is zero.
        used: how many rows are particles.

    """

    place: Vectors
    momentum: Vectors
    pull: Vectors
    displacements: jax.Array
    shifts: Reals
    met: jax.Array
    numbers: Reals
    margin: Scalar
    used: jax.Array

    @classmethod
    def among(
        cls,
        place: Vectors,
        momentum: Vectors,
        pull: Vectors,
        displacements: Displacements | None,
        passage: Passage,
        used: jax.Array,
        shifts: np.ndarray,
        ends: tuple[float, float],
    ) -> "Search":
        """The search of a passage among particles."""
        if displacements is None:
            displacements = jnp.zeros((place.shape[0], 0, 3), place.dtype)
        among = place, momentum, pull, displacements, passage
        place, momentum, pull, displacements, passage = jax.lax.stop_gradient(among)
        on_maps = jnp.asarray(ends, place.dtype)
        numbers = [jnp.stack([passage.near, passage.far]), on_maps, passage.ways().ravel()]
        leaves, structure = jax.tree.flatten(passage)
        shift = jnp.asarray(shifts, place.dtype)
        moving = momentum, pull, displacements
        margin, shift, met = _prepare_p.bind(
            place, *moving, shift, used, on_maps, *leaves, structure=structure
        )
        return cls(place, *moving, shift, met, jnp.concatenate(numbers), margin, used)

    @property
    def room(self) -> int:
        """How many are found at a time."""
        blocks = -(-self.place.shape[0] // _ROWS)
        return _ROWS * min(blocks, max(_LEAST_BLOCKS, blocks // _BLOCKS_OVER_GATHERED))

    def go_on(self, cursor: jax.Array) -> Found:
        """The next ones."""
        return Found(*_find_p.bind(*self, cursor, room=self.room))


START = np.zeros(3, np.int32)


def _bounds(passage: Passage, on_maps: Reals, margin: Scalar) -> tuple[Scalar, Scalar]:
    """Between these distances is each that light passes, at its place."""
    low = jnp.maximum(passage.near, on_maps[0]) - margin
    high = jnp.minimum(passage.far, on_maps[1]) + margin
    # Rounding must not leave anybody out.
    return jnp.maximum(low * (1 - 1e-5), 0), high * (1 + 1e-5)


def _prepared_by_xla(
    place: Vectors,
    momentum: Vectors,
    pull: Vectors,
    displacements: jax.Array,
    shifts: Reals,
    used: jax.Array,
    on_maps: Reals,
    *leaves: jax.Array,
    structure: Any,
) -> tuple[Scalar, Reals, jax.Array]:
    """The margin, and in front those copies of the rows' particles that come near the sphere."""
    passage: Passage = jax.tree.unflatten(structure, leaves)
    margin = passage.farthest(momentum, pull, displacements if displacements.size else None)
    low, high = _bounds(passage, on_maps, margin)
    is_used = jnp.arange(place.shape[0]) < used
    below_all = -jnp.asarray(jnp.finfo(place.dtype).max, place.dtype)
    most, minus_least = (
        largest_of_columns(jnp.where(is_used[:, None], x, below_all)) for x in (place, -place)
    )
    least = -minus_least
    nearest = jnp.maximum(0, jnp.maximum(least + shifts, -(most + shifts)))
    corner = jnp.maximum(jnp.abs(least + shifts), jnp.abs(most + shifts))
    is_met = ((nearest**2).sum(1) <= high**2) & ((corner**2).sum(1) >= low**2) & (low <= high)
    is_met &= used > 0
    order = jnp.nonzero(is_met, size=shifts.shape[0], fill_value=0)[0]
    return margin, shifts[order], is_met.sum(dtype=jnp.int32)


def _prepared_for_handler(
    place: Vectors, *operands: jax.Array, structure: Any
) -> tuple[Scalar, Reals, jax.Array]:
    """The same for the handler, which finds out by itself what comes near."""
    shifts = operands[3]
    return jnp.zeros((), place.dtype), shifts, jnp.int32(shifts.shape[0])


def _found_by_xla(
    place: Vectors,
    momentum: Vectors,
    pull: Vectors,
    displacements: jax.Array,
    shifts: Reals,
    met: jax.Array,
    numbers: Reals,
    margin: Scalar,
    used: jax.Array,
    cursor: jax.Array,
    *,
    room: int,
) -> Found:
    """Those of a number of blocks in one copy."""
    number, first = cursor[0], cursor[1]
    rows, size, shift = place.shape[0], room // _ROWS, shifts[number]
    (near, far), ways = numbers[:2], numbers[4:].reshape(4, 3)
    passage = Passage(near, far, ways[0], ways[1], None)
    low, high = _bounds(passage, numbers[2:4], margin)
    square = sum((place[:, axis] + shift[axis]) ** 2 for axis in range(3))
    may_be = (jnp.arange(rows) < used) & (square >= low**2) & (square <= high**2) & (number < met)
    blocks = -(-rows // _ROWS)
    may_be = jnp.pad(may_be, (0, blocks * _ROWS - rows)).reshape(blocks, _ROWS).any(1)
    order, candidates = _in_front(may_be, size)
    block = jax.lax.dynamic_slice_in_dim(order, first * size, size)
    row = (block[:, None] * _ROWS + jnp.arange(_ROWS, dtype=jnp.int32)).reshape(-1)

    at = jnp.minimum(row, rows - 1)
    moving = [momentum[at], pull[at], *jnp.moveaxis(displacements[at], 1, 0)]
    begin, end = (
        place[at] + shift + sum(ways[n, which] * x for n, x in enumerate(moving))
        for which in (1, 0)
    )
    is_passed = (row < used) & ((begin**2).sum(1) <= far**2) & ((end**2).sum(1) > near**2)
    front, count = _in_front(is_passed, 0)
    passed = jnp.where(jnp.arange(room) < count, row[jnp.minimum(front, room - 1)], rows)
    is_more = (first + 1) * size < candidates
    following = jnp.stack([number, first + 1, jnp.int32(0)])
    of_next = jnp.stack([jnp.where(number + 1 < met, number + 1, -1), jnp.int32(0), jnp.int32(0)])
    copy = jnp.broadcast_to(number, (room,))
    return Found(passed, copy, count, jnp.where(is_more, following, of_next))


def _in_front(is_one: jax.Array, room: int) -> tuple[jax.Array, jax.Array]:
    """The places where there is one, in front of `room` others that are none, and how many.

    It does what jnp.nonzero does, whose sums of all at few places take long on GPUs.
    """
    n = is_one.size
    at = jnp.where(is_one, jnp.cumsum(is_one, dtype=jnp.int32) - 1, n + room)
    places = jnp.full(n + room, n, jnp.int32)
    places = places.at[at].set(jnp.arange(n, dtype=jnp.int32), mode="drop")
    return places, is_one.sum(dtype=jnp.int32)


def _int32(*shape: int) -> ShapedArray:
    return ShapedArray(shape, jnp.int32)


def _batched_one_by_one(primitive: Primitive) -> None:
    constant(primitive)
    batching.primitive_batchers[primitive] = functools.partial(one_by_one, primitive)


# `Search.place` to `.displacements`, shifts, used, distances on the maps, and the leaves of a
# passage -> margin, shifts, met
_prepare_p = local(
    "light_prepared",
    lambda place, p, f, d, shifts, *_, structure: [
        ShapedArray((), place.dtype),
        shifts,
        _int32(),
    ],
    multiple_results=True,
)
mlir.register_lowering(
    _prepare_p,
    by_platform(
        mlir.lower_fun(_prepared_for_handler, multiple_results=True),
        mlir.lower_fun(_prepared_by_xla, multiple_results=True),
    ),
)
_batched_one_by_one(_prepare_p)

# a `Search` and a cursor -> `Found`
_find_p = local(
    "light_passed",
    lambda *_, room: [_int32(room), _int32(room), _int32(), _int32(3)],
    lambda **_: {},
    _found_by_xla,
    multiple_results=True,
)
_batched_one_by_one(_find_p)

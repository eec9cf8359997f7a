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
from jax.interpreters import batching, mlir

from pfftjax._runtime.arrays import Displacements, Reals, Vectors
from pfftjax._runtime.primitive import by_platform, local
from pfftjax._runtime.rules import constant
from pfftjax.pm.internal import Passage, one_by_one

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
        passage: (14,), its `near`, `far`, and `ways`.
        shifts: (copies, 3), those of the box that can be met first.
        met: how many these are.
        within: (2,), the distances of the maps; where XLA searches, those between which is the
            place of whoever is passed at these.
        used: how many rows are particles.

    """

    place: Vectors
    momentum: Vectors
    pull: Vectors
    displacements: jax.Array
    passage: Reals
    shifts: Reals
    met: jax.Array
    within: Reals
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
        """The search of a passage among particles, for who is passed between two distances."""
        dtype = place.dtype
        if displacements is None:
            displacements = jnp.zeros((place.shape[0], 0, 3), dtype)
        numbers = jnp.concatenate([jnp.stack([passage.near, passage.far]), passage.ways().ravel()])
        moving = jax.lax.stop_gradient((place, momentum, pull, displacements, numbers))
        given = cls(
            *moving,
            jnp.asarray(shifts, dtype),
            jnp.int32(len(shifts)),
            jnp.asarray(ends, dtype),
            used,
        )
        shift, met, within = _prepare_p.bind(*given)
        return given._replace(shifts=shift, met=met, within=within)

    @property
    def room(self) -> int:
        """How many are found at a time."""
        blocks = -(-self.place.shape[0] // _ROWS)
        return _ROWS * min(blocks, max(_LEAST_BLOCKS, blocks // _BLOCKS_OVER_GATHERED))

    def go_on(self, cursor: jax.Array) -> Found:
        """The next ones."""
        return Found(*_find_p.bind(*self, cursor, room=self.room))


START = np.zeros(3, np.int32)


def prepared_by_xla(search: Search) -> tuple[Reals, jax.Array, Reals]:
    """`Search.shifts`, `.met` and `.within`: the copies of the rows' particles that come near the
    sphere are in front.
    """
    (near, far), ways = search.passage[:2], search.passage[2:].reshape(4, 3)
    moving = search.momentum, search.pull, *jnp.moveaxis(search.displacements, 1, 0)
    # From its place to where it is when light comes from `far`, and from there to anywhere else.
    margin = sum(
        (jnp.abs(to_far) + reach) * jnp.sqrt((_largest_of_columns(jnp.abs(x)) ** 2).sum())
        for (_, to_far, reach), x in zip(ways, moving, strict=False)
    )
    # Rounding must not leave anybody out.
    low = jnp.maximum((jnp.maximum(near, search.within[0]) - margin) * (1 - 1e-5), 0)
    high = (jnp.minimum(far, search.within[1]) + margin) * (1 + 1e-5)

    place, shifts = search.place, search.shifts
    is_used = (jnp.arange(place.shape[0]) < search.used)[:, None]
    below_all = -jnp.asarray(jnp.finfo(place.dtype).max, place.dtype)
    most, minus_least = (
        _largest_of_columns(jnp.where(is_used, x, below_all)) for x in (place, -place)
    )
    least = -minus_least
    nearest = jnp.maximum(0, jnp.maximum(least + shifts, -(most + shifts)))
    corner = jnp.maximum(jnp.abs(least + shifts), jnp.abs(most + shifts))
    is_met = ((nearest**2).sum(1) <= high**2) & ((corner**2).sum(1) >= low**2) & (low <= high)
    is_met &= search.used > 0
    order = jnp.nonzero(is_met, size=shifts.shape[0], fill_value=0)[0]
    return shifts[order], is_met.sum(dtype=jnp.int32), jnp.stack([low, high])


def found_by_xla(search: Search, cursor: jax.Array, room: int) -> Found:
    """Those of a number of blocks in one copy."""
    number, first = cursor[0], cursor[1]
    place, used, (low, high) = search.place, search.used, search.within
    (near, far), ways = search.passage[:2], search.passage[2:].reshape(4, 3)
    rows, size, shift = place.shape[0], room // _ROWS, search.shifts[number]
    square = sum((place[:, axis] + shift[axis]) ** 2 for axis in range(3))
    may_be = (square >= low**2) & (square <= high**2) & (jnp.arange(rows) < used)
    may_be &= number < search.met
    blocks = -(-rows // _ROWS)
    may_be = jnp.pad(may_be, (0, blocks * _ROWS - rows)).reshape(blocks, _ROWS).any(1)
    order, candidates = _in_front(may_be, size)
    block = jax.lax.dynamic_slice_in_dim(order, first * size, size)
    row = (block[:, None] * _ROWS + jnp.arange(_ROWS, dtype=jnp.int32)).reshape(-1)

    at = jnp.minimum(row, rows - 1)
    moving = search.momentum[at], search.pull[at], *jnp.moveaxis(search.displacements[at], 1, 0)
    at_near, at_far = (
        place[at]
        + shift
        + sum(factor * x for factor, x in zip(ways[:, end], moving, strict=False))
        for end in range(2)
    )
    is_passed = (row < used) & ((at_far**2).sum(1) <= far**2) & ((at_near**2).sum(1) > near**2)
    front, count = _in_front(is_passed, 0)
    passed = jnp.where(jnp.arange(room) < count, row[jnp.minimum(front, room - 1)], rows)
    is_more = (first + 1) * size < candidates
    following = jnp.stack([number, first + 1])
    of_next = jnp.stack([jnp.where(number + 1 < search.met, number + 1, -1), jnp.int32(0)])
    cursor = jnp.append(jnp.where(is_more, following, of_next), jnp.int32(0))
    return Found(passed, jnp.broadcast_to(number, (room,)), count, cursor)


def _in_front(is_one: jax.Array, room: int) -> tuple[jax.Array, jax.Array]:
    """The places where there is one, in front of `room` others that are none, and how many.

    It does what jnp.nonzero does, whose sums of all at few places take long on GPUs.
    """
    n = is_one.size
    at = jnp.where(is_one, jnp.cumsum(is_one, dtype=jnp.int32) - 1, n + room)
    places = jnp.full(n + room, n, jnp.int32)
    places = places.at[at].set(jnp.arange(n, dtype=jnp.int32), mode="drop")
    return places, is_one.sum(dtype=jnp.int32)


def _largest_of_columns(x: Reals) -> Reals:
    """(columns,), the largest number in each column of (rows, columns).

    XLA takes long over narrow columns: rows lie 32 side by side.
    """
    rows, columns = x.shape
    whole = rows - rows % 32
    side_by_side = x[:whole].reshape(-1, 32 * columns)
    parts = [side_by_side.max(0).reshape(-1, columns)] if whole else []
    return jnp.concatenate([*parts, x[whole:]]).max(0, initial=-jnp.inf)


def _int32(*shape: int) -> ShapedArray:
    return ShapedArray(shape, jnp.int32)


def _as_given(*operands: Any) -> list:
    """What the handler, which finds out by itself what comes near, is to have of it."""
    search = Search(*operands)
    return [search.shifts, search.met, search.within]


# a `Search` -> its shifts, met and within
_prepare_p = local("light_prepared", _as_given, multiple_results=True)
mlir.register_lowering(
    _prepare_p,
    by_platform(
        mlir.lower_fun(_as_given, multiple_results=True),
        mlir.lower_fun(lambda *search: prepared_by_xla(Search(*search)), multiple_results=True),
    ),
)

# a `Search` and a cursor -> `Found`
_find_p = local(
    "light_passed",
    lambda *_, room: [_int32(room), _int32(room), _int32(), _int32(3)],
    lambda **_: {},
    lambda *operands, room: found_by_xla(Search(*operands[:-1]), operands[-1], room),
    multiple_results=True,
)

for primitive in (_prepare_p, _find_p):
    constant(primitive)
    batching.primitive_batchers[primitive] = functools.partial(one_by_one, primitive)

"""Which particles light passes on its way to an observer, where, and how maps are made of them.

A passage is an interval of distances. In it every copy of a particle in the periodic universe that
comes to lie between light and observer is passed once: it is inside of the sphere from which light
comes when the passage begins, and outside when it ends.

They are found some at a time (`_search`), and deposited. Loops end where they have seen all, so
that no number of particles is too large. Reverse mode goes through the same loops again: nothing
is kept of them.
"""

import itertools
import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, TypeVar, cast

import jax
import jax.numpy as jnp
import numpy as np
from jax.typing import DTypeLike

from pfftjax._runtime.arrays import Displacements, PyTree, Reals, Vectors
from pfftjax.autodiff.internal import differentiated_by_hand
from pfftjax.pm.internal import Passage, each_by_itself

from ._search import START, Search

# Particles that are deposited together: at least so many, and one of so many for which the search
# has room.
_LEAST_DEPOSITED, _FOUND_OVER_DEPOSITED = 8, 4
# Light is so much faster than particles that each iteration gains three digits.
_ITERATIONS = 2

_Carry = TypeVar("_Carry", bound=PyTree)
_Result = TypeVar("_Result", bound=PyTree)
# (distance from the observer, vector from there) of particles -> indices of a map's two axes, and
# what is added to it there.
Deposit = Callable[[Reals, Vectors], tuple[jax.Array, jax.Array, jax.Array]]


class Passed(NamedTuple):
    """Particles in a passage, as far as they can be differentiated.

    Attributes:
        place: (rows, 3), from the observer, in the box's own copy [Mpc/h].
        momentum: (rows, 3).
        pull: (rows, 3), the force on them.
        displacements: (rows, 2, 3), or None.
        passage: how they go through it.

    """

    place: Vectors
    momentum: Vectors
    pull: Vectors
    displacements: Displacements | None
    passage: Passage

    @property
    def of_rows(self) -> tuple:
        """What has a row for each particle."""
        return self.place, self.momentum, self.pull, self.displacements

    def with_rows(self, of_rows: tuple, passage: Passage) -> "Passed":
        """Others in their place."""
        place, momentum, pull, displacements = of_rows
        return Passed(place, momentum, pull, displacements, passage)


def copies(sides: Sequence[float], observer: Sequence[float], farthest: float) -> np.ndarray:
    """(copies, 3) shifts of the box whose particles may come within a distance of the observer.

    In a passage a particle goes less far than half of the shortest side.
    """
    reach = farthest + min(sides) / 2
    numbers = [
        range(-math.ceil((reach - o) / side) - 1, math.ceil((reach + o) / side) + 1)
        for side, o in zip(sides, observer, strict=True)
    ]
    shifts = np.array(list(itertools.product(*numbers))) * np.asarray(sides)
    low = shifts - np.asarray(observer)
    gap = np.maximum(0, np.maximum(low, -(low + np.asarray(sides))))
    return shifts[(gap**2).sum(1) <= reach**2]


def added(
    maps: Reals,
    passed: Passed,
    used: jax.Array,
    shifts: np.ndarray,
    ends: tuple[float, float],
    deposit: Deposit,
    *,
    shares: int,
) -> Reals:
    """Maps (shells, pixels), and what light deposits on them of the first `used` rows.

    Args:
        maps: to which is added.
        passed: the particles.
        used: how many rows are particles.
        shifts: (copies, 3).
        ends: the smallest and the largest distance that is on the maps.
        deposit: of particles that are passed.
        shares: between how many places of the maps a particle is shared; in one place only it has
            no derivative.

    Raises:
        TypeError: a derivative of what has none, which would be silently zero.

    """

    def deposited(passed: Passed, used: jax.Array, maps: Reals) -> Reals:
        def body(maps: Reals, at: "_Chunk", _: jax.Array) -> Reals:
            shell, pixel, value = _values(at, passed.passage, deposit, shares)
            return maps.at[shell, pixel].add(value, mode="drop")

        return _over_passed(body, maps, passed, used, shifts, ends)

    def backward(
        passed: Passed, used: jax.Array, _: object, to_maps: Reals, vjp: Callable
    ) -> Passed:
        def body(to: Passed, at: "_Chunk", rows: jax.Array) -> Passed:
            def values(of_rows: tuple, passage: Passage) -> jax.Array:
                return _values(at.on(of_rows), passage, deposit, shares)[2]

            shell, pixel, _ = _values(at, passed.passage, deposit, shares)
            _, back = vjp(values, at.of_rows, passed.passage)
            got = to_maps.at[shell, pixel].get(mode="fill", fill_value=0)
            to_rows, to_passage = back(got)
            summed = jax.tree.map(
                lambda x, more: x.at[rows].add(more, mode="drop"), to.of_rows, to_rows
            )
            return to.with_rows(summed, jax.tree.map(jnp.add, to.passage, to_passage))

        return _over_passed(body, jax.tree.map(jnp.zeros_like, passed), passed, used, shifts, ends)

    alone = differentiated_by_hand(
        lambda passed, used: (deposited(passed, used, jnp.zeros_like(maps)), ()),
        # Only derivatives are taken of it: where they are, its value is not computed.
        lambda passed, used: ((jnp.zeros_like(maps), ()), ()),
        backward,
    )

    # The maps to which is added are no operand of the derivative, which would keep them.
    function: Any = jax.custom_jvp(lambda maps, passed, used: deposited(passed, used, maps))

    @function.defjvp
    def _(primals: tuple, tangents: tuple) -> tuple[Reals, Reals]:
        if shares == 1:
            raise TypeError(
                "a LightCone of interpolation 'nearest' has no derivative, as a particle is in "
                "one pixel of one shell: take 'linear', or leave the light cone out of what is "
                "differentiated"
            )
        maps, passed, used = primals
        _, change = jax.jvp(lambda x: alone(x, used)[0], (passed,), (tangents[1],))
        return function(maps, passed, used), tangents[0] + change

    return function(maps, passed, used)


class _Chunk(NamedTuple):
    """Some copies of particles.

    Attributes:
        of_rows: as of `Passed`.
        shift: (rows, 3), of each copy of the box.
        is_there: whether there is one in the row.

    """

    of_rows: tuple
    shift: jax.Array
    is_there: jax.Array

    def on(self, of_rows: tuple) -> "_Chunk":
        return self._replace(of_rows=of_rows)

    def in_lanes(self) -> tuple[Reals, list]:
        """Their places, and how they move, with an axis for each component in front, which
        particles have last elsewhere.
        """
        place, *moving = jax.tree.map(lambda x: jnp.moveaxis(x, 0, -1), self.of_rows)
        return place + self.shift.T, moving


def if_any(
    is_there: jax.Array, compute: Callable[[], _Result], *results: tuple[int, DTypeLike]
) -> _Result:
    """What `compute` gives if there is somebody, and zeros if not: arrays (rows, number) of a
    dtype, for each of `results`.

    In programs for CPUs XLA computes anew what several operations read, for each of them. The
    result of a branch is computed once.
    """

    def zeros() -> Any:
        return tuple(jnp.zeros((*is_there.shape, n), dtype) for n, dtype in results)

    return cast(_Result, jax.lax.cond(jnp.any(is_there), compute, zeros))


def _values(
    at: _Chunk, passage: Passage, deposit: Deposit, shares: int
) -> tuple[jax.Array, jax.Array, jax.Array]:
    """Where particles that are passed are deposited, and what."""
    place, moving = at.in_lanes()

    def seen(distance: Reals) -> Reals:
        """How far away they are when light comes from a distance."""
        return _length(place + passage.way(distance, *moving))

    def beyond(distance: Reals) -> Reals:
        """How much farther they are then than what light comes from."""
        return seen(distance) - distance

    def crossing(beyond: Callable[[Reals], Reals], distance: Reals) -> Reals:
        distance = jax.lax.fori_loop(0, _ITERATIONS, lambda _, x: seen(x), distance)
        gap, slope = jax.jvp(beyond, (distance,), (jnp.ones_like(distance),))
        return distance - gap / slope

    def deposited() -> tuple[jax.Array, jax.Array, jax.Array]:
        distance = jnp.clip(_length(place), passage.near, passage.far)
        # Derivatives of any order are those of the root, whatever the steps that led to it.
        distance = jax.lax.custom_root(beyond, distance, crossing, each_by_itself)
        shell, pixel, value = deposit(distance, (place + passage.way(distance, *moving)).T)
        return shell, pixel, jnp.where(at.is_there[:, None], value, 0)

    integers = shares, jnp.int32
    return if_any(at.is_there, deposited, integers, integers, (shares, place.dtype))


def _length(x: Reals) -> Reals:
    square = x[0] ** 2 + x[1] ** 2 + x[2] ** 2
    return jnp.sqrt(jnp.where(square > 0, square, 1))


def _over_passed(
    body: Callable[[_Carry, _Chunk, jax.Array], _Carry],
    carry: _Carry,
    passed: Passed,
    used: jax.Array,
    shifts: np.ndarray,
    ends: tuple[float, float],
) -> _Carry:
    """Go through all that light passes: `body` of a carry, a chunk of particles, and their rows,
    which are no rows of the particles where there is nobody.
    """
    rows = passed.place.shape[0]
    if rows == 0:
        return carry
    search = Search.among(*passed, used, shifts, ends)
    part = max(_LEAST_DEPOSITED, search.room // _FOUND_OVER_DEPOSITED)

    def go_on(state: tuple[jax.Array, _Carry]) -> tuple[jax.Array, _Carry]:
        found = search.go_on(state[0])

        def look_closely(number: jax.Array, carry: _Carry) -> _Carry:
            row, copy = (
                jax.lax.dynamic_slice_in_dim(x, number * part, part)
                for x in (found.row, found.copy)
            )
            at = jnp.minimum(row, rows - 1)
            of_rows = jax.tree.map(lambda x: x[at], passed.of_rows)
            return body(carry, _Chunk(of_rows, search.shifts[copy], row < rows), row)

        parts = -(-found.number // part)
        return found.cursor, jax.lax.fori_loop(0, parts, look_closely, state[1])

    start = jnp.asarray(START), carry
    return jax.lax.while_loop(lambda state: state[0][0] >= 0, go_on, start)[1]

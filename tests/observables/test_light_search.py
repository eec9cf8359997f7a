"""Whom light passes: the handler's search, and that of programs for GPUs, beside all pairs."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from numpy.polynomial.chebyshev import chebval

from pfftjax.observables import _search
from pfftjax.observables._crossings import copies
from pfftjax.pm.internal import Passage

pytestmark = [pytest.mark.mpi, pytest.mark.ranks(1)]

SIDES = np.array([100.0, 150.0, 120.0])
NEAR, FAR = 190.0, 230.0


def _found(step, rows):
    """All that a search finds, in chunks: {(row, number of the copy)}, each once."""
    find, prepared = step
    pairs, cursor = [], _search.START
    while cursor[0] >= 0:
        row, copy, count, cursor = map(np.asarray, find(prepared, cursor))
        assert np.all(row[count:] == rows)
        shifts = np.asarray(prepared.shifts)[copy[:count]]
        pairs += [(int(r), *s) for r, s in zip(row[:count], shifts.tolist(), strict=True)]
    assert len(set(pairs)) == len(pairs)
    return set(pairs)


def _steps(search):
    """The two searches, each with what it is given."""
    room = search.room
    by_xla = jax.jit(lambda its, cursor: _search.found_by_xla(its, cursor, room))
    by_handler = jax.jit(lambda its, cursor: its.go_on(cursor))
    near, met, within = jax.jit(_search.prepared_by_xla)(search)
    return (by_handler, search), (by_xla, search._replace(shifts=near, met=met, within=within))


@pytest.mark.parametrize(
    ("rows", "used", "ends", "dtype", "with_displacements"),
    [
        (1, 1, (0.0, 300.0), "float64", False),
        (5000, 4500, (0.0, 300.0), "float32", True),
        (5000, 5000, (0.0, 300.0), "float64", False),
        (2900, 2900, (200.0, 205.0), "float32", False),
        (300, 0, (0.0, 300.0), "float32", True),
    ],
)
def test_both_find_all(rows, used, ends, dtype, with_displacements):
    rng = np.random.default_rng(rows)
    place = (rng.uniform(size=(rows, 3)) - 0.5) * SIDES
    # Neighbours are near each other, as among a rank's particles.
    place = place[np.lexsort((place[:, 1] // 30, place[:, 0] // 30))]
    momentum, pull = rng.normal(size=(2, rows, 3))
    both = rng.normal(size=(rows, 2, 3)) if with_displacements else None
    factors = rng.normal(size=(4, 5))
    passage = Passage(
        *(jnp.asarray(x, dtype) for x in (NEAR, FAR, factors[0], factors[1])),
        jnp.asarray(factors[2:], dtype) if with_displacements else None,
    )
    shifts = copies(SIDES.tolist(), (SIDES / 2).tolist(), FAR)
    arrays = [None if x is None else jnp.asarray(x, dtype) for x in (place, momentum, pull, both)]
    search = _search.Search.among(*arrays, passage, jnp.int32(used), shifts, ends)

    ways = [momentum, pull, *(() if both is None else (both[:, 0], both[:, 1]))]
    far, near, middle = (
        np.linalg.norm(
            (place + sum(chebval(u, f) * x for f, x in zip(factors, ways, strict=False)))[
                :used, None
            ]
            + shifts,
            axis=-1,
        )
        for u in (1.0, -1.0, 0.0)
    )
    is_passed = (far <= FAR) & (near > NEAR)
    # Who is at an end to rounding may be found or not.
    is_clear = (np.abs(far - FAR) > 1e-4) & (np.abs(near - NEAR) > 1e-4)
    distances = np.stack([far, near, middle])
    is_on_maps = np.all((distances > ends[0]) & (distances < ends[1]), 0)

    def pairs(which):
        chosen = zip(*np.nonzero(which), strict=True)
        given = np.asarray(shifts, dtype).tolist()
        return {(int(row), *given[copy]) for row, copy in chosen}

    least, most = pairs(is_passed & is_clear & is_on_maps), pairs(is_passed | ~is_clear)
    if used > 1000:
        assert len(least) > 100
        assert len(most) < len(shifts) * used / 4
    for step in _steps(search):
        found = _found(step, rows)
        assert least <= found <= most


def test_wrong_buffers_are_refused():
    passage = Passage(*(jnp.float32(x) for x in (NEAR, FAR)), jnp.ones(4), jnp.ones(4), None)
    rows = jnp.zeros((5, 3), jnp.float32)
    search = _search.Search.among(
        rows, rows, rows, None, passage, jnp.int32(9), np.zeros((1, 3)), (0.0, 300.0)
    )
    with pytest.raises(
        jax.errors.JaxRuntimeError, match="light_passed of buffers that do not fit"
    ):
        search.go_on(jnp.asarray(_search.START))

"""Which meshes products of three shells are formed on."""

import itertools
import math

import numpy as np
import pytest

from pfftjax.observables import _product_meshes
from pfftjax.observables._product_meshes import meshes_of, smallest_mesh


def test_meshes_have_no_period_that_modes_reach():
    for reach in (1.5, 7.5, 8.0, 9.9, 31.5, 40.0):
        mesh = smallest_mesh(reach, (64, 36, 32), (100.0, 60.0, 80.0))
        periods = [m * 100 / side for m, side in zip(mesh, (100.0, 60.0, 80.0), strict=True)]
        assert all(
            period > reach or m == n
            for period, m, n in zip(periods, mesh, (64, 36, 32), strict=True)
        )
    assert smallest_mesh(31.5, (128,) * 3, (1.0,) * 3) == (32,) * 3
    # By rounding, modes on the edges of their shells may be in them.
    assert smallest_mesh(30.0, (128,) * 3, (1.0,) * 3) == (32,) * 3


@pytest.mark.parametrize(("cost_of_mesh", "number"), [(0, 3), (20_000, 2), (1_000_000, 1)])
def test_no_other_choice_of_meshes_costs_less(monkeypatch, cost_of_mesh, number):
    """Against all ways to divide triangles between up to three meshes."""
    monkeypatch.setattr(_product_meshes, "_COST_OF_MESH", cost_of_mesh)
    bounds, shape, sides = np.arange(8) + 0.5, (24, 20, 24), (100.0, 80.0, 100.0)
    triangles = [(0, 6, 6), (1, 1, 1), (0, 0, 0), (2, 2, 3), (5, 5, 6), (4, 4, 4), (0, 0, 1)]
    needed = [smallest_mesh(bounds[np.array(t) + 1].sum(), shape, sides) for t in triangles]

    def cost(parts):
        return sum(
            cost_of_mesh + math.prod(mesh) * len({i for each in part for i in triangles[each]})
            for mesh, part in parts.items()
        )

    def divided(meshes):
        parts = {}
        for each, least in enumerate(needed):
            parts.setdefault(min(m for m in meshes if m >= least), []).append(each)
        return parts

    found = meshes_of(triangles, bounds, shape, sides)
    assert sorted(itertools.chain(*found.values())) == list(range(len(triangles)))
    for mesh, part in found.items():
        assert all(np.all(np.array(needed[each]) <= mesh) for each in part)
    ways = [
        divided((*some, max(needed)))
        for more in range(3)
        for some in itertools.combinations(sorted(set(needed))[:-1], more)
    ]
    assert cost(found) == min(map(cost, ways))
    assert len(found) == number

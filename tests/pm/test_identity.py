"""A particle has an identity, whatever the mesh: tests of `Particles.cell`."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from pfftjax import PencilFFT
from pfftjax.pm import leapfrog, linear_field, lpt, paint, simulate, tabulated, white_noise
from tests.distributed import grids
from tests.pm.universe import cosmology, everybody, table

pytestmark = [pytest.mark.mpi, pytest.mark.ranks(1, 2, 3)]


def test_the_cell_is_an_identity_on_any_mesh():
    """On a mesh coarser than the particles by 6/4, 9/2 and 5/1, several start from one cell."""
    shape, coarse, side = (6, 9, 5), (4, 2, 1), 20.0
    plan = PencilFFT(shape, grids()[-1], real=True)
    mesh = PencilFFT(coarse, plan.grid, real=True)
    finer = PencilFFT((7, 9, 11), plan.grid, real=True)

    @jax.jit
    def runs():
        noise = white_noise(jax.random.key(4), plan.input)
        delta = linear_field(noise, plan, side, tabulated(*table()))
        given = plan, side, cosmology(), 0.2
        start = lpt(delta, *given, mesh_shape=coarse)
        end = simulate(
            start, mesh, side, cosmology(), [0.2, 0.5], integrator=leapfrog, capacity=270
        )
        again = lpt(delta, *given).rescaled(mesh.input)
        others = [again, start.rescaled(finer.input), again.rescaled(plan.input)]
        plain = dataclasses.replace(end, cell=end.cell % jnp.asarray(coarse, jnp.int32))
        places = [p.coordinates() for p in (end, plain, start, *others)]
        return start, end, others, places, [paint(p.positions, mesh.input) for p in (end, plain)]

    start, end, others, (now, same, *places), painted = runs()
    names, *_ = everybody(start)
    assert len(np.unique(names, axis=0)) == np.prod(shape)
    assert len(np.unique(names % coarse, axis=0)) == np.prod(coarse)
    np.testing.assert_array_equal(everybody(end)[0], names)
    for other in others:
        assert len(np.unique(everybody(other)[0], axis=0)) == np.prod(shape)
    # A name is that of a point of the lattice, whichever way the particle came to this mesh.
    np.testing.assert_array_equal(others[0].cell, start.cell)
    for place in places[1:]:
        around = np.abs(place - places[0])
        assert np.minimum(around, side - around).max(initial=0) < 1e-12 * side
    np.testing.assert_array_equal(now, same)
    np.testing.assert_array_equal(*painted)

"""What telescopes see, groups, non-uniform transforms and sampling on GPUs."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import pfftjax
from pfftjax import observables, pm
from pfftjax.sampling import Space, mclmc
from tests import gpu_programs
from tests.distributed import grids
from tests.gpu.helpers import here_and_on_cpus
from tests.helpers import SIZE, assert_close, random
from tests.nufft.test_derivatives import (
    test_each_derivative_has_its_transpose as test_transposes_of_nufft,
)
from tests.nufft.test_derivatives import (
    test_slopes_have_the_tolerance_of_values as test_nufft_and_its_slopes,
)
from tests.observables.test_friends import check as check_groups
from tests.observables.test_friends import clumps, mesh_on
from tests.pm.universe import cosmology

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.mpi,
    pytest.mark.timeout(300),
    pytest.mark.usefixtures("arrays"),
]

__all__ = ["test_nufft_and_its_slopes", "test_transposes_of_nufft"]


@pytest.mark.parametrize("name", ["statistics", "light_cone"])
def test_observables(name):
    """With their gradients, on slabs and on rows and columns."""
    for grid in grids():
        program, operands = getattr(gpu_programs, name)(grid)
        here, there = here_and_on_cpus(program, *operands)
        assert_close(here, there, 1e-9)


def test_groups_of_particles_on_gpus():
    rng = np.random.default_rng(4)
    cells, momentum = clumps(rng, 5, 300), rng.standard_normal((300, 3))
    for grid in grids():
        check_groups(cells, momentum, 1.0, 3, mesh_on(grid), rng.integers(0, SIZE, 300))


def test_a_chain():
    """It samples the initial conditions of a field that was observed."""
    grid = grids()[-1]
    plan = pfftjax.PencilFFT((5, 4, 6), grid, real=True)
    observed = jnp.asarray(plan.input.local_block(random(plan.shape)))
    space = Space({"white": plan.input, "bias": ()}, grid)

    def logdensity(position):
        white, bias = position["white"], position["bias"]
        field = pm.linear_field(white, plan, 50.0, pm.eisenstein_hu(cosmology()))
        residual = bias * field - observed
        return -pfftjax.vdot((residual, white), (residual, white), grid) / 2 - bias**2

    sampler = mclmc(logdensity, space, 0.5, 4.0)

    def chain(white):
        state = sampler.init({"white": white, "bias": jnp.asarray(0.7)}, jax.random.key(2))
        keys = jax.random.split(jax.random.key(3), 10)
        return jax.lax.scan(lambda state, key: sampler.step(key, state), state, keys)[0].position

    here, there = here_and_on_cpus(chain, observed)
    assert_close(here, there, 1e-6)  # noise is drawn in float32, with other bits on GPUs


def test_pixels_of_vectors():
    """HEALPix has these pixels and weights."""
    vectors = jnp.asarray(random((500, 3)))
    here, there = here_and_on_cpus(lambda v: observables.interpolation_weights(v, 64), vectors)
    assert_close(here, there, 1e-9)

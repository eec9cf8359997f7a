"""Numbers that are not Python's own, and stricter rules for numbers of JAX's."""

import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import pfftjax
from pfftjax import PencilFFT, io, observables, pm, spectral
from pfftjax.sampling import Space
from tests.distributed import grids
from tests.helpers import assert_equal, random
from tests.pm.universe import cosmology

pytestmark = [pytest.mark.mpi, pytest.mark.timeout(120), pytest.mark.ranks(2)]

SHAPE, BOX = (6, 5, 8), (60.0,) * 3
ENDS = np.linspace(0.3, 1, 3)


def _simulation():
    plan = PencilFFT(SHAPE, grids()[-1], real=True)
    options = {"integrator": pm.fastpm, "capacity": math.prod(SHAPE), "finer": 1}
    return pm.Simulation(plan, BOX, cosmology(), ENDS, **options)


@pytest.mark.wrong_types
def test_numbers_of_numpy_are_as_those_of_python(folder):
    simulation = _simulation()
    plan = simulation.plan
    x = plan.input.local_block(random(SHAPE))
    y = spectral.deconvolve(x, plan, times=np.int64(2))
    assert_equal(y, spectral.deconvolve(x, plan, times=2))

    end = jax.jit(simulation.run)(x)
    groups = [
        observables.friends_of_friends(end, plan.input, linking_length=b, smallest=n)[1]
        for b, n in ((0.5, 2), (np.float32(0.5), np.int64(2)), (jnp.float32(0.5), 2))
    ]
    for others in groups[1:]:
        assert_equal(others, groups[0])
    io.save_bigfile(folder / "snapshot", end, plan.input, files=np.int64(2), cosmology=cosmology())
    assert int(io.load_bigfile(folder / "snapshot", plan.input).total) == math.prod(SHAPE)
    for offset in (np.float64(0.25), jnp.float32(0.25)):
        io.save(folder / "x.h5", {"q": x}, plan.input, box_size=BOX, offset=offset, mode="w")
        assert_equal(io.load(folder / "x.h5", "q", plan.input), x)

    space = Space({"a": (np.int64(3),)}, plan.grid)
    assert space.normal(jax.random.key(0), {"a": jnp.zeros(3)})["a"].shape == (3,)


def test_strict_promotion_holds_outside_of_a_block_that_lifts_it():
    """As docs/sharp-bits.md says, for a derivative, too."""
    simulation = _simulation()
    x = simulation.plan.input.local_block(random(SHAPE))

    def loss(x):
        end = simulation.run(x)
        return pfftjax.vdot(end.offset, end.offset, simulation.plan.grid)

    expected = jax.grad(loss)(x)
    with jax.numpy_dtype_promotion("strict"), jax.numpy_rank_promotion("raise"):
        pfftjax.collectives.allreduce(jnp.sum(x))
        with jax.numpy_dtype_promotion("standard"), jax.numpy_rank_promotion("allow"):
            assert_equal(jax.grad(loss)(x), expected)
        with pytest.raises(ValueError, match="promotion"):
            jax.grad(loss)(x)

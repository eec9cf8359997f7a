"""Transforms, halos and particles on GPUs: beside numpy, `jax.numpy` and what CPUs compute."""

import itertools

import jax
import jax.numpy as jnp
import pytest

import pfftjax
from pfftjax import pm
from pfftjax._runtime.options import options
from tests import gpu_programs
from tests.distributed import SHAPES, TOLERANCE, gathered, grids
from tests.fft.test_values import check
from tests.gpu.conftest import ON_CPU
from tests.gpu.helpers import assert_on_device, here_and_on_cpus
from tests.helpers import assert_close, random
from tests.pm.test_painting import test_against_sums as test_painting_against_sums
from tests.pm.test_painting import test_derivatives_up_to_the_third as test_derivatives_of_painting

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.mpi,
    pytest.mark.timeout(300),
    pytest.mark.usefixtures("arrays"),
]

__all__ = ["test_derivatives_of_painting", "test_painting_against_sums"]


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("shape", SHAPES[:-1], ids=str)
def test_transforms(shape, dtype):
    """Values, transposes and tangents, by numpy on the whole array."""
    methods = [pfftjax.ExchangeMethod.AUTOMATIC, pfftjax.ExchangeMethod.PIPELINED]
    # Compiling for a GPU takes long, so that not every grid has each layout by each method.
    pairs = [("transposed", 0), ("natural", 1), ("transposed", 1), ("natural", 0)]
    plans = []
    for number, (grid, real) in enumerate(itertools.product(grids(), (False, True))):
        layout, method = pairs[number % len(pairs)]
        by = methods[0 if ON_CPU else method]
        plans.append(pfftjax.PencilFFT(shape, grid, real=real, layout=layout, method=by))
    check(plans, dtype)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_the_order_of_painted_particles_does_not_matter(dtype):
    """To the bit, where that was asked for."""
    if ON_CPU or not options.deterministic:
        pytest.skip("needs a GPU, and PFFTJAX_DETERMINISTIC=1")
    mesh = pfftjax.Pencil((16, 16, 16), pfftjax.ProcessGrid())
    low = jnp.asarray([mesh.range_of(axis)[0] for axis in range(3)])
    room = jnp.asarray(mesh.local_shape)
    places = (low + 5 * jnp.abs(jnp.asarray(random((20000, 3), dtype, 3))) % room).astype(dtype)
    for values in (None, jnp.asarray(random((20000, 3), dtype, 4))):
        forward = pm.paint(places, mesh, values=values)
        turned = None if values is None else values[::-1]
        backward = pm.paint(places[::-1], mesh, values=turned)
        assert_on_device(forward)
        assert bool(jnp.all(forward == backward))


@pytest.mark.parametrize("dtype", ["complex64", "complex128"])
def test_beside_jax(dtype):
    """Where each rank can hold the whole array."""
    shape = (64, 48, 40)
    x = random(shape, dtype)
    expected = jnp.fft.fftn(jnp.asarray(x))
    for grid in grids():
        plan = pfftjax.PencilFFT(shape, grid)
        y = jax.jit(plan.forward)(plan.input.local_block(jnp.asarray(x)))
        assert_on_device(y)
        assert_close(gathered(y, plan.output), expected, TOLERANCE[dtype])


def test_spectral_operators():
    plan = pfftjax.PencilFFT((12, 10, 9), grids()[-1], real=True)
    x = plan.input.local_block(jnp.asarray(random(plan.shape)))

    def operators(x):
        slopes, pull = jax.vjp(lambda x: pfftjax.spectral.gradient(x, plan, 2.0), x)
        spectrum = plan.forward(x)
        late, back = jax.vjp(
            lambda y: pfftjax.spectral.gradient(y, plan, 2.0, from_spectrum=True), spectrum
        )
        return slopes, pull(slopes), late, back(late), pfftjax.norm(x, plan.grid)

    here, there = here_and_on_cpus(operators, x)
    assert_close(here, there)


def test_noise_has_the_same_bits():
    plan = pfftjax.PencilFFT((8, 6, 10), grids()[-1], real=True)

    def noise(key):
        return pm.white_noise(key, plan.input, "float32")

    here, there = here_and_on_cpus(noise, jax.random.key(1))
    assert_close(here, there, 1e-6)


@pytest.mark.parametrize("gradient", ["finite-difference", "spectral"])
def test_a_step_of_a_simulation(gradient):
    """With its derivative, on slabs and on rows and columns."""
    for grid in grids():
        program, (particles,) = gpu_programs.simulation((8, 12, 9), grid, 50, gradient)
        here, there = here_and_on_cpus(program, particles)
        assert_close(here, there, 1e-9)

"""Operators with every plan for which they make sense: of two axes, and between walls."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from pfftjax import PencilFFT, PencilTransform, ProcessGrid, spectral
from tests.distributed import assert_block, grids
from tests.fft.test_errors import here
from tests.helpers import assert_close, random

pytestmark = pytest.mark.mpi


@pytest.mark.parametrize("last", ["fft", "rfft"])
def test_planes_against_numpy(last):
    shape, lengths = (6, 5), (2.0, 3.0)
    plan = PencilTransform(shape, ProcessGrid((None, 1)), ("fft", last), layout="natural")
    x = random(shape, "float64" if last == "rfft" else "complex128")
    ks = [
        2 * np.pi / side * np.fft.fftfreq(n, 1 / n) for n, side in zip(shape, lengths, strict=True)
    ]
    ks[0][3] = 0  # a Nyquist frequency
    ks = ks[0][:, None], ks[1][None]
    slopes = [np.fft.ifft2(1j * k * np.fft.fft2(x)) for k in ks]
    expected = [slope.real for slope in slopes] if last == "rfft" else slopes
    block = plan.input.local_block(x)
    spectrum = plan.forward(block)
    for result in (
        spectral.gradient(block, plan, lengths),
        spectral.gradient(spectrum, plan, lengths, from_spectrum=True),
        map(plan.inverse, spectral.gradient(block, plan, lengths, to_spectrum=True)),
    ):
        for a, b in zip(result, expected, strict=True):
            assert_block(a, b, plan.input, 1e-13)
    both = block, 2 * block
    total = expected[0] + 2 * expected[1]
    assert_block(spectral.divergence(both, plan, lengths), total, plan.input, 1e-13)
    y = spectral.divergence(both, plan, lengths, to_spectrum=True)
    assert_block(plan.inverse(y), total, plan.input, 1e-13)
    phi = spectral.inverse_laplacian(block, plan, lengths)
    back = spectral.laplacian(phi, plan, lengths)
    assert_block(back, x - x.mean(), plan.input, 1e-13)
    wide = spectral.deconvolve(block, plan, "ngp", to_spectrum=True)
    assert wide.shape == spectrum.shape


def test_between_walls():
    shape, lengths = (6, 5, 8), (2.0, 3.0, 4.0)
    waves = [np.pi * 2 / 2.0, np.pi * 3 / 3.0, 2 * np.pi / 4.0]
    i, j, k = ((np.arange(n) + 0.5) / n for n in shape)
    x = (
        np.cos(2 * np.pi * i)[:, None, None]
        * np.sin(3 * np.pi * j)[:, None]
        * np.cos(2 * np.pi * k)
    )
    eigenvalue = -sum(wave**2 for wave in waves)
    for grid in grids():
        plan = PencilTransform(shape, grid, ("dct2", "dst2", "rfft"))
        block = plan.input.local_block(x)

        @jax.jit
        def both(x, plan=plan):
            return (
                spectral.laplacian(x, plan, lengths),
                spectral.gaussian_smoothing(x, plan, lengths, 0.1),
            )

        curved, smooth = both(block)
        assert_block(curved, eigenvalue * x, plan.input, 1e-13)
        assert_block(smooth, np.exp(0.005 * eigenvalue) * x, plan.input, 1e-13)


@pytest.mark.ranks(1, 2)
def test_between_walls_on_all_sides():
    """A real field stays real and has a gradient, and both parts of a complex kernel count."""
    shape, lengths = (4, 6), (2.0, 3.0)
    waves = np.pi * 2 / 2.0, np.pi * 3 / 3.0
    i, j = ((np.arange(n) + 0.5) / n for n in shape)
    x = np.cos(2 * np.pi * i)[:, None] * np.sin(3 * np.pi * j)
    eigenvalue = -sum(wave**2 for wave in waves)
    plan = PencilTransform(shape, ProcessGrid((None, 1)), ("dct2", "dst2"))
    block = jnp.asarray(plan.input.local_block(x))

    @jax.jit
    def operators(x):
        def energy(x):
            return jnp.vdot(x, spectral.laplacian(x, plan, lengths)) / 2

        return (
            spectral.laplacian(x, plan, lengths),
            jax.grad(energy)(x),
            spectral.laplacian((1 + 2j) * x, plan, lengths),
            spectral.apply(x, plan, lengths, lambda kx, ky: (1 + 1j) * kx),
        )

    results = operators(block)
    factors = eigenvalue, eigenvalue, (1 + 2j) * eigenvalue, (1 + 1j) * waves[0]
    assert results[0].dtype == block.dtype
    for result, factor in zip(results, factors, strict=True):
        assert_block(result, factor * x, plan.input, 1e-13)


def test_either_way_to_say_it():
    """A plan of three Fourier axes has the same derivatives, however it was made."""
    grid = grids()[-1]
    plans = (
        PencilFFT((4, 6, 5), grid, real=True),
        PencilTransform((4, 6, 5), grid, ("fft", "fft", "rfft")),
    )
    x = jnp.asarray(plans[0].input.local_block(random((4, 6, 5))))
    slopes = [spectral.gradient(plan.forward(x), plan, 2.0, from_spectrum=True) for plan in plans]
    assert_close(*slopes, 1e-13)
    assert_close(*(spectral.curl((x, 2 * x, x), plan, 2.0) for plan in plans), 1e-13)


def test_what_makes_no_sense():
    slabs = ProcessGrid((None, 1))
    planes = PencilTransform((4, 6), slabs, ("fft", "fft"))
    walls = PencilTransform((4, 6, 5), slabs, ("dct2", "fft", "fft"))
    x, y = (jnp.zeros(plan.input.local_shape) for plan in (planes, walls))
    with pytest.raises(ValueError, match=here("curl") + "the plan must have three axes of the"):
        spectral.curl((x, x, x), planes, 1.0)
    for operation in (spectral.gradient, spectral.divergence):
        with pytest.raises(ValueError, match="the plan must have two or three axes of the kinds"):
            operation(y, walls, 1.0)
    with pytest.raises(ValueError, match="a vector has two components"):
        spectral.divergence((x, x, x), planes, 1.0)
    with pytest.raises(ValueError, match="the mean is that in a sphere"):
        spectral.top_hat_smoothing(x, planes, 1.0, 0.1)
    with pytest.raises(ValueError, match=here("deconvolve") + "the plan must have two or three"):
        spectral.deconvolve(y, walls)
    weighted = PencilTransform((4, 6), slabs, ("dct1", "fft"), norm="ortho")
    with pytest.raises(ValueError, match=here("laplacian") + "with norm='ortho', dct1 multiplies"):
        spectral.laplacian(x, weighted, 1.0)

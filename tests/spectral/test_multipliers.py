"""Smoothing, Poisson's equation, deconvolution and any kernel, against numpy and scipy."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy.special import spherical_jn

from pfftjax import PencilFFT, pm, spectral
from pfftjax.collectives import allreduce, replicate
from pfftjax.spectral._multipliers import top_hat
from tests.distributed import COMPLEX, TOLERANCE, Model, assert_block, grids, total
from tests.helpers import random
from tests.spectral.reference import SIDES, draw, local, multiplied, plans, wavenumbers

pytestmark = [pytest.mark.mpi, pytest.mark.timeout(300), pytest.mark.ranks(1, 3)]

RADIUS, SHIFT = 0.8, (0.3, -0.7, 1.1)


def _shifted(kx, ky, kz):
    """A complex kernel: a translation."""
    return jnp.exp(-1j * (SHIFT[0] * kx + SHIFT[1] * ky + SHIFT[2] * kz))


# Operator -> a function of (x, plan, **from and to), and the multiplier by numpy.
OPERATORS = {
    "laplacian": (
        lambda x, p, **way: spectral.laplacian(x, p, SIDES, **way),
        lambda k, n: -_square(k),
    ),
    "inverse_laplacian": (
        lambda x, p, **way: spectral.inverse_laplacian(x, p, SIDES, **way),
        lambda k, n: -np.divide(
            1, _square(k), out=np.zeros(_square(k).shape), where=_square(k) > 0
        ),
    ),
    "gaussian_smoothing": (
        lambda x, p, **way: spectral.gaussian_smoothing(x, p, SIDES, RADIUS, **way),
        lambda k, n: np.exp(-_square(k) * RADIUS**2 / 2),
    ),
    "top_hat_smoothing": (
        lambda x, p, **way: spectral.top_hat_smoothing(x, p, SIDES, RADIUS, **way),
        lambda k, n: _window(np.sqrt(_square(k)) * RADIUS),
    ),
    "cic": (lambda x, p, **way: spectral.deconvolve(x, p, **way), lambda k, n: _sincs(k, n, 2)),
    "tsc, twice": (
        lambda x, p, **way: spectral.deconvolve(x, p, "tsc", times=2, **way),
        lambda k, n: _sincs(k, n, 6),
    ),
    "ngp": (
        lambda x, p, **way: spectral.deconvolve(x, p, "ngp", **way),
        lambda k, n: _sincs(k, n, 1),
    ),
    "pcs": (
        lambda x, p, **way: spectral.deconvolve(x, p, "pcs", **way),
        lambda k, n: _sincs(k, n, 4),
    ),
    "real kernel": (
        lambda x, p, **way: spectral.apply(x, p, SIDES, lambda kx, _, kz: kx**2 + kz**4, **way),
        lambda k, n: k[0] ** 2 + k[2] ** 4,
    ),
    "constant": (
        lambda x, p, **way: spectral.apply(x, p, SIDES, lambda *_: 3, **way),
        lambda k, n: 3.0,
    ),
    "translation": (
        lambda x, p, **way: spectral.apply(x, p, SIDES, _shifted, **way),
        lambda k, n: np.exp(-1j * sum(a * b for a, b in zip(SHIFT, k, strict=True))),
    ),
}


def _square(k):
    return sum(a**2 for a in k)


def _window(x):
    return np.where(x > 0, 3 * spherical_jn(1, x) / np.where(x > 0, x, 1), 1)


def _sincs(k, n, power):
    """sinc(k h / 2)^-power over axes, in numpy's words: sinc(k h / 2 pi)."""
    cells = [side / m for side, m in zip(SIDES, n, strict=True)]
    return (
        1
        / np.prod(
            np.broadcast_arrays(
                *(np.sinc(a * h / (2 * np.pi)) for a, h in zip(k, cells, strict=True))
            ),
            axis=0,
        )
        ** power
    )


# A translation by less than a cell is no real convolution at a Nyquist frequency: odd sizes only.
SHAPES = {"float64": ((8, 6, 5), (2, 3, 4), (7, 1, 5)), "float32": ((4, 6, 8),)}


@pytest.mark.parametrize("dtype", SHAPES)
def test_against_numpy(dtype):
    chosen = plans(*SHAPES[dtype])
    wholes = [draw(plan, dtype) for plan in chosen]
    blocks = [local(plan, *pair) for plan, pair in zip(chosen, wholes, strict=True)]

    # All ways of all operators on one plan; elsewhere from spectrum to spectrum, and two others.
    def ways(plan, name):
        if plan is chosen[-1] and dtype == "float64":
            return [(a, b) for a in (False, True) for b in (False, True)]
        return [(True, True)] + [(False, False)] * (name in ("translation", "top_hat_smoothing"))

    @jax.jit
    def everything(blocks):
        return [
            {
                name: [
                    function(pair[a], plan, from_spectrum=a, to_spectrum=b)
                    for a, b in ways(plan, name)
                ]
                for name, (function, _) in OPERATORS.items()
            }
            for plan, pair in zip(chosen, blocks, strict=True)
        ]

    for plan, (x, _), results in zip(chosen, wholes, everything(blocks), strict=True):
        x = x.astype(np.result_type(x.dtype, np.float64))
        for name, (_, kernel) in OPERATORS.items():
            if name == "translation" and any(n % 2 == 0 for n in plan.shape):
                continue
            field = multiplied(plan, x, kernel(wavenumbers(plan), plan.shape))
            spectrum = Model(plan).forward(field)
            for (_, to_spectrum), actual in zip(ways(plan, name), results[name], strict=True):
                spectral_or_complex = to_spectrum or not plan.real
                assert actual.dtype == (COMPLEX[dtype] if spectral_or_complex else dtype)
                whole, pencil = (spectrum, plan.output) if to_spectrum else (field, plan.input)
                assert_block(actual, whole, pencil, 10 * TOLERANCE[dtype])


def test_the_top_hat_at_small_arguments():
    """To rounding, where the closed form in single precision has no digit left, and its slope."""
    x = np.concatenate([[0.0], np.logspace(-8, 2, 400)])
    with jax.enable_x64(True):
        for dtype, limit in (("float32", 1e-6), ("float64", 1e-14)):
            x2 = jnp.asarray(x**2, dtype)
            error = np.asarray(jax.jit(top_hat)(x2), float) - _window(
                np.sqrt(np.asarray(x2, float))
            )
            assert np.abs(error).max() < limit
            slope = jax.jit(jax.vmap(jax.grad(top_hat)))(x2)
            # d/dx 3 j1(x)/x = -3 j2(x)/x; d/dx^2 has another 1/(2 x).
            at = np.sqrt(np.asarray(x2, float)[x > 1e-3])
            expected = -3 * spherical_jn(2, at) / (2 * at**2)
            assert np.abs(slope[x > 1e-3] - expected).max() < limit
            assert np.abs(slope + 0.1 - x**2 / 140)[x <= 1e-3].max() < limit


def test_parameters_are_differentiable():
    """Radii, sides and the user's own, the same on all ranks: the total, finite at k = 0."""
    plan = PencilFFT((4, 6, 5), grids()[-1], real=True)
    x = jnp.asarray(plan.input.local_block(random(plan.shape)))
    w = jnp.asarray(plan.input.local_block(random(plan.shape, seed=1)))

    @jax.jit
    def loss(parameters):
        radius, index, side = replicate(parameters)
        lengths = (side, 2.0, 3.0)
        results = (
            spectral.gaussian_smoothing(x, plan, lengths, radius),
            spectral.top_hat_smoothing(x, plan, lengths, radius),
            spectral.inverse_laplacian(x, plan, lengths),
            spectral.laplacian(x, plan, lengths),
            spectral.apply(x, plan, lengths, lambda kx, ky, kz: (1 + kx**2 + kz**2) ** index),
        )
        return allreduce(sum(jnp.sum(w * y**2) for y in results))

    at = np.array([0.4, -0.3, 2.5])
    slope = jax.jit(jax.grad(loss))(at)
    for i in range(3):
        step = 1e-5 * np.eye(3)[i]
        difference = (loss(at + step) - loss(at - step)) / 2e-5
        assert abs(slope[i] - difference) < 1e-6 * np.abs(slope).max()


def test_symmetric_operators():
    """A real even kernel is its own adjoint: <v, A t> = <A v, t>, and so with JAX's transpose."""
    for plan in plans((3, 4, 5))[-2:]:
        dtype = "float64" if plan.real else "complex128"
        t, v = (jnp.asarray(plan.input.local_block(random(plan.shape, dtype, s))) for s in (1, 2))

        def smoothed(x, plan=plan):
            return spectral.inverse_laplacian(
                spectral.top_hat_smoothing(x, plan, SIDES, RADIUS, to_spectrum=True),
                plan,
                SIDES,
                from_spectrum=True,
            )

        @jax.jit
        def everything(t, v, smoothed=smoothed):
            _, pull = jax.vjp(smoothed, t)
            return jax.jvp(smoothed, (v,), (t,))[1], pull(v)[0], smoothed(v)

        pushed, pulled, there = everything(t, v)
        left, right, again = total(v, pushed), total(pulled, t), total(there, t)
        assert abs(left - right) < 1e-13 * abs(left)
        assert abs(left - again) < 1e-12 * abs(left)


@pytest.mark.parametrize("unit", [1e-20, 1e19, 3e24])
def test_lengths_have_any_unit(unit):
    """Centimetres, say, of which squares are no numbers in single precision."""
    plan = plans((4, 6, 5))[-1]
    x = local(plan, *draw(plan, "float32"))[0]
    sides = tuple(np.float32(side * unit) for side in SIDES)
    for smoothing in (spectral.gaussian_smoothing, spectral.top_hat_smoothing):
        far = smoothing(x, plan, sides, np.float32(0.5 * unit))
        np.testing.assert_allclose(far, smoothing(x, plan, SIDES, 0.5), atol=1e-5)


@pytest.mark.parametrize("unit", [1e-20, 3e24])
def test_lengths_whose_squares_are_no_numbers(unit):
    """What multiplies by k^2, or divides by it, refuses them in single precision."""
    plan = PencilFFT((4, 6, 5), grids()[-1], real=True)
    x = local(plan, *draw(plan, "float32"))[0]
    sides = tuple(side * unit for side in SIDES)
    for poisson in (spectral.laplacian, spectral.inverse_laplacian, pm.gravity):
        with pytest.raises(ValueError, match="are no numbers of float32; choose another unit"):
            poisson(x, plan, sides)
        assert np.isfinite(poisson(x.astype("float64"), plan, sides)).all()


def test_batches_of_fields_and_of_kernels():
    plan = plans((4, 6, 5))[-1]
    x, _ = local(plan, *draw(plan, "float64", (3,)))
    radii = jnp.array([0.2, 0.5, 0.9])

    def smooth(x, radius):
        return spectral.gaussian_smoothing(x, plan, SIDES, radius)

    def kernels(*k):
        return jnp.exp(-0.5 * _square(k) * radii[:, None, None, None] ** 2)

    @jax.jit
    def everything(x):
        return (
            jax.vmap(smooth)(x, radii),
            spectral.apply(x, plan, SIDES, kernels),
            jnp.stack([smooth(a, r) for a, r in zip(x, radii, strict=True)]),
            spectral.apply(x[0], plan, SIDES, kernels),  # one field, three results
            jnp.stack([smooth(x[0], r) for r in radii]),
        )

    mapped, together, loop, several, each = everything(x)
    for actual, expected in ((mapped, loop), (together, loop), (several, each)):
        np.testing.assert_allclose(actual, expected, rtol=1e-12, atol=1e-13)

"""Particles in redshift space, against numpy on all of them, and Kaiser's multipoles."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import pfftjax
from pfftjax import PencilFFT
from pfftjax.observables import power_multipoles, redshift_space
from pfftjax.pm import density_contrast, growth, hubble, lpt, paint, power_spectrum
from tests.distributed import grids
from tests.helpers import assert_close
from tests.pm.universe import (
    BOX,
    cosmology,
    everybody,
    owners,
    small_noise,
    small_plan,
    small_start,
)

pytestmark = [pytest.mark.mpi, pytest.mark.timeout(300), pytest.mark.ranks(1, 2)]


def test_particles_move_along_the_line_of_sight():
    """By v / (a H) and no further, in a box of three sides, and go to their owners."""
    plans = [small_plan(grid) for grid in grids()]
    universe, n = cosmology(), np.array([2.0, -1.0, 0.5])

    @jax.jit
    def moved(blocks):
        results = []
        for plan, noise in zip(plans, blocks, strict=True):
            start = small_start(noise, 0.26, plan)
            seen = redshift_space(start, plan, BOX, universe, n)
            along = redshift_space(start, plan, BOX, universe, 1)
            counts = paint(seen.positions, plan.input)
            results.append((start, seen, along, counts, density_contrast(seen, plan)))
        return results

    a = 0.1
    unit = n / np.linalg.norm(n)
    for plan, (start, seen, along, counts, delta) in zip(
        plans, moved([small_noise(p) for p in plans]), strict=True
    ):
        (cell, x, p), (same, y, q), (_, z, _) = map(everybody, (start, seen, along))
        np.testing.assert_array_equal(cell, same)
        np.testing.assert_array_equal(p, q)
        velocity = p / a  # H0 = 1
        length = velocity / (a * float(hubble(universe, a)))
        per_cell = np.array(plan.shape) / BOX
        assert_close(y, x + (length @ unit)[:, None] * unit * per_cell, 1e-13)
        assert_close(z, x + length * [0, 1, 0] * per_cell, 1e-13)
        assert np.abs(y - x).max() > 0.1
        used = int(seen.used)
        at = np.floor(np.asarray(seen.cell)[:used] + np.asarray(seen.offset)[:used]).astype(int)
        assert np.all(owners(at % plan.shape, plan.input) == plan.grid.comm.rank)
        # So they can be painted where they are.
        mean = plan.grid.comm.allreduce(float(counts.sum())) / np.prod(plan.shape)
        assert_close(np.asarray(counts), np.asarray(delta) + mean, 1e-12)


@pytest.mark.ranks(2)
def test_kaiser():
    """Particles of linear theory have Kaiser's multipoles (Kaiser 1987), mode by mode: so small is
    the field. Also along a diagonal of the box.
    """
    plan, mesh = (PencilFFT((n, n, n), grids()[-1], real=True) for n in (8, 16))
    side, a, universe = 100.0, 0.5, cosmology()

    @jax.jit
    def measured():
        now, today = growth(universe, a), growth(universe, 1.0)
        index = [plan.input.indices(axis) for axis in range(3)]
        waves = ((1, 0, 0), (0, 1, 1), (1, 1, 1))
        delta = sum(
            1e-5 * jnp.cos(2 * jnp.pi / 8 * sum(m * i for m, i in zip(w, index, strict=True)))
            for w in waves
        )
        start = lpt(delta, plan, side, universe, a, order=1, mesh_shape=mesh.shape)
        real = power_spectrum(delta * now.d1 / today.d1, plan, side).power
        seen = []
        for n in (2, (1.0, 1.0, 0.0)):
            particles = redshift_space(start, mesh, side, universe, n)
            density = density_contrast(particles, mesh, kernel="pcs")
            seen.append(power_multipoles(density, mesh, side, n, kernel="pcs").power[:, :2])
        return real, seen, now.d1_rate / now.d1

    real, seen, f = measured()
    # The waves are (1, 0, 0) and (0, 1, 1) in the first shell, (1, 1, 1) in the second one: their
    # squared cosines with either line of sight.
    cosines = [((0, 1 / 2), (1 / 3,)), ((1 / 2, 1 / 4), (2 / 3,))]
    for multipoles, squares in zip(seen, cosines, strict=True):
        for shell in (0, 1):
            mu2 = np.array(squares[shell])
            each = real[shell] / len(mu2) * (1 + f * mu2) ** 2
            legendre = (np.ones_like(mu2), (3 * mu2 - 1) / 2, (35 * mu2**2 - 30 * mu2 + 3) / 8)
            for order, polynomial, found in zip(
                (0, 2, 4), legendre, multipoles[:, shell], strict=True
            ):
                expected = np.sum((2 * order + 1) * polynomial * each)
                np.testing.assert_allclose(found, expected, rtol=1e-3, atol=1e-3 * real[shell])


@pytest.mark.ranks(2)
def test_derivatives():
    """In positions, momenta, the cosmology and the direction, through the exchange."""
    plan = small_plan(grids()[-1])
    grid = plan.grid
    start = jax.jit(lambda: small_start(small_noise(plan), 0.26, plan))()
    weight = small_noise(plan, seed=7)
    rng = np.random.default_rng(grid.comm.rank)
    tangents = [jnp.asarray(rng.standard_normal(start.offset.shape)) for _ in range(2)]

    def loss(offset, momentum, omega_c, n):
        particles = dataclasses.replace(start, offset=offset, momentum=momentum)
        seen = redshift_space(particles, plan, BOX, cosmology(Omega_c=omega_c), n)
        return pfftjax.vdot(weight, density_contrast(seen, plan, kernel="pcs"), grid)

    at = (start.offset, start.momentum, jnp.array(0.26), jnp.array([0.5, 1.0, -0.3]))
    along = (*tangents, jnp.array(0.3), jnp.array([0.1, 0.2, -0.4]))
    shared = ("omega_c", "n")

    @jax.jit
    def everything(*at):
        gradient = pfftjax.grad(loss, argnums=(0, 1, 2, 3), shared=shared)(*at)
        return gradient, pfftjax.jvp(loss, at, along, shared=shared)[1]

    gradient, slope = everything(*at)
    product = sum(pfftjax.vdot(g, t, grid) for g, t in zip(gradient[:2], along[:2], strict=True))
    product += sum(jnp.vdot(g, t) for g, t in zip(gradient[2:], along[2:], strict=True))
    np.testing.assert_allclose(product, slope, rtol=1e-10)
    value, step = jax.jit(loss), 1e-5
    ahead, behind = (
        value(*(x + s * step * t for x, t in zip(at, along, strict=True))) for s in (1, -1)
    )
    np.testing.assert_allclose(slope, (ahead - behind) / (2 * step), rtol=1e-5)


def test_particles_that_do_not_know_when_they_are():
    """Before the program runs where that is known, and else when it runs; on one rank too."""
    plan = small_plan(grids()[0])
    universe = cosmology()
    start = jax.jit(lambda: small_start(small_noise(plan), 0.26, plan))()
    known = float(start.scale_factor)

    def moved(known, given=None):
        particles = dataclasses.replace(start, scale_factor=known)
        return redshift_space(particles, plan, BOX, universe, scale_factor=given)

    for at, given, text in (
        (None, None, "do not know when they are; give their scale_factor"),
        (0.0, None, "do not know when they are; give their scale_factor"),
        (None, 0, "a positive number, got 0"),
        (known, 0.5, "the particles are at scale factor"),
    ):
        with pytest.raises(ValueError, match=f"redshift_space.*{text}"):
            moved(at, given)
    traced = jax.jit(lambda a: moved(a).offset)
    expected = moved(None, known).offset
    assert_close(traced(known), expected, 1e-13)
    text = "redshift_space.*scale_factor is .*give their scale_factor"
    with pytest.raises(jax.errors.JaxRuntimeError, match=text):
        jax.block_until_ready(traced(0.0))
    pfftjax.collectives.recover()


@pytest.mark.wrong_types
@pytest.mark.ranks(2)
def test_wrong_arguments():
    plan = small_plan(grids()[0])
    universe = cosmology()
    start = jax.jit(lambda: small_start(small_noise(plan), 0.26, plan))()
    finer = PencilFFT((12, 18, 16), plan.grid, real=True)
    for error, text, call in (
        (
            ValueError,
            "particles are in a box",
            lambda: redshift_space(start, plan, 50.0, universe),
        ),
        (ValueError, "rescaled", lambda: redshift_space(start, finer, BOX, universe)),
        (
            TypeError,
            "must be pm.Particles",
            lambda: redshift_space(start.offset, plan, BOX, universe),
        ),
        (TypeError, "cosmology must be", lambda: redshift_space(start, plan, BOX, 0.3)),
        (ValueError, "the axis 0, 1 or 2", lambda: redshift_space(start, plan, BOX, universe, -1)),
    ):
        with pytest.raises(error, match=text):
            call()

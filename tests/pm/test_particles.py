"""Particles know when they are and in which box, and on which ranks they may be."""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from pfftjax import PencilFFT, PencilTransform, spectral
from pfftjax.collectives import recover
from pfftjax.pm import (
    Particles,
    Positions,
    Steps,
    density_contrast,
    force,
    growth,
    hubble,
    leapfrog,
    linear_field,
    lpt,
    paint,
    simulate,
    step,
    to_owners,
    white_noise,
)
from tests.distributed import grids, total
from tests.helpers import SIZE
from tests.pm.universe import cosmology

# More ranks would only repeat what two say.
pytestmark = [
    pytest.mark.mpi,
    pytest.mark.timeout(300),
    pytest.mark.skipif(SIZE > 2, reason="two ranks say it all"),
]

PLAN = PencilFFT((6, 8, 4), grids()[-1], real=True)
BOX = (30.0, 40.0, 20.0)


@functools.cache
def _delta():
    noise = white_noise(jax.random.key(0), PLAN.input)
    return linear_field(noise, PLAN, BOX, lambda k: 0 * k + 300.0)


@functools.cache
def _start():
    return jax.jit(lambda delta: lpt(delta, PLAN, BOX, cosmology(), 0.1))(_delta())


def _simulated(particles, ends, box=BOX):
    return simulate(particles, PLAN, box, cosmology(), ends, integrator=leapfrog)


def _refused(f, *arguments):
    """The text of the error on every rank, when the program runs."""
    with pytest.raises(jax.errors.JaxRuntimeError) as raised:
        jax.block_until_ready(jax.jit(f)(*arguments))
    recover()
    text = str(raised.value)
    assert f"failed on rank {PLAN.grid.comm.rank} of {SIZE}" in text
    return text


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("shape", [(6, 6, 6), (6, 5, 7)])
def test_coordinates_are_in_the_box(shape, dtype):
    """By the remainder of NumPy, to the bit, whatever cells and offsets are."""
    rng = np.random.default_rng(2)
    cell = rng.integers(-20, 20, (2000, 3)).astype(np.int32)
    offset = (rng.normal(size=cell.shape) * 10.0 ** rng.integers(-9, 3, cell.shape)).astype(dtype)
    offset[:200] = -(10.0 ** -rng.integers(5, 30, (200, 3)))  # hardly below zero
    cell[:200] = 0
    particles = Particles(
        jnp.asarray(cell),
        jnp.asarray(offset),
        jnp.zeros_like(offset),
        jnp.int32(2000),
        2000,
        shape,
    )
    n = np.asarray(shape, dtype)
    expected = np.mod((cell % np.asarray(shape)).astype(dtype) + offset, n)
    expected[expected >= n] = 0
    assert np.any(expected[:200] == 0)
    found = np.asarray(jax.jit(lambda x: x.coordinates(shape))(particles))
    np.testing.assert_array_equal(found, expected)
    # Where they are rounded to the side of the box, too, they move as they are moved.
    slopes = jax.grad(lambda x: dataclasses.replace(particles, offset=x).coordinates(shape).sum())
    np.testing.assert_array_equal(slopes(particles.offset), 1)
    # Also where numbers do not tell cells apart any more.
    far = dataclasses.replace(particles, offset=jnp.asarray(offset * 1e7, dtype))
    found = np.asarray(jax.jit(lambda x: x.coordinates(shape))(far))
    assert np.all((found >= 0) & (found < n))


def test_they_know_when_and_where_they_are():
    start = _start()
    assert float(start.scale_factor) == 0.1
    assert start.box_size.tolist() == list(BOX)
    end = jax.jit(_simulated)(start, np.array([0.1, 0.3]))
    assert float(end.scale_factor) == 0.3
    assert end.box_size.tolist() == list(BOX)
    np.testing.assert_allclose(end.coordinates(), end.coordinates(BOX))
    # As a batch: each when it is.
    batch = jax.vmap(lambda a: lpt(_delta(), PLAN, BOX, cosmology(), a))
    assert jax.eval_shape(batch, jnp.array([0.1, 0.2])).scale_factor.shape == (2,)
    # A step does not know; it has the structure that it was given, as the body of a scan.
    owned = to_owners(start, PLAN.input)

    def body(particles, _):
        return step(particles, PLAN, BOX, cosmology(), 0.1, 0.1), None

    unknown = dataclasses.replace(owned, scale_factor=None, box_size=None)
    for particles in (owned, unknown):
        after = jax.eval_shape(lambda p: jax.lax.scan(body, p, length=2)[0], particles)
        assert jax.tree.structure(after) == jax.tree.structure(particles)
    assert float(jax.jit(lambda p: body(p, None)[0])(owned).scale_factor) == 0.0
    # An unknown scale factor goes with any, and stays unknown: groups of steps can be a scan, too.
    end = jax.eval_shape(lambda p: _simulated(p, [0.5, 0.6]), unknown)
    assert end.scale_factor is None
    assert end.box_size is None


def test_another_time_or_box_is_an_error():
    """At once, where it is known while the program is traced."""
    start = _start()
    here = rf" on rank {PLAN.grid.comm.rank} of {SIZE}: "
    with pytest.raises(
        ValueError,
        match="simulate" + here + r"scale_factors\[0\] is 0\.5, but .* at scale factor 0\.1;",
    ):
        _simulated(start, [0.5, 1.0])
    for name, use in {
        "simulate": lambda box: _simulated(start, [0.1, 1.0], box),
        "step": lambda box: step(start, PLAN, box, cosmology(), 0.1, 0.1),
        "force": lambda box: force(start, PLAN, box, cosmology()),
    }.items():
        with pytest.raises(ValueError, match=name + here) as raised:
            use(100.0)
        text = str(raised.value)
        assert "box_size is [100.0, 100.0, 100.0], but the particles are in a box of [30." in text


def test_another_time_or_box_is_an_error_of_the_program():
    """Where it is not known before: traced numbers, particles that come into a jitted function."""
    start = _start()
    text = _refused(_simulated, start, jnp.array([0.5, 1.0]))
    assert "scale_factors[0] is 0.5, but the particles are at scale factor 0.1" in text

    def whole(delta):
        start = lpt(delta, PLAN, BOX, cosmology(), 0.1)
        return _simulated(start, jnp.linspace(0.2, 1.0, 3))

    assert "scale_factors[0] is 0.2" in _refused(whole, _delta())
    text = _refused(lambda p: force(p, PLAN, 30.0, cosmology()), start)
    assert "box_size is [30, 30, 30], but the particles are in a box of [30, 40, 20]" in text
    both = jax.vmap(
        lambda a: start.at_scale_factor(
            a, "scale_factors[0]", "simulate", PLAN.grid.communicator
        ).used
    )
    assert "scale_factors[0] is [0.1, 0.3]" in _refused(both, jnp.array([0.1, 0.3]))


def test_what_is_compared_changes_no_derivative():
    start = _start()
    unknown = dataclasses.replace(start, scale_factor=None, box_size=None)

    def loss(offset, a, particles):
        particles = dataclasses.replace(particles, offset=offset)
        particles = particles.at_scale_factor(a, "a", "loss", PLAN.grid.communicator)
        sides = tuple(10 * a * length for length in BOX)
        particles = particles.in_box(sides, "loss", PLAN.grid.communicator)
        return jnp.sum(density_contrast(particles, PLAN) ** 2) * a

    slopes = jax.jit(jax.grad(jax.checkpoint(loss), (0, 1)))
    with_checks, without = (slopes(start.offset, 0.1, p) for p in (start, unknown))
    jax.tree.map(np.testing.assert_array_equal, with_checks, without)
    assert abs(total(with_checks[1], 1.0)) > 0


def test_density_of_particles_on_any_ranks():
    """Those of lpt lie where they started from."""
    start = _start()
    late = jax.jit(lambda delta: lpt(delta, PLAN, BOX, cosmology(), 1.0))(_delta())
    density = jax.jit(lambda p: density_contrast(p, PLAN))
    for particles in (start, late):
        owned = jax.jit(lambda p: to_owners(p, PLAN.input, p.total))(particles)
        assert np.abs(np.asarray(density(particles) - density(owned))).max(initial=0) < 1e-13
        assert abs(total(density(particles), 1.0)) < 1e-10
    if SIZE > 1:
        with pytest.raises(jax.errors.JaxRuntimeError, match=r"a capacity of .* is enough"):
            jax.block_until_ready(jax.jit(lambda: density_contrast(late, PLAN, capacity=1))())
        recover()


@pytest.mark.wrong_types
def test_a_redshift_is_not_a_scale_factor():
    here = rf"lpt on rank {PLAN.grid.comm.rank} of {SIZE}: "

    def start(a):
        return lpt(_delta(), PLAN, BOX, cosmology(), a)

    with pytest.raises(
        ValueError, match=here + r"scale_factor=9\.0 looks like a redshift; .* = 0\.1$"
    ):
        start(9.0)
    text = _refused(lambda a: start(a).offset, 9.0)
    assert "scale_factor is 9, but particles start at most at 2" in text
    for a in (0.0, np.nan, np.inf, None, "0.1", True, [1.0, 0.0]):
        with pytest.raises(ValueError, match=r"scale factors must be positive numbers|one number"):
            start(a)
        with pytest.raises(ValueError, match=r"positive numbers, .* is 1 / \(1 \+ z\)"):
            growth(cosmology(), a)


@pytest.mark.wrong_types
def test_what_is_no_cosmology():
    for wrong in (None, {"Omega_c": 0.3}, type(cosmology()).__init__):
        for f in (
            lambda c: growth(c, 0.1),
            lambda c: lpt(_delta(), PLAN, BOX, c, 0.1),
            lambda c: simulate(_start(), PLAN, BOX, c, [0.1, 0.2]),
            lambda c: force(_start(), PLAN, BOX, c),
            lambda c: step(_start(), PLAN, BOX, c, 0.1, 0.1),
        ):
            with pytest.raises(TypeError, match=r"must be a jax_cosmo\.Cosmology, got"):
                f(wrong)
    with pytest.raises(TypeError, match=r"jax_cosmo\.Cosmology\(\*\*parameters\)"):
        growth({}, 0.1)


@pytest.mark.wrong_types
@pytest.mark.parametrize("kernel", [["cic"], None, 2, {"cic": 1}])
def test_what_is_no_kernel(kernel):
    with pytest.raises(ValueError, match="kernel must be one of ngp, cic, tsc, pcs, got"):
        density_contrast(_start(), PLAN, kernel=kernel)
    with pytest.raises(ValueError, match="kernel must be one of ngp, cic, tsc, pcs, got"):
        force(_start(), PLAN, BOX, cosmology(), kernel=kernel)


def test_an_integrator_that_takes_something_else():
    one = Steps(jnp.zeros(2), jnp.zeros(2))
    end = jax.eval_shape(
        lambda: simulate(_start(), PLAN, BOX, cosmology(), None, integrator=lambda *_: one)
    )
    assert end.scale_factor.shape == ()


@pytest.mark.wrong_types
def test_what_looked_right():
    """Strings, vectors and other types that were taken for numbers, and powers that are none."""
    noise, ones = jnp.ones(PLAN.input.local_shape), np.ones(3)
    owned = to_owners(_start(), PLAN.input)
    at = Positions(owned.cell, owned.offset, jnp.float32(2.7))
    u = cosmology()
    for error, said, f in (
        (TypeError, "power must be a function", lambda: linear_field(noise, PLAN, BOX, ones)),
        (TypeError, "must be real", lambda: linear_field(noise, PLAN, BOX, lambda k: 1j + k)),
        (ValueError, "and not negative", lambda: linear_field(noise, PLAN, BOX, lambda k: -k)),
        (ValueError, "and not negative", lambda: linear_field(noise, PLAN, BOX, lambda k: k / 0)),
        (TypeError, "kick must be one number", lambda: step(owned, PLAN, BOX, u, ones, 0.1)),
        (TypeError, "drift must be one number", lambda: step(owned, PLAN, BOX, u, 0.1, "1")),
        (TypeError, "dealias must be", lambda: lpt(_delta(), PLAN, BOX, u, 0.1, dealias="no")),
        (ValueError, "order must be 1, 2", lambda: lpt(_delta(), PLAN, BOX, u, 0.1, order=True)),
        (TypeError, "used, the number", lambda: paint(at, PLAN.input)),
        (ValueError, "must be positive numbers", lambda: hubble(u, -1.0)),
        (TypeError, "the integrator must be", lambda: simulate(
            owned, PLAN, BOX, u, [0.1, 0.2], integrator="fastpm")),
        (ValueError, "the mesh must be", lambda: owned.rescaled(PLAN)),
        (ValueError, "kinds must be one of", lambda: PencilTransform((4, 4, 4), PLAN.grid, None)),
        (ValueError, "norm must be one of", lambda: PencilFFT((4, 4, 4), PLAN.grid, norm=["o"])),
        (ValueError, "kernel must be", lambda: spectral.deconvolve(noise, PLAN, ["cic"])),
    ):  # fmt: skip
        with pytest.raises(error, match=said):
            f()

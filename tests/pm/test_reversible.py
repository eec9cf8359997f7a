"""Gradients of whole runs that nothing is stored for: against those that are stored, and against
differences; in every mode of differentiation."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import pfftjax
from pfftjax.collectives import recover
from pfftjax.pm import (
    Steps,
    bullfrog,
    cola,
    density_contrast,
    fastpm,
    simulate,
    white_noise,
)
from tests.distributed import grids, total
from tests.helpers import CONTROL, assert_close, random
from tests.pm.universe import (
    BOX,
    ENDS,
    OMEGA_C,
    SHAPE,
    cosmology,
    small_noise,
    small_plan,
    small_start,
)

pytestmark = [pytest.mark.mpi, pytest.mark.timeout(300), pytest.mark.ranks(2)]

ADJOINTS = ("stored", "reversible")


def _end(noise, omega_c, plan, adjoint, *, box=BOX, integrator=fastpm, kernel="cic"):
    """Particles today, of room for all of them."""
    start = small_start(noise, omega_c, plan, box)
    return simulate(
        start,
        plan,
        box,
        cosmology(Omega_c=omega_c),
        ENDS,
        integrator=integrator,
        kernel=kernel,
        capacity=start.total,
        adjoint=adjoint,
    )


def _variance(end, plan):
    """Sum the squares of the density, and a function of all that moves along with the particles,
    so that each of these arrays has a cotangent.
    """
    delta = density_contrast(end, plan, kernel="tsc")
    moving = [x for x in (end.momentum, end.displacements) if x is not None]
    return sum(
        (pfftjax.vdot(x**2, jnp.cos(x), plan.grid) for x in moving),
        start=pfftjax.vdot(delta, delta, plan.grid),
    )


def _loss(noise, omega_c, plan, adjoint, **options):
    return _variance(_end(noise, omega_c, plan, adjoint, **options), plan)


def _gradients(plan, adjoint, **options):
    def loss(noise, omega_c):
        return _loss(noise, omega_c, plan, adjoint, **options)

    return pfftjax.value_and_grad(loss, argnums=(0, 1), shared="omega_c")


@pytest.mark.parametrize(
    ("options", "dtype", "tolerance"),
    [
        pytest.param(
            {"integrator": bullfrog, "kernel": "tsc"},
            "float64",
            1e-10,
            marks=pytest.mark.ranks(1, 2),
        ),
        pytest.param({"integrator": cola}, "float64", 1e-10, marks=pytest.mark.ranks(1)),
        pytest.param({}, "float32", 1e-4, marks=pytest.mark.ranks(1)),
    ],
    ids=["bullfrog-tsc", "cola", "fastpm-float32"],
)
def test_gradients_are_those_that_are_stored(options, dtype, tolerance):
    """In the noise and in the cosmology."""
    plans = [small_plan(grid) for grid in grids()[-2:]]
    noises = [small_noise(plan, dtype=dtype) for plan in plans]

    @jax.jit
    def both(noises):
        return [
            [_gradients(plan, adjoint, **options)(x, OMEGA_C) for adjoint in ADJOINTS]
            for plan, x in zip(plans, noises, strict=True)
        ]

    for stored, reversible in both(noises):
        assert_close(reversible, stored, tolerance)


def test_gradients_against_differences():
    plan = small_plan(grids()[-1])
    noise, direction = random(SHAPE, seed=1), random(SHAPE, seed=2)
    run = jax.jit(_gradients(plan, "reversible", integrator=bullfrog))

    def at(step, change):
        return run(plan.input.local_block(noise + step * direction), OMEGA_C + change)

    _, (of_noise, of_omega) = at(0, 0)
    step = 1e-5
    slope = (at(step, 0)[0] - at(-step, 0)[0]) / (2 * step)
    along = total(of_noise, plan.input.local_block(direction)).real
    assert abs(along - slope) < 1e-6 * abs(slope)
    slope = (at(0, step)[0] - at(0, -step)[0]) / (2 * step)
    assert abs(of_omega - slope) < 1e-6 * abs(slope)


def test_every_mode_of_differentiation():
    """Forward, forward over reverse, reverse over forward, and maps inside and outside."""
    plan = small_plan(grids()[0])
    noise, direction = (small_noise(plan, seed) for seed in (4, 5))
    several = jnp.stack([noise, 0.5 * noise])

    def results(adjoint):
        def loss(x):
            return _loss(x, OMEGA_C, plan, adjoint, kernel="tsc")

        gradient = pfftjax.grad(loss)
        return {
            "forward": jax.jvp(loss, (noise,), (direction,)),
            "forward over reverse": jax.jvp(gradient, (noise,), (direction,)),
            "reverse over forward": pfftjax.grad(lambda x: jax.jvp(loss, (x,), (direction,))[1])(
                noise
            ),
            "of each": jax.vmap(gradient)(several),
            "of all": pfftjax.grad(lambda x: jnp.sum(jax.vmap(loss)(x)))(several),
        }

    expected, actual = jax.jit(lambda: [results(adjoint) for adjoint in ADJOINTS])()
    for mode, values in expected.items():
        assert_close(actual[mode], values, 1e-9)
    twice = expected["forward over reverse"][1]
    np.testing.assert_allclose(actual["reverse over forward"], twice, rtol=1e-8, atol=1e-6)


@pytest.mark.ranks(1)
def test_without_jit_and_in_a_box_that_is_differentiated():
    plan = small_plan(grids()[0])
    noise = small_noise(plan, 4)

    def loss(side, adjoint):
        box = tuple(side * n for n in SHAPE)
        return _loss(noise, OMEGA_C, plan, adjoint, box=box)

    stored, reversible = (pfftjax.grad(loss, shared=0)(3.0, adjoint) for adjoint in ADJOINTS)
    assert abs(reversible / stored - 1) < 1e-10


@pytest.mark.ranks(1)
def test_memory_does_not_grow_with_the_steps():
    plan = small_plan(grids()[-1])
    noise = small_noise(plan, 4)

    def needed(adjoint, steps):
        def loss(x):
            start = small_start(x, OMEGA_C, plan)
            ends = np.linspace(0.1, 1, steps + 1)
            end = simulate(start, plan, BOX, cosmology(), ends, adjoint=adjoint)
            return _variance(end, plan)

        compiled = jax.jit(pfftjax.grad(loss)).lower(noise).compile()
        return compiled.memory_analysis().temp_size_in_bytes

    # Each step has a few numbers of its own, which count in a small box.
    most = CONTROL.allreduce(needed("reversible", 40) - needed("reversible", 5))
    assert most < 0.05 * CONTROL.allreduce(needed("reversible", 5))
    stored = CONTROL.allreduce(needed("stored", 40) - needed("stored", 5))
    assert stored > 35 * 40 * np.prod(SHAPE)


@pytest.mark.ranks(1)
def test_a_run_that_has_no_way_back_is_refused():
    """A stage that forgets its momenta, as rounding does in the end: no gradient is wrong."""
    plan = small_plan(grids()[0])
    noise = small_noise(plan, 4)

    def forgetful(universe, ends):
        steps = fastpm(universe, ends)
        return steps._replace(momentum=jnp.ones_like(steps.kick).at[2].set(0))

    def gradient(adjoint):
        return jax.jit(lambda x: _gradients(plan, adjoint, integrator=forgetful)(x, OMEGA_C))

    stored = gradient("stored")(noise)
    assert all(np.all(np.isfinite(x)) for x in jax.tree.leaves(stored))
    with pytest.raises(jax.errors.JaxRuntimeError, match=r'pass simulate\(.*adjoint="stored"'):
        jax.block_until_ready(gradient("reversible")(noise))
    recover()


@pytest.mark.ranks(1)
def test_a_first_stage_that_forgets_its_momenta():
    """It is not undone but done again, from the start, which is known."""
    plan = small_plan(grids()[-1])
    noise = small_noise(plan, 4)

    def of_one_stage(universe, ends):
        steps = bullfrog(universe, np.asarray(ends)[[0, -1]])
        return Steps(steps.kick, steps.drift, jnp.zeros(1), steps.first_drift)

    @jax.jit
    def both(noise):
        return [
            _gradients(plan, adjoint, integrator=of_one_stage)(noise, OMEGA_C)
            for adjoint in ADJOINTS
        ]

    stored, reversible = both(noise)
    assert_close(reversible, stored, 1e-10)


@pytest.mark.ranks(3)
def test_particles_elsewhere_have_their_own_cotangents():
    """Those of the rows as they were given, which are on ranks that do not own them."""
    plan = small_plan(grids()[-1])

    @jax.jit
    def both():
        noise = white_noise(jax.random.key(2), plan.input)
        start = small_start(noise, OMEGA_C, plan)
        # To the other side of the box.
        away = start.offset + 0.5 * jnp.asarray(SHAPE)

        def loss(offset, momentum, adjoint):
            given = dataclasses.replace(start, offset=offset, momentum=momentum)
            end = simulate(
                given, plan, BOX, cosmology(), ENDS, capacity=start.total, adjoint=adjoint
            )
            return _variance(end, plan)

        return [
            pfftjax.grad(lambda *x, a=adjoint: loss(*x, a), argnums=(0, 1))(away, start.momentum)
            for adjoint in ADJOINTS
        ]

    stored, reversible = both()
    assert_close(reversible, stored, 1e-10)
    for x in stored:
        assert x.size == 0 or np.abs(x).max() > 0

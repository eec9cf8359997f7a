"""Whole simulations: the same universe on every grid, with its derivatives, and the physics that
is known without a simulation."""

import dataclasses
import functools
import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from mpi4py import MPI

from pfftjax import PencilFFT
from pfftjax.collectives import allreduce, recover, replicate
from pfftjax.pm import (
    Particles,
    Paths,
    Steps,
    cola,
    density_contrast,
    fastpm,
    force,
    gravity,
    growth,
    leapfrog,
    linear_field,
    lpt,
    paint,
    power_spectrum,
    readout,
    simulate,
    tabulated,
    to_owners,
    white_noise,
)
from tests.distributed import alone, assert_block, grids, total
from tests.helpers import CONTROL, RANK, SIZE, random
from tests.pm.universe import at_home, cosmology, everybody, owners, table

pytestmark = [pytest.mark.mpi, pytest.mark.timeout(300), pytest.mark.ranks(1, 4)]

SHAPE = (12, 14, 16)
BOX = (30.0, 35.0, 40.0)
STEPS = np.linspace(0.1, 1, 6)


def _run(noise, plan):
    """(linear field, particles at a = 0.1, particles today, their density)"""
    delta = linear_field(noise, plan, BOX, tabulated(*table()))
    start = lpt(delta, plan, BOX, cosmology(), STEPS[0])
    end = simulate(start, plan, BOX, cosmology(), STEPS, capacity=start.total)
    return delta, start, end, density_contrast(end, plan)


@functools.cache
def _universes():
    """(plan, loss, results, gradient of the loss in the noise) on this rank alone and then on
    every grid, and in random directions (direction, slopes of the losses by differences)."""
    plans = [PencilFFT(SHAPE, grid, real=True) for grid in (alone(), *grids())]
    noise = np.asarray(jax.random.normal(jax.random.key(1), SHAPE, "float32"), "float64")

    @jax.jit
    def everything(noises):
        results = []
        for plan, x in zip(plans, noises, strict=True):

            def loss(x, plan=plan):
                result = _run(x, plan)
                return jnp.sum(result[-1] ** 2), result

            results.append(jax.value_and_grad(loss, has_aux=True)(x))
        return results

    def at(whole):
        return everything([plan.input.local_block(whole) for plan in plans])

    def losses(whole):
        first, *others = (loss for (loss, _), _ in at(whole))
        return np.array([float(first), *(total(loss, 1.0).real for loss in others)])

    step = 1e-6
    slopes = []
    for v in (random(SHAPE, seed=s) for s in (2, 3)):
        slopes.append((v, (losses(noise + step * v) - losses(noise - step * v)) / (2 * step)))
    runs = [(p, *run, gradient) for p, (run, gradient) in zip(plans, at(noise), strict=True)]
    return runs, slopes


def test_the_universe_is_the_same_on_every_grid():
    """Initial conditions, particles and densities, and the gradient."""
    ((_, loss, (delta, _, end, density), gradient), *others), _ = _universes()
    # This is the number of this rank alone, without the other ranks.
    order = np.lexsort(np.asarray(end.cell).T[::-1])
    cell, offset, momentum = (np.asarray(x)[order] for x in (end.cell, end.offset, end.momentum))
    for plan, part, (delta_here, _, end_here, density_here), gradient_here in others:
        assert_block(delta_here, delta, plan.input, 1e-12)
        cells, offsets, momenta = everybody(end_here)
        np.testing.assert_array_equal(cells, cell)
        assert np.abs(offsets - offset).max() < 1e-10
        assert np.abs(momenta - momentum).max() < 1e-10 * np.abs(momentum).max()
        assert_block(density_here, density, plan.input, 1e-10)
        assert abs(total(part, 1.0) - loss) < 1e-10 * loss
        assert_block(gradient_here, gradient, plan.input, 1e-8)


def test_particles_are_where_they_belong():
    """And many are not where they were."""
    (_, *others), _ = _universes()
    for plan, _, (_, start, end, _), _ in others:
        used = int(end.used)
        assert CONTROL.allreduce(used) == end.total == np.prod(SHAPE)
        now = np.asarray(end.cell + jnp.floor(end.offset).astype(int))[:used]
        assert np.all(owners(now, plan.input) == RANK)
        from_elsewhere = int((owners(end.cell[:used], plan.input) != RANK).sum())
        if SIZE > 1:
            assert CONTROL.allreduce(from_elsewhere) > 0.03 * end.total
        # Absent particles are nowhere, and the units of the box are those of its sides.
        assert not np.any(np.asarray(end.offset)[used:])
        x = np.asarray(end.coordinates(BOX))[:used]
        assert np.all((x >= 0) & (x <= BOX))
        np.testing.assert_allclose(
            x,
            (np.asarray(end.cell + end.offset)[:used] % SHAPE) * np.divide(BOX, SHAPE),
            rtol=1e-12,
        )
        assert int(start.used) == int(np.prod(plan.input.local_shape))


def test_momentum_and_mass_are_kept():
    (_, *others), _ = _universes()
    for _, _, (_, _, end, density), _ in others:
        momentum = np.asarray(end.momentum)
        sums = CONTROL.allreduce(momentum.sum(0)), CONTROL.allreduce(np.abs(momentum).sum(0))
        assert np.all(np.abs(sums[0]) < 1e-12 * sums[1])
        assert abs(total(density, 1.0)) < 1e-10


def test_gradient_against_differences():
    """The derivative of all steps, exchanges and transforms is compared with differences, in
    random directions of the white noise.
    """
    runs, slopes = _universes()
    for v, expected in slopes:
        for i, (plan, _, _, gradient) in enumerate(runs):
            along = np.asarray(gradient) * plan.input.local_block(v)
            slope = np.sum(along) if i == 0 else total(along, 1.0).real
            assert abs(slope - expected[i]) < 1e-6 * abs(expected[i])


OTHER = PencilFFT((8, 9, 6), grids()[len(grids()) // 2], real=True)
SMALL = (20.0, 22.5, 15.0)


def _small(plan=OTHER, dtype=None, amplitude=1.0, steps=3, universe=None, **options):
    """The particles of a small simulation, today; with all of its options."""
    universe = cosmology() if universe is None else universe
    k, power = table()
    noise = white_noise(jax.random.key(2), plan.input, dtype)
    delta = linear_field(noise, plan, SMALL, tabulated(k, amplitude**2 * power))
    start = lpt(delta, plan, SMALL, universe, 0.1)
    ends = jnp.linspace(0.1, 1, steps + 1)
    return simulate(start, plan, SMALL, universe, ends, capacity=start.total, **options)


@pytest.mark.parametrize(
    ("at", "options"),
    [
        ({"Omega_c": 0.27, "w0": -0.95}, {"kernel": "tsc", "integrator": leapfrog}),
        ({"amplitude": 0.9}, {"gradient": "spectral"}),
    ],
    ids=["cosmology-tsc-leapfrog", "amplitude-spectral-fastpm"],
)
def test_derivatives_in_parameters(at, options):
    """Numbers that are the same on every rank."""

    def loss(x):
        parameters = dict(zip(at, replicate(x), strict=True))
        amplitude = parameters.pop("amplitude", 1.0)
        end = _small(amplitude=amplitude, universe=cosmology(**parameters), **options)
        return allreduce(jnp.sum(density_contrast(end, OTHER, kernel="tsc") ** 2)), end

    run = jax.jit(jax.value_and_grad(loss, has_aux=True))
    x, step = np.array(list(at.values())), 1e-6
    (_, end), gradient = run(x)
    for i, unit in enumerate(np.eye(len(x))):
        (after, _), _ = run(x + step * unit)
        (before, _), _ = run(x - step * unit)
        slope = (after - before) / (2 * step)
        assert abs(gradient[i] - slope) < 1e-6 * abs(slope), i
    _, _, momentum = everybody(end)
    assert np.all(np.abs(momentum.sum(0)) < 1e-12 * np.abs(momentum).sum(0))


def test_force_is_gravity_at_particles():
    """With ghosts of its own, in place of those of `readout`."""
    cases, operands = [], []
    for grid in grids():
        plan = PencilFFT((8, 9, 6), grid, real=True)
        cells, offsets, used = at_home(plan.input, 20)
        mine = jnp.asarray(cells[RANK]), jnp.asarray(offsets[RANK]), jnp.zeros(offsets[RANK].shape)
        numbers = jnp.asarray(used[RANK]), int(used.sum())
        particles = Particles(*mine, *numbers, plan.shape)
        for case in (
            ("cic", "finite-difference"),
            ("tsc", "spectral"),
            ("tsc", "finite-difference"),
        ):
            cases.append((plan, *case))
            operands.append(particles)

    @jax.jit
    def both(operands):
        results = []
        for (plan, kernel, gradient), p in zip(cases, operands, strict=True):
            density = paint(p.positions, plan.input, kernel=kernel) * (8 * 9 * 6 / p.total)
            delta = density_contrast(p, plan, kernel=kernel)
            source = 1.5 * cosmology().Omega_m * (density - 1)
            field = gravity(source, plan, SMALL, gradient=gradient)
            actual = force(p, plan, SMALL, cosmology(), kernel=kernel, gradient=gradient)
            expected = readout(field, p.positions, plan.input, kernel=kernel)
            results.append((actual, expected, delta + 1, density))
        return results

    for actual, expected, delta, density in both(operands):
        np.testing.assert_allclose(delta, density, rtol=1e-12, atol=1e-12)
        np.testing.assert_allclose(actual, expected, rtol=1e-11, atol=1e-12)


def test_force_to_second_order():
    """Particles are displaced to second order, and the growth equation of that order gives the
    force on them. What the mesh does to the first order cancels between a field and its negative.
    """
    n = 32
    plan = PencilFFT((n, n, n), grids()[len(grids()) // 2], real=True)

    @jax.jit
    def forces():
        x, y, z = (2 * jnp.pi / n * plan.input.indices(axis) for axis in range(3))
        delta = 0.03 * (jnp.cos(x) * jnp.cos(y + 1) + jnp.cos(y) * jnp.cos(z) + jnp.cos(z + x))
        results = []
        for sign in (1, -1):
            p = lpt(sign * delta, plan, float(n), cosmology(), 1.0)
            p = to_owners(p, plan.input, p.total)
            pull = force(p, plan, float(n), cosmology(), kernel="tsc")
            results.append(dataclasses.replace(p, momentum=pull))
        return results, growth(cosmology(), 1.0)

    both, g = forces()
    _, moved, pull = (sum(x) / 2 for x in zip(*map(everybody, both), strict=True))
    expected = 1.5 * g.omega_m * (g.d2 - g.d1**2) / g.d2 * moved
    size = np.sum(expected**2)
    assert 0.92 < np.sum(pull * expected) / size < 1
    assert np.sum(pull * expected) ** 2 / size / np.sum(pull**2) > 0.99


def test_forward_and_back_in_time():
    plan = PencilFFT(SHAPE, grids()[len(grids()) // 2], real=True)

    @jax.jit
    def there_and_back():
        noise = white_noise(jax.random.key(1), plan.input)
        _, start, end, _ = _run(noise, plan)
        back = simulate(end, plan, BOX, cosmology(), STEPS[::-1], capacity=start.total)
        return start, end, back

    runs = [list(map(everybody, there_and_back())) for _ in range(2)]
    # The same bits from run to run.
    jax.tree.map(np.testing.assert_array_equal, *runs)
    (cell, offset, momentum), (_, moved, _), (cells, offsets, momenta) = runs[0]
    np.testing.assert_array_equal(cells, cell)
    # They have been far away.
    assert np.abs(moved - offset).max() > 2
    assert np.abs(offsets - offset).max() < 1e-9
    assert np.abs(momenta - momentum).max() < 1e-9 * np.abs(momentum).max()


def test_single_precision():
    end, expected = jax.jit(
        lambda: [_small(dtype=d, integrator=leapfrog) for d in ("float32", None)]
    )()
    assert end.offset.dtype == end.momentum.dtype == "float32"
    density = jax.jit(lambda p: density_contrast(p, OTHER))(end)
    assert density.dtype == "float32"
    assert abs(total(density, 1.0)) < 1e-3
    (cell, offset, momentum), (cells, offsets, momenta) = everybody(end), everybody(expected)
    np.testing.assert_array_equal(cell, cells)
    assert np.abs(offset - offsets).max() < 1e-3
    assert np.abs(momentum - momenta).max() < 1e-3 * np.abs(momenta).max()


def test_a_finer_mesh_for_the_forces():
    """Twice as fine, and finer by 5/3: the same particles in other units, and all of the mass."""
    shape, side = (6, 9, 6), 20.0
    plan = PencilFFT(shape, grids()[-1], real=True)
    meshes = [PencilFFT(s, plan.grid, real=True) for s in (shape, (12, 18, 12), (10, 15, 10))]

    @jax.jit
    def runs():
        noise = white_noise(jax.random.key(4), plan.input)
        delta = linear_field(noise, plan, side, tabulated(*table()))
        starts = [
            lpt(delta, plan, side, cosmology(), 0.2, order=1, mesh_shape=mesh.shape)
            for mesh in meshes
        ]
        starts += [starts[0].rescaled(mesh.input) for mesh in meshes]
        at = [p.coordinates(side) for p in starts]
        fine, start = meshes[1], starts[1]
        end = simulate(
            start,
            fine,
            side,
            cosmology(),
            [0.2, 0.6, 1.0],
            integrator=leapfrog,
            capacity=start.total,
        )
        return starts, at, end, density_contrast(end, fine)

    starts, coordinates, end, density = runs()
    for start, at in zip(starts, coordinates, strict=True):
        np.testing.assert_allclose(start.momentum, starts[0].momentum, rtol=1e-12)
        around = np.abs(at - coordinates[0])
        assert np.minimum(around, side - around).max(initial=0) < 1e-12 * side
    assert CONTROL.allreduce(int(end.used)) == np.prod(shape)
    assert abs(total(density + 1, 1.0) / 8 - np.prod(shape)) < 1e-10
    # Denser than at the start, as it should be.
    assert total(density, density).real > 8 * np.prod(shape)


AXES = (0, 2)


def test_pancake():
    """A plane wave before its crossing, where Zel'dovich's solution is exact: along an axis that
    is split, and along one that is not."""
    n, side, first, last = 32, 32.0, 0.1, 0.9
    plans = [
        PencilFFT([n if a == axis else 4 for a in range(3)], grids()[len(grids()) // 2], real=True)
        for axis in AXES
    ]
    boxes = [tuple(side * m / n for m in plan.shape) for plan in plans]
    ends = np.linspace(first, last, 21)

    @jax.jit
    def runs():
        results = []
        steps = fastpm(cosmology(), ends)
        for axis, plan, box in zip(AXES, plans, boxes, strict=True):
            # Crossing today: the linear density contrast is cos(k q).
            wave = jnp.cos(2 * jnp.pi / n * plan.input.indices(axis))
            delta = jnp.broadcast_to(wave, plan.input.local_shape)
            start = lpt(delta, plan, box, cosmology(), first, order=1)
            end = simulate(
                start,
                plan,
                box,
                cosmology(),
                ends,
                integrator=lambda *_: steps,
                capacity=start.total,
            )
            results.append((start, end))
        return results, growth(cosmology(), np.array([first, last, 1.0]))

    results, g = runs()
    for axis, (start, end) in zip(AXES, results, strict=True):
        for particles, d, rate, tolerance in (
            (start, g.d1[0], g.momentum[0], 1e-12),
            (end, g.d1[1], g.momentum[1], 0.025),
        ):
            cell, offset, momentum = everybody(particles)
            # In cells of one Mpc/h.
            exact = -np.sin(2 * np.pi * cell[:, axis] / n) * n / (2 * np.pi) / g.d1[2]
            error = np.sqrt(
                np.mean((offset[:, axis] - d * exact) ** 2) / np.mean((d * exact) ** 2)
            )
            assert error < tolerance
            across = np.delete(offset, axis, axis=1)
            assert np.abs(across).max() < 1e-10
            if particles is start:
                assert np.abs(momentum[:, axis] - rate * exact).max() < 1e-12


@pytest.mark.memory
def test_growth_on_large_scales():
    """As linear theory has it, and the same with 5 and with 20 steps."""
    n, side = (64 if SIZE <= 2 else 32), 1000.0
    plan = PencilFFT((n, n, n), grids()[-1], real=True)

    @jax.jit
    def transfers():
        noise = white_noise(jax.random.key(0), plan.input, "float32")
        delta = linear_field(noise, plan, side, tabulated(*table()))
        start = lpt(delta, plan, side, cosmology(), 0.1)
        results = []
        for steps in (5, 20):
            end = simulate(start, plan, side, cosmology(), jnp.linspace(0.1, 1, steps + 1))
            density = density_contrast(end, plan)
            cross = power_spectrum(density, plan, side, other=delta)
            results.append(cross.power[0] / power_spectrum(delta, plan, side).power[0])
        return results

    few, many = transfers()
    assert abs(few - many) < 2e-3
    for transfer in (few, many):
        assert -0.03 < transfer - 1 < 0.01


@pytest.mark.wrong_types
def test_what_is_refused():
    plan = OTHER
    here = rf" on rank {RANK} of {SIZE}: "

    def traced(particles, plan, integrator=leapfrog, **options):
        jax.eval_shape(
            lambda: simulate(
                particles, plan, SMALL, cosmology(), STEPS, integrator=integrator, **options
            )
        )

    rows = np.zeros((1, 3))
    particles = Particles(rows.astype("int32"), rows, rows, np.int32(1), SIZE, plan.shape)
    with pytest.raises(TypeError, match="simulate" + here + "particles must be pm.Particles"):
        traced(rows, plan)
    with pytest.raises(ValueError, match="simulate: the plan must be a PencilFFT"):
        traced(particles, PencilFFT(plan.shape, plan.grid))
    with pytest.raises(TypeError, match="simulate" + here + "the integrator must return pm.Steps"):
        traced(particles, plan, lambda *_: (np.zeros(2), np.zeros(2)))
    for paths in ((np.zeros((2, 2)),) * 2, Paths(np.zeros(2), np.zeros(2))):
        with pytest.raises(TypeError, match=r"with pm.Paths of two numbers for each"):
            traced(particles, plan, lambda *_, p=paths: Steps(np.zeros(2), np.zeros(2), paths=p))
    with pytest.raises(ValueError, match=r"start from pm.lpt\(..., keep_displacements=True\)"):
        traced(particles, plan, cola)
    without = dataclasses.replace(particles, displacements=rows)
    with pytest.raises(ValueError, match=r"displacements must have shape \(1, 2, 3\)"):
        traced(without, plan, cola)
    with pytest.raises(ValueError, match="kernel must be one of ngp, cic, tsc, pcs, got 'pqs'"):
        traced(particles, plan, kernel="pqs")
    with pytest.raises(ValueError, match="gradient must be finite-difference or spectral"):
        traced(particles, plan, gradient="exact")
    with pytest.raises(ValueError, match="capacity cannot be negative"):
        traced(particles, plan, capacity=-1)
    # Positions are in cells: of another mesh they would make another universe.
    finer = PencilFFT([2 * n for n in plan.shape], plan.grid, real=True)
    for use in (
        lambda p: simulate(p, finer, SMALL, cosmology(), STEPS),
        lambda p: density_contrast(p, finer),
        lambda p: to_owners(p, finer.input),
        lambda p: force(p, finer, SMALL, cosmology()),
    ):
        with pytest.raises(ValueError, match="in units of the cells of a mesh"):
            jax.eval_shape(use, particles)
    with pytest.raises(ValueError, match="box_size must be a positive length"):
        jax.eval_shape(lambda p: force(p, plan, -1.0, cosmology()), particles)


def test_the_capacity_that_would_do():
    """Every rank is told of the fullest one, in every step, until there is room for all."""
    plan = OTHER

    def run(capacity):
        start = lpt(white_noise(jax.random.key(2), plan.input), plan, SMALL, cosmology(), 0.9)
        return simulate(start, plan, SMALL, cosmology(), [0.9, 1.5, 3.0], capacity=capacity)

    capacity, needed = 1, []
    for _ in range(4):
        try:
            end = jax.block_until_ready(jax.jit(functools.partial(run, capacity))())
            break
        except jax.errors.JaxRuntimeError as error:
            recover()
            text = str(error)
            assert f"particles arrive here, where capacity is {capacity};" in text
            capacity = int(re.search(r"a capacity of (\d+) is enough on every rank", text)[1])
            needed.append(capacity)
    assert len(set(CONTROL.allgather(tuple(needed)))) == 1
    assert needed == sorted(set(needed))
    assert needed
    assert CONTROL.allreduce(int(end.used), MPI.MAX) <= capacity
    assert CONTROL.allreduce(int(end.used)) == end.total

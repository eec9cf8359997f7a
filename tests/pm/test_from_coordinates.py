"""Particles of catalogues, and densities of weighted particles, against numpy on one array."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import pfftjax
from pfftjax import observables
from pfftjax.pm import density_contrast, particles_at
from tests.distributed import gathered, grids, raised_everywhere, total
from tests.helpers import CONTROL, RANK, SIZE, assert_close

pytestmark = [pytest.mark.mpi, pytest.mark.timeout(300), pytest.mark.ranks(1, 3, 4)]

SHAPE, BOX = (6, 7, 5), (12.0, 21.0, 10.0)


def plan_on(grid):
    return pfftjax.PencilFFT(SHAPE, grid, real=True)


def rows_of_all(number=200, dtype="float64"):
    """Positions, velocities and weights of all particles, two of them on corners of the box."""
    rng = np.random.default_rng(1)
    position = rng.uniform(0, BOX, (number, 3)).astype(dtype)
    position[0], position[1] = 0, BOX
    return position, rng.normal(0, 300, (number, 3)).astype(dtype), rng.uniform(1, 5, number)


def mine(*arrays):
    """This rank's rows: the last rank has most, and rank 0 of several has none."""
    edges = np.linspace(0, len(arrays[0]), SIZE + 1).astype(int) if SIZE < 3 else None
    if edges is None:
        edges = np.concatenate([[0, 0], np.linspace(5, len(arrays[0]), SIZE - 1).astype(int)])
    return [x[edges[RANK] : edges[RANK + 1]] for x in arrays]


def cloud_in_cell(position, weight):
    """The density contrast on the points of the mesh, by numpy."""
    field = np.zeros(SHAPE)
    at = position * (np.array(SHAPE) / BOX)
    low = np.floor(at).astype(int)
    for corner in np.ndindex(2, 2, 2):
        share = np.prod(np.where(corner, at - low, 1 - (at - low)), axis=1)
        np.add.at(field, tuple(((low + corner) % SHAPE).T), weight * share)
    return field / field.mean() - 1


def test_there_and_back():
    """Rows stay in their order, and positions, velocities and identities are those given."""
    position, velocity, _ = rows_of_all()
    here, moving = mine(position, velocity)
    for grid in grids():
        particles = particles_at(here, plan_on(grid).input, BOX, moving, scale_factor=0.4)
        used = len(here)
        assert (int(particles.used), particles.total) == (used, len(position))
        assert particles.rows == max(CONTROL.allgather(used))
        apart = np.asarray(particles.coordinates())[:used] - here
        assert np.abs(apart - BOX * np.round(apart / BOX)).max(initial=0) < 1e-13
        assert_close(np.asarray(particles.velocities())[:used], moving, 1e-13)
        number = np.ravel_multi_index(tuple((np.asarray(particles.cell)[:used] % SHAPE).T), SHAPE)
        first = sum(CONTROL.allgather(used)[:RANK])
        np.testing.assert_array_equal(number, np.arange(first, first + used))


def test_densities_are_those_of_numpy():
    """With and without weights, on every grid; what unused rows weigh does not count."""
    position, _, weight = rows_of_all()
    here, heavy = mine(position, weight)
    for grid in grids():
        plan = plan_on(grid)
        particles = particles_at(here, plan.input, BOX)
        padded = np.full(particles.rows, 1e6)
        padded[: len(heavy)] = heavy
        plain = jax.jit(lambda p, plan=plan: density_contrast(p, plan))(particles)
        weighted = jax.jit(lambda p, w, plan=plan: density_contrast(p, plan, weights=w))
        ours = gathered(weighted(particles, padded), plan.input)
        assert_close(gathered(plain, plan.input), cloud_in_cell(position, np.ones(200)), 1e-12)
        assert_close(ours, cloud_in_cell(position, weight), 1e-12)
        # Interlacing keeps the mean, and smooth waves; a constant weight is none.
        same = density_contrast(particles, plan, weights=0 * padded + 3, interlaced=True)
        assert_close(same, density_contrast(particles, plan, interlaced=True), 1e-12)


def test_derivatives_in_weights_and_positions():
    """Beside differences over all ranks."""
    position, _, weight = rows_of_all(60)
    here, heavy = mine(position, weight)
    plan = plan_on(grids()[-1])
    particles = particles_at(here, plan.input, BOX)
    w = np.zeros(particles.rows)
    w[: len(heavy)] = heavy

    @jax.jit
    def loss(offset, w):
        moved = dataclasses.replace(particles, offset=offset)
        delta = density_contrast(moved, plan, weights=w, kernel="tsc")
        return pfftjax.vdot(delta, delta**2, plan.grid)

    by_both = jax.jit(pfftjax.grad(loss, argnums=(0, 1), own="w"))(particles.offset, w)
    rng = np.random.default_rng(RANK)
    away, more = rng.normal(size=particles.offset.shape), rng.normal(size=w.shape)
    step = 1e-5
    up = loss(particles.offset + step * away, w + step * more)
    down = loss(particles.offset - step * away, w - step * more)
    slope = total(by_both[0], away).real + total(by_both[1], more).real
    assert abs((up - down) / (2 * step) - slope) < 1e-6 * abs(slope)


def test_groups_become_particles():
    """What friends of friends find is a catalogue whose spectrum can be measured."""
    rng = np.random.default_rng(2)
    centres = rng.uniform(1, 9, (8, 3))
    position = (centres[:, None] + rng.uniform(-0.05, 0.05, (8, 30, 3))).reshape(-1, 3)
    (here,) = mine(position)
    for grid in grids():
        mesh = plan_on(grid).input
        found, _ = observables.friends_of_friends(particles_at(here, mesh, BOX), mesh)
        haloes = particles_at(found.position, mesh, BOX)
        assert haloes.total == found.total == 8
        delta = density_contrast(haloes, plan_on(grid))
        means = position.reshape(8, 30, 3).mean(1)
        assert_close(gathered(delta, mesh), cloud_in_cell(means, np.ones(8)), 1e-12)


def test_single_precision_and_none_at_all():
    """The dtype is that of the coordinates; catalogues may be empty."""
    position, _, _ = rows_of_all(50, "float32")
    (here,) = mine(position)
    plan = plan_on(grids()[0])
    particles = particles_at(here, plan.input, BOX)
    assert particles.offset.dtype == particles.momentum.dtype == jnp.float32
    assert_close(
        gathered(density_contrast(particles, plan), plan.input),
        cloud_in_cell(position.astype(float), np.ones(50)),
        1e-4,
    )
    nobody = particles_at(np.zeros((0, 3)), plan.input, 10.0)
    assert (nobody.rows, nobody.total, int(nobody.used)) == (0, 0, 0)


def test_what_does_not_fit_is_refused():
    """On every rank, where one has it."""
    plan = plan_on(grids()[-1])
    mesh, last = plan.input, SIZE - 1
    rows = np.full((3, 3), 2.0)
    outside, nowhere = rows.copy(), rows.copy()
    if last == RANK:
        outside[1, 2], nowhere[2, 0] = 10.1, np.nan
    raised_everywhere(
        ValueError, "outside of the box of 12 x 21 x 10", particles_at, outside, mesh, BOX
    )
    raised_everywhere(ValueError, "no finite number", particles_at, nowhere, mesh, BOX)
    whole = rows.astype(int) if last == RANK else rows
    raised_everywhere(TypeError, "must be float32 or float64", particles_at, whole, mesh, BOX)
    flat = rows[0] if last == RANK else rows
    raised_everywhere(ValueError, r"must be \(rows, 3\)", particles_at, flat, mesh, BOX)
    raised_everywhere(
        ValueError, "need a positive scale_factor", particles_at, rows, mesh, BOX, rows
    )
    fewer = rows[:2] if last == RANK else rows
    known = {"scale_factor": 1.0}
    raised_everywhere(
        ValueError, "must be those of coordinates", particles_at, rows, mesh, BOX, fewer, **known
    )
    with pytest.raises(TypeError, match="the coordinates are traced"):
        jax.jit(lambda x: particles_at(x, mesh, BOX))(rows)
    if SIZE > 1:
        raised_everywhere(RuntimeError, "asks for", particles_at, rows, mesh, 20.0 + RANK)
    particles = particles_at(rows, mesh, BOX)
    for weights in (np.ones(2), np.ones((3, 1)), np.ones(3) * 1j):
        with pytest.raises(ValueError, match="weights must be real numbers"):
            density_contrast(particles, plan, weights=weights)

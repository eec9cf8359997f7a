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
    """With and without weights, on every grid; unused rows may weigh anything."""
    position, _, weight = rows_of_all()
    here, heavy = mine(position, weight)
    for grid in grids():
        plan = plan_on(grid)
        particles = particles_at(here, plan.input, BOX)
        padded = np.full(particles.rows, np.nan)
        padded[: len(heavy)] = heavy
        plain = jax.jit(lambda p, plan=plan: density_contrast(p, plan))(particles)
        weighted = jax.jit(lambda p, w, plan=plan: density_contrast(p, plan, weights=w))
        ours = gathered(weighted(particles, padded), plan.input)
        assert_close(gathered(plain, plan.input), cloud_in_cell(position, np.ones(200)), 1e-12)
        assert_close(ours, cloud_in_cell(position, weight), 1e-12)


def test_interlaced_densities_are_linear_in_weights():
    """Painted densities add up: each row keeps its own weight on the way to its owner."""
    position, _, weight = rows_of_all()
    here, heavy = mine(position, weight)
    plan = plan_on(grids()[-1])
    particles = particles_at(here, plan.input, BOX)
    rows = np.arange(particles.rows) < len(here)
    one, other = np.zeros((2, particles.rows))
    one[: len(heavy)] = heavy
    other[: len(heavy)] = 1 / heavy
    painted = jax.jit(
        jax.vmap(lambda w: density_contrast(particles, plan, weights=w, interlaced=True) + 1)
    )
    sums = [CONTROL.allreduce(w[rows].sum()) for w in (one, other)]
    of_one, of_other, of_both = painted(np.stack([one, other, one + other]))
    assert_close(sum(sums) * of_both, sums[0] * of_one + sums[1] * of_other, 1e-12)
    # The same weights as counts: those who weigh twice as much are there twice.
    twice = np.concatenate([here, here[::2]])
    doubled = particles_at(twice, plan.input, BOX)
    w = np.where(np.arange(particles.rows) % 2, 1, 2)
    again = density_contrast(doubled, plan, interlaced=True)
    assert_close(painted(w[None])[0] - 1, again, 1e-12)


def test_derivatives_in_weights_and_positions():
    """Beside differences over all ranks; what unused rows weigh has none."""
    position, _, weight = rows_of_all(60)
    here, heavy = mine(position, weight)
    plan = plan_on(grids()[-1])
    particles = particles_at(here, plan.input, BOX)
    w = np.full(particles.rows, np.nan)
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
    assert not np.asarray(by_both[1])[len(heavy) :].any()


def test_a_mesh_of_more_cells_than_an_int32_counts():
    """Shapes only, as no rank has the memory."""
    plan = pfftjax.PencilFFT((1536, 1536, 1024), grids()[-1], real=True)
    particles = particles_at(np.ones((3, 3), "float32"), plan.input, 100.0)
    with jax.enable_x64(False):
        shape = jax.eval_shape(
            lambda p, w: density_contrast(p, plan, weights=w), particles, jnp.ones(3, "float32")
        )
    assert shape.shape == plan.input.local_shape


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


def test_precision_and_order_of_bytes():
    """The dtype is that of the coordinates, wherever there are some; bytes may be swapped."""
    position, velocity, weight = rows_of_all(50, "float32")
    here, moving, heavy = mine(position, velocity, weight)
    plan = plan_on(grids()[0])
    mesh = plan.input
    given = here if len(here) else np.zeros((0, 3))  # of float64
    particles = particles_at(given, mesh, BOX, moving, scale_factor=np.float32(0.5))
    assert particles.offset.dtype == particles.momentum.dtype == jnp.float32
    assert_close(np.asarray(particles.velocities())[: len(here)], moving, 1e-6)
    delta = gathered(density_contrast(particles, plan), mesh)
    assert_close(delta, cloud_in_cell(position.astype(float), np.ones(50)), 1e-4)
    swapped = particles_at(here.astype(">f4"), mesh, BOX)
    np.testing.assert_array_equal(swapped.offset, particles.offset)
    w = np.zeros(particles.rows)
    w[: len(heavy)] = heavy
    weighted = [density_contrast(particles, plan, weights=x) for x in (w, w.astype(">f8"))]
    np.testing.assert_array_equal(*weighted)


def test_nobody():
    """A catalogue may be empty, and its density contrast is an error."""
    plan = plan_on(grids()[-1])
    nobody = particles_at(np.zeros((0, 3)), plan.input, 10.0)
    assert (nobody.rows, nobody.total, int(nobody.used)) == (0, 0, 0)
    with pytest.raises(ValueError, match="no particles on any rank"):
        density_contrast(nobody, plan)


@pytest.mark.wrong_types
def test_what_does_not_fit_is_refused():
    """On every rank, where one has it."""
    plan = plan_on(grids()[-1])
    mesh, last = plan.input, SIZE - 1
    rows = np.full((3, 3), 2.0)

    def on_last(x):
        return x if last == RANK else rows

    outside, nowhere = rows.copy(), rows.copy()
    outside[1:, 2], nowhere[2, 0] = 10.1, np.nan
    for bad, error, text in (
        (outside, ValueError, r"row 1 of a catalogue is outside .* axis 2, and so are 2 of 3"),
        (nowhere, ValueError, "the position of row 2 of a catalogue is not finite"),
        (rows.astype(int), TypeError, "coordinates must be float32 or float64"),
        (rows[0], ValueError, r"coordinates must be \(rows, 3\)"),
    ):
        raised_everywhere(error, text, particles_at, on_last(bad), mesh, BOX)
    raised_everywhere(ValueError, "need a scale_factor", particles_at, rows, mesh, BOX, rows)
    for fewer, text in (
        (rows[:2], "must be those of coordinates"),
        (nowhere, "the velocity of row 2"),
    ):
        given = {"velocities": on_last(fewer), "scale_factor": 1.0}
        raised_everywhere(ValueError, text, particles_at, rows, mesh, BOX, **given)
    for a in (-1.0, np.nan, "early", np.ones(2)):
        raised_everywhere(
            ValueError, "must be a positive number", particles_at, rows, mesh, BOX, scale_factor=a
        )
    raised_everywhere(ValueError, rf"of {SIZE}: box_size", particles_at, rows, mesh, 0.0)
    with pytest.raises(TypeError, match="an argument is traced"):
        jax.jit(lambda x: particles_at(x, mesh, BOX))(rows)
    particles = particles_at(rows, mesh, BOX)
    for weights in (np.ones(2), np.ones((3, 1)), np.ones(3) * 1j):
        with pytest.raises(ValueError, match=r"pad them to particles\.rows"):
            density_contrast(particles, plan, weights=weights)


@pytest.mark.skipif(SIZE == 1, reason="nobody to differ from")
def test_ranks_that_differ_are_refused():
    """In what all must have alike."""
    mesh, rows = plan_on(grids()[-1]).input, np.full((3, 3), 2.0)
    other = pfftjax.PencilFFT((6, 7, 6), mesh.grid, real=True).input
    differs = raised_everywhere
    differs(RuntimeError, "asks for", particles_at, rows, mesh, 20.0 + RANK)
    differs(RuntimeError, "asks for", particles_at, rows, other if RANK else mesh, BOX)
    differs(RuntimeError, "asks for", particles_at, rows, mesh, BOX, scale_factor=0.5 + RANK)
    some = {"velocities": rows if RANK else None, "scale_factor": 1.0}
    differs(RuntimeError, "with velocities", particles_at, rows, mesh, BOX, **some)
    mixed = rows.astype("float32") if RANK else rows
    differs(TypeError, "float32 and float64 on different ranks", particles_at, mixed, mesh, BOX)
    # One and 1.0 are one number.
    same = particles_at(rows, mesh, BOX, scale_factor=1 if RANK else 1.0)
    assert same.scale_factor == 1.0

"""Friends of friends on any ranks, against all pairs of particles."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import pfftjax
from pfftjax import observables, pm
from pfftjax.observables._linking import linked
from pfftjax.pm._identity import cells_of
from pfftjax.pm.internal import identities_of
from tests.distributed import grids, raised_everywhere
from tests.helpers import CONTROL, RANK, SIZE, drawn, on_one_rank
from tests.observables.groups import catalogue_of, groups_of
from tests.pm.universe import cosmology

pytestmark = [pytest.mark.mpi, pytest.mark.ranks(1, 3, 4)]

MESH, BOX = (6, 7, 5), (12.0, 21.0, 10.0)
SIDES = np.asarray(BOX)


def mesh_on(grid, shape=MESH):
    """Its pencil."""
    return pfftjax.PencilFFT(shape, grid, real=True).input


def particles_at(cells, momentum=None, *, share=None, shape=MESH, **known):
    """Particles at these places, in cells, each of an identity of its own; rank `share[i]` has
    particle i, and all but those that it has are unused rows of nonsense.
    """
    total = len(cells)
    share = np.arange(total) % SIZE if share is None else share
    momentum = np.zeros((total, 3)) if momentum is None else momentum
    # Identities are not in the order of the places.
    identity = np.random.default_rng(5).permutation(total).astype(np.uint64)
    cell = cells_of(identity, shape)
    mine = np.flatnonzero(share == RANK)
    rows = np.concatenate([mine, np.zeros(2, int)]) if total else np.zeros(0, int)
    return identity, pm.Particles(
        jnp.asarray(cell[rows]),
        jnp.asarray((cells - cell)[rows]),
        jnp.asarray(momentum[rows]),
        jnp.int32(len(mine)),
        total,
        shape,
        **known,
    )


def everybody(particles, *arrays):
    """Rows of all ranks, as (identity, ...) in the order of identities."""
    used = int(particles.used)
    identity = identities_of(np.asarray(particles.cell)[:used], particles.mesh_shape)
    mine = [identity, *(np.asarray(x)[:used] for x in arrays)]
    whole = [np.concatenate(CONTROL.allgather(x)) for x in mine]
    return [x[np.argsort(whole[0])] for x in whole]


def check(cells, momentum, length, smallest, mesh, share=None):
    """The groups of some particles on this grid are those of all pairs."""
    known = {"box_size": BOX, "scale_factor": 0.5}
    identity, particles = particles_at(cells, momentum, share=share, **known)
    mean = (np.prod(BOX) / len(cells)) ** (1 / 3)
    catalogue, group = observables.friends_of_friends(
        particles, mesh, linking_length=length / mean, smallest=smallest, cosmology=cosmology()
    )
    assert group.shape == (particles.rows,)
    assert (np.asarray(group)[int(particles.used) :] == -1).all()
    # The same numbers as the ranks have: the places are rounded once more, as offsets.
    _, cell, offset = everybody(particles, particles.cell, particles.offset)
    position = np.mod(cell % np.asarray(MESH) + offset, MESH) * (SIDES / MESH)
    velocity = np.zeros_like(position)
    velocity[identity.astype(int)] = 200 * momentum
    numbers = groups_of(position, SIDES, length / mean * mean)
    identity = np.sort(identity)
    expected = catalogue_of(position, velocity, identity, numbers, SIDES, smallest)

    whole = catalogue.whole(mesh.grid)
    counts = CONTROL.allgather(len(catalogue))
    assert max(counts) - min(counts) <= 1
    assert catalogue.total == sum(counts) == len(expected)
    np.testing.assert_array_equal(whole.length, [row[0] for row in expected])
    np.testing.assert_array_equal(whole.identity, [row[1] for row in expected])
    if expected:
        apart = whole.position - [row[2] for row in expected]
        assert np.abs(apart - SIDES * np.round(apart / SIDES)).max() < 1e-12
        np.testing.assert_allclose(whole.velocity, [row[3] for row in expected], atol=1e-11)
        np.testing.assert_allclose(whole.dispersion, [row[4] for row in expected], atol=1e-5)
        assert (whole.position >= 0).all()
        assert (whole.position < SIDES).all()
    assert np.allclose(
        whole.mass, whole.length * 2.77536627e11 * 0.309641 * np.prod(BOX) / len(cells)
    )

    _, place = everybody(particles, group)
    names = {row[1]: i for i, row in enumerate(expected)}
    for number in np.unique(numbers):
        members = numbers == number
        assert set(place[members]) == {names.get(int(identity[members].min()), -1)}
    return whole


def clumps(rng, number, total):
    """Particles around some places, uniformly elsewhere."""
    centres = rng.uniform(0, MESH, (number, 3))
    near = centres[rng.integers(0, number, total // 2)] + rng.normal(0, 0.3, (total // 2, 3))
    return np.concatenate([near, rng.uniform(0, MESH, (total - total // 2, 3))]) % MESH


@drawn(8)
@given(
    st.integers(0, 2**32 - 1),
    st.integers(1, 300),
    st.sampled_from([0.3, 1.0, 2.0, 3.3, 4.9]),
    st.sampled_from([1, 3, 20]),
)
def test_the_groups_of_all_pairs(seed, total, length, smallest):
    """On every grid: blocks of uneven sizes, some thinner than the linking length; particles on
    ranks that do not own them."""
    rng = np.random.default_rng(seed)
    cells = clumps(rng, 5, total)
    momentum = rng.standard_normal((total, 3))
    for grid in grids():
        check(cells, momentum, length, smallest, mesh_on(grid), rng.integers(0, SIZE, total))


def test_a_chain_through_all_blocks_and_around_the_box():
    """One group that crosses every boundary and closes on itself, beside one on a corner of the
    box."""
    t = np.linspace(0, 1, 160, endpoint=False)
    ring = np.stack([6 * t, np.full(160, 3.5), np.full(160, 2.5)], 1)
    other = np.stack([np.full(160, 3.0), 7 * t, np.full(160, 2.5)], 1)
    corner = np.random.default_rng(0).normal(0, 0.05, (21, 3)) % MESH
    cells = np.concatenate([ring, other, corner])
    for grid in grids():
        whole = check(cells, 0 * cells, 0.3, 20, mesh_on(grid))
        assert whole.length.tolist() == [320, 21]


@pytest.mark.parametrize("total", [0, 1, 2, 60])
def test_one_group_of_everything_and_none(total):
    """With all particles on one rank, or none anywhere."""
    cells = np.full((total, 3), 2.25)
    for grid in grids():
        mesh = mesh_on(grid)
        _, particles = particles_at(cells, share=np.full(total, SIZE - 1), box_size=BOX)
        catalogue, group = observables.friends_of_friends(particles, mesh, smallest=2)
        assert catalogue.velocity is catalogue.dispersion is None
        whole = catalogue.whole(grid)
        assert whole.length.tolist() == ([total] if total > 1 else [])
        assert whole.mass.tolist() == whole.length.tolist()
        expected = 0 if total > 1 else -1
        assert (np.asarray(group)[: int(particles.used)] == expected).all()


def test_meshes_with_fewer_planes_than_ranks():
    """Where some ranks own nothing."""
    rng = np.random.default_rng(2)
    cells = rng.uniform(0, (2, 1, 3), (80, 3))
    for grid in grids():
        mesh = mesh_on(grid, (2, 1, 3))
        _, particles = particles_at(cells, shape=(2, 1, 3), box_size=(4.0, 5.0, 6.0))
        catalogue, _ = observables.friends_of_friends(
            particles, mesh, linking_length=0.5, smallest=1
        )
        numbers = groups_of(cells * [2, 5, 2], np.array([4.0, 5, 6]), 0.5 * (120 / 80) ** (1 / 3))
        counts = np.sort(np.bincount(numbers))[::-1]
        assert catalogue.whole(grid).length.tolist() == counts.tolist()


@pytest.mark.ranks(2, 4)
@pytest.mark.skipif(SIZE == 1, reason="one rank has no boundary")
def test_a_group_that_winds_through_hundreds_of_parts_takes_few_rounds():
    """A line to and fro over a boundary has a part on either side at each turn."""
    turns = 200
    grid = grids()[-1]
    mesh = mesh_on(grid, (8, 800, 8))
    middle = mesh.range_of(0, (1, 0))[0]
    x = np.concatenate([np.linspace(-1, 1, 9), np.ones(3), np.linspace(1, -1, 9), -np.ones(3)])
    y = np.concatenate([np.zeros(9), np.arange(1, 4) / 4, np.ones(9), 1 + np.arange(1, 4) / 4])
    line = np.concatenate([np.stack([x, y + 2 * turn], 1) for turn in range(turns)])
    position = np.concatenate([line + np.array([middle, 0.5]), np.full((len(line), 1), 4.5)], 1)
    mine = [
        (start <= position[:, axis]) & (position[:, axis] < start + n)
        for axis in (0, 1)
        for start, n in [mesh.range_of(axis)]
    ]
    sides = np.array([8.0, 800, 8])
    groups = linked(position[mine[0] & mine[1]], mesh, sides, 0.26, grid.comm)
    roots = set().union(*CONTROL.allgather(set(groups.root.tolist())))
    parts = CONTROL.allreduce(groups.parts)
    assert len(roots) == 1
    assert parts >= 2 * turns
    assert groups.rounds <= 12


def test_single_precision_gives_the_same_groups_on_any_ranks():
    """Particles in float32 are linked in float64, where they are the same numbers on any rank."""
    rng = np.random.default_rng(7)
    cells = clumps(rng, 4, 250)
    found = []
    for grid in grids():
        _, particles = particles_at(cells, box_size=BOX)
        narrow = [x.astype("float32") for x in (particles.offset, particles.momentum)]
        particles = dataclasses.replace(particles, offset=narrow[0], momentum=narrow[1])
        _, group = observables.friends_of_friends(particles, mesh_on(grid), smallest=2)
        found.append(everybody(particles, group)[1])
    assert all((other == found[0]).all() for other in found)


@on_one_rank
def test_identities_are_cells_and_back():
    """In one copy of the mesh and in many, and of numbers of any size."""
    rng = np.random.default_rng(0)
    whole = np.arange(6 * 7 * 5, dtype=np.uint64)
    expected = np.stack(np.unravel_index(whole.astype(int), MESH), 1)
    np.testing.assert_array_equal(cells_of(whole, MESH), expected)
    cell = rng.integers(0, 40, (500, 3))
    identity = identities_of(cell, MESH)
    assert len(np.unique(identity)) == len(np.unique(cell, axis=0))
    np.testing.assert_array_equal(cells_of(identity, MESH), cell)
    anything = rng.integers(0, 2**63, 500, np.uint64)
    np.testing.assert_array_equal(
        identities_of(cells_of(anything, (64,) * 3), (64,) * 3), anything
    )
    with pytest.raises(ValueError, match="below zero"):
        identities_of(-cell, MESH)
    with pytest.raises(ValueError, match="no identities of 64 bits"):
        identities_of(np.full((1, 3), 2**31 - 1), MESH)


@pytest.mark.wrong_types
def test_what_is_refused():
    mesh = mesh_on(grids()[0])
    find = observables.friends_of_friends
    _, particles = particles_at(np.full((9, 3), 1.5))
    raised_everywhere(ValueError, "no box_size of their own", find, particles, mesh)
    _, particles = particles_at(np.full((9, 3), 1.5), box_size=BOX)
    raised_everywhere(
        ValueError,
        "more than half of the shortest side",
        find,
        particles,
        mesh,
        linking_length=2.0,
    )
    raised_everywhere(
        ValueError, "less than a millionth", find, particles, mesh, linking_length=1e-7
    )
    raised_everywhere(
        ValueError, "linking_length must be", find, particles, mesh, linking_length=0.0
    )
    raised_everywhere(ValueError, "smallest must be", find, particles, mesh, smallest=0)
    raised_everywhere(ValueError, "scale_factor must be", find, particles, mesh, scale_factor=-1.0)
    nowhere = dataclasses.replace(particles, offset=particles.offset / 0)
    raised_everywhere(ValueError, "no finite number", find, nowhere, mesh)
    fewer = dataclasses.replace(particles, total=8)
    raised_everywhere(ValueError, "ranks have 9 particles, but total is 8", find, fewer, mesh)
    raised_everywhere(
        ValueError, "but this one is", find, particles, mesh_on(grids()[0], (8, 8, 8))
    )
    raised_everywhere(TypeError, "must be pm.Particles", find, {}, mesh)

    def outcome(offset):
        moved = dataclasses.replace(particles, offset=offset)
        return find(moved, mesh)[0].mass.sum()

    for traced in (jax.jit(outcome), jax.grad(outcome)):
        with pytest.raises(TypeError, match=r"outside of jax.jit and jax.grad"):
            traced(particles.offset)
    if SIZE > 1:
        raised_everywhere(
            RuntimeError, "rank 0 asks for", find, particles, mesh, smallest=2 + RANK
        )

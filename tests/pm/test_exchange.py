"""Particles to the owners of their cells and back, against a serial model of all ranks."""

import dataclasses
import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pfftjax import Pencil
from pfftjax._runtime.primitive import as_on_gpus
from pfftjax.collectives import recover
from pfftjax.pm import Particles, Positions, Route, to_owners
from tests.distributed import grids, total
from tests.helpers import CONTROL, RANK, SIZE, assert_equal, drawn, random
from tests.pm.universe import owners
from tests.programs import messages

pytestmark = [pytest.mark.mpi, pytest.mark.timeout(300), pytest.mark.messages]


def _scattered(pencil, rows, seed=0):
    """Particles of all ranks, anywhere: (cells and offsets (ranks, rows, 3), used, owners).

    What is in unused rows belongs nowhere.
    """
    rng = np.random.default_rng(seed)
    cells = rng.integers(-20, 20, (SIZE, rows, 3)).astype("int32")
    offsets = rng.integers(-2000, 2000, cells.shape) / 64
    used = rng.integers(0, rows + 1, SIZE).astype("int32")
    unused = np.arange(rows) >= used[:, None]
    owner = owners(cells + np.floor(offsets).astype(int), pencil)
    offsets[unused] = np.nan
    return cells, offsets, used, np.where(unused, -1, owner)


def _there(x, owner, capacity):
    """What arrives; zeros after it.

    Rows that stay keep their places among those in use; others take the free ones, first those
    that stay, and then by sender and in the order there. On GPUs all rows are in that last order.
    """
    mine = owner == RANK
    used = int(mine.sum())
    stays = np.flatnonzero(mine[RANK])
    in_place = not as_on_gpus(jax.default_backend())
    keep = stays[stays < used] if in_place else stays[:0]
    senders = sorted(range(SIZE), key=lambda rank: (in_place and rank != RANK, rank))
    others = [
        x[rank][np.setdiff1d(np.flatnonzero(mine[rank]), keep if rank == RANK else [])]
        for rank in senders
    ]
    result = np.zeros((capacity, *x.shape[2:]), x.dtype)
    result[keep] = x[RANK][keep]
    result[np.setdiff1d(np.arange(used), keep)] = np.concatenate(others)
    return result


def _most(owner):
    """How many particles the fullest rank has."""
    return max(int((owner == rank).sum()) for rank in range(SIZE))


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_coordinates_are_below_the_side_of_the_box(dtype):
    """Also of what is hardly below zero, whose remainder is rounded to the side."""
    offset = jnp.asarray([[-1e-30, 8.0, 7.5], [-8.0, 0.25, -0.5]], dtype)
    at_rest = Particles(jnp.zeros((2, 3), "int32"), offset, offset, jnp.int32(2), 2, (8, 8, 8))
    assert at_rest.coordinates(4.0).tolist() == [[0, 0, 3.75], [0, 0.125, 3.75]]


PAYLOADS = {"int32": (), "float32": (3,), "float64": (2, 2), "complex64": (1,), "bool": (0, 3)}


@drawn(5)
@given(data=st.data())
def test_every_particle_arrives_once(data):
    """Uneven blocks and empty ones, any numbers of particles, payloads of any kind."""
    cases = []
    for _ in range(6):
        shape = data.draw(st.tuples(*[st.integers(1, 9)] * 3))
        pencil = Pencil(shape, data.draw(st.sampled_from(grids())))
        rows = data.draw(st.integers(0, 12))
        all_of_them = _scattered(pencil, rows, data.draw(st.integers(0, 99)))
        spare = data.draw(st.integers(0, 3))
        cases.append((pencil, rows, _most(all_of_them[-1]) + spare, all_of_them))

    @jax.jit
    def exchanged(operands):
        results = []
        for (pencil, _, capacity, _), (at, payloads) in zip(cases, operands, strict=True):
            route = Route.to_owners(at, pencil, capacity)
            there = route.send(payloads)  # in one message
            alone = [route.send_back(y) for y in there]
            results.append((route.count, there, alone, route.send_back(there)))
        return results

    def payloads(rows):
        each = [random((SIZE, rows, *s), dtype, 4) for dtype, s in PAYLOADS.items()]
        names = np.arange(SIZE * rows).reshape(SIZE, rows).astype("int32")
        return [names, *each]

    operands = [
        (
            Positions(cells[RANK], offsets[RANK], used[RANK]),
            [x[RANK] for x in payloads(rows)],
        )
        for _, rows, _, (cells, offsets, used, _) in cases
    ]
    for (_, rows, capacity, (_, _, used, owner)), results in zip(
        cases, exchanged(operands), strict=True
    ):
        count, there, back, together = results
        assert count == (owner == RANK).sum()
        here = np.arange(rows) < used[RANK]
        together_too = iter(together)
        for x, y, z in zip(payloads(rows), there, back, strict=True):
            assert_equal(y, _there(x, owner, capacity))
            zero = np.zeros((), x.dtype)
            assert_equal(z, next(together_too))
            assert_equal(z, np.where(here.reshape(-1, *[1] * (z.ndim - 1)), x[RANK], zero))
        # Without the model: nobody is lost, and nobody is there twice.
        arrived = np.concatenate(CONTROL.allgather(np.asarray(there[0])[:count]))
        everyone = payloads(rows)[0][np.arange(rows) < used[:, None]]
        np.testing.assert_array_equal(np.sort(arrived), np.sort(everyone))


def test_each_way_is_the_adjoint_of_the_other():
    """Under jvp, vjp and vmap, of payloads and of whole routes."""
    rows, cases, operands = 7, [], []
    for grid in grids():
        pencil = Pencil((5, 4, 3), grid)
        cells, offsets, used, owner = (
            np.stack(both)
            for both in zip(*(_scattered(pencil, rows, seed) for seed in (1, 2)), strict=True)
        )
        capacity = max(_most(o) for o in owner) + 1
        x, y = random((SIZE, rows, 2), seed=3)[RANK], random((SIZE, capacity, 2), seed=4)[RANK]
        cases.append((pencil, capacity, owner))
        operands.append((Positions(cells[:, RANK], offsets[:, RANK], used[:, RANK]), x, y))

    @jax.jit
    def everything(operands):
        results = []
        for (pencil, capacity, _), (at, x, y) in zip(cases, operands, strict=True):
            route = Route.to_owners(jax.tree.map(lambda a: a[0], at), pencil, capacity)
            pairs = []
            for one, other, a, b in (
                (route.send, route.send_back, x, y),
                (route.send_back, route.send, y, x),
            ):
                value, pull = jax.vjp(one, a)
                second = jax.vjp(lambda b, pull=pull: pull(b)[0], b)[1](a)[0]
                pairs.append((pull(b)[0], other(b)))
                pairs.append((jax.jvp(one, (a,), (2 * a,))[1], 2 * value))
                pairs.append((second, value))
                batch = jnp.stack([a, 3 * a], axis=1)
                pairs.append((jax.vmap(one, 1, 1)(batch), jnp.stack([value, 3 * value], axis=1)))

            def by_route(at, x, pencil=pencil, capacity=capacity):
                route = Route.to_owners(at, pencil, capacity)
                return route.send(x), route.count

            results.append((pairs, jax.vmap(by_route, (0, None))(at, x)))
        return results

    results = everything(operands)
    for (_, capacity, owner), (_, x, y), (pairs, many) in zip(
        cases, operands, results, strict=True
    ):
        for actual, expected in pairs:
            np.testing.assert_array_equal(actual, expected)
        sent, back = pairs[2][0], pairs[0][0]
        assert abs(total(sent, y) - total(x, back)) <= 1e-12 * total(np.abs(sent), np.abs(y)).real
        X = random((SIZE, rows, 2), seed=3)
        for i in range(2):
            assert_equal(many[0][i], _there(X, owner[i], capacity))
            assert many[1][i] == (owner[i] == RANK).sum()


@pytest.mark.parametrize("rows", [7, 0])
def test_members_of_a_batch_go_in_the_same_messages(rows):
    """Each on a way of its own, of nested batches too, with the derivatives of both ways."""
    shape = (2, 3)
    pencil = Pencil((5, 4, 3), grids()[-1])
    drawn_ones = [_scattered(pencil, rows, seed) for seed in range(6)]
    cells, offsets, used, owner = (np.stack(each) for each in zip(*drawn_ones, strict=True))
    capacity = max(map(_most, owner)) + (rows > 0)
    at = jax.tree.map(
        lambda a: jnp.asarray(a[:, RANK]).reshape(*shape, *a.shape[2:]),
        Positions(cells, offsets, used),
    )
    X, Y = (random((*shape, SIZE, n, 2), seed=n) for n in (rows, capacity))
    x, y = (jnp.asarray(a[:, :, RANK]) for a in (X, Y))

    def both_ways(at, x, y):
        route = Route.to_owners(at, pencil, capacity)
        there, pull_back = jax.vjp(route.send, x)
        back, pull_there = jax.vjp(route.send_back, y)
        return there, back, pull_back(y)[0], pull_there(x)[0]

    of_all = jax.jit(jax.vmap(jax.vmap(both_ways)))
    expected = {"exchange_counts": 1, "move_rows": 2, "return_rows": 2}
    assert messages(of_all, at, x, y) == expected
    there, back, pulled_back, pulled_there = of_all(at, x, y)
    for member in np.ndindex(shape):
        of_member = owner.reshape(*shape, *owner.shape[1:])[member]
        assert_equal(there[member], _there(X[member], of_member, capacity))
    assert_equal(pulled_back, back)
    assert_equal(pulled_there, there)
    sent = total(np.asarray(there), np.asarray(y))
    assert abs(sent - total(np.asarray(x), np.asarray(back))) <= 1e-12 * abs(sent)


def _particles(pencil, rows, seed=0):
    """(particles of this rank, their owners on all ranks)"""
    cells, offsets, used, owner = _scattered(pencil, rows, seed)
    momenta = random(cells.shape, seed=7)
    mine = (x[RANK] for x in (cells, np.nan_to_num(offsets), momenta))
    numbers = jnp.int32(used[RANK]), int(used.sum())
    return Particles(*map(jnp.asarray, mine), *numbers, pencil.global_shape), owner


def test_particles_with_their_derivatives():
    """A sum over particles has the same derivatives wherever they are."""
    rows = 6
    pencils = [Pencil((4, 7, 3), grid) for grid in grids()]
    every = [_particles(pencil, rows) for pencil in pencils]
    weight = random((SIZE, rows, 3), seed=8)[RANK]

    def energy(p):
        alive = p.mask[:, None]
        return jnp.sum(jnp.where(alive, jnp.sin(p.cell + p.offset) * p.momentum**2, 0))

    @jax.jit
    def exchanged(particles):
        results = []
        for pencil, (_, owner), p in zip(pencils, every, particles, strict=True):
            room = _most(owner)

            def there(offset, momentum, p=p, pencil=pencil, room=room):
                moved = dataclasses.replace(p, offset=offset, momentum=momentum)
                return to_owners(moved, pencil, room)

            def after(*x, there=there):
                return energy(there(*x))

            def before(*x, p=p):
                return energy(dataclasses.replace(p, offset=x[0], momentum=x[1]))

            x, t = (p.offset, p.momentum), (weight, 2 * weight)
            both = [
                (jax.grad(f, (0, 1))(*x), jax.jvp(jax.grad(f, (0, 1)), x, t)[1])
                for f in (after, before)
            ]
            slopes = [jax.jvp(f, x, t)[1] for f in (after, before)]
            results.append((there(*x), both, slopes))
        return results

    results = exchanged([p for p, _ in every])
    for pencil, (p, owner), (there, (after, before), slopes) in zip(
        pencils, every, results, strict=True
    ):
        room = _most(owner)
        cells, offsets, _, _ = _scattered(pencil, rows)
        assert there.used == (owner == RANK).sum()
        assert (there.rows, there.total) == (room, p.total)
        expected = cells, np.nan_to_num(offsets), random(cells.shape, seed=7)
        for x, all_of_them in zip(
            (there.cell, there.offset, there.momentum), expected, strict=True
        ):
            if SIZE == 1:  # they stay as they are, unused rows included
                x, all_of_them = x[: there.used], all_of_them[:, : there.used]
                assert_equal(x, all_of_them[0])
            else:
                assert_equal(x, _there(all_of_them, owner, room))
        for a, b in zip(jax.tree.leaves(after), jax.tree.leaves(before), strict=True):
            np.testing.assert_allclose(a, b, rtol=1e-14, atol=1e-14)
        assert abs(total(slopes[0], 1.0) - total(slopes[1], 1.0)) < 1e-12


def test_the_capacity_that_would_do():
    """Every rank is told, and it does."""
    for grid in grids():
        pencil = Pencil((5, 4, 3), grid)
        cells, offsets, used, owner = _scattered(pencil, 9, seed=5)
        at = Positions(cells[RANK], offsets[RANK], used[RANK])
        most, mine = _most(owner), int((owner == RANK).sum())

        def routed(at, capacity, pencil=pencil):
            route = Route.to_owners(at, pencil, capacity)
            return route.count, route.send(at.cell)

        few = jax.jit(lambda at: routed(at, most - 1))  # noqa: B023
        for _ in range(2):
            with pytest.raises(jax.errors.JaxRuntimeError) as raised:
                jax.block_until_ready(few(at))
            text = str(raised.value)
            assert f"{mine} particles arrive here, where capacity is {most - 1};" in text
            assert f"a capacity of {most} is enough on every rank" in text
        needed = int(re.search(r"a capacity of (\d+)", text)[1])
        count, there = jax.jit(lambda at: routed(at, needed))(at)  # noqa: B023
        assert count == mine
        assert_equal(there, _there(cells, owner, most))


def test_particles_in_too_small_a_room():
    pencil = Pencil((4, 4, 4), grids()[0])
    p, owner = _particles(pencil, 8, seed=6)
    most = _most(owner)
    with pytest.raises(jax.errors.JaxRuntimeError, match=f"a capacity of {most} is enough"):
        jax.block_until_ready(jax.jit(lambda p: to_owners(p, pencil, most - 1))(p))
    assert to_owners(p, pencil, most).used == (owner == RANK).sum()
    # By default there is room for a quarter more than the mean, but never for more than all.
    assert to_owners(p, pencil).rows <= p.total


def test_a_position_that_is_not_finite_or_a_count_that_cannot_be():
    pencil = Pencil((4, 4, 4), grids()[-1])
    for bad in (np.nan, np.inf, -1e300):
        at = np.zeros((3, 3))
        if RANK == SIZE - 1:
            at[1, 2] = bad
        # Every rank is told of the one that has it.
        with pytest.raises(jax.errors.JaxRuntimeError) as raised:
            jax.block_until_ready(jax.jit(lambda at: Route.to_owners(at, pencil, 99).order)(at))
        assert f"a position on rank {SIZE - 1} is not finite" in str(raised.value)
        recover()
    for used in (-1, 4):
        cell, offset = np.zeros((3, 3), "int32"), np.zeros((3, 3))
        at = Positions(cell, offset, np.int32(used if RANK == SIZE - 1 else 3))
        with pytest.raises(jax.errors.JaxRuntimeError) as raised:
            jax.block_until_ready(jax.jit(lambda at: Route.to_owners(at, pencil, 99).order)(at))
        assert f"a position on rank {SIZE - 1} is not finite" in str(raised.value)
        assert "or its number of particles is negative, or more than its rows" in str(raised.value)
        recover()
    # And the ranks still agree on what comes next.
    assert Route.to_owners(np.zeros((3, 3)), pencil, 3 * SIZE).count == 3 * SIZE * (RANK == 0)


@pytest.mark.wrong_types
def test_what_is_refused():
    pencil = Pencil((4, 5, 6), grids()[0])
    at = jnp.zeros((2, 3))
    here = rf" on rank {RANK} of {SIZE}: "
    with pytest.raises(ValueError, match="Route" + here + "capacity cannot be negative, got -1"):
        Route.to_owners(at, pencil, -1)
    with pytest.raises(TypeError, match="capacity"):
        Route.to_owners(at, pencil, 1.5)
    with pytest.raises(ValueError, match="must be a three-dimensional pencil in real space"):
        Route.to_owners(at, (4, 5, 6), 2)
    with pytest.raises(ValueError, match=r"positions must be \(rows, 3\)"):
        Route.to_owners(at[0], pencil, 2)
    route = Route.to_owners(at, pencil, 2 * SIZE)
    with pytest.raises(ValueError, match="Route.send" + here + "axis 0 must have 2 rows, got"):
        route.send(jnp.zeros((3, 3)))
    with pytest.raises(ValueError, match=f"Route.send_back.* axis 0 must have {2 * SIZE} rows"):
        route.send_back(jnp.zeros(()))
    particles, _ = _particles(pencil, 3)
    with pytest.raises(TypeError, match="to_owners" + here + "capacity must be a static integer"):
        to_owners(particles, pencil, 99.5)
    lost = dataclasses.replace(particles, offset=jnp.full((3, 3), jnp.nan))
    assert np.isnan(lost.coordinates(1.0)).all()
    for box in ((1.0, 2.0), 0.0, np.float32(-1)):
        with pytest.raises(ValueError, match="coordinates: box_size must be a positive length"):
            particles.coordinates(box)

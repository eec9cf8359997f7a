"""Particles by several threads of a rank."""

import re

import pytest

from .job import assert_succeeds

pytestmark = pytest.mark.timeout(300)

# More rows than a thread is worth; most are in a few planes, the first ones or the last ones, and
# none in others. The first half lies in the order of the planes, and some of all are written as in
# another copy of the box.
SCRIPT = """
from pfftjax.pm import Positions, _fours, _painting, paint, readout
from pfftjax.pm._assignment import Assignment
import hashlib
mesh = pfftjax.Pencil((26, 6, 5), pfftjax.ProcessGrid())
start, count = (np.array(x) for x in (mesh.start, mesh.local_shape))
rng = np.random.default_rng(RANK)
rows, used = 150_000, 140_000
x = np.sort(rng.beta(0.3, 3, (rows, 1)), axis=0)
x[rows // 2 :] = rng.permutation(x[rows // 2 :])
x[: rows // 2] = x[: rows // 2] ** 0.25
y = rng.random((rows, 2))
values = rng.standard_normal((rows, 2))
for dtype in ("float32", "float64"):
    u = start + np.concatenate([x, y], axis=1) * count * (1 - 1e-6)
    u[used:] = np.nan
    x = 1 - x
    cell = np.floor(np.nan_to_num(u)).astype("int32")
    offset = (np.nan_to_num(u, nan=1e9) - cell).astype(dtype)
    cell[::3000] -= np.array(mesh.global_shape, "int32")
    at = Positions(cell, offset, np.int32(used))
    for kernel in ("ngp", "cic", "tsc", "pcs"):
        field = jax.jit(lambda at: paint(at, mesh, values=values, kernel=kernel))(at)
        total = jax.jit(pc.allreduce)(field.sum(axis=(1, 2, 3)))
        right = MPI.COMM_WORLD.allreduce(values[:used].sum(0))
        np.testing.assert_allclose(total, right, rtol=1e-3 if dtype == "float32" else 1e-10)
        mark = hashlib.sha256(np.asarray(field).tobytes()).hexdigest()
        print(f"{kernel} {dtype} rank {RANK}: {mark}", flush=True)
        form = Assignment({"ngp": 1, "cic": 2, "tsc": 3, "pcs": 4}[kernel])
        four = jnp.asarray(np.tile(values, 2), dtype)
        together = jax.jit(lambda at: _fours.paint_fours(four, at, mesh, form))(at)
        in_turn = jax.jit(lambda at: _painting.paint_padded(four, at, mesh, form))(at)
        assert (together == jnp.moveaxis(in_turn, 0, -1)).all()
at.offset[[70_000, 130_000], [1, 0]] = np.nan
zeros = jnp.zeros(mesh.local_shape, at.offset.dtype)
for call in (lambda: paint(at, mesh), lambda: readout(zeros, at, mesh)):
    try:
        jax.block_until_ready(call())
    except jax.errors.JaxRuntimeError as error:
        pc.recover()
        # JAX puts words of its own before it, or does not, by when it hears of it.
        text = str(error)
        text = text[text.index("pfftjax: ") :].splitlines()[0]
        print(f"rank {RANK}: {text}", flush=True)
"""


# Rows of a lattice, in its order, that have hardly moved, then such as lie anywhere; what arrives
# has fewer rows than what leaves. A donated array takes what arrives where it was.
ROUTE = """
import hashlib
from pfftjax.pm import Route
mesh = pfftjax.Pencil((26, 24, 5), pfftjax.ProcessGrid())
rng = np.random.default_rng(RANK)
start, count = (np.array(x) for x in (mesh.start, mesh.local_shape))
lattice = start + np.indices(count).reshape(3, -1).T
u = np.repeat(lattice, 80, axis=0) + rng.standard_normal((80 * len(lattice), 3)) / 3
u = np.concatenate([u, rng.random((100_000, 3)) * mesh.global_shape, np.zeros((50_000, 3))])
for dtype in ("float32", "float64"):
    cell = np.floor(u).astype("int32")
    at = pfftjax.pm.Positions(cell, (u - cell).astype(dtype), np.int32(len(u) - 50_000))
    route = Route.to_owners(at, mesh, capacity=len(u) - 40_000)
    rows = (jnp.asarray(u), jnp.arange(len(u)) + 10**6 * RANK)
    there = jax.jit(route.send)(rows)
    number = np.asarray(there[1])[: int(route.count)]
    whose = np.stack(MPI.COMM_WORLD.allgather(u))[number // 10**6, number % 10**6]
    assert (np.asarray(there[0])[: len(number)] == whose).all()
    inside = np.floor(whose) % mesh.global_shape - start
    assert ((inside >= 0) & (inside < count)).all()
    all_numbers = np.concatenate(MPI.COMM_WORLD.allgather(number))
    assert len(set(all_numbers)) == len(all_numbers) == MPI.COMM_WORLD.allreduce(int(at.used))
    back = jax.jit(route.send_back)(there)
    used = int(at.used)
    assert (np.asarray(back[0])[:used] == u[:used]).all() and not np.asarray(back[0])[used:].any()
    again = jax.jit(route.send, donate_argnums=0)(jax.tree.map(jnp.copy, rows))
    assert all((np.asarray(a) == np.asarray(b)).all() for a, b in zip(again, there))
    marks = [hashlib.sha256(np.asarray(a).tobytes()).hexdigest() for a in (route.order, *there)]
    print(f"{dtype} rank {RANK}: {marks}", flush=True)
at.offset[[70_000, 230_000], [1, 0]] = np.nan
try:
    jax.block_until_ready(Route.to_owners(at, mesh, capacity=len(u)).incoming)
except jax.errors.JaxRuntimeError as error:
    pc.recover()
    print(f"rank {RANK}: {'not finite' in str(error)}", flush=True)
"""


def test_particles_go_the_same_way_on_any_number_of_threads():
    """To their owners and back, in place and not; one that is nowhere is noticed."""
    seen = []
    for threads in (1, 2, 5):
        ended = assert_succeeds(ROUTE, ranks=2, NPROC=str(threads))
        seen.append(sorted(line for line in ended.output.splitlines() if "rank" in line))
        assert len(seen[-1]) == 2 * 3, ended.output
        assert sum(": True" in line for line in seen[-1]) == 2, ended.output
    assert seen[0] == seen[1] == seen[2]


def test_the_same_bits_on_any_number_of_threads():
    """And the same particle is named where several are not in the block."""
    seen = []
    for threads in (1, 2, 5):
        ended = assert_succeeds(SCRIPT, ranks=2, NPROC=str(threads))
        lines = sorted(line for line in ended.output.splitlines() if "rank" in line)
        assert len(lines) == 2 * 10, ended.output
        assert (
            len(re.findall("particle 70000 has a position that is not finite", ended.output)) == 4
        )
        seen.append(lines)
    assert seen[0] == seen[1] == seen[2]

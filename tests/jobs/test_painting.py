"""Painting by several threads of a rank."""

import re

import pytest

from .job import assert_succeeds

pytestmark = pytest.mark.timeout(300)

# More rows than a thread is worth; most are in a few planes, and none in others.
SCRIPT = """
from pfftjax.pm import Positions, paint, readout
import hashlib
mesh = pfftjax.Pencil((26, 6, 5), pfftjax.ProcessGrid())
start, count = (np.array(x) for x in (mesh.start, mesh.local_shape))
rng = np.random.default_rng(RANK)
rows, used = 150_000, 140_000
x = rng.beta(0.3, 3, (rows, 1))
u = start + np.concatenate([x, rng.random((rows, 2))], axis=1) * count * (1 - 1e-6)
u[used:] = np.nan
values = rng.standard_normal((rows, 2))
for dtype in ("float32", "float64"):
    cell = np.floor(np.nan_to_num(u)).astype("int32")
    offset = (np.nan_to_num(u, nan=1e9) - cell).astype(dtype)
    at = Positions(cell, offset, np.int32(used))
    for kernel in ("ngp", "cic", "tsc", "pcs"):
        field = jax.jit(lambda at: paint(at, mesh, values=values, kernel=kernel))(at)
        total = jax.jit(pc.allreduce)(field.sum(axis=(1, 2, 3)))
        right = MPI.COMM_WORLD.allreduce(values[:used].sum(0))
        np.testing.assert_allclose(total, right, rtol=1e-3 if dtype == "float32" else 1e-10)
        mark = hashlib.sha256(np.asarray(field).tobytes()).hexdigest()
        print(f"{kernel} {dtype} rank {RANK}: {mark}", flush=True)
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

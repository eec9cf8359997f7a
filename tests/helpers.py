"""What tests under MPI share: all ranks' data at once, comparisons, and a serial model of an
operation.

Every rank draws the same random numbers, so each knows the data of all ranks: X[rank] is the
block of `rank`, and the expected result comes from the whole of X without communication.
"""

import dataclasses
import os
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import HealthCheck, Phase, settings
from mpi4py import MPI

from pfftjax import collectives as pc
from pfftjax._runtime.ffi import native

RANK = MPI.COMM_WORLD.rank
SIZE = MPI.COMM_WORLD.size
# Traffic of the tests themselves, apart from what is tested.
CONTROL = MPI.COMM_WORLD.Dup()
# The node of each rank, "0,0,1", as if there were several.
NODES = [int(node) for node in os.environ.get("PFFTJAX_TEST_NODES", "0").split(",")]
if len(NODES) > 1:
    native.set_node(NODES[RANK])

# Such tests do not communicate, and one rank says it all.
on_one_rank = pytest.mark.ranks(1)

FLOATS = ("float16", "bfloat16", "float32", "float64", "complex64", "complex128")
INTEGERS = ("int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64")
DTYPES = (*FLOATS, *INTEGERS, "bool")


def drawn(examples):
    """Settings of hypothesis under MPI: the same examples on every rank, however long compiling
    takes."""
    return settings(
        max_examples=examples,
        derandomize=True,
        deadline=None,
        database=None,
        phases=[Phase.generate],  # a smaller example is not worth its compilations
        suppress_health_check=list(HealthCheck),
    )


def random(shape, dtype="float64", seed=0):
    """The same array on every rank."""
    rng = np.random.default_rng(seed)
    dtype = jnp.dtype(dtype)
    if dtype.kind == "b":
        return rng.integers(0, 2, shape).astype(bool)
    if jnp.issubdtype(dtype, jnp.integer):
        return rng.integers(0, 100, shape).astype(dtype)
    if jnp.issubdtype(dtype, jnp.complexfloating):
        return (rng.standard_normal(shape) + 1j * rng.standard_normal(shape)).astype(dtype)
    return rng.standard_normal(shape).astype(dtype)


def blocks(shape, dtype="float64", seed=0):
    """(all blocks with the rank in front, this rank's block)."""
    everything = random((SIZE, *shape), dtype, seed)
    # That compiles nothing, where `jnp.asarray` does for each shape.
    return everything, jax.device_put(everything[RANK])


def assert_close(actual, expected, tolerance=1e-12):
    """Relative to the largest expected magnitude; NaN fails."""
    actual_leaves, actual_tree = jax.tree.flatten(actual)
    expected_leaves, expected_tree = jax.tree.flatten(expected)
    assert actual_tree == expected_tree
    for a, e in zip(actual_leaves, expected_leaves, strict=True):
        a, e = np.asarray(a), np.asarray(e)
        assert a.shape == e.shape
        wide = np.complex128 if np.iscomplexobj(e) else np.float64
        a, e = a.astype(wide), e.astype(wide)
        scale = max(np.abs(e).max(initial=0.0), 1e-300)
        error = np.abs(a - e).max(initial=0.0) / scale
        assert error <= tolerance, f"relative error {error:.3e} on rank {RANK}"


def assert_equal(actual, expected):
    """To the last bit, dtype included."""
    actual, expected = np.asarray(actual), np.asarray(expected)
    assert actual.dtype == expected.dtype
    np.testing.assert_array_equal(actual, expected)


def here(operation):
    """A regular expression for how an error of an operation begins on this rank."""
    return rf"^{operation} on rank {RANK} of {SIZE}: "


def global_sum(value):
    """The sum of a Python number over all ranks."""
    return CONTROL.allreduce(value)


def ring(x, comm=None):
    """Send to the next rank, receive from the one before."""
    return pc.sendrecv(x, x, source=(RANK - 1) % SIZE, dest=(RANK + 1) % SIZE, comm=comm)


def ring_of_all(x):
    """`ring` as a collective."""
    left, right = (RANK - 1) % SIZE, (RANK + 1) % SIZE
    return pc.sendrecv(x, x, source=left, dest=right, collective=True)


def open_line(x):
    """The same without the way round: rank 0 receives from nobody."""
    before = RANK - 1 if RANK > 0 else MPI.PROC_NULL
    after = RANK + 1 if RANK + 1 < SIZE else MPI.PROC_NULL
    return pc.sendrecv(x, jnp.zeros_like(x), source=before, dest=after)


def gathered_on_root(x):
    """gather, with the blocks that the root receives weighted into one of the shape of `x`."""
    y = pc.gather(x, ROOT)
    return jnp.tensordot(WEIGHTS.astype(y.dtype), y, 1) if RANK == ROOT else y


def gathered_on_root_model(x):
    """The serial model of `gathered_on_root`."""
    return x.at[ROOT].set(jnp.tensordot(WEIGHTS.astype(x.dtype), x, 1))


def from_everybody(x):
    """allgatherv of as many rows as the rank is above one, out of ROWS; the padded result."""
    return pc.allgatherv(x, RANK + 1, capacity=SIZE * (SIZE + 1) // 2 + 1)[0]


def from_everybody_model(x):
    """The serial model of `from_everybody`."""
    rows = jnp.concatenate([x[rank, : rank + 1] for rank in range(SIZE)])
    return _everywhere(jnp.concatenate([rows, jnp.zeros_like(rows[:1])]))


def with_status(x):
    """`open_line` with a status."""
    before = RANK - 1 if RANK > 0 else MPI.PROC_NULL
    after = RANK + 1 if RANK + 1 < SIZE else MPI.PROC_NULL
    return pc.sendrecv(x, jnp.zeros_like(x), source=before, dest=after, status=STATUS)


# alltoallv: rank i sends (i + j + 1) % 3 rows to rank j, out of ROWS.
ROWS = 2 * SIZE
CAPACITY = 2 * SIZE + 1
COUNTS = np.array([[(i + j + 1) % 3 for j in range(SIZE)] for i in range(SIZE)], np.int32)


def ragged(x):
    """alltoallv with COUNTS; the padded result."""
    return pc.alltoallv(x, jnp.asarray(COUNTS[RANK]), capacity=CAPACITY)[0]


def ragged_model(x):
    """The serial model of `ragged`."""
    results = []
    for receiver in range(SIZE):
        rows = []
        for sender in range(SIZE):
            start = COUNTS[sender, :receiver].sum()
            rows.append(x[sender, start : start + COUNTS[sender, receiver]])
        rows = jnp.concatenate(rows)
        padding = jnp.zeros((CAPACITY - rows.shape[0], *rows.shape[1:]), rows.dtype)
        results.append(jnp.concatenate([rows, padding]))
    return jnp.stack(results)


@dataclasses.dataclass(frozen=True)
class Case:
    """A linear operation: on this rank's block, and on all blocks at once."""

    name: str
    shape: tuple[int, ...]
    apply: Callable[[Any], Any]
    model: Callable[[Any], Any]


def _everywhere(x):
    return jnp.broadcast_to(x, (SIZE, *x.shape))


# Every transformation of every operation is tested on three ranks; on others, of these.
BASIC = ("alltoall", "alltoallv", "allgather", "allreduce_replicate", "sendrecv_line")

ROOT = SIZE - 1
STATUS = MPI.Status()
WEIGHTS = jnp.arange(1, SIZE + 1)

CASES = (
    Case("alltoall", (SIZE, 3), pc.alltoall, lambda x: jnp.swapaxes(x, 0, 1)),
    Case("alltoallv", (ROWS, 2), ragged, ragged_model),
    Case("allgather", (2, 3), pc.allgather, _everywhere),
    Case("reduce_scatter", (SIZE, 2, 2), pc.reduce_scatter, lambda x: x.sum(0)),
    # Out of one value for all ranks, and into work that differs between ranks.
    Case(
        "allreduce_replicate",
        (2, 3),
        lambda x: pc.replicate(pc.allreduce(x)),
        lambda x: _everywhere(x.sum(0)),
    ),
    Case("sendrecv_ring", (4,), ring_of_all, lambda x: jnp.roll(x, 1, axis=0)),
    Case(
        "sendrecv_line",
        (4,),
        open_line,
        lambda x: jnp.concatenate([jnp.zeros_like(x[:1]), x[:-1]]),
    ),
    Case(
        "sendrecv_status",
        (4,),
        with_status,
        lambda x: jnp.concatenate([jnp.zeros_like(x[:1]), x[:-1]]),
    ),
    Case("bcast", (2, 3), lambda x: pc.bcast(x, ROOT), lambda x: _everywhere(x[ROOT])),
    Case(
        "reduce",
        (2, 3),
        lambda x: pc.reduce(x, MPI.SUM, ROOT),
        lambda x: x.at[ROOT].set(x.sum(0)),
    ),
    Case("gather", (2, 3), gathered_on_root, gathered_on_root_model),
    Case(
        "scatter",
        (SIZE, 2),
        lambda x: pc.scatter(x if RANK == ROOT else x[0], ROOT),
        lambda x: x[ROOT],
    ),
    Case("scan", (2, 3), pc.scan, lambda x: jnp.cumsum(x, 0)),
    Case("exscan", (2, 3), pc.exscan, lambda x: jnp.cumsum(x, 0) - x),
    Case("allgatherv", (ROWS, 2), from_everybody, from_everybody_model),
    Case(
        "alltoall_split",
        (SIZE, 3),
        lambda x: pc.wait(pc.alltoall_start(x)),
        lambda x: jnp.swapaxes(x, 0, 1),
    ),
    Case("allgather_split", (2, 3), lambda x: pc.wait(pc.allgather_start(x)), _everywhere),
)

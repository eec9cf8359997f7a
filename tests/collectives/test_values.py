"""Every operation gives what NumPy gives on the gathered data, in every dtype."""

import functools
import operator

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from mpi4py import MPI

from pfftjax import collectives as pc
from tests import helpers
from tests.helpers import CASES, DTYPES, RANK, SIZE, assert_close, assert_equal, blocks

pytestmark = [pytest.mark.mpi, pytest.mark.messages]

ARITHMETIC = ("reduce_scatter", "allreduce_replicate", "reduce", "gather", "scan", "exscan")
MOVES = [case for case in CASES if case.name not in ARITHMETIC]


@pytest.mark.parametrize("case", MOVES, ids=lambda case: case.name)
def test_data_arrive_to_the_last_bit(case):
    """All dtypes, in one program."""
    everything, mine = zip(*[blocks(case.shape, dtype) for dtype in DTYPES], strict=True)
    moved = jax.jit(lambda xs: [case.apply(x) for x in xs])(mine)
    expected = jax.jit(lambda xs: [case.model(x)[RANK] for x in xs])(everything)
    for y, e in zip(moved, expected, strict=True):
        assert_equal(y, e)


NUMPY = {
    "SUM": np.sum,
    "PROD": np.prod,
    "MIN": np.min,
    "MAX": np.max,
    "LAND": np.all,
    "LOR": np.any,
    "LXOR": np.logical_xor.reduce,
    "BAND": np.bitwise_and.reduce,
    "BOR": np.bitwise_or.reduce,
    "BXOR": np.bitwise_xor.reduce,
}


def _defined(name, dtype):
    if name in ("SUM", "PROD"):
        return True
    if name in ("MIN", "MAX"):
        return not dtype.startswith("complex")
    return dtype == "bool" or "int" in dtype


def _expected(name, everything):
    """NumPy's reduction, in the dtype of the data; small integers wrap around."""
    small = everything.dtype.itemsize == 2 and jnp.issubdtype(everything.dtype, jnp.floating)
    reduced = NUMPY[name](everything.astype(np.float32) if small else everything, axis=0)
    return np.asarray(reduced).astype(everything.dtype)


def _tolerance(dtype):
    if dtype.kind == "b" or jnp.issubdtype(dtype, jnp.integer):
        return 0.0
    return 4 * float(jnp.finfo(dtype).eps)


@pytest.mark.parametrize("name", NUMPY)
def test_reductions(name):
    """All dtypes for which the reduction is defined, in one program."""
    op = getattr(MPI, name)
    dtypes = [dtype for dtype in DTYPES if _defined(name, dtype)]
    everything, mine = zip(*[blocks((SIZE, 5), dtype) for dtype in dtypes], strict=True)
    whole = jax.jit(lambda xs: [pc.allreduce(x, op) for x in xs])(mine)
    part = jax.jit(lambda xs: [pc.reduce_scatter(x, op) for x in xs])(mine)
    for x, w, p in zip(everything, whole, part, strict=True):
        expected = _expected(name, x)
        assert w.dtype == p.dtype == x.dtype
        assert_close(w, expected, _tolerance(x.dtype))
        assert_close(p, expected[RANK], _tolerance(x.dtype))


@pytest.mark.parametrize("dtype", ["int8", "uint8", "int16", "uint16"])
def test_small_integers_wrap_around(dtype):
    """Open MPI's own sum saturates."""
    most = np.iinfo(dtype).max
    x = jnp.full(64, most // 2 + 1, dtype)
    expected = np.full((SIZE, 64), most // 2 + 1, dtype).sum(0).astype(dtype)
    assert_equal(pc.allreduce(x), expected)
    assert_equal(pc.reduce_scatter(jnp.stack([x] * SIZE)), expected)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_half_precision_rounds_like_jax(dtype):
    """Rounding, overflow to infinity, subnormals and NaN of the 16-bit sums."""
    special = jnp.asarray(
        [1.0, 1e-7, 6.1e-5, 65504.0, 3e38, -0.0, np.inf, np.nan, 2.0**-24, 1 / 3],
        jnp.float32,
    )
    # Twice a number needs no rounding: each rank adds others.
    given = [(special * (1 + 0.37 * rank)).astype(dtype) for rank in range(SIZE)]
    expected = functools.reduce(operator.add, given)
    total = pc.allreduce(given[RANK])
    # Two ranks add once: there is no order to differ in.
    tolerance = 0.0 if SIZE <= 2 else 2e-2
    total, expected = (np.asarray(a, np.float32) for a in (total, expected))
    np.testing.assert_allclose(total, expected, rtol=tolerance, atol=0)
    np.testing.assert_array_equal(np.signbit(total), np.signbit(expected))


def test_half_precision_extremes_keep_nan():
    x = jnp.asarray([1.0, jnp.nan if RANK == 0 else 2.0], jnp.float16)
    for op in (MPI.MIN, MPI.MAX):
        assert np.isnan(pc.allreduce(x, op)[1])
    assert float(pc.allreduce(x, MPI.MAX)[0]) == 1.0


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32", "float64"])
@pytest.mark.parametrize("where", range(SIZE))
def test_extremes_keep_nan_from_any_rank(where, dtype):
    """MPI's own lose it, or not, by the order of the ranks."""
    for size in (1, 100):
        x = jnp.full(size, jnp.nan if RANK == where else float(RANK), dtype)
        for op in (MPI.MIN, MPI.MAX):
            assert np.isnan(pc.allreduce(x, op).astype("float64")).all()
            assert np.isnan(pc.reduce_scatter(jnp.stack([x] * SIZE), op).astype("float64")).all()


@pytest.mark.parametrize("shape", [(0,), (0, 3), (SIZE, 0), (), (1,), (SIZE, 1, 7)])
def test_shapes(shape):
    """Empty arrays, scalars and ones."""
    everything, mine = blocks(shape)
    assert_equal(pc.allgather(mine), everything)
    assert_close(pc.allreduce(mine), everything.sum(0))
    assert_equal(pc.bcast(mine, 0), everything[0])
    assert_equal(helpers.ring(mine), everything[RANK - 1])
    if shape and shape[0] == SIZE:
        assert_equal(pc.alltoall(mine), everything[:, RANK])
        assert_close(pc.reduce_scatter(mine), everything.sum(0)[RANK])


def test_python_numbers():
    assert float(pc.allreduce(2)) == 2 * SIZE
    assert pc.allgather(True).tolist() == [True] * SIZE
    assert complex(pc.bcast(1j * RANK, 0)) == 0j


def test_barrier():
    pc.barrier()
    jax.jit(lambda: pc.barrier())()
    jax.effects_barrier()


def test_result_is_a_jax_array_that_later_work_cannot_change():
    """Results own their memory: the next exchange does not overwrite them."""
    everything, mine = blocks((SIZE, 2))
    first = pc.alltoall(mine)
    for _ in range(3):
        pc.alltoall(mine + 1)
    assert_equal(first, everything[:, RANK])


def test_mpi4py_beside_us_on_the_same_communicator():
    """Messages with wildcards through mpi4py are not mixed up with ours."""
    comm = MPI.COMM_WORLD
    right, left = (RANK + 1) % SIZE, (RANK - 1) % SIZE
    request = comm.isend(f"from {RANK}", right)
    x = helpers.ring(jnp.asarray(float(RANK)))
    assert comm.recv(source=left) == f"from {left}"
    request.wait()
    assert float(x) == left

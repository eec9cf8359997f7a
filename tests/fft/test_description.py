"""What a plan says of itself: `describe`, beside who owns which cell; and plans as arguments."""

import dataclasses
import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from mpi4py import MPI

import pfftjax
from pfftjax import Pencil, PencilFFT, PencilTransform
from pfftjax.collectives import allreduce
from tests.distributed import grids
from tests.helpers import random

COMM = MPI.COMM_WORLD
pytestmark = pytest.mark.ranks(1, 2, 4)


def plans():
    for grid in grids():
        for shape in ((8, 6, 10), (5, 3, 7), (1, 2, 3)):
            for real, layout in itertools.product((False, True), ("transposed", "natural")):
                yield PencilFFT(shape, grid, real=real, layout=layout)
        yield PencilTransform((6, 5, 4), grid, ("fft", "dct2", "dst1"))
    slabs = pfftjax.ProcessGrid((None, 1))
    yield PencilTransform((9, 10), slabs, ("fft", "rfft"))


def owners(pencil):
    """The rank that has each cell of the global array."""
    owner = np.full(pencil.global_shape, -1)
    for rank in range(pencil.grid.size):
        coords = divmod(rank, pencil.grid.dims[1])
        ranges = (pencil.range_of(axis, coords) for axis in range(owner.ndim))
        owner[tuple(slice(start, start + count) for start, count in ranges)] = rank
    assert owner.min() >= 0
    return owner


# The axes that are split, by the order of axes in memory (docs/layouts.md).
SPLIT = {(0, 1, 2): (0, 1), (0, 2, 1): (0, 2), (1, 2, 0): (1, 2), (0, 1): (0, 1), (1, 0): (1, 0)}


def test_blocks_and_messages():
    for plan in plans():
        description = plan.describe()
        first, *_, last = description.stages
        assert (first.axes, first.shape) == (plan.input.axes, plan.input.local_shape)
        assert (last.axes, last.shape) == (plan.output.axes, plan.output.local_shape)
        x = jax.ShapeDtypeStruct(first.shape, first.dtype)
        assert jax.eval_shape(plan.forward, x).dtype == last.dtype
        assert last.operation == len(plan._forward)
        for before, after in itertools.pairwise(description.stages):
            there, here = (
                owners(Pencil(plan.spectral_shape, plan.grid, SPLIT[stage.axes], stage.axes))
                for stage in (after, before)
            )
            others = (r for r in range(COMM.size) if r != COMM.rank)
            sent = [int(((here == COMM.rank) & (there == r)).sum()) for r in others]
            sent = [n * after.dtype.itemsize for n in sent if n]
            found = after.messages, after.message_bytes, after.sent_bytes
            assert found == (len(sent), max(sent, default=0), sum(sent)), (plan, after)
        assert description.sent_bytes == sum(stage.sent_bytes for stage in description.stages)


def test_memory_is_that_of_what_operations_read_and_write():
    plan = PencilFFT((8, 6, 10), pfftjax.ProcessGrid((None, 1)), real=True)
    real, *_, spectrum = plan.describe("float64").stages
    assert (real.dtype, spectrum.dtype) == ("float64", "complex128")
    # On slabs all of it is one operation after the transform of real lines, or with it.
    assert real.bytes == 8 * np.prod(plan.input.local_shape)
    arrays = [real.bytes, *(16 * np.prod(p.local_shape) for p in stages_of(plan))]
    assert plan.describe("float64").peak_bytes == max(map(sum, itertools.pairwise(arrays)))


def stages_of(plan):
    """The pencils of what comes out of each of the operations of a real plan on slabs."""
    half = Pencil(plan.spectral_shape, plan.grid)
    return [half, plan.output] if len(plan._forward) == 2 else [plan.output]


def test_double_precision_is_described_where_jax_does_not_have_it():
    """A plan for a machine is looked at on a laptop, without JAX_ENABLE_X64."""
    plan = PencilFFT((8, 6, 10), pfftjax.ProcessGrid(), real=True)
    with jax.enable_x64(False):
        _, *others = plan.describe("float64").stages
    assert {stage.dtype.name for stage in others} == {"complex128"}


def test_as_text_and_in_notebooks():
    plan = PencilFFT((8, 6, 10), pfftjax.ProcessGrid())
    text, table = str(plan.describe()), plan._repr_html_()
    for name in ("real space", "fft along axis 2", "fft along axis 0", f"rank {COMM.rank} of"):
        assert name in text
        assert name in table
    assert table.count("<tr>") == 1 + len(plan.describe().stages)
    same = COMM.allgather(repr(plan))
    assert same == [repr(plan)] * COMM.size  # ranks compare what is made of it


def test_dtypes():
    plan = PencilFFT((8, 6, 10), pfftjax.ProcessGrid(), real=True)
    with pytest.raises(
        TypeError, match=r"PencilFFT\.describe.*: dtype is complex64, but the plan"
    ):
        plan.describe("complex64")
    with pytest.raises(TypeError, match=r"PencilFFT\.describe.*: no transform of int32"):
        plan.describe("int32")


def test_plans_pencils_and_grids_are_static_arguments():
    """They need no `static_argnums`, and may be carried by loops, and be beside what is
    differentiated.
    """
    grid = pfftjax.ProcessGrid()
    for plan in (PencilFFT((4, 5, 6), grid), PencilTransform((4, 5, 6), grid, ("fft",) * 3)):
        x = random(plan.input.local_shape, "complex128", COMM.rank)
        expected = plan.forward(x)
        assert jax.tree.leaves((plan, plan.input, grid)) == []
        forward = jax.jit(lambda plan, x: plan.forward(x))
        assert jnp.array_equal(forward(plan, x), expected)
        assert jnp.array_equal(forward(dataclasses.replace(plan), x), expected)
        assert forward._cache_size() == 1
        (same, _), _ = jax.lax.scan(lambda c, _: (c, None), (plan, 0), None, length=2)
        assert same == plan

        def energy(both):
            plan, x = both
            return allreduce(jnp.sum(jnp.abs(plan.forward(x)) ** 2))

        _, by_x = pfftjax.grad(energy)((plan, x))
        assert jnp.allclose(by_x, 2 * 120 * jnp.conj(x))

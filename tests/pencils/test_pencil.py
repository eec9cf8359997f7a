"""Pencils: every cell has one owner; what they refuse."""

import itertools

import jax
import numpy as np
import pytest

from pfftjax import Pencil, PencilFFT
from tests.distributed import gathered, grids
from tests.helpers import CONTROL, RANK, SIZE, random

pytestmark = [pytest.mark.mpi, pytest.mark.messages]

SHAPES = [(4, 5, 6), (1, 7, 2), (3, 1, 1), (2, 3, 4, 5), (6, 5)]


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_every_cell_has_one_owner(shape):
    cells = np.arange(np.prod(shape)).reshape(shape)
    for grid in grids():
        for split in itertools.permutations(range(len(shape)), 2):
            axes = tuple(reversed(range(len(shape))))
            pencil = Pencil(shape, grid, split, axes)
            block = pencil.local_block(cells)
            assert block.shape == pencil.local_shape
            np.testing.assert_array_equal(gathered(block, pencil), cells)
            counted = np.concatenate(CONTROL.allgather(block.ravel()))
            assert sorted(counted) == list(range(cells.size))
            if block.size:
                first = cells[tuple(pencil.range_of(a)[0] for a in range(len(shape)))]
                assert block.ravel()[0] == first
                assert pencil.start == tuple(pencil.range_of(a)[0] for a in axes)
            # The remainder goes to the first ranks.
            sizes = CONTROL.allgather(pencil.range_of(split[0])[1])
            assert max(sizes) - min(sizes) <= 1


def test_indices_are_read_when_the_program_runs():
    for grid in grids():
        pencil = Pencil((5, 6, 7), grid, (1, 2), (1, 2, 0))
        for axis in range(3):
            start, count = pencil.range_of(axis)
            for indices in (pencil.indices, jax.jit(pencil.indices, static_argnums=0)):
                values = np.asarray(indices(axis))
                assert values.ndim == 3
                assert values.shape[pencil.axes.index(axis)] == count
                assert values.ravel().tolist() == list(range(start, start + count))


def test_pencils_and_plans_are_values():
    for grid in grids():
        assert Pencil((4, 5, 6), grid) == Pencil([4, 5, 6], grid, [0, 1], [0, 1, 2])
        assert hash(Pencil((4, 5, 6), grid)) == hash(Pencil((4, 5, 6), grid))
        assert Pencil((4, 5, 6), grid) != Pencil((4, 5, 6), grid, (0, 2))
        plan, again = (PencilFFT((4, 5, 6), grid, real=True) for _ in range(2))
        assert plan == again
        assert hash(plan) == hash(again)
        assert plan != PencilFFT((4, 5, 6), grid)
        traces = []

        def transform(x, plan, traces=traces):
            traces.append(plan)
            return plan.forward(x)

        f = jax.jit(transform, static_argnums=1)
        x = plan.input.local_block(random((4, 5, 6)))
        np.testing.assert_array_equal(f(x, plan), f(x, again))
        assert len(traces) == 1


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (((4, 0, 6),), "none of them empty"),
        (((4,),), "at least two axes"),
        (((4, 5, 6), (0, 0)), "two different axes"),
        (((4, 5, 6), (0, 3)), "two different axes"),
        (((4, 5, 6), (0, 1), (0, 1, 1)), "not an order"),
    ],
)
def test_nonsense_is_refused(arguments, text):
    shape, *rest = arguments
    with pytest.raises(ValueError, match=rf"Pencil on rank {RANK} of {SIZE}: .*{text}"):
        Pencil(shape, grids()[0], *rest)


@pytest.mark.wrong_types
def test_nothing_is_rounded():
    grid = grids()[0]
    for make in (
        lambda: Pencil((4.9, 5, 6), grid),
        lambda: Pencil((4, 5, 6), grid, (0.7, 1)),
        lambda: PencilFFT((4.9, 6, 8), grid),
        lambda: PencilFFT(("4", 6, 8), grid),
    ):
        with pytest.raises(TypeError, match=rf" on rank {RANK} of {SIZE}: .*static integers"):
            make()


def test_axes_count_from_both_ends():
    grid = grids()[0]
    with pytest.raises(ValueError, match="there is no axis 3 in the global shape"):
        Pencil((4, 5, 6), grid).indices(3)
    assert Pencil((4, 5, 6), grid).range_of(-1) == (0, 6)


@pytest.mark.wrong_types
def test_a_grid_is_not_its_dims():
    with pytest.raises(TypeError, match=r"must be a ProcessGrid, got tuple; make it once"):
        Pencil((4, 5, 6), (1, SIZE))
    with pytest.raises(TypeError, match=r"must be a ProcessGrid, got tuple; make it once"):
        PencilFFT((4, 5, 6), (1, SIZE))

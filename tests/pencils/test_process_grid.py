"""Process grids: shapes, coordinates, and what they refuse."""

import copy
import pickle

import numpy as np
import pytest
from mpi4py import MPI

from pfftjax import PencilFFT, ProcessGrid
from tests.distributed import alone, grids
from tests.helpers import RANK, SIZE

pytestmark = [pytest.mark.mpi, pytest.mark.messages]


def test_ranks_are_numbered_along_rows():
    for grid in grids():
        row, column = grid.coords
        assert row * grid.dims[1] + column == RANK
        assert grid.along(0).rank == row
        assert grid.along(0).size == grid.dims[0]
        assert grid.along(1).rank == column
        assert grid.along(1).size == grid.dims[1]
        assert grid.size == SIZE
        assert grid.comm == MPI.COMM_WORLD


def test_defaults_follow_from_the_number_of_ranks():
    square = {1: (1, 1), 2: (2, 1), 3: (3, 1), 4: (2, 2)}
    assert ProcessGrid().dims == square[SIZE]
    assert ProcessGrid((None, 1)).dims == (SIZE, 1)
    assert ProcessGrid((1, None)).dims == (1, SIZE)
    assert ProcessGrid(SIZE).dims == ProcessGrid([SIZE]).dims == (SIZE, 1)
    # However it is written, also differently on different ranks.
    mine = [(SIZE, 1), [SIZE, 1], np.int64(SIZE), np.array([SIZE, 1])][RANK]
    assert ProcessGrid(mine).dims == (SIZE, 1)


def test_equal_grids_are_equal_and_share_communicators():
    for grid in grids():
        again = ProcessGrid(grid.dims)
        assert again == grid
        assert hash(again) == hash(grid)
        assert again.along(0) is grid.along(0)
        assert again != alone() or SIZE == 1
    assert alone() != ProcessGrid((1, 1)) if SIZE == 1 else True
    assert len(set(grids())) == len(grids())
    assert ProcessGrid() != "a grid"
    plan = PencilFFT((4, 5, 6), ProcessGrid())
    assert copy.deepcopy(plan) == plan
    with pytest.raises(TypeError, match=r"cannot be pickled: .* save its dims"):
        pickle.dumps(plan)


def test_a_grid_of_some_of_the_ranks():
    half = MPI.COMM_WORLD.Split(RANK % 2, RANK)
    grid = ProcessGrid(None, half)
    assert grid.size == half.size
    assert grid.coords == divmod(half.rank, grid.dims[1])


def test_grids_of_communicators_in_another_order():
    """Equal dimensions do not make equal grids, nor the same rows and columns."""
    ProcessGrid()
    backward = ProcessGrid(None, MPI.COMM_WORLD.Split(0, -RANK))
    assert backward.coords == divmod(SIZE - 1 - RANK, backward.dims[1])
    assert (backward.along(0).rank, backward.along(1).rank) == backward.coords
    assert backward != ProcessGrid()


@pytest.mark.parametrize(
    ("dims", "error", "text"),
    [
        ((SIZE + 1, 1), ValueError, rf"needs {SIZE + 1} ranks, but the communicator has {SIZE}"),
        ((SIZE + 1, None), ValueError, "cannot be arranged"),
        ((0, SIZE), ValueError, "must be positive"),
        ((1, 1, SIZE), ValueError, "two dimensions"),
        pytest.param((1.5, 2), TypeError, "two integers", marks=pytest.mark.wrong_types),
        pytest.param("x", TypeError, "two integers", marks=pytest.mark.wrong_types),
    ],
)
def test_dims_that_do_not_fit(dims, error, text):
    with pytest.raises(error, match=rf"ProcessGrid on rank {RANK} of {SIZE}: .*{text}"):
        ProcessGrid(dims)


@pytest.mark.skipif(SIZE == 1, reason="one rank agrees with itself")
def test_ranks_that_ask_for_different_grids():
    with pytest.raises(RuntimeError, match=r"rank 0 asks for dims=\(1, None\) and rank 1 for"):
        ProcessGrid((1, None) if RANK == 0 else (None, 1))

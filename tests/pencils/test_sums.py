"""Inner products and norms against those of the whole array."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from mpi4py import MPI

from pfftjax import Pencil, ProcessGrid, norm, vdot
from tests.distributed import grids
from tests.helpers import RANK, SIZE, assert_close, assert_equal, blocks, random

pytestmark = [pytest.mark.mpi, pytest.mark.messages]


@pytest.mark.parametrize("dtype", ["int8", "int32", "bool", "float64", "complex128"])
def test_norm_of_any_dtype(dtype):
    """The squares of integers do not wrap around."""
    x = random((5, 4, 3), dtype)
    x = x * np.asarray(60000, dtype) if dtype == "int32" else x
    grid = grids()[0]
    block = Pencil((5, 4, 3), grid).local_block(x)
    expected = np.linalg.norm(x.ravel().astype(complex))
    actual = jax.jit(lambda x: norm({"x": x, "none": x[:0]}, grid))(block)
    assert actual.dtype == "float64"
    np.testing.assert_allclose(actual, expected, rtol=1e-14)


@pytest.mark.parametrize("dtype", ["int8", "uint8", "int16", "bool", "float32", "complex64"])
def test_vdot_of_any_dtype(dtype):
    """The products of integers do not wrap around."""
    x = np.full((5, 4, 3), True if dtype == "bool" else 100, dtype)
    grid = grids()[0]
    block = Pencil(x.shape, grid).local_block(x)
    found = jax.jit(lambda x: vdot(x, x, grid))(block)
    assert complex(found) == 60 * (1 if dtype == "bool" else 10000)


def test_norm_at_the_ends_of_numbers():
    """NaN is no small residual; the derivative at zero is zero."""
    grid = grids()[0]
    rank = grid.comm.rank

    @jax.jit
    def norms(x):
        last = jnp.where(rank == grid.size - 1, jnp.array([jnp.nan, jnp.inf, 3.0]), 0.0)
        return [norm(y, grid) for y in last], jax.grad(lambda x: norm(x, grid))(0 * x)

    (of_nan, *others), slope = norms(jnp.ones(2))
    assert np.isnan(of_nan)
    assert np.array(others).tolist() == [np.inf, 3.0]
    assert slope.tolist() == [0.0, 0.0]


@pytest.mark.wrong_types
def test_what_is_refused():
    x = jnp.ones(2)
    for grid in (None, MPI.COMM_WORLD):
        with pytest.raises(TypeError, match="vdot: grid must be a ProcessGrid, got "):
            vdot(x, x, grid)
        with pytest.raises(TypeError, match="norm: grid must be a ProcessGrid, got "):
            norm(x, grid)
    with pytest.raises(ValueError, match=r"vdot: the blocks have shapes \(2,\) and \(1,\)"):
        vdot(x, x[:1], grids()[0])


def test_complex_numbers_and_trees():
    grid = ProcessGrid()
    (X, x), (Y, y) = (blocks((2, 3), "complex128", seed) for seed in (0, 1))
    (U, u), (V, v) = (blocks((4,), "float64", seed) for seed in (2, 3))
    assert_close(vdot(x, y, grid), np.vdot(X, Y))
    assert_close(vdot((x, {"u": u}), (y, {"u": v}), grid), np.vdot(X, Y) + np.vdot(U, V))
    assert_close(norm((x, u), grid), np.sqrt(np.linalg.norm(X) ** 2 + np.linalg.norm(U) ** 2))
    assert not jnp.iscomplexobj(norm(x, grid))


def test_derivatives_of_the_norm():
    grid = ProcessGrid()
    X, x = blocks((3,))
    assert_close(jax.grad(norm)(x, grid), X[RANK] / np.linalg.norm(X))
    zero = jnp.zeros(3)
    assert_equal(norm(zero, grid), np.zeros(()))
    assert_equal(jax.grad(norm)(zero, grid), np.zeros(3))
    # Zero on this rank only.
    alone = X * (np.arange(SIZE) == SIZE - 1)[:, None]
    expected = alone[RANK] / np.linalg.norm(alone)
    assert_close(jax.grad(norm)(jnp.asarray(alone[RANK]), grid), expected)

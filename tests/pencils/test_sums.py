"""Inner products and norms against those of the whole array."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from mpi4py import MPI

from pfftjax import Pencil, norm, vdot
from tests.distributed import grids
from tests.helpers import random

pytestmark = pytest.mark.mpi


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


def test_what_is_refused():
    x = jnp.ones(2)
    for grid in (None, MPI.COMM_WORLD):
        with pytest.raises(TypeError, match="vdot: grid must be a ProcessGrid, got "):
            vdot(x, x, grid)
        with pytest.raises(TypeError, match="norm: grid must be a ProcessGrid, got "):
            norm(x, grid)
    with pytest.raises(ValueError, match=r"vdot: the blocks have shapes \(2,\) and \(1,\)"):
        vdot(x, x[:1], grids()[0])

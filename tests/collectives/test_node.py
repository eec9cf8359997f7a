"""Exchanges through memory that the ranks of a node share."""

import jax
import jax.numpy as jnp
import pytest

from pfftjax import collectives as pc
from tests.helpers import RANK, SIZE

pytestmark = pytest.mark.mpi


@pytest.mark.memory
@pytest.mark.mpi(min_size=2)
def test_a_rank_that_lags_behind_in_exchanges_of_changing_sizes():
    """The others announce their next exchange while it still reads this one."""

    @jax.jit
    def f(x):
        def step(x, _):
            a = pc.alltoall(x)
            b = pc.allgather(a[0])
            return pc.alltoall(a), b[:, 0]

        return jax.lax.scan(step, x, None, length=3000)

    x = jnp.full((SIZE, 3), float(RANK))
    y, gathered = f(x)
    assert jnp.array_equal(y, x)
    assert not gathered.any()  # what rank 0 sent to each

"""Exchanges through memory that the ranks of a node share."""

import jax
import jax.numpy as jnp
import pytest

from pfftjax import collectives as pc
from pfftjax._runtime.options import options
from tests.helpers import RANK, SIZE

pytestmark = [pytest.mark.mpi, pytest.mark.messages]


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


@pytest.mark.memory
@pytest.mark.mpi(min_size=2)
def test_every_way_of_a_large_exchange():
    """Large ones go through the cache, past it and by MPI in turn; in place, and not."""

    def exchanged(x):
        blocks = jnp.arange(SIZE) * 1000 + RANK
        return jnp.broadcast_to(blocks[:, None], x.shape) + x * 0

    @jax.jit
    def f(x):
        def step(x, number):
            y = exchanged(x) + number + jnp.arange(x.shape[1])
            kept = pc.alltoall(y)  # `y` is used again
            return pc.alltoall(pc.alltoall(kept)), (
                jnp.abs(y - pc.alltoall(kept)).max(),
                kept[:, 7],
            )

        return jax.lax.scan(step, x, jnp.arange(8))[1]

    x = jnp.zeros((SIZE, (1 << 17) // SIZE + 3), int)
    difference, kept = f(x)
    assert not difference.any()
    sources = RANK * 1000 + jnp.arange(SIZE)
    assert jnp.array_equal(kept, sources + 7 + jnp.arange(8)[:, None])


@pytest.mark.mpi(min_size=2)
@pytest.mark.skipif(not options.shared_memory, reason="MPI would copy the operand first")
def test_an_exchange_in_place_needs_no_memory():
    """Nobody else wants the operands, so that only the first of them is memory."""
    x = jnp.zeros((SIZE, 1 << 16), jnp.float32)

    def three(x):
        for _ in range(3):
            x = pc.alltoall(jnp.sin(x))
        return x

    memory = jax.jit(three).lower(x).compile().memory_analysis()
    assert memory is not None
    assert memory.temp_size_in_bytes < 1.5 * x.nbytes

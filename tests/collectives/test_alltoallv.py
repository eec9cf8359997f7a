"""alltoallv: any counts, masks, batches with counts of their own, and overflow."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pfftjax import collectives as pc
from tests.helpers import RANK, SIZE, assert_close, assert_equal, blocks, drawn, global_sum

pytestmark = [pytest.mark.mpi, pytest.mark.ranks(1, 2, 3), pytest.mark.messages]


def _model(X, counts, capacity):
    """counts[i, j] rows from i to j; the result of this rank, and the counts that it receives."""
    rows = [X[i][counts[i, :RANK].sum() : counts[i, : RANK + 1].sum()] for i in range(SIZE)]
    arrived = np.concatenate(rows)
    padding = np.zeros((capacity - len(arrived), *arrived.shape[1:]), arrived.dtype)
    return np.concatenate([arrived, padding]), counts[:, RANK].astype(np.int32)


@drawn(15)
@given(data=st.data())
def test_any_counts(data):
    counts = np.array(
        data.draw(
            st.lists(
                st.lists(st.integers(0, 5), min_size=SIZE, max_size=SIZE),
                min_size=SIZE,
                max_size=SIZE,
            )
        )
    )
    spare = data.draw(st.integers(0, 3))
    width = data.draw(st.sampled_from([(), (1,), (2, 3), (0,)]))
    dtype = data.draw(st.sampled_from(["float64", "complex64", "int8", "bool"]))
    rows = counts.sum(1).max() + spare
    capacity = int(counts.sum(0).max() + spare)
    X, x = blocks((rows, *width), dtype, seed=int(counts.sum()))
    y, received = jax.jit(lambda x, c: pc.alltoallv(x, c, capacity=capacity))(
        x, jnp.asarray(counts[RANK])
    )
    expected, expected_counts = _model(X, counts, capacity)
    assert_equal(y, expected)
    assert_equal(received, expected_counts)


def test_mask():
    y, mask = pc.alltoallv(
        jnp.arange(1.0, SIZE + 1), jnp.ones(SIZE, jnp.int32), capacity=SIZE + 2, return_mask=True
    )
    assert mask.tolist() == [True] * SIZE + [False] * 2
    assert y.tolist() == [RANK + 1.0] * SIZE + [0.0] * 2


def test_rows_and_capacity_may_differ_between_ranks():
    x = jnp.full((SIZE + RANK, 2), float(RANK))
    y, received = pc.alltoallv(x, jnp.ones(SIZE, jnp.int32), capacity=SIZE + 2 * RANK)
    assert y.shape == (SIZE + 2 * RANK, 2)
    assert received.tolist() == [1] * SIZE
    assert y[:SIZE, 0].tolist() == list(range(SIZE))


def test_batches_with_counts_of_their_own():
    rng = np.random.default_rng(7)
    counts = rng.integers(0, 4, (3, SIZE, SIZE))
    rows, capacity = int(counts.sum(2).max()) + 1, int(counts.sum(1).max()) + 1
    X, x = blocks((3, rows, 2))
    f = jax.jit(jax.vmap(lambda x, c: pc.alltoallv(x, c, capacity=capacity)))
    y, received = f(x, jnp.asarray(counts[:, RANK]))
    for b in range(3):
        expected, expected_counts = _model(X[:, b], counts[b], capacity)
        assert_close(y[b], expected)
        assert_equal(received[b], expected_counts)
    # Differentiable all the same: <A x, y> = <x, A* y>.
    _, c = blocks((3, capacity, 2), seed=8)
    z, vjp = jax.vjp(lambda x: f(x, jnp.asarray(counts[:, RANK]))[0], x)
    forward = global_sum(float(jnp.vdot(z, c)))
    assert_close(global_sum(float(jnp.vdot(x, vjp(c)[0]))), forward)
    # The same rows for all, counts of their own.
    y, _ = jax.vmap(lambda c: pc.alltoallv(x[0], c, capacity=capacity))(
        jnp.asarray(counts[:, RANK])
    )
    for b in range(3):
        assert_close(y[b], _model(X[:, 0], counts[b], capacity)[0])


def test_derivatives_of_batches_where_a_rank_has_nothing():
    """It takes part in the exchanges of the derivative all the same."""
    has_rows = RANK < SIZE - 1
    rows = 2 if has_rows else 0
    counts = jnp.zeros((3, SIZE), jnp.int32).at[:, 0].set(rows)
    capacity = 2 * SIZE if RANK == 0 else 0

    @jax.jit
    def loss(x):
        y, _ = jax.vmap(lambda x, n: pc.alltoallv(x, n, capacity=capacity))(x, counts)
        return jnp.sum(y**2)

    x = 1.0 + RANK + jnp.zeros((3, rows, 2))
    assert_close(jax.grad(loss)(x), 2 * x)
    assert_close(jax.jvp(loss, (x,), (x,))[1], 2 * loss(x))


def test_a_row_that_is_not_sent_has_no_gradient():
    counts = jnp.zeros(SIZE, jnp.int32).at[0].set(1)
    weights = jnp.arange(1.0, 2.0 + SIZE)
    gradient = jax.grad(
        lambda x: jnp.sum(pc.alltoallv(x, counts, capacity=SIZE + 1)[0] * weights)
    )(jnp.ones(3))
    # Row 0 of each rank is row `rank` of rank 0.
    assert gradient.tolist() == [RANK + 1.0, 0.0, 0.0]


def test_overflow_is_an_error_on_every_rank_with_the_capacity_that_would_do():
    counts = jnp.zeros(SIZE, jnp.int32).at[0].set(3)  # all to rank 0
    f = jax.jit(lambda x: pc.alltoallv(x, counts, capacity=max(1, 3 * SIZE - 1))[0])
    with pytest.raises(jax.errors.JaxRuntimeError) as raised:
        jax.block_until_ready(f(jnp.ones(3)))
    text = str(raised.value)
    assert f"a capacity of {3 * SIZE} is enough on every rank" in text
    assert f"alltoallv failed on rank {RANK} of {SIZE}" in text
    # All ranks raised, so all can go on together.
    _recover()
    y, _ = pc.alltoallv(jnp.ones(3), counts, capacity=3 * SIZE)
    assert float(y.sum()) == (3 * SIZE if RANK == 0 else 0)


def test_overflow_of_one_member_of_a_batch():
    """The first has too much for its part of the room, the last has not."""
    counts = jnp.zeros((2, SIZE), jnp.int32).at[0, 0].set(3)
    with pytest.raises(jax.errors.JaxRuntimeError, match=f"a capacity of {3 * SIZE} is enough"):
        jax.block_until_ready(
            jax.vmap(lambda n: pc.alltoallv(jnp.ones(3), n, capacity=2 * SIZE)[0])(counts)
        )
    _recover()


def _recover():
    """Forget the failed program: its token carries the error into the next one."""
    import contextlib

    with contextlib.suppress(Exception):
        jax.effects_barrier()


@pytest.mark.parametrize("bad", [-1, 5, 2**32 + 1, -(2**32) + 1])
def test_impossible_counts(bad):
    """Also those that would fit once cut to 32 bits."""
    counts = jnp.zeros(SIZE, jnp.int64).at[0].set(bad if RANK == SIZE - 1 else 0)
    with pytest.raises(jax.errors.JaxRuntimeError, match=f"counts on rank {SIZE - 1}"):
        jax.block_until_ready(pc.alltoallv(jnp.ones(3), counts, capacity=100))
    _recover()


def test_shapes_that_do_not_fit():
    x = jnp.ones((4, 2))
    with pytest.raises(ValueError, match="must have rows"):
        pc.alltoallv(jnp.ones(()), jnp.ones(SIZE, int))
    with pytest.raises(TypeError, match="vector of"):
        pc.alltoallv(x, jnp.ones(SIZE))
    with pytest.raises(ValueError, match="one entry for each of the"):
        pc.alltoallv(x, jnp.ones(SIZE + 1, int))
    with pytest.raises(ValueError, match="capacity is -1"):
        pc.alltoallv(x, jnp.ones(SIZE, int), capacity=-1)

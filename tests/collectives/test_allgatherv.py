"""allgatherv: any numbers of rows, masks, batches with numbers of their own, and overflow."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from mpi4py import MPI

from pfftjax import collectives as pc
from tests.helpers import DTYPES, RANK, SIZE, assert_close, assert_equal, blocks, global_sum

pytestmark = [pytest.mark.mpi, pytest.mark.ranks(1, 2, 3), pytest.mark.messages]

ROWS = 4


def _model(X, counts, capacity):
    """The result, the same on every rank, from all operands and how many rows count of each."""
    arrived = np.concatenate([x[:n] for x, n in zip(X, counts, strict=True)])
    padding = np.zeros((capacity - len(arrived), *arrived.shape[1:]), arrived.dtype)
    return np.concatenate([arrived, padding])


def _counts():
    """Uneven ones, with zeros and all rows; for each as many as there are ranks."""
    rank = np.arange(SIZE)
    return [
        rank % (ROWS + 1),
        (rank + 1) % 2 * ROWS,
        np.zeros(SIZE, int),
        np.full(SIZE, ROWS),
        np.where(rank == SIZE - 1, 3, 0),
        (2 * rank + 1) % (ROWS + 1),
    ]


def test_any_numbers_of_rows_that_are_known_at_run_time():
    """One program for all of them, in all dtypes, and rows of no and of several elements."""
    widths = [(), (1,), (2, 3), (0,)]
    shapes = [(ROWS, *widths[i % len(widths)]) for i in range(len(DTYPES))]
    everything, mine = zip(*map(blocks, shapes, DTYPES), strict=True)
    capacity = ROWS * SIZE + 1
    f = jax.jit(lambda xs, n: [pc.allgatherv(x, n, capacity=capacity) for x in xs])
    for counts in _counts():
        for kind in (jnp.int32, jnp.uint8):
            results = f(mine, jnp.asarray(counts[RANK], kind))
            for X, (y, received) in zip(everything, results, strict=True):
                assert_equal(y, _model(X, counts, capacity))
                assert_equal(received, counts.astype(np.int32))
    assert getattr(f, "_cache_size")() == 2  # noqa: B009 (not in the type); a program for each type of the number


def test_all_rows_by_default():
    X, x = blocks((3, 2))
    y, received = jax.jit(pc.allgatherv)(x)
    assert_equal(y, X.reshape(-1, 2))
    assert received.tolist() == [3] * SIZE


def test_operands_that_differ_in_their_rows():
    """The rank's number and one, all sent; capacities differ too."""
    capacity = SIZE * (SIZE + 1) // 2 + RANK
    x = jnp.full((RANK + 1, 2), float(RANK))
    y, mask = jax.jit(lambda x: pc.allgatherv(x, capacity=capacity, return_mask=True))(x)
    rows = [float(r) for r in range(SIZE) for _ in range(r + 1)]
    assert y[:, 1].tolist() == rows + [0.0] * RANK
    assert mask.tolist() == [True] * len(rows) + [False] * RANK


def test_overflow_is_an_error_on_every_rank_with_the_capacity_that_would_do():
    """Also where one rank alone has too little room."""
    total = 2 * SIZE
    narrow = jnp.ones(3)

    def f(capacity):
        return jax.jit(lambda x, n: pc.allgatherv(x, n, capacity=capacity)[0])

    with pytest.raises(jax.errors.JaxRuntimeError) as raised:
        jax.block_until_ready(f(total - 1 if RANK == SIZE - 1 else 3 * total)(narrow, 2))
    text = str(raised.value)
    assert f"allgatherv failed on rank {RANK} of {SIZE}" in text
    assert f"{total} gathered rows arrive here" in text
    assert f"a capacity of {total} is enough on every rank" in text
    pc.recover()
    y = f(total)(narrow, 2)
    assert y.tolist() == [1.0] * total


@pytest.mark.parametrize("bad", [-1, 4, 2**32 + 1])
def test_impossible_numbers(bad):
    """Also one that would fit once cut to 32 bits; on every rank, naming the one."""
    n = jnp.asarray(bad if RANK == SIZE - 1 else 1, jnp.int64)
    with pytest.raises(jax.errors.JaxRuntimeError, match=f"counts on rank {SIZE - 1}"):
        jax.block_until_ready(pc.allgatherv(jnp.ones(3), n, capacity=100))
    pc.recover()
    assert float(pc.allreduce(1.0)) == SIZE


def test_batches():
    """The same number for a batch travels in one message; of its own, each member by itself."""
    X, x = blocks((3, ROWS, 2))
    capacity = ROWS * SIZE
    counts = np.stack(_counts()[:3])
    mine = jnp.asarray(counts[:, RANK])

    @jax.jit
    def f(x, n):
        same = jax.vmap(lambda x: pc.allgatherv(x, n[0], capacity=capacity)[0])(x)
        own, received = jax.vmap(lambda x, n: pc.allgatherv(x, n, capacity=capacity))(x, n)
        only = jax.vmap(lambda n: pc.allgatherv(x[0], n, capacity=capacity)[0])(n)
        last = jax.vmap(
            lambda x: pc.allgatherv(x, n[1], capacity=capacity)[0], in_axes=2, out_axes=1
        )(jnp.stack([x[0], 2 * x[0]], axis=2))
        return same, own, received, only, last

    same, own, received, only, last = f(x, mine)
    for b in range(3):
        assert_equal(same[b], _model(X[:, b], counts[0], capacity))
        assert_equal(own[b], _model(X[:, b], counts[b], capacity))
        assert_equal(received[b], counts[b].astype(np.int32))
        assert_equal(only[b], _model(X[:, 0], counts[b], capacity))
    assert_equal(last[:, 1], 2 * _model(X[:, 0], counts[1], capacity))


def test_adjoint():
    """<A x, y> is <x, A* y> over all ranks, for all numbers of rows, batched as well; rows that
    are not sent get zeros."""
    capacity = ROWS * SIZE + 2
    _, x = blocks((2, ROWS, 3), "complex128")
    _, c = blocks((2, capacity, 3), "complex128", seed=8)

    @jax.jit
    def f(x, n, c):
        def one(x):
            return pc.allgatherv(x, n, capacity=capacity)[0]

        y, pull = jax.vjp(one, x[0])
        ys, pulls = jax.vjp(jax.vmap(one), x)
        own, back = jax.vjp(
            jax.vmap(lambda x, n: pc.allgatherv(x, n, capacity=capacity)[0], in_axes=(0, None)),
            x,
            n,
        )
        return (y, ys, own), (pull(c[0])[0], pulls(c)[0], back(c)[0])

    for counts in _counts():
        forward, backward = f(x, jnp.asarray(counts[RANK]), c)
        for y, z, back, operand in zip(forward, (c[0], c, c), backward, (x[0], x, x), strict=True):
            left = global_sum(complex(jnp.sum(y * z)))
            assert_close(global_sum(complex(jnp.sum(operand * back))), left)
            assert not np.asarray(back)[..., counts[RANK] :, :].any()


def test_more_rows_than_their_derivative_can_count():
    """The result has room for few; the derivative brings the rows of all ranks to each of them."""
    rows = (2**31 - 1) // SIZE + 1
    gathered = functools.partial(pc.allgatherv, count=1, capacity=3)
    x = jax.ShapeDtypeStruct((rows,), "float32")
    with pytest.raises(ValueError, match=r"allgatherv on rank .* rows.*, but counts are 32-bit"):
        jax.eval_shape(jax.grad(lambda x: jnp.sum(gathered(x)[0])), x)


def test_a_batch_of_none():
    """With numbers of rows of its own for each member, and with rows that are not batched."""
    x, count = jnp.zeros((2, 0, ROWS, 3)), jnp.zeros(0, int)
    gathered = jax.vmap(lambda x, n: pc.allgatherv(x, n, capacity=5), (1, 0))
    y, received = gathered(x.swapaxes(0, 2), count)
    assert (y.shape, received.shape) == ((0, 5, 2, 3), (0, SIZE))
    y, _ = jax.vmap(lambda n: pc.allgatherv(x[:, 0:0, 0], n, capacity=5))(count)
    assert y.shape == (0, 5, 0, 3)


def test_gradient_of_a_loss_that_differs_between_ranks():
    """Row j of rank i is used by every rank, with another weight each."""
    X, x = blocks((2,))

    def loss(x):
        return jnp.sum((RANK + 1.0) * jnp.sin(pc.allgatherv(x)[0]))

    def model(X):
        return sum(jnp.sum((r + 1.0) * jnp.sin(X.ravel())) for r in range(SIZE))

    gradient = jax.jit(jax.grad(loss))(x)
    assert_close(gradient, jax.grad(model)(jnp.asarray(X))[RANK])
    second = jax.jit(jax.jvp, static_argnums=0)(jax.grad(loss), (x,), (x,))[1]
    full = jax.jvp(jax.grad(model), (jnp.asarray(X),), (jnp.asarray(X),))[1]
    assert_close(second, full[RANK])


def test_on_part_of_the_ranks():
    half = MPI.COMM_WORLD.Split(RANK % 2, -RANK)
    members = [r for r in range(SIZE) if r % 2 == RANK % 2][::-1]
    y, received = pc.allgatherv(jnp.full(SIZE, RANK), RANK + 1, capacity=SIZE**2 + 1, comm=half)
    assert received.tolist() == [r + 1 for r in members]
    assert y[: int(received.sum())].tolist() == [r for r in members for _ in range(r + 1)]
    half.Free()


def test_arguments():
    where = f"allgatherv on rank {RANK} of {SIZE}"
    with pytest.raises(ValueError, match=f"{where}: x must have rows along axis 0, got a scalar"):
        pc.allgatherv(1.0)
    with pytest.raises(TypeError, match="count must be one integer, got float64"):
        pc.allgatherv(jnp.ones(3), 1.0)
    with pytest.raises(TypeError, match=r"count must be one integer, got int64 of shape \(1,\)"):
        pc.allgatherv(jnp.ones(3), jnp.ones(1, int))
    with pytest.raises(ValueError, match="capacity is -1"):
        pc.allgatherv(jnp.ones(3), capacity=-1)

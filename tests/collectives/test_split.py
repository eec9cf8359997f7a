"""Exchanges in two halves: any order of waiting, loops, transformations, and overlap."""

import time

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from mpi4py import MPI

from pfftjax import collectives as pc
from tests.helpers import CONTROL, RANK, SIZE, assert_close, assert_equal, blocks, random

pytestmark = [pytest.mark.mpi, pytest.mark.ranks(1, 2, 3), pytest.mark.messages]


def test_several_on_their_way_and_waited_for_in_another_order():
    """With other collectives between, of both kinds, on two communicators, and empty ones."""
    X, x = blocks((SIZE, 3))
    _, e = blocks((SIZE, 0))
    other = MPI.COMM_WORLD.Split(0, -RANK)

    @jax.jit
    def f(x):
        started = [pc.alltoall_start(x + i) for i in range(4)]
        gathered = [pc.allgather_start(x[0] * i, comm=other) for i in range(2)]
        nothing = pc.alltoall_start(e)
        total = pc.allreduce(x)
        swapped = pc.alltoall(x)
        results = {i: pc.wait(started[i]) for i in (2, 0, 3)}
        last = [pc.wait(p) for p in gathered[::-1]]
        pc.barrier()
        results[1] = pc.wait(started[1])
        return results, last, total, swapped, pc.wait(nothing)

    for _ in range(3):
        results, last, total, swapped, nothing = f(x)
        for i, y in results.items():
            assert_close(y, X[:, RANK] + i)
        assert_equal(last[1], 0 * X[::-1, 0])
        assert_equal(last[0], X[::-1, 0])
        assert_close(total, X.sum(0))
        assert_equal(swapped, X[:, RANK])
        assert nothing.shape == (SIZE, 0)
    other.Free()


def test_started_in_one_program_and_waited_for_in_another():
    """A `Pending` is a pytree."""
    X, x = blocks((SIZE, 2), "complex64")
    pending = jax.jit(pc.alltoall_start)(x)
    assert isinstance(pending, pc.Pending)
    assert len(jax.tree.leaves(pending)) == 2
    y = jax.jit(lambda x: 2 * x)(x)
    assert_equal(jax.jit(pc.wait)(pending), X[:, RANK])
    assert_equal(y, 2 * X[RANK])
    eager = pc.allgather_start(x)
    assert_equal(pc.wait(eager), X)


def test_the_next_step_of_a_loop_waits():
    """A pipeline: `Pending` in the carry of scan, while_loop and cond."""
    X, _ = blocks((SIZE, 2))
    steps = 4

    def body(pending, i):
        swapped = pc.wait(pending)
        return pc.alltoall_start(swapped + i), swapped.sum()

    @jax.jit
    def f(x):
        pending, sums = jax.lax.scan(body, pc.alltoall_start(x), jnp.arange(steps))
        i, pending = jax.lax.while_loop(
            lambda c: c[0] < 3, lambda c: (c[0] + 1, body(c[1], c[0])[0]), (0, pending)
        )
        pending = jax.lax.cond(i > 2, lambda p: body(p, 10)[0], lambda p: p, pending)
        return pc.wait(pending), sums

    added = [*range(steps), *range(3), 10]
    y, sums = f(jnp.asarray(X[RANK]))
    expected, expected_sums = np.swapaxes(X, 0, 1), []
    for a in added:
        expected_sums.append(expected[RANK].sum())
        expected = np.swapaxes(expected + a, 0, 1)
    assert_close(y, expected[RANK])
    assert_close(sums, np.array(expected_sums[:steps]))


@pytest.mark.parametrize("compiled", [False, True])
def test_a_second_wait_is_an_error(compiled):
    wait = jax.jit(pc.wait) if compiled else pc.wait
    pending = pc.allgather_start(RANK)
    assert wait(pending).tolist() == list(range(SIZE))
    with pytest.raises(jax.errors.JaxRuntimeError, match=r"waited for already.*once for each"):
        jax.block_until_ready(wait(pending))
    pc.recover()
    assert float(pc.allreduce(1.0)) == SIZE


def test_what_was_started_otherwise_is_an_error():
    """A ticket belongs to its operation, communicator and size, and the exchange goes on."""
    X, x = blocks((SIZE, 2))
    pending = pc.alltoall_start(x)
    wrong = pc.Pending(x[:, :1], pending.ticket, False, pending.comm)
    with pytest.raises(jax.errors.JaxRuntimeError, match="was not started in this way"):
        jax.block_until_ready(pc.wait(wrong))
    pc.recover()
    assert_equal(pc.wait(pending), X[:, RANK])


def test_derivatives_are_those_of_the_whole_operation():
    """Any order; the cotangents' exchange is not split. In and across scan."""
    X, x = blocks((SIZE, 2))
    W, w = blocks((SIZE, 2), seed=3)
    V, v = blocks((SIZE, 2), seed=4)
    X, W, V = map(jnp.asarray, (X, W, V))

    def split(x):
        a, b = pc.alltoall_start(jnp.sin(x)), pc.allgather_start(x[0] ** 2)
        gathered = pc.wait(b)

        def step(pending, _):
            return pc.alltoall_start(jnp.cos(pc.wait(pending))), None

        a, _ = jax.lax.scan(step, a, None, length=1)
        return jnp.sum(w * pc.wait(a) ** 2) + jnp.sum(w * gathered)

    def model(X):
        y = jnp.swapaxes(jnp.sin(X), 0, 1)
        y = jnp.swapaxes(jnp.cos(y), 0, 1)
        return jnp.sum(W * y**2) + jnp.sum(W * X[:, 0] ** 2)

    gradient = jax.grad(model)
    assert_close(jax.jit(jax.grad(split))(x), gradient(X)[RANK])
    assert_close(
        jax.jit(lambda x, v: jax.jvp(jax.grad(split), (x,), (v,))[1])(x, v),
        jax.jvp(gradient, (X,), (V,))[1][RANK],
    )


def test_batches():
    """Start and wait under the same vmap; one message."""
    X = random((SIZE, 3, SIZE, 2))
    x = jnp.asarray(X[RANK])

    @jax.jit
    def f(x):
        def one(x):
            return pc.wait(pc.alltoall_start(x)), pc.wait(pc.allgather_start(x[0]))

        return jax.vmap(one)(x), jax.vmap(one, in_axes=2, out_axes=-1)(jnp.moveaxis(x, 0, 2))

    for swapped, gathered in f(x):
        if swapped.shape[0] != 3 or swapped.shape[-1] == 3:
            swapped, gathered = jnp.moveaxis(swapped, -1, 0), jnp.moveaxis(gathered, -1, 0)
        assert_equal(swapped, np.swapaxes(X[:, :, RANK], 0, 1))
        assert_equal(gathered, np.swapaxes(X[:, :, 0], 0, 1))
    pending = pc.alltoall_start(x[0])
    tickets = jnp.stack([pending.ticket] * 2)
    with pytest.raises(ValueError, match=r"same jax\.vmap"):
        jax.vmap(lambda t: pc.wait(pc.Pending(x[0], t, False, pending.comm)))(tickets)
    assert_equal(pc.wait(pending), X[:, 0, RANK])


@pytest.mark.memory
@pytest.mark.mpi(min_size=2)
def test_work_goes_on_while_another_rank_is_late():
    """Rank 0 starts, works and waits: about as long as the longer of the two, not their sum.
    The work is a pause, so that it needs no core of its own."""
    x = jnp.ones((SIZE, 1 << 16)) * RANK
    late = 0.4

    def pause(y):
        time.sleep(late)
        return y

    def work(y):
        return jax.pure_callback(pause, jax.typeof(y), y)

    @jax.jit
    def blocking(x, y):
        swapped = pc.alltoall(x)
        return swapped, work(y + 0 * swapped[0, 0])

    @jax.jit
    def split(x, y):
        pending = pc.alltoall_start(x)
        # After the start, and before the wait.
        worked = work(y + 0 * pending.ticket[0])
        pending = pc.Pending(
            pending.x + 0 * worked, pending.ticket, pending.same_for_all, pending.comm
        )
        return pc.wait(pending), worked

    seconds = {}
    for name, f in (("blocking", blocking), ("split", split)):
        for k in range(2):  # the first run compiles
            CONTROL.Barrier()
            if RANK == 1 and k:
                time.sleep(late)
            start = time.perf_counter()
            swapped, _ = jax.block_until_ready(f(x, 1.0))
            seconds[name] = time.perf_counter() - start
            assert swapped[:, 0].tolist() == list(range(SIZE))
    if RANK == 0:
        # 2 late for the sum; 1 late for the longer.
        assert seconds["blocking"] > 1.9 * late, seconds
        assert seconds["split"] < 1.6 * late, seconds

"""Independent exchanges never swap partners, whatever XLA does with their inputs."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from pfftjax import collectives as pc
from pfftjax._runtime import ordering
from tests.helpers import RANK, SIZE, global_sum

pytestmark = [
    pytest.mark.mpi,
    pytest.mark.timeout(300),
    pytest.mark.ranks(1, 2, 3),
    pytest.mark.messages,
    pytest.mark.fully_optimised,
]

EXCHANGES = 10
REPETITIONS = 200


def _work(x, amount):
    """Time that depends on the rank, on which the exchange then depends."""
    for _ in range(amount):
        x = jnp.sin(x @ x) * 0 + x
    return x


def _branch(i, s):
    """One of ten exchanges that do not depend on each other: row p of the result is s of p."""
    busy = _work(jnp.ones((96, 96)) * jnp.sum(s) * 0, (7 * i + 3 * RANK) % 5)
    return pc.alltoall(busy[:SIZE, :SIZE] * 0 + s[:, None] * jnp.ones((1, SIZE)))


def _forward(s):
    return [_branch(i, s[i]) for i in range(EXCHANGES)]


def _backward(s, cotangents):
    delayed = [
        _work(jnp.ones((96, 96)) * jnp.sum(c) * 0, (5 * i + 2 * RANK) % 4)[:SIZE, :SIZE] * 0 + c
        for i, c in enumerate(cotangents)
    ]
    return jax.vjp(_forward, s)[1](delayed)[0]


@pytest.mark.mpi(min_size=2)
def test_ten_independent_exchanges_of_equal_size():
    """As plain FFI calls: 300 of 300 wrong on one core a rank, a hang on two."""
    forward, backward = jax.jit(_forward), jax.jit(_backward)
    index = np.arange(EXCHANGES)[:, None]
    wrong = 0
    for k in range(REPETITIONS):
        s = 1000.0 * k + 100 * index + 10 * RANK + np.arange(SIZE)
        expected = 1000.0 * k + 100 * index + 10 * np.arange(SIZE) + RANK
        for i, block in enumerate(forward(jnp.asarray(s))):
            wrong += not np.array_equal(block, np.repeat(expected[i][:, None], SIZE, 1))
        cotangents = [jnp.full((SIZE, SIZE), 10.0 * i + RANK + k) for i in range(EXCHANGES)]
        gradient = np.asarray(backward(jnp.asarray(s), cotangents))
        wrong += not np.array_equal(gradient, SIZE * (10.0 * index + k + np.arange(SIZE)))
    assert global_sum(wrong) == 0


@pytest.mark.mpi(min_size=2)
def test_program_order_without_data_dependence():
    """Point-to-point messages with nothing to tell them apart but their order."""
    right, left = (RANK + 1) % SIZE, (RANK - 1) % SIZE

    @jax.jit
    def f(x):
        kept = [pc.sendrecv(x + i, x, left, right) for i in range(5)]
        return jnp.stack(kept)

    for _ in range(20):
        assert f(jnp.asarray(100.0 * RANK)).tolist() == [100.0 * left + i for i in range(5)]


@pytest.mark.mpi(min_size=2)
def test_unused_results_are_still_exchanged():
    """A result that nobody uses is not removed: the other ranks wait for it."""

    @jax.jit
    def f(x):
        pc.alltoall(x)
        return pc.allreduce(x[0]) if RANK == 0 else pc.allreduce(x[0] * 1)

    assert float(f(jnp.ones(SIZE))) == SIZE


def test_every_operation_carries_the_effects():
    x = jnp.ones(SIZE)
    programs = {
        "alltoall": lambda: pc.alltoall(x),
        "alltoallv": lambda: pc.alltoallv(x, jnp.ones(SIZE, int)),
        "allgather": lambda: pc.allgather(x),
        "reduce_scatter": lambda: pc.reduce_scatter(x),
        "allreduce": lambda: pc.allreduce(x),
        "sendrecv": lambda: pc.sendrecv(x, x, 0, 0),
        "barrier": lambda: pc.barrier(),
        "bcast": lambda: pc.bcast(x, 0),
    }
    for name, program in programs.items():
        effects = jax.make_jaxpr(program)().effects
        assert effects == set(ordering.EFFECTS), name


def test_effects_are_equal_by_type():
    """`jax.export` makes new instances; they must mean the same."""
    assert ordering.Communication() == ordering.communication
    assert hash(ordering.Communication()) == hash(ordering.communication)
    assert ordering.Communication() != ordering.SlowDispatch()


@pytest.mark.memory
def test_calls_are_asynchronous():
    """Copying the token would wait for the program that made it (4.1 of 4.4 ms)."""
    import time

    @jax.jit
    def slow(w, x):
        y = w
        for _ in range(8):
            y = y @ w * 1e-3
        return pc.alltoall(x + 0 * y[0, 0])

    w, x = jnp.ones((700, 700)), jnp.ones(SIZE)
    slow(w, x).block_until_ready()
    ratios = []
    for _ in range(5):
        start = time.perf_counter()
        y = slow(w, slow(w, x))
        dispatched = time.perf_counter() - start
        y.block_until_ready()
        ratios.append(dispatched / (time.perf_counter() - start))
    assert sorted(ratios)[2] < 0.3, ratios

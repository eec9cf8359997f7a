"""Pytrees in place of arrays, and communicators as arguments of jitted functions."""

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from mpi4py import MPI

from pfftjax import collectives as pc
from tests.helpers import CONTROL, RANK, SIZE, assert_equal, random

pytestmark = [pytest.mark.mpi, pytest.mark.ranks(1, 2, 3), pytest.mark.messages]


@jax.tree_util.register_dataclass
@dataclasses.dataclass
class Particles:
    """As programs have them."""

    positions: jax.Array
    masses: jax.Array
    more: dict


def _particles(rank):
    """Draw the particles of a rank; their first axis counts the ranks."""
    return Particles(
        jnp.asarray(random((SIZE, SIZE, 3), seed=1)[rank]),
        jnp.asarray(random((SIZE, SIZE), "float32", seed=2)[rank]),
        {"id": (jnp.asarray(random((SIZE, SIZE, 2), "int32", seed=3)[rank]),), "none": None},
    )


OPERATIONS = {
    "allgather": (pc.allgather, lambda X: X),
    "allreduce": (lambda x: pc.allreduce(x, MPI.MAX), lambda X: X.max(0)),
    "alltoall": (pc.alltoall, lambda X: X[:, RANK]),
    "bcast": (lambda x: pc.bcast(x, SIZE - 1), lambda X: X[-1]),
    "gather": (lambda x: pc.gather(x, 0), lambda X: X if RANK == 0 else X[RANK]),
    "reduce": (lambda x: pc.reduce(x, MPI.MIN, 0), lambda X: (X.min(0) if RANK == 0 else X[RANK])),
    "reduce_scatter": (lambda x: pc.reduce_scatter(x, MPI.MAX), lambda X: X.max(0)[RANK]),
    "replicate": (lambda _: pc.replicate(_particles(0)), lambda X: X[0]),
    "scan": (lambda x: pc.scan(x, MPI.MAX), lambda X: X[: RANK + 1].max(0)),
    "sendrecv": (
        lambda x: pc.sendrecv(x, x, (RANK - 1) % SIZE, (RANK + 1) % SIZE),
        lambda X: X[RANK - 1],
    ),
}


def test_every_operation_takes_a_pytree():
    """One call for each leaf, in the same order on every rank; the structure comes back."""
    x = _particles(RANK)
    results = jax.jit(lambda x: {name: f(x) for name, (f, _) in OPERATIONS.items()})(x)
    X = jax.tree.map(lambda *leaves: np.stack(leaves), *map(_particles, range(SIZE)))
    for name, (_, model) in OPERATIONS.items():
        y = results[name]
        assert isinstance(y, Particles), name
        jax.tree.map(assert_equal, y, jax.tree.map(model, X))
    scattered = pc.scatter(x if RANK == 0 else jax.tree.map(lambda a: a[0], x), 0)
    jax.tree.map(assert_equal, scattered, jax.tree.map(lambda a: a[0, RANK], X))


def test_no_leaves_and_python_numbers():
    assert pc.allreduce({}) == {}
    assert pc.allgather([None, ()]) == [None, ()]
    given: Any = {"a": 1, "b": [2.5, True]}
    y = pc.allreduce(given)
    assert (int(y["a"]), float(y["b"][0]), bool(y["b"][1])) == (SIZE, 2.5 * SIZE, True)
    assert np.asarray(pc.allgather([RANK])[0]).tolist() == list(range(SIZE))


def test_derivatives_and_batches_of_pytrees():
    tree = {"a": jnp.arange(3.0) + RANK, "b": jnp.asarray(2.0)}

    def loss(tree):
        total = pc.allreduce(tree)
        return jnp.sum(total["a"] ** 2) * total["b"]

    gradient = jax.jit(jax.grad(loss))(tree)
    a = SIZE * np.arange(3.0) + SIZE * (SIZE - 1) / 2
    np.testing.assert_allclose(gradient["a"], 2 * a * 2 * SIZE)
    np.testing.assert_allclose(gradient["b"], np.sum(a**2))
    rows = jax.tree.map(lambda x: jnp.stack([x, 2 * x]), tree)
    y = jax.vmap(pc.allgather)(rows)
    assert y["a"].shape == (2, SIZE, 3)
    assert y["b"].tolist() == [[2.0] * SIZE, [4.0] * SIZE]


def test_a_communicator_is_an_argument_of_jitted_functions():
    """Static or not; another one makes another program, the same one does not."""
    halves = MPI.COMM_WORLD.Split(RANK % 2, RANK)
    members = [r for r in range(SIZE) if r % 2 == RANK % 2]
    comms = {
        SIZE: pc.communicator(),
        len(members): pc.communicator(halves),
        1: pc.communicator(MPI.COMM_SELF),
    }
    traced = []

    def total(x, comm):
        traced.append(comm)
        return pc.allreduce(x, comm=comm)

    ordinary = jax.jit(total)
    by_place = jax.jit(total, static_argnums=1)
    by_name = jax.jit(total, static_argnames="comm")
    for size, comm in comms.items():
        for _ in range(2):
            assert int(ordinary(1, comm)) == size
            assert int(by_place(1, comm)) == size
            assert int(by_name(1, comm=comm)) == size
    assert len(traced) == 3 * len({c.number for c in comms.values()})
    # The same object for the same communicator, whatever it is asked by.
    assert pc.communicator(halves) is comms[len(members)] or len(members) in (1, SIZE)
    assert pc.communicator(MPI.COMM_WORLD) is pc.communicator() is pc.communicator(None)
    with pytest.raises(TypeError):
        jax.jit(total)(1, halves)
    halves.Free()


def test_a_communicator_under_transformations():
    """It has no leaves, so that derivatives, batches and loops carry it."""
    comm = pc.communicator()
    assert jax.tree.leaves(comm) == []
    assert (comm.rank, comm.size, comm.mpi) == (RANK, SIZE, MPI.COMM_WORLD)

    def loss(x, comm):
        return pc.allreduce(x**2, comm=comm)

    assert float(jax.jit(jax.grad(loss))(3.0, comm)) == 6.0
    batched = jax.jit(jax.vmap(loss, in_axes=(0, None)))(jnp.arange(3.0), comm)
    assert batched.tolist() == [0.0, SIZE, 4.0 * SIZE]

    @jax.jit
    def loop(x, comm):
        def step(carry, _):
            x, comm = carry
            return (pc.allreduce(x, comm=comm), comm), None

        return jax.lax.scan(step, (x, comm), None, length=3)[0][0]

    assert float(loop(1.0, comm)) == SIZE**3


def test_what_is_no_communicator():
    with pytest.raises(ValueError, match=r"communicator on rank .*COMM_NULL"):
        pc.communicator(MPI.COMM_NULL)
    assert CONTROL.allreduce(1) == SIZE

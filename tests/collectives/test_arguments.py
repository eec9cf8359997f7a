"""Mistakes that can be seen before anything is sent: the text names operation, rank and remedy."""

from typing import Any

import jax
import jax.numpy as jnp
import pytest
from mpi4py import MPI

from pfftjax import collectives as pc
from tests.helpers import RANK, SIZE

pytestmark = [pytest.mark.mpi, pytest.mark.ranks(1, 2, 3), pytest.mark.messages]

# The same functions, where calls are to hand over wrong types.
UNTYPED: Any = pc
WHERE = f"on rank {RANK} of {SIZE}"


@pytest.mark.parametrize("name", ["alltoall", "reduce_scatter", "alltoall_start"])
@pytest.mark.parametrize("shape", [(), (SIZE + 1, 3), (0,)])
def test_axis_0_counts_the_ranks(name, shape):
    with pytest.raises(ValueError, match=rf"{name} {WHERE}: .* must have shape \(nproc, "):
        getattr(pc, name)(jnp.ones(shape))


def test_dtypes_that_cannot_be_sent():
    key = jax.random.key(0)
    with pytest.raises(
        TypeError, match=rf"allgather {WHERE}: dtype .* send jax\.random\.key_data"
    ):
        pc.allgather(key)
    with pytest.raises(TypeError, match="cannot be sent; cast it"):
        pc.allreduce(jnp.ones(2, jnp.float8_e4m3fn))


def test_reductions_that_mean_nothing():
    with pytest.raises(TypeError, match=f"allreduce {WHERE}: MPI.MAX is not defined for complex"):
        pc.allreduce(jnp.ones(2, jnp.complex64), MPI.MAX)
    with pytest.raises(TypeError, match=r"MPI\.BAND is not defined for float64"):
        pc.reduce_scatter(jnp.ones(SIZE), MPI.BAND)
    with pytest.raises(ValueError, match=r"must be one of MPI\.SUM"):
        pc.allreduce(1.0, MPI.REPLACE)


def test_root():
    with pytest.raises(ValueError, match=f"bcast {WHERE}: root is {SIZE}"):
        pc.bcast(1.0, SIZE)
    with pytest.raises(ValueError, match="root is -1"):
        pc.bcast(1.0, -1)


def test_message_names_the_shape():
    with pytest.raises(ValueError, match=rf"got shape \({SIZE + 1}, 2\); reshape it to"):
        jax.jit(pc.alltoall)(jnp.ones((SIZE + 1, 2)))


@pytest.mark.wrong_types
@pytest.mark.parametrize(
    ("text", "call"),
    [
        ("op must be an mpi4py operation such as MPI.SUM", lambda: UNTYPED.allreduce(1, "sum")),
        ("comm must be an mpi4py communicator", lambda: UNTYPED.allreduce(1.0, comm=0)),
        ("communicator: comm must be an mpi4py communicator", lambda: UNTYPED.communicator(0)),
        ("tag must be a static integer, got None", lambda: UNTYPED.send(1, 0, tag=None)),
        (r"status must be an mpi4py\.MPI\.Status or None", lambda: UNTYPED.recv(1, 0, status=1)),
        ("wait: takes what alltoall_start or allgather_start", lambda: UNTYPED.wait(jnp.ones(2))),
    ],
)
def test_types(text, call):
    with pytest.raises(TypeError, match=text):
        call()


@pytest.mark.wrong_types
@pytest.mark.parametrize(
    ("name", "call"),
    [
        ("root", lambda n: pc.bcast(1.0, n)),
        ("root", lambda n: pc.gather(1.0, n)),
        ("root", lambda n: pc.scatter(jnp.ones(SIZE), n)),
        ("root", lambda n: pc.reduce(1.0, MPI.SUM, n)),
        ("dest", lambda n: pc.send(1.0, n)),
        ("tag", lambda n: pc.send(1.0, 0, tag=n)),
        ("source", lambda n: pc.recv(1.0, n)),
        ("source", lambda n: pc.sendrecv(1.0, 1.0, n, 0)),
        ("capacity", lambda n: pc.alltoallv(jnp.ones(3), jnp.ones(SIZE, int), capacity=n)),
        ("capacity", lambda n: pc.allgatherv(jnp.ones(3), capacity=n)),
    ],
)
def test_what_must_be_static(name, call):
    with pytest.raises(TypeError, match=rf"{name} must be a static integer.*part of the compiled"):
        jax.jit(call)(0)


def test_a_communicator_that_is_freed_before_its_first_collective():
    """Another one may have its handle, and would be taken for it."""
    user = MPI.COMM_WORLD.Dup()
    comm = pc.communicator(user)
    user.Free()
    other = MPI.COMM_WORLD.Split(RANK)
    with pytest.raises(ValueError, match=f"allreduce {WHERE}: the communicator was freed before"):
        pc.allreduce(1.0, comm=comm)
    other.Free()


def test_a_communicator_that_is_freed_after_its_first_collective():
    """Traffic is on pfftjax's duplicate, which lives on."""
    user = MPI.COMM_WORLD.Dup()
    comm = pc.communicator(user)
    assert float(pc.allreduce(1.0, comm=comm)) == SIZE
    user.Free()
    assert float(pc.allreduce(2.0, comm=comm)) == 2 * SIZE

"""Communicators: sub-communicators, numbers, freed ones, and what is refused."""

import jax
import jax.numpy as jnp
import pytest
from mpi4py import MPI

from pfftjax import collectives as pc
from pfftjax._runtime import communicators
from pfftjax._runtime.agreement import private
from tests.helpers import CONTROL, RANK, SIZE

pytestmark = [pytest.mark.mpi, pytest.mark.messages]


def test_halves_of_the_world():
    half = MPI.COMM_WORLD.Split(RANK % 2, RANK)
    members = [rank for rank in range(SIZE) if rank % 2 == RANK % 2]

    def f(x):
        return pc.allreduce(x, comm=half) * 100 + pc.allreduce(x)

    expected = 100 * sum(members) + sum(range(SIZE))
    assert float(jax.jit(f)(float(RANK))) == expected
    assert pc.allgather(RANK, comm=half).tolist() == members
    half.Free()


def test_order_of_ranks_is_the_communicators():
    backwards = MPI.COMM_WORLD.Split(0, -RANK)
    assert pc.allgather(RANK, comm=backwards).tolist() == list(range(SIZE))[::-1]
    backwards.Free()


def test_programs_do_not_tell_communicators_of_different_ranks_apart():
    """Rows of a grid have the same number everywhere: the same program on all ranks."""
    world, row = MPI.COMM_WORLD.Dup(), MPI.COMM_WORLD.Split(RANK // 2, RANK)
    before = communicators.as_communicator(world, "test").number
    text = (
        jax.jit(lambda x: pc.alltoall(x, comm=row) if row.size == 2 else x)
        .lower(jnp.ones(2))
        .as_text()
    )
    # Tests before this one may have made communicators on some ranks only.
    text = text.replace(f"comm = {before + 1} :", "comm = row :")
    texts = CONTROL.allgather((row.size, text))
    assert len({text for size, text in texts if size == 2}) <= 1
    assert row.size != 2 or "comm = row" in text
    world.Free()
    row.Free()


def test_the_same_communicator_has_one_number():
    comm = MPI.COMM_WORLD.Dup()
    first = communicators.as_communicator(comm, "test")
    assert communicators.as_communicator(comm, "test") is first
    assert communicators.as_communicator(first, "test") is first
    assert {first, first} == {first}
    assert first != communicators.world
    # This text appears in programs: no rank in it.
    assert repr(first) == f"Communicator({first.number}, size={SIZE})"
    comm.Free()


def test_a_new_communicator_is_not_taken_for_a_freed_one():
    """MPI reuses handles; a stale wrapper would send to the wrong ranks."""
    numbers = []
    for _ in range(3):
        comm = MPI.COMM_WORLD.Split(0, RANK)
        numbers.append(communicators.as_communicator(comm, "test").number)
        assert float(pc.allreduce(1.0, comm=comm)) == SIZE
        comm.Free()
    assert len(set(numbers)) == 3


def test_the_duplicate_for_what_is_outside_of_programs_is_one_and_goes_with_its_communicator():
    comm = MPI.COMM_WORLD.Dup()
    own = private(comm)
    assert MPI.Comm.Compare(own, comm) == MPI.CONGRUENT
    assert private(comm) is own
    assert own.allreduce(1) == SIZE
    comm.Free()
    assert own == MPI.COMM_NULL


def test_self_and_none():
    assert float(pc.allreduce(3.0, comm=MPI.COMM_SELF)) == 3.0
    assert float(pc.allreduce(1.0, comm=None)) == SIZE


def test_what_is_no_intracommunicator():
    with pytest.raises(ValueError, match=r"COMM_NULL"):
        pc.allreduce(1.0, comm=MPI.COMM_NULL)


@pytest.mark.mpi(min_size=2)
def test_intercommunicator():
    half = MPI.COMM_WORLD.Split(RANK % 2, RANK)
    assert isinstance(half, MPI.Intracomm)
    inter = half.Create_intercomm(0, MPI.COMM_WORLD, 1 - RANK % 2)
    with pytest.raises(TypeError, match="intercommunicator; merge it"):
        pc.allreduce(1.0, comm=inter)
    inter.Free()
    half.Free()

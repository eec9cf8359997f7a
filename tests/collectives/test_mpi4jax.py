"""Programs written for mpi4jax (0.8 and newer) run with `import pfftjax.collectives as mpi4jax`:
its twelve operations with its signatures, the shapes of its results, and its program order."""

import inspect
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from mpi4py import MPI

import pfftjax.collectives as mpi4jax
from tests.helpers import RANK, SIZE, assert_close, assert_equal, blocks

pytestmark = [pytest.mark.mpi, pytest.mark.messages]

RIGHT, LEFT = (RANK + 1) % SIZE, (RANK - 1) % SIZE
# Arguments by position, then by keyword.
SIGNATURES = {
    "allgather": (["x"], ["comm"]),
    "allreduce": (["x", "op"], ["comm"]),
    "alltoall": (["x"], ["comm"]),
    "barrier": ([], ["comm"]),
    "bcast": (["x", "root"], ["comm"]),
    "gather": (["x", "root"], ["comm"]),
    "recv": (["x", "source"], ["tag", "comm", "status"]),
    "reduce": (["x", "op", "root"], ["comm"]),
    "scan": (["x", "op"], ["comm"]),
    "scatter": (["x", "root"], ["comm"]),
    "send": (["x", "dest"], ["tag", "comm"]),
    "sendrecv": (
        ["sendbuf", "recvbuf", "source", "dest"],
        ["sendtag", "recvtag", "comm", "status", "collective"],  # the last one is ours
    ),
}


@pytest.mark.parametrize("name", SIGNATURES)
def test_signatures(name):
    parameters = inspect.signature(getattr(mpi4jax, name)).parameters.values()
    by_position = [p.name for p in parameters if p.kind == p.POSITIONAL_OR_KEYWORD]
    by_keyword = [p.name for p in parameters if p.kind == p.KEYWORD_ONLY]
    assert (by_position, sorted(by_keyword)) == (SIGNATURES[name][0], sorted(SIGNATURES[name][1]))
    assert all(p.default is None for p in parameters if p.name in ("comm", "status"))


def _everything(x, comm):
    """All operations on x of shape (2,) and on comm, with their results by name."""
    rank, size = comm.rank, comm.size
    left, right = (rank - 1) % size, (rank + 1) % size
    root = size - 1
    blocks_of_x = jnp.stack([x + 10 * j for j in range(size)])
    results = {
        "allgather": mpi4jax.allgather(x, comm=comm),
        "allreduce": mpi4jax.allreduce(x, op=MPI.SUM, comm=comm),
        "alltoall": mpi4jax.alltoall(blocks_of_x, comm=comm),
        "bcast": mpi4jax.bcast(x, root, comm=comm),
        "gather": mpi4jax.gather(x, root=root, comm=comm),
        "reduce": mpi4jax.reduce(x, MPI.MAX, root, comm=comm),
        "scan": mpi4jax.scan(x, op=MPI.SUM, comm=comm),
        "scatter": mpi4jax.scatter(blocks_of_x if rank == root else x, root, comm=comm),
        "sendrecv": mpi4jax.sendrecv(x, jnp.empty_like(x), left, right, comm=comm),
    }
    assert mpi4jax.barrier(comm=comm) is None
    if rank > 0:
        assert mpi4jax.send(x, 0, tag=4, comm=comm) is None
        results["recv"] = x
    else:
        received = [mpi4jax.recv(x, source=r, tag=4, comm=comm) for r in range(1, size)]
        results["recv"] = jnp.stack([x, *received])
    return results


def _expected(X, rank):
    """From X[rank of the communicator] of shape (2,)."""
    size = len(X)
    root = size - 1
    return {
        "allgather": X,
        "allreduce": X.sum(0),
        "alltoall": X + 10 * rank,
        "bcast": X[root],
        "gather": X if rank == root else X[rank],
        "reduce": X.max(0) if rank == root else X[rank],
        "scan": X[: rank + 1].sum(0),
        "scatter": X[root] + 10 * rank,
        "sendrecv": X[rank - 1],
        "recv": X if rank == 0 else X[rank],
    }


@pytest.mark.parametrize("which", ["world", "backwards", "half", "self", "two"])
def test_every_operation_on_every_kind_of_communicator(which):
    world = MPI.COMM_WORLD
    comm, members = {
        "world": lambda: (world, range(SIZE)),
        "backwards": lambda: (world.Split(0, -RANK), range(SIZE)[::-1]),
        "half": lambda: (world.Split(RANK % 2, RANK), range(RANK % 2, SIZE, 2)),
        "self": lambda: (MPI.COMM_SELF, [RANK]),
        # Not all ranks have a part in it.
        "two": lambda: (world.Split(0 if RANK < 2 else MPI.UNDEFINED, RANK), range(min(2, SIZE))),
    }[which]()
    if comm == MPI.COMM_NULL:
        return
    X = np.stack([np.array([1.0, -2.0]) * (r + 1) for r in members])
    results = jax.jit(lambda x: _everything(x, comm))(jnp.asarray(X[comm.rank]))
    expected = _expected(X, comm.rank)
    assert results.keys() == expected.keys()
    for name, e in expected.items():
        np.testing.assert_array_equal(results[name], e, err_msg=name)
    if comm not in (MPI.COMM_WORLD, MPI.COMM_SELF):
        comm.Free()


def test_python_numbers_everywhere():
    """In place of arrays, eagerly; results are JAX arrays."""
    root = 0
    assert mpi4jax.allgather(RANK).tolist() == list(range(SIZE))
    assert float(mpi4jax.allreduce(1.5, op=MPI.SUM)) == 1.5 * SIZE
    assert int(mpi4jax.bcast(RANK, root)) == 0
    gathered = mpi4jax.gather(RANK, root)
    assert gathered.tolist() == (list(range(SIZE)) if RANK == root else RANK)
    assert int(mpi4jax.reduce(1, MPI.SUM, root)) == (SIZE if RANK == root else 1)
    assert int(mpi4jax.scan(1, MPI.SUM)) == RANK + 1
    block = mpi4jax.scatter(jnp.arange(SIZE) if RANK == root else 0, root)
    assert int(block) == RANK
    assert int(mpi4jax.sendrecv(RANK, 0, LEFT, RIGHT)) == LEFT
    mpi4jax.send(2.5, RANK)
    received = mpi4jax.recv(0.0)
    assert float(received) == 2.5
    assert all(isinstance(y, jax.Array) for y in (gathered, block, received))


def test_numpy_arrays():
    x = np.arange(3.0) + RANK
    assert_equal(mpi4jax.sendrecv(x, np.empty(3), source=LEFT, dest=RIGHT), np.arange(3.0) + LEFT)
    assert_equal(mpi4jax.alltoall(np.full(SIZE, RANK)), np.arange(SIZE))


@pytest.mark.mpi(min_size=2)
def test_a_send_that_nothing_depends_on():
    """It is not removed, nor are messages with one tag exchanged, under jit."""

    @jax.jit
    def f(x):
        if RANK == 0:
            for i in range(6):
                mpi4jax.send(x * 0 + 10.0 * i, 1, tag=2)
            return x
        if RANK == 1:
            # Used in another order than received, the last not at all.
            received = [mpi4jax.recv(x, 0, tag=2) for _ in range(6)]
            return received[4] * 100 + received[1]
        return x

    for k in range(3):
        y = f(jnp.asarray(float(k)))
        assert float(y) == (4010.0 if RANK == 1 else k)


@pytest.mark.mpi(min_size=2)
def test_program_order_between_two_ranks():
    """The example of mpi4jax's documentation: without its order this would wait for ever."""

    @jax.jit
    def f(x):
        if RANK == 0:
            mpi4jax.send(x, dest=1)
            return mpi4jax.recv(x, source=1)
        if RANK == 1:
            newx = mpi4jax.recv(x, source=0)
            mpi4jax.send(newx * x, dest=0)
            return newx
        return x

    y = f(jnp.asarray(RANK + 2.0))
    assert float(y) == {0: 6.0, 1: 2.0}.get(RANK, RANK + 2.0)


@pytest.mark.parametrize("compiled", [False, True])
def test_status(compiled):
    """Source, tag and count of a message from anybody."""
    wrap = jax.jit if compiled else (lambda f: f)
    statuses = [MPI.Status() for _ in range(SIZE)]
    ring = MPI.Status()

    def f(x):
        mpi4jax.send(x[: 2 + RANK], 0, tag=20 + RANK)
        received = []
        if RANK == 0:
            template = jnp.zeros(SIZE + 2)
            received = [
                mpi4jax.recv(template, MPI.ANY_SOURCE, tag=MPI.ANY_TAG, status=s) for s in statuses
            ]
        mpi4jax.barrier()  # or a message of the ring could be one of these
        return received, mpi4jax.sendrecv(x, x, LEFT, RIGHT, sendtag=RANK, status=ring)

    x = jnp.full(SIZE + 2, 1.0 + RANK)
    received, y = jax.block_until_ready(wrap(f)(x))
    assert y.tolist() == [LEFT + 1.0] * (SIZE + 2)
    assert (ring.Get_source(), ring.Get_tag(), ring.Get_count(MPI.DOUBLE)) == (
        LEFT,
        LEFT,
        SIZE + 2,
    )
    if RANK == 0:
        assert {s.Get_source() for s in statuses} == set(range(SIZE))
        for s, values in zip(statuses, received, strict=True):
            source = s.source
            assert (s.tag, s.Get_count(MPI.DOUBLE)) == (20 + source, 2 + source)
            assert values.tolist() == [source + 1.0] * (2 + source) + [0.0] * (SIZE - source)


def test_control_flow():
    """In fori_loop, scan and cond, with sends and receives in the body."""
    X, x = blocks((3,))

    @jax.jit
    def f(x):
        def body(i, x):
            x = mpi4jax.sendrecv(x, x, LEFT, RIGHT)
            mpi4jax.send(x, RANK, tag=1)
            return mpi4jax.recv(x, RANK, tag=1) + i

        moved = jax.lax.fori_loop(0, SIZE, body, x)

        def step(carry, _):
            carry = mpi4jax.allreduce(carry, op=MPI.SUM) / SIZE
            return carry, mpi4jax.scan(carry, MPI.SUM)

        mean, sums = jax.lax.scan(step, x, None, length=2)
        chosen = jax.lax.cond(
            mean[0] < 1e9,
            lambda x: mpi4jax.bcast(x, 0),
            lambda x: mpi4jax.reduce(x, MPI.SUM, 0),
            x,
        )
        return moved, sums, chosen

    moved, sums, chosen = f(x)
    assert_close(moved, X[RANK] + SIZE * (SIZE - 1) / 2)
    mean = X.mean(0)
    assert_close(sums, np.stack([(RANK + 1) * mean] * 2))
    assert_equal(chosen, X[0])


def test_derivatives():
    """allreduce and sendrecv have the derivatives that mpi4jax gives them, and vmap."""
    X, x = blocks((3,))
    w = jnp.arange(1.0, 4) + RANK

    @jax.jit
    def f(x):
        total = jax.grad(lambda x: jnp.sum(mpi4jax.allreduce(x, op=MPI.SUM) ** 2))(x)
        moved = jax.grad(lambda x: jnp.sum(w * mpi4jax.sendrecv(x, x, LEFT, RIGHT)))(x)
        back = jax.linear_transpose(lambda x: mpi4jax.allreduce(x, op=MPI.SUM), x)(x)[0]
        rows = jax.vmap(lambda x: mpi4jax.allreduce(x, op=MPI.SUM))(jnp.stack([x, 2 * x]))
        return total, moved, back, rows

    total, moved, back, rows = f(x)
    assert_close(total, 2 * X.sum(0))
    assert_close(moved, np.arange(1.0, 4) + RIGHT)
    assert_close(back, X[RANK])
    assert_close(rows, np.stack([X.sum(0), 2 * X.sum(0)]))


def test_beside_mpi4py_on_the_same_communicator():
    """Messages and collectives of both, with wildcards, in one program's time."""
    comm = MPI.COMM_WORLD.Dup()
    request = comm.isend(("from", RANK), RIGHT, tag=7)

    @jax.jit
    def f(x):
        x = mpi4jax.allreduce(x, op=MPI.SUM, comm=comm)
        mpi4jax.send(x + RANK, RIGHT, tag=7, comm=comm)
        return mpi4jax.recv(x, comm=comm)

    y = f(1.0)
    assert comm.recv() == ("from", LEFT)  # from anybody, with any tag
    request.wait()
    assert comm.allreduce(1) == SIZE
    assert float(y) == SIZE + LEFT
    comm.Free()


def test_shapes_are_checked():
    with pytest.raises(ValueError, match=r"Alltoall input must have shape \(nproc, \.\.\.\)"):
        mpi4jax.alltoall(jnp.ones(SIZE + 1))
    if RANK == 0:
        with pytest.raises(ValueError, match=r"Scatter input must have shape \(nproc, \.\.\.\)"):
            mpi4jax.scatter(jnp.ones(SIZE + 1), 0)
    y = mpi4jax.scatter(jnp.ones((SIZE, 2)) if RANK == 0 else jnp.ones(2), 0)
    assert y.shape == (2,)


@pytest.mark.wrong_types
def test_what_must_be_static():
    """A TypeError with the remedy, as there: a rank or a tag that is traced."""
    x = jnp.ones(SIZE)
    for call in (
        lambda r: mpi4jax.bcast(x, r),
        lambda r: mpi4jax.gather(x, r),
        lambda r: mpi4jax.scatter(x, root=r),
        lambda r: mpi4jax.reduce(x, MPI.SUM, r),
        lambda r: mpi4jax.send(x, r),
        lambda r: mpi4jax.recv(x, r),
        lambda r: mpi4jax.sendrecv(x, x, r, 0),
        lambda r: mpi4jax.send(x, 0, tag=r),
    ):
        with pytest.raises(
            TypeError, match=r"must be a static integer.*make it a static argument"
        ):
            jax.jit(call)(0)
    f = jax.jit(mpi4jax.bcast, static_argnums=1)
    assert f(x, 0).tolist() == [1.0] * SIZE
    untyped: Any = mpi4jax
    with pytest.raises(TypeError, match=r"op must be an mpi4py operation such as MPI\.SUM"):
        untyped.allreduce(x, op="sum")
    with pytest.raises(TypeError, match="comm must be an mpi4py communicator"):
        untyped.allreduce(x, op=MPI.SUM, comm="world")

"""send, recv and sendrecv with a status: sizes, wildcards, tags, pytrees, batches."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from mpi4py import MPI

from pfftjax import collectives as pc
from pfftjax._runtime.ffi import native
from pfftjax._runtime.options import options
from tests.helpers import CONTROL, DTYPES, RANK, SIZE, assert_close, assert_equal, blocks, random

pytestmark = [pytest.mark.mpi, pytest.mark.ranks(1, 2, 3), pytest.mark.messages]

RIGHT, LEFT = (RANK + 1) % SIZE, (RANK - 1) % SIZE
NULL = MPI.PROC_NULL
two_ranks = pytest.mark.mpi(min_size=2)


def test_all_dtypes_and_shapes_arrive_to_the_last_bit():
    """One program; the pairs differ in direction, so that all ranks send and receive."""
    shapes = [(), (0,), (3,), (2, 0), (2, 3)]
    everything = [random((SIZE, *shape), dtype) for dtype in DTYPES for shape in shapes]

    @jax.jit
    def f(xs):
        # The first rank receives last: the ring has a beginning.
        early = [pc.recv(jnp.zeros_like(x), LEFT) for x in xs if RANK > 0]
        for x in xs:
            pc.send(x, RIGHT)
        return early or [pc.recv(jnp.zeros_like(x), LEFT) for x in xs]

    for y, x in zip(f([jnp.asarray(x[RANK]) for x in everything]), everything, strict=True):
        assert_equal(y, x[LEFT])


@pytest.mark.parametrize("compiled", [False, True])
@two_ranks
def test_a_shorter_message_keeps_the_rest_of_the_template(compiled):
    """And the status says how much of it came; also in pieces, exact multiples and empty ones."""
    status = [MPI.Status() for _ in range(6)]
    # 64 bytes are 8 of these: with small chunks, one piece, two, and pieces that end in between.
    lengths = [0, 1, 8, 16, 19, 20]
    template = -jnp.arange(1.0, 21).reshape(4, 5)

    def send(x):
        for n in lengths:
            pc.send(x[:n], 1)

    def receive(t):
        return [pc.recv(t, 0, status=s) for s in status]

    wrap = jax.jit if compiled else (lambda f: f)
    if RANK == 0:
        wrap(send)(jnp.arange(20.0))
    elif RANK == 1:
        results = jax.block_until_ready(wrap(receive)(template))
        for y, n, s in zip(results, lengths, status, strict=True):
            expected = np.array(template).ravel()
            expected[:n] = np.arange(n)
            assert_equal(y, expected.reshape(4, 5))
            assert (s.Get_source(), s.Get_tag(), s.Get_count(MPI.DOUBLE)) == (0, 0, n)
            assert s.Get_count(MPI.BYTE) == 8 * n
            assert not s.Is_cancelled()
    jax.effects_barrier()


@two_ranks
@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "int8"])
def test_a_status_counts_bytes(dtype):
    """Those of messages of types that MPI lacks, too."""
    x, status = jnp.arange(6, dtype=dtype), MPI.Status()
    pc.sendrecv(x, x, LEFT, RIGHT, status=status).block_until_ready()
    assert status.Get_count(MPI.BYTE) == x.nbytes


@two_ranks
def test_sendrecv_takes_shorter_messages_with_a_status():
    """Every rank sends as many elements as its number, and one."""
    status = MPI.Status()
    template = jnp.full(SIZE + 1, -1.0)
    y = jax.jit(lambda x: pc.sendrecv(x, template, LEFT, RIGHT, sendtag=7, status=status))(
        jnp.full(RANK + 1, 1.0 + RANK)
    )
    assert y.tolist() == [LEFT + 1.0] * (LEFT + 1) + [-1.0] * (SIZE - LEFT)
    assert (status.Get_source(), status.Get_tag()) == (LEFT, 7)
    assert status.Get_count(MPI.DOUBLE) == LEFT + 1


@pytest.mark.parametrize("chosen", ["recv", "sendrecv"])
def test_a_shorter_message_without_a_status_is_an_error(chosen):
    """To oneself, so that every rank sees it."""
    receive = {
        "recv": lambda: pc.recv(jnp.ones(3), RANK),
        "sendrecv": lambda: pc.sendrecv(jnp.ones(1), jnp.ones(3), RANK, NULL),
    }[chosen]
    pc.send(jnp.ones(2), RANK)
    with pytest.raises(jax.errors.JaxRuntimeError, match=rf"rank {RANK} sent 2 elements where"):
        jax.block_until_ready(receive())
    pc.recover()


def test_derivatives_with_a_status_on_some_ranks():
    """The messages of derivatives are those of a partner that has none."""
    status = MPI.Status() if RANK % 2 == 0 else None

    def f(x):
        return pc.sendrecv(x**2, jnp.zeros(2), LEFT, RIGHT, status=status)

    x, step = jnp.array([1.0, 2.0]) + RANK, jnp.array([3.0, 1.0]) + RANK
    from_left = x + LEFT - RANK
    y, slope = jax.jit(lambda x, step: jax.jvp(f, (x,), (step,)))(x, step)
    assert_close(y, from_left**2)
    assert_close(slope, 2 * from_left * (step + LEFT - RANK))
    gradient = jax.jit(jax.grad(lambda x: f(x) @ (x + 1)))(x)
    # By itself each x is weighed on the right, squared, and it is a weight here.
    assert_close(gradient, 2 * x * (x + RIGHT - RANK + 1) + from_left**2)


@pytest.mark.parametrize("with_status", [False, True])
def test_a_longer_message_is_an_error(with_status):
    """A status allows for shorter ones only. What is left of a longer one is never taken for the
    next message: this communicator is not used again."""
    comm = MPI.COMM_WORLD.Dup()
    pc.duplicate(comm)
    status = MPI.Status() if with_status else None
    pc.send(jnp.ones(7), RANK, comm=comm)
    with pytest.raises(jax.errors.JaxRuntimeError, match=r"recv failed|truncat|sent 7|recv on"):
        jax.block_until_ready(pc.recv(jnp.ones(3), RANK, comm=comm, status=status))
    pc.recover()


def test_bytes_that_are_no_whole_number_of_elements():
    pc.send(jnp.ones(3, jnp.int8), RANK)
    with pytest.raises(jax.errors.JaxRuntimeError, match="no whole number of float64 elements"):
        jax.block_until_ready(pc.recv(jnp.ones(1), RANK, status=MPI.Status()))
    pc.recover()
    assert float(pc.allreduce(1.0)) == SIZE


def test_nobody():
    """To and from MPI.PROC_NULL: nothing happens, and the status says so."""
    x = jnp.asarray([1.0, -0.0])
    for status in (None, MPI.Status()):
        for wrap in (jax.jit, lambda f: f):

            def f(x, status=status):
                pc.send(x, NULL)
                received = pc.recv(x, NULL, status=status)
                both = pc.sendrecv(x + 1, x, NULL, NULL, status=status)
                pc.send(x, RANK)
                only_received = pc.sendrecv(x + 1, 0 * x, RANK, NULL, status=status)
                return received, both, only_received

            for y in jax.block_until_ready(wrap(f)(x)):
                assert_equal(y, x)
                assert jnp.signbit(y[1])
    status = MPI.Status()
    pc.recv(x, NULL, status=status)
    assert status.Get_source() == MPI.PROC_NULL
    assert status.Get_tag() == MPI.ANY_TAG
    assert status.Get_count(MPI.DOUBLE) == 0


@pytest.mark.parametrize("compiled", [False, True])
def test_from_anybody(compiled):
    """Each message once, in any order, with its own source and tag."""
    repetitions = 3
    status = [MPI.Status() for _ in range(SIZE * repetitions)]
    wrap = jax.jit if compiled else (lambda f: f)

    def send(x):
        for k in range(repetitions):
            pc.send(x + 100 * k, 0, tag=10 * k + RANK)

    def receive(x):
        return [pc.recv(x, tag=MPI.ANY_TAG, status=s) for s in status]

    wrap(send)(jnp.asarray(RANK))
    if RANK == 0:
        values = [int(v) for v in jax.block_until_ready(wrap(receive)(jnp.asarray(-1)))]
        assert set(values) == {100 * k + r for k in range(repetitions) for r in range(SIZE)}
        for value, s in zip(values, status, strict=True):
            k, source = divmod(value, 100)
            assert (s.Get_source(), s.Get_tag()) == (source, 10 * k + source)
        # Messages of one rank do not overtake each other.
        for source in range(SIZE):
            mine = [v for v in values if v % 100 == source]
            assert mine == sorted(mine)
    jax.effects_barrier()


def test_the_pieces_of_a_message_from_anybody_come_from_one_rank():
    """Long enough for several pieces in small chunks, from all ranks at once."""
    n = 100
    pc.send(jnp.full(n, float(RANK)), 0)
    if RANK == 0:
        seen = set()
        for _ in range(SIZE):
            y = np.asarray(pc.recv(jnp.zeros(n)))
            assert (y == y[0]).all()
            seen.add(int(y[0]))
        assert seen == set(range(SIZE))
    jax.effects_barrier()


@two_ranks
def test_pieces_of_two_messages_that_come_in_turn():
    """Between the first piece of one and the others, by hand, there is all of another. In small
    chunks; else each message is one piece.
    """
    comm = MPI.COMM_WORLD.Dup()
    n, limit = 20, options.max_chunk_bytes // 8
    pieces = [np.zeros(n)[i : i + limit] for i in range(0, n, limit)]
    tag = native.max_tag() + 1  # that of messages with tag 0 on a communicator of the user's
    sent = [comm.Isend(pieces[0], 0, tag)] if RANK == 0 else []
    CONTROL.barrier()
    if RANK == 1:
        pc.send(jnp.ones(n), 0, comm=comm)
        jax.effects_barrier()
    CONTROL.barrier()
    if RANK == 0:
        sent += [comm.Isend(piece, 0, tag) for piece in pieces[1:]]
        messages = [np.asarray(pc.recv(jnp.zeros(n), comm=comm)) for _ in range(2)]
        MPI.Request.Waitall(sent)
        assert sorted(y.sum() for y in messages) == [0, n]


@two_ranks
def test_tags_choose_the_message():
    """Received in another order than sent."""

    @jax.jit
    def f(x):
        if RANK == 0:
            for tag in (1, 2, 3):
                pc.send(x * tag, 1, tag=tag)
        elif RANK == 1:
            return [pc.recv(x, 0, tag=tag) for tag in (3, 1, 2)]
        return [3 * x, x, 2 * x]

    assert [float(y) for y in f(jnp.asarray(1.0))] == [3.0, 1.0, 2.0]


def test_exact_multiples_of_a_chunk_do_not_run_into_the_next_message():
    """8 doubles are 64 bytes: a message that fills its pieces ends in an empty one."""
    lengths = [8, 16, 8, 24, 0, 8, 7, 9]
    values = [float(10 * i + RANK) for i in range(len(lengths))]

    @jax.jit
    def f(x):
        received = []
        for n, v in zip(lengths, values, strict=True):
            mine = x + jnp.full(n, v)
            received.append(pc.sendrecv(mine, jnp.zeros(n), LEFT, RIGHT))
        pc.send(x + jnp.arange(16.0), RANK)
        pc.send(x + 5.0, RANK)
        return received, pc.recv(jnp.zeros(16), RANK), pc.recv(jnp.zeros(()), RANK)

    received, long, scalar = f(0.0)
    for i, (n, y) in enumerate(zip(lengths, received, strict=True)):
        assert y.tolist() == [10.0 * i + LEFT] * n
    assert long.tolist() == list(range(16))
    assert float(scalar) == 5.0


def test_pytrees():
    """A message for each array, in the order of the leaves."""
    tree = {"a": jnp.arange(3.0) + RANK, "b": (jnp.asarray(RANK), jnp.asarray([True]))}
    templates = jax.tree.map(jnp.zeros_like, tree)

    @jax.jit
    def f(tree):
        pc.send(tree, RANK)
        to_oneself = pc.recv(templates, RANK)
        return to_oneself, pc.sendrecv(tree, templates, LEFT, RIGHT)

    to_oneself, y = f(tree)
    assert jax.tree.structure(y) == jax.tree.structure(tree) == jax.tree.structure(to_oneself)
    jax.tree.map(assert_equal, to_oneself, tree)
    assert y["a"].tolist() == [LEFT, LEFT + 1, LEFT + 2]
    assert int(y["b"][0]) == LEFT
    assert y["b"][1].tolist() == [True]


def test_a_batch_is_one_message():
    """What vmap sends, an ordinary receive takes whole."""
    X, x = blocks((4, 3))

    @jax.jit
    def f(x):
        jax.vmap(lambda row: pc.send(row, RANK))(x)
        whole = pc.recv(jnp.zeros((4, 3)), RANK)
        jax.vmap(lambda row: pc.send(row, RANK), in_axes=1)(x)
        rows = jax.vmap(lambda row: pc.recv(row, RANK), in_axes=1, out_axes=1)(0 * x)
        ring = jax.vmap(lambda row: pc.sendrecv(row, 0 * row, LEFT, RIGHT, status=MPI.Status()))(x)
        return whole, rows, ring

    whole, rows, ring = f(x)
    assert_equal(whole, X[RANK])
    assert_equal(rows, X[RANK])
    assert_equal(ring, X[LEFT])
    jaxpr = str(jax.make_jaxpr(jax.vmap(lambda row: pc.send(row, RANK)))(x))
    assert jaxpr.count("send[") == 1


def test_send_has_no_derivative():
    """It would be lost silently."""

    def loss(x):
        pc.send(x, NULL)
        return x**2

    for derivative in (jax.grad(loss), lambda x: jax.jvp(loss, (x,), (x,))):
        with pytest.raises(TypeError, match=r"send has no derivative.*call sendrecv"):
            derivative(1.0)

    def stopped(x):
        pc.send(jax.lax.stop_gradient(x), RANK)
        return x * pc.recv(0.0, RANK)

    assert float(jax.jit(jax.grad(stopped))(3.0)) == 3.0


def test_what_is_received_is_a_constant():
    def f(x):
        pc.send(jax.lax.stop_gradient(2 * x), RANK)
        return x * pc.recv(x, RANK)

    assert float(jax.grad(f)(3.0)) == 6.0
    value, tangent = jax.jvp(f, (3.0,), (1.0,))
    assert (float(value), float(tangent)) == (18.0, 6.0)


def test_any_tag_on_a_communicator_without_a_duplicate():
    """Refused with the remedy; a tag of its own works, and the status gives it back."""
    comm = MPI.COMM_WORLD.Dup()
    status = MPI.Status()
    with pytest.raises(jax.errors.JaxRuntimeError, match=r"ANY_TAG.*duplicate\(comm\)"):
        jax.block_until_ready(pc.recv(0.0, RANK, tag=MPI.ANY_TAG, comm=comm))
    pc.recover()
    pc.send(4.0, RANK, tag=9, comm=comm)
    assert float(pc.recv(0.0, tag=9, comm=comm, status=status)) == 4.0
    assert (status.Get_source(), status.Get_tag()) == (RANK, 9)
    pc.send(5.0, RANK, comm=comm)
    assert float(pc.recv(0.0, comm=comm)) == 5.0  # None means 0 here
    pc.duplicate(comm)
    pc.send(6.0, RANK, tag=9, comm=comm)
    assert float(pc.recv(0.0, tag=MPI.ANY_TAG, comm=comm, status=status)) == 6.0
    assert status.Get_tag() == 9
    comm.Free()


def test_in_loops_and_branches():
    """Ordered there too; the status is that of the last message."""
    status = MPI.Status()

    @jax.jit
    def f(x):
        def step(i, total):
            pc.send(x + i, RANK, tag=1)
            return total + pc.recv(x, RANK, tag=1, status=status)

        total = jax.lax.fori_loop(0, 5, step, 0.0)

        def exchange(x):
            pc.send(x, RANK)
            return pc.recv(0 * x, RANK)

        return jax.lax.cond(total > 0, exchange, lambda x: x - 1, x), total

    y, total = f(1.0)
    assert (float(y), float(total)) == (1.0, 15.0)
    assert status.Get_source() == RANK


def test_arguments():
    x = jnp.ones(2)
    where = f"on rank {RANK} of {SIZE}"
    with pytest.raises(ValueError, match=rf"send {where}: dest is {SIZE}, but the ranks are 0 to"):
        pc.send(x, SIZE)
    with pytest.raises(ValueError, match=r"send .*dest is .*but the ranks"):
        pc.send(x, MPI.ANY_SOURCE)
    with pytest.raises(ValueError, match=rf"recv {where}: source is {SIZE}.*MPI\.ANY_SOURCE"):
        pc.recv(x, SIZE)
    with pytest.raises(ValueError, match=f"tag is {MPI.ANY_TAG}, but tags go from 0"):
        pc.send(x, 0, tag=MPI.ANY_TAG)
    with pytest.raises(TypeError, match="cannot be sent"):
        pc.send(jax.random.key(0), RANK)


def test_checkpoint_sends_once():
    """A message that the backward pass repeated would be taken for the next one."""
    neighbour, other = (RANK + 1) % SIZE, (RANK - 1) % SIZE

    def loss(x):
        pc.send(jax.lax.stop_gradient(x), neighbour)
        y = pc.recv(jnp.zeros(()), other)
        pending = pc.allgather_start(x)
        return jnp.sin(x * y) + pc.wait(pending).sum()

    def loss_and_message(x):
        result = jax.checkpoint(loss)(x)
        pc.send(7.0, neighbour)
        return result

    gradient = jax.jit(jax.grad(loss_and_message))(2.0)
    assert float(gradient) == pytest.approx(2 * np.cos(4.0) + SIZE)
    assert float(pc.recv(0.0, other)) == 7.0


def test_a_large_message_to_oneself():
    """It does not wait for its receiver, which comes later."""
    x = jnp.arange(1 << 18, dtype=jnp.float32)

    @jax.jit
    def f(x):
        pc.send(x, RANK)
        return pc.recv(jnp.zeros_like(x), RANK)

    assert_equal(f(x), x)


def test_a_status_under_vmap_takes_no_shorter_messages():
    """The elements of a shorter one would run through the rows."""
    status = MPI.Status()
    template = jnp.zeros((2, 3))
    receive = jax.vmap(lambda t: pc.recv(t, RANK, status=status))
    pc.send(jnp.ones((2, 3)), RANK)
    assert_equal(receive(template), jnp.ones((2, 3)))
    pc.send(jnp.ones((2, 2)), RANK)
    with pytest.raises(jax.errors.JaxRuntimeError, match="sent 4 elements where x has 6"):
        jax.block_until_ready(receive(template))
    pc.recover()


def test_recv_with_a_status_refuses_a_derivative():
    with pytest.raises(TypeError, match="with a status, part of x may be part of the result"):
        jax.grad(lambda x: pc.recv(x, MPI.PROC_NULL, status=MPI.Status()).sum())(jnp.ones(2))

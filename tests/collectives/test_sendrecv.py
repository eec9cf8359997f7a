"""sendrecv: partners, tags, shapes of its own, nobody, and ranks that take no part."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from mpi4py import MPI

from pfftjax import collectives as pc
from pfftjax._runtime import communicators
from tests.helpers import CONTROL, RANK, SIZE, assert_close, assert_equal, blocks

pytestmark = [pytest.mark.mpi, pytest.mark.messages]

RIGHT, LEFT = (RANK + 1) % SIZE, (RANK - 1) % SIZE


def test_receives_the_shape_and_dtype_of_recvbuf():
    """Sender and receiver need not exchange the same thing."""
    send = jnp.arange(RANK + 1, dtype=jnp.float32)
    template = jnp.zeros(LEFT + 1, jnp.float32)
    assert pc.sendrecv(send, template, LEFT, RIGHT).tolist() == list(range(LEFT + 1))


def test_from_nobody_comes_recvbuf():
    x = jnp.asarray([1.0, -0.0])
    y = jax.jit(lambda x: pc.sendrecv(x + 1, x, MPI.PROC_NULL, MPI.PROC_NULL))(x)
    assert_equal(y, x)
    assert jnp.signbit(y[1])


@pytest.mark.parametrize("status", [None, MPI.Status()], ids=["plain", "with a status"])
def test_what_is_sent_to_oneself_leaves_recvbuf_where_nobody_sends(status):
    x, buf = jnp.arange(4.0), jnp.full(4, 7.0)
    y = jax.jit(lambda x: pc.sendrecv(x, buf, MPI.PROC_NULL, RANK, status=status))(x)
    assert_equal(y, buf)
    assert_equal(jax.jit(lambda: pc.recv(buf, RANK))(), x)
    assert status is None or status.Get_source() == MPI.PROC_NULL


@pytest.mark.parametrize("status", [None, MPI.Status()], ids=["plain", "with a status"])
def test_gradient_flows_to_recvbuf_where_nobody_sends(status):
    def f(x, buf):
        return pc.sendrecv(x, buf, MPI.PROC_NULL, MPI.PROC_NULL, status=status)

    assert [float(g) for g in jax.grad(f, (0, 1))(1.0, 2.0)] == [0.0, 1.0]
    assert [float(y) for y in jax.jvp(f, (1.0, 2.0), (3.0, 4.0))] == [2.0, 4.0]


@pytest.mark.mpi(min_size=2)
def test_tags_tell_messages_apart():
    """Sent as 1, 2 and received as 2, 1; and so do the cotangents on their way back."""

    def f(x):
        null = MPI.PROC_NULL
        if RANK == 0:
            pc.sendrecv(x[0], x[0], null, 1, sendtag=1)
            pc.sendrecv(x[1], x[1], null, 1, sendtag=2)
        elif RANK == 1:
            second = pc.sendrecv(x[0], x[0], 0, null, recvtag=2)
            first = pc.sendrecv(x[0], x[0], 0, null, recvtag=1)
            return jnp.stack([first, second])
        return x

    y = jax.jit(f)(jnp.asarray([5.0, 7.0]))
    assert y.tolist() == [5.0, 7.0]


@pytest.mark.mpi(min_size=2)
def test_gradient_with_explicit_tags():
    def f(x):
        a = pc.sendrecv(x[0], x[0], LEFT, RIGHT, sendtag=3, recvtag=3)
        b = pc.sendrecv(x[1], x[1], LEFT, RIGHT, sendtag=4, recvtag=4)
        return 10 * a + b

    assert jax.jit(jax.grad(f))(jnp.ones(2)).tolist() == [10.0, 1.0]


@pytest.mark.mpi(min_size=2)
def test_ranks_without_a_partner_need_not_call():
    if RANK in (0, 1):
        y = pc.sendrecv(jnp.asarray(float(RANK)), jnp.asarray(0.0), 1 - RANK, 1 - RANK)
        assert float(y) == 1.0 - RANK


@pytest.mark.mpi(min_size=3)
def test_a_send_on_a_new_communicator_waits_for_no_third_rank():
    """The private duplicate is made by the first collective, which all ranks reach."""
    comm = MPI.COMM_WORLD.Dup()
    if RANK in (0, 1):
        other = 1 - RANK
        y = pc.sendrecv(jnp.asarray(float(RANK)), jnp.asarray(0.0), other, other, comm=comm)
        assert float(y) == other
        # Rank 2 comes to its first operation on `comm` only after this.
        if RANK == 0:
            CONTROL.send("go on", 2)
    elif RANK == 2:
        assert CONTROL.recv(source=0) == "go on"
    assert float(pc.allreduce(1.0, comm=comm)) == SIZE
    # And now on the duplicate, with a wildcard.
    y = pc.sendrecv(jnp.asarray(RANK), jnp.asarray(0), LEFT, RIGHT, recvtag=MPI.ANY_TAG, comm=comm)
    assert int(y) == LEFT
    comm.Free()


def test_any_tag_without_a_private_duplicate_is_refused():
    comm = MPI.COMM_WORLD.Dup()
    with pytest.raises(jax.errors.JaxRuntimeError, match=r"ANY_TAG.*duplicate\(comm\)"):
        jax.block_until_ready(pc.sendrecv(1.0, 1.0, LEFT, RIGHT, recvtag=MPI.ANY_TAG, comm=comm))
    import contextlib

    with contextlib.suppress(Exception):
        jax.effects_barrier()
    pc.duplicate(comm)
    assert (
        float(pc.sendrecv(float(RANK), 1.0, LEFT, RIGHT, recvtag=MPI.ANY_TAG, comm=comm)) == LEFT
    )
    comm.Free()


@pytest.mark.mpi(min_size=2)
def test_a_message_of_another_size_is_an_error():
    if RANK == 0:
        pc.sendrecv(jnp.ones(2), jnp.ones(2), MPI.PROC_NULL, 1)
        jax.effects_barrier()
    elif RANK == 1:
        with pytest.raises(jax.errors.JaxRuntimeError, match="rank 0 sent 2 elements"):
            jax.block_until_ready(pc.sendrecv(jnp.ones(3), jnp.ones(3), 0, MPI.PROC_NULL))
        import contextlib

        with contextlib.suppress(Exception):
            jax.effects_barrier()


@pytest.mark.mpi(min_size=2)
def test_messages_are_not_taken_for_blocks_of_an_exchange():
    """alltoallv is made of messages too; they have a communicator apart from those of users."""
    x = jnp.asarray([10.0 * RANK + 1] * SIZE)
    ones = jnp.ones(SIZE, jnp.int32)
    if RANK == 0:
        pc.sendrecv(jnp.asarray([777.0]), jnp.zeros(1), MPI.PROC_NULL, 1)
    rows = pc.alltoallv(x, ones)[0]
    if RANK == 1:
        message = pc.sendrecv(jnp.zeros(1), jnp.zeros(1), 0, MPI.PROC_NULL)
        assert message.tolist() == [777.0]
    assert rows.tolist() == [10.0 * rank + 1 for rank in range(SIZE)]


@pytest.mark.mpi(min_size=2)
def test_gradient_of_a_pipeline():
    """The receiving rank has a constant to send: the tangent message goes its way all the same."""

    def loss(t):
        if RANK == 0:
            y = pc.sendrecv(t * jnp.ones(3), jnp.zeros(3), MPI.PROC_NULL, 1)
            return jnp.sum(y)
        if RANK == 1:
            y = pc.sendrecv(0 * t * jnp.ones(3), jnp.zeros(3), 0, MPI.PROC_NULL)
            return jnp.sum(y * jnp.arange(3.0))
        return 0 * t

    gradient = float(jax.jit(jax.grad(loss))(2.0))
    assert gradient == (3.0 if RANK == 0 else 0.0)


def test_of_all_ranks():
    """A line with sizes of its own, pairs, oneself, nobody."""
    null = MPI.PROC_NULL
    before, after = (RANK - 1 if RANK else null), (RANK + 1 if RANK + 1 < SIZE else null)
    partner = RANK ^ 1 if RANK ^ 1 < SIZE else RANK

    @jax.jit
    def f(x):
        line = pc.sendrecv(x[: RANK + 2], x[: RANK + 1], before, after, collective=True)
        pairs = pc.sendrecv(x, 0 * x, partner, partner, collective=True)
        alone = pc.sendrecv(x, 0 * x, RANK, RANK, collective=True)
        nobody = pc.sendrecv(x, 2 * x, null, null, collective=True)
        return line, pairs, alone, nobody

    X, x = blocks((SIZE + 1,), "float32")
    line, pairs, alone, nobody = f(x)
    assert_equal(line, X[RANK - 1 if RANK else 0][: RANK + 1])
    assert_equal(pairs, X[partner])
    assert_equal(alone, x)
    assert_equal(nobody, 2 * x)
    # A message that nobody has received has no cotangent; the buffer that stands for it has one.
    pulled = jax.jit(jax.grad(lambda x: sum(jnp.sum(y**2) for y in f(x))))(x)
    place = np.arange(SIZE + 1)
    sent = 1 * (place < RANK + 2) * (RANK + 1 < SIZE) + 1 * (place < 1) * (RANK == 0)
    assert_close(pulled, 2 * x * (sent + 1 + 1 + 4), 1e-6)


def test_partners_that_do_not_fit():
    """All ranks raise together; else what nobody expects would be taken for something else."""
    x, nobody = jnp.ones(1), MPI.PROC_NULL
    wrong = [(nobody, RIGHT if RANK == 0 else nobody), *[(RIGHT, RIGHT)] * (SIZE > 2)]
    for source, dest in wrong:
        with pytest.raises(jax.errors.JaxRuntimeError, match="does not fit; this one sends"):
            jax.block_until_ready(pc.sendrecv(x, x, source, dest, collective=True))
        pc.recover()
        assert float(pc.sendrecv(x * RANK, x, LEFT, RIGHT, collective=True)[0]) == LEFT


def test_what_a_message_of_all_ranks_does_not_have():
    x = jnp.ones(2)
    where = f"sendrecv on rank {RANK} of {SIZE}: collective=True"
    with pytest.raises(ValueError, match=f"{where} does not go with MPI.ANY_SOURCE or tags"):
        pc.sendrecv(x, x, MPI.ANY_SOURCE, RIGHT, recvtag=1, collective=True)
    with pytest.raises(ValueError, match="does not go with a status"):
        pc.sendrecv(x, x, LEFT, RIGHT, status=MPI.Status(), collective=True)
    with pytest.raises(ValueError, match="sendbuf is float64 and recvbuf float32; cast one"):
        pc.sendrecv(x, x.astype("f4"), LEFT, RIGHT, collective=True)


def test_buffers_of_different_kinds_are_refused():
    with pytest.raises(TypeError, match="only one has a derivative; cast one"):
        pc.sendrecv(jnp.ones(2), jnp.ones(2, int), LEFT, RIGHT)


def test_the_program_of_a_ring_is_the_same_on_every_rank():
    """So that the compilation cache hits, and a rank can read another's entry."""
    _, x = blocks((3,))
    text = jax.jit(lambda x: pc.sendrecv(x, x, LEFT, RIGHT)).lower(x).as_text()
    assert len(set(CONTROL.allgather(text))) == 1


def test_arguments():
    x = jnp.ones(2)
    with pytest.raises(ValueError, match=f"dest is {SIZE}, but the ranks are 0 to {SIZE - 1}"):
        pc.sendrecv(x, x, 0, SIZE)
    with pytest.raises(ValueError, match="source is -7"):
        pc.sendrecv(x, x, -7, 0)
    with pytest.raises(ValueError, match=r"dest is .*but the ranks"):
        pc.sendrecv(x, x, 0, MPI.ANY_SOURCE)
    with pytest.raises(TypeError, match="ANY_SOURCE has no derivative"):
        jax.grad(lambda x: pc.sendrecv(x, x, MPI.ANY_SOURCE, 0).sum())(x)
    with pytest.raises(ValueError, match="sendtag is -1"):
        pc.sendrecv(x, x, 0, 0, sendtag=-1)
    assert communicators.world.rank == RANK

"""Ranks that wait for others: for an import, a first collective, a message, past a timeout.

A wait that cannot end ends the job; one that is only long does not.
"""

import pytest

from tests.jobs.job import RANKS, assert_ends_in_error, assert_succeeds, run

pytestmark = pytest.mark.timeout(240)

SOME_RANKS = """
from mpi4py import MPI
import time
rank = MPI.COMM_WORLD.rank
users = MPI.COMM_WORLD.Split(0 if rank < 2 else MPI.UNDEFINED)
if rank < 2:
    import pfftjax
    from pfftjax import collectives as pc
    assert float(pc.allreduce(1.0, comm=users)) == 2
    print("went on", flush=True)
else:
    time.sleep(14)
"""


def test_some_ranks_import_nothing():
    """Ranks that do not use pfftjax are not waited for, given a communicator without them."""
    ended = assert_succeeds(SOME_RANKS, ranks=3, preamble="", PFFTJAX_LAZY_WORLD="1")
    assert ended.output.count("went on") == 2


# A launcher that leaves MPI to say how many ranks are on this node, which is the first wait then.
NO_NODE = """
import os
for variable in [name for name in os.environ if "LOCAL" in name]:
    del os.environ[variable]
"""


@pytest.mark.parametrize("more", ["", NO_NODE])
def test_waiting_for_an_import_says_what_to_do(more):
    script = SOME_RANKS.replace("time.sleep(14)", "time.sleep(20); MPI.COMM_WORLD.Abort(5)")
    script = script.replace("import time\n", "import time\n" + more)
    ended = run(script, ranks=3, preamble="")
    assert "waits for all ranks of MPI_COMM_WORLD to import pfftjax" in ended.output
    assert "PFFTJAX_LAZY_WORLD=1" in ended.output


def test_timeout_reports_who_waits_where():
    ended = assert_ends_in_error(
        """
        if RANK == 1:
            time.sleep(60)
        jax.block_until_ready(pc.allreduce(x))
        """,
        r"after 3\.\d s \(PFFTJAX_TIMEOUT\) rank 0 of 2 .* is in allreduce float64\[6\]|"
        r"after 3\.\d s \(PFFTJAX_TIMEOUT\) rank 0 of 2 .*waits in the check before allreduce",
        r"rank 1 is in no operation of pfftjax, after 1 collectives",
        PFFTJAX_TIMEOUT="2",
    )
    assert "FAILING" in ended.output


# Another process stops all ranks for a while, as a batch system may.
SUSPENDED = """
import subprocess
pids = MPI.COMM_WORLD.allgather(os.getpid())
def suspend(seconds):
    ranks = " ".join(map(str, pids))
    stop_and_go = f"kill -STOP {ranks}; sleep {seconds}; kill -CONT {ranks}"
    subprocess.run(["sh", "-c", stop_and_go], start_new_session=True)
"""


@pytest.mark.reproducer
def test_time_for_which_the_job_is_suspended_does_not_count():
    assert_succeeds(
        SUSPENDED
        + """
f = jax.jit(pc.allreduce)
jax.block_until_ready(f(x))
if RANK == 0:
    time.sleep(1)  # the others wait
    suspend(7)
    time.sleep(1.5)
start = time.monotonic()
assert f(x)[0, 0] == SIZE
if RANK > 0:
    assert time.monotonic() - start > 7
""",
        ranks=RANKS,
        PFFTJAX_TIMEOUT="5",
    )


NEW = "new = MPI.COMM_WORLD.Split(0, key=-RANK)\n"


@pytest.mark.reproducer
def test_a_new_communicator_that_not_every_rank_comes_to():
    """The first collective on it waits for its duplicates to be made, which all ranks make."""
    ended = assert_ends_in_error(
        NEW + "if RANK == 0: pc.allreduce(x, comm=new)",
        rf"rank {RANKS - 1} of {RANKS} \(communicator 1\) waits in allreduce, called at "
        r"\S+, for the other ranks to come to their first collective on this communicator, but "
        r"rank \d "
        r"(\(rank \d of MPI_COMM_WORLD\) )?has ended",
        "let all of them call allreduce, or make a communicator of those that do",
        ranks=RANKS,
    )
    if RANKS == 2:
        assert "but rank 0 (rank 1 of MPI_COMM_WORLD) has ended" in ended.output


@pytest.mark.reproducer
def test_a_new_communicator_under_a_timeout():
    """Ranks that wait for each other on two communicators, each for its first collective."""
    assert_ends_in_error(
        NEW
        + """
another = MPI.COMM_WORLD.Dup()
for comm in (new, another):
    pc.communicator(comm)
pc.allreduce(x, comm=new if RANK == 0 else another)
""",
        r"after 3\.\d s \(PFFTJAX_TIMEOUT\) rank \d of \d \(communicator \d\) waits in allreduce",
        r"waits, called at \S+, for the other ranks to come to a first collective on "
        r"communicator \d",
        ranks=RANKS,
        PFFTJAX_TIMEOUT="2",
    )


@pytest.mark.reproducer
def test_a_new_communicator_that_ranks_come_to_late():
    """However late: they may write a file, or compile."""
    assert_succeeds(
        NEW
        + """
if RANK == 0:
    time.sleep(6)
assert pc.allreduce(x, comm=new)[0, 0] == SIZE
""",
        ranks=RANKS,
    )


def test_a_message_to_a_rank_that_has_ended_without_any_call():
    """The watch is there from the import on."""
    ended = run(
        """
        from mpi4py import MPI
        import time, jax, jax.numpy as jnp
        from pfftjax import collectives as pc
        if MPI.COMM_WORLD.rank == 0:
            jax.block_until_ready(pc.sendrecv(jnp.ones(3), jnp.ones(3), 1, MPI.PROC_NULL))
        """,
        preamble="",
    )
    assert ended.status != 0
    assert "rank 1 has ended without the matching call" in ended.output


def test_a_partner_that_has_sent_and_left():
    """Its message waits here while the other partner is late: nobody is to blame."""
    assert_succeeds(
        """
        big, small = jnp.ones(1 << 22), jnp.ones(4)
        if RANK == 0:
            jax.block_until_ready(pc.sendrecv(small, small, MPI.PROC_NULL, 1))
        elif RANK == 1:
            assert pc.sendrecv(big, small, 0, 2).tolist() == [1.0] * 4
        else:
            time.sleep(7)
            jax.block_until_ready(pc.sendrecv(small, big, 1, MPI.PROC_NULL))
        """,
        ranks=3,
    )


def test_a_new_communicator_beside_the_users_own_calls_on_it():
    """It is duplicated where it is first used in Python, not while the user goes on with it."""
    assert_succeeds(
        """
        sub = MPI.COMM_WORLD.Split(0)
        w = jnp.ones((600, 600))
        @jax.jit
        def f(w, x):
            for _ in range(8):
                w = w @ w * 1e-3
            return pc.allreduce(x + 0 * w[0, 0], comm=sub)
        y = f(w, x)
        again = sub.Dup()
        assert again.allreduce(1) == SIZE
        assert float(y[0, 0]) == SIZE
        """
    )

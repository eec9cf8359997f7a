"""The table of PFFTJAX_PROFILE=1: its numbers are right, and it never holds up a job."""

import re

import pytest

from tests.jobs.job import assert_ends_in_error, assert_succeeds
from tools import fake_device

pytestmark = pytest.mark.timeout(240)

ROW = re.compile(r"^(\S.*?) +(\d+) +(\d+) +([\d.]+) +([\d.]+) +(?:(\d+) %|-) +([\d.]+|-)$", re.M)

CALLS = """
half = jnp.ones((SIZE, 128), jnp.float32)
exchanges = jax.jit(lambda y: jax.lax.fori_loop(0, 5, lambda _, y: pc.alltoall(y), y))
exchanges(exchanges(half))
if RANK == 0:  # an operation that the other ranks do not know
    pc.gather(jnp.ones((1, 3)), 0, comm=MPI.COMM_SELF)
pc.alltoallv(jnp.ones((2 * SIZE + 1, 3), jnp.float32), jnp.full(SIZE, 2))
jax.block_until_ready(pc.sendrecv(half, half, RANK, RANK))
jax.block_until_ready(pc.wait(pc.alltoall_start(half)))
plan = pfftjax.PencilFFT((8, 8, 8), pfftjax.ProcessGrid((SIZE, 1)), real=True)
jax.block_until_ready(plan.forward(jnp.ones(plan.input.local_shape, jnp.float32)))
warm = jax.block_until_ready(pc.bcast(half, 0))
MPI.COMM_WORLD.Barrier()
if RANK == 0:
    time.sleep(1)
jax.block_until_ready(pc.bcast(half, 0))
"""


def _rows(output):
    """By operation: calls, bytes, mean and slowest seconds, percents waiting and rate or None."""
    return {
        name: (
            int(calls),
            int(moved),
            float(mean),
            float(most),
            waiting and int(waiting),
            None if rate == "-" else float(rate),
        )
        for name, calls, moved, mean, most, waiting, rate in (
            match.group(1, 2, 3, 4, 5, 6, 7) for match in ROW.finditer(output)
        )
    }


@pytest.mark.parametrize("ranks", [1, 2, 3])
def test_the_table(ranks):
    output = assert_succeeds(CALLS, ranks=ranks, PFFTJAX_PROFILE="1").output
    assert output.count("pfftjax: profile of") == 1, output
    whose = "rank 0 of 1" if ranks == 1 else f"{ranks} ranks"
    assert f"pfftjax: profile of {whose}, " in output
    rows = _rows(output)
    half = 512 * ranks
    counted = {name: row[:2] for name, row in rows.items()}
    assert counted["alltoall"] == (10 * ranks, 10 * ranks * half), output
    assert counted["gather"][0] == 1
    assert counted["alltoallv"] == (ranks, ranks * 2 * ranks * 12)
    assert counted["sendrecv"] == (ranks, ranks * half)
    assert counted["bcast"] == (2 * ranks, 2 * ranks * half)
    assert counted["fft" if ranks > 1 else "fft_alone"] == (ranks, 4 * 8**3)
    assert counted["start"] == (ranks, ranks * half)
    assert counted["wait"] == (ranks, 0), "the bytes are those of start"
    seconds = [row[2] for row in rows.values()]
    assert seconds == sorted(seconds, reverse=True)
    for name in ("sendrecv", "start", "wait"):
        assert rows[name][4:] == (None, None), "waiting is in their time"
    assert rows["alltoall"][5] is not None
    if ranks == 1:
        assert rows["fft_alone"][4] is None
        assert rows["fft_alone"][5] is not None
    _, _, mean, most, waiting, _ = rows["bcast"]
    assert mean <= most
    if ranks == 1:
        assert waiting == 0
    else:  # all but the sleeping rank waited for it
        assert most > 0.8
        assert mean > 0.8 * (ranks - 1) / ranks
        assert waiting > 50


def test_without_the_whole_world_each_rank_speaks_for_itself():
    output = assert_succeeds(
        """
        import jax, jax.numpy as jnp
        from mpi4py import MPI
        from pfftjax import collectives as pc
        sub = MPI.COMM_WORLD.Split(MPI.COMM_WORLD.rank)
        jax.block_until_ready(pc.alltoall(jnp.ones((1, 4), jnp.float32), comm=sub))
        """,
        preamble="",
        PFFTJAX_PROFILE="1",
        PFFTJAX_LAZY_WORLD="1",
    ).output
    for rank in range(2):
        assert f"profile of rank {rank} of 2" in output
    assert len(re.findall(r"^alltoall +1 +16 ", output, re.MULTILINE)) == 2


def test_a_job_that_fails_ends_without_a_table():
    ended = assert_ends_in_error(
        """
        jax.block_until_ready(pc.alltoall(x))
        if RANK == 1:
            raise ValueError("rank 1 gives up")
        jax.block_until_ready(pc.alltoall(x))
        """,
        "rank 1 gives up",
        PFFTJAX_PROFILE="1",
    )
    assert "profile of" not in ended.output


def test_a_single_rank_that_fails_leaves_its_table():
    ended = assert_ends_in_error(
        "raise ValueError('no more')", "no more", ranks=1, PFFTJAX_PROFILE="1"
    )
    assert _rows(ended.output)["allreduce"][0] == 1


def test_calls_that_run_ahead_of_a_gpu_have_no_rate():
    """NCCL's only enqueue: neither the waiting nor the work is in their time."""
    output = assert_succeeds(
        """
        for _ in range(3):
            jax.block_until_ready(pc.alltoall(x))
        """,
        PFFTJAX_PROFILE="1",
        **fake_device.environment(
            PFFTJAX_GPU_TRANSPORT="nccl", PFFTJAX_NCCL=fake_device.build_nccl()
        ),
    ).output
    rows = _rows(output)
    assert rows["alltoall"][0] == 6
    assert rows["alltoall"][4:] == (None, None), output


def test_an_error_that_is_caught_on_all_ranks_leaves_the_table():
    output = assert_succeeds(
        """
        try:
            jax.block_until_ready(pc.alltoallv(x, jnp.ones(SIZE, int), capacity=0))
            raise AssertionError
        except jax.errors.JaxRuntimeError:
            pc.recover()
        jax.block_until_ready(pc.alltoall(x))
        """,
        PFFTJAX_PROFILE="1",
    ).output
    assert _rows(output)["alltoall"][0] == 2

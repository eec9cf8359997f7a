"""The handlers and the staging for GPUs, without one: the ordinary tests, on tools/fake_device."""

import subprocess
import sys

import pytest

from tests.jobs.job import assert_ends_in_error, assert_succeeds, compiled_by_tests
from tools import fake_device, launcher

pytestmark = pytest.mark.timeout(300)

# These ordinary tests say most in little time: every operation, its adjoint, every
# pair of pencils, any halo and any counts.
TESTS = {
    2: [
        "tests/collectives/test_adjoint.py",
        "tests/collectives/test_rooted.py",
        "tests/pm/test_painting.py::test_against_sums",
        "tests/pm/test_painting.py::test_particles_that_are_not_here",
    ],
    3: [
        "tests/collectives/test_values.py",
        "tests/collectives/test_alltoallv.py::test_any_counts",
        "tests/pencils/test_transpose.py::test_any_pair_of_pencils",
        "tests/pencils/test_transpose.py::test_dtypes",
        "tests/pencils/test_halo.py::test_any_halo",
        "tests/pencils/test_halo.py::test_sums_of_other_dtypes",
        "tests/pencils/test_pencil.py::test_indices_are_read_when_the_program_runs",
    ],
}


@pytest.mark.parametrize(("ranks", "piece"), [(2, 4096), (3, 64)])
def test_the_ordinary_tests(tmp_path, ranks, piece):
    """In pieces that go round their ring many times, within a node and, from 3 ranks on, also
    between nodes.
    """
    ended = subprocess.run(
        launcher.command(ranks, "-m", "pytest", "--with-mpi", "-q", *TESTS[ranks]),
        env=launcher.environment(
            JAX_DISABLE_MOST_OPTIMIZATIONS="1",
            PFFTJAX_GPU_CHUNK_BYTES=str(piece),
            PFFTJAX_TEST_NODES=",".join(str(rank // 2) for rank in range(ranks)),
            **fake_device.environment(),
            **compiled_by_tests(tmp_path),
        ),
        capture_output=True,
        text=True,
        check=False,
        cwd=launcher.ROOT,
    )
    assert ended.returncode == 0, ended.stdout + ended.stderr
    assert "passed" in ended.stdout


@pytest.mark.parametrize(("ranks", "which"), [(1, "not 2_to_the_31"), (2, "another_process")])
def test_its_table_from_python(ranks, which):
    """The tests of kernels, written for GPUs: their copy of the table is that of device.h. What
    takes gigabytes is left to a GPU.
    """
    tests = ["-m", "pytest", "--with-mpi", "-q", "-m", "gpu", "tests/gpu/test_kernels.py"]
    assert "passed" in _on_the_fake_device(launcher.command(ranks, *tests, "-k", which))


def test_the_benchmark_of_kernels():
    """It compares what they leave with NumPy before it takes their time."""
    arguments = ["-m", "benchmarks.gpu_kernels", "--mib", "1", "--seconds", "0.001"]
    assert "complex128" in _on_the_fake_device([sys.executable, *arguments])


def _on_the_fake_device(command):
    ended = subprocess.run(
        command,
        env=launcher.environment(**fake_device.environment()),
        capture_output=True,
        text=True,
        check=False,
        cwd=launcher.ROOT,
    )
    assert ended.returncode == 0, ended.stdout + ended.stderr
    return ended.stdout


# The operations with handlers of their own, and some that go by way of the host, in one program;
# on rank 1 the runtime can fail.
EVERYTHING = """
import os
from mpi4py import MPI
if MPI.COMM_WORLD.rank == 1 and "FAIL_ON_RANK_1" in os.environ:
    os.environ["PFFTJAX_FAKE_FAIL"] = os.environ["FAIL_ON_RANK_1"]
import time
import jax, jax.numpy as jnp, numpy as np
from pfftjax import (
    ExchangeMethod, Pencil, PencilFFT, ProcessGrid, halo_exchange, halo_reduce, transpose
)
from pfftjax import collectives as pc
from pfftjax._runtime.ffi import native
RANK, SIZE = MPI.COMM_WORLD.rank, MPI.COMM_WORLD.size
rng = np.random.default_rng(0)
grid = ProcessGrid((SIZE, 1))
whole = rng.standard_normal((7, 5, 6))
z = Pencil(whole.shape, grid)
y = Pencil(whole.shape, grid, (1, 2), (1, 2, 0))
block = jnp.asarray(z.local_block(whole))
big = rng.standard_normal((SIZE, SIZE, 3000))  # many times round a ring of 4 KiB

@jax.jit
def everything(block, rows):
    moved = transpose(block, z, y, method=ExchangeMethod.MESSAGES)
    ghosts = halo_exchange(block, z, 2)
    return (moved, transpose(moved, y, z, method=ExchangeMethod.ALLTOALL), ghosts,
            halo_reduce(ghosts, z, 2), pc.alltoall(rows), pc.allgather(rows[0]),
            pc.allreduce(rows), pc.bcast(rows, 0), pc.scan(-rows))

def failing():
    print(f"FAILING AT {time.time()}", flush=True)
def run(scale=1.0):
    return jax.block_until_ready(everything(scale * block, jnp.asarray(scale * big[RANK])))
"""


def test_schedules():
    """Many, one after the other in one process: none has a wrong bit."""
    assert_succeeds(
        """
        first = run()
        np.testing.assert_array_equal(first[0], y.local_block(whole))
        np.testing.assert_array_equal(first[1], block)
        np.testing.assert_array_equal(first[4], big[:, RANK])
        np.testing.assert_array_equal(first[5], big[:, 0])
        np.testing.assert_allclose(first[6], big.sum(0), rtol=1e-12)
        np.testing.assert_array_equal(first[7], big[0])
        # The rows themselves lie in the host's memory from the operations before.
        np.testing.assert_allclose(first[8], -big.cumsum(0)[RANK], rtol=1e-12, atol=1e-12)
        plan = PencilFFT(whole.shape, grid, method=ExchangeMethod.MESSAGES)
        expected = plan.output.local_block(np.fft.fftn(whole))
        np.testing.assert_allclose(plan.forward(block + 0j), expected, rtol=1e-10, atol=1e-10)
        for round in range(60):
            if round == 30:
                native.release_memory(0)
            scale = 2.0 ** (round % 3)  # memory that is used again holds other numbers
            for a, b in zip(first, run(scale)):
                np.testing.assert_array_equal(scale * a, b)
        try:
            transpose(block, z, y, method=ExchangeMethod.SHARED).block_until_ready()
        except jax.errors.JaxRuntimeError as error:
            assert "between GPUs take ExchangeMethod.AUTOMATIC, MESSAGES or ALLTOALL" in str(error)
            pc.recover()
        else:
            raise AssertionError("nothing was raised")
        """,
        preamble=EVERYTHING,
        PFFTJAX_GPU_CHUNK_BYTES="1024",
        **fake_device.environment(seed=3),
    )


def test_transforms_in_chunks():
    """Each exchange beside the transforms of other chunks, and of other arrays of a gradient."""
    assert_succeeds(
        """
        from pfftjax import spectral
        spectrum = np.fft.fftn(whole)
        for dims in ((SIZE, 1), (1, SIZE)):
            grid = ProcessGrid(dims)
            plan = PencilFFT(whole.shape, grid, method=ExchangeMethod.PIPELINED)
            simple = PencilFFT(whole.shape, grid, method=ExchangeMethod.MESSAGES)
            x = jnp.asarray(plan.input.local_block(whole)) + 0j
            y = jax.jit(plan.forward)(x)
            close = lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-10, atol=1e-10)
            close(y, plan.output.local_block(spectrum))
            close(jax.jit(plan.inverse)(y), x)
            slopes = [spectral.gradient(x, p, 2.0) for p in (plan, simple)]
            close(*slopes)
            close(*(spectral.divergence(s, p, 2.0) for s, p in zip(slopes, (plan, simple))))
            pulled = [jax.vjp(p.forward, x)[1](y)[0] for p in (plan, simple)]
            close(*pulled)
        """,
        preamble=EVERYTHING,
        **fake_device.environment(),
    )


# A kernel, a copy of staging or of a mirror, the first use of the transport.
@pytest.mark.parametrize(
    ("failure", "operation"),
    [("copy_boxes:1", "transpose"), ("copy:4", r"\w+"), ("make_event:3", r"\w+")],
)
def test_a_failure_of_the_runtime(failure, operation):
    """It names operation and rank, and the job ends."""
    assert_ends_in_error(
        "run()",
        rf"pfftjax: {operation} failed on rank 1 of 2 .*a failure that a test has asked for",
        preamble=EVERYTHING,
        FAIL_ON_RANK_1=failure,
        **fake_device.environment(PFFTJAX_GPU_PROBE_BYTES=0),
    )


def test_a_host_that_waits_for_its_device_lets_mpi_go_on():
    """Before its own call begins: with messages whose data it sends once the other side is there.
    When MPI is finalized it is not in it, and comes too late.
    """
    ended = assert_succeeds(
        """
        scan = jax.jit(lambda x: pc.scan(x, op=MPI.SUM))
        jax.block_until_ready(scan(x))

        def after_computing(seconds):
            os.environ["PFFTJAX_FAKE_BUSY"] = str(seconds)
            try:
                jax.block_until_ready(scan(x))
            except Exception as error:
                print(f"{error}")

        numbers, tags = np.ones(1 << 18), range(20)
        MPI.COMM_WORLD.Barrier()
        began = time.monotonic()
        if RANK == 0:
            sending = [MPI.COMM_WORLD.Isend(numbers, 1, tag) for tag in tags]
            after_computing(3)
            assert time.monotonic() - began > 3
            MPI.Request.Waitall(sending)
            thread = threading.Thread(target=after_computing, args=[1])
            thread.start()
            time.sleep(0.3)
        else:
            for tag in tags:
                MPI.COMM_WORLD.Recv(numbers, 0, tag)
            took = time.monotonic() - began
            assert took < 2, took
            jax.block_until_ready(scan(x))
        MPI.Finalize()
        if RANK == 0:
            thread.join()
        """,
        # Or the receiver takes the data out of the sender's memory by itself.
        OMPI_MCA_smsc="^cma",
        MPIR_CVAR_CH4_CMA_ENABLE="0",
        **fake_device.environment(),
    )
    assert "scan on rank 0 of 2 was called after MPI_Finalize" in ended.output


def test_a_rank_without_traffic_frees_what_it_has_read():
    """Rank 0 fills its ring with what rank 1 reads, and then has something for rank 2. Rank 1
    takes no part in that and comes back to no exchange, but it leaves the first one before its
    copies to the device have ended: in the second it must still say that the room is free.
    """
    # The first exchange fills a ring, which holds four pieces (ring.h). The round without delay
    # makes the transport and compiles, so that all ranks come to the one with delay together.
    assert_succeeds(
        """
rows = np.arange(1024, dtype="f4") + 2000 * RANK
first, second = np.zeros((2, SIZE), np.int32)
if RANK == 0:
    first[1], second[2] = 1024, 256

@jax.jit
def both(rows):
    received, _ = pc.alltoallv(rows, first, capacity=1024)
    return received, pc.alltoallv(rows, second, capacity=1024)[0]

for late in ("0", "2"):
    os.environ["PFFTJAX_FAKE_LATE"] = late
    received = jax.block_until_ready(both(rows))
    if RANK == 0:
        MPI.COMM_WORLD.send("both are done", 1)
    if RANK == 1:
        MPI.COMM_WORLD.recv(source=0)
    for got, count, rank in zip(received, (1024, 256), (1, 2)):
        expected = np.arange(1024) * (np.arange(1024) < count) * (RANK == rank)
        np.testing.assert_array_equal(got, expected)
""",
        ranks=3,
        **fake_device.environment(PFFTJAX_GPU_CHUNK_BYTES=1024, PFFTJAX_TIMEOUT=20),
    )

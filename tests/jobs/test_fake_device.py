"""The handlers and the staging for GPUs, without one: the ordinary tests, on tests/fake_device."""

import subprocess

import pytest

from tests import fake_device, launcher
from tests.jobs.job import assert_ends_in_error, assert_succeeds

pytestmark = pytest.mark.timeout(300)

# What each of a job's runs is about: every operation, its adjoint, and both ways between pencils.
VALUES = [
    "tests/collectives/test_values.py",
    "tests/collectives/test_rooted.py",
    "tests/pencils/test_halo.py",
]
TRANSPOSITIONS = [
    "tests/collectives/test_adjoint.py",
    "tests/collectives/test_alltoallv.py",
    "tests/collectives/test_sendrecv.py",
    "tests/pencils/test_transpose.py",
]


def _pytest(ranks, *arguments, **environment):
    return subprocess.run(
        launcher.command(ranks, "-m", "pytest", "--with-mpi", "-q", "-m", "not memory", *arguments),
        env=launcher.environment(
            JAX_DISABLE_MOST_OPTIMIZATIONS="1", **fake_device.environment(**environment)
        ),
        capture_output=True,
        text=True,
        check=False,
        cwd=launcher.ROOT,
    )


# Pieces of 64 bytes go round in rings of 1 KiB.
@pytest.mark.parametrize(
    ("ranks", "tests", "environment"),
    [
        (2, TRANSPOSITIONS, {"PFFTJAX_FAKE_SEED": 1}),
        (3, VALUES, {"PFFTJAX_FAKE_SEED": 2, "PFFTJAX_GPU_CHUNK_BYTES": 64}),
    ],
)
def test_the_ordinary_tests(ranks, tests, environment):
    ended = _pytest(ranks, *tests, **environment)
    assert ended.returncode == 0, ended.stdout + ended.stderr
    assert "passed" in ended.stdout


# Every operation that a GPU's arrays can take, in one program, with the result by NumPy.
EVERYTHING = """
from pfftjax import ExchangeMethod, Pencil, ProcessGrid, halo_exchange, halo_reduce, transpose
rng = np.random.default_rng(0)
grid = ProcessGrid((SIZE, 1))
whole = rng.standard_normal((7, 5, 6))
z = Pencil((7, 5, 6), grid)
y = Pencil((7, 5, 6), grid, (1, 2), (1, 2, 0))
block = jnp.asarray(z.local_block(whole))
big = rng.standard_normal((SIZE, SIZE, 300))  # many pieces, round the ring

@jax.jit
def everything(block, rows):
    moved = transpose(block, z, y, method=ExchangeMethod.MESSAGES)
    ghosts = halo_exchange(block, z, 2)
    return (moved, transpose(moved, y, z, method=ExchangeMethod.ALLTOALL), ghosts,
            halo_reduce(ghosts, z, 2), pc.alltoall(rows), pc.allgather(rows[0]), pc.allreduce(rows),
            pc.bcast(rows, 0), pc.scan(rows), grid.coords[0] + 0 * pc.allreduce(1))

def run():
    return jax.block_until_ready(everything(block, jnp.asarray(big[RANK])))
"""


@pytest.mark.parametrize("ranks", [2])
def test_schedules(ranks):
    """Many, one after the other in one process: none has a wrong bit."""
    assert_succeeds(
        EVERYTHING
        + """
first = run()
np.testing.assert_array_equal(first[0], y.local_block(whole))
np.testing.assert_array_equal(first[1], block)
np.testing.assert_array_equal(first[4], big[:, RANK])
np.testing.assert_array_equal(first[5], big[:, 0])
np.testing.assert_allclose(first[6], big.sum(0), rtol=1e-13)
np.testing.assert_array_equal(first[7], big[0])
for _ in range(40):
    for a, b in zip(first, run()):
        np.testing.assert_array_equal(a, b)
for number in (0, grid.comm.py2f() * 0):
    native.release_memory(0)
for a, b in zip(first, run()):
    np.testing.assert_array_equal(a, b)
""",
        ranks=ranks,
        PFFTJAX_GPU_CHUNK_BYTES="1024",
        **fake_device.environment(PFFTJAX_FAKE_SEED=3),
    )


@pytest.mark.parametrize(
    ("failure", "operation"),
    [("copy_boxes:1", "transpose"), ("copy:3", r"\\w+"), ("make_stream:3", r"\\w+")],
)
def test_a_failure_of_the_runtime(failure, operation):
    """It names operation and rank, and the job ends."""
    assert_ends_in_error(
        EVERYTHING + "run()",
        rf"pfftjax: {operation} failed on rank 1 of 2 .*the fake device says 'a failure that",
        preamble=PREAMBLE_OF_RANK_1.format(failure=failure),
        **fake_device.environment(),
    )


def test_a_method_for_cpus_is_refused():
    assert_succeeds(
        """
        from pfftjax import ExchangeMethod, Pencil, ProcessGrid, transpose
        grid = ProcessGrid((SIZE, 1))
        z, y = Pencil((4, 4, 4), grid), Pencil((4, 4, 4), grid, (1, 2), (1, 2, 0))
        try:
            transpose(jnp.ones(z.local_shape), z, y, method=ExchangeMethod.SHARED)
        except Exception as error:
            assert "between GPUs take ExchangeMethod.AUTOMATIC, MESSAGES or ALLTOALL" in str(error)
        else:
            raise AssertionError("nothing was raised")
        pc.recover()
        """,
        **fake_device.environment(),
    )

"""What the system refuses on one rank, all ranks do without; and messages that are too long."""

import subprocess

import pytest

from tests.jobs.job import assert_succeeds
from tools.launcher import ROOT

pytestmark = pytest.mark.timeout(240)


@pytest.fixture(scope="module")
def refusals(tmp_path_factory):
    """The library that takes the place of the system's."""
    library = tmp_path_factory.mktemp("refusals") / "refusals.so"
    source = ROOT / "tests" / "cpp" / "refusals.cc"
    command = ["g++", "-std=c++17", "-shared", "-fPIC", "-D_GNU_SOURCE", source, "-o", library]
    subprocess.run([*command, "-ldl"], check=True)
    return str(library)


EXCHANGES = """
grid = pfftjax.ProcessGrid((SIZE, 1))
for n in (3, 300_000):
    y = np.asarray(jax.jit(pc.alltoall)(jnp.full((SIZE, n), RANK)))
    assert (y == np.arange(SIZE)[:, None]).all()
plan = pfftjax.PencilFFT((8, 8, 8), grid)
y = plan.inverse(plan.forward(jnp.ones(plan.input.local_shape, "complex64")))
assert np.allclose(y, 1)
fused = pfftjax.PencilFFT((8, 8, 8), grid, method=pfftjax.ExchangeMethod.FUSED)
try:
    jax.block_until_ready(fused.forward(jnp.ones(plan.input.local_shape, "complex64")))
except Exception as error:
    assert "these do not share any, or not so much" in str(error), error
    print("refused", flush=True)
pc.recover()
"""


@pytest.mark.parametrize("refusal", ["fallocate 0", "fallocate 1", "empty 1"])
def test_memory_that_cannot_be_shared(refusals, refusal):
    """Before any rank writes to it: the system would end the process (SIGBUS)."""
    ended = assert_succeeds(EXCHANGES, LD_PRELOAD=refusals, PFFTJAX_TEST_REFUSAL=refusal)
    assert ended.output.count("refused") == 2


def test_memory_that_an_operation_without_communication_lacks(refusals):
    """XLA would carry the exception without the operation and the rank."""
    assert_succeeds(
        """
        alone = pfftjax.ProcessGrid((1, 1), comm=MPI.COMM_SELF)
        plan = pfftjax.PencilFFT((8, 8, 8), alone, method=pfftjax.ExchangeMethod.FUSED)
        try:
            jax.block_until_ready(plan.forward(jnp.ones((8, 8, 8), "complex64")))
        except jax.errors.JaxRuntimeError as error:
            assert RANK == 0, error
            text = "pfftjax: fft_alone failed on rank 0 of 2: std::bad_alloc"
            assert text in str(error), error
        else:
            assert RANK == 1
        """,
        LD_PRELOAD=refusals,
        PFFTJAX_TEST_REFUSAL="mmap 0",
    )


def test_long_rows_of_particles_go_in_pieces(refusals):
    """One row may have more bytes than one MPI call can count."""
    assert_succeeds(
        """
        from pfftjax._runtime.communicators import world
        from pfftjax.pm._rows import move_rows_p, return_rows_p
        once = jnp.ones(SIZE, "int32")
        order = jnp.arange(SIZE, dtype="int32")
        x = jnp.arange(SIZE * 1000).reshape(SIZE, 1000).astype("uint8") + 10 * RANK
        (y,) = move_rows_p.bind(order, once, once, x, capacity=SIZE, comm=world)
        mine = np.arange(SIZE * 1000).reshape(SIZE, 1000).astype("uint8")[RANK]
        assert (np.asarray(y) == mine + 10 * np.arange(SIZE, dtype="uint8")[:, None]).all()
        (back,) = return_rows_p.bind(order, once, once, y, capacity=SIZE, comm=world)
        assert (np.asarray(back) == np.asarray(x)).all()
        """,
        LD_PRELOAD=refusals,
        PFFTJAX_TEST_REFUSAL="longer 64",
        PFFTJAX_MAX_CHUNK_BYTES="64",
    )


def test_a_rank_that_gives_up_an_exchange_between_nodes(refusals):
    """It sends for the ranks of its node, and all would wait for what it does not send."""
    ended = assert_succeeds(
        """
        from pfftjax._runtime.ffi import native
        native.set_node(RANK // 2)
        grid = pfftjax.ProcessGrid((SIZE, 1), MPI.COMM_WORLD.Dup())
        plan = pfftjax.PencilFFT((8, 8, 8), grid, method=pfftjax.ExchangeMethod.HIERARCHICAL)
        for _ in range(2):
            try:
                jax.block_until_ready(plan.forward(jnp.ones(plan.input.local_shape, "complex64")))
            except jax.errors.JaxRuntimeError as error:
                text = {0: "std::bad_alloc", 1: "rank 0 has given up fft complex64[512]"}.get(
                    RANK, f"a rank on the node of rank {RANK - 2} has given up this exchange")
                assert text in str(error), error
                print("refused", flush=True)
            pc.recover()
        """,
        ranks=4,
        LD_PRELOAD=refusals,
        PFFTJAX_TEST_REFUSAL="own 0",
    )
    assert ended.output.count("refused") == 8

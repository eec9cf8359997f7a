"""Calls between GPUs that differ between ranks, and blocks of one size: no rank takes another's
bytes for its own, by any transport. On the fake device, as tests/jobs/test_gpu_transports.py.
"""

import pytest

from tests.jobs.job import PREAMBLE, assert_ends_in_error
from tools import fake_device

pytestmark = pytest.mark.timeout(240)

# Either call sends each rank 24 bytes, and all ranks know the program, so only what is exchanged
# can tell one from the other.
EITHER = """
comm = MPI.COMM_WORLD.Dup()
@jax.jit
def either(is_one, x):
    def alltoall(x):
        return pc.alltoall(x, comm=comm)
    def allgather(x):
        return pc.allgather(x[0], comm=comm).reshape(x.shape)
    return jax.lax.cond(is_one, alltoall, allgather, x)
"""
BOTH_BEFORE = """
for is_one in (True, False):
    jax.block_until_ready(either(is_one, x))
"""
DIFFERENT = """
failing()
jax.block_until_ready(either(RANK == 0, x))
"""
ON_TWO_NODES = """
from pfftjax._runtime.ffi import native
native.set_node(RANK)
"""


def environment(transport, **extra):
    return fake_device.environment(
        PFFTJAX_GPU_TRANSPORT=transport, PFFTJAX_NCCL=fake_device.build_nccl(), **extra
    )


@pytest.mark.parametrize("transport", ["ipc", "staging"])
def test_it_is_seen_in_the_exchange(transport):
    assert_ends_in_error(
        BOTH_BEFORE + DIFFERENT,
        r"(alltoall|allgather) failed on rank \d of 2.*rank \d is in another call",
        preamble=PREAMBLE + EITHER,
        **environment(transport),
    )


@pytest.mark.parametrize(
    ("transport", "before"),
    [("mpi", ""), ("staging", ON_TWO_NODES)],
    ids=["by MPI", "between nodes"],
)
def test_the_watch_sees_it(transport, before):
    """Where messages would have to say it, as on CPUs: they have other tags, and find nobody."""
    assert_ends_in_error(
        BOTH_BEFORE + DIFFERENT,
        r"rank \d of 2 .*is in (alltoall|allgather) float64.*, but rank \d is in "
        r"(alltoall|allgather) float64.*: the ranks call different collectives",
        preamble=PREAMBLE + before + EITHER,
        **environment(transport),
    )


@pytest.mark.parametrize("transport", ["nccl", "ipc", "mpi", "staging"], ids=str.upper)
def test_the_first_exchange(transport):
    """Until then nobody knows whether the transport needs calls to be compared before they begin:
    this one is compared in any case.
    """
    assert_ends_in_error(
        DIFFERENT,
        r"the ranks' calls differ: number 1 is \w+ float64\[\d\] as collective 1.* on rank 1 and "
        r"\w+ float64\[\d\] as collective 1.* on rank 0.*all ranks raise this error",
        preamble=PREAMBLE + EITHER,
        **environment(transport),
    )


def test_nccl_compares_all_calls():
    """Both programs are known to all ranks, and NCCL would take any bytes for any others."""
    assert_ends_in_error(
        """
        from_ = jax.jit(pc.bcast, static_argnums=1)
        jax.block_until_ready((from_(x, 0), from_(x, 1)))
        failing()
        jax.block_until_ready([from_(x, root) for root in (RANK, 1 - RANK)])
        """,
        "the ranks' calls differ.* with root [01]",
        **environment("nccl"),
    )


def test_chunks_beside_the_stream():
    """The exchange of either half of a transposition is about the chunk's place in it."""
    halves = """
from pfftjax.pencils._overlap import start_p
from pfftjax.pencils._transpose import Redistribution
COMM = pc.communicator(MPI.COMM_WORLD)
def begin(x, order, index):
    way = Redistribution(order=order, scatter=0, gather=1, whole=2)
    return start_p.bind(x, way=way, comm=COMM, index=index)
"""
    assert_ends_in_error(
        """
        y = jnp.ones((4, 1))
        @jax.jit
        def of_either(is_one, y):
            return jax.lax.cond(
                is_one, lambda y: begin(y, (0, 1), 0), lambda y: begin(y, (1, 0), 0), y
            )
        jax.block_until_ready([of_either(is_one, y) for is_one in (True, False)])
        failing()
        jax.block_until_ready(of_either(RANK == 0, y))
        """,
        r"transpose_start failed on rank \d of 2.*rank \d is in another call",
        preamble=PREAMBLE + halves,
        **environment("ipc"),
    )


def test_what_mpi_still_works_on():
    """After an error of MPI's on device pointers, messages may still be on their way to memory
    that XLA would give to other arrays: the job ends.
    """
    assert_ends_in_error(
        """
        from pfftjax._runtime.ffi import native
        exchange = jax.jit(pc.alltoall)
        x = jnp.ones((SIZE, 1000))
        jax.block_until_ready(exchange(x))
        # The others send more at a time than rank 1 receives.
        native.configure(max_chunk_bytes=1 << (8 if RANK == 1 else 20), check=False, debug=False,
                         timeout=8.0, first_call=True, shared_memory=True)
        failing()
        try:
            jax.block_until_ready(exchange(x))
        except jax.errors.JaxRuntimeError as error:
            assert RANK == 0 and "a message was shorter" in str(error), error
            time.sleep(60)
        """,
        r"on rank 1 of 2 an exchange by MPI on device pointers has failed \(MPI says .*\), and "
        r"MPI is still at work on memory",
        **environment("mpi", PFFTJAX_TIMEOUT="8"),
    )

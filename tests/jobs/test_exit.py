"""However a program ends, all of its ranks end: soon, with the right status, and without a crash.

Ends without work under way, and failures of one rank alone, are in test_failures.py.
"""

import re

import pytest

from tests import launcher
from tests.jobs.job import SECONDS_TO_END, assert_ends_in_error, assert_succeeds, run

pytestmark = pytest.mark.timeout(60)

CRASH = r"(?i)segmentation fault|signal 11|aborted \(|corrupted|Fatal Python error"

# Exchanges 8 MiB 200 times, most of its time in MPI; `start()` returns while it does. The product
# is there because XLA would run a cheap program at once.
BUSY = """
@jax.jit
def busy(w, x):
    x = pc.alltoall(x) + 0 * (w @ w)[0, 0]
    x, _ = jax.lax.scan(lambda x, _: (pc.alltoall(x), None), x, None, length=100)
    return pc.allreduce(x)
w, large = jnp.ones((300, 300)), jnp.ones((SIZE, 1 << 19))
busy.lower(w, large).compile()
def start():
    busy(w, large)  # has no name: nothing refers to the result while it is computed
    kept = busy(w, large)
    if not kept.is_ready():
        print("under way", flush=True)
    return kept
"""


def _assert_no_crash(ended):
    assert not re.search(CRASH, ended.output), ended.output


@pytest.mark.parametrize(
    "script",
    [
        "kept = start()",
        "start(); sys.exit(0)",
        "kept = start(); time.sleep(0.1); MPI.Finalize(); assert kept[0, 0] == SIZE",
        "c = MPI.COMM_WORLD.Dup(); y = start(); kept = pc.allreduce(y, comm=c); c.Free()",
    ],
    ids=["falls off the end", "sys.exit(0)", "MPI.Finalize()", "a communicator freed"],
)
def test_ends_with_work_under_way(script):
    ended = assert_succeeds(BUSY + script, limit=50)
    assert ended.output.count("under way") == 2
    _assert_no_crash(ended)


def test_sys_exit_keeps_its_status():
    ended = run(BUSY + "kept = start(); sys.exit(3)", limit=50)
    assert ended.status == 3, ended.output
    assert "under way" in ended.output
    _assert_no_crash(ended)


def test_an_exception_on_all_ranks_with_work_under_way():
    ended = assert_ends_in_error(
        BUSY + "kept = start(); raise RuntimeError('bad cosmology')",
        "RuntimeError: bad cosmology",
        r"pfftjax: rank \d of 2 failed with RuntimeError: bad cosmology",
        limit=50,
    )
    _assert_no_crash(ended)


def test_computing_after_finalize():
    """What does not communicate works on; what does is refused, with a reason."""
    ended = assert_ends_in_error(
        """
        MPI.Finalize()
        print("total", jax.jit(jnp.sum)(x), flush=True)
        pc.allreduce(x).block_until_ready()
        """,
        r"total 6\.0",
        r"JaxRuntimeError.*allreduce on rank \d of 2 was called after MPI_Finalize",
        limit=50,
    )
    _assert_no_crash(ended)


@pytest.mark.parametrize("status", [0, 5])
def test_a_rank_that_leaves_without_finalizing(status):
    """os._exit runs no handler: nobody but the launcher can notice. It ends the other ranks, and
    MPICH's takes status 0 at its word."""
    ended = run(
        f"""
        failing()
        if RANK == 1:
            os._exit({status})
        pc.allreduce(x).block_until_ready()
        print("received", flush=True)
        """,
        limit=50,
    )
    assert ended.seconds < SECONDS_TO_END
    assert "received" not in ended.output
    if status or launcher.family() == "openmpi":
        assert ended.status != 0


@pytest.mark.parametrize(
    "wait", ["time.sleep(30)", "pc.sendrecv(x, x, 1 - RANK, MPI.PROC_NULL).block_until_ready()"]
)
def test_interrupted_from_the_keyboard(wait):
    """The launcher passes the signal on to all ranks; one that waits in MPI cannot answer it, but
    is ended by one that can."""
    ended = assert_ends_in_error(
        f"""
        threading.Timer(0.5, lambda: os.kill(os.getpid(), signal.SIGINT)).start()
        if RANK == 0:
            {wait}
        time.sleep(30)
        """,
        "KeyboardInterrupt",
        limit=50,
    )
    _assert_no_crash(ended)


def test_exit_handlers_that_communicate():
    """Those registered before pfftjax was imported run after it has said that this rank ends."""
    ended = assert_succeeds(
        """
        import atexit
        def report(name):
            print(f"{name} {float(pc.allreduce(1.0))}\\n", end="", flush=True)
        atexit.register(report, "early")
        from mpi4py import MPI
        from pfftjax import collectives as pc
        atexit.register(report, "late")
        """,
        preamble="",
        limit=50,
    )
    assert ended.output.count("early 2.0") == 2
    assert ended.output.count("late 2.0") == 2
    _assert_no_crash(ended)


def test_a_thread_in_collectives_of_its_own_communicator():
    """Python waits for a thread that is no daemon."""
    ended = assert_succeeds(
        """
        own = MPI.COMM_WORLD.Dup()
        def work():
            for i in range(100):
                pc.allreduce(x, comm=own).block_until_ready()
            print("worked", flush=True)
        threading.Thread(target=work).start()
        """,
        limit=50,
    )
    assert ended.output.count("worked") == 2
    _assert_no_crash(ended)


@pytest.mark.parametrize("private", [True, False])
def test_a_thread_that_waits_for_ever(private):
    """A daemon is cut off where it is, and MPI cannot be finalized under it."""
    ended = assert_ends_in_error(
        f"""
        own = MPI.COMM_WORLD.Dup()
        if {private}:
            pc.allreduce(x, comm=own).block_until_ready()
        def work():
            pc.sendrecv(x, x, 1, MPI.PROC_NULL, comm=own).block_until_ready()
        if RANK == 0:
            threading.Thread(target=work, daemon=True).start()
            time.sleep(0.5)
        """,
        r"rank 0 of 2 .*is in sendrecv .*but rank 1 has ended without the matching call"
        if private
        else r"rank 0 of 2 ends while one of its threads waits in sendrecv.*join threads",
        limit=50,
    )
    _assert_no_crash(ended)


def test_functions_and_arrays_that_outlive_everything():
    """Held by a module, a cycle and a thread's storage: destroyed last, or never."""
    ended = assert_succeeds(
        """
        f = jax.jit(lambda x: pc.alltoall(jnp.sin(x)))
        class Holder: pass
        holder = Holder()
        holder.me, holder.f, holder.y = holder, f, f(x)
        sys.modules["held"] = holder
        local = threading.local()
        local.compiled = f.lower(x).compile()
        local.y = local.compiled(x)
        jax.held = f(local.y)
        """,
        limit=50,
    )
    _assert_no_crash(ended)

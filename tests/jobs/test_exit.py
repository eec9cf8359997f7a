"""However a program ends, all of its ranks end: soon, with the right status, and without a crash.

Ends without work under way, and failures of one rank alone, are in test_failures.py.
"""

import functools
import re

import pytest

from tests.jobs import job
from tests.jobs.job import RANKS, SECONDS_TO_END
from tools import launcher

pytestmark = pytest.mark.timeout(60)

run, assert_succeeds, assert_ends_in_error = (
    functools.partial(f, ends_as_ever=True)
    for f in (job.run, job.assert_succeeds, job.assert_ends_in_error)
)

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
        print(f"total {jax.jit(jnp.sum)(x)}", flush=True)
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


def test_threads_that_call_mpi_end_before_finalize_by_hand():
    """MPICH locks no more in MPI_Finalize. A rank warns of what it has not received just before it
    ends them; MPI begins to finalize by deleting attributes, the latest first."""
    ended = assert_succeeds(
        """
        if RANK == 0:
            pc.send(x, 1, tag=7)
        pc.barrier()
        begins = lambda *_: print("MPI_Finalize begins", file=sys.stderr, flush=True)
        if RANK == 1:
            MPI.COMM_SELF.Set_attr(MPI.Comm.Create_keyval(delete_fn=begins), True)
        MPI.Finalize()
        """,
        limit=50,
    )
    assert re.search(r"rank 1 .*has not received(?s:.*)MPI_Finalize begins", ended.output), ended
    _assert_no_crash(ended)


def test_threads_that_call_mpi_end_before_finalize_at_exit():
    """Python calls what it has left to libc's abort between pfftjax's exit function and mpi4py's,
    so that MPI_Finalize is never called on rank 1."""
    ended = run(
        """
        import ctypes
        from mpi4py import MPI
        if MPI.COMM_WORLD.rank == 1:
            ctypes.pythonapi.Py_AtExit(ctypes.CDLL(None).abort)
        import jax.numpy as jnp
        from pfftjax import collectives as pc
        if MPI.COMM_WORLD.rank == 0:
            pc.send(jnp.ones(3), 1, tag=7)
        pc.barrier()
        """,
        preamble="",
        limit=50,
    )
    assert ended.status != 0, ended.output
    assert re.search("rank 1 of 2 .*has not received a message", ended.output), ended.output


# Seconds after which the watch, were it wrong, would have ended the job: it asks twice.
LATE = 6


@pytest.mark.reproducer
def test_exit_handlers_that_communicate_late():
    """All ranks have said that they end when the early one runs, and it waits for the last rank
    for longer than the watch. A program that it only dispatches is run to its end too."""
    ended = assert_succeeds(
        f"""
        import atexit, time
        def report():
            if rank == size - 1:
                time.sleep({LATE})
            total = float(pc.allreduce(1.0))
            kept.append(later(jnp.ones(3)))
            print(f"early {{total}}\\n", end="", flush=True)
        atexit.register(report)
        import jax, jax.numpy as jnp
        from mpi4py import MPI
        from pfftjax import collectives as pc
        rank, size = MPI.COMM_WORLD.rank, MPI.COMM_WORLD.size
        kept = []
        @jax.jit
        def later(x):
            x = jax.pure_callback(lambda x: (time.sleep(0.3), x)[1], x, x)
            return pc.allreduce(x)
        later.lower(jnp.ones(3)).compile()
        """,
        preamble="",
        ranks=RANKS,
        limit=50,
    )
    assert ended.output.count(f"early {RANKS}.0") == RANKS
    _assert_no_crash(ended)


@pytest.mark.reproducer
def test_an_exit_handler_on_one_rank_only():
    """The others have gone on to MPI_Finalize, and say so."""
    ended = run(
        """
        import atexit
        def report():
            if MPI.COMM_WORLD.rank == 0:
                pc.allreduce(1.0).block_until_ready()
        atexit.register(report)
        from mpi4py import MPI
        from pfftjax import collectives as pc
        """,
        preamble="",
        ranks=RANKS,
        limit=50,
    )
    assert ended.status != 0
    assert re.search(r"rank 0 of \d .*allreduce .*but rank \d has ended", ended.output), ended


# `slow(n, w, x)` computes before it communicates, in the background, for about as many seconds as
# rank 0 asks for. XLA would run at once what is cheap, or what calls Python.
SLOW = """
@jax.jit
def slow(n, w, x):
    y = jax.lax.fori_loop(0, n, lambda _, y: y @ w * 1e-3, w)
    return pc.allreduce(x + 0 * y[0, 0])
w = jnp.ones((300, 300))
def seconds_for(n):
    start = time.perf_counter()
    jax.block_until_ready(slow(n, w, x))
    return time.perf_counter() - start
seconds_for(1)
# The least of some: while they are measured, other ranks compute as well.
steps = 100 / min(seconds_for(100) for _ in range(8))
def dispatch(seconds):
    kept = slow(int(steps * seconds) if RANK == 0 else 1, w, x)
    if not kept.is_ready():
        print(f"under way on rank {RANK}", flush=True)
"""


@pytest.mark.reproducer
@pytest.mark.timeout(240)  # what computes for 8 s takes 90 s on a very busy machine
@pytest.mark.parametrize("end", ["", "jax.effects_barrier(); MPI.Finalize()"])
def test_a_thread_that_has_ended_with_work_under_way(end):
    """JAX keeps tokens for each thread: nobody else knows of what this one has dispatched."""
    ended = assert_succeeds(
        SLOW
        + f"""
thread = threading.Thread(target=dispatch, args=({LATE + 2},))
thread.start()
thread.join()
{end}
""",
        ranks=RANKS,
    )
    assert "under way on rank 0" in ended.output
    _assert_no_crash(ended)


def test_a_thread_that_goes_on_with_work_under_way():
    """A daemon that takes its work from a queue: what it has dispatched is waited for."""
    ended = assert_succeeds(
        SLOW
        + f"""
import queue
tasks = queue.Queue()
def work():
    while True:
        dispatch(tasks.get())
        tasks.task_done()
threading.Thread(target=work, daemon=True).start()
tasks.put({LATE + 2})
tasks.join()
""",
        limit=50,
    )
    assert "under way on rank 0" in ended.output
    _assert_no_crash(ended)


def test_an_error_in_a_thread_that_has_ended():
    """Nobody looks at it, and still the job does not end with status 0."""
    assert_ends_in_error(
        """
        def work():
            f = jax.jit(lambda x: pc.alltoallv(x, jnp.full(SIZE, 5), capacity=2)[0])
            f(jnp.ones(10))
        thread = threading.Thread(target=work)
        thread.start()
        thread.join()
        """,
        r"alltoallv failed on rank \d of 2.*a capacity of 10 is enough on every rank",
        limit=50,
    )


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

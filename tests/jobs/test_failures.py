"""Whatever goes wrong on one rank ends the whole job within 10 seconds, with a reason."""

import re

import pytest

from tests.jobs.job import RANKS, assert_ends_in_error, assert_succeeds, run
from tools import launcher

pytestmark = pytest.mark.timeout(240)


@pytest.mark.parametrize("ranks", [2, 4])
def test_a_rank_that_raises(ranks):
    assert_ends_in_error(
        """
        if RANK == 1:
            raise RuntimeError("no such snapshot")
        jax.block_until_ready(pc.allreduce(x))
        """,
        "no such snapshot",
        f"pfftjax: rank 1 of {ranks} failed with RuntimeError",
        ranks=ranks,
    )


@pytest.mark.reproducer
@pytest.mark.parametrize(
    ("work", "error"),
    [
        ("pc.allreduce(x, comm=own).block_until_ready(); [].pop()", "IndexError: pop from empty"),
        ("f(x); [].pop()", "IndexError: pop from empty"),
        ("pc.alltoall(jnp.ones((SIZE + 1, 2)), comm=own)", "ValueError: alltoall on rank 1"),
        ("plan.forward(jnp.ones(5))", "ValueError"),
    ],
    ids=["after an operation", "after a program", "in an operation", "in a plan"],
)
def test_a_rank_that_raises_in_a_thread(work, error):
    """One that communicates: others wait for it."""
    assert_ends_in_error(
        f"""
        own = MPI.COMM_WORLD.Dup()
        f = jax.jit(lambda x: pc.allreduce(x, comm=own)).lower(x).compile()
        plan = pfftjax.PencilFFT((4, 4, 4), pfftjax.ProcessGrid(comm=own))
        def work():
            {work}
        if RANK == 1:
            threading.Thread(target=work).start()
        elif "pop" in {work!r}:
            f(x)
        if RANK == 0:
            jax.block_until_ready(pc.allreduce(x))
        time.sleep(30)
        """,
        f"rank 1 of {RANKS} failed in a thread with {error}",
        ranks=RANKS,
    )


@pytest.mark.reproducer
def test_a_thread_that_raises_and_never_communicates():
    """A logger whose pipe is broken: Python shows it, and the job goes on."""
    ended = assert_succeeds(
        """
        def log():
            read, write = os.pipe()
            os.close(read)
            os.write(write, b"a line")
        thread = threading.Thread(target=log)
        thread.start()
        thread.join()
        assert pc.allreduce(x)[0, 0] == SIZE
        """,
        ranks=RANKS,
    )
    # The ranks may write between two words of each other.
    assert ended.output.count("BrokenPipeError") == RANKS, ended.output


@pytest.mark.parametrize("name", ["SIGKILL", "SIGSEGV", "SIGTERM"])
def test_a_rank_that_is_killed(name):
    """The launcher says which one; where it terminates the others gently, they say the rest."""
    ended = assert_ends_in_error(
        f"""
        if RANK == 1:
            time.sleep(0.5)
            os.kill(os.getpid(), signal.{name})
        jax.block_until_ready(pc.allreduce(x))
        """,
        r"(?i)rank 1|signal|exit code",
    )
    if launcher.family() == "openmpi":
        said = r"rank 0 of 2 \(communicator 0\) was terminated while in allreduce, called at \S+;"
        assert re.search(said, ended.output), ended.output


@pytest.mark.parametrize(
    ("wait", "text"),
    [
        ("pc.recv(x, 1)", r"recv from rank 1, called at <string>:\d+$"),
        (
            "pc.sendrecv(x, x, MPI.ANY_SOURCE, 1)",
            r"sendrecv from any rank to rank 1, called at <string>:\d+$",
        ),
        ("pc.alltoall(x)", r"alltoall, called at <string>:\d+$"),
        (
            "pc.alltoall(x, comm=MPI.COMM_WORLD.Dup())",
            r"alltoall, which waits for the other ranks of the communicator$",
        ),
    ],
)
def test_a_rank_that_is_interrupted_while_it_waits(wait, text):
    """Python raises KeyboardInterrupt when the call is over, which may be never."""
    number = 1 if "Dup" in wait else 0
    ended = assert_ends_in_error(
        f"""
        if RANK == 0:
            threading.Timer(0.5, lambda: os.kill(os.getpid(), signal.SIGINT)).start()
            jax.block_until_ready({wait})
        else:
            if "Dup" in {wait!r}:
                MPI.COMM_WORLD.Dup()
            time.sleep(1.5)
            os._exit(1)
        """,
    )
    line = rf"pfftjax: rank 0 of 2 \(communicator {number}\) was interrupted while in {text}"
    assert re.search(line, ended.output, re.MULTILINE), ended.output


def test_a_handler_of_sigterm_is_left_alone():
    ended = run(
        """
        import os, signal
        signal.signal(signal.SIGTERM, lambda *_: (print("theirs", flush=True), os._exit(0)))
        import pfftjax
        os.kill(os.getpid(), signal.SIGTERM)
        """,
        preamble="",
    )
    assert "theirs" in ended.output


def test_a_rank_that_exits():
    """sys.exit runs no exception hook; the others learn of it by asking."""
    assert_ends_in_error(
        """
        if RANK == 1:
            sys.exit(3)
        jax.block_until_ready(pc.allreduce(x))
        """,
        r"rank 0 of 2 .* (is in|waits in the check before) allreduce float64\[6\]",
        r"but rank 1 has ended",
        "every rank of a communicator must make the same collectives",
    )


def test_a_rank_that_exits_before_a_message():
    assert_ends_in_error(
        """
        if RANK == 0:
            jax.block_until_ready(pc.sendrecv(x, x, 1, MPI.PROC_NULL))
        """,
        r"is in sendrecv .*rank 1 has ended without the matching call",
    )


def test_an_error_that_nobody_looks_at():
    """Asynchronous: the program is dispatched and goes wrong later; its result is never used."""
    ended = assert_ends_in_error(
        """
        @jax.jit
        def f(w, x):
            for _ in range(8):
                w = w @ w * 1e-3
            late = (0 * w[0, 0]).astype(int)
            return pc.alltoallv(x, jnp.full(SIZE, 5) + late, capacity=2)[0]
        kept = f(jnp.ones((700, 700)), jnp.ones(10))
        print("dispatched", flush=True)
        """,
        r"alltoallv failed on rank \d of 2.*a capacity of 10 is enough on every rank",
    )
    assert "dispatched" in ended.output


def test_overflowing_alltoallv():
    assert_ends_in_error(
        """
        counts = jnp.zeros(SIZE, int).at[0].set(4)
        jax.block_until_ready(pc.alltoallv(jnp.ones(4), counts, capacity=5)[0])
        """,
        r"8 rows arrive here, where capacity is 5; a capacity of 8 is enough on every rank",
    )


@pytest.mark.parametrize(
    ("call", "texts"),
    [
        (
            "pc.alltoall(jnp.ones((SIZE + 1, 2)))",
            ["alltoall on rank 1", r"reshape it to \(2, \.\.\.\)"],
        ),
        ("pc.bcast(x, 0, comm=MPI.COMM_NULL)", ["bcast on rank 1", "COMM_NULL"]),
    ],
)
def test_a_wrong_argument_on_one_rank(call, texts):
    """The texts for all arguments are in test_arguments.py; here, that the job ends."""
    assert_ends_in_error(
        f"""
        if RANK == 1:
            {call}
        jax.block_until_ready(pc.allreduce(x))
        """,
        *texts,
    )


def test_after_finalize():
    """Neither a crash nor a hang: the operation says so."""
    assert_ends_in_error(
        """
        pc.barrier(); jax.effects_barrier()
        MPI.Finalize()
        try:
            jax.block_until_ready(pc.allreduce(x))
        except Exception as error:
            print(error, flush=True)
            os._exit(4)
        """,
        "allreduce on rank . of 2 was called after MPI_Finalize",
    )


@pytest.mark.parametrize(
    "script",
    [
        "pc.alltoall(x)",
        "kept = jax.jit(lambda x: pc.alltoall(jnp.sin(x)))(x)",
        "MPI.COMM_WORLD.Barrier(); jax.effects_barrier(); MPI.Finalize()",
        "jax.effects_barrier(); RANK == 0 and MPI.Finalize()",
        "sys.exit(0)",
        "time.sleep(4 * RANK)",
        "c = MPI.COMM_WORLD.Split(RANK); pc.allreduce(x, comm=c)",
        "c = MPI.COMM_WORLD.Dup(); pc.allreduce(x, comm=c); jax.effects_barrier(); c.Free()",
    ],
)
def test_ordinary_ends(script):
    """Work still pending, MPI finalized by hand, ranks that end at different times."""
    assert_succeeds(script, ends_as_ever=True)


def test_debug_logs_one_line_a_call():
    ended = assert_succeeds("pc.allreduce(x)", PFFTJAX_DEBUG="1")
    assert "pfftjax rank 1/2 comm 0 call 2: allreduce float64[6], 48 bytes," in ended.output


def test_two_threads_on_one_communicator():
    """Tokens are per thread: refused where it is seen, and right with a communicator each."""
    assert_succeeds(
        """
        comms = [MPI.COMM_WORLD.Dup() for _ in range(2)]
        wrong = []
        def work(i):
            f = jax.jit(lambda x: pc.allreduce(x, comm=comms[i]))
            for k in range(50):
                if float(f(100.0 * i + k)) != 2 * (100.0 * i + k):
                    wrong.append((i, k))
        threads = [threading.Thread(target=work, args=(i,)) for i in range(2)]
        [t.start() for t in threads]; [t.join() for t in threads]
        assert not wrong, wrong
        """
    )
    assert_ends_in_error(
        """
        if RANK == 0:
            def wait():
                jax.block_until_ready(pc.sendrecv(x, x, 1, MPI.PROC_NULL))
            threading.Thread(target=wait, daemon=True).start()
            time.sleep(1)
            jax.block_until_ready(pc.sendrecv(x[0], x[0], 1, MPI.PROC_NULL))
        else:
            time.sleep(30)
        """,
        "another thread of this process is in an operation on the same communicator",
    )


THREADS_THAT_CROSS = """
import warnings
from jax import lax
w, threads_here = jnp.ones((200, 200)), 3
over = MPI.COMM_SELF if "alone" in sys.argv else MPI.COMM_WORLD
comms = [over.Dup() for _ in range(threads_here)]
def program(comm):
    @jax.jit
    def run(steps, x):
        y = lax.fori_loop(0, steps, lambda _, y: 1e-3 * (y @ w), w)
        return pc.allreduce(x + 0 * y[0, 0], comm=comm)
    return run
programs = [program(comm) for comm in comms]
for run in programs:
    run(1, 1.0).block_until_ready()
start = time.perf_counter()
programs[0](200, 1.0).block_until_ready()
second = int(MPI.COMM_WORLD.allreduce(200 / (time.perf_counter() - start), MPI.MIN))
results, warned = [None] * threads_here, []
def work(i):
    # Another thread is the late one on each rank, and each rank waits for another program.
    is_late = (i + RANK) % threads_here == 0
    results[i] = programs[i](second // 3 if is_late else 2, 1.0)
with warnings.catch_warnings(record=True) as warned:
    for _ in range(4):
        started = [threading.Thread(target=work, args=(i,)) for i in range(threads_here)]
        [thread.start() for thread in started]; [thread.join() for thread in started]
        assert [float(result) for result in results] == [over.size] * threads_here, results
said = [str(one.message) for one in warned if "threads of this process" in str(one.message)]
print(f"{len(said)} warnings of few threads on rank {RANK} {said[:1]}")
"""


def test_programs_of_several_threads_that_wait_for_each_other():
    """A program that waits holds one of XLA's threads. With two of these, two waiting programs on
    each of three ranks hold them all, and the third is never run.
    """
    ended = run(THREADS_THAT_CROSS, ranks=3, NPROC="8")
    assert ended.status == 0, ended.output
    assert ended.output.count("0 warnings of few threads") == 3, ended.output


@pytest.mark.reproducer
def test_threads_one_after_the_other_in_another_order_on_each_rank():
    """The second thread of a rank gets the number of the first, by which XLA orders programs."""
    assert_succeeds(
        """
        comms = [MPI.COMM_WORLD.Dup() for _ in range(2)]
        w = jnp.ones((200, 200))
        def program(comm):
            @jax.jit
            def run(x):
                # XLA would run at once, in the thread itself, what is cheap.
                y = jax.lax.fori_loop(0, 3, lambda _, y: 1e-3 * (y @ w), w)
                return pc.allreduce(x + 1 + 0 * y[0, 0], comm=comm)
            return run
        programs = [program(comm) for comm in comms]
        for run in programs:
            run(1.0).block_until_ready()
        results = [None, None]
        def work(i):
            results[i] = programs[i](1.0)
        for i in (0, 1) if RANK == 0 else (1, 0):
            thread = threading.Thread(target=work, args=(i,))
            thread.start()
            thread.join()
            time.sleep(0.2)  # the system takes back its number
        assert [float(result) for result in results] == [2.0 * SIZE] * 2
        """,
        ranks=RANKS,
        limit=60,
        NPROC="8",
    )


def test_more_programs_under_way_than_xla_has_threads():
    """That could hang, and is warned of. These wait for nobody, and go well."""
    ended = run(THREADS_THAT_CROSS, ranks=2, arguments=["alone"], NPROC="2")
    assert ended.status == 0, ended.output
    assert re.search("[23] threads of this process have programs under way", ended.output)
    assert re.search("NPROC=[46]", ended.output)


@pytest.mark.parametrize(
    "setting", ["PFFTJAX_CHECK=1", "PFFTJAX_FIRST_CALL_CHECK=0", "PFFTJAX_MAX_CHUNK_BYTES=64"]
)
def test_an_environment_that_differs_between_ranks(setting):
    name, value = setting.split("=")
    ended = run(
        f"""
        from mpi4py import MPI
        import os
        if MPI.COMM_WORLD.rank == 1:
            os.environ["{name}"] = "{value}"
        import pfftjax
        """,
        preamble="",
    )
    assert ended.status != 0
    assert "the environment differs between ranks" in ended.output
    assert f"{name}={value} on rank 1" in ended.output


def test_a_communicator_that_is_freed_while_a_message_waits_for_its_operand():
    """The message would use a handle that is no more, or that of the next communicator."""
    assert_ends_in_error(
        """
        comm = MPI.COMM_WORLD.Dup()
        other = 1 - RANK
        def f(x):
            y = jax.lax.fori_loop(0, 400, lambda _, y: jnp.tanh(y @ y), x)
            return pc.sendrecv(y[0], y[0], source=other, dest=other, comm=comm)
        y = jax.jit(f).lower(jnp.ones((500, 500))).compile()(jnp.ones((500, 500)))
        comm.Free()
        comm = MPI.COMM_WORLD.Split(RANK)
        failing()
        y.block_until_ready()
        """,
        r"sendrecv on rank \d of 2: the communicator was freed before",
        ranks=2,
    )

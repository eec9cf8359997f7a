"""Misuse of MPI, by the classes of its correctness benchmarks (MPI-BugBench, the MPI Bugs
Initiative): each program ends within 10 s, and says which operation of which ranks it was, in
which line. A right program runs beside them all, and must not notice.
"""

import dataclasses
import re
import subprocess
import textwrap
import time

import pytest

from tests.jobs.job import SECONDS_TO_END, as_a_copy
from tools import launcher

pytestmark = pytest.mark.timeout(240)

PREAMBLE = """
import gc, os, sys, time
gc.disable()  # an eighth of the time that importing takes
import jax, jax.numpy as jnp
from mpi4py import MPI
import pfftjax
from pfftjax import collectives as pc
gc.enable()
RANK, SIZE = MPI.COMM_WORLD.rank, MPI.COMM_WORLD.size
x, z, big = jnp.ones((SIZE, 3)), jnp.ones((SIZE, 5)), jnp.ones(1 << 20)
def now(y): return jax.block_until_ready(y)
f = jax.jit(lambda x: pc.alltoall(x) * 2)  # <f>
g = jax.jit(lambda x: pc.allgather(x)[0] * 2)  # <g>
now(f(z)), now(g(z))
MPI.COMM_WORLD.Barrier()
print(f"FAILING AT {time.time()}", flush=True)
"""


@dataclasses.dataclass(frozen=True)
class Misuse:
    """`program` marks its lines, `# <a>`, and `says` has regular expressions with {a} for them."""

    program: str
    says: tuple[str, ...]
    times: int | None = None  # how often the first of them, if that is certain
    environment: dict[str, str] = dataclasses.field(default_factory=dict)


def differ(program, *says):
    """The programs differ: every rank knows, and one speaks."""
    first = r"this program's collectives differ between ranks: number \d is " + says[0]
    return Misuse(program, (first, *says[1:]), times=1)


TWO_COMMUNICATORS = """
comms = [MPI.COMM_WORLD.Dup() for _ in range(2)]
for comm in comms:
    pc.duplicate(comm)
now(pc.allreduce(x, comm=comms[RANK]))  # <a>
"""
CASES = {
    "counts": differ(
        "now(jax.jit(lambda x: pc.allreduce(x))(x[:, : 1 + RANK]))  # <a>",
        r"allreduce float64\[4\] MPI.SUM \({a}\) on rank 1 and allreduce .* \({a}\) on rank 0",
    ),
    "types": differ(
        """
        if RANK == 0:
            now(pc.alltoall(x))  # <a>
        else:
            now(pc.alltoall(x.astype(int)))  # <b>
        """,
        r"alltoall int64\[6\] \({b}\) on rank 1 and alltoall float64\[6\] \({a}\) on rank 0",
    ),
    "roots": differ(
        "now(pc.bcast(x, RANK))  # <a>",
        r"bcast float64\[6\] from 1 \({a}\) on rank 1 and bcast .*from 0 \({a}\) on rank 0",
    ),
    "reductions": differ(
        """
        total = jax.jit(lambda x: pc.allreduce(x, MPI.SUM))  # <a>
        largest = jax.jit(lambda x: pc.allreduce(x, MPI.MAX))  # <b>
        now(total(x) if RANK == 0 else largest(x))
        """,
        r".*MPI.MAX \({b}\) on rank 1 and .*MPI.SUM \({a}\) on rank 0",
    ),
    "order": differ(
        """
        @jax.jit
        def both(x):
            if RANK == 0:
                return pc.alltoall(x), pc.reduce_scatter(x)  # <a>
            return pc.reduce_scatter(x), pc.alltoall(x)  # <b>
        now(both(x))
        """,
        r"reduce_scatter .*\({b}\) on rank 1 and alltoall .*\({a}\) on rank 0",
    ),
    "one call more": differ(
        """
        def loss(x):
            y = pc.alltoall(x)
            if RANK == 1:
                y = pc.alltoall(y)  # <a>
            return jnp.sum(y)
        now(jax.jit(jax.value_and_grad(loss))(x))
        """,
        r"alltoall .*on rank 1 and (nothing|alltoall .*) on rank 0",
    ),
}


def waits(operation, line, why):
    how = "(is in|waits in the check before)"
    return rf"rank \d of 2 \(communicator 0\) {how} {operation}, called at {line}, {why}"


CASES |= {
    "missing call": Misuse(
        """
        if RANK == 0:
            now(pc.allreduce(x))  # <a>
        """,
        (waits(r"allreduce float64\[6\]", "{a}", ".*but rank 1 has ended"),),
    ),
    "a rank's own branch, and a call after it": Misuse(
        """
        if RANK == 0:
            now(g(z))
        now(f(z))
        """,
        (r"(alltoall|allgather) .*called at ({f}|{g})",),
    ),
    "number of turns": Misuse(
        """
        for _ in range(3 + RANK):
            now(f(z))
        """,
        (waits(r"alltoall float64\[10\]", "{f}", ".*but rank 0 has ended"),),
    ),
    "number of turns inside jit": Misuse(
        """
        turn = lambda _, y: pc.alltoall(y)  # <a>
        now(jax.jit(lambda x, n: jax.lax.fori_loop(0, n, turn, x))(x, 3 + RANK))
        """,
        (waits(r"alltoall float64\[6\]", "{a}", ".*but rank 0 has ended"),),
    ),
    "order of known programs": Misuse(
        "now((f, g)[RANK](z)), now((g, f)[RANK](z))",
        (r"(alltoall|allgather) .*called at ({f}|{g})",),
    ),
    "tags": Misuse(
        """
        if RANK == 0:
            pc.send(x, 1, tag=1)
        else:
            now(pc.recv(x, 0, tag=2))  # <a>
        """,
        (r"rank 1 of 2 .* is in recv float64\[6\], called at {a}, .*rank 0 has ended without",),
    ),
    "source": Misuse(
        """
        if RANK == 1:
            now(pc.recv(x, 1))  # <a>
        """,
        (
            r"rank 1 of 2 .* is in recv float64\[6\], called at {a}, .*waits for a message from "
            r"itself that it has not sent",
        ),
    ),
    "tags of messages that are not buffered": Misuse(
        """
        if RANK == 0:
            pc.send(big, 1, tag=1)  # <a>
        else:
            now(pc.recv(big, 0, tag=2))  # <b>
        """,
        (
            r"is in (send|recv) .*, called at ({a}|{b}), .* waits for rank \d, which is in "
            r"(send|recv) .*, called at ({a}|{b}), .*none of them can go on",
        ),
        times=1,
    ),
    "receive without send": Misuse(
        """
        if RANK == 1:
            now(pc.recv(x, 0))  # <a>
        """,
        (r"rank 1 of 2 .* is in recv float64\[6\], called at {a}, .*rank 0 has ended without",),
    ),
    "send without receive": Misuse(
        """
        if RANK == 1:
            pc.send(big, 0)  # <a>
        """,
        (r"rank 1 of 2 .* is in send .*, called at {a}, .*rank 0 has ended without",),
    ),
    "the tag of one half of a message": Misuse(
        """
        if RANK == 0:
            now(pc.sendrecv(big, big, 1, 1, sendtag=1, recvtag=2))  # <a>
        else:
            now(pc.sendrecv(big, big, 0, 0, sendtag=3, recvtag=1))  # <b>
        """,
        (
            r"is in sendrecv .*, called at ({a}|{b}), .* waits for rank \d, which is in "
            r"sendrecv .*, called at ({a}|{b}), .*none of them can go on",
        ),
        times=1,
    ),
    "a partner that has ended, of one half of a message": Misuse(
        """
        if RANK == 0:
            now(pc.sendrecv(x, x, source=1, dest=0))  # <a>
        """,
        (r"rank 0 of 2 .* is in sendrecv .*, called at {a}, .*rank 1 has ended without",),
    ),
    "two receives first": Misuse(
        """
        y = pc.recv(x, 1 - RANK)  # <a>
        pc.send(y, 1 - RANK)
        """,
        (
            r"is in recv .*, called at {a}, .* waits for rank \d, which is in recv .*, called at "
            r"{a}, .*none of them can go on",
        ),
        times=1,
    ),
    "two sends first": Misuse(
        """
        pc.send(big, 1 - RANK)  # <a>
        now(pc.recv(big, 1 - RANK))
        """,
        (
            r"is in send .*, called at {a}, .* waits for rank \d, which is in send .*, called at "
            r"{a}, .*none of them can go on",
        ),
        times=1,
    ),
    "a message and a collective": Misuse(
        """
        if RANK == 0:
            now(f(z))
            pc.send(x, 1)
        else:
            now(pc.recv(x, 0))  # <a>
            now(f(z))
        """,
        (
            r"is in (alltoall|recv) .*, called at ({f}|{a}), .* waits for rank \d, which is in "
            r"(recv|alltoall) .*, called at ({a}|{f}), .*none of them can go on",
        ),
        times=1,
    ),
    "an exception": Misuse(
        """
        if RANK == 1:
            raise RuntimeError("no such snapshot")
        now(f(z))
        """,
        (r"RuntimeError: no such snapshot\n", r"program\.py\", line \d+, in <module>"),
        times=1,
    ),
    "a freed communicator": Misuse(
        """
        comm = MPI.COMM_WORLD.Dup()
        now(pc.allreduce(x, comm=comm))
        comm.Free()
        now(pc.allreduce(x, comm=comm))
        """,
        (
            r"allreduce on rank \d: comm is MPI.COMM_NULL.* the communicator has been freed",
            r"program\.py\", line \d+, in <module>",
        ),
    ),
    "two communicators": Misuse(
        TWO_COMMUNICATORS,
        (
            r"waits in the check before allreduce.*, called at {a}, .* waits for rank \d, which "
            r"is in allreduce .* on communicator \d, called at {a}, .*neither can go on",
        ),
        times=1,
    ),
    "two communicators that are new": Misuse(
        """
        comms = [MPI.COMM_WORLD.Dup() for _ in range(2)]
        now(pc.allreduce(x, comm=comms[RANK]))  # <a>
        """,
        (
            r"waits in allreduce, called at {a}, for the other ranks .*, but not for this one: "
            r"rank \d waits, called at {a}, for the other ranks",
        ),
        times=1,
    ),
    "a communicator that is new and one that is not": Misuse(
        """
        comm = MPI.COMM_WORLD.Dup()
        if RANK == 0:
            now(pc.allreduce(x, comm=comm))  # <a>
        else:
            now(f(z))
        """,
        (
            r"alltoall.*, called at {f}, .* waits for rank 0, which waits, called at {a}, for the "
            r"other ranks to come to a first collective on communicator 1, .*neither can go on",
        ),
        times=1,
    ),
    "a message and another communicator": Misuse(
        """
        comm = MPI.COMM_WORLD.Dup()
        pc.duplicate(comm)
        if RANK == 0:
            now(pc.recv(x, 1))  # <a>
        now(pc.allreduce(x, comm=comm))  # <b>
        if RANK == 1:
            pc.send(x, 0)
        """,
        (r"(recv|allreduce).*, called at ({a}|{b}), .*neither can go on",),
        times=1,
    ),
    "a start without a wait on one rank": Misuse(
        """
        started = pc.alltoall_start(x)
        if RANK == 0:
            now(pc.wait(started))  # <a>
        """,
        (waits("wait.*", "{a}", ".*but rank 1 has ended"),),
    ),
    "two waits for one start": Misuse(
        """
        started = pc.alltoall_start(x)
        now(pc.wait(started))
        now(pc.wait(started))  # <a>
        """,
        (r"wait failed on rank \d of 2 \(communicator 0\), called at {a}: ",),
    ),
}

# It is not certain that these never go on: each is warned of, and PFFTJAX_TIMEOUT ends it.
WARNED = {}
# A bcast may end on a rank before all have come to it.
WARNED["a message and a bcast"] = Misuse(
    """
    h = jax.jit(lambda x: pc.bcast(x, 1))  # <h>
    now(h(x))
    if RANK == 0:
        now(h(x))
        pc.send(x, 1)
    else:
        now(pc.recv(x, 0))  # <a>
        now(h(x))
    """,
    (
        r"warning: rank \d of 2 .* is in (bcast|recv) .*, called at ({h}|{a}), .* has waited for "
        r"8 s, while rank \d is in (bcast|recv) .*, called at ({h}|{a}), ",
        r"\(PFFTJAX_TIMEOUT\) rank \d of 2 .* is in (bcast|recv) .*, called at ({h}|{a}), ",
    ),
    environment={"PFFTJAX_TIMEOUT": "9"},
)
# The other thread might make the call that is waited for.
WARNED["two communicators and two threads"] = Misuse(
    """
import threading
threading.Thread(target=time.sleep, args=(20,), daemon=True).start()
"""
    + TWO_COMMUNICATORS,
    (
        r"warning: rank \d of 2 .* before allreduce.*, called at {a}, .* has waited for 8 s, "
        r"while rank \d is in allreduce .* on communicator \d, called at {a}",
        r"\(PFFTJAX_TIMEOUT\) rank \d of 2 .* allreduce .*, called at {a}, ",
    ),
    environment={"PFFTJAX_TIMEOUT": "10"},
)
# All that these compute is right, and something goes nowhere.
LOST = {
    "a message that nobody receives": (
        """
        if RANK == 0:
            now(pc.send(x, 1, tag=7))
        """,
        r"warning: rank 1 of 2 \(communicator 0\) ends, and has not received a message of 48 "
        r"bytes from rank 0 with tag 7\n",
    ),
    "a message to oneself": (
        "now(pc.send(x, RANK)) if RANK == 1 else None",
        r"warning: rank 1 of 2 \(communicator 0\) ends, and has not received a message of 48 "
        r"bytes from rank 1 with tag 0\n",
    ),
    "exchanges that nobody waits for": (
        """
        started = [pc.alltoall_start(x), pc.allgather_start(x)]
        now(f(z))
        """,
        r"warning: rank \d of 2 \(communicator 0\) ends, and has not waited for 2 exchanges that "
        r"it has started\n",
    ),
}
NEIGHBOUR = """
x, turns = jnp.arange(12.0).reshape(SIZE, -1) + RANK, 0
while not bool(pc.bcast(jnp.asarray(os.path.exists(sys.argv[1])), 0)):
    turns += 1
    assert float(pc.allreduce(jnp.sum(f(x) - 2 * x))) == 0
    sent = pc.sendrecv(x, x, 1 - RANK, 1 - RANK)
    assert float(pc.allreduce(jnp.sum(sent - x))) == 0
    time.sleep(0.3)
print(f"right after {turns} turns", flush=True)
"""


class _Job:
    """A program in a file of its own, started on two ranks."""

    def __init__(self, folder, text, *arguments, **environment):
        lines = (PREAMBLE + textwrap.dedent(text)).splitlines()
        marks = ((i, re.search(r"# <(\w)>", line)) for i, line in enumerate(lines, 1))
        self.lines = {found[1]: rf"program\.py:{i}" for i, found in marks if found}
        path = folder / "program.py"
        path.write_text("\n".join(lines) + "\n")
        self.process = subprocess.Popen(
            launcher.command(2, *as_a_copy(), path.name, *arguments),
            env=launcher.environment(**environment),
            cwd=folder,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
        )

    def end(self):
        """What it has said, and how long that took from its mistake on."""
        try:
            output, _ = self.process.communicate(timeout=100)
        finally:
            self.process.kill()
        marks = [float(t) for t in re.findall(r"FAILING AT ([\d.]+)", output)]
        assert marks, output
        return output, time.time() - min(marks)


@pytest.fixture(scope="module", autouse=True)
def neighbour(tmp_path_factory):
    """A right program that runs all the while."""
    folder = tmp_path_factory.mktemp("neighbour")
    job = _Job(folder, NEIGHBOUR, str(folder / "end"))
    yield
    (folder / "end").touch()
    output, _ = job.end()
    assert job.process.returncode == 0, output
    assert output.count("right after") == 2, output


@pytest.mark.parametrize("name", LOST)
def test_what_is_lost_is_warned_of(name, tmp_path):
    program, says = LOST[name]
    job = _Job(tmp_path, program)
    output, _ = job.end()
    assert job.process.returncode == 0, output
    assert re.search(says, output), output


def check(case, folder):
    """Seconds until the program had ended, with what it has to say."""
    job = _Job(folder, case.program, **case.environment)
    output, seconds = job.end()
    assert job.process.returncode != 0, output
    for i, text in enumerate(case.says):
        found = re.findall(text.format(**job.lines), output)
        assert found, f"no {text!r} in:\n{output}"
        if i == 0 and case.times is not None:
            assert len(found) == case.times, output
    return seconds


@pytest.mark.parametrize("name", CASES)
def test_misuse(name, tmp_path):
    assert check(CASES[name], tmp_path) < SECONDS_TO_END


@pytest.mark.parametrize("name", WARNED)
def test_a_wait_that_may_end_is_warned_of(name, tmp_path):
    check(WARNED[name], tmp_path)

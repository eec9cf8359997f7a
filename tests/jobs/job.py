"""Starts a job of several ranks from a test and says how it ended.

A program prints a line as one text, `print(f"{a} {b}")`: its output is not buffered, and the
pieces of `print(a, b)` mix with those of other ranks.
"""

import contextlib
import dataclasses
import functools
import os
import pathlib
import re
import secrets
import shutil
import signal
import subprocess
import sys
import textwrap
import time

from tools import launcher

# Every script begins like this; `failing()` marks the moment from which the job has to end.
PREAMBLE = """
import gc, os, signal, sys, threading, time
gc.disable()  # an eighth of the time that importing takes, in a process of its own
import jax, jax.numpy as jnp, numpy as np
from mpi4py import MPI
import pfftjax
from pfftjax import collectives as pc
gc.freeze()
gc.enable()
RANK, SIZE = MPI.COMM_WORLD.rank, MPI.COMM_WORLD.size
def failing():
    print(f"FAILING AT {time.time()}", flush=True)
x = jnp.ones((SIZE, 3))
jax.block_until_ready(pc.allreduce(0))  # MPI and the watch are up
"""

# Python looks for garbage among all that was imported while it imports, and again when it ends:
# that is a third of what a small job costs. Where a rank's end is what is tested, it does so then.
FEW_LOOKS = "import atexit, gc; gc.set_threshold(100_000, 20, 20); atexit.register(gc.{})\n"

# A wrong program ends in 10 s on a machine that does nothing else. Where pytest runs several tests
# at a time, each has less than a core, and the launcher alone has taken seconds to end a job.
SECONDS_TO_END = 10.0 if int(os.environ.get("PYTEST_XDIST_WORKER_COUNT", "1")) == 1 else 20.0
# A job that hangs is shown in this time, before pytest ends its test at 240 s and all is lost.
SECONDS_FOR_STACKS = 60.0
# Ranks of the tests that tools/repeat.py runs on several numbers of them.
RANKS = int(os.environ.get("PFFTJAX_TEST_RANKS", "2"))


@dataclasses.dataclass(frozen=True)
class Ended:
    """How a job ended; `seconds` from the last `failing()`, None if it was never called."""

    status: int
    output: str
    seconds: float | None


def as_a_copy():
    """Arguments of Python by which a program, which follows, starts as a copy of a server."""
    return _fork_server()[0]


@functools.cache
def _fork_server():
    """What `as_a_copy` returns, and the server, which ends with this process."""
    program = str(pathlib.Path(__file__).with_name("fork_server.py"))
    name = f"pfftjax-tests-{os.getpid()}-{secrets.token_hex(4)}"
    server = subprocess.Popen(
        [sys.executable, program, "serve", name],
        # A thread of a library would not be in a copy.
        env=launcher.environment(OPENBLAS_NUM_THREADS="1"),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        start_new_session=True,  # what interrupts the tests is not for ranks
    )
    assert server.stdout.readline() == b"ready\n"
    return ["-I", "-S", program, name], server


def run(
    script,
    ranks=2,
    limit=150.0,
    preamble=PREAMBLE,
    arguments=(),
    ends_as_ever=False,
    **environment,
):
    """Run `script`, a text, on `ranks` ranks; a job that does not end by itself fails.

    Its ranks start as copies of a server (fork_server.py), but where they are to end as ever, and
    where the system has to know of libraries when a process starts.
    """
    of_the_linker = any(name.startswith("LD_") for name in environment)
    start = [] if ends_as_ever or of_the_linker else as_a_copy()
    begin = FEW_LOOKS.format("unfreeze" if ends_as_ever else "freeze") + preamble
    process = subprocess.Popen(
        launcher.command(ranks, *start, "-c", begin + textwrap.dedent(script), *arguments),
        env=launcher.environment(**environment),
        cwd=launcher.ROOT,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
        start_new_session=True,
    )
    try:
        output, _ = process.communicate(timeout=limit)
    except subprocess.TimeoutExpired:
        where = _stacks(process.pid, *([_fork_server()[1].pid] if start else []))
        os.killpg(process.pid, signal.SIGKILL)
        output, _ = process.communicate()
        output += where
        raise AssertionError(f"the job hung for {limit} s:\n{output}") from None
    ended = time.time()
    marks = [float(t) for t in re.findall(r"FAILING AT ([\d.]+)", output)]
    return Ended(process.returncode, output, ended - max(marks) if marks else None)


def _descendants(*roots):
    """These processes and all that they have started: ranks may have a session of their own."""
    parents = {}
    for status in pathlib.Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):  # it has ended
            fields = status.read_text().rpartition(")")[2].split()
            parents[int(status.parent.name)] = int(fields[1])
    found = list(roots)
    for process in found:
        found += [child for child, parent in parents.items() if parent == process]
    return found


def _stacks(*roots):
    """Where these and their descendants are: what the system says of their threads, and, where
    there is gdb, their stacks.
    """
    end = time.monotonic() + SECONDS_FOR_STACKS
    found = []
    for process in _descendants(*roots):
        status = pathlib.Path(f"/proc/{process}/stat")
        try:
            fields = status.read_text().rpartition(")")[2].split()
            command = (status.parent / "cmdline").read_text().split("\0")[:3]
            waits = [(t / "wchan").read_text() for t in (status.parent / "task").iterdir()]
        except OSError:  # it has ended
            continue
        found.append(f"-- process {process} {command} {fields[0]}, waits of its threads: {waits}")
        if shutil.which("gdb"):
            found += _frames(process, end - time.monotonic())
    return "\n".join(found)


def _frames(process, seconds):
    """The stacks of all threads of a process, if gdb has them in so many seconds."""
    ask = ["gdb", "-p", str(process), "-batch", "-ex", "thread apply all backtrace 40"]
    try:
        ended = subprocess.run(
            ask, capture_output=True, text=True, check=False, timeout=max(seconds, 1)
        )
    except subprocess.TimeoutExpired:
        return ["(gdb took too long)"]
    lines = ended.stdout.splitlines()
    return [line[:200] for line in lines if line.startswith(("#", "Thread"))]


def assert_ends_in_error(script, *texts, **options):
    """The job ends soon, not with status 0, and says all of `texts` (regular expressions)."""
    ended = run("failing()\n" + textwrap.dedent(script), **options)
    assert ended.status != 0, ended.output
    assert ended.seconds is not None
    assert ended.seconds < SECONDS_TO_END, (ended.seconds, ended.output)
    for text in texts:
        assert re.search(text, ended.output), f"no {text!r} in:\n{ended.output}"
    return ended


def compiled_by_tests(folder):
    """Settings of a job that runs tests: it takes their programs from where tools/run.py has those
    of all tests, or keeps its own in `folder`.
    """
    return launcher.kept_programs(pathlib.Path(os.environ.get("PFFTJAX_TEST_PROGRAMS", folder)))


def compiling_once(folder):
    """Options of `run` for what takes long to compile: its ranks do so once, and keep it there."""
    preamble = "from tests import compiled_once\ncompiled_once.install()\n"
    return {"preamble": preamble, **launcher.kept_programs(folder)}


def assert_succeeds(script, **options):
    """The job ends with status 0."""
    ended = run(script, **options)
    assert ended.status == 0, ended.output
    return ended

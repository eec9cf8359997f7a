"""Runs random programs that are right, whose ranks come at odd times, and counts what goes wrong.

    python -m tools.soak --minutes 60 --ranks 4

Each job runs a few steps, drawn by its seed, and then ends in one of many ways. In the steps ranks
are late, are stopped (SIGSTOP) while others wait for them, are all suspended for longer than
PFFTJAX_TIMEOUT, meet on communicators that they come to late, leave programs under way in threads
that have ended; at the end one may finish long before the others, or communicate in exit handlers.
None of that is a mistake: a job that is ended (a false kill), that does not end (a hang), or that
computes something wrong fails the soak. A seed is printed for each, and repeats it:

    python -m tools.soak --seed 1234 --jobs 1
"""

import argparse
import atexit
import collections
import os
import random
import re
import subprocess
import sys
import threading
import time
from typing import Any

from tests.jobs import job
from tools import launcher

# Longer than it takes the watch to ask twice, at 2 and at 4 seconds.
LATE = 5.0
# Under a timeout nothing is waited for longer than SHORT, but all ranks are stopped for SUSPENDED.
TIMEOUT, SHORT, SUSPENDED = 12, 2.0, 15.0
# Other jobs on the machine can make what is computed meanwhile take ten times as long.
SHORT_WORK = 0.25
LONGEST_JOB = 300.0
# XLA gets more threads than a job has programs under way. With fewer, programs that wait for other
# ranks may hold all of them (docs/sharp-bits.md), and pfftjax warns of that.
THREADS = "12"
# A job that takes so long shows where its threads are.
LONG_JOB = LONGEST_JOB - 30


# ---- What the ranks run ----------------------------------------------------------------------


class Program:
    """One rank of a job. All ranks draw the same numbers, in the same order."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.has_timeout = "PFFTJAX_TIMEOUT" in os.environ
        self.helpers: list[subprocess.Popen[bytes]] = []
        self.kept: list[Any] = []
        # Registered before pfftjax is imported, and so run after it has said that this rank ends.
        self.early = self.random.random() < 0.3
        self.early_wait = self.wait()
        if self.early:
            atexit.register(self.exit_handler, "early", self.early_wait)
        import jax
        import jax.numpy as jnp
        from mpi4py import MPI

        import pfftjax
        from pfftjax import collectives

        self.jax, self.jnp, self.mpi, self.pfftjax, self.pc = jax, jnp, MPI, pfftjax, collectives
        self.comm = MPI.COMM_WORLD
        self.rank, self.size = self.comm.rank, self.comm.size
        self.pids = self.comm.allgather(os.getpid())
        self.slow_steps = 0
        self.w = jnp.ones((200, 200))

    # ---- What is drawn

    def wait(self) -> float:
        """Seconds for which somebody is late: mostly few."""
        longest = SHORT if self.has_timeout else self.random.choice([0.1, 0.5, 1.0, LATE])
        return self.random.uniform(0, longest) if longest < LATE else LATE

    def somebody(self) -> int:
        return self.random.randrange(self.size)

    def sleep(self, rank: int, seconds: float) -> None:
        if self.rank == rank:
            time.sleep(seconds)

    # Checked operations.

    def check(self, found: Any, expected: float) -> None:
        value = float(self.jnp.ravel(found)[0])
        assert value == expected, f"rank {self.rank}: {value} instead of {expected}"

    def total(self, comm: Any = None) -> None:
        """One collective, of one of several kinds, with its result checked."""
        kind, n = self.random.randrange(5), self.random.choice([1, 100, 40_000])
        comm = comm or self.comm
        size, jnp, pc = comm.size, self.jnp, self.pc
        x = jnp.full((size, n), float(comm.rank))
        if kind == 0:
            self.check(pc.allreduce(x, comm=comm), size * (size - 1) / 2)
        elif kind == 1:
            self.check(pc.alltoall(x, comm=comm)[-1], size - 1)
        elif kind == 2:
            self.check(pc.allgather(x[0], comm=comm)[-1], size - 1)
        elif kind == 3:
            self.check(pc.bcast(x, size - 1, comm=comm), size - 1)
        else:
            pc.barrier(comm=comm)

    def slow(self, comm: Any, seconds: float) -> Any:
        """A program that computes for about `seconds`, then communicates; dispatched only."""
        jax, pc = self.jax, self.pc
        if self.has_timeout:
            seconds = min(seconds, SHORT_WORK)

        @jax.jit
        def compute(n: Any, w: Any, x: Any) -> Any:
            y = jax.lax.fori_loop(0, n, lambda _, y: y @ w * 1e-3, w)
            x = pc.allreduce(x + 0 * y[0, 0], comm=comm)
            z = jax.lax.fori_loop(0, n // 4, lambda _, z: z @ w * 1e-3, w)
            return pc.allreduce(x + 0 * z[0, 0], comm=comm)

        if not self.slow_steps:
            one = jax.jit(lambda n, w: jax.lax.fori_loop(0, n, lambda _, y: y @ w * 1e-3, w))
            one(1, self.w).block_until_ready()
            times = []
            for _ in range(8):
                start = time.perf_counter()
                one(50, self.w).block_until_ready()
                times.append(time.perf_counter() - start)
            self.slow_steps = int(50 / min(times))
        return compute(int(seconds * self.slow_steps), self.w, self.jnp.ones(3))

    def stop(self, ranks: list[int], after: float, seconds: float) -> None:
        """Let a process of its own stop some ranks for a while."""
        pids = [self.pids[rank] for rank in ranks]
        stop_and_go = f"sleep {after}; kill -STOP {{0}}; sleep {seconds}; kill -CONT {{0}}"
        if self.rank == ranks[0]:
            command = ["sh", "-c", stop_and_go.format(" ".join(map(str, pids))) + " 2>/dev/null"]
            self.helpers.append(subprocess.Popen(command, start_new_session=True))

    # Steps.

    def step_collectives(self) -> None:
        for _ in range(5):
            self.total()

    def step_late(self) -> None:
        self.sleep(self.somebody(), self.wait())
        self.total()

    def step_stopped(self) -> None:
        who, seconds = self.somebody(), self.wait()
        self.stop([who], 0.2, seconds)
        self.sleep(who, 0.5)
        self.step_collectives()

    def step_suspended(self) -> None:
        who = self.somebody()
        self.stop([*range(self.size)], 0.3, SUSPENDED if self.has_timeout else self.wait())
        self.sleep(who, 0.8)
        self.total()

    def step_new_communicator(self) -> None:
        key = self.random.choice([1, -1])
        comm = self.comm.Split(0, key=key * self.rank)
        who, seconds = self.somebody(), self.wait()
        self.sleep(who, seconds)
        self.total(comm)
        self.total(comm)

    def step_some_ranks(self) -> None:
        """A communicator of some of the ranks, which the others do not wait for."""
        colors = [self.random.randrange(2) for _ in range(self.size)]
        kinds = [self.random.randrange(2**30) for _ in range(2)]
        who, seconds = self.somebody(), self.wait()
        comm = self.comm.Split(colors[self.rank])
        self.sleep(who, seconds)
        inner, self.random = self.random, random.Random(kinds[colors[self.rank]])
        self.total(comm)
        self.random = inner

    def step_messages(self) -> None:
        """A ring, in which somebody is late; a message whose receiver is late."""
        right, left = (self.rank + 1) % self.size, (self.rank - 1) % self.size
        n = self.random.choice([1, 1000, 300_000])
        who, other, seconds = self.somebody(), self.somebody(), self.wait()
        self.sleep(who, seconds)
        x = self.jnp.full(n, float(self.rank))
        self.check(self.pc.sendrecv(x, x, source=left, dest=right), left)
        if who == other:
            return
        if self.rank == who:
            self.pc.send(x, other, tag=3)
        elif self.rank == other:
            self.sleep(other, seconds)
            self.check(self.pc.recv(x, who, tag=3), who)

    def step_start_and_wait(self) -> None:
        who, seconds = self.somebody(), self.wait()
        x = self.jnp.full((self.size, 1000), float(self.rank))
        pending = self.pc.alltoall_start(x)
        self.sleep(who, seconds)
        self.check(self.pc.wait(pending)[-1], self.size - 1)

    def step_transform(self) -> None:
        grid = self.pfftjax.ProcessGrid()
        plan = self.pfftjax.PencilFFT((8, 9, 10), grid, real=True)
        who, seconds = self.somebody(), self.wait()
        self.sleep(who, seconds)
        x = self.jnp.ones(plan.input.local_shape)
        there_and_back = self.jax.jit(lambda x: plan.inverse(plan.forward(x)))(x)
        assert bool(self.jnp.all(abs(there_and_back - 1) < 1e-10)), "a transform is wrong"

    def step_thread_beside(self) -> None:
        """A thread that communicates on a communicator of its own, while the main thread does."""
        own, seed = self.comm.Dup(), self.random.randrange(2**30)
        who, seconds = self.somebody(), self.wait()

        def work() -> None:
            mine = Program.__new__(Program)
            mine.__dict__ = {**self.__dict__, "random": random.Random(seed)}
            mine.sleep(who, seconds)
            for _ in range(3):
                mine.total(own)

        thread = threading.Thread(target=work)
        thread.start()
        self.step_collectives()
        thread.join()

    def step_thread_in_flight(self) -> None:
        """A thread that dispatches a program, and ends before it does."""
        own, who, seconds = self.comm.Dup(), self.somebody(), self.wait()

        def work() -> None:
            self.slow(own, seconds if self.rank == who else 0.01)

        thread = threading.Thread(target=work)
        thread.start()
        thread.join()

    def step_work_in_flight(self) -> None:
        who, seconds = self.somebody(), self.wait()
        self.kept.append(self.slow(None, seconds if self.rank == who else 0.01))

    def step_broken_logger(self) -> None:
        def log() -> None:
            read, write = os.pipe()
            os.close(read)
            os.write(write, b"a line")

        thread = threading.Thread(target=log)
        thread.start()
        thread.join()

    # Ends.

    def exit_handler(self, name: str, seconds: float) -> None:
        if self.rank == self.size - 1:
            time.sleep(seconds)
        self.check(self.pc.allreduce(1.0), self.size)
        print(f"{name} handler of rank {self.rank}\n", end="", flush=True)

    def end(self) -> None:
        """Come to the end in one of many ways."""
        has_late_handler = self.random.random() < 0.3
        if has_late_handler:
            atexit.register(self.exit_handler, "late", self.wait())
        who, seconds = self.somebody(), self.wait()
        when = self.random.choice(["at once", "late", "long before", "stopped"])
        how = self.random.choice(["falls off", "falls off", "sys.exit", "finalize", "finalizes"])
        for helper in self.helpers:
            helper.wait()
        if when == "stopped":
            self.stop([who], 0.1, seconds)
        elif when == "late":
            self.sleep(who, seconds)
        elif when == "long before" and self.rank != who:
            time.sleep(seconds)
        print(f"rank {self.rank} is done: {how}, {when}\n", end="", flush=True)
        if how == "sys.exit":
            sys.exit(0)
        # Exit handlers could not communicate after this.
        is_free = not self.early and not has_late_handler
        if is_free and (how == "finalize" or (how == "finalizes" and self.rank == who)):
            self.mpi.Finalize()

    def run(self) -> None:
        """Run some steps, and end."""
        steps = sorted(name for name in dir(self) if name.startswith("step_"))
        for _ in range(self.random.randrange(3, 8)):
            step = self.random.choice(steps)
            print(f"{step}\n" if self.rank == 0 else "", end="", flush=True)
            getattr(self, step)()
        self.end()


# ---- Jobs ------------------------------------------------------------------------------------


def environment(seed: int) -> dict[str, str]:
    """What is set for the job of a seed."""
    draw = random.Random(f"environment {seed}")
    chosen = {"JAX_DISABLE_MOST_OPTIMIZATIONS": "1", "NPROC": THREADS}
    if draw.random() < 0.25:
        chosen["PFFTJAX_TIMEOUT"] = str(TIMEOUT)
    if draw.random() < 0.15:
        chosen["PFFTJAX_CHECK"] = "1"
    if draw.random() < 0.2:
        chosen["PFFTJAX_SHARED_MEMORY"] = "0"
    return chosen


def verdict(seed: int, ranks: int) -> tuple[str, str]:
    """How the job of a seed went ("right", "false kill", "hang" or "error"), and its output."""
    script = (
        f"import faulthandler; faulthandler.dump_traceback_later({LONG_JOB}); "
        f"from tools.soak import Program; Program({seed}).run()"
    )
    chosen = environment(seed)
    try:
        ended = job.run(
            script, ranks=ranks, limit=LONGEST_JOB, preamble="", ends_as_ever=True, **chosen
        )
    except AssertionError as error:
        return "hang", str(error)
    output = ended.output
    is_ended = "pfftjax: ending the job" in output
    if is_ended and "AssertionError" not in output and " failed with " not in output:
        return "false kill", output
    handlers = [output.count(f"{name} handler of rank") for name in ("early", "late")]
    is_right = (
        ended.status == 0
        and len(re.findall(r"rank \d+ is done", output)) == ranks
        and all(count in (0, ranks) for count in handlers)
        and "AssertionError" not in output
        and not is_ended
    )
    return "right" if is_right else "error", output


def main() -> int:
    """Run jobs for as long as the arguments say; the exit status."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--minutes", type=float, default=60.0)
    parser.add_argument("--ranks", type=int, default=4)
    parser.add_argument("--jobs", type=int, default=10**9, help="at most so many jobs")
    parser.add_argument("--seed", type=int, default=None, help="of the first job")
    arguments = parser.parse_args()
    first = arguments.seed
    if first is None:
        first = random.SystemRandom().randrange(10**6)
    start = time.monotonic()
    counts: collections.Counter[str] = collections.Counter()
    steps: collections.Counter[str] = collections.Counter()
    for seed in range(first, first + arguments.jobs):
        if time.monotonic() - start > 60 * arguments.minutes:
            break
        how, output = verdict(seed, arguments.ranks)
        counts[how] += 1
        steps.update(re.findall(r"^step_(\w+)", output, re.MULTILINE))
        if how != "right":
            print(f"{how}: --seed {seed} --ranks {arguments.ranks}\n{output}", flush=True)
        if counts.total() % 20 == 0:
            print(f"{counts.total()} jobs, {dict(counts)}", flush=True)
    minutes = (time.monotonic() - start) / 60
    drawn = ", ".join(f"{count} {name}" for name, count in sorted(steps.items()))
    print(f"steps: {drawn}")
    print(
        f"soak of {counts.total()} jobs ({steps.total()} steps) on {arguments.ranks} ranks of "
        f"{launcher.family()}, seeds from {first}, in {minutes:.1f} minutes: "
        f"{counts['false kill']} false kills, {counts['hang']} hangs, {counts['error']} errors"
    )
    return int(counts["right"] != counts.total() or not counts)


if __name__ == "__main__":
    sys.exit(main())

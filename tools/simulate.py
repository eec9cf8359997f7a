"""Runs the C++ core on a simulated MPI, one schedule for each seed: `make simulate`.

    python -m tools.simulate --seeds 20000 [--first S] [--jobs 2] [--scenario X]
    python -m tools.simulate --faults [WORD ...]
    python -m tools.simulate --clock MACHINE ...    what exchanges cost (tools/simulated_clock.py)

A schedule is a job of simulated ranks (tests/cpp/simulated/): the seed decides what they do, who
runs when, which message arrives first and what goes wrong. What fails prints its seed, and fails
again with `--first SEED --seeds 1`, also with `--sanitize address,undefined` or in a debugger.
"""

import argparse
import concurrent.futures
import dataclasses
import fcntl
import hashlib
import os
import shutil
import subprocess
import sys

from tools.launcher import ROOT

SIMULATED = ROOT / "tests" / "cpp" / "simulated"
# The core without GPUs and transforms, and without the parts for Python and for an MPI library.
CORE = (
    "base/memory_in_use base/pages collectives/collectives collectives/messages "
    "collectives/node_exchange collectives/rows collectives/same collectives/scan "
    "collectives/split pencils/box pencils/pencils pencils/redistribute pencils/stream "
    "pm/owners pm/route runtime/abort runtime/agreement runtime/call runtime/background "
    "runtime/call_sites runtime/communicator runtime/crossing runtime/deadlock "
    "runtime/departure runtime/gathering runtime/inquiry runtime/node runtime/profile "
    "runtime/shared_memory runtime/terminate runtime/watch runtime/window"
).split()
# System calls that the simulation replaces.
WRAPPED = (
    "memfd_create ftruncate posix_fallocate fallocate open close mmap munmap stat fstat "
    "sched_getaffinity"
).split()
# A process takes no more seeds than this: what jobs that are ended leave behind goes with it.
SEEDS_A_PROCESS = 2000


@dataclasses.dataclass
class Outcome:
    """What became of a range of seeds."""

    done: int
    failures: list  # texts, each beginning with its seed
    summary: str


def options(sanitize, has_sizes=False):
    """The compiler's, for a build of which failures are to be understood. `has_sizes`: sizes that
    decide between two ways are those of the core, not small ones (process::Size).
    """
    found = ["-std=c++17", "-g1", "-O2", "-Wall", "-Wextra", "-DPFFTJAX_SIMULATED"]
    found += ["-DPFFTJAX_SIMULATED_SIZES"] if has_sizes else []
    if sanitize:
        found += [f"-fsanitize={sanitize}", "-fno-omit-frame-pointer", "-fno-sanitize-recover=all"]
    return found


def compile_all(folder, sources, core, flags, jobs):
    """Objects of these sources; raises CalledProcessError where one cannot be compiled."""
    launcher = ["ccache"] if shutil.which("ccache") else []
    include = ["-I", SIMULATED / "ffi", "-I", core, "-I", SIMULATED.parent]

    def compile_one(source):
        target = folder / ("_".join(source.parts[-2:]) + ".o")
        subprocess.run(
            [*launcher, "g++", *flags, *include, "-c", source, "-o", target], check=True
        )
        return target

    with concurrent.futures.ThreadPoolExecutor(jobs) as pool:
        return list(pool.map(compile_one, sources))


def digest(core, flags):
    """A hash of everything that a build is made of."""
    found = hashlib.sha256(repr(flags).encode())
    for folder in (core, SIMULATED):
        for path in sorted(folder.rglob("*")):
            if path.suffix in (".cc", ".h"):
                found.update(str(path.relative_to(folder)).encode() + path.read_bytes())
    return found.hexdigest()


def build(sanitize=None, core=ROOT / "cpp", folder=None, jobs=2, has_sizes=False):
    """The program, compiled where what it is made of has changed."""
    folder = folder or ROOT / "build" / ("simulated" + (f"-{sanitize}" if sanitize else ""))
    folder.mkdir(parents=True, exist_ok=True)
    flags = options(sanitize, has_sizes)
    program, made_of = folder / "simulated", folder / "made_of"
    now = digest(core, flags)
    with open(folder / "lock", "w") as lock:  # several processes of pytest may want it at once
        fcntl.flock(lock, fcntl.LOCK_EX)
        if program.exists() and made_of.exists() and made_of.read_text() == now:
            return program
        sources = [core / f"{name}.cc" for name in CORE] + sorted(SIMULATED.glob("*.cc"))
        objects = compile_all(folder, sources, core, flags, jobs)
        for stale in set(folder.glob("*.o")) - set(objects):  # of files that have moved since
            stale.unlink()
        link(program, objects, flags)
        made_of.write_text(now)
    return program


def link(program, objects, flags):
    """The program of these objects."""
    wraps = [f"-Wl,--wrap={name}" for name in WRAPPED]
    libraries = ["-rdynamic", "-ldl", "-pthread", "-o", program]
    subprocess.run(["g++", *flags, *objects, *wraps, *libraries], check=True)
    return program


def run(program, first, seeds, *arguments, seconds=None):
    """One process, and what it says of its seeds. A crash, and no end, are failures as well."""
    command = [program, "--first", str(first), "--seeds", str(seeds), *arguments]
    # Memory that a job leaves behind when it is ended is no leak.
    environment = {**os.environ, "ASAN_OPTIONS": "detect_leaks=0:detect_stack_use_after_return=0"}
    try:
        ended = subprocess.run(
            command, capture_output=True, text=True, check=False, env=environment, timeout=seconds
        )
    except subprocess.TimeoutExpired:
        return Outcome(0, [f"seeds {first} to {first + seeds - 1}: no end in {seconds} s"], "")
    parts = ended.stdout.split("FAILED ")
    failures = parts[1:]
    # 1 is for failures that were named; a sanitizer that ends the process says 1 as well.
    if ended.returncode not in (0, 1) or (ended.returncode == 1 and not failures):
        begun = ended.stdout.rstrip().split("\n")[-1]
        failures.append(
            f"seeds {first} to {first + seeds - 1}: ended with {ended.returncode} {begun}\n"
            + ended.stderr[-4000:]
        )
    summary = ended.stdout.rstrip().split("\n")[-1] if ended.stdout else ""
    done = int(summary.split()[0]) if summary.endswith(tuple("0123456789abcdef")) else 0
    return Outcome(done, failures, summary)


def run_all(program, first, seeds, jobs, *arguments, most_failures=5, report=None):
    """All seeds, in processes of some; stops after so many failures.

    `report` is called with the number of schedules done and the failures of each process that
    has ended.
    """
    starts = range(first, first + seeds, SEEDS_A_PROCESS)
    done, failures = 0, []
    with concurrent.futures.ThreadPoolExecutor(jobs) as pool:
        waiting = [
            pool.submit(run, program, s, min(SEEDS_A_PROCESS, first + seeds - s), *arguments)
            for s in starts
        ]
        for future in concurrent.futures.as_completed(waiting):
            outcome = future.result()
            done += outcome.done
            failures += outcome.failures
            if report is not None:
                report(done, outcome.failures)
            if len(failures) >= most_failures:
                for other in waiting:
                    other.cancel()
                break
    return done, failures


class Report:
    """Prints failures as they come, and every so many schedules how many were done."""

    def __init__(self, every=100_000):
        self.every, self.next = every, every

    def __call__(self, done, failures):
        for failure in failures:
            print("FAILED", failure, flush=True)
        if done >= self.next:
            print(f"{done} schedules so far", flush=True)
            self.next += self.every


def main():
    if any(word.startswith("--clock") for word in sys.argv[1:]):
        # There and not above: it imports this module.
        from tools import simulated_clock

        return simulated_clock.main()
    parser = argparse.ArgumentParser(description="The C++ core on a simulated MPI.")
    parser.add_argument("--seeds", type=int, default=20000, help="how many schedules")
    parser.add_argument("--first", type=int, default=0, help="the first seed")
    parser.add_argument("--jobs", type=int, default=2, help="processes at the same time")
    parser.add_argument("--scenario", default="", help="only this one")
    parser.add_argument("--sanitize", help="address,undefined")
    parser.add_argument(
        "--faults", nargs="*", metavar="WORD", help="plant faults (of these words) and find each"
    )
    arguments = parser.parse_args()
    if arguments.faults is not None:
        # There and not above: it imports this module.
        from tools import simulated_faults

        is_right = simulated_faults.table(arguments.faults, arguments.seeds, arguments.jobs)
        return 0 if is_right else 1
    program = build(arguments.sanitize, jobs=arguments.jobs)
    only = ["--scenario", arguments.scenario] if arguments.scenario else []
    if arguments.seeds == 1:
        only.append("--verbose")
    done, failures = run_all(
        program, arguments.first, arguments.seeds, arguments.jobs, *only, report=Report()
    )
    print(f"{done} schedules, {len(failures)} failures")
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())

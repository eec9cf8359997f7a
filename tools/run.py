"""Runs all tests: on 1, 2, 3 and 4 ranks, in small chunks, and those that start jobs themselves.

    python -m tools.run [--ranks 1 2 3 4] [--only ranks chunks jobs] [pytest arguments]

Tests say by markers on how many ranks they run, and whether in small chunks too, where every other
case runs (tests/conftest.py). On one rank annotations are checked, which leaves out the tests that
hand over wrong types. More ranks wait for each other, and run two numbers at a time. A test that
ran on no number of ranks fails the run. Tests have double precision; the examples of docstrings
are run as users run them, without.
"""

import argparse
import collections
import concurrent.futures
import dataclasses
import json
import pathlib
import subprocess
import sys
import tempfile
import threading
import time

from tools import launcher

SKIPPED = "skipped"
# Examples in docstrings: all on one rank, and on two what they are to show between ranks.
EXAMPLES = {
    1: ["pfftjax"],
    2: [f"pfftjax/{folder}" for folder in ("_runtime", "collectives", "pencils", "autodiff")],
}


@dataclasses.dataclass(frozen=True)
class Part:
    """A number of ranks, or another way to run tests."""

    title: str
    command: list[str]
    settings: dict[str, str]


_PRINTING = threading.Lock()


def run(part: Part, folder: pathlib.Path, *, is_alone: bool = True) -> bool:
    """Run a part; true if it succeeded. Outcomes are logged in `folder`.

    What it prints is seen at once; of one that is not alone, as a whole when it has ended.
    """
    with _PRINTING:
        print(f"== {part.title}{'' if is_alone else ' begin'}", flush=True)
    environment = launcher.environment(
        PFFTJAX_TEST_LOG=str(folder / f"{part.title}.jsonl"), **part.settings
    )
    start = time.monotonic()
    ended = subprocess.run(
        part.command,
        cwd=launcher.ROOT,
        env=environment,
        check=False,
        stdout=None if is_alone else subprocess.PIPE,
        stderr=None if is_alone else subprocess.STDOUT,
        text=True,
        errors="replace",
    )
    verdict = "ok" if ended.returncode == 0 else f"FAILED with status {ended.returncode}"
    with _PRINTING:
        print(
            f"{ended.stdout or ''}== {part.title}: {verdict}, {time.monotonic() - start:.0f} s",
            flush=True,
        )
    return ended.returncode == 0


def run_in_pairs(parts: list[Part], folder: pathlib.Path) -> bool:
    """Run parts, two at a time: ranks wait for each other, and for the one that compiles. True if
    all succeeded.
    """
    is_alone = len(parts) == 1
    with concurrent.futures.ThreadPoolExecutor(2) as pool:
        return all(list(pool.map(lambda part: run(part, folder, is_alone=is_alone), parts)))


def cheaper() -> dict[str, str]:
    """Settings by which XLA compiles in half the time: one piece of code a program, and its older
    code generator, where there is one.
    """
    found = ""
    # JAX 0.12 has no older one, and ends a process that asks for it.
    for flag in ("xla_cpu_parallel_codegen_split_count=1", "xla_cpu_use_fusion_emitters=false"):
        asked = subprocess.run(
            [sys.executable, "-c", "import jax; jax.devices()"],
            env=launcher.environment(XLA_FLAGS=f"{found} --{flag}"),
            capture_output=True,
            check=False,
        )
        if asked.returncode == 0:
            found += f" --{flag}"
    return {"XLA_FLAGS": found}


def never_ran(folder: pathlib.Path) -> list[str]:
    """The tests that were skipped wherever they were collected."""
    outcomes = collections.defaultdict(set)
    for path in folder.glob("*.jsonl"):
        for line in path.read_text().splitlines():
            entry = json.loads(line)
            outcomes[entry["test"]].add(entry["outcome"])
    return sorted(test for test, seen in outcomes.items() if seen == {SKIPPED})


def main() -> int:
    """Run what the arguments say; the exit status."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--ranks", type=int, nargs="+", default=[1, 2, 3, 4])
    parts = ["ranks", "chunks", "jobs"]
    parser.add_argument("--only", choices=parts, nargs="+", default=parts)
    arguments, rest = parser.parse_known_args()

    pytest = ["-m", "pytest", "-q", "--durations=20", "--durations-min=3"]
    # tests/gpu is for machines that have one.
    under_mpi = [*pytest, "--with-mpi", "tests", "--ignore=tests/jobs", "--ignore=tests/gpu"]
    ok = True
    with tempfile.TemporaryDirectory() as name:
        logs = pathlib.Path(name)
        # Compiling is most of the work: all of XLA's passes run only where order is at stake, and
        # the newer code generator there and with the newest JAX (.ci/run).
        fast = {"JAX_DISABLE_MOST_OPTIMIZATIONS": "1", **cheaper()}
        kept = {**fast, **launcher.kept_programs(logs / "programs")}
        paired = []
        if "ranks" in arguments.only:
            for n in arguments.ranks:
                share = ["--share-ranks"] if {2, 3, 4} <= set(arguments.ranks) else []
                what = [*under_mpi, *share, *rest]
                title = f"on {n} rank{'s' if n > 1 else ''}"
                # Checked annotations cost time, and are the same on all ranks.
                settings = {**kept, "PFFTJAX_TEST_TYPES": "1"} if n == 1 else kept
                if n in EXAMPLES and not rest:
                    examples = launcher.command(
                        n,
                        *(*pytest, "--with-mpi", "-p", "tests.conftest", "--doctest-modules"),
                        *EXAMPLES[n],
                    )
                    single = {**settings, "JAX_ENABLE_X64": "0"}
                    paired.append(Part(f"examples {title}, in single precision", examples, single))
                if n > 1:
                    paired.append(Part(f"tests {title}", launcher.command(n, *what), settings))
                    continue
                # One rank needs no launcher, and leaves a core for another.
                alone = [sys.executable, *what, "-n", "2"]
                ok &= run(Part(f"tests {title}", alone, settings), logs)
        if "chunks" in arguments.only:
            only = ["-m", "messages and not memory", "--every-other-case"]
            paired.append(
                Part(
                    "by messages, in chunks of 64 bytes, on 2 ranks",
                    launcher.command(2, *under_mpi, *only, *rest),
                    {"PFFTJAX_MAX_CHUNK_BYTES": "64", "PFFTJAX_SHARED_MEMORY": "0", **kept},
                )
            )
        if "ranks" in arguments.only and "-k" not in rest:
            paired.append(
                Part(
                    "ordering on 2 ranks, fully optimised",
                    launcher.command(2, *under_mpi, "-m", "fully_optimised", *rest),
                    {},
                )
            )
        ok &= run_in_pairs(paired, logs)
        if "jobs" in arguments.only:
            jobs = [sys.executable, *pytest, "-n", "3", "tests/jobs", *rest]
            known = {"PFFTJAX_TEST_PROGRAMS": kept["JAX_COMPILATION_CACHE_DIR"]}
            ok &= run(Part("tests that start jobs", jobs, {**fast, **known}), logs)
        everything = arguments.only == parts and len(arguments.ranks) == 4 and not rest
        idle = never_ran(logs) if everything else []
        if idle:
            ok = False
            print(f"== {len(idle)} tests ran at no number of ranks:", *idle, sep="\n  ")
    print("== all tests passed" if ok else "== FAILED", flush=True)
    return 0 if ok else 1


if __name__ == "__main__":
    sys.exit(main())

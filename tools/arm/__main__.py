"""Tries pfftjax on Arm, on a machine that is none: `make arm`; Debian, as root.

    python -m tools.arm                                all that is tried
    python -m tools.arm --only bits lanes              parts of it
    python -m tools.arm -- python3 -m pfftjax info     anything else there

Installs Debian's packages where they are missing, and keeps what it makes in .venv/arm. qemu
emulates instructions; the order in which threads see each other's stores stays that of x86, which
promises more than Arm does.
"""

import argparse
import difflib
import os
import subprocess
import sys
import time
from collections.abc import Callable

from tools import launcher
from tools.arm import build, machine, wheel

SEEDS = 400
# Transforms of lines by every instruction set: tests/jobs/test_simd.py has these as well.
LANES = ("tests/fft/test_local.py", "-k", "test_lengths or test_two_axes or bits")
TESTS = (
    "tests/fft/test_values.py",
    "tests/pencils/test_transpose.py",
    "tests/pencils/test_halo.py",
    "tests/collectives/test_values.py",
    "tests/collectives/test_alltoallv.py",
    "tests/collectives/test_sendrecv.py",
    "tests/collectives/test_adjoint.py",
    "tests/pm/test_painting.py",
    "tests/pm/test_fours.py",
    "tests/pm/test_exchange.py",
    "tests/runtime/test_node.py",
)
PYTEST = "-m pytest -q -p no:cacheprovider -p tools.arm.patient --timeout 3000".split()


class Failed(Exception):
    """Something is not as on other machines; in words."""


def in_cpp() -> None:
    """The tests that are programs: threads for ranks, a GPU's kernels, the simulated MPI."""
    settings = machine.environment("openmpi", 0)
    for name, (says, *words) in build.programs().items():
        ended = machine.run(*words, settings=settings, capture=True)
        if ended.returncode != 0 or says not in ended.stdout:
            raise Failed(f"{name}: status {ended.returncode}, {ended.stderr[-3000:]}")
        print(f"   {name}: {says}", flush=True)
    words = ["programs/simulated", "--first", "0", "--seeds", str(SEEDS)]
    there = machine.run(*words, settings=settings, capture=True)
    if there.returncode != 0:
        raise Failed(f"the simulated MPI: {there.stdout[-3000:]}{there.stderr[-3000:]}")
    print(f"   the simulated MPI: {there.stdout.splitlines()[-1]}", flush=True)


def lanes() -> None:
    """Transforms of lines by each instruction set, on a processor that has it."""
    for simd, sve in (("baseline", 0), ("neon", 0), ("sve256", 256), ("sve512", 512)):
        settings = machine.environment("openmpi", sve)
        said = machine.run(
            *("python3", "-c", "import pfftjax; print(pfftjax.info().simd)"),
            settings=settings,
            capture=True,
        ).stdout.strip()
        widest = f"sve{sve}" if sve else "neon"
        if said != widest:
            raise Failed(f"a processor with SVE of {sve} bits takes {said!r}, not {widest}")
        _there(["python3", *PYTEST, *LANES], sve, PFFTJAX_SIMD=simd)


def bits() -> None:
    """The bits of x86, by code that leaves no choice of rounding to the compiler."""
    words = ["-m", "tools.arm.bits"]
    expected = subprocess.run(
        launcher.command(2, *words),
        env=launcher.environment(PFFTJAX_SIMD="baseline"),
        cwd=launcher.ROOT,
        capture_output=True,
        text=True,
        check=True,
    ).stdout.splitlines()
    settings = machine.environment("openmpi", 0, PFFTJAX_SIMD="baseline")
    ended = machine.run(*machine.mpirun("openmpi", 2, *words), settings=settings, capture=True)
    if ended.returncode != 0:
        raise Failed(ended.stderr[-3000:])
    found = ended.stdout.splitlines()
    differing = [line for line in difflib.ndiff(expected, found) if line[0] in "+-"]
    if differing or not expected:
        raise Failed("bits are not those of x86:\n" + "\n".join(differing[:40]))
    print(f"   {len(found)} arrays have the bits of x86", flush=True)


def tests() -> None:
    """Tests of transforms, collectives and particles, on 1 and 2 ranks."""
    for mpi, ranks in (("openmpi", 1), ("openmpi", 2), ("mpich", 2)):
        chosen = TESTS if mpi == "openmpi" else ("tests/collectives/test_values.py",)
        print(f"== {mpi}, {ranks} rank{'s' if ranks > 1 else ''}", flush=True)
        words = machine.mpirun(mpi, ranks, *PYTEST, "--with-mpi", "--share-ranks", *chosen)
        _there(words, 0, mpi=mpi, JAX_DISABLE_MOST_OPTIMIZATIONS="1")


def wheels() -> None:
    """Wheels, and the one for the system's Python as an installation, on 2 ranks of each MPI."""
    try:
        made = wheel.make()
        # The one for the stable ABI serves every Python but 3.11.
        kind = "cp311" if machine.python() == "python3.11" else "abi3"
        wheel.install(next(path for path in made if f"-{kind}-" in path.name))
        for mpi in machine.MPIS:
            print(f"   {wheel.tried(mpi)}", flush=True)
    except (RuntimeError, subprocess.CalledProcessError) as error:
        raise Failed(str(error)) from None


def _there(words: list[str], sve: int, mpi: str = "openmpi", **extra: str) -> None:
    ended = machine.run(*words, settings=machine.environment(mpi, sve, **extra))
    if ended.returncode != 0:
        raise Failed(f"{' '.join(words)}: status {ended.returncode}")


PARTS: dict[str, Callable[[], None]] = {
    "cpp": in_cpp,
    "lanes": lanes,
    "bits": bits,
    "tests": tests,
    "wheels": wheels,
}


def main() -> int:
    """Run what the arguments say; the exit status."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--only", nargs="+", choices=PARTS, default=list(PARTS))
    parser.add_argument("--inside", action="store_true", help=argparse.SUPPRESS)
    parser.add_argument("program", nargs="*", help="after --: what to run there")
    arguments = parser.parse_args()
    if not arguments.inside:
        # What is mounted goes with the name space.
        here = [sys.executable, "-m", "tools.arm", "--inside", *sys.argv[1:]]
        return subprocess.run(
            ["unshare", "--mount", "--propagation", "private", *here],
            cwd=launcher.ROOT,
            env={**os.environ, "JAX_PLATFORMS": "cpu"},
            check=False,
        ).returncode
    machine.prepare()
    machine.mount()
    build.copy()
    build.compile_modules()
    if arguments.program:
        settings = machine.environment("openmpi", 0)
        return machine.run(*arguments.program, settings=settings).returncode
    for part in arguments.only:
        print(f"== {part}", flush=True)
        began = time.monotonic()
        try:
            PARTS[part]()
        except Failed as failure:
            print(f"== FAILED: {failure}")
            return 1
        print(f"== {part}: right, {time.monotonic() - began:.0f} s", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())

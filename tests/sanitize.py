"""Runs the C++ under AddressSanitizer and UBSan, and then under ThreadSanitizer, driven by the
tests: `make sanitize`.

Installs the instrumented build in the environment, and the ordinary one again afterwards.
"""

import argparse
import dataclasses
import shutil
import subprocess
import sys

from tests import launcher

COLLECTIVES = "values adjoint alltoallv sendrecv comm fuzz while_loop messages rooted allgatherv"


@dataclasses.dataclass(frozen=True)
class Sanitizer:
    """A kind of instrumented build, and how tests run on it."""

    build: str
    libraries: tuple[str, ...]
    environment: dict[str, str]
    # (ranks, bytes of a chunk)
    runs: tuple[tuple[int, int], ...]
    tests: tuple[str, ...]
    # ThreadSanitizer wants its addresses where the kernel puts them without randomisation.
    prefix: tuple[str, ...] = ()


MEMORY = Sanitizer(
    build="address,undefined",
    libraries=("libasan.so", "libubsan.so"),
    environment={
        # Python and XLA leak on purpose; MPI's own code is not instrumented.
        "ASAN_OPTIONS": "detect_leaks=0:abort_on_error=1:verify_asan_link_order=0",
        "UBSAN_OPTIONS": "halt_on_error=1:print_stacktrace=1",
    },
    runs=((1, 1 << 30), (2, 1 << 30), (3, 64)),
    tests=(
        *(f"tests/collectives/test_{name}.py" for name in [*COLLECTIVES.split(), "split"]),
        "tests/pencils",
        "tests/fft",
        "tests/pm/test_painting.py",
        "tests/pm/test_exchange.py",
    ),
)
THREADS = Sanitizer(
    build="thread",
    libraries=("libtsan.so",),
    environment={
        "TSAN_OPTIONS": "halt_on_error=1:exitcode=66:ignore_noninstrumented_modules=1:"
        f"suppressions={launcher.ROOT / 'tests' / 'thread_sanitizer.txt'}",
    },
    runs=((2, 1 << 30), (3, 64)),
    # What has threads of its own, or is called from several of XLA's.
    tests=tuple(
        f"tests/collectives/test_{name}.py"
        for name in "split ordering values sendrecv messages comm".split()
    ),
    prefix=("setarch", "-R"),
)


def library(name):
    """The path of a runtime library of the compiler."""
    return subprocess.run(
        ["g++", f"-print-file-name={name}"], capture_output=True, text=True, check=True
    ).stdout.strip()


def run(sanitizer, tests):
    """Build and run; whether nothing was found."""
    launcher.rebuild(f"PFFTJAX_SANITIZE={sanitizer.build}")
    preload = ":".join(library(name) for name in sanitizer.libraries)
    ok = True
    for ranks, chunk in sanitizer.runs:
        small = [] if chunk > 64 else ["-m", "not memory"]
        print(f"== {sanitizer.build}, {ranks} ranks, chunks of {chunk} bytes", flush=True)
        command = launcher.command(ranks, "-m", "pytest", "--with-mpi", "-q", *small, *tests)
        # Only Python itself is instrumented by preloading, not the launcher.
        at = command.index(sys.executable)
        preloading = [*sanitizer.prefix, shutil.which("env"), f"LD_PRELOAD={preload}"]
        command[at:at] = preloading
        ok &= (
            subprocess.run(
                command,
                cwd=launcher.ROOT,
                env=launcher.environment(
                    **sanitizer.environment, PFFTJAX_MAX_CHUNK_BYTES=str(chunk)
                ),
                check=False,
            ).returncode
            == 0
        )
    return ok


def main():
    """The exit status."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--only", choices=["memory", "threads"])
    parser.add_argument("tests", nargs="*")
    arguments = parser.parse_args()
    ok = True
    try:
        for name, sanitizer in (("memory", MEMORY), ("threads", THREADS)):
            if arguments.only in (None, name):
                ok &= run(sanitizer, arguments.tests or sanitizer.tests)
    finally:
        launcher.rebuild("PFFTJAX_SANITIZE=")
    print("== sanitizers found nothing" if ok else "== FAILED")
    return 0 if ok else 1


if __name__ == "__main__":
    sys.exit(main())

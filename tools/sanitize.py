"""Runs the C++ under AddressSanitizer and UBSan, driven by the tests: `make sanitize`.

Installs the instrumented build in the environment, and the ordinary one again afterwards. What
shares memory between ranks and threads runs under ThreadSanitizer in tests/jobs/test_threads.py.
"""

import subprocess
import sys

from tools import launcher


def library(name):
    """The path of a runtime library of the compiler."""
    return subprocess.run(
        ["g++", f"-print-file-name={name}"], capture_output=True, text=True, check=True
    ).stdout.strip()


def environment(**extra):
    """That of a job under the sanitizers."""
    return launcher.environment(
        LD_PRELOAD=f"{library('libasan.so')}:{library('libubsan.so')}",
        # Python and XLA leak on purpose; MPI's own code is not instrumented.
        ASAN_OPTIONS="detect_leaks=0:abort_on_error=1:verify_asan_link_order=0",
        UBSAN_OPTIONS="halt_on_error=1:print_stacktrace=1",
        **extra,
    )


def main():
    collectives = (
        "values adjoint alltoallv sendrecv fuzz messages rooted allgatherv split reductions"
    ).split()
    tests = sys.argv[1:] or [
        *(f"tests/collectives/test_{name}.py" for name in collectives),
        *(f"tests/runtime/test_{name}.py" for name in ("comm", "node", "while_loop")),
        "tests/pencils",
        "tests/fft",
        "tests/spectral/test_derivatives.py",
        "tests/pm/test_painting.py",
        "tests/pm/test_exchange.py",
        "tests/observables/test_light_search.py",
    ]
    status = 0
    try:
        launcher.rebuild("PFFTJAX_SANITIZE=address,undefined")
        for ranks, chunk in ((1, str(1 << 30)), (2, str(1 << 30)), (3, "64")):
            small = [] if len(chunk) > 3 else ["-m", "not memory"]
            print(f"== sanitized, {ranks} ranks, chunks of {chunk} bytes", flush=True)
            status |= subprocess.run(
                launcher.command(ranks, "-m", "pytest", "--with-mpi", "-q", *small, *tests),
                cwd=launcher.ROOT,
                env=environment(PFFTJAX_MAX_CHUNK_BYTES=chunk),
                check=False,
            ).returncode
        if not sys.argv[1:]:
            # These tests move data between GPUs, on a fake device, and start jobs of their own.
            print("== sanitized, between GPUs", flush=True)
            jobs = ["tests/jobs/test_gpu_transports.py", "tests/jobs/test_fake_device.py"]
            status |= subprocess.run(
                [sys.executable, "-m", "pytest", "-q", *jobs],
                cwd=launcher.ROOT,
                env=environment(),
                check=False,
            ).returncode
    finally:
        launcher.rebuild()
    print("== sanitizers found nothing" if status == 0 else "== FAILED")
    return status


if __name__ == "__main__":
    sys.exit(main())

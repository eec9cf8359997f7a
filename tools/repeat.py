"""Repeats the tests of what once hung or ended right jobs, on a busy machine.

    python -m tools.repeat [--times 20] [--ranks 2 3 4] [--busy 2] [pytest arguments]

Runs the tests that carry the marker `reproducer`, which take their number of ranks from
PFFTJAX_TEST_RANKS. A single failure fails the run. With the two MPIs:

    make repeat MPI=openmpi
    make repeat MPI=mpich
"""

import argparse
import contextlib
import re
import subprocess
import sys
import time
from collections.abc import Iterator

from tools import launcher

SPIN = "while True: pass"


@contextlib.contextmanager
def busy(processes: int) -> Iterator[None]:
    """So many processes that compute all the time."""
    started = [subprocess.Popen([sys.executable, "-c", SPIN]) for _ in range(processes)]
    try:
        yield
    finally:
        for process in started:
            process.kill()
            process.wait()


def main() -> int:
    """Run what the arguments say; the exit status."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--times", type=int, default=20)
    parser.add_argument("--ranks", type=int, nargs="+", default=[2, 3, 4])
    parser.add_argument("--busy", type=int, default=2)
    arguments, rest = parser.parse_known_args()

    command = [sys.executable, "-m", "pytest", "-q", "-m", "reproducer", "tests/jobs", "-n", "2"]
    passed = failed = 0
    with busy(arguments.busy):
        for turn in range(arguments.times):
            for ranks in arguments.ranks:
                start = time.monotonic()
                ended = subprocess.run(
                    [*command, *rest],
                    cwd=launcher.ROOT,
                    env=launcher.environment(PFFTJAX_TEST_RANKS=str(ranks)),
                    capture_output=True,
                    text=True,
                    check=False,
                )
                counts = {
                    outcome: int(number)
                    for number, outcome in re.findall(r"(\d+) (passed|failed|error)", ended.stdout)
                }
                passed += counts.get("passed", 0)
                failed += counts.get("failed", 0) + counts.get("error", 0)
                is_bad = ended.returncode != 0
                if is_bad:
                    failed = max(failed, 1)
                    print(ended.stdout[-20000:])
                print(
                    f"turn {turn + 1} of {arguments.times}, {ranks} ranks: "
                    f"{'FAILED' if is_bad else 'ok'} {counts}, {time.monotonic() - start:.0f} s",
                    flush=True,
                )
    print(f"{passed} passed, {failed} failed")
    return 1 if failed or not passed else 0


if __name__ == "__main__":
    sys.exit(main())

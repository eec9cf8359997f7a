"""Runs the benchmarks on 2 ranks and keeps the figures: `make bench`."""

import subprocess
import sys

from tests import launcher  # the tests know how this MPI starts ranks

ROOT = launcher.ROOT


def main() -> int:
    """Run, and write benchmarks/results/collectives-<MPI>.json; the exit status."""
    results = ROOT / "benchmarks" / "results" / f"collectives-{launcher.family()}.json"
    command = launcher.command(2, "benchmarks/collectives.py", "--json", str(results), bind=True)
    status = subprocess.run(
        command, cwd=ROOT, env=launcher.environment(JAX_ENABLE_X64="0"), check=False
    ).returncode
    print(f"figures in {results.relative_to(ROOT)}")
    return status


if __name__ == "__main__":
    sys.exit(main())

"""Steps of the shallow-water model beside mpi4jax's demo, in turn, on 2 ranks.

    python -m benchmarks.shallow_water --peers PYTHON [--pairs 5] [--steps 50]

PYTHON is that of an environment with mpi4jax (`make peers`). Both solve 3600 x 1800 cells in
float32, rows over the ranks, bound as mpirun does by itself. Each runs all steps twice and prints
the speed of the second round. Before that, what they make of the same beginning on 360 x 180 cells
is compared.
"""

import argparse
import json
import pathlib
import re
import statistics
import subprocess
import sys
import tempfile

import numpy as np

from tools import launcher

RESULTS = launcher.ROOT / "benchmarks" / "results"
MESH = (3600, 1800)
# The demo has no biharmonic friction.
OURS = ["examples/shallow_water.py", "--grid", "2x1", "--damping", "0"]
THEIRS = ["-m", "benchmarks.peers.mpi4jax_shallow_water"]


def output(python, *arguments):
    """What a run on 2 ranks prints."""
    ended = subprocess.run(
        launcher.command(2, *map(str, arguments), bind=True, python=str(python)),
        cwd=launcher.ROOT,
        env=launcher.environment(JAX_ENABLE_X64="0"),
        capture_output=True,
        text=True,
        check=False,
    )
    if ended.returncode != 0:
        raise RuntimeError(f"{arguments} failed:\n{ended.stdout}\n{ended.stderr[-4000:]}")
    return ended.stdout


def milliseconds(text):
    """The milliseconds of a step, from what a run has printed."""
    found = re.search(r"(\d+) steps in ([\d.]+) s", text)
    if found is None:
        raise RuntimeError(f"no time in what was printed:\n{text}")
    steps, seconds = found.groups()
    return 1e3 * float(seconds) / int(steps)


def agreement(peers, steps):
    """Largest differences after some steps on a small mesh, and the largest values."""
    mesh = ("--mesh", 360, 180, "--steps", steps)
    with tempfile.TemporaryDirectory() as folder:
        ours, theirs = pathlib.Path(folder, "fields.npz"), pathlib.Path(folder, "theirs.npz")
        output(sys.executable, *OURS, *mesh, "--frames", 0, "--save-fields", "--out", folder)
        output(peers, *THEIRS, *mesh, "--save", theirs)
        with np.load(ours) as a, np.load(theirs) as b:
            return {
                name: {
                    "largest": float(np.abs(a[name]).max()),
                    "largest_difference": float(np.abs(a[name] - b[name]).max()),
                }
                for name in "huv"
            }


def main():
    parser = argparse.ArgumentParser(description=str(__doc__).splitlines()[0])
    parser.add_argument("--peers", type=pathlib.Path, required=True)
    parser.add_argument("--pairs", type=int, default=5)
    parser.add_argument("--steps", type=int, default=50)
    parser.add_argument("--agreement-steps", type=int, default=1000)
    arguments = parser.parse_args()
    same = agreement(arguments.peers, arguments.agreement_steps)
    print(json.dumps(same), flush=True)

    rounds = []
    for number in range(arguments.pairs):
        ours = milliseconds(
            output(sys.executable, *OURS, "--benchmark", "--steps", arguments.steps)
        )
        # Their first step is not timed.
        theirs = milliseconds(output(arguments.peers, *THEIRS, "--steps", arguments.steps + 1))
        rounds.append({"pfftjax_ms": ours, "mpi4jax_ms": theirs, "ratio": ours / theirs})
        print(f"round {number + 1}: {ours:.1f} ms, mpi4jax {theirs:.1f} ms", flush=True)
    ratio = statistics.median(entry["ratio"] for entry in rounds)
    print(f"median ratio of times {ratio:.3f}")
    summary = {
        "ranks": 2,
        "mesh": MESH,
        "dtype": "float32",
        "steps": arguments.steps,
        "median_ratio_of_times": round(ratio, 3),
        "median_ms": {
            name: round(statistics.median(entry[f"{name}_ms"] for entry in rounds), 2)
            for name in ("pfftjax", "mpi4jax")
        },
        "agreement_on_360x180": {"steps": arguments.agreement_steps, **same},
        "rounds": [{k: round(v, 3) for k, v in entry.items()} for entry in rounds],
    }
    results = RESULTS / f"shallow-water-{launcher.family()}.json"
    results.write_text(json.dumps(summary, indent=1) + "\n")
    print(f"figures in {results.relative_to(launcher.ROOT)}")


if __name__ == "__main__":
    main()

"""Runs the benchmarks on 2 ranks and keeps the figures: `make bench`.

    python -m benchmarks.run [--only collectives|fft|pm] [--pairs 5] [--peers PYTHON] [--cases ...]

The peers of the FFT run beside it, in turn, as far as they are installed: JAX's own collectives
always; FFTW-MPI where the loader finds it (LD_LIBRARY_PATH); mpi4jax and mpi4py-fft in the
environment whose Python `--peers` names (`make peers` makes one), as they cannot always share
ours. The particle-mesh step runs beside that of JaxPM, in one process on as many cores, in the
environment of `--jaxpm`.
"""

import argparse
import json
import pathlib
import statistics
import subprocess
import sys

from tools import launcher

ROOT = launcher.ROOT
RESULTS = ROOT / "benchmarks" / "results"
CASES = (
    "64:complex64",
    "128:complex64",
    "256:complex64",
    "384:complex64",
    "256:float32",
    "256:complex128",
)
PEERS = {
    "mpi4jax": "benchmarks.peers.mpi4jax_slab",
    "mpi4py_fft": "benchmarks.peers.mpi4py_fft_slab",
}
FFTW = "libfftw3f_mpi.so.3"


def collectives() -> int:
    """The collectives beside raw MPI; the exit status."""
    command = launcher.command(2, "-m", "benchmarks.collectives", bind=True)
    return subprocess.run(
        command, cwd=ROOT, env=launcher.environment(JAX_ENABLE_X64="0"), check=False
    ).returncode


def contenders(peers: pathlib.Path | None) -> dict[str, tuple[str, str]]:
    """Name -> (Python, module) of all that can run here."""
    found = {"jax shard_map": (sys.executable, "benchmarks.peers.shard_map_slab")}
    for package, module in PEERS.items():
        for python in (sys.executable, peers):
            code = f"import importlib.util as u, sys; sys.exit(u.find_spec({package!r}) is None)"
            if python and subprocess.run([str(python), "-c", code], check=False).returncode == 0:
                found[package] = (str(python), module)
                break
    # Beside mpi4py, whose MPI it takes.
    code = f"from mpi4py import MPI; import ctypes; ctypes.CDLL({FFTW!r})"
    command = [sys.executable, "-c", code]
    if subprocess.run(command, check=False, capture_output=True).returncode == 0:
        found["FFTW-MPI"] = (sys.executable, "benchmarks.peers.fftw_mpi_slab")
    return found


def lines_of(command: list[str]) -> list[dict]:
    """The lines of JSON that a contender prints."""
    ended = subprocess.run(
        command,
        cwd=ROOT,
        env=launcher.environment(JAX_ENABLE_X64="0"),
        capture_output=True,
        text=True,
        check=False,
    )
    lines = [json.loads(text) for text in ended.stdout.splitlines() if text.startswith("{")]
    if ended.returncode != 0 or not lines:
        raise RuntimeError(f"{command} failed:\n{ended.stderr[-4000:]}")
    return lines


def timed(python: str, module: str, cases: list[str]) -> dict[str, dict]:
    """One run of all cases: case -> figures."""
    command = launcher.command(2, "-m", module, *cases, bind=True, python=python)
    return {f"{line['n']}:{line['dtype']}": line for line in lines_of(command)}


def fft(pairs: int, peers: pathlib.Path | None, cases: list[str]) -> int:
    """Ours and each peer in turn; the median over pairs of the ratio of times."""
    others = contenders(peers)
    ratios: dict[str, dict[str, list[float]]] = {}
    rounds = []
    for number in range(pairs):
        ours = timed(sys.executable, "benchmarks.fft", cases)
        rounds.append({"pfftjax": ours})
        for name, (python, module) in others.items():
            theirs = timed(python, module, cases)
            rounds[-1][name] = theirs
            for case in theirs.keys() & ours.keys():
                for way in ("forward_ms", "inverse_ms"):
                    key = f"{case} {way.removesuffix('_ms')}"
                    ratio = ours[case][way] / theirs[case][way]
                    ratios.setdefault(name, {}).setdefault(key, []).append(ratio)
        print(f"round {number + 1} of {pairs}", flush=True)

    medians = {
        name: {key: round(statistics.median(values), 3) for key, values in by_case.items()}
        for name, by_case in ratios.items()
    }
    best = {
        name: {
            case: {
                way: round(min(entry[name][case][way] for entry in rounds), 3)
                for way in ("forward_ms", "inverse_ms")
            }
            for case in rounds[0][name]
        }
        for name in rounds[0]
    }
    for case in cases:
        for way in ("forward", "inverse"):
            row = [f"{case:>16} {way}: pfftjax {best['pfftjax'][case][f'{way}_ms']:8.2f} ms"]
            row += [
                f"{medians[name][f'{case} {way}']:.2f} of {name}"
                for name in medians
                if f"{case} {way}" in medians[name]
            ]
            print(", ".join(row))
    results = RESULTS / f"fft-{launcher.family()}.json"
    summary = {
        "ranks": 2,
        "pairs": pairs,
        "median_ratio_of_times": medians,
        "best_ms": best,
        "rounds": rounds,
    }
    results.write_text(json.dumps(summary, indent=1) + "\n")
    print(f"figures in {results.relative_to(ROOT)}")
    return 0


def particle_mesh(pairs: int, jaxpm: pathlib.Path | None, sizes: list[int]) -> int:
    """Ours on 2 ranks and JaxPM in one process, in turn; medians of the ratios of times."""
    rounds: list[dict[str, dict[int, dict]]] = []
    for number in range(pairs):
        names = [str(n) for n in sizes]
        ours = launcher.command(2, "-m", "benchmarks.pm", *names, bind=True)
        rounds.append({"pfftjax": {line["n"]: line for line in lines_of(ours)}})
        if jaxpm:
            rounds[-1]["jaxpm"] = {}
            for n in names:
                peer = [str(jaxpm), "-m", "benchmarks.peers.jaxpm_step", n]
                rounds[-1]["jaxpm"] |= {line["n"]: line for line in lines_of(peer)}
        print(f"round {number + 1} of {pairs}", flush=True)

    summary: dict = {"ranks": 2, "pairs": pairs, "sizes": {}, "rounds": rounds}
    for n in sizes:
        ours_of = [entry["pfftjax"][n] for entry in rounds]
        entry = {
            "step_ms": min(x["step_ms"] for x in ours_of),
            "forward_step_ms": min(x["forward_ms"] / x["gradient_steps"] for x in ours_of),
            "gradient_over_forward": statistics.median(
                x["gradient_ms"] / x["forward_ms"] for x in ours_of
            ),
            "peak_pss_mb": {
                key.removesuffix("_peak_pss_mb"): value
                for key, value in ours_of[0].items()
                if key.endswith("_peak_pss_mb")
            },
        }
        for way in ("step", "forward", "gradient") if jaxpm else ():
            entry[f"{way}_over_jaxpm"] = statistics.median(
                entry["pfftjax"][n][f"{way}_ms"] / entry["jaxpm"][n][f"{way}_ms"]
                for entry in rounds
            )
        entry = {k: round(v, 3) if isinstance(v, float) else v for k, v in entry.items()}
        summary["sizes"][n] = entry
        print(f"{n}^3: " + json.dumps(entry))
    results = RESULTS / f"pm-{launcher.family()}.json"
    results.write_text(json.dumps(summary, indent=1) + "\n")
    print(f"figures in {results.relative_to(ROOT)}")
    return 0


def main() -> int:
    """Run what the arguments say; the exit status."""
    parser = argparse.ArgumentParser(description=str(__doc__).splitlines()[0])
    parser.add_argument("--only", choices=["collectives", "fft", "pm"])
    parser.add_argument("--pairs", type=int, default=5)
    parser.add_argument("--peers", type=pathlib.Path)
    parser.add_argument("--jaxpm", type=pathlib.Path)
    parser.add_argument("--sizes", type=int, nargs="+", default=[64, 128])
    parser.add_argument("--cases", nargs="+", default=list(CASES), help="size:dtype")
    arguments = parser.parse_args()
    status = 0
    if arguments.only in (None, "collectives"):
        status |= collectives()
    if arguments.only in (None, "fft"):
        status |= fft(arguments.pairs, arguments.peers, arguments.cases)
    if arguments.only in (None, "pm"):
        status |= particle_mesh(arguments.pairs, arguments.jaxpm, arguments.sizes)
    return status


if __name__ == "__main__":
    sys.exit(main())

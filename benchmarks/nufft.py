"""Non-uniform transforms beside finufft, on one rank: python -m benchmarks.nufft
[--threads 1] [--rounds 7]

Both types, of points drawn at random in the box, at the same tolerance and on the same cores: all
of them, or one with `--threads 1`. Calls of the contenders take turns, each with its own plan and
sort of the points; the fastest of each counts, in time that passes and in time of the processor.
Errors are relative to sums over all points or modes, at 20 of the results. finufft (`pip install
finufft`) is told to take a mesh with twice as many cells as modes, as ours has, and once whatever
it prefers.
"""

import argparse
import functools
import json
import os
import time
from collections.abc import Callable

CASES = (  # modes along each axis, points, dtype, tolerance
    (64, 1_000_000, "float64", 1e-2),
    (64, 1_000_000, "float64", 1e-4),
    (64, 1_000_000, "float64", 1e-6),
    (64, 1_000_000, "float64", 1e-9),
    (64, 1_000_000, "float64", 1e-12),
    (128, 2_000_000, "float64", 1e-6),
    (64, 1_000_000, "float32", 1e-4),
)


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--cases", type=int, nargs="*", default=range(len(CASES)))
    return parser.parse_args()


if __name__ == "__main__":  # before XLA starts its threads
    ARGUMENTS = _arguments()
    os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[: ARGUMENTS.threads])

import jax  # noqa: E402

jax.config.update("jax_enable_x64", True)

import jax.numpy as jnp  # noqa: E402
import numpy as np  # noqa: E402

import pfftjax  # noqa: E402
from benchmarks.protocol import RESULTS  # noqa: E402
from pfftjax.nufft import PencilNUFFT  # noqa: E402

Calls = dict[str, Callable[[], np.ndarray]]


def milliseconds(call: Callable[[], object]) -> tuple[float, float]:
    """What a call takes, by the clock and by that of the processor."""
    start, used = time.perf_counter(), time.process_time()
    jax.block_until_ready(call())
    return 1e3 * (time.perf_counter() - start), 1e3 * (time.process_time() - used)


def error(actual: np.ndarray, expected: np.ndarray) -> float:
    return float(np.linalg.norm(actual - expected) / np.linalg.norm(expected))


def case(
    n: int, points: int, dtype: str, tolerance: float, threads: int
) -> tuple[dict[str, Calls], dict[str, Callable[[np.ndarray], float]]]:
    """The calls of each type by each contender, and the error of a result of each type."""
    import finufft

    rng = np.random.default_rng(0)
    x = rng.uniform(0, 2 * np.pi, (points, 3)).astype(dtype)
    shape = (n, n, n)
    kind = np.result_type(dtype, np.complex64)
    c = (rng.standard_normal(points) + 1j * rng.standard_normal(points)).astype(kind)
    f = (rng.standard_normal(shape) + 1j * rng.standard_normal(shape)).astype(kind)
    plan = PencilNUFFT(shape, pfftjax.ProcessGrid(), tolerance=tolerance, layout="natural")
    type1, type2 = jax.jit(plan.type1), jax.jit(plan.type2)
    ours = jnp.asarray(x), jnp.asarray(c), jnp.asarray(f)
    axes = [np.ascontiguousarray(x[:, a]) for a in range(3)]
    calls: dict[str, Calls] = {
        "type 1": {"pfftjax": lambda: type1(*ours[:2])},
        "type 2": {"pfftjax": lambda: type2(ours[0], ours[2])},
    }
    common = {"eps": tolerance, "nthreads": threads, "modeord": 1}
    for name, further in (("finufft", {"upsampfac": 2.0}), ("finufft, its own choice", {})):
        calls["type 1"][name] = functools.partial(
            finufft.nufft3d1, *axes, c, shape, isign=-1, **common, **further
        )
        calls["type 2"][name] = functools.partial(
            finufft.nufft3d2, *axes, f, isign=1, **common, **further
        )
    some = rng.integers(0, points, 20)
    m = np.fft.fftfreq(n, 1 / n)
    modes = rng.integers(0, n, (20, 3))

    def of_type1(result: np.ndarray) -> float:
        phases = (x.astype("float64") @ m[k] for k in modes)
        expected = np.array([np.sum(c * np.exp(-1j * phase)) for phase in phases])
        return error(np.asarray(result)[tuple(modes.T)], expected)

    def of_type2(result: np.ndarray) -> float:
        waves = np.exp(1j * x[some, :, None].astype("float64") * m)
        expected = np.einsum("pa,pb,pc,abc->p", *waves.transpose(1, 0, 2), f, optimize=True)
        return error(np.asarray(result)[some], expected)

    return calls, {"type 1": of_type1, "type 2": of_type2}


def main() -> None:
    path = RESULTS / "nufft.json"
    found = json.loads(path.read_text()) if path.exists() else {}
    for number in ARGUMENTS.cases:
        n, points, dtype, tolerance = CASES[number]
        calls, errors = case(n, points, dtype, tolerance, ARGUMENTS.threads)
        for kind, contenders in calls.items():
            wrong = {name: errors[kind](call()) for name, call in contenders.items()}
            rounds = [
                {name: milliseconds(call) for name, call in contenders.items()}
                for _ in range(ARGUMENTS.rounds + 1)
            ][1:]
            entry = {
                name: {
                    "ms": round(min(r[name][0] for r in rounds), 1),
                    "processor_ms": round(min(r[name][1] for r in rounds), 1),
                    "error": float(f"{wrong[name]:.2g}"),
                }
                for name in contenders
            }
            key = f"{kind}, {n}^3 modes, {points} points, {dtype}, {tolerance:g}"
            found.setdefault(f"{ARGUMENTS.threads} threads", {})[key] = entry
            print(key, entry, flush=True)
            path.write_text(json.dumps(found, indent=1) + "\n")


if __name__ == "__main__":
    main()

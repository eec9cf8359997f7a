"""How a distributed transform is timed, ours and others alike (after heFFTe's speed3d)."""

import dataclasses
import json
import pathlib
import time
from collections.abc import Callable
from typing import Any

import numpy as np
from mpi4py import MPI

COMM = MPI.COMM_WORLD
RESULTS = pathlib.Path(__file__).resolve().parent / "results"


def family():
    """The MPI family that this job runs on."""
    return "openmpi" if "Open MPI" in MPI.Get_library_version() else "mpich"


def keep(name, summary):
    """Write a benchmark's figures to the file of this MPI, on one rank."""
    if COMM.rank == 0:
        path = RESULTS / f"{name}-{family()}.json"
        path.write_text(json.dumps(summary, indent=1) + "\n")
        print(f"figures in benchmarks/results/{path.name}")


@dataclasses.dataclass(frozen=True)
class Transform:
    """What a contender offers for one size and dtype. Calls return when the result is there."""

    forward: Callable[[Any], Any]
    inverse: Callable[[Any], Any]
    # This rank's block of a global array, as `forward` takes it.
    block: Callable[[np.ndarray], Any]
    # The local parts of a result, as a NumPy array.
    local: Callable[[Any], np.ndarray]
    # Takes this rank's part out of a global spectrum.
    spectrum_block: Callable[[np.ndarray], np.ndarray]


def global_array(n, dtype):
    rng = np.random.default_rng(0)
    x = rng.standard_normal((n, n, n), np.float32).astype(dtype)
    if np.dtype(dtype).kind == "c":
        x.imag = rng.standard_normal((n, n, n), np.float32)
    return x


def worst(error):
    return COMM.allreduce(float(error), MPI.MAX)


def timed(f):
    """Seconds of a call of `f` on the slowest rank; it returns when its result is there."""
    COMM.Barrier()
    start = time.perf_counter()
    f()
    return COMM.allreduce(time.perf_counter() - start, MPI.MAX)


def milliseconds(f, repetitions):
    """Milliseconds of the slowest rank in each repetition; two before them warm up."""
    import jax  # not of all peers

    times = [timed(lambda: jax.block_until_ready(f())) for _ in range(2 + repetitions)]
    return [1e3 * seconds for seconds in times[2:]]


def measure(transform, n, dtype, repetitions=9):
    """Milliseconds of the slowest rank, the best of some repetitions; and relative errors."""
    whole = global_array(n, dtype)
    x = transform.block(whole)
    mine = np.array(transform.local(x))
    y = transform.forward(x)
    error = None
    if n <= 128:
        fftn = np.fft.rfftn if np.dtype(dtype).kind == "f" else np.fft.fftn
        expected = fftn(whole.astype(np.result_type(dtype, np.float64)))
        part = transform.spectrum_block(expected)
        error = worst(np.abs(transform.local(y) - part).max() / np.abs(expected).max())
    del whole
    back = np.abs(transform.local(transform.inverse(y)) - mine).max() / np.abs(mine).max()
    rounds = []
    for number in range(repetitions + 1):
        forward = 1e3 * timed(lambda: transform.forward(x))
        inverse = 1e3 * timed(lambda: transform.inverse(y))
        if number > 0:  # the first one warms up
            rounds.append({"forward_ms": forward, "inverse_ms": inverse})
    best = {name: min(times[name] for times in rounds) for name in rounds[0]}
    return {**best, "error": error, "roundtrip_error": worst(back)}


def run(contender, make, arguments):
    """Measure each case in `arguments`, "256:complex64" and so on; a line of JSON each."""
    for argument in arguments:
        size, dtype = argument.split(":")
        transform = make(int(size), dtype)
        if transform is None:
            continue
        result = measure(transform, int(size), dtype)
        if COMM.rank == 0:
            line = {"contender": contender, "n": int(size), "dtype": dtype, "ranks": COMM.size}
            print(json.dumps({**line, **result}), flush=True)

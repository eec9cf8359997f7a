"""The local transform beside FFTW's and pocketfft's, on one core: taskset -c 0 python -m
benchmarks.lines [--json FILE]

GFLOP/s by the customary 5 n log2 n for a line of n complex64, of planes of n x n: "rows" along the
axis that is contiguous, "plane" along both, which has as many lines that lie across. Ours is timed
inside one jitted call over planes of 2 MiB in all; FFTW (single precision, measured plans) on the
same planes, where the loader finds it (LD_LIBRARY_PATH).
"""

import argparse
import ctypes
import json
import math
import os
import pathlib
import time
from collections.abc import Callable

import jax
import numpy as np
import scipy.fft

from pfftjax._runtime.ffi import native
from pfftjax.fft._local import Kind, fft_of_lines

SIZES = (16, 32, 48, 64, 96, 100, 128, 256, 512)
NUMBERS = 1 << 18
FFTW = "libfftw3f.so.3"
Contender = Callable[[np.ndarray, int], Callable[[], object]]


def seconds(call: Callable[[], object], budget: float = 0.5) -> float:
    """The median of calls for as long as `budget`, after two to warm up."""
    call()
    call()
    times = []
    end = time.perf_counter() + budget
    while time.perf_counter() < end or len(times) < 5:
        start = time.perf_counter()
        call()
        times.append(time.perf_counter() - start)
    return float(np.median(times))


def ours(x: np.ndarray, axes: int) -> Callable[[], object]:
    transform = jax.jit(lambda x: fft_of_lines(x, Kind.FORWARD, x.shape[-1], axes=axes))
    block = jax.numpy.asarray(x)
    return lambda: transform(block).block_until_ready()


def pocketfft(x: np.ndarray, axes: int) -> Callable[[], object]:
    return lambda: scipy.fft.fftn(x, axes=range(3 - axes, 3))


def fftw(x: np.ndarray, axes: int) -> Callable[[], object]:
    library = ctypes.CDLL(FFTW)
    library.fftwf_plan_many_dft.restype = ctypes.c_void_p
    planes, n, _ = x.shape
    batch = planes * n if axes == 1 else planes
    arrays = x.copy(), np.empty_like(x)  # planning overwrites them
    lengths = (ctypes.c_int * axes)(*[n] * axes)
    sides = [(ctypes.c_void_p(a.ctypes.data), None, 1, n**axes) for a in arrays]
    measure, forward = 0, -1
    plan = library.fftwf_plan_many_dft(
        axes, lengths, batch, *sides[0], *sides[1], forward, measure
    )
    library.fftwf_execute.argtypes = [ctypes.c_void_p]

    def execute(arrays=arrays):
        library.fftwf_execute(plan)
        return arrays[1]

    np.copyto(arrays[0], x)
    expected = np.asarray(pocketfft(x, axes)())
    np.testing.assert_allclose(execute(), expected, atol=1e-3 * np.abs(x).max() * n)
    return execute


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", type=pathlib.Path)
    arguments = parser.parse_args()
    contenders: dict[str, Contender] = {"pfftjax": ours, "pocketfft": pocketfft}
    try:
        ctypes.CDLL(FFTW)
        contenders["FFTW"] = fftw
    except OSError:
        print("no FFTW here")
    if len(os.sched_getaffinity(0)) > 1:
        print("on more than one core: only ours uses them")
    rng = np.random.default_rng(0)
    cases = []
    for n in SIZES:
        shape = (max(NUMBERS // n**2, 1), n, n)
        x = (rng.standard_normal(shape) + 1j * rng.standard_normal(shape)).astype(np.complex64)
        for name, axes in (("rows", 1), ("plane", 2)):
            work = axes * 5 * x.size * math.log2(n)
            rates = {
                contender: round(work / seconds(make(x, axes)) * 1e-9, 1)
                for contender, make in contenders.items()
            }
            cases.append({"n": n, "lines": name, "gflops": rates})
            print(f"{n:4} {name:6}", rates, flush=True)
    if arguments.json:
        figures = {"simd": native.runnable_simd()[0], "dtype": "complex64", "cases": cases}
        arguments.json.write_text(json.dumps(figures, indent=1) + "\n")


if __name__ == "__main__":
    main()

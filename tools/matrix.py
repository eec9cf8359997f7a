"""The full product behind tests/fft, at length: `make matrix`. What CI runs is a selection of it.

    python -m tools.matrix [--ranks 1 2 3 4] [--simd baseline avx2] [--only values primes ...]

Every method of exchange and instruction set, on every process grid of 1 to 4 ranks: plans real and
complex, their derivatives, both layouts, in both precisions, of the sizes of the tests (1, fewer
planes than ranks, primes) and of all primes to 127; transforms of a kind for each axis; two axes;
padding and truncation. `ExchangeMethod.PIPELINED` on a device that is none, by every transport
between GPUs and on different schedules of its streams. Prints how many plans were compared with
numpy and scipy on the gathered array, by part; the first difference ends it.
"""

import argparse
import itertools
import subprocess
import sys
import time

import jax
import numpy as np

from pfftjax import ExchangeMethod, PencilFFT, PencilTransform, ProcessGrid
from pfftjax._runtime.ffi import native
from pfftjax.fft._trigonometric import INVERSES
from tests.distributed import (
    COMPLEX,
    SHAPES,
    TOLERANCE,
    assert_block,
    by_method,
    grids,
    transformed,
)
from tests.fft import test_kinds, test_padding
from tests.fft.test_two_dimensions import SHAPES as SHAPES_OF_PLANES
from tests.fft.test_values import check
from tests.helpers import RANK, SIZE, random
from tools import fake_device, launcher


def start() -> int:
    """Run the jobs; the exit status."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--ranks", type=int, nargs="+", default=[1, 2, 3, 4])
    parser.add_argument("--simd", nargs="+", default=native.runnable_simd())
    parser.add_argument("--only", choices=PARTS, nargs="+", default=list(PARTS))
    arguments = parser.parse_args()
    failed = 0
    on_cpus = [part for part in arguments.only if part != "pipelined"]
    ways = [(simd, on_cpus, {"PFFTJAX_SIMD": simd}) for simd in arguments.simd if on_cpus]
    if "pipelined" in arguments.only:
        ways += [(way, ["pipelined"], _between_gpus(way)) for way in TRANSPORTS]
    for (way, parts, settings), ranks in itertools.product(ways, arguments.ranks):
        print(f"== {way}, {ranks} rank{'s' if ranks > 1 else ''}", flush=True)
        began = time.monotonic()
        code = subprocess.run(
            launcher.command(ranks, "-m", "tools.matrix", "--here", *parts),
            cwd=launcher.ROOT,
            env=launcher.environment(JAX_DISABLE_MOST_OPTIMIZATIONS="1", **settings),
            check=False,
        ).returncode
        failed += code != 0
        verdict = "ok" if code == 0 else f"FAILED with status {code}"
        print(f"== {verdict}, {time.monotonic() - began:.0f} s", flush=True)
    print(f"== {failed} jobs failed" if failed else "== all as by numpy and scipy")
    return failed != 0


TRANSPORTS = ("nccl", "ipc", "mpi", "staging")


def _between_gpus(transport: str) -> dict[str, str]:
    """The environment of a job on the emulated device, by this transport.

    Each transport runs on a schedule of its own.
    """
    seed = TRANSPORTS.index(transport)
    return fake_device.environment(
        seed, PFFTJAX_GPU_TRANSPORT=transport, PFFTJAX_NCCL=fake_device.build_nccl()
    )


def here(parts: list[str]) -> None:
    """What one job compares."""
    for part in parts:
        began = time.monotonic()
        count = PARTS[part]()
        if RANK == 0:
            print(f"   {part}: {count} plans, {time.monotonic() - began:.0f} s", flush=True)


def plans(shape, layouts=("transposed", "natural")):
    """Real and complex, on every grid, by every method."""

    norms = itertools.cycle(("backward", "ortho", "forward"))
    for grid, real, layout in itertools.product(grids(), (False, True), layouts):
        yield from by_method(PencilFFT(shape, grid, real=real, layout=layout, norm=next(norms)))


def values() -> int:
    """The sizes of tests/fft/test_values.py, with derivatives."""

    count = 0
    for shape, dtype in itertools.product(SHAPES, ("float32", "float64")):
        chosen = list(plans(getattr(shape, "values", [shape])[0]))
        check(chosen, dtype)
        count += len(chosen)
    return count


def primes() -> int:
    """Every prime to 127 along every axis, with derivatives."""

    all_primes = [p for p in range(2, 128) if all(p % q for q in range(2, p))]
    assert len(all_primes) == 31
    count = 0
    for i, p in enumerate(all_primes):
        # Small along the others, so that it takes no hour; long lines beside short and empty ones.
        few = (all_primes[(i + 3) % 5], all_primes[(i + 1) % 4])
        dtype = ("float64", "float32")[i % 2]
        for shape in ((p, *few), (few[0], p, few[1]), (*few, p)):
            chosen = list(plans(shape, (("transposed", "natural")[i % 3 == 0],)))
            check(chosen, dtype)
            count += len(chosen)
    return count


def kinds() -> int:
    """Cosine and sine transforms beside Fourier transforms; grids and layouts in turn, as
    compiling them takes long.
    """
    turn = itertools.cycle(itertools.product(("transposed", "natural"), grids()))
    chosen = []
    for (shape, each), (layout, grid) in zip(test_kinds.PLANS, turn, strict=False):
        chosen += by_method(PencilTransform(shape, grid, each, layout=layout))
    return _against_scipy(chosen)


def planes() -> int:
    """Two axes: every kind along the first, every kind along the last; sizes in turn."""
    grid = ProcessGrid((SIZE, 1))
    others = zip(
        itertools.cycle(SHAPES_OF_PLANES),
        itertools.cycle(("rfft", *INVERSES, "fft")),
        itertools.cycle(("natural", "transposed", "transposed", "natural")),
        strict=False,
    )
    chosen = []
    for first in ("fft", *INVERSES):
        for shape, last, layout in itertools.islice(others, 2):
            # "dct1" needs two points.
            least = tuple(max(n, 2) if "dct1" in (first, last) else n for n in shape)
            chosen += by_method(PencilTransform(least, grid, (first, last), layout=layout))
    return _against_scipy(chosen)


def _against_scipy(chosen: list[PencilTransform]) -> int:
    """Both directions, in both precisions in turn."""
    for start in range(0, len(chosen), 30):
        cases = []
        for i, plan in enumerate(chosen[start : start + 30]):
            dtype = ("float32", "float64")[(start + i) // 2 % 2]
            is_real = plan.kinds[-1] == "rfft" or "fft" not in plan.kinds
            is_spectrum_real = not {"fft", "rfft"} & set(plan.kinds)
            X = random(plan.shape, dtype if is_real else COMPLEX[dtype], 1)
            Y = random(plan.spectral_shape, dtype if is_spectrum_real else COMPLEX[dtype], 2)
            cases.append((plan, X, Y, TOLERANCE[dtype]))

        @jax.jit
        def everything(blocks, cases=cases):
            return [
                (plan.forward(x), plan.inverse(y))
                for (plan, *_), (x, y) in zip(cases, blocks, strict=True)
            ]

        blocks = [(p.input.local_block(X), p.output.local_block(Y)) for p, X, Y, _ in cases]
        for (plan, X, Y, limit), (there, back) in zip(cases, everything(blocks), strict=True):
            wide = [a.astype(np.result_type(a.dtype, np.float64)) for a in (X, Y)]
            assert_block(there, transformed(plan, wide[0]), plan.output, limit)
            assert_block(back, transformed(plan, wide[1], inverse=True), plan.input, limit)
    return len(chosen)


def padding() -> int:
    """`tests/fft/test_padding.py`, every pair of plans by every method."""

    every = [
        pair
        for plan, fine in list(test_padding.pairs())
        for pair in zip(by_method(plan), by_method(fine), strict=True)
    ]
    test_padding.pairs = lambda: every
    test_padding.test_coefficients_against_matrices()
    return len(every)


def pipelined() -> int:
    """Transforms in chunks, with derivatives, on the fake device."""
    count = 0
    options = list(itertools.product(grids(), (False, True), ("transposed", "natural")))
    for shape, dtype in zip(SHAPES[1:-1], itertools.cycle(("float64", "float32"))):
        method = ExchangeMethod.PIPELINED
        chosen = [
            PencilFFT(shape, grid, real=real, layout=layout, method=method)
            for grid, real, layout in options
        ]
        check(chosen, dtype)
        count += len(chosen)
    return count


PARTS = {part.__name__: part for part in (values, primes, kinds, planes, padding, pipelined)}

if __name__ == "__main__":
    if sys.argv[1:2] == ["--here"]:
        here(sys.argv[2:])
    else:
        sys.exit(start())

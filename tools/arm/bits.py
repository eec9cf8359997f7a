"""Prints the bits of transforms and of painted fields, by name, for two machines to be compared.

    mpirun -n 2 python -m tools.arm.bits        that of PFFTJAX_SIMD, or of the widest

All that is printed is computed by pfftjax's C++: transforms of every kind of length by all methods
of exchange, gradients and divergences, and particles painted and read out. Between these there is
no operation of XLA's, whose compiler rounds as it likes on each kind of processor.
"""

import hashlib
from collections.abc import Iterator

import jax
import numpy as np

import pfftjax
from pfftjax.fft._local import Kind, fft_of_lines
from pfftjax.pm import Positions, paint, readout
from pfftjax.pm._assignment import assignment_of
from pfftjax.pm._fours import paint_fours, readout_fours
from tests.distributed import COMPLEX, by_method, grids
from tests.helpers import CONTROL, RANK, random

# Radices 2, 4 and 8, 3 and 5, 7 to 31 (without a kernel), and larger primes (by convolution).
LENGTHS = (2, 3, 4, 5, 8, 15, 16, 49, 60, 64, 74, 97, 128, 143, 210, 256, 509, 1021)
SHAPES = ((8, 12, 10), (7, 11, 26), (74, 3, 5), (4, 97, 16))
KERNELS = ("ngp", "cic", "tsc", "pcs")


def lines(dtype: str) -> Iterator[tuple[str, jax.Array]]:
    """Transforms of lines, alone and among others."""
    xs = {}
    for kind in Kind:
        real_in = kind in (Kind.REAL_TO_COMPLEX, Kind.COMPLEX_TO_REAL_TRANSPOSED)
        real_out = kind in (Kind.COMPLEX_TO_REAL, Kind.REAL_TO_COMPLEX_TRANSPOSED)
        for n in LENGTHS:
            x = random((19, n // 2 + 1 if real_out else n), dtype if real_in else COMPLEX[dtype])
            xs[kind, n] = x

    @jax.jit
    def transformed(xs):
        return [fft_of_lines(x, kind, n, scale=1 / 3) for (kind, n), x in xs.items()]

    for (kind, n), y in zip(xs, transformed(xs), strict=True):
        yield f"lines {kind.name} {n} {dtype}", y


def plans(dtype: str) -> Iterator[tuple[str, jax.Array]]:
    """Whole transforms, on every grid and by every method."""
    chosen, operands = [], []
    for grid in grids():
        for shape in SHAPES:
            for real in (False, True):
                for plan in by_method(pfftjax.PencilFFT(shape, grid, real=real)):
                    chosen.append(plan)
                    X = random(shape, dtype if real else COMPLEX[dtype], 1)
                    operands.append(plan.input.local_block(X))

    @jax.jit
    def everything(xs):
        results = []
        for plan, x in zip(chosen, xs, strict=True):
            y = plan.forward(x)
            results.append((y, plan.inverse(y)))
        return results

    for plan, results in zip(chosen, everything(operands), strict=True):
        real = "real" if plan.real else "complex"
        name = f"{real} {plan.shape} {dtype} on {plan.grid.dims} by {plan.method.name}"
        yield from zip((f"forward {name}", f"inverse {name}"), results, strict=True)


def particles(dtype: str) -> Iterator[tuple[str, jax.Array]]:
    """Painted fields, and fields at particles, with four components together as well."""
    mesh = pfftjax.Pencil((16, 9, 10), pfftjax.ProcessGrid())
    start, count = (np.array(x) for x in (mesh.start, mesh.local_shape))
    rng = np.random.default_rng(RANK)
    u = start + rng.random((2000, 3)) * count * (1 - 1e-6)
    cell = np.floor(u).astype("int32")
    at = Positions(cell, (u - cell).astype(dtype), np.int32(len(u)))
    values = rng.random((len(u), 2)).astype(dtype)
    field = mesh.local_block(random(mesh.global_shape, dtype, 2))

    @jax.jit
    def everything(at, values, field):
        return [
            (
                paint(at, mesh, values=values, kernel=kernel),
                readout(field, at, mesh, kernel=kernel),
            )
            for kernel in KERNELS
        ]

    for kernel, results in zip(KERNELS, everything(at, values, field), strict=True):
        names = (f"painted {kernel} {dtype}", f"read out {kernel} {dtype}")
        yield from zip(names, results, strict=True)

    @jax.jit
    def four_together(at, values):
        results = []
        for kernel in KERNELS[1:]:
            form = assignment_of(kernel, mesh, "paint")
            painted = paint_fours(values, at, mesh, form)
            results.append((painted, *readout_fours(painted, values, at, mesh, form)))
        return results

    four = rng.random((len(u), 4)).astype(dtype)
    for kernel, results in zip(KERNELS[1:], four_together(at, four), strict=True):
        names = ("painted", "read out", "slopes of")
        yield from zip((f"four {x} {kernel} {dtype}" for x in names), results, strict=True)


def main() -> None:
    """A line for each, of all ranks together."""
    for dtype in ("float32", "float64"):
        for part in (lines, plans, particles):
            for name, y in part(dtype):
                blocks = CONTROL.gather(np.asarray(y).tobytes())
                if blocks is not None:
                    print(f"{name}: {hashlib.sha256(b''.join(blocks)).hexdigest()[:24]}")


if __name__ == "__main__":
    main()

"""Painting particles and reading fields at them, on one core: taskset -c 0 python -m
benchmarks.painting [--before LABEL]

N^3 particles of a lattice in its order, displaced by waves of two cells and noise of a third: ns a
particle of paint (of ones), of the readout of three components, and of the derivative of a readout
and its transpose, which gradients of a force take. The best of 9 jitted calls; --before keeps the
figures beside those of the present code, of which it then is an older one.
"""

import argparse
import json
from collections.abc import Callable
from typing import Literal

import jax

jax.config.update("jax_enable_x64", True)

import jax.numpy as jnp  # noqa: E402
import numpy as np  # noqa: E402

import pfftjax  # noqa: E402
from benchmarks.protocol import RESULTS, milliseconds  # noqa: E402
from pfftjax import pm  # noqa: E402

N = 96
Kernel = Literal["cic", "tsc", "pcs"]
KERNELS: tuple[Kernel, ...] = ("cic", "tsc", "pcs")


def positions(mesh: pfftjax.Pencil, dtype: str) -> pm.Positions:
    """A lattice that waves and noise have displaced."""
    cell = np.indices((N,) * 3).reshape(3, -1).T
    phase = 2 * np.pi / N * (cell @ np.array([[0, 3, 2], [2, 0, 3], [3, 2, 0]]))
    noise = np.random.default_rng(0).standard_normal(cell.shape) / 3
    offset = jnp.asarray(2 * np.sin(phase) + noise, dtype)
    return pm.Positions(jnp.asarray(cell, jnp.int32), offset, jnp.int32(len(cell)))


def nanoseconds(function: Callable, *operands: object) -> float:
    """For each particle, of the fastest call."""
    jitted = jax.jit(function)
    return round(min(milliseconds(lambda: jitted(*operands), 9)) / N**3 * 1e6, 1)


def figures(kernel: Kernel, dtype: str) -> dict[str, float]:
    """Time one kernel in one dtype."""
    mesh = pfftjax.Pencil((N,) * 3, pfftjax.ProcessGrid())
    at = positions(mesh, dtype)
    field = jax.random.normal(jax.random.key(0), (3, N, N, N), dtype)
    rows = jnp.ones_like(at.offset)

    def read(offset: jax.Array) -> jax.Array:
        return pm.readout(field, at._replace(offset=offset), mesh, kernel=kernel)

    return {
        "paint": nanoseconds(lambda: pm.paint(at, mesh, kernel=kernel)),
        "readout": nanoseconds(lambda: read(at.offset)),
        "derivative": nanoseconds(lambda t: jax.jvp(read, (at.offset,), (t,))[1], rows),
        "transpose": nanoseconds(lambda y: jax.vjp(read, at.offset)[1](y)[0], rows),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--before", help="the commit that runs is older than the results'")
    label = parser.parse_args().before or "now"
    found = {
        f"{kernel} {dtype}": figures(kernel, dtype)
        for dtype in ("float32", "float64")
        for kernel in KERNELS
    }
    for case, entry in found.items():
        print(f"{case:12}", entry)
    path = RESULTS / "painting.json"
    kept = json.loads(path.read_text()) if path.exists() else {"particles": N**3}
    path.write_text(json.dumps({**kept, label: found}, indent=1) + "\n")


if __name__ == "__main__":
    main()

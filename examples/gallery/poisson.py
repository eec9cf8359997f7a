"""Poisson's equation, to rounding.

The density of the potential φ = exp(cos kx + cos ky + cos kz), k = 2π/L, is known, and so the
error of a solution is, too. In Fourier space the equation ∇²φ = ρ is a division by -k². For a
function as smooth as this one, the error falls faster than any power of the number of points
(spectral accuracy: Trefethen, *Spectral Methods in MATLAB*, 2000) until rounding is left, in
float32 at 16 points a side and in float64 at 31. The second-order difference of most codes in
real space gains a factor of four each time that the points are doubled. Odd and prime sizes, as
13 and 31, are no exception.
"""

import jax
import jax.numpy as jnp
import matplotlib.pyplot as plt
import numpy as np
from common import FIRST, Fact, Folder, draw_map, save, slab, start
from mpi4py import MPI

import pfftjax
from pfftjax import spectral
from pfftjax.collectives import allreduce

SIZES = (6, 8, 10, 13, 16, 20, 24, 31, 40, 48, 64, 96, 128)


def solve(n: int, dtype: str, *, differences: bool = False):
    """(plan, density, potential, largest error over the largest value) on n^3 points."""
    plan = pfftjax.PencilFFT((n, n, n), pfftjax.ProcessGrid(), real=True)
    angles = [2 * jnp.pi * plan.input.indices(axis).astype(dtype) / n for axis in range(3)]

    def largest(x):
        return allreduce(jnp.max(jnp.abs(x), initial=0), MPI.MAX)

    @jax.jit
    def solved():
        exact = jnp.exp(sum(jnp.cos(a) for a in angles))
        density = exact * sum(jnp.sin(a) ** 2 - jnp.cos(a) for a in angles)
        exact = exact - allreduce(jnp.sum(exact)) / n**3

        def kernel(*k):
            # The symbol of the difference (φ(+1) - 2φ + φ(-1)) / h², or -k².
            h = 2 * jnp.pi / n
            square = sum((2 / h * jnp.sin(q * h / 2)) ** 2 if differences else q**2 for q in k)
            return jnp.where(square > 0, -1 / jnp.where(square > 0, square, 1), 0)

        if differences:
            potential = spectral.apply(density, plan, 2 * jnp.pi, kernel)
        else:
            potential = spectral.inverse_laplacian(density, plan, 2 * jnp.pi)
        return density, potential, largest(potential - exact) / largest(exact)

    density, potential, error = solved()
    return plan, density, potential, float(error)


def main(size: int, out: Folder) -> list[Fact]:
    """Solve on meshes up to this size."""
    sizes = [n for n in SIZES if n < size] + [size]
    kinds = {
        "spectral, float64": {"dtype": "float64"},
        "spectral, float32": {"dtype": "float32"},
        "second-order differences": {"dtype": "float64", "differences": True},
    }
    wanted = kinds if out else {"spectral, float64": kinds["spectral, float64"]}
    sizes = sizes if out else [size]
    errors = {name: [solve(n, **how)[3] for n in sizes] for name, how in wanted.items()}
    if out:
        plan, *fields, _ = solve(size, "float64")
        maps = [slab(x, plan.input, 1) for x in fields]
        if FIRST:
            draw(maps, sizes, errors, out)
    bound = 1e-13 if size >= 40 else 10.0 ** (-size / 3)
    error = errors["spectral, float64"][-1]
    return [Fact("largest error of the potential over its largest value", error, bound)]


def draw(maps, sizes, errors, out):
    """Density, potential, and the error by the number of points."""
    figure, axes = plt.subplots(
        1, 3, figsize=(12.5, 3.9), width_ratios=(1, 1, 1.25), layout="constrained"
    )
    for ax, image, title in zip(axes, maps, ("density ρ", "potential φ"), strict=False):
        most = float(np.abs(image).max())
        # x from 0 to L, the peak in the middle.
        image = np.roll(image, (image.shape[0] // 2,) * 2, (0, 1))
        shown = draw_map(ax, image, 1, " [L]", cmap="RdBu_r", vmin=-most, vmax=most)
        ax.set_title(f"{title}, through the peak")
        figure.colorbar(shown, ax=ax, shrink=0.8)
    for (name, values), style in zip(errors.items(), ("o-", "s-", "^--"), strict=True):
        axes[2].loglog(sizes, values, style, ms=5, label=name)
    ticks = [n for n in (6, 10, 16, 24, 40, 64, 128) if n <= sizes[-1]]
    axes[2].set_xticks(ticks, [str(n) for n in ticks], minor=False)
    axes[2].set_xticks([], minor=True)
    axes[2].set(xlabel="points along a side", ylabel="largest error / largest value")
    axes[2].grid(alpha=0.3)
    axes[2].legend(fontsize=9, loc="lower left", bbox_to_anchor=(0, 1))
    save(figure, out / "poisson.png")


if __name__ == "__main__":
    start(main, 128)

"""One universe at two resolutions.

White noise that is drawn for each wavevector, not for each cell: a mesh of four times as many
points along each axis has the waves of the coarser one, number for number, and finer ones
besides. So a run can be tried small and repeated large, and it is the same universe: the same
clusters at the same places. With noise of a number for each cell, as most codes draw it, another
resolution is another universe. `pm.nested_noise` follows a counter-based generator (threefry,
Salmon et al. 2011), so that each rank draws its own modes only, and any number of ranks the same
ones. It is checked by truncating the finer field's spectrum to the modes of the coarser field.
"""

import jax
import matplotlib.pyplot as plt
import numpy as np
from common import FIRST, Fact, Folder, draw_map, planck, save, slab, start

import pfftjax
from pfftjax import pm

SPACING, DEPTH = 2.0, 10.0  # of the finer particles; of the slab [Mpc/h]
UNIT = r" [Mpc/$h$]"


def main(size: int, out: Folder) -> list[Fact]:
    """Draw both noises, compare them, and simulate both."""
    theory, box = planck(), SPACING * size
    grid = pfftjax.ProcessGrid((None, 1))
    sizes = (size // 4, size)
    plans = [pfftjax.PencilFFT((n,) * 3, grid, real=True) for n in sizes]

    def noise(plan):
        return pm.nested_noise(jax.random.key(7), plan, "float32")

    # The power of white noise in a cell grows with their number: of one volume, it is the same.
    coarse, fine = (
        jax.jit(lambda p=p: p.forward(noise(p)) / np.prod(p.shape) ** 0.5)() for p in plans
    )
    scale = np.prod(plans[1].shape) / np.prod(plans[0].shape)
    cut = jax.jit(lambda y: pfftjax.truncate_spectrum(y, plans[1], plans[0]))(fine) * scale
    kx, ky, kz = plans[0].wavenumbers(2 * np.pi)
    below = (abs(kx) < sizes[0] // 2) & (abs(ky) < sizes[0] // 2) & (abs(kz) < sizes[0] // 2)
    difference = pfftjax.norm(below * (cut - coarse), grid) / pfftjax.norm(coarse, grid)
    if out:
        maps = []
        for plan in plans:
            times = np.linspace(0.1, 1, 11)
            options = {"power": theory.power, "kernel": "tsc", "finer": 1}
            run = pm.Simulation(plan, box, theory.cosmology, times, **options)
            density = jax.jit(lambda p=plan, r=run: r.density(r.run(noise(p))))()
            planes = max(round(DEPTH / box * plan.shape[2]), 1)
            maps.append(slab(density, plan.input, planes))
        if FIRST:
            draw(maps, sizes, box, out)
    what = "difference of the modes that both meshes have, over their size"
    return [Fact(what, float(difference), 1e-6)]


def draw(maps, sizes, box, out):
    """Today, at both resolutions."""
    figure, axes = plt.subplots(1, 2, figsize=(11, 5), layout="constrained", sharey=True)
    for ax, image, n in zip(axes, maps, sizes, strict=True):
        bright = {"cmap": "magma", "vmin": -0.8, "vmax": 1.4, "interpolation": "nearest"}
        draw_map(ax, np.log10(np.maximum(1 + image, 1e-2)), box, UNIT, **bright)
        ax.set_title(f"{n}$^3$ particles")
    axes[1].set_ylabel("")
    figure.colorbar(axes[0].images[0], ax=axes, label=r"$\log_{10}(1 + \delta)$", shrink=0.9)
    save(figure, out / "nested.jpg")


if __name__ == "__main__":
    start(main, 128)

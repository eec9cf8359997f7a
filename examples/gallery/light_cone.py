"""The sky of an observer.

Light that arrives today left every distance at another time. While a universe runs, each of its
particles is noted where that light passes it, in shells around an observer at the centre of the
box; where the shells are larger than the box, it goes on with copies of itself. Three shells show
how structure grows towards us. What all matter in front does to the images of galaxies behind it,
the convergence, is on the last map.
"""

import jax
import matplotlib.pyplot as plt
import numpy as np
from common import FIRST, Fact, Folder, planck, save, start

import pfftjax
from pfftjax import pm
from pfftjax.observables import LightCone, convergence, directions, pixels_of

SPACING = 8.0  # Mpc/h


def main(size: int, out: Folder) -> list[Fact]:
    """Run a universe with a light cone through it, and lens sources by its shells."""
    theory, box = planck(), SPACING * size
    plan = pfftjax.PencilFFT((size,) * 3, pfftjax.ProcessGrid(), real=True)
    edges = np.linspace(0.1, 2.5, 13) * box
    begin = float(pm.scale_factor_at(theory.cosmology, 1.1 * edges[-1]))
    times = np.linspace(begin, 1, 13 if size >= 32 else 4)
    run = pm.Simulation(plan, box, theory.cosmology, times, power=theory.power)
    cone = LightCone(edges, nside=128 if size >= 32 else 8)
    source = 1 / float(pm.scale_factor_at(theory.cosmology, edges[-1])) - 1

    @jax.jit
    def observed():
        noise = pm.nested_noise(jax.random.key(4), plan, "float32")
        _, shells = run.run(noise, light_cone=cone)
        return shells.contrast(), convergence(shells, theory.cosmology, source)

    contrast, kappa = (np.asarray(x, float) for x in observed())
    if out and FIRST:
        draw(contrast, kappa, cone, source, theory.cosmology, out)
    # Structures are larger than the nearest shells, and than small boxes.
    bound = 0.02 if size >= 32 else 0.1
    worst = float(np.abs(contrast[4:].mean(1)).max())
    return [
        Fact("largest mean contrast of a shell beyond 0.9 boxes", worst, bound),
        Fact("mean convergence over its rms", float(kappa.mean() / kappa.std()), 0.5),
    ]


def draw(contrast, kappa, cone, source, cosmology, out):
    """Mollweide's projection of some shells, and of the convergence."""
    longitude, latitude = np.meshgrid(
        np.linspace(-np.pi, np.pi, 900), np.linspace(-1.57, 1.57, 450)
    )
    pixel = np.asarray(pixels_of(directions(np.pi / 2 - latitude, longitude), cone.nside))
    figure, axes = plt.subplots(
        2, 2, figsize=(9.2, 5.2), layout="constrained", subplot_kw={"projection": "mollweide"}
    )
    for ax, shell in zip(axes.flat[:3], (9, 5, 2), strict=True):
        low, high = cone.edges[shell : shell + 2]
        z = 1 / float(pm.scale_factor_at(cosmology, (low + high) / 2)) - 1
        image = np.log10(1 + np.maximum(contrast[shell][pixel], -0.95))
        show(ax, longitude, latitude, image, "magma", (-0.8, 0.8))
        ax.set_title(f"matter {low:.0f} to {high:.0f} Mpc/h away, z = {z:.2f}", fontsize=9)
    wide = 3 * kappa.std()
    show(axes.flat[3], longitude, latitude, kappa[pixel], "RdBu_r", (-wide, wide))
    axes.flat[3].set_title(f"convergence of galaxies at z = {source:.2f}", fontsize=9)
    save(figure, out / "light_cone.jpg")


def show(ax, longitude, latitude, image, colours, limits):
    """One map, without a frame."""
    low, high = limits
    ax.pcolormesh(longitude, latitude, image, cmap=colours, vmin=low, vmax=high, rasterized=True)
    ax.set(xticks=[], yticks=[])


if __name__ == "__main__":
    start(main, 64)

"""Where a cluster comes from.

The gradient of a number of today with respect to the universe at its beginning. The number is
the mass within a Gaussian of 4 Mpc/h around the densest place today, M = Σ W (1 + δ), and what
is differentiated is a whole simulation: perturbation theory, ten steps, the exchange of
particles between ranks, painting. ∂M/∂(initial density), on the right, shows which matter has
fallen in, and which ripples would make more of it fall in: the region that collapses is several
times as wide as the cluster. Reverse mode follows the particles back
in time and stores no step. It is checked by forward mode, which is another program: the gradient
times a direction, and the derivative along it, must be one number.
"""

import jax
import jax.numpy as jnp
import matplotlib.pyplot as plt
import numpy as np
from common import Fact, Folder, draw_map, planck, save, slab, start, whole
from matplotlib.patches import Circle
from mpi4py import MPI

import pfftjax
from pfftjax import pm, spectral

SPACING, RADIUS = 1.5, 4.0  # of particles; of the place [Mpc/h]
SEEN = 45.0  # how far from the cluster the maps go [Mpc/h]
UNIT = r" [Mpc/$h$]"


def densest(field, grid):
    """The place of the largest value: the same indices on every rank."""
    values = np.asarray(field)
    here = np.unravel_index(values.argmax(), values.shape)
    best, rank = grid.comm.allreduce((float(values[here]), grid.comm.rank), MPI.MAXLOC)
    return grid.comm.bcast(here, rank), rank, best


def main(size: int, out: Folder) -> list[Fact]:
    """Simulate, find the cluster, differentiate, and compare both modes."""
    theory, box = planck(), SPACING * size
    grid = pfftjax.ProcessGrid((None, 1))
    run = pm.Simulation(
        pfftjax.PencilFFT((size,) * 3, grid, real=True),
        box,
        theory.cosmology,
        np.linspace(0.1, 1, 11 if size >= 64 else 4),
        power=theory.power,
        kernel="tsc",
        finer=1,
    )
    pencil = run.plan.input
    noise = jax.jit(lambda: pm.nested_noise(jax.random.key(1), run.plan, "float32"))()

    def today(noise):
        return spectral.gaussian_smoothing(run.density(run.run(noise)), run.plan, box, RADIUS)

    smooth = jax.jit(today)(noise)
    index, rank, _ = densest(smooth, grid)
    mark = jnp.zeros(pencil.local_shape, "float32")
    mark = mark.at[tuple(int(i) for i in index)].set(float(grid.comm.rank == rank))

    # The mean density in the window is what the smoothed field has at its centre.
    def mass(noise, mark):
        return pfftjax.vdot(mark, today(noise), grid)

    value, gradient = jax.jit(pfftjax.value_and_grad(mass))(noise, mark)
    direction = jax.jit(lambda: pm.white_noise(jax.random.key(2), pencil, "float32"))()
    direction = direction + gradient / pfftjax.norm(gradient, grid)
    _, along = jax.jit(lambda x, t: pfftjax.jvp(lambda x: mass(x, mark), (x,), (t,)))(
        noise, direction
    )
    product = float(pfftjax.vdot(gradient, direction, grid))
    if out:
        # As the density is painted on a mesh, so are the maps: slabs around the cluster.
        wide = max(round(2 * RADIUS / SPACING), 1)
        fields = jax.jit(lambda x: (run.linear(x), run.density(run.run(x))))(noise)
        maps = [slab(jnp.roll(x, wide // 2 - int(index[2]), 2), pencil, wide) for x in fields]
        # The derivative by the linear density, smoothed to the scale of the place.
        smooth = jax.jit(lambda g: spectral.gaussian_smoothing(g, run.plan, box, 1.0))(gradient)
        maps.append(slab(jnp.roll(smooth, wide // 2 - int(index[2]), 2), pencil, wide))
        place = whole(mark, pencil)
        if place is not None:
            centre = np.unravel_index(np.argmax(place), place.shape)[:2]
            draw(maps, centre, box, float(value), out)
    return [
        Fact(
            "gradient times a direction over forward mode, less 1",
            product / float(along) - 1,
            1e-3,
        )
    ]


def draw(maps, centre, box, value, out):
    """The field at the beginning, today's density, and the gradient, the cluster in the middle."""
    figure, axes = plt.subplots(1, 3, figsize=(12.8, 5.1), layout="constrained", sharey=True)
    shift = [image_side // 2 - c for image_side, c in zip(maps[0].shape, centre, strict=True)]
    linear, today, gradient = (np.roll(image, shift, (0, 1)) for image in maps)
    most, steepest = (float(np.abs(image).max()) for image in (linear, gradient))
    near = (box / 2 - min(box / 2, SEEN), box / 2 + min(box / 2, SEEN))
    diverging = {"cmap": "RdBu_r", "interpolation": "bicubic"}
    kinds = [
        (
            linear,
            "the beginning",
            r"$\delta$, linear, today",
            {**diverging, "vmin": -most, "vmax": most},
        ),
        (
            np.log10(np.maximum(1 + today, 1e-2)),
            "today",
            r"$\log_{10}(1 + \delta)$",
            {"cmap": "magma", "vmin": -1, "interpolation": "bicubic"},
        ),
        (
            gradient,
            "∂(mass of the cluster) / ∂(white noise)",
            "derivative",
            {**diverging, "vmin": -steepest, "vmax": steepest},
        ),
    ]
    for ax, (image, title, label, options) in zip(axes, kinds, strict=True):
        shown = draw_map(ax, image, box, UNIT, **options)
        ax.add_patch(Circle((box / 2, box / 2), RADIUS, fill=False, color="C2", lw=1.5))
        ax.set(title=title, xlim=near, ylim=near)
        figure.colorbar(shown, ax=ax, label=label, location="bottom", shrink=0.85)
    for ax in axes[1:]:
        ax.set_ylabel("")
    save(figure, out / "gradients.jpg")


if __name__ == "__main__":
    start(main, 96)

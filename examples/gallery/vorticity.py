"""Shallow water, before and after.

A jet on a rotating planet breaks into vortices: examples/shallow_water.py, explained in [Shallow
water](shallow_water.md). Its scheme conserves energy, and so has no way to lose the fine
filaments of vorticity which the flow draws out; with the plain friction of 5 m²/s they end as
noise of the size of cells, above. What is missing is friction that acts on waves of a few cells
only. The biharmonic one, ∂u/∂t = … − B ∇⁴u with B = V Δ³ (Griffies & Hallberg 2000), damps a
wave of two cells in a quarter of an hour at V = 0.1 m/s, and the jet, seven cells wide, in
years. It reads one more ghost cell, and still a step has a single exchange. Measured is how much
of the vorticity changes from cell to cell: the mean square of ∇²ζ Δ² over that of ζ.
"""

import common  # puts the folder of shallow_water.py on the path
import jax
import matplotlib.pyplot as plt
import numpy as np
import shallow_water as example
from common import FIRST, Fact, Folder, save

import pfftjax

DAYS = 3.0


def roughness(field):
    """The mean square of the five-point Laplacian over that of the field, inside of a margin."""
    inner = field[1:-1, 1:-1]
    across = field[1:-1, 2:] + field[1:-1, :-2] + field[2:, 1:-1] + field[:-2, 1:-1]
    return float(np.mean((across - 4 * inner) ** 2) / np.mean(inner**2))


def main(size: int, out: Folder) -> list[Fact]:
    """Run both, and compare their vorticity."""
    grid = pfftjax.ProcessGrid()
    steps = 2 * round(DAYS * example.DAY / example.STEP / 2) if size >= 180 else 200
    maps, mass = {}, 0.0
    for damping in (0.0, example.DAMPING):
        model = example.Model(2 * size, size, grid, "float32", damping)
        begin = jax.jit(lambda m=model: (m.start(*m.initial_fields()), m.rooms()))
        state, rooms = begin()
        before = example.totals(state, model)
        state, _ = model.advance(state, rooms, steps // 2)
        mass = max(mass, float(abs(example.totals(state, model)[0] / before[0] - 1)))
        maps[damping] = example.snapshot(state, model, pixels=2 * size)
    rough = [roughness(both[1]) for both in maps.values() if both]
    if out and FIRST:
        draw(maps, out)
    # A small mesh in a short time has hardly any filaments yet.
    bound = 0.3 if size >= 180 else 0.8
    ratio = grid.comm.bcast(rough[1] / rough[0] if FIRST else None)
    return [
        Fact(
            "roughness of the vorticity with biharmonic friction over that without", ratio, bound
        ),
        Fact("change of the mass", mass, 1e-5),
    ]


def draw(maps, out):
    """The vorticity of both."""
    figure, axes = plt.subplots(2, figsize=(7.6, 7.4), sharex=True, layout="compressed")
    most = 0.5 * max(float(np.abs(vorticity).max()) for _, vorticity in maps.values())
    for ax, (damping, (_, vorticity)) in zip(axes, maps.items(), strict=True):
        rows, columns = vorticity.shape
        extent = (0, columns * example.SPACING / 1e3, 0, rows * example.SPACING / 1e3)
        options = {"cmap": "RdBu_r", "vmin": -most, "vmax": most, "extent": extent}
        ax.imshow(vorticity, origin="lower", **options)
        how = f"and biharmonic, $V$ = {damping:g} m/s" if damping else "only"
        ax.set(ylabel="$y$ [km]", title=f"Day {DAYS:g}, friction of 5 m²/s {how}")
    axes[1].set_xlabel("$x$ [km]")
    figure.colorbar(axes[0].images[0], ax=axes, label="relative vorticity / $f_0$", shrink=0.8)
    save(figure, out / "vorticity.jpg")


if __name__ == "__main__":
    common.start(main, 180)

"""Who owns what.

The cells of an array at each stage of a transform, coloured by the rank that holds them: in real
space, between the two exchanges, and in the spectrum. The axis that is whole on every rank,
along which a rank can transform by itself, is that of the arrow. Sizes need not divide: 11 × 8 ×
9 on three rows and two columns of ranks leaves blocks that differ by a plane. Nothing is
computed here from formulas of our own: the pencils of a plan are asked, and so they say of any
sizes and any grid, in a plan of yours too. It is checked by a transform of numbers that name
their cells: every rank finds in its block the cells that the picture gives it.
"""

import jax.numpy as jnp
import matplotlib.pyplot as plt
import numpy as np
from common import COMM, FIRST, Fact, Folder, save, start
from matplotlib.patches import Rectangle
from mpi4py import MPI
from mpl_toolkits.mplot3d import proj3d

import pfftjax

COLOURS = ("#4878a8", "#e49444", "#6a9f58", "#b8749e", "#85b6b2", "#d7bd5f", "#a87c5f", "#7f7f7f")


def ranges(pencil: pfftjax.Pencil, rank: int):
    """The cells of a rank along each axis, as slices."""
    coordinates = divmod(rank, pencil.grid.dims[1])
    starts = (pencil.range_of(axis, coordinates) for axis in range(3))
    return tuple(slice(first, first + count) for first, count in starts)


def stages(plan: pfftjax.PencilFFT):
    """The pencils of a transform, and what they are called."""
    middle = pfftjax.Pencil(plan.shape, plan.grid, split=(0, 2), axes=(0, 2, 1))
    return [
        ("real space", plan.input),
        ("between the exchanges", middle),
        ("spectrum", plan.output),
    ]


def main(size: int, out: Folder) -> list[Fact]:
    """Compare every block with what its pencil says."""
    shape = (size + 3, size, size + 1)
    plan = pfftjax.PencilFFT(shape, pfftjax.ProcessGrid())
    names = np.arange(np.prod(shape)).reshape(shape)
    wrong, block, before = 0, None, None
    owners = {}
    for title, pencil in stages(plan):
        if block is None or before is None:
            block = jnp.asarray(names[ranges(pencil, COMM.rank)])
        else:
            block = pfftjax.transpose(block, before, pencil)
        before = pencil
        expected = names[ranges(pencil, COMM.rank)].transpose(pencil.axes)
        wrong += int((np.asarray(block) != expected).sum())
        held = np.full(shape, -1)
        for rank in range(COMM.size):
            held[ranges(pencil, rank)] = rank
        wrong += int((held < 0).sum())
        owners[title] = (held, pencil)
    if out and FIRST:
        draw(owners, plan.grid.dims, out)
    return [Fact("cells that are not where their pencil says", COMM.allreduce(wrong, MPI.SUM), 0)]


def draw(owners, dims, out):
    """A cube for each stage."""
    figure = plt.figure(figsize=(12.5, 4.6))
    for number, (title, (held, pencil)) in enumerate(owners.items()):
        axis = figure.add_subplot(1, 3, number + 1, projection="3d")
        colours = np.array(COLOURS)[held % len(COLOURS)]
        axis.voxels(np.ones(held.shape, bool), facecolors=colours, edgecolor="#ffffff50")
        axis.set_title(f"{title}: axes {pencil.axes}", y=0.98)
        axis.set_box_aspect(held.shape)
        axis.set_axis_off()
        whole = pencil.axes[-1]
        tip = np.eye(3)[whole] * (held.shape[whole] + 2.5)
        axis.quiver(0, 0, 0, *tip, color="black", arrow_length_ratio=0.12, lw=1.5)
        axis.view_init(elev=24, azim=-128)
        n0, n1, n2 = held.shape
        places = {"x": (n0 / 2, -1, -0.5), "y": (-1, n1 / 2, -0.5), "z": (n0 + 0.7, -0.7, n2 / 2)}
        x, y, z = tip * 1.07
        places["xyz"[whole]] = (x, y, z)
        for name, (x, y, z) in places.items():
            x, y, _ = proj3d.proj_transform(x, y, z, axis.get_proj())
            axis.text2D(
                x, y, name, transform=axis.transData, size=12, ha="center", va="center", zorder=1e4
            )
    ranks = dims[0] * dims[1]
    handles = [Rectangle((0, 0), 1, 1, color=COLOURS[r % len(COLOURS)]) for r in range(ranks)]
    labels = [f"rank {r}: row {r // dims[1]}, column {r % dims[1]}" for r in range(ranks)]
    figure.legend(handles, labels, loc="lower center", ncol=min(ranks, 3), frameon=False)
    figure.subplots_adjust(left=0, right=1, top=0.95, bottom=0.12, wspace=0)
    save(figure, out / "layouts.png")


if __name__ == "__main__":
    start(main, 8)

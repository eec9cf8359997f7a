"""Draws docs/pictures/layouts.png: mpirun -n 4 python docs/pictures/layouts.py

Asks the pencils of a plan who owns what; nothing about the layouts is written here again.
"""

import pathlib

import matplotlib
import numpy as np

import pfftjax

matplotlib.use("Agg")
import matplotlib.pyplot as plt

N = 8
COLORS = ("#4878a8", "#e49444", "#6a9f58", "#b8749e")


def owners(pencil):
    """The rank that holds each cell."""
    rows, columns = pencil.grid.dims
    result = np.full(pencil.global_shape, -1)
    for rank in range(rows * columns):
        ranges = [pencil.range_of(axis, divmod(rank, columns)) for axis in range(3)]
        result[tuple(slice(start, start + count) for start, count in ranges)] = rank
    assert result.min() >= 0
    return result


def draw(axis, pencil, title):
    """A cube, its cells coloured by owner, with an arrow along the contiguous axis."""
    colors = np.array(COLORS)[owners(pencil)]
    axis.voxels(np.ones(pencil.global_shape, bool), facecolors=colors, edgecolor="#ffffff30")
    axis.set_title(title, size=9)
    axis.set_box_aspect(pencil.global_shape)
    axis.set_axis_off()
    tips = np.eye(3)[pencil.axes[-1]] * (N + 2.2)
    axis.quiver(0, 0, 0, *tips, color="black", arrow_length_ratio=0.12, lw=1.4)
    for d, name in enumerate("xyz"):
        place = np.full(3, -0.4 if d < 2 else -1.0)
        place[d] = N + 3 if d == pencil.axes[-1] else N / 2
        axis.text(*place, name, size=10, ha="center", va="center")
    axis.view_init(elev=24, azim=-128)


def main():
    """Draw on rank 0; the grids are made on all."""
    pencils, slabs = pfftjax.ProcessGrid((2, 2)), pfftjax.ProcessGrid((4, 1))
    if pencils.comm.rank > 0:
        return
    figure = plt.figure(figsize=(10, 6.4))
    rows = [
        ("2 x 2", pfftjax.PencilFFT((N, N, N), pencils), True),
        ("4 x 1", pfftjax.PencilFFT((N, N, N), slabs), False),
    ]
    for row, (name, plan, has_middle) in enumerate(rows):
        stages = [(0, plan.input, "real space, axes (0, 1, 2)")]
        if has_middle:
            middle = pfftjax.Pencil(plan.shape, plan.grid, split=(0, 2), axes=(0, 2, 1))
            stages.append((1, middle, "between the exchanges, axes (0, 2, 1)"))
        stages.append((2, plan.output, "spectrum, axes (1, 2, 0)"))
        for column, pencil, title in stages:
            axis = figure.add_subplot(2, 3, 3 * row + column + 1, projection="3d")
            draw(axis, pencil, f"grid {name}: {title}")
    handles = [plt.Rectangle((0, 0), 1, 1, color=c) for c in COLORS]
    labels = [f"rank {r}" for r in range(4)]
    figure.legend(handles, labels, loc="lower center", ncol=4, frameon=False, fontsize=9)
    figure.subplots_adjust(left=0, right=1, top=0.95, bottom=0.05, wspace=0, hspace=0.08)
    figure.savefig(pathlib.Path(__file__).with_suffix(".png"), dpi=110)


if __name__ == "__main__":
    main()

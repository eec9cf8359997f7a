"""The pictures of shallow_water.py."""

import matplotlib
import numpy as np

matplotlib.use("Agg")
import matplotlib.pyplot as plt
from matplotlib.animation import FuncAnimation, PillowWriter


def draw_movie(movie, extent, out):
    """Draws surface height and vorticity: the end as a picture, and all frames as an animation.

    Args:
        movie: for each frame the day, and the maps of snapshot in shallow_water.py.
        extent: of the maps: west, east, south, north. km
        out: the folder for shallow_water.png and shallow_water.gif.

    """
    figure, axes = plt.subplots(2, figsize=(6.4, 6.2), sharex=True, layout="compressed")
    heights, vorticities = zip(*(maps for _, maps in movie), strict=True)
    # Vorticity is carried along: hardly any exceeds that of the jet at the beginning.
    most = max(np.abs(a).max() for a in heights), np.abs(vorticities[0]).max()
    shown = []
    for ax, limit, cmap, label in zip(
        axes,
        most,
        ("RdBu_r", "PuOr_r"),
        ("surface height [m]", r"relative vorticity / $f_0$"),
        strict=True,
    ):
        options = {"cmap": cmap, "vmin": -limit, "vmax": limit, "extent": extent}
        shown.append(ax.imshow(heights[0], origin="lower", **options))
        ax.set(ylabel=r"$y$ [km]")
        figure.colorbar(shown[-1], ax=ax, label=label)
    axes[1].set(xlabel=r"$x$ [km]")

    def show(frame):
        days, (height, vorticity) = movie[frame]
        shown[0].set_data(height)
        shown[1].set_data(vorticity)
        axes[0].set_title(f"Shallow water, day {days:.2f}")
        return shown

    show(len(movie) - 1)
    figure.savefig(out / "shallow_water.png", dpi=100)
    animation = FuncAnimation(figure, show, frames=len(movie))
    animation.save(out / "shallow_water.gif", writer=PillowWriter(fps=12), dpi=60)
    plt.close(figure)


def draw_gradient(image, extent, path):
    """Draws a map of the derivative."""
    figure, ax = plt.subplots(figsize=(6.4, 3.2), layout="compressed")
    most = float(np.abs(image).max())
    shown = ax.imshow(image, origin="lower", extent=extent, cmap="RdBu_r", vmin=-most, vmax=most)
    title = "d(mean square surface height) / d(initial height)"
    ax.set(xlabel=r"$x$ [km]", ylabel=r"$y$ [km]", title=title)
    figure.colorbar(shown, ax=ax, label=f"[m] / {image.size} cells")
    figure.savefig(path, dpi=110)
    plt.close(figure)

"""The command line, cosmology, pictures and movies that the programs of the gallery share."""

import argparse
import json
import pathlib
import sys
import time
from collections.abc import Callable, Sequence
from typing import NamedTuple

import jax
import jax_cosmo
import matplotlib
import numpy as np
from mpi4py import MPI
from PIL import Image

import pfftjax
from pfftjax import pm

matplotlib.use("Agg")
import matplotlib.pyplot as plt
from matplotlib.figure import Figure

Folder = pathlib.Path | None
EXAMPLES = pathlib.Path(__file__).parents[1]
TABLE = EXAMPLES / "data" / "planck2018_matter_power.txt"
# Entries import the longer programs beside this folder, too.
sys.path.append(str(EXAMPLES))
COMM = MPI.COMM_WORLD
FIRST = COMM.rank == 0

plt.rcParams.update({"font.size": 11, "savefig.dpi": 110, "axes.titlesize": 11})


class Fact(NamedTuple):
    """A number that an entry checks: its size must not exceed the bound."""

    what: str
    value: float
    bound: float

    @property
    def holds(self) -> bool:
        """False, too, where the value is not a number."""
        return abs(self.value) <= self.bound

    def __str__(self) -> str:
        return f"{self.what}: {self.value:.3g} (at most {self.bound:g})"


def start(main: Callable[[int, Folder], list[Fact]], size: int) -> None:
    """Run an entry from the command line; the status is not zero if a fact does not hold.

    Args:
        main: takes the size and the folder for pictures, None for no pictures.
        size: the default, by which the picture in the documentation was drawn.

    """
    name = pathlib.Path(sys.argv[0]).stem
    parser = argparse.ArgumentParser(prog=f"{name}.py")
    parser.add_argument("--size", type=int, default=size, help="points along each side")
    parser.add_argument("--out", type=pathlib.Path, help="folder for pictures; none by default")
    parser.add_argument("--record", type=pathlib.Path, help="folder for NAME.json, the numbers")
    arguments = parser.parse_args()
    jax.config.update("jax_enable_x64", True)
    begin = time.perf_counter()
    if arguments.out and FIRST:
        arguments.out.mkdir(parents=True, exist_ok=True)
    facts = main(arguments.size, arguments.out)
    seconds = COMM.allreduce(time.perf_counter() - begin, MPI.MAX)
    # Where other programs run, too, this says more than the time that has passed.
    cores = COMM.allreduce(time.process_time())
    if FIRST:
        for fact in facts:
            print(f"{name}: {fact}", flush=True)
        if arguments.record:
            arguments.record.mkdir(parents=True, exist_ok=True)
            record = {
                "size": arguments.size,
                "ranks": COMM.size,
                "seconds": round(seconds, 1),
                "core_seconds": round(cores, 1),
                "facts": [fact._asdict() for fact in facts],
                "jax": jax.__version__,
            }
            (arguments.record / f"{name}.json").write_text(json.dumps(record, indent=1) + "\n")
    sys.exit(not all(fact.holds for fact in facts))


class Planck(NamedTuple):
    """The cosmology of Planck 2018 and its spectra today, by CAMB: examples/data/README.md."""

    cosmology: jax_cosmo.Cosmology
    k: np.ndarray
    linear: np.ndarray
    nonlinear: np.ndarray

    @property
    def power(self) -> Callable:
        """The linear spectrum, as a function of k."""
        return pm.tabulated(self.k, self.linear)


def planck() -> Planck:
    """Read the table."""
    k, linear, _, nonlinear, _ = np.loadtxt(TABLE, unpack=True)
    names = {"Omega_c": 0.260666, "Omega_b": 0.048975, "h": 0.6766, "n_s": 0.9665}
    cosmology = jax_cosmo.Cosmology(**names, sigma8=0.821752, Omega_k=0.0, w0=-1.0, wa=0.0)
    return Planck(cosmology, k, linear, nonlinear)


def whole(block: jax.Array, pencil: pfftjax.Pencil) -> np.ndarray | None:
    """The whole of a distributed array on rank 0, None elsewhere."""
    columns = pencil.grid.dims[1]
    blocks = pencil.grid.comm.gather(np.asarray(block))
    if blocks is None:
        return None
    result = np.zeros(pencil.global_shape, blocks[0].dtype)
    for rank, part in enumerate(blocks):
        where = (pencil.range_of(axis, divmod(rank, columns)) for axis in pencil.axes)
        ranges = dict(zip(pencil.axes, where, strict=True))
        place = tuple(slice(n, n + m) for n, m in (ranges[a] for a in range(result.ndim)))
        result[place] = np.transpose(part, np.argsort(pencil.axes))
    return result


def slab(block: jax.Array, pencil: pfftjax.Pencil, planes: int) -> np.ndarray | None:
    """The mean over the first planes of axis 2, which is whole on every rank: on rank 0."""
    mean = np.asarray(block[..., :planes]).mean(-1, keepdims=True)
    thin = pfftjax.Pencil((*pencil.global_shape[:2], 1), pencil.grid)
    image = whole(mean, thin)
    return None if image is None else image[..., 0]


def draw_map(axes, image, side: float, unit: str = "", **options):
    """Show image[x, y] of a periodic box with x to the right."""
    shown = axes.imshow(image.T, origin="lower", extent=(0, side, 0, side), **options)
    axes.set(xlabel=f"$x${unit}", ylabel=f"$y${unit}")
    return shown


def save(figure: Figure, path: pathlib.Path) -> None:
    """Write a picture: a JPEG of about 100 KB, or a PNG by its name."""
    figure.savefig(path, pil_kwargs={"quality": 88} if path.suffix == ".jpg" else {})
    plt.close(figure)


def frame(figure: Figure, dpi: int = 80) -> Image.Image:
    """The figure as it is now, for a movie."""
    figure.set_dpi(dpi)
    figure.canvas.draw()
    figure.set_layout_engine("none")  # axes stay where they are from frame to frame
    return Image.fromarray(np.asarray(figure.canvas.buffer_rgba())[..., :3].copy())  # pyright: ignore[reportAttributeAccessIssue]


def save_movie(frames: Sequence[Image.Image], path: pathlib.Path, seconds: float = 6.0) -> None:
    """Write an animated WebP, which stands still at the end for a moment."""
    each = max(int(1e3 * seconds / len(frames)), 20)
    times = [each] * (len(frames) - 1) + [1500]
    frames[0].save(
        path, save_all=True, append_images=frames[1:], duration=times, loop=0, quality=70, method=4
    )

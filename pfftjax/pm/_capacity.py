"""How many particles a rank has room for, where the user does not say.

Arrays have as many rows on every rank, so that the fullest one decides. How full that is follows
from the size of its block in Mpc/h: the same mesh on the same ranks needs a tenth more rows than
the mean in a box of 3 Gpc/h, and three times the mean in one of 64 Mpc/h.
"""

import functools
import math
from statistics import NormalDist

import numpy as np
from jax.core import Tracer

from pfftjax._runtime.arguments import static_int
from pfftjax._runtime.arrays import Number
from pfftjax.pencils import Pencil

# This share of all universes has a rank with more particles than there is room for.
_OVERFLOWS = 0.01


def default_capacity(
    total: int, mesh: Pencil, sides: tuple[Number, ...] | np.ndarray | None = None
) -> int:
    """Rows for the fullest rank of 99 universes of 100, today.

    Args:
        total: particles on all ranks together.
        mesh: whose cells the ranks own.
        sides: of the box [Mpc/h]. Where they are not known, or only while the program runs, the
            fullest rank counts as having a quarter more than the mean.

    Returns:
        That many, and 6 mean^(2/3) more for particles on the faces of the block: 1.44 times the
        mean of 32^3 particles, and 1.27 of 256^3, where the sides are not known.

    """
    origin = (0, 0)  # the ranks with these coordinates own the largest blocks
    fractions = tuple(
        mesh.range_of(axis, origin)[1] / n for axis, n in enumerate(mesh.global_shape)
    )
    mean = total * math.prod(fractions)
    most = 1.25
    if sides is not None and not any(isinstance(side, Tracer) or side <= 0 for side in sides):
        # The tenth is for universes that cluster more than the spectrum below.
        most = max(1.1, fullest(fractions, tuple(float(x) for x in sides), mesh.grid.size))
    # A layer of particles may lie on each face of the block.
    return min(total, math.ceil(most * mean + 6 * mean ** (2 / 3)))


def room_for(
    capacity: int | None,
    total: int,
    mesh: Pencil,
    operation: str,
    sides: tuple[Number, ...] | None = None,
) -> int:
    """The rows that the user gives each rank, or else `default_capacity`."""
    if capacity is None:
        return default_capacity(total, mesh, sides)
    return static_int(capacity, "capacity", operation, mesh.grid.communicator)


@functools.lru_cache
def fullest(fractions: tuple[float, ...], sides: tuple[float, ...], ranks: int) -> float:
    """The density of the fullest of so many blocks, over the mean, in all but few universes.

    The density in a block is taken to be lognormal (Coles & Jones 1991), with the variance of
    linear theory today, and the blocks to be independent. Of 12 universes each, run with 64^3
    particles in 64 and in 200 Mpc/h and divided among 2, 4, 16 and 64 ranks, the fullest block
    was between 0.82 and 1.02 of it.

    Args:
        fractions: of the box that a block takes, along each axis.
        sides: of the box [Mpc/h].
        ranks: how many blocks there are.

    """
    spread = math.sqrt(math.log1p(variance(fractions, sides)))
    deviations = NormalDist().inv_cdf(1 - _OVERFLOWS / ranks)
    return math.exp(deviations * spread - spread**2 / 2)


def variance(fractions: tuple[float, ...], sides: tuple[float, ...]) -> float:
    """The variance of the mean linear density contrast in a block of a periodic box, today."""
    squared, weight = np.zeros(()), np.ones(())
    for axis, (fraction, side) in enumerate(zip(fractions, sides, strict=True)):
        along = tuple(-1 if axis == other else 1 for other in range(len(sides)))
        mode, number = _modes(fraction)
        squared = squared + ((2 * np.pi / side * mode) ** 2).reshape(along)
        weight = weight * (number * np.sinc(mode * fraction) ** 2).reshape(along)
    k = np.sqrt(squared)
    power = np.where(k > 0, _power(np.where(k > 0, k, 1.0)), 0.0)
    return float(np.sum(power * weight)) / math.prod(sides)


def _modes(fraction: float) -> tuple[np.ndarray, np.ndarray]:
    """Wavenumbers along an axis, and for how many of the box's waves each of them stands.

    They are in units of the lowest, and go up to four waves in a block. All up to 64 are there;
    beyond, one stands for those within a twentieth of its size.
    """
    if fraction == 1:
        return np.zeros(1), np.ones(1)  # the block averages all others
    end = math.ceil(4 / fraction) + 1
    edges = np.arange(min(end, 65) + 1.0)
    if end > 65:
        wider = np.geomspace(65, end, 2 + math.ceil(20 * math.log(end / 65)))
        edges = np.unique(np.round(np.concatenate([edges, wider])))
    numbers = np.diff(edges)
    return edges[:-1] + (numbers - 1) / 2, np.where(edges[:-1] > 0, 2, 1) * numbers


def _power(k: np.ndarray) -> np.ndarray:
    """A linear spectrum like that of our universe (Bardeen et al. 1986), with sigma8 = 0.85.

    The spectrum of the run may depend on traced parameters, and a number of rows must not.
    """
    return _AMPLITUDE * _shape(k)


def _shape(k: np.ndarray) -> np.ndarray:
    q = k / 0.21
    polynomial = 1 + 3.89 * q + (16.1 * q) ** 2 + (5.46 * q) ** 3 + (6.71 * q) ** 4
    return k**0.96 * (np.log1p(2.34 * q) / (2.34 * q)) ** 2 / np.sqrt(polynomial)


def _variance_of_spheres(radius: float) -> float:
    """The variance of the mean in spheres, by the trapezoidal rule in log k, but for amplitude."""
    k = np.geomspace(1e-4, 1e2, 4000)
    x = k * radius
    window = 3 * (np.sin(x) - x * np.cos(x)) / x**3
    integrand = _shape(k) * window**2 * k**3 / (2 * np.pi**2)
    return float(np.sum(integrand[1:] + integrand[:-1]) / 2 * np.log(k[1] / k[0]))


_AMPLITUDE = 0.85**2 / _variance_of_spheres(8.0)

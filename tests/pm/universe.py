"""Particles and cosmologies in tests: every rank knows the particles of all ranks, and what paint
and readout make of them, by sums over the whole mesh."""

import pathlib

import jax.numpy as jnp
import jax_cosmo
import numpy as np

from pfftjax import PencilFFT
from pfftjax.pm import linear_field, lpt, tabulated
from tests.helpers import CONTROL, random

ROOT = pathlib.Path(__file__).resolve().parents[2]
TABLE = ROOT / "examples" / "data" / "planck2018_matter_power.txt"


def cosmology(**changes):
    """That of the table, flat LCDM of Planck 2018; a fresh one, which keeps nothing of a trace."""
    parameters = {
        "Omega_c": 0.260666,
        "Omega_b": 0.048975,
        "h": 0.6766,
        "n_s": 0.9665,
        "sigma8": 0.821752,
        "Omega_k": 0.0,
        "w0": -1.0,
        "wa": 0.0,
    }
    return jax_cosmo.Cosmology(**{**parameters, **changes})


def table():
    """(k, P(k) today), linear."""
    k, power, *_ = np.loadtxt(TABLE).T
    return k, power


# A small universe, of sides that differ, and four steps through it.
SHAPE, BOX = (6, 9, 8), (18.0, 27.0, 24.0)
ENDS = np.linspace(0.1, 1, 5)
OMEGA_C = 0.26


def small_plan(grid):
    """The transforms of its mesh."""
    return PencilFFT(SHAPE, grid, real=True)


def small_noise(plan, seed=3, dtype="float64"):
    """This rank's block of white noise."""
    return jnp.asarray(plan.input.local_block(random(SHAPE, dtype, seed)))


def small_start(noise, omega_c, plan, box=BOX):
    """Its particles at the first of the scale factors, with all that an integrator may want."""
    delta = linear_field(noise, plan, BOX, tabulated(*table()))
    universe = cosmology(Omega_c=omega_c)
    return lpt(delta, plan, box, universe, ENDS[0], keep_displacements=True)


def owners(cells, pencil):
    """The ranks that own cells (..., 3)."""
    part = []
    for axis, n in enumerate(pencil.grid.dims):
        coords = [(i, 0) if axis == 0 else (0, i) for i in range(n)]
        ends = [sum(pencil.range_of(axis, c)) for c in coords]
        cell = np.asarray(cells)[..., axis] % pencil.global_shape[axis]
        part.append(np.searchsorted(ends, cell, side="right"))
    return part[0] * pencil.grid.dims[1] + part[1]


def at_home(pencil, rows, seed=0, *, smooth=False):
    """Particles of all ranks, each in its rank's block: (cells (ranks, rows, 3), fractions, how
    many rows of each rank are used). A rank without cells has none.

    Fractions are multiples of 1/64, exact in float32 as well; `smooth` keeps them off the points
    where a derivative of an assignment kernel jumps.
    """
    rng = np.random.default_rng(seed)
    dims = pencil.grid.dims
    cells = np.zeros((pencil.grid.size, rows, 3), np.int32)
    used = np.zeros(pencil.grid.size, np.int32)
    for rank in range(pencil.grid.size):
        ranges = [pencil.range_of(axis, divmod(rank, dims[1])) for axis in range(3)]
        draws = rng.random((rows, 3))
        if min(count for _, count in ranges) > 0:
            starts, counts = zip(*ranges, strict=True)
            cells[rank] = starts + np.floor(draws * counts)
            used[rank] = rows - rank % 2 if rows else 0
    fractions = rng.integers(0, 32, cells.shape) / 32
    fractions += (1 if smooth else rng.integers(0, 2, cells.shape)) / 64
    return cells, fractions, used


def _kernel(distance, kernel, xp):
    """The assignment kernel (Hockney & Eastwood 1988; of PCS, Sefusatti et al. 2016) as a function
    of the distance of a mesh point from a particle.
    """
    x = xp.abs(distance)
    if kernel == "ngp":
        return xp.where((distance > -0.5) & (distance <= 0.5), 1.0, 0.0)
    if kernel == "cic":
        return xp.maximum(0, 1 - x)
    if kernel == "pcs":
        inner, outer = 4 - 6 * x**2 + 3 * x**3, xp.maximum(0, 2 - x) ** 3
        return xp.where(x < 1, inner, outer) / 6
    return xp.where(x < 0.5, 0.75 - x**2, xp.where(x < 1.5, 0.5 * (1.5 - x) ** 2, 0))


def _weights(u, shape, kernel, xp):
    """Along each axis, (..., n): of each mesh point with its periodic images."""
    for axis, n in enumerate(shape):
        points = np.arange(n)[:, None] + n * np.arange(-3, 4)
        yield _kernel(points - (u[..., axis] % n)[..., None, None], kernel, xp).sum(-1)


def painted(u, values, shape, kernel, xp=np):
    """u (..., 3) in cells, values (..., components) -> (components, *shape)"""
    weights = _weights(u, shape, kernel, xp)
    return xp.einsum("...i,...j,...k,...c->cijk", *weights, values, optimize=True)


def interpolated(field, u, kernel, xp=np):
    """field (components, *shape), u (..., 3) -> (..., components)"""
    weights = _weights(u, field.shape[1:], kernel, xp)
    return xp.einsum("...i,...j,...k,cijk->...c", *weights, field, optimize=True)


def everybody(particles):
    """(cells, offsets, momenta) of the particles of all ranks, sorted by the cells that they come
    from."""
    used = int(particles.used)
    rows = (np.asarray(x)[:used] for x in (particles.cell, particles.offset, particles.momentum))
    parts = zip(*CONTROL.allgather(tuple(rows)), strict=True)
    cell, offset, momentum = (np.concatenate(part) for part in parts)
    order = np.lexsort(cell.T[::-1])
    return cell[order], offset[order], momentum[order]

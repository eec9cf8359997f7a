"""Particles as NumPy's arrays in double precision, for what works outside of programs."""

import dataclasses

import numpy as np

from pfftjax._runtime.arrays import BoxSize, Number
from pfftjax.fft.internal import sides_of

from ._exchange import MOST_CELLS
from ._identity import identities_of
from ._particles import Particles

# 3 (100 km/s/Mpc)^2 / (8 pi G) in Msun/h per (Mpc/h)^3, with G Msun and the parsec as the IAU has
# them (2015, B3 and B2).
CRITICAL_DENSITY = 2.77536627e11


@dataclasses.dataclass(frozen=True)
class OnHost:
    """Particles of one rank, without unused rows.

    Attributes:
        position: float64 (used, 3) [Mpc/h], from 0 to below the sides of the box: the same bits on
            whichever rank a particle is.
        velocity: float64 (used, 3), peculiar [km/s]; None if it is not known when they are.
        identity: uint64 (used,), the number of each `cell`.
        at: int32 (used, 3), the mesh cell in which it is.
        sides: float64 (3,), of the box [Mpc/h].
        scale_factor: when they are; None where it is not known.

    """

    position: np.ndarray
    velocity: np.ndarray | None
    identity: np.ndarray
    at: np.ndarray
    sides: np.ndarray
    scale_factor: float | None


def on_host(
    particles: Particles,
    operation: str,
    *,
    box_size: BoxSize | None = None,
    scale_factor: Number | None = None,
) -> OnHost:
    """Particles that have been computed, with a box and a time in place of those that they know.

    Raises:
        ValueError: no box is known, an invalid one, or an invalid time; particles that are
            nowhere, or more of them than rows.

    """
    used = int(np.asarray(particles.used))
    if not 0 <= used <= particles.rows:
        raise ValueError(f"used is {used}, but the arrays have {particles.rows} rows")
    box = particles.box_size if box_size is None else box_size
    if box is None:
        raise ValueError("these particles have no box_size of their own; give it")
    sides = np.asarray([float(side) for side in sides_of(box, 3, operation)])
    a = known_scale_factor(particles.scale_factor if scale_factor is None else scale_factor)
    if a is None and scale_factor is not None:
        raise ValueError(f"scale_factor must be a positive number, got {scale_factor!r}")

    shape = np.asarray(particles.mesh_shape)
    cell = np.asarray(particles.cell)[:used]
    offset = np.asarray(particles.offset)[:used].astype(np.float64)
    momentum = np.asarray(particles.momentum)[:used].astype(np.float64)
    if not (np.all(np.abs(offset) < MOST_CELLS) and np.all(np.isfinite(momentum))):
        raise ValueError("a particle has a position or a momentum that is no finite number")
    at = np.mod(cell % shape + offset, shape)
    at[at >= shape] = 0  # what is hardly below zero is rounded up
    return OnHost(
        position=np.minimum(at * (sides / shape), np.nextafter(sides, 0)),
        velocity=None if a is None else momentum * (100 / a),
        identity=identities_of(cell, particles.mesh_shape),
        at=at.astype(np.int32),
        sides=sides,
        scale_factor=a,
    )


def known_scale_factor(scale_factor: Number | None) -> float | None:
    """A scale factor as a number; None for 0 as well, by which particles do not know theirs."""
    if scale_factor is None:
        return None
    value = np.asarray(scale_factor)
    is_number = value.ndim == 0 and value.dtype.kind in "iuf"
    if not is_number or not 0 <= float(value) < np.inf:
        raise ValueError(f"scale_factor must be a positive number, got {scale_factor!r}")
    return float(value) or None

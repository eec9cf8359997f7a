"""What snapshots of other codes have in common: positions, velocities and identities by row, and a
header with the box, the time and the cosmology.
"""

import dataclasses
import os
from collections.abc import Mapping
from typing import Any

import numpy as np
from jax.core import Tracer
from jax.typing import DTypeLike
from mpi4py import MPI

from pfftjax._runtime.agreement import together
from pfftjax._runtime.arrays import Number
from pfftjax.pencils import Pencil
from pfftjax.pencils.internal import block
from pfftjax.pm import Particles
from pfftjax.pm.internal import CRITICAL_DENSITY, Cosmology, check_fits, on_host

from ._contents import Path
from ._particles import parameters_of

# Centimetres of a Mpc and grams of 1e10 solar masses, as these codes have them.
CM_PER_MPC = 3.085678e24
GRAMS_PER_MASS = 1.989e43
# The kind of particles that dark matter is in Gadget and in all that descends from it.
DARK_MATTER = 1


@dataclasses.dataclass(frozen=True)
class Header:
    """What a header says of all particles.

    Attributes:
        total: particles of all ranks.
        side: of the cubic box [Mpc/h].
        scale_factor: of the snapshot.
        mass: of each particle [1e10 Msun/h].
        omega_m: the matter density parameter today.
        omega_b: that of baryons.
        omega_lambda: one less matter and curvature.
        h: the Hubble parameter.

    """

    total: int
    side: float
    scale_factor: float
    mass: float
    omega_m: float
    omega_b: float
    omega_lambda: float
    h: float

    @property
    def redshift(self) -> float:
        return 1 / self.scale_factor - 1


@dataclasses.dataclass(frozen=True)
class Rows:
    """Particles of one rank as rows of a snapshot.

    Attributes:
        position: float64 (used, 3) [Mpc/h].
        velocity: float64 (used, 3), peculiar [km/s].
        identity: uint64 (used,).
        counts: rows of each rank.
        dtype: in which positions and velocities are stored.
        header: what is said of all.

    """

    position: np.ndarray
    velocity: np.ndarray
    identity: np.ndarray
    counts: tuple[int, ...]
    dtype: np.dtype
    header: Header

    def positions_in(self, unit: float) -> np.ndarray:
        """Positions as they are stored, in units of so many Mpc/h."""
        stored = (self.position / unit).astype(self.dtype)
        # Rounding may reach the side itself, which is the same place as zero.
        stored[stored >= self.header.side / unit] = 0
        return stored

    def velocities_in(self, unit: float) -> np.ndarray:
        """Velocities as they are stored, in units of so many km/s."""
        return (self.velocity / unit).astype(self.dtype)


def rows_of(
    particles: Particles,
    mesh: Pencil,
    cosmology: Cosmology,
    dtype: DTypeLike | None,
    comm: MPI.Intracomm,
    operation: str,
) -> Rows:
    """Particles as rows of a snapshot. Collective.

    Raises:
        TypeError, ValueError: particles that no snapshot can be made of.

    """
    with together(comm, operation):
        check_fits(particles, mesh, operation)
        if isinstance(particles.offset, Tracer):
            raise TypeError("the particles are traced; save outside of jitted code")
        into = np.dtype(particles.offset.dtype if dtype is None else dtype)
        if into not in (np.float32, np.float64):
            raise TypeError(f"dtype must be float32 or float64, got {into}")
        mine = on_host(particles, operation)
        if mine.velocity is None or mine.scale_factor is None:
            raise ValueError(
                "these particles have no scale_factor of their own; give it: "
                "dataclasses.replace(particles, scale_factor=a)"
            )
        side = float(mine.sides[0])
        if not np.allclose(mine.sides, side, rtol=1e-6, atol=0):
            raise ValueError(
                f"snapshots of other codes have cubic boxes, but this one has the sides "
                f"{tuple(mine.sides.tolist())}; use save_particles"
            )
        names = ("Omega_m", "Omega_b", "Omega_k", "h")
        omega_m, omega_b, omega_k, h = map(float, parameters_of(cosmology, names).values())
        total = particles.total
        header = Header(
            total=total,
            side=side,
            scale_factor=mine.scale_factor,
            mass=CRITICAL_DENSITY * omega_m * side**3 / max(total, 1) / 1e10,
            omega_m=omega_m,
            omega_b=omega_b,
            omega_lambda=1 - omega_m - omega_k,
            h=h,
        )
    counts = tuple(comm.allgather(len(mine.position)))
    with together(comm, operation):
        if sum(counts) != total:
            raise ValueError(f"the ranks have {sum(counts)} particles, but total is {total}")
    return Rows(mine.position, mine.velocity, mine.identity, counts, into, header)


def shares_of(total: int, comm: MPI.Intracomm) -> tuple[int, int, int]:
    """(start, count) of the rows that this rank reads, and the most that any does, at least one:
    as many on every rank make one program.
    """
    start, count = block(total, comm.size, comm.rank)
    return start, count, max(block(total, comm.size, 0)[1], 1)


def attribute(
    attributes: Mapping[str, Any], file: object, where: str, name: str, default: object = None
) -> Any:
    """An attribute of a header of a file, one number as such."""
    if name in attributes:
        value = np.asarray(attributes[name])
        return value.item() if value.size == 1 else value
    if default is None:
        raise KeyError(f"{file} has no attribute {name} in {where}")
    return default


def one_side(value: object, path: Path) -> float:
    """The side of the box, of a number or of three that are equal."""
    sides = np.ravel(np.asarray(value, float))
    if sides.size not in (1, 3) or not np.all(sides == sides[0]) or not sides[0] > 0:
        raise ValueError(
            f"{os.fspath(path)}: BoxSize must be the positive side of a cube, got {value!r}"
        )
    return float(sides[0])


def length_of(unit: object, given: Number | None, path: Path) -> float:
    """The unit of length of a file [Mpc/h]: that given, or by its UnitLength_in_cm."""
    if given is not None:
        if not float(given) > 0:
            raise ValueError(f"length_unit must be a positive number of Mpc/h, got {given!r}")
        return float(given)
    if unit is None:
        raise ValueError(
            f"{os.fspath(path)} does not say its unit of length (UnitLength_in_cm); give it in "
            "Mpc/h: length_unit=1e-3 for kpc/h"
        )
    length = float(np.ravel(np.asarray(unit, float))[0]) / CM_PER_MPC
    # Codes write the parsec with different digits.
    nearest = 10.0 ** round(np.log10(length)) if length > 0 else length
    return nearest if abs(length / nearest - 1) < 1e-4 else length

"""Particles where a catalogue has them: rows of coordinates, outside of jitted code."""

import jax
import jax.numpy as jnp
import numpy as np
from jax.core import Tracer
from jax.typing import DTypeLike

from pfftjax._runtime.agreement import private, same_everywhere, together
from pfftjax._runtime.arrays import BoxSize, Number, VectorsLike
from pfftjax._runtime.primitive import where
from pfftjax.fft.internal import sides_of
from pfftjax.pencils import Pencil
from pfftjax.pencils.internal import checked_pencil

from ._growth import are_positive
from ._identity import cells_of
from ._particles import Particles
from ._positions import checked_mesh


def particles_at(
    coordinates: VectorsLike,
    mesh: Pencil,
    box_size: BoxSize,
    velocities: VectorsLike | None = None,
    *,
    scale_factor: Number | None = None,
) -> Particles:
    """The particles of a catalogue: haloes that were found, galaxies, points of another program.

    This is the way back from `Particles.coordinates` and `Particles.velocities`. Each rank gives
    the rows that it has, whichever they are, and keeps them in their order; `density_contrast`,
    `pfftjax.observables` and `to_owners` send them to the ranks that own their cells.

    Collective over the ranks of the mesh's grid, and outside of jitted code, as ranks tell each
    other how many rows they have.

    Args:
        coordinates: floating-point numbers (rows, 3) in the unit of the box, from 0 to its sides;
            (0, 3) on a rank that has none.
        mesh: of the pencil in which particles will be used, as `PencilFFT.input`.
        box_size: side of the box: a number, or one for each axis.
        velocities: peculiar [km/s], (rows, 3); by default zero.
        scale_factor: when the particles are, which velocities need; by default not known.

    Returns:
        `Particles`, in the dtype of the coordinates, with as many rows as the rank that has most.
        The identity of a particle is the number of its row, rank after rank.

    Raises:
        TypeError: traced coordinates, or no floating-point numbers.
        ValueError: other shapes, numbers that are not finite, coordinates outside of the box,
            velocities without a scale factor.
        RuntimeError: ranks that have different boxes, scale factors or dtypes.

    An offset reaches from the cell with the number of the particle's identity to where it is, and
    can be as long as half of the box: in float32 it is as good as a position in float32.

    Example:
        >>> from pfftjax import PencilFFT, ProcessGrid
        >>> from pfftjax.pm import density_contrast
        >>> plan = PencilFFT((8, 8, 8), ProcessGrid(), real=True)
        >>> rank = plan.grid.comm.rank
        >>> galaxies = np.random.default_rng(rank).uniform(0, 50, (100 + rank, 3))    # Mpc/h
        >>> particles = particles_at(galaxies, plan.input, 50.0)
        >>> density_contrast(particles, plan).shape == plan.input.local_shape
        True

    """
    operation = "particles_at"
    grid = checked_pencil(mesh, operation, "mesh").grid
    leaves = jax.tree.leaves((coordinates, box_size, velocities, scale_factor))
    if any(isinstance(leaf, Tracer) for leaf in leaves):
        raise TypeError(
            f"{where(operation, grid.communicator)}: the coordinates are traced; call it outside "
            "of jitted code, and differentiate in what it returns: "
            "dataclasses.replace(particles, offset=x)"
        )
    with private(grid.comm) as comm:
        with together(comm, operation):
            checked_mesh(mesh, operation)
            position = _rows(coordinates, "coordinates")
            sides = np.asarray([float(side) for side in sides_of(box_size, 3, operation)])
            if velocities is None:
                velocity, speed = np.zeros(position.shape, position.dtype), 0.0
            else:
                velocity = _rows(velocities, "velocities")
                if velocity.shape != position.shape:
                    raise ValueError(
                        f"velocities {velocity.shape} must be those of coordinates "
                        f"{position.shape}"
                    )
                if scale_factor is None or not are_positive(scale_factor):
                    raise ValueError(
                        f"velocities need a positive scale_factor, got {scale_factor!r}"
                    )
                speed = float(np.asarray(scale_factor)) / 100
        same_everywhere(
            f"{position.dtype} in the box {sides.tolist()} at scale factor {scale_factor}",
            comm,
            operation,
            "every rank must call with the same box, scale factor and dtype",
        )
        counts = comm.allgather(len(position))
        first = sum(counts[: comm.rank])
        with together(comm, operation):
            return placed(
                position.astype(np.float64),
                velocity.astype(np.float64) * speed,
                np.arange(first, first + len(position), dtype=np.uint64),
                rows=max(counts),
                sides=sides,
                scale_factor=scale_factor,
                total=sum(counts),
                mesh=mesh,
                dtype=jax.dtypes.canonicalize_dtype(position.dtype),
                source="a catalogue",
            )


def _rows(x: VectorsLike, name: str) -> np.ndarray:
    """An array of vectors in single or double precision."""
    array = np.asarray(x)
    if array.dtype not in (np.float32, np.float64):
        raise TypeError(f"{name} must be float32 or float64, got {array.dtype}")
    if array.ndim != 2 or array.shape[1] != 3:
        raise ValueError(f"{name} must be (rows, 3), got {array.shape}")
    return array


def placed(
    position: np.ndarray,
    momentum: np.ndarray,
    identity: np.ndarray,
    *,
    rows: int,
    sides: np.ndarray,
    scale_factor: Number | None,
    total: int,
    mesh: Pencil,
    dtype: DTypeLike,
    source: str,
) -> Particles:
    """The particles of these positions, on this rank.

    Args:
        position: float64 (used, 3), in the unit of the sides.
        momentum: float64 (used, 3), a^2 dx/dt, x in Mpc/h and H0 = 1.
        identity: uint64 (used,), which decides from which cell offsets are measured.
        rows: of the arrays.
        sides: float64 (3,), of the box.
        scale_factor: when they are.
        total: particles of all ranks.
        mesh: whose cells are the unit.
        dtype: of offsets and momenta.
        source: where they come from, for errors.

    Raises:
        ValueError: positions outside of the box, or numbers that are not finite.

    """
    n0, n1, n2 = mesh.global_shape
    shape = np.array([n0, n1, n2])
    if not (np.all(np.isfinite(position)) and np.all(np.isfinite(momentum))):
        raise ValueError(f"a position or a velocity in {source} is no finite number")
    # Codes differ in whether the side itself is in the box, and float32 rounds.
    if not np.all((position >= -1e-5 * sides) & (position <= 1.00001 * sides)):
        box = " x ".join(f"{side:.6g}" for side in sides)
        raise ValueError(
            f"positions in {source} are from {position.min():.6g} to {position.max():.6g}, "
            f"outside of the box of {box}; are both in the same unit of length?"
        )
    cell = cells_of(identity, (n0, n1, n2))
    offset = position * (shape / sides) - cell % shape
    offset -= shape * np.round(offset / shape)

    def padded(x: np.ndarray, into: DTypeLike) -> jax.Array:
        whole = np.zeros((rows, 3), into)
        whole[: len(x)] = x
        return jnp.asarray(whole)

    return Particles(
        padded(cell, np.int32),
        padded(offset, dtype),
        padded(momentum, dtype),
        jnp.int32(len(cell)),
        total,
        (n0, n1, n2),
        scale_factor=scale_factor,
        box_size=sides,
    )

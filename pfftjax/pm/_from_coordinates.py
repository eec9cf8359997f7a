"""Particles where a catalogue has them: rows of coordinates, outside of jitted code."""

import jax
import jax.numpy as jnp
import numpy as np
from jax.core import Tracer
from jax.typing import ArrayLike, DTypeLike

from pfftjax._runtime.agreement import private, same_everywhere, together
from pfftjax._runtime.arguments import where
from pfftjax._runtime.arrays import BoxSize, Number, VectorsLike
from pfftjax.fft.internal import sides_of
from pfftjax.pencils import Pencil
from pfftjax.pencils.internal import checked_pencil

from ._identity import cells_of
from ._on_host import known_scale_factor
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

    Each rank gives the rows that it has, whichever they are, and keeps them in their order;
    `density_contrast`, `pfftjax.observables` and `to_owners` send them to the ranks that own their
    cells.

    Collective over the ranks of the mesh's grid, and outside of jitted code, as ranks tell each
    other how many rows they have.

    Args:
        coordinates: float32 or float64 (rows, 3), in the unit of the box, from 0 to its sides;
            (0, 3) on a rank that has none. Of `Particles.coordinates`, these are the first `used`
            rows.
        mesh: of the pencil in which particles will be used, as `PencilFFT.input`.
        box_size: side of the box: a number, or one for each axis.
        velocities: peculiar [km/s], (rows, 3); by default zero.
        scale_factor: when the particles are, which velocities need; by default not known.

    Returns:
        `Particles`, in the dtype of the coordinates, with as many rows as the rank that has most.
        The identity of a particle is the number of its row, rank after rank.

    Raises:
        TypeError: a traced argument, no floating-point numbers, or of other precision than on
            another rank; no `Pencil`.
        ValueError: other shapes, numbers that are not finite, coordinates outside of the box,
            velocities without a scale factor, one that is no positive number, an invalid box, a
            pencil that is no mesh.
        RuntimeError: ranks with other meshes, boxes or scale factors, or velocities on some only.

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
        >>> again = particles_at(particles.coordinates()[: len(galaxies)], plan.input, 50.0)
        >>> again.total == particles.total
        True

    """
    operation = "particles_at"
    grid = checked_pencil(mesh, operation, "mesh").grid
    leaves = jax.tree.leaves((coordinates, box_size, velocities, scale_factor))
    if any(isinstance(leaf, Tracer) for leaf in leaves):
        raise TypeError(
            f"{where(operation, grid.communicator)}: an argument is traced; call it outside of "
            "jitted code, and differentiate in what it returns, of which `offset` is in cells of "
            "the mesh: dataclasses.replace(particles, offset=x)"
        )
    comm = private(grid.comm)
    with together(comm, operation):
        checked_mesh(mesh, operation)
        position = _vectors(coordinates, "coordinates")
        sides = np.asarray([float(side) for side in sides_of(box_size, 3, operation)])
        a = known_scale_factor(scale_factor)
        momentum = np.zeros(position.shape)
        if velocities is not None:
            velocity = _vectors(velocities, "velocities")
            if velocity.shape != position.shape:
                raise ValueError(
                    f"velocities {velocity.shape} must be those of coordinates {position.shape}"
                )
            if a is None:
                raise ValueError("velocities need a scale_factor")
            momentum = velocity.astype(np.float64) * (a / 100)
    with_or_without = "without" if velocities is None else "with"
    same_everywhere(
        f"a mesh {mesh.global_shape} in the box {sides.tolist()} at scale factor {a} "
        f"{with_or_without} velocities",
        comm,
        operation,
        "every rank must call with the same mesh, box and scale factor, and all of them with "
        "velocities or none",
    )
    dtype = jax.dtypes.canonicalize_dtype(position.dtype).name
    everybody = comm.allgather((len(position), dtype))
    counts = [count for count, _ in everybody]
    first = sum(counts[: comm.rank])
    with together(comm, operation):
        dtypes = sorted({its for count, its in everybody if count} or {everybody[0][1]})
        if len(dtypes) > 1:
            raise TypeError(f"coordinates are of {' and '.join(dtypes)} on different ranks")
        return placed(
            position,
            momentum,
            np.arange(first, first + len(position), dtype=np.uint64),
            rows=max(counts),
            sides=sides,
            scale_factor=a,
            total=sum(counts),
            mesh=mesh,
            dtype=dtypes[0],
            source="a catalogue",
        )


def machine_order(x: ArrayLike) -> ArrayLike:
    """An array whose bytes are in the order of this machine: in files of FITS they are not."""
    if isinstance(x, np.ndarray) and not x.dtype.isnative:
        return x.astype(x.dtype.newbyteorder("="))
    return x


def _vectors(x: VectorsLike, name: str) -> np.ndarray:
    """An array of vectors in single or double precision."""
    array = np.asarray(machine_order(x))
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
        position: (used, 3), in the unit of the sides.
        momentum: (used, 3), a^2 dx/dt, x in Mpc/h and H0 = 1.
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
    position, momentum = position.astype(np.float64), momentum.astype(np.float64)
    for name, numbers in (("position", position), ("velocity", momentum)):
        finite = np.isfinite(numbers).all(1)
        if not finite.all():
            raise ValueError(f"the {name} of row {finite.argmin()} of {source} is not finite")
    # Codes differ in whether the side itself is in the box, and float32 rounds.
    is_inside = (position >= -1e-5 * sides) & (position <= 1.00001 * sides)
    if not is_inside.all():
        row, axis = np.argwhere(~is_inside)[0]
        raise ValueError(
            f"the position {position[row].tolist()} of row {row} of {source} is outside of the "
            f"box {sides.tolist()} along axis {axis}, and so are {(~is_inside.all(1)).sum()} of "
            f"{len(position)} here; positions are in the unit of the box and from 0 to its sides: "
            "x % box_size, if they are periodic"
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

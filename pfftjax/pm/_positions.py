"""Where particles are."""

from typing import NamedTuple, TypeAlias

import jax.numpy as jnp

from pfftjax._runtime.arguments import where
from pfftjax._runtime.arrays import Cells, Count, Vectors, VectorsLike
from pfftjax.pencils import Pencil
from pfftjax.pencils.internal import note_type


@note_type
class Positions(NamedTuple):
    """Positions on a periodic mesh, in units of mesh cells: ``cell + offset``.

    An integer and an offset of any size and sign: a particle that keeps the cell it comes from has
    its displacement as offset, with the same precision in a box of any size, and needs no wrapping
    at the boundary.

    Attributes:
        cell: int32 (rows, 3).
        offset: float32 or float64 (rows, 3).
        used: int32 scalar; the first `used` rows hold particles.

    """

    cell: Cells
    offset: Vectors
    used: Count


# `Positions`, or coordinates in units of mesh cells.
Places: TypeAlias = Positions | VectorsLike


def as_positions(positions: Places, pencil: Pencil, operation: str) -> Positions:
    """`Positions` of what a user calls positions, if it is such."""
    here = where(operation, pencil.grid.communicator)
    if isinstance(positions, Positions):
        cell, offset, used = (jnp.asarray(x) for x in positions)
    else:
        offset = jnp.asarray(positions)
        cell = jnp.zeros(offset.shape, jnp.int32)
        used = jnp.int32(offset.shape[0] if offset.ndim else 0)
    if offset.ndim != 2 or offset.shape[1] != 3 or cell.shape != offset.shape or used.ndim:
        raise ValueError(
            f"{here}: positions must be (rows, 3), in units of mesh cells, got {offset.shape}"
            + (f" and cells {cell.shape}" if cell.shape != offset.shape else "")
        )
    if offset.dtype not in (jnp.float32, jnp.float64) or cell.dtype != jnp.int32:
        raise TypeError(
            f"{here}: positions must be float32 or float64 and cells int32, got {offset.dtype} "
            f"and {cell.dtype}"
        )
    if not jnp.issubdtype(used.dtype, jnp.integer):
        raise TypeError(f"{here}: used, the number of particles, must be an integer, got {used}")
    return Positions(cell, offset.astype(offset.dtype), used.astype(jnp.int32))


def checked_mesh(pencil: object, operation: str) -> None:
    """Refuse what is not a mesh in real space."""
    if (
        not isinstance(pencil, Pencil)
        or len(pencil.global_shape) != 3
        or (pencil.split, pencil.axes) != ((0, 1), (0, 1, 2))
    ):
        raise ValueError(
            f"{operation}: the mesh must be a three-dimensional pencil in real space, split along "
            f"axes 0 and 1 and in memory order (0, 1, 2), as PencilFFT.input; got {pencil!r}"
        )

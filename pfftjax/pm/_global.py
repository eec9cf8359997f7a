"""Meshes of global arrays, for the functions on fields, lattices and rows."""

from collections.abc import Sequence

import numpy as np
from jax.sharding import Mesh, PartitionSpec

from pfftjax._runtime.arguments import static_ints
from pfftjax._runtime.arrays import RealBlockLike
from pfftjax.fft import PencilFFT
from pfftjax.fft.internal import Shards, shards_of
from pfftjax.pencils import ProcessGrid
from pfftjax.spectral.internal import plan_of


def mesh_plan(
    mesh_shape: Sequence[int] | None, like: Sequence[int], shards: Shards, *, is_result: bool
) -> PencilFFT:
    """The plan of a mesh; a global array on it needs sizes that divide."""
    comm = shards.grid.communicator
    given = like if mesh_shape is None else mesh_shape
    shape = static_ints(given, "mesh_shape", shards.operation, comm)
    if len(shape) != 3 or min(shape) < 1:
        raise ValueError(f"{shards.here}: mesh_shape must be three positive sizes, got {given!r}")
    if is_result:
        return plan_of(shape, shards, real=True)
    return PencilFFT(shape, shards.grid, real=True)


def field_to(
    x: RealBlockLike, grid: ProcessGrid | None, mesh: Mesh | None, operation: str
) -> tuple[Shards, PencilFFT, PartitionSpec]:
    """The shards of a real field, its plan, and how it is sharded."""
    shards = shards_of(x, grid, mesh, operation)
    if np.ndim(x) != 3:
        raise ValueError(
            f"{shards.here}: x must have three dimensions, got shape {np.shape(x)}; use jax.vmap "
            "for several fields"
        )
    plan = plan_of(np.shape(x), shards, real=True)
    return shards, plan, shards.spec(plan.input)

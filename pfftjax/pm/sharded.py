"""Fields and particles as global arrays: `pfftjax.pm` by the sharding that arrays have.

Particles of a lattice stay in its order (`_lattice.py`); positions in any order are rows, equally
many for each rank.
"""

from collections.abc import Sequence

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, PartitionSpec

from pfftjax._runtime.arrays import (
    BoxSize,
    RealBlock,
    RealBlockLike,
    Rows,
    RowsLike,
    SeriesLike,
    VectorsLike,
)
from pfftjax.fft.internal import known, rows_of, shards_of
from pfftjax.pencils import Pencil, ProcessGrid
from pfftjax.spectral.internal import plan_of

from ._assignment import Kernel
from ._capacity import room_for
from ._exchange import Route
from ._field import Power
from ._field import linear_field as linear_field_of_block
from ._global import field_to, mesh_plan
from ._gravity import Gradient
from ._gravity import gravity as gravity_of_block
from ._lattice import Lattice as Lattice
from ._lattice import density_contrast as density_contrast
from ._lattice import force as force
from ._lattice import lpt as lpt
from ._lattice import simulate as simulate
from ._painting import paint as paint_block
from ._painting import readout as readout_of_block
from ._positions import Positions
from ._power_spectrum import PowerSpectrum
from ._power_spectrum import power_spectrum as power_spectrum_of_block

# ---- Fields ------------------------------------------------------------------------------------


def linear_field(
    noise: RealBlockLike,
    box_size: BoxSize,
    power: Power,
    *,
    grid: ProcessGrid | None = None,
    mesh: Mesh | None = None,
) -> RealBlock:
    """A Gaussian random field: white noise with the power spectrum impressed on it.

    Args:
        noise: a global array (n0, n1, n2) of white noise of unit variance, sharded as for
            `pfftjax.sharded.fft3d`: ``jax.random.normal(key, shape, out_sharding=...)``, whose
            numbers are those of `pfftjax.pm.white_noise`.
        box_size: side of the box [Mpc/h]: a number, or one for each axis; may be traced.
        power: as for `pfftjax.pm.linear_field`: one of `pfftjax.pm.tabulated` or
            `pfftjax.pm.eisenstein_hu`, of which arrays may be traced, and the result is
            differentiable in them; or any function, which may close over numbers that are traced.
            JAX lets none close over arrays on the mesh: `jax.tree_util.Partial(function, *arrays)`
            has them as arguments.
        grid: as for `pfftjax.sharded.fft3d`.
        mesh: as for `pfftjax.sharded.fft3d`.

    Returns:
        The density contrast, sharded as the noise.

    Raises:
        ValueError, TypeError: as `pfftjax.sharded.fft3d` and `pfftjax.pm.linear_field`.

    Outside of jitted code each call compiles a program.

    """
    shards, plan, spec = field_to(noise, grid, mesh, "linear_field")
    how = (plan, box_size, power)
    return shards.run(linear_field_of_block, how, (spec,), spec, noise, is_kept=False)


def gravity(
    density: RealBlockLike,
    box_size: BoxSize,
    *,
    gradient: Gradient = "finite-difference",
    grid: ProcessGrid | None = None,
    mesh: Mesh | None = None,
) -> RealBlock:
    """The field F = -grad phi, laplacian phi = density, on a periodic mesh: (3, n0, n1, n2).

    `gradient` is as for `pfftjax.pm.gravity`, the other arguments and the errors as for
    `linear_field`.
    """
    shards, plan, spec = field_to(density, grid, mesh, "gravity")
    targets, how = shards.spec(plan.input, lead=1), (plan, box_size)
    return shards.run(gravity_of_block, how, (spec,), targets, density, gradient=gradient)


def power_spectrum(
    field: RealBlockLike,
    box_size: BoxSize,
    *,
    edges: SeriesLike | None = None,
    kernel: Kernel | None = None,
    grid: ProcessGrid | None = None,
    mesh: Mesh | None = None,
) -> PowerSpectrum:
    """The power spectrum of a global field, replicated.

    `box_size` must not be traced, `edges` and `kernel` are as for `pfftjax.pm.power_spectrum`; the
    other arguments and the errors are those of `linear_field`.
    """
    shards, plan, spec = field_to(field, grid, mesh, "power_spectrum")
    if known(box_size)[1] is not None:
        raise TypeError(
            f"{shards.here}: box_size must be static, as the number of shells depends on it"
        )
    how, targets = (plan, box_size), PartitionSpec()
    return shards.run(
        power_spectrum_of_block, how, (spec,), targets, field, edges=edges, kernel=kernel
    )


# ---- Positions in rows -------------------------------------------------------------------------


def _sent(
    positions: jax.Array, values: jax.Array | None, pencil: Pencil, capacity: int
) -> tuple[Route, Positions, jax.Array | None]:
    """The way of positions to the owners of their cells, and what arrives there, with values."""
    route = Route.to_owners(positions, pencil, capacity)
    offset, values = route.send((positions, values))
    cell = jnp.zeros(offset.shape, jnp.int32)
    return route, Positions(cell, offset, route.count), values


def _paint(
    positions: jax.Array, values: jax.Array | None, pencil: Pencil, kernel: Kernel, capacity: int
) -> RealBlock:
    _, there, values = _sent(positions, values, pencil, capacity)
    return paint_block(there, pencil, values=values, kernel=kernel)


def _readout(
    positions: jax.Array, field: jax.Array, pencil: Pencil, kernel: Kernel, capacity: int
) -> Rows:
    route, there, _ = _sent(positions, None, pencil, capacity)
    return route.send_back(readout_of_block(field, there, pencil, kernel=kernel))


def paint(
    positions: VectorsLike,
    mesh_shape: Sequence[int],
    *,
    values: RowsLike | None = None,
    kernel: Kernel = "cic",
    capacity: int | None = None,
    mesh: Mesh | None = None,
) -> RealBlock:
    """Deposit particles on a periodic mesh, wherever they are.

    Args:
        positions: a global array (N, 3), in units of mesh cells, the rows sharded over all devices
            in the order of the ranks: ``P(("x", "y"))`` on a mesh with these axes. In jitted code
            an array on a mesh of the type Auto counts as sharded so.
        mesh_shape: (n0, n1, n2), of which n0 and n1 divide by the axes of the mesh of devices.
        values: what each particle deposits, (N,) or (N, components), sharded likewise; 1 by
            default.
        kernel: as for `pfftjax.pm.paint`.
        capacity: particles that each rank has room for, by default that of
            `pfftjax.pm.to_owners`.
        mesh: as for `pfftjax.sharded.fft3d`.

    Returns:
        A global array (n0, n1, n2) or (components, n0, n1, n2), sharded as a field.

    Raises:
        ValueError, TypeError: arrays that are not sharded so, or what `pfftjax.pm.paint` refuses.
        jax.errors.JaxRuntimeError: when it runs, on every rank: some rank has no room for all of
            its particles (the text says which capacity would do), or a position is not finite.

    Differentiable in values and positions. Each call sends the particles to the owners of their
    cells: a run of many steps is `simulate`.

    """
    shards = rows_of(positions, mesh, "paint")
    plan = mesh_plan(mesh_shape, (), shards, is_result=True)
    room = room_for(capacity, np.shape(positions)[0], plan.input, shards.operation)
    targets = shards.spec(
        plan.input, lead=max(np.ndim(values) - 1, 0) if values is not None else 0
    )
    how, sources = (plan.input, kernel, room), (shards.rows, shards.rows)
    return shards.run(_paint, how, sources, targets, positions, values)


def readout(
    field: RealBlockLike,
    positions: VectorsLike,
    *,
    kernel: Kernel = "cic",
    capacity: int | None = None,
    mesh: Mesh | None = None,
) -> Rows:
    """Interpolate a field, (n0, n1, n2) or (components, n0, n1, n2), to particles anywhere.

    The field is sharded as for `pfftjax.sharded.fft3d`; positions and the other arguments and the
    errors are those of `paint`.

    Returns:
        A global array (N,) or (N, components), sharded as the positions.

    """
    shards = rows_of(positions, mesh, "readout")
    of_field = shards_of(field, shards.grid, mesh, "readout")
    if of_field.over != shards.over or np.ndim(field) > 4:
        raise ValueError(
            f"{shards.here}: the field must be (n0, n1, n2) or (components, n0, n1, n2), sharded "
            f"over {shards.over} as the mesh has its axes; got shape {np.shape(field)} over "
            f"{of_field.over}"
        )
    plan = plan_of(np.shape(field)[-3:], shards, real=True)
    room = room_for(capacity, np.shape(positions)[0], plan.input, shards.operation)
    sources = (shards.rows, shards.spec(plan.input, np.ndim(field) - 3))
    how = (plan.input, kernel, room)
    return shards.run(_readout, how, sources, shards.rows, positions, field)

"""Particles, distributed over the ranks that own their cells."""

import dataclasses
import functools
import math
from typing import Any

import jax
import jax.numpy as jnp

from pfftjax.collectives._primitive import where
from pfftjax.pencils import Pencil

from ._exchange import Route
from ._positions import Positions


@functools.partial(
    jax.tree_util.register_dataclass,
    data_fields=["cell", "offset", "momentum", "used"],
    meta_fields=["total"],
)
@dataclasses.dataclass(frozen=True)
class Particles:
    """The particles of this rank: the first `used` rows.

    A particle keeps the mesh cell that it started from, and so its identity; its offset from there
    is its displacement.

    Attributes:
        cell: int32 (rows, 3), the mesh cell that it started from.
        offset: (rows, 3), from that cell, in units of mesh cells.
        momentum: (rows, 3), a^2 dx/dt with x in Mpc/h and H0 = 1.
        used: int32 scalar, how many rows hold particles.
        total: particles on all ranks together.

    """

    cell: jax.Array
    offset: jax.Array
    momentum: jax.Array
    used: jax.Array
    total: int

    @property
    def positions(self) -> Positions:
        """Where they are, for `paint`, `readout` and `Route`."""
        return Positions(self.cell, self.offset, self.used)

    @property
    def rows(self) -> int:
        """Rows of the arrays, used or not."""
        return self.cell.shape[0]

    @property
    def mask(self) -> jax.Array:
        """Bool (rows,), true for the rows that hold particles."""
        return jnp.arange(self.rows) < self.used

    def rescaled(self, mesh: Pencil, other: Pencil) -> "Particles":
        """The same particles in units of another mesh's cells; `to_owners` brings them to it.

        Args:
            mesh: whose cells are the unit now.
            other: whose cells will be.

        """
        dtype = self.offset.dtype
        cells, rests, ratios = [], [], []
        for axis, (n, m) in enumerate(zip(mesh.global_shape, other.global_shape, strict=True)):
            whole, rest = scaled_index(self.cell[:, axis], n, m, dtype)
            cells.append(whole)
            rests.append(rest)
            ratios.append(m / n)
        offset = jnp.stack(rests, -1) + self.offset * jnp.asarray(ratios, dtype)
        return dataclasses.replace(self, cell=jnp.stack(cells, -1), offset=offset)

    def coordinates(self, mesh: Pencil, box_size: Any) -> jax.Array:
        """Positions (rows, 3) in the units of the box, from 0 to its sides."""
        shape = jnp.asarray(mesh.global_shape, self.offset.dtype)
        cells = jnp.mod(self.cell.astype(self.offset.dtype) + self.offset, shape)
        return cells * (jnp.asarray(box_size, self.offset.dtype) / shape)


def scaled_index(index: jax.Array, n: int, m: int, dtype: Any) -> tuple[jax.Array, jax.Array]:
    """The place of point `index` of n among m points: a whole number, and a fraction."""
    whole, rest = index // n, index % n  # in steps, as products of 32 bits would overflow sooner
    low = rest * (m % n)
    return whole * m + rest * (m // n) + low // n, (low % n).astype(dtype) / n


def default_capacity(total: int, ranks: int) -> int:
    """Room for a quarter more particles than the mean, and for the fluctuations of few."""
    mean = total / ranks
    return min(total, math.ceil(1.25 * mean + 6 * mean ** (2 / 3)))


def to_owners(particles: Particles, mesh: Pencil, capacity: int | None = None) -> Particles:
    """Send particles to the ranks that own the cells in which they are.

    Args:
        particles: on any ranks.
        mesh: the mesh, as `PencilFFT.input`.
        capacity: how many particles each rank has room for, a static integer, equal on all ranks
            for one program to serve them all. By default a quarter more than the mean.

    Returns:
        `Particles` of `capacity` rows.

    Raises:
        jax.errors.JaxRuntimeError: when it runs, on every rank: more belong to some rank than it
            has room for; the text says which capacity would do. No particle is ever dropped.

    Its derivative is exact: which rank owns a particle is piecewise constant.

    """
    room = default_capacity(particles.total, mesh.grid.size) if capacity is None else capacity
    if mesh.grid.size == 1 and particles.rows <= room:
        pad = ((0, room - particles.rows), (0, 0))
        if pad[0][1] == 0:
            return particles
        cell, offset, momentum = (
            jnp.pad(x, pad) for x in (particles.cell, particles.offset, particles.momentum)
        )
        return dataclasses.replace(particles, cell=cell, offset=offset, momentum=momentum)
    route = Route.to_owners(particles.positions, mesh, room)
    return dataclasses.replace(
        particles,
        cell=route.send(particles.cell),
        offset=route.send(particles.offset),
        momentum=route.send(particles.momentum),
        used=route.count,
    )


def check_fits(particles: Particles, mesh: Pencil, operation: str) -> None:
    """Refuse particles that could not be all of what they say they are."""
    if not isinstance(particles, Particles):
        raise TypeError(
            f"{where(operation, mesh.grid._comm)}: particles must be pm.Particles, as made by "
            f"pm.lpt, got {type(particles).__name__}"
        )

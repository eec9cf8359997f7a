"""Particles, distributed over the ranks that own their cells."""

import dataclasses
import functools
import math
import operator
import re
from collections.abc import Callable, Sequence

import jax
import jax.numpy as jnp
from jax.typing import ArrayLike, DTypeLike

from pfftjax._runtime.arguments import where
from pfftjax._runtime.arrays import (
    STATIC,
    BoxSize,
    Cells,
    Count,
    Displacements,
    Mask,
    Number,
    PyTree,
    Vectors,
)
from pfftjax._runtime.communicators import Communicator
from pfftjax.collectives import recover
from pfftjax.fft.internal import sides_of
from pfftjax.pencils import Pencil
from pfftjax.pencils.internal import note_block, note_type

from ._capacity import room_for
from ._exchange import Route
from ._expected import BOXES_DIFFER, SCALE_FACTORS_DIFFER, as_known, expect
from ._growth import are_positive
from ._positions import Positions, checked_mesh


@note_type
@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Particles:
    """The particles of this rank: the first `used` rows.

    A particle keeps the mesh cell that it started from; its offset from there is its displacement.
    No two particles of a lattice have the same `cell`, which is a particle's identity: on a mesh
    that is coarser than the lattice those that start from one cell differ by whole numbers of the
    box. Particles know when they are and in which box, so that the next operation notices another
    time or box.

    Attributes:
        cell: int32 (rows, 3), the mesh cell that it started from is ``cell % mesh_shape``.
        offset: (rows, 3), from that cell, in units of mesh cells.
        momentum: (rows, 3), a^2 dx/dt with x in Mpc/h and H0 = 1.
        used: int32 scalar, how many rows hold particles.
        total: particles on all ranks together.
        mesh_shape: global shape of the mesh whose cells are the unit.
        scale_factor: when they are, a number; None or 0 where it is not known, as after `step`.
        box_size: (3,), the sides of the box [Mpc/h]; None where they are not known.
        displacements: (rows, 2, 3), psi1 and psi2 of `lpt` [Mpc/h], along which `cola` takes
            particles; None where they are not kept.

    """

    __no_type_check__ = True  # JAX makes some of these without arrays

    cell: Cells
    offset: Vectors
    momentum: Vectors
    used: Count
    total: int = dataclasses.field(metadata=STATIC)
    mesh_shape: tuple[int, int, int] = dataclasses.field(metadata=STATIC)
    scale_factor: Number | None = None
    box_size: BoxSize | None = None
    displacements: Displacements | None = None

    def __post_init__(self) -> None:
        rows = getattr(self.offset, "shape", ())
        if len(rows) == 2:
            note_block(rows)

    @property
    def positions(self) -> Positions:
        """Where the particles are, for `paint`, `readout` and `Route`."""
        return Positions(self.cell, self.offset, self.used)

    @property
    def rows(self) -> int:
        """Rows of the arrays, used or not."""
        return self.cell.shape[0]

    @property
    def mask(self) -> Mask:
        """Bool (rows,), true for the rows that hold particles."""
        return jnp.arange(self.rows) < self.used

    def rescaled(self, mesh: Pencil) -> "Particles":
        """The same particles in units of another mesh's cells; `to_owners` brings them to it."""
        checked_mesh(mesh, "rescaled")
        n0, n1, n2 = mesh.global_shape
        cell, offset = rescaled(self.cell, self.offset, self.mesh_shape, (n0, n1, n2))
        return dataclasses.replace(self, cell=cell, offset=offset, mesh_shape=(n0, n1, n2))

    def coordinates(self, box_size: BoxSize | None = None) -> Vectors:
        """Positions (rows, 3) in the units of the box, from 0 to below its sides.

        Args:
            box_size: side of the box: a number, or one for each axis. By default the particles'
                own. Another unit of length is fine.

        Raises:
            ValueError: no box is known, or an invalid one.

        """
        n, *others = self.mesh_shape
        # By a number that they know, compilers divide without a division.
        sides_in_cells = n if {n} == {*others} else self.mesh_shape
        shape = jnp.asarray(sides_in_cells, self.offset.dtype)
        cell = (self.cell % jnp.asarray(sides_in_cells, self.cell.dtype)).astype(shape.dtype)
        # This is jnp.mod, to the bit where numbers tell cells apart, and several times as fast.
        cells = cell + self.offset
        cells = cells - shape * jnp.floor(cells / shape)
        cells = jnp.where(cells < 0, cells + shape, cells)
        # What is hardly below zero is rounded up to the side of the box: it is at zero, and moves.
        is_outside = (cells < 0) | (cells >= shape)
        cells = jnp.where(is_outside, cells - jax.lax.stop_gradient(cells), cells)
        box_size = self.box_size if box_size is None else box_size
        if box_size is None:
            raise ValueError("coordinates: these particles have no box_size of their own; give it")
        sides = [jnp.asarray(x, shape.dtype) for x in sides_of(box_size, 3, "coordinates")]
        return cells * (jnp.stack(sides) / shape)

    def velocities(self, scale_factor: Number | None = None) -> Vectors:
        """Peculiar velocities a dx/dt (rows, 3) [km/s], x in comoving Mpc/h: 100 momentum / a.

        Args:
            scale_factor: when the particles are, by default what they know of that.

        Raises:
            ValueError: no scale factor is known, or one that is not positive.

        """
        a = self.scale_factor if scale_factor is None else scale_factor
        if a is None or not are_positive(a):
            raise ValueError(
                "velocities: these particles have no positive scale_factor of their own; give it"
                if scale_factor is None
                else f"velocities: scale_factor must be a positive number, got {scale_factor!r}"
            )
        return self.momentum * jnp.asarray(100 / a, self.momentum.dtype)

    def in_box(self, sides: BoxSize, operation: str, comm: Communicator) -> "Particles":
        """These particles, if they are in the box with these sides, or do not know in which.

        Raises:
            ValueError: they are in another one. Where that is not known before the program runs, a
                jax.errors.JaxRuntimeError then.

        """
        used = expect(
            self.used,
            as_known(sides),
            self.box_size,
            operation=operation,
            what="box_size",
            but="the particles are in a box of",
            remedy="give the box that they were made for; if they are meant to be in another one, "
            "say so: dataclasses.replace(particles, box_size=None)",
            tolerance=BOXES_DIFFER,
            comm=comm,
        )
        return dataclasses.replace(self, used=used)

    def at_scale_factor(
        self, a: ArrayLike, what: str, operation: str, comm: Communicator
    ) -> "Particles":
        """These particles, if they are at scale factor `a`, which the user calls `what`, or do not
        know when they are.

        Raises:
            ValueError: they are at another one. Where that is not known before the program runs,
                a jax.errors.JaxRuntimeError then.

        """
        used = expect(
            self.used,
            a,
            self.scale_factor,
            operation=operation,
            what=what,
            but="the particles are at scale factor",
            remedy="go on from there; if they are meant to be at another one, say so: "
            "dataclasses.replace(particles, scale_factor=None)",
            tolerance=SCALE_FACTORS_DIFFER,
            comm=comm,
        )
        return dataclasses.replace(self, used=used)


def lattice_points(
    lattice: Pencil, mesh_shape: Sequence[int], dtype: DTypeLike
) -> tuple[Cells, Vectors]:
    """The points of this rank's block of a lattice, in units of the cells of a mesh: the cell of
    each, int32 (rows, 3), and the rest, (rows, 3).
    """
    cells, rests = [], []
    for axis, (n, m) in enumerate(zip(lattice.global_shape, mesh_shape, strict=True)):
        cell, rest = scaled_index(lattice.indices(axis), n, m, dtype)
        cells.append(jnp.broadcast_to(cell, lattice.local_shape).ravel())
        rests.append(jnp.broadcast_to(rest, lattice.local_shape).ravel())
    return jnp.stack(cells, -1).astype(jnp.int32), jnp.stack(rests, -1)


def scaled_index(
    index: jax.Array, n: int, m: int, dtype: DTypeLike
) -> tuple[jax.Array, jax.Array]:
    """The place of point `index` of n among m points: a whole number, and a fraction.

    Indices that differ by n times a whole number are copies of one point, and stay so. Where m is
    less than n, several points have one place; they get different copies of it.
    """
    copy, index = index // n, index % n
    low = index * (m % n)
    place = index * (m // n) + low // n  # in two steps, as one product could overflow
    if m < n:
        first = (place * n + m - 1) // m  # of the points that have this place
        copy = copy * -(-n // m) + index - first
    return copy * m + place, (low % n).astype(dtype) / n


def rescaled(
    cell: Cells, offset: Vectors, shape: Sequence[int], onto: Sequence[int]
) -> tuple[Cells, Vectors]:
    """Cells and offsets from there, in units of the cells of a mesh, in those of another one."""
    columns = zip(cell.T, shape, onto, strict=True)
    scaled = (scaled_index(x, n, m, offset.dtype) for x, n, m in columns)
    cell, rest = (jnp.stack(x, -1) for x in zip(*scaled, strict=True))
    ratios = [m / n for n, m in zip(shape, onto, strict=True)]
    return cell, rest + offset * jnp.asarray(ratios, offset.dtype)


def to_owners(particles: Particles, mesh: Pencil, capacity: int | None = None) -> Particles:
    """Send particles to the ranks that own the cells in which they are.

    Args:
        particles: on any ranks.
        mesh: the mesh, as `PencilFFT.input`.
        capacity: how many particles each rank has room for, a static integer, equal on all ranks
            for one program to serve them all. By default 1.25 mean + 6 mean^(2/3), where
            the mean is that of the largest blocks.

    Returns:
        `Particles` of `capacity` rows.

    Raises:
        jax.errors.JaxRuntimeError: when it runs, on every rank: more belong to some rank than it
            has room for; the text says which capacity would do (see
            `pfftjax.collectives.recover`). No particle is ever dropped.

    Its derivative is exact: which rank owns a particle is piecewise constant.

    """
    check_fits(particles, mesh, "to_owners")
    room = room_for(capacity, particles.total, mesh, "to_owners")
    return sent_to_owners(particles, mesh, room)[0]


_ENOUGH = re.compile(r"a capacity of (\d+) is enough on every rank")


def to_owners_with_room(
    particles: Particles, mesh: Pencil, capacity: int, *, may_grow: bool = True
) -> Particles:
    """`to_owners` outside of programs, with as much room as it takes, and a tenth more."""
    while True:
        try:
            return jax.block_until_ready(_to_owners(particles, mesh, capacity))
        except jax.errors.JaxRuntimeError as error:  # which all ranks raise
            enough = _ENOUGH.search(str(error))
            if enough is None or not may_grow:
                raise
            recover()
            capacity = math.ceil(1.1 * int(enough[1]))


_to_owners = jax.jit(to_owners, static_argnums=(1, 2))


def sent_to_owners(
    particles: Particles, mesh: Pencil, capacity: int, *others: PyTree
) -> tuple[Particles, tuple[PyTree, ...], Callable[[jax.Array], jax.Array]]:
    """`to_owners`, of pytrees of other arrays with a row for each particle as well.

    Returns:
        The particles, the others, and the way back: a function of rows there.

    """
    if stay_in_place(particles.rows, mesh, capacity):
        pad = capacity - particles.rows

        def padded(x: jax.Array) -> jax.Array:
            return jnp.pad(x, ((0, pad), *((0, 0) for _ in x.shape[1:]))) if pad else x

        send = functools.partial(jax.tree.map, padded)

        used = particles.used
        send_back = operator.itemgetter(slice(particles.rows))
    else:
        route = Route.to_owners(particles.positions, mesh, capacity)
        send, send_back, used = route.send, route.send_back, route.count
    names = ("cell", "offset", "momentum", "displacements")
    its, others = send(({name: getattr(particles, name) for name in names}, others))
    return dataclasses.replace(particles, **its, used=used), others, send_back


def stay_in_place(rows: int, mesh: Pencil, capacity: int) -> bool:
    """Whether all particles keep their rows on the way to their owners."""
    return mesh.grid.size == 1 and rows <= capacity


def check_fits(particles: Particles, mesh: Pencil, operation: str) -> None:
    """Refuse what is not `Particles`, or is in units of another mesh."""
    checked_mesh(mesh, operation)
    here = where(operation, mesh.grid.communicator)
    if not isinstance(particles, Particles):
        raise TypeError(
            f"{here}: particles must be pm.Particles, as made by pm.lpt, got "
            f"{type(particles).__name__}"
        )
    if tuple(particles.mesh_shape) != mesh.global_shape:
        raise ValueError(
            f"{here}: the particles are in units of the cells of a mesh {particles.mesh_shape}, "
            f"but this one is {mesh.global_shape}; pass that mesh, or particles.rescaled(mesh)"
        )
    shapes = particles.cell.shape, particles.offset.shape, particles.momentum.shape
    if len(set(shapes)) > 1 or len(shapes[0]) != 2 or shapes[0][1] != 3:
        raise ValueError(
            f"{here}: cell, offset and momentum must have one shape (rows, 3), got {shapes}"
        )
    its = particles.displacements
    if its is not None and its.shape != (shapes[0][0], 2, 3):
        raise ValueError(
            f"{here}: displacements must have shape ({shapes[0][0]}, 2, 3), got {its.shape}"
        )

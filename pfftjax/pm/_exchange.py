"""Particles to the ranks that own their cells.

Which rank that is, is piecewise constant in the positions: the exchange is linear in what is sent,
and its adjoint is the way back.
"""

import dataclasses
import functools
from typing import TypeVar, overload

import jax
import jax.numpy as jnp
from jax.core import ShapedArray
from jax.extend.core import Primitive
from jax.interpreters import batching

from pfftjax._runtime.arguments import as_array, static_int, where
from pfftjax._runtime.arrays import STATIC, Count, Counts, PyTree, Rows, RowsLike
from pfftjax._runtime.communicators import Communicator
from pfftjax._runtime.ffi import native
from pfftjax._runtime.primitive import local
from pfftjax._runtime.rules import constant
from pfftjax.collectives.internal import MOST_ROWS, exchange_counts_p
from pfftjax.pencils import Pencil

from ._painting import on, one_by_one
from ._positions import Places, as_positions, checked_mesh
from ._rows import move_rows_p, return_rows_p

_Tree = TypeVar("_Tree")

# Offsets of so many cells or more are in no box that has room for them.
MOST_CELLS = float(native.most_cells)


def located(
    cell: jax.Array, offset: jax.Array, pencil: Pencil
) -> tuple[jax.Array, jax.Array, jax.Array]:
    """Global cells (rows, 3), fractions of a cell in [0, 1], and which rows are somewhere."""
    somewhere = jnp.all(jnp.abs(offset) < MOST_CELLS, axis=1)  # not NaN either
    offset = jnp.where(somewhere[:, None], offset, 0)
    whole = jnp.floor(offset)
    shape = jnp.asarray(pencil.global_shape, jnp.int32)
    # Both are brought into the box before they are added, so that 32 bits hold the sum.
    wrapped = (cell % shape + whole.astype(jnp.int32) % shape) % shape
    return wrapped, offset - whole, somewhere


def _owner(cell: jax.Array, n: int, parts: int) -> jax.Array:
    """The part of an axis of n cells, shared out as in `pencils.block`, that has each cell."""
    size, rest = divmod(n, parts)
    longer = rest * (size + 1)  # cells of parts that have one more
    others = rest + (cell - longer) // max(size, 1)
    return jnp.where(cell < longer, cell // (size + 1), others)


def order_by_rank(rank: jax.Array, *, ranks: int) -> list[jax.Array]:
    """The rows sorted by a rank that each has, and how many each has; those of none come last, and
    have the number of ranks.
    """
    number = jnp.arange(rank.shape[0], dtype=jnp.int32)
    sorted_rank, order = jax.lax.sort((rank, number), num_keys=1, is_stable=True)
    ends = jnp.searchsorted(sorted_rank, jnp.arange(ranks, dtype=rank.dtype), side="right")
    return [order, jnp.diff(ends, prepend=0).astype(jnp.int32)]


def order_by_owner(
    cell: jax.Array, offset: jax.Array, used: jax.Array, *, pencil: Pencil
) -> list[jax.Array]:
    """The rows sorted by the rank that owns their cell, unused ones last, and how many each has.

    Where a position is not finite, or there are not so many rows, all counts are -1, which the
    exchange of counts refuses on every rank.
    """
    rows, grid = cell.shape[0], pencil.grid
    wrapped, _, somewhere = located(cell, offset, pencil)
    part0, part1 = (_owner(wrapped[:, d], pencil.global_shape[d], grid.dims[d]) for d in range(2))
    filled = jnp.arange(rows) < used
    rank = jnp.where(filled, part0 * grid.dims[1] + part1, grid.size)
    order, counts = order_by_rank(rank, ranks=grid.size)
    possible = jnp.all(somewhere | ~filled) & (used >= 0) & (used <= rows)
    return [order, jnp.where(possible, counts, -1)]


# On CPUs handlers sort, on GPUs XLA does.
# cell, offset, used -> (rows sorted by owner, rows for each rank)
order_by_owner_p = local(
    "order_by_owner",
    lambda cell, *_, pencil: [
        ShapedArray((n,), jnp.int32) for n in (cell.shape[0], pencil.grid.size)
    ],
    lambda *, pencil: on(pencil),
    order_by_owner,
    multiple_results=True,
)
# rank -> (rows sorted by rank, rows for each rank)
order_by_rank_p = local(
    "order_by_rank",
    lambda rank, *, ranks: [ShapedArray((n,), jnp.int32) for n in (rank.shape[0], ranks)],
    lambda **_: {},
    order_by_rank,
    multiple_results=True,
)
for primitive in (order_by_owner_p, order_by_rank_p):
    constant(primitive)
    batching.primitive_batchers[primitive] = functools.partial(one_by_one, primitive)


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Route:
    """The way of particles to the owners of their cells, and back.

    Made by `Route.to_owners`. Both ways are linear, and each is the other's adjoint.

    Attributes:
        order: int32 (rows,), the rows by owner.
        outgoing: int32 (ranks,), how many go to each rank.
        incoming: int32 (ranks,), how many come from each.
        rows: rows of the arrays that are sent.
        capacity: rows of the arrays that arrive.
        comm: the communicator of the process grid.

    Example:
        >>> from pfftjax import Pencil, ProcessGrid
        >>> mesh = Pencil((8, 8, 8), ProcessGrid())
        >>> positions = jnp.array([[0.5, 0.5, 0.5], [7.5, 7.5, 7.5]])
        >>> route = Route.to_owners(positions, mesh, capacity=2 * mesh.grid.size)
        >>> there = route.send(positions)
        >>> bool(jnp.all(route.send_back(there) == positions))
        True

    """

    __no_type_check__ = True  # JAX makes some of these without arrays

    order: Counts
    outgoing: Counts
    incoming: Counts
    rows: int = dataclasses.field(metadata=STATIC)
    capacity: int = dataclasses.field(metadata=STATIC)
    comm: Communicator = dataclasses.field(metadata=STATIC)

    @classmethod
    def to_owners(cls, positions: Places, pencil: Pencil, capacity: int) -> "Route":
        """Find out who sends what to whom.

        Args:
            positions: `Positions`, or an array (rows, 3) in units of mesh cells, of any rank's
                particles.
            pencil: the mesh, as `PencilFFT.input`.
            capacity: how many particles a rank has room for; a static integer.

        Raises:
            ValueError, TypeError: arguments that do not fit.
            jax.errors.JaxRuntimeError: when it runs, on every rank: more particles belong to some
                rank than it has room for (the text says which capacity would do), a position is
                not finite, or 2^30 cells or more away, or the number of particles is negative or
                more than the rows. `pfftjax.collectives.recover` lets programs go on after it.

        """
        checked_mesh(pencil, "Route")
        comm = pencil.grid.communicator
        at = as_positions(positions, pencil, "Route")
        room = static_int(capacity, "capacity", "Route", comm)
        if room < 0:
            raise ValueError(f"{where('Route', comm)}: capacity cannot be negative, got {room}")
        rows = at.offset.shape[0]
        if max(rows, room) > MOST_ROWS:
            raise ValueError(
                f"{where('Route', comm)}: {max(rows, room)} rows, but counts are 32-bit; use more "
                "ranks"
            )
        order, outgoing = order_by_owner_p.bind(*at, pencil=pencil)
        return cls._agreed(order, outgoing, room, comm)

    @classmethod
    def to_ranks(cls, ranks: Counts, capacity: int, comm: Communicator) -> "Route":
        """The way of rows to the rank that each has, int32 (rows,); to ``comm.size`` none go."""
        order, outgoing = order_by_rank_p.bind(ranks, ranks=comm.size)
        return cls._agreed(order, outgoing, capacity, comm)

    @classmethod
    def _agreed(
        cls, order: Counts, outgoing: Counts, capacity: int, comm: Communicator
    ) -> "Route":
        rows = order.shape[0]
        incoming = exchange_counts_p.bind(
            outgoing[:, None], rows=rows, capacity=capacity, what="particles", comm=comm
        )[:, 0]
        return cls(order, outgoing, incoming, rows, capacity, comm)

    @property
    def count(self) -> Count:
        """How many particles arrive here; the rows after them are unused."""
        return self.incoming.sum(dtype=jnp.int32)

    @overload
    def send(self, x: RowsLike) -> Rows: ...
    @overload
    def send(self, x: _Tree) -> _Tree: ...
    def send(self, x: PyTree) -> PyTree:
        """Rows (rows, ...) to the owners: (capacity, ...), unused rows zero.

        A pytree of such arrays travels in the same messages. The order in which rows arrive is
        the same for all that this route sends; rows that stay on their rank keep their places.
        """
        return self._move(move_rows_p, x, self.rows, self.capacity, "Route.send")

    @overload
    def send_back(self, y: RowsLike) -> Rows: ...
    @overload
    def send_back(self, y: _Tree) -> _Tree: ...
    def send_back(self, y: PyTree) -> PyTree:
        """Rows (capacity, ...) to where they came from: (rows, ...), in the order there.

        Rows that were not sent are zero. A pytree of such arrays travels in the same messages.
        """
        return self._move(return_rows_p, y, self.capacity, self.rows, "Route.send_back")

    def _move(self, primitive: Primitive, x: PyTree, rows: int, into: int, name: str) -> PyTree:
        leaves, tree = jax.tree.flatten(x)
        arrays = [as_array(leaf, name, self.comm) for leaf in leaves]
        for array in arrays:
            if array.ndim < 1 or array.shape[0] != rows:
                raise ValueError(
                    f"{where(name, self.comm)}: axis 0 must have {rows} rows, got shape "
                    f"{array.shape}"
                )
        if not arrays:
            return x
        way = (self.order, self.outgoing, self.incoming)
        return tree.unflatten(primitive.bind(*way, *arrays, capacity=into, comm=self.comm))

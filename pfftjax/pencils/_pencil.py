"""The part of a distributed array that each rank holds, and its memory order."""

import dataclasses
import functools
from collections.abc import Sequence
from typing import NamedTuple, TypeVar

import jax
import jax.numpy as jnp
import numpy as np

from pfftjax._runtime.arguments import static_ints, where
from pfftjax._runtime.arrays import Indices

from ._coordinate import coordinate
from ._known import note_block
from ._process_grid import ProcessGrid, checked_grid

_Array = TypeVar("_Array", jax.Array, np.ndarray)


def block(n: int, parts: int, part: int) -> tuple[int, int]:
    """(start, count) of one part of n cells: equal parts, and the remainder to the first ones."""
    size, rest = divmod(n, parts)
    return part * size + min(part, rest), size + (part < rest)


@dataclasses.dataclass(frozen=True)
class _Fields:
    """The attributes of a `Pencil`, which makes them of its arguments."""

    global_shape: tuple[int, ...]
    grid: ProcessGrid
    split: tuple[int, int]
    axes: tuple[int, ...]


@jax.tree_util.register_static
class Pencil(_Fields):
    """A global array distributed over a process grid, as seen by this rank.

    Two axes are split, one over each dimension of the grid; the others are whole on every rank.
    Sizes need not divide: a split axis of length n goes to p ranks in blocks of n // p, and one
    more for the first n % p of them. With more ranks than cells, the last ones hold none.

    Local dimension i holds global axis ``axes[i]``, from index ``start[i]``. Frozen, hashable, and
    equal by value, so that it can be a static argument of jit.

    Attributes:
        global_shape: sizes of the global array, by global axis.
        grid: the process grid.
        split: ``split[d]`` is the global axis that is split over dimension d of the grid.
        axes: the memory order: global axes, slowest first. In global order by default.

    Raises:
        ValueError: sizes, split or axes that do not make sense together.

    Example:
        >>> grid = ProcessGrid()
        >>> pencil = Pencil((4, 5, 6), grid, split=(1, 2), axes=(1, 2, 0))
        >>> pencil.local_shape[2], pencil.start[2]
        (4, 0)

    """

    def __init__(
        self,
        global_shape: Sequence[int],
        grid: ProcessGrid,
        split: Sequence[int] = (0, 1),
        axes: Sequence[int] = (),
    ) -> None:
        comm = checked_grid(grid, "Pencil").communicator
        here = where("Pencil", comm)
        shape, axes, split = (
            static_ints(value, name, "Pencil", comm)
            for name, value in (("global_shape", global_shape), ("axes", axes), ("split", split))
        )
        ndim = len(shape)
        axes = axes or tuple(range(ndim))
        if ndim < 2 or min(shape) < 1:
            raise ValueError(
                f"{here}: the global shape {shape} must have at least two axes, none of them empty"
            )
        if sorted(axes) != list(range(ndim)):
            raise ValueError(f"{here}: axes {axes} are not an order of the axes of {shape}")
        if len(split) != 2 or split[0] == split[1] or not set(split) <= set(axes):
            raise ValueError(f"{here}: split {split} must be two different axes of {shape}")
        super().__init__(shape, grid, (split[0], split[1]), axes)
        note_block(self.local_shape)

    def range_of(self, axis: int, coords: tuple[int, int] | None = None) -> tuple[int, int]:
        """(start, count) along a global axis, on this rank or on the one at `coords`."""
        axis = self._axis(axis)
        if axis not in self.split:
            return 0, self.global_shape[axis]
        dimension = self.split.index(axis)
        part = (coords or self.grid.coords)[dimension]
        return block(self.global_shape[axis], self.grid.dims[dimension], part)

    def _axis(self, axis: int) -> int:
        """`axis` as a number from 0; negative ones count from the end."""
        ndim = len(self.global_shape)
        if not -ndim <= axis < ndim:
            raise ValueError(
                f"{where('Pencil', self.grid.communicator)}: there is no axis {axis} in the "
                f"global shape {self.global_shape}"
            )
        return axis % ndim

    @functools.cached_property
    def local_shape(self) -> tuple[int, ...]:
        """Shape of this rank's block, in memory order."""
        return tuple(self.range_of(axis)[1] for axis in self.axes)

    @functools.cached_property
    def start(self) -> tuple[int, ...]:
        """Global index of this rank's first cell, in memory order."""
        return tuple(self.range_of(axis)[0] for axis in self.axes)

    def check_block(
        self,
        x: jax.Array | np.ndarray,
        here: str,
        *,
        what: str = "the block",
        padded: tuple[int, ...] | None = None,
        hint: str = "",
    ) -> None:
        """Raise a ValueError unless an array has the shape of this rank's block, after a batch.

        The error begins with `here`, calls the array `what`, and ends with `hint`. A block with
        ghosts has the shape `padded`.
        """
        expected = padded or self.local_shape
        if x.ndim < len(expected) or x.shape[x.ndim - len(expected) :] != expected:
            ghosts = f", with its ghosts {padded}" if padded else ""
            raise ValueError(
                f"{here}: {what} has shape {x.shape}, but this rank holds {self.local_shape} of "
                f"{self.global_shape} (axes {self.axes} on {self.grid}){ghosts}; leading batch "
                f"dimensions may precede it{hint}"
            )

    def swapped(self, a: int, b: int) -> "Pencil":
        """The pencil in which two axes change places: in memory, and in what they are split over.

        Example:
            >>> pencil = Pencil((4, 5, 6), ProcessGrid()).swapped(1, 2)
            >>> pencil.split, pencil.axes
            ((0, 2), (0, 2, 1))

        """
        to = {a: b, b: a}
        split, axes = ([to.get(axis, axis) for axis in old] for old in (self.split, self.axes))
        return Pencil(self.global_shape, self.grid, split, axes)

    def local_block(self, x: _Array) -> _Array:
        """Cut this rank's block out of a global array that every rank has.

        Args:
            x: array of shape ``(..., *global_shape)``, of NumPy or JAX; leading axes are kept.

        Returns:
            Array of shape ``(..., *local_shape)``, of the same kind.

        """
        ndim = len(self.global_shape)
        if x.shape[x.ndim - ndim :] != self.global_shape:
            raise ValueError(
                f"{where('Pencil.local_block', self.grid.communicator)}: got an array of shape "
                f"{x.shape}, but the global shape is {self.global_shape}"
            )
        ranges = [self.range_of(axis) for axis in range(ndim)]
        index = (..., *(slice(start, start + count) for start, count in ranges))
        lead = x.ndim - ndim
        return x[index].transpose(*range(lead), *(lead + axis for axis in self.axes))

    def indices(self, axis: int) -> Indices:
        """Global indices along a global axis of this rank's cells, shaped to broadcast.

        They are computed from the rank's coordinate when the program runs: traced inside jit, they
        leave the program the same on all ranks, so that one compilation serves them all.

        Args:
            axis: a global axis.

        Returns:
            Integers in an array with as many dimensions as the block, all of size 1 but the one
            that holds `axis`.

        Example:
            >>> pencil = Pencil((4, 5, 6), ProcessGrid())
            >>> pencil.indices(2).shape, pencil.indices(2)[0, 0, 1].item()
            ((1, 1, 6), 1)

        """
        axis = self._axis(axis)
        n = self.global_shape[axis]
        _, count = self.range_of(axis)
        dtype = jnp.int64 if n > np.iinfo(np.int32).max else jnp.int32
        index = jnp.arange(count, dtype=dtype)
        if axis in self.split:
            dimension = self.split.index(axis)
            size, rest = divmod(n, self.grid.dims[dimension])
            if self.grid.dims[dimension] > 1:
                part = coordinate(self.grid.along(dimension)).astype(dtype)
                index = index + part * size + jnp.minimum(part, rest)
        shape = [1] * len(self.axes)
        shape[self.axes.index(axis)] = count
        return index.reshape(shape)


class Change(NamedTuple):
    """How blocks of one pencil become blocks of another.

    Attributes:
        order: dimension d of the new block is dimension order[d] of the old one.
        over: the dimensions of the process grid over which data move.
        scatter: the dimension of the old block that becomes split; None where nothing moves.
        gather: the dimension that becomes whole.

    """

    order: tuple[int, ...]
    over: tuple[int, ...]
    scatter: int | None
    gather: int | None


def change_of(source: Pencil, target: Pencil) -> Change:
    """How blocks of `source` become blocks of `target`."""
    order = tuple(source.axes.index(axis) for axis in target.axes)
    splits = enumerate(zip(source.grid.dims, source.split, target.split, strict=True))
    over = tuple(d for d, (ranks, old, new) in splits if ranks > 1 and old != new)
    if not over:
        return Change(order, over, None, None)
    scatter, gather = (source.axes.index(p.split[over[0]]) for p in (target, source))
    return Change(order, over, scatter, gather)


def checked_pencil(pencil: object, operation: str, name: str = "pencil") -> Pencil:
    """The argument `name`, if it is a pencil."""
    if not isinstance(pencil, Pencil):
        raise TypeError(
            f"{operation}: {name} must be a Pencil, as PencilFFT.input, got "
            f"{type(pencil).__name__}"
        )
    return pencil

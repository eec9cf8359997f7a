"""Who holds which part of a distributed array, in which memory order."""

import dataclasses
import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from pfftjax._runtime.primitive import static_ints, where

from ._coordinate import coordinate
from ._known import note_block
from ._process_grid import ProcessGrid, checked_grid


def block(n: int, parts: int, part: int) -> tuple[int, int]:
    """(start, count) of one part of n cells: equal parts, and the remainder to the first ones."""
    size, rest = divmod(n, parts)
    return part * size + min(part, rest), size + (part < rest)


@dataclasses.dataclass(frozen=True)
class Pencil:
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

    global_shape: tuple[int, ...]
    grid: ProcessGrid
    split: tuple[int, int] = (0, 1)
    axes: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        checked_grid(self.grid, "Pencil")
        here = where("Pencil", self.grid.communicator)
        shape, axes, split = (
            static_ints(value, name, "Pencil", self.grid.communicator)
            for name, value in (
                ("global_shape", self.global_shape),
                ("axes", self.axes),
                ("split", self.split),
            )
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
        for name, value in (("global_shape", shape), ("axes", axes), ("split", split)):
            object.__setattr__(self, name, value)
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

    def local_block(self, x: Any) -> Any:
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

    def indices(self, axis: int) -> jax.Array:
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


def checked_pencil(pencil: Any, operation: str) -> Pencil:
    """`pencil`, if it is one."""
    if not isinstance(pencil, Pencil):
        raise TypeError(
            f"{operation}: pencil must be a Pencil, as PencilFFT.input, got "
            f"{type(pencil).__name__}"
        )
    return pencil

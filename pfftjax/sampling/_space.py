"""What is sampled: which parts of it are distributed, and inner products over the ranks."""

import dataclasses
import math
from collections.abc import Callable
from typing import TypeAlias

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import PRNGKeyArray

from pfftjax._runtime.arguments import where
from pfftjax._runtime.arrays import PyTree, Scalar, Series
from pfftjax.autodiff import value_and_grad
from pfftjax.collectives import allreduce
from pfftjax.pencils import Pencil, ProcessGrid
from pfftjax.pencils.internal import checked_grid
from pfftjax.pm import white_noise

Density: TypeAlias = Callable[[PyTree], Scalar]


# What is known of a part: the pencil of a distributed array, or the shape of a shared one.
Part: TypeAlias = Pencil | tuple[int, ...]


def _is_part(x: object) -> bool:
    is_shape = isinstance(x, tuple) and all(isinstance(n, int | np.integer) for n in x)
    return is_shape or isinstance(x, Pencil)


class Space:
    """The positions of a chain over ranks: blocks of distributed arrays, and shared parameters.

    Args:
        parts: a pytree like a position. For each of its arrays it has the `Pencil` of which every
            rank has its block, or, of an array that is the same on every rank, the shape: () for
            a number.
        grid: the process grid of the pencils.

    Attributes:
        size: how many numbers a position has, over all ranks.

    Raises:
        TypeError: anything else in `parts`, or no grid.
        ValueError: a pencil on another grid.

    Example:
        >>> from pfftjax import PencilFFT
        >>> grid = ProcessGrid()
        >>> plan = PencilFFT((4, 4, 4), grid, real=True)
        >>> space = Space({"field": plan.input, "bias": ()}, grid)
        >>> position = {"field": jnp.ones(plan.input.local_shape), "bias": jnp.asarray(2.0)}
        >>> space.size
        65
        >>> bool(space.vdot(position, position) == 68)
        True

    """

    def __init__(self, parts: PyTree, grid: ProcessGrid) -> None:
        self.grid: ProcessGrid = checked_grid(grid, "Space")
        self.parts: PyTree = parts
        here = where("Space", grid.communicator)
        self._leaves, self._tree = jax.tree.flatten(parts, is_leaf=_is_part)
        for part in self._leaves:
            if not _is_part(part):
                raise TypeError(
                    f"{here}: each part is a Pencil, or the shape of what is the same on every "
                    f"rank, got {part!r}"
                )
            if isinstance(part, Pencil) and part.grid != grid:
                raise ValueError(f"{here}: {part!r} is on another process grid than {grid!r}")
        self.size: int = sum(
            math.prod(part.global_shape if isinstance(part, Pencil) else part)
            for part in self._leaves
        )

    def __repr__(self) -> str:
        """The parts, and the grid."""
        return f"Space({self.parts!r}, {self.grid!r})"

    def checked(self, position: PyTree, operation: str) -> PyTree:
        """`position`, if its arrays are of this space, and floating-point.

        Raises:
            ValueError: another pytree, or an array of another shape.
            TypeError: an array that is not real and floating-point.

        """
        here = where(operation, self.grid.communicator)
        for part, x in self._pairs(position, operation=operation):
            if not jax.tree_util.all_leaves([x]):
                raise ValueError(f"{here}: the position has {x!r} where the space has {part!r}")
            dtype, shape = jnp.result_type(x), jnp.shape(x)
            if not jnp.issubdtype(dtype, jnp.floating):
                raise TypeError(f"{here}: positions are real and floating-point, got {dtype}")
            expected = _local_shape(part)
            if shape != expected:
                raise ValueError(f"{here}: an array must have shape {expected} here, got {shape}")
        return position

    def _pairs(self, *positions: PyTree, operation: str = "Space") -> list[tuple]:
        """For each part what is known of it, and its array in each position."""
        try:
            arrays = [self._tree.flatten_up_to(position) for position in positions]
        except ValueError as error:
            raise ValueError(
                f"{where(operation, self.grid.communicator)}: a position must be a pytree as "
                f"{self.parts!r}: {error}"
            ) from None
        return list(zip(self._leaves, *arrays, strict=True))

    def unravel(self, numbers: Series) -> PyTree:
        """A position of which a rank's numbers follow each other, as `ravel_pytree` has them."""
        shapes = [_local_shape(part) for part in self._leaves]
        ends = np.cumsum([math.prod(shape) for shape in shapes])
        arrays = jnp.split(numbers, ends[:-1])
        return self._tree.unflatten(
            x.reshape(shape) for x, shape in zip(arrays, shapes, strict=True)
        )

    def normal(self, key: PRNGKeyArray, like: PyTree) -> PyTree:
        """Standard normal numbers in the shape of a position, the same on any process grid.

        Args:
            key: as in `pfftjax.pm.white_noise`; the same on every rank.
            like: a position, for shapes and dtypes.

        """
        drawn = []
        parts = self._pairs(self.checked(like, "Space.normal"))
        for number, (part, x) in enumerate(parts):
            own_key, dtype = jax.random.fold_in(key, number), jnp.result_type(x)
            if isinstance(part, Pencil):
                drawn.append(white_noise(own_key, part, dtype))
            else:
                drawn.append(jax.random.normal(own_key, part, dtype))
        return jax.tree.structure(like).unflatten(drawn)

    def vdot(self, x: PyTree, y: PyTree) -> Scalar:
        """The inner product of two positions: the same number on every rank."""
        return self.vdots((x, y))[0]

    def vdots(self, *pairs: tuple[PyTree, PyTree]) -> Series:
        """Inner products of several pairs of positions, in one message."""
        shared = own = jnp.zeros(len(pairs))
        for number, (x, y) in enumerate(pairs):
            for part, a, b in self._pairs(x, y):
                # XLA sums by a tree: a dot product of float32 loses digits with its length.
                product = jnp.sum(jnp.asarray(a) * b)
                if isinstance(part, Pencil):
                    own = own.at[number].add(product)
                else:
                    shared = shared.at[number].add(product)
        return shared + allreduce(own, comm=self.grid.comm)

    def density(self, logdensity: Density) -> Density:
        """`logdensity` as samplers want it: `jax.grad` of it is the gradient of all ranks' total.

        By itself `jax.grad` gives each rank only its own part of the derivative by a parameter
        that all ranks share. `pfftjax.value_and_grad` adds them up, and here knows which parts
        of a position are shared.

        Args:
            logdensity: function of a position that returns the logarithm of the density, up to a
                constant: the same number on every rank, such as the `pfftjax.vdot` of residuals.

        Returns:
            A function of a position, for BlackJAX and for `mclmc`. Reverse mode can be taken of it
            once. What this function returned for the same space is returned as it is.

        """
        if isinstance(logdensity, _OfAllRanks) and logdensity.space is self:
            return logdensity
        is_shared = [not isinstance(part, Pencil) for part in self._leaves]
        shared = {0: self._tree.unflatten(is_shared)}
        of_all = value_and_grad(logdensity, shared=shared, comm=self.grid.comm)

        @jax.custom_vjp
        def density(position: PyTree) -> Scalar:
            return logdensity(self.checked(position, "Space.density"))

        def forward(position: PyTree) -> tuple[Scalar, PyTree]:
            return of_all(self.checked(position, "Space.density"))

        def backward(gradient: PyTree, cotangent: Scalar) -> tuple[PyTree]:
            return (jax.tree.map(lambda g: cotangent * g, gradient),)

        density.defvjp(forward, backward)
        return _OfAllRanks(density, self)


@dataclasses.dataclass(frozen=True)
class _OfAllRanks:
    """A density whose gradient is that of all ranks' total."""

    density: Density
    space: Space

    def __call__(self, position: PyTree) -> Scalar:
        return self.density(position)


def _local_shape(part: Part) -> tuple[int, ...]:
    """The shape of what a rank has of a part."""
    return part.local_shape if isinstance(part, Pencil) else part


def scaled(x: PyTree, factors: PyTree) -> PyTree:
    """A position times factors, numbers or arrays in the form of a position or a prefix of it."""
    return jax.tree.map(
        lambda factor, part: jax.tree.map(lambda a: a * jnp.asarray(factor, a.dtype), part),
        factors,
        x,
    )

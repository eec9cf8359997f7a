"""Means over space of products of three fields, each of the modes of one shell."""

import dataclasses
import math
from collections.abc import Sequence

import jax
import jax.numpy as jnp
import numpy as np

from pfftjax._runtime.arrays import Block, RealBlock, Reals, Series
from pfftjax.fft import PencilFFT, PencilTransform

from ._product_meshes import Triangle


@dataclasses.dataclass(frozen=True)
class Modes:
    """Modes of which fields of single shells are made.

    Attributes:
        plan: whose inverse makes fields of them.
        spectrum: this rank's block.
        square: of each wavenumber, in units of 2 pi over the longest side.
        points: whose mean is that over space.
        weights: of these, how many each point of a field stands for; broadcasts against its block.

    """

    plan: PencilFFT | PencilTransform
    spectrum: Block
    square: Reals
    points: int
    weights: Reals

    def between(self, ends: Sequence[jax.Array]) -> RealBlock:
        """The field of the modes between two wavenumbers, of which it takes squares."""
        inside = (self.square >= ends[0]) & (self.square < ends[1])
        return self.plan.inverse(jnp.where(inside, self.spectrum, 0))


def ones_for(mesh: PencilFFT, sides: Sequence[float], dtype: np.dtype) -> Modes:
    """Modes that are all 1, on a mesh like this.

    The sum of the ones of a shell is even along every axis. An eighth of the mesh has all its
    values, in a transform by cosines: the planes of symmetry stand for themselves, all others for
    two. An odd mesh gets one more point along the axis, to have both planes; its products have no
    aliases either. All bits travel, whatever `mesh` says: by rounded ones a few numbers of
    triangles would depend on the process grid.
    """
    shape = tuple(max((n + 1) // 2, 1) + 1 for n in mesh.shape)
    plan = PencilTransform(shape, mesh.grid, ("dct1",) * 3, method=mesh.method)
    square: Reals = jnp.zeros((1, 1, 1), dtype)
    weights: Reals = jnp.ones((1, 1, 1), dtype)
    for axis, (n, side) in enumerate(zip(shape, sides, strict=True)):
        m = plan.output.indices(axis) * np.asarray(max(sides) / side, dtype)
        square = square + m**2
        at = plan.input.indices(axis)
        weights = weights * jnp.where((at == 0) | (at == n - 1), 1, 2).astype(dtype)
    points = math.prod(2 * (n - 1) for n in shape)
    ones = jnp.full(plan.output.local_shape, points, dtype)
    return Modes(plan, ones, square, points, weights)


def means_of_products(modes: Modes, squares: np.ndarray, triangles: Sequence[Triangle]) -> Series:
    """Return a rank's part of the means over space of products of three fields, those of the
    shells of each triangle.

    Sums are formed plane by plane: a long one in float32 would lose digits. Reverse mode makes
    again what is not held.

    Args:
        modes: of which fields are made.
        squares: of the ends of all shells.
        triangles: the numbers of their shells.

    """
    points = np.asarray(modes.points, modes.square.dtype)
    used, places = np.unique(triangles, return_inverse=True)
    places, ends = places.reshape(-1, 3), [squares[used], squares[used + 1]]
    if np.all(places == places[:, :1]):

        def cubed(ends: Sequence[jax.Array]) -> jax.Array:
            return jnp.sum(jnp.sum(modes.weights * modes.between(ends) ** 3, axis=(1, 2)))

        return jax.lax.map(jax.checkpoint(cubed), ends)[places[:, 0]] / points

    def held(stack: jax.Array, item: tuple[jax.Array, list[jax.Array]]) -> tuple[jax.Array, None]:
        field = modes.between(item[1])
        return jax.lax.dynamic_update_index_in_dim(stack, field, item[0], 1), None

    shells = len(ends[0])
    n0, n1, n2 = modes.plan.input.local_shape
    # Planes come first, as they are what is looped over next.
    stack = jnp.zeros((n0, shells, n1, n2), modes.square.dtype)
    stack, _ = jax.lax.scan(held, stack, (jnp.arange(shells), [jnp.asarray(x) for x in ends]))
    weights = jnp.broadcast_to(modes.weights, (n0, *modes.weights.shape[1:]))
    pairs, pair_of = np.unique(places[:, :2], axis=0, return_inverse=True)

    def of_plane(plane: tuple[jax.Array, jax.Array]) -> jax.Array:
        x, weighted = (part.reshape(shells, -1) for part in (plane[0], plane[0] * plane[1]))
        return jnp.matmul(x[pairs[:, 0]] * x[pairs[:, 1]], weighted.T, precision="highest")

    sums = jax.lax.map(jax.checkpoint(of_plane), (stack, weights)).sum(0)
    return sums[pair_of.ravel(), places[:, 2]] / points

"""Meshes as small as products of three fields, each of one shell of wavenumbers, allow.

On a mesh of M points along an axis, modes whose numbers add up to a multiple of M look as if they
added up to 0. Those of shells that end at k1, k2 and k3 [2 pi / L] add up to less than
k1 + k2 + k3. With M beyond that, the mean of the product of three fields is that of their modes
that close; those of k > M / 2, which the mesh does not have, have no partners with which they do.
"""

import functools
import math
from collections.abc import Sequence
from typing import TypeAlias

import numpy as np

from pfftjax.fft.internal import smooth_size

Triangle: TypeAlias = tuple[int, int, int]
Shape: TypeAlias = tuple[int, ...]

# One more mesh costs about as much as transforms of so many points, and has to be compiled.
_COST_OF_MESH = 64**3
_MOST_MESHES = 3


def reach_of(triangle: Triangle, bounds: np.ndarray) -> float:
    """What the wavenumbers of a triangle's shells add up to, at most."""
    return sum(float(bounds[i + 1]) for i in triangle)


def smallest_mesh(reach: float, shape: Shape, sides: Sequence[float]) -> Shape:
    """The smallest mesh, nowhere larger than `shape`, of which `reach` [2 pi / longest side] is no
    period.
    """
    # By rounding, a mode on the upper edge of a shell may be in it.
    reach *= 1 + 1e-5
    return tuple(
        min(n, smooth_size(int(reach * side / max(sides)) + 1))
        for n, side in zip(shape, sides, strict=True)
    )


def meshes_of(
    triangles: Sequence[Triangle], bounds: np.ndarray, shape: Shape, sides: Sequence[float]
) -> dict[Shape, list[int]]:
    """A few meshes, and the numbers of the triangles whose products are formed on each: such that
    points times shells, each of which is transformed, are fewest.
    """
    needed = [smallest_mesh(reach_of(each, bounds), shape, sides) for each in triangles]
    # Each has at least as many points along every axis as those before.
    shapes = sorted(set(needed))
    shells: dict[Shape, set[int]] = {each: set() for each in shapes}
    for mesh, triangle in zip(needed, triangles, strict=True):
        shells[mesh].update(triangle)

    @functools.cache
    def cheapest(end: int, most: int) -> tuple[int, tuple[Shape, ...]]:
        """The cost of what needs the first `end` shapes, on at most so many of them; and these."""
        if end == 0:
            return 0, ()
        ways = []
        for start in range(end) if most > 1 else (0,):
            cost, taken = cheapest(start, most - 1)
            transforms = len(set().union(*(shells[each] for each in shapes[start:end])))
            cost += transforms * math.prod(shapes[end - 1]) + _COST_OF_MESH
            ways.append((cost, (*taken, shapes[end - 1])))
        return min(ways)

    _, taken = cheapest(len(shapes), _MOST_MESHES)
    result: dict[Shape, list[int]] = {mesh: [] for mesh in taken}
    for number, least in enumerate(needed):
        result[min(mesh for mesh in taken if mesh >= least)].append(number)
    return result

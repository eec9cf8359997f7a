"""Bispectra of distributed fields."""

import dataclasses
import itertools
import math
from collections.abc import Callable, Sequence
from typing import Literal, NamedTuple, TypeAlias

import jax
import jax.numpy as jnp
import numpy as np

from pfftjax._runtime.arguments import static_ints, where
from pfftjax._runtime.arrays import BoxSize, RealBlockLike, Reals, Series, SeriesLike
from pfftjax._runtime.communicators import Communicator
from pfftjax.collectives import allreduce
from pfftjax.fft import PencilFFT, truncate_spectrum, truncated_forward
from pfftjax.pm.internal import (
    ROUNDING,
    Kernel,
    Shells,
    bounds_of,
    real_plan,
    static_sides,
)
from pfftjax.pm.internal import field as checked

from ._product_meshes import Triangle, meshes_of, reach_of, smallest_mesh
from ._products import Modes, means_of_products, ones_for

Triangles: TypeAlias = Literal["equilateral", "all"] | Sequence[Sequence[int]]


class Bispectrum(NamedTuple):
    """A bispectrum in triangles of shells of wavenumbers, the same on every rank.

    Attributes:
        k: (triangles, 3), mean wavenumber of the shell of each side [h/Mpc].
        power: (triangles, 3), the power spectrum of these shells [(Mpc/h)^3].
        bispectrum: B(k1, k2, k3) [(Mpc/h)^6]; 0 where there is no triangle.
        triangles: over how many triangles of modes it is the mean, each order of the modes counted
            for itself; whole numbers, up to rounding.

    """

    k: Reals
    power: Reals
    bispectrum: Series
    triangles: Series

    @property
    def reduced(self) -> Series:
        """Q = B / (P1 P2 + P2 P3 + P3 P1), which depends little on scale and time."""
        # In float32 the product of two spectra may be larger than any number.
        most = jax.lax.stop_gradient(jnp.max(self.power, axis=1))
        most = jnp.where(most > 0, most, 1)
        p1, p2, p3 = (self.power / most[:, None]).T
        square = p1 * p2 + p2 * p3 + p3 * p1
        part = self.bispectrum / most / most
        return jnp.where(square > 0, part / jnp.where(square > 0, square, 1), 0)


def bispectrum(
    field: RealBlockLike,
    plan: PencilFFT,
    box_size: BoxSize,
    triangles: Triangles = "equilateral",
    *,
    edges: SeriesLike | None = None,
    kernel: Kernel | None = None,
    counts: SeriesLike | None = None,
) -> Bispectrum:
    """The bispectrum of a distributed field, by transforms.

        B = <delta(q1) delta(q2) delta(q3)> / V    over q1 + q2 + q3 = 0, q_i in shell i

    The sum over these triangles of modes is the sum over space of a product of three fields, each
    with the modes of one shell; how many triangles there are, is found in the same way of modes
    that are all 1 (Scoccimarro 2015; Sefusatti et al. 2016). That takes one inverse transform for
    each different shell on each mesh, whatever the number of triangles, and one of an eighth of
    its points for the ones, whose fields are even along every axis.

    Products are formed on the smallest meshes that leave them without aliases, of more points
    along an axis than the upper ends of three shells add up to in units of 2 pi / L: up to three
    meshes, where triangles differ in size. Wavenumbers far below Nyquist's cost little more than
    the transform of the field.

    Beside the spectrum, a rank holds one block of such a mesh at a time for "equilateral"
    triangles, and otherwise one for each different shell; reverse mode, as many again. While
    products are formed there is one plane for each different pair of sides besides.

    No shot noise is subtracted; that of N particles is (P1 + P2 + P3) V / N - 2 (V / N)^2, with
    the spectra as they are measured.

    Args:
        field: this rank's block, ``(*plan.input.local_shape,)``.
        plan: ``PencilFFT(shape, grid, real=True)``.
        box_size: side of the box [Mpc/h]: a number, or one for each axis; static.
        triangles: three numbers of shells, counted from 0, for each triangle, in any order of the
            sides; or "equilateral", the triangles of one shell, or "all" of those that close, from
            (0, 0, 0) on, each with rising numbers. The latter two end where aliases begin.
        edges: of the shells [h/Mpc], rising: shell i has ``edges[i] <= |k| < edges[i + 1]``. By
            default those of `pfftjax.pm.power_spectrum`, of width 2 pi / L.
        kernel: by which `field` was painted, if it was; its smoothing is divided out. Aliases are
            those of `pfftjax.pm.power_spectrum`.
        counts: how many triangles there are, for each: `triangles` of an earlier result for
            the same mesh, box, edges and triangles, on which alone they depend. They save many
            measurements the transforms of ones.

    Returns:
        `Bispectrum`, the same on every rank.

    Raises:
        ValueError: a plan, a block, a kernel, a box, edges or triangles that do not fit: sides
            that can form no triangle, or such that three modes can close only up to a period of
            the mesh, k1 + k2 + k3 = 2 pi n / L, which is no triangle of the field.
        TypeError: complex numbers, a dtype without a transform, or a box or edges that are traced.

    Example:
        Waves along the edges of a triangle, in phase:

        >>> from pfftjax import ProcessGrid
        >>> plan = PencilFFT((16, 16, 16), ProcessGrid(), real=True)
        >>> x, y = (2 * jnp.pi / 16 * plan.input.indices(axis) for axis in (0, 1))
        >>> waves = jnp.cos(3 * x) + jnp.cos(4 * y) + jnp.cos(3 * x + 4 * y)
        >>> field = waves + jnp.zeros(plan.input.local_shape)
        >>> result = bispectrum(field, plan, 100.0, [(2, 3, 4), (0, 1, 1)])
        >>> result.bispectrum[0].item() > 1e6, abs(result.bispectrum[1].item()) < 1e-3
        (True, True)

    """
    name = "bispectrum"
    comm = real_plan(plan, name).grid.communicator
    sides = static_sides(box_size, plan, name)
    field = checked(field, plan, name)
    bounds = bounds_of(edges, plan, sides, name)
    # Three modes close only up to a period where their sum can reach the mesh's sampling rate.
    period = min(n * max(sides) / side for n, side in zip(plan.shape, sides, strict=True))
    chosen = _triangles(triangles, bounds, period, comm)
    bounds = bounds[: max(itertools.chain(*chosen)) + 2]
    # The spectrum has both signs of each mode of these shells, and what products need.
    reach = max(2 * bounds[-1], *(reach_of(triangle, bounds) for triangle in chosen))

    def shells_on(shape: Sequence[int], painted_on: PencilFFT | None = None) -> Shells:
        mesh = dataclasses.replace(plan, shape=shape)
        return Shells(mesh, sides, field.dtype, name, bounds, painted_on)

    shells = shells_on(smallest_mesh(reach, plan.shape, sides), plan)
    parts = [
        (shells_on(shape), numbers)
        for shape, numbers in meshes_of(chosen, bounds, plan.shape, sides).items()
    ]
    order = np.argsort(np.concatenate([numbers for _, numbers in parts]))

    def means(modes_on: Callable[[Shells], Modes]) -> jax.Array:
        """Means over space of products of the fields of each triangle's three shells."""
        found = [
            means_of_products(modes_on(part), shells.squares, [chosen[i] for i in numbers])
            for part, numbers in parts
        ]
        return allreduce(jnp.concatenate(found), comm=plan.grid.comm)[order]

    y = shells.deconvolved(truncated_forward(field, plan, shells.plan), kernel)

    def modes_of_field(part: Shells) -> Modes:
        spectrum = truncate_spectrum(y, shells.plan, part.plan)
        each = jnp.ones((1, 1, 1), field.dtype)
        return Modes(part.plan, spectrum, part.square, math.prod(part.plan.shape), each)

    # Either mean is a sum over triangles of modes: of delta(q) / V for the field, and of 1 for
    # their number.
    found = means(modes_of_field)
    if counts is None:
        number = jnp.round(means(lambda part: ones_for(part.plan, sides, field.dtype)))
    else:
        number = jnp.asarray(counts, found.dtype)
        if number.shape != found.shape:
            raise ValueError(
                f"{where(name, comm)}: counts must be one number for each of the {len(chosen)} "
                f"triangles, as `triangles` of an earlier result; got the shape {number.shape}"
            )
    number = jax.lax.stop_gradient(number)
    volume = np.asarray(shells.volume, shells.dtype)
    mean = volume * (volume * found / jnp.maximum(number, 1))
    k, power = shells.k, shells.mean(shells.power(y, None))
    return Bispectrum(
        k=k[np.asarray(chosen)],
        power=power[np.asarray(chosen)],
        bispectrum=jnp.where(number > 0, mean, 0),
        triangles=number,
    )


def _triangles(
    triangles: Triangles, bounds: np.ndarray, period: float, comm: Communicator
) -> list[Triangle]:
    """The numbers of the shells of each triangle, rising."""
    here, last = where("bispectrum", comm), len(bounds) - 2
    low, high = bounds[:-1].tolist(), bounds[1:].tolist()

    def closes(triangle: Triangle) -> bool:
        i, j, k = triangle
        return low[k] * (1 + ROUNDING) < high[i] + high[j]

    def is_resolved(triangle: Triangle) -> bool:
        return sum(high[i] for i in triangle) <= period * (1 + ROUNDING)

    if isinstance(triangles, str):
        if triangles not in ("equilateral", "all"):
            raise ValueError(
                f"{here}: triangles must be equilateral, all or a list of three numbers of shells "
                f"for each, got {triangles!r}"
            )
        every: list[Triangle] = (
            [(i, i, i) for i in range(last + 1)]
            if triangles == "equilateral"
            else list(itertools.combinations_with_replacement(range(last + 1), 3))
        )
        found = [x for x in every if closes(x) and is_resolved(x)]
        if not found:
            raise ValueError(
                f"{here}: no triangle of these shells is resolved; take a finer mesh, or shells "
                "of smaller wavenumbers"
            )
        return found
    found = []
    for each in triangles:
        numbers = sorted(static_ints(each, "triangles", "bispectrum", comm))
        if len(numbers) != 3 or not 0 <= numbers[0] <= numbers[2] <= last:
            raise ValueError(
                f"{here}: a triangle has three numbers of shells from 0 to {last}, got {each!r}"
            )
        i, j, k = numbers
        if not closes((i, j, k)):
            raise ValueError(
                f"{here}: no triangle has its sides in the shells {each!r}: the longest is longer "
                "than the others together"
            )
        if not is_resolved((i, j, k)):
            raise ValueError(
                f"{here}: modes of the shells {each!r} may close up to a period of the mesh; "
                f"the upper edges of a triangle's shells add up to at most {period:g} times 2 pi "
                "over the longest side: take a finer mesh, or smaller wavenumbers"
            )
        found.append((i, j, k))
    if not found:
        raise ValueError(f"{here}: there are no triangles")
    return found

"""Modes of a spectrum in shells of wavenumbers, and what is measured of them."""

import functools
import math
from collections.abc import Sequence

import jax
import jax.numpy as jnp
import numpy as np
from jax.core import Tracer
from jax.typing import DTypeLike

from pfftjax._runtime.arguments import where
from pfftjax._runtime.arrays import BoxSize, Counts, Numbers, RealBlockLike, Series, SeriesLike
from pfftjax.collectives import allreduce
from pfftjax.fft import PencilFFT
from pfftjax.spectral.internal import sides

from ._assignment import Kernel, assignment_of
from ._spectral import field as checked
from ._spectral import real_plan

# Relative differences, by the unit of length, of wavenumbers that are meant to be equal.
ROUNDING = 1e-9


def static_sides(box_size: BoxSize, plan: PencilFFT, operation: str) -> list[float]:
    """The sides of the box as numbers: how many shells there are depends on them."""
    real_plan(plan, operation)
    lengths = sides(box_size, plan, operation)
    if any(isinstance(side, Tracer) for side in lengths):
        raise TypeError(
            f"{where(operation, plan.grid.communicator)}: box_size must be static, as the number "
            "of shells depends on it"
        )
    return [float(side) for side in lengths]


def fields_of_one_dtype(
    field: RealBlockLike,
    other: RealBlockLike | None,
    other_kernel: Kernel | None,
    plan: PencilFFT,
    operation: str,
) -> tuple[jax.Array, jax.Array | None]:
    """Both fields, if they are blocks of the plan."""
    field = checked(field, plan, operation)
    if other is not None:
        other = checked(other, plan, operation)
        dtype = jnp.result_type(field, other)
        return field.astype(dtype), other.astype(dtype)
    if other_kernel is not None:
        raise ValueError(
            f"{where(operation, plan.grid.communicator)}: other_kernel is that of `other`, and "
            "there is no such field"
        )
    return field, None


def number_of_shells(plan: PencilFFT, lengths: Sequence[float]) -> int:
    """How many shells there are: up to the highest mode that there is along every axis."""
    # The last shell is the one of the highest mode of the axis that has the lowest one.
    highest = min(
        n // 2 * max(lengths) / side for n, side in zip(plan.shape, lengths, strict=True)
    )
    return max(int(highest * (1 + ROUNDING) + 0.5), 1)


def bounds_of(
    edges: SeriesLike | None, plan: PencilFFT, lengths: Sequence[float], operation: str
) -> np.ndarray:
    """The ends of all shells in units of k_f: of those that a user wants, or by default of as many
    as there are, of width k_f.
    """
    if edges is None:
        return np.arange(number_of_shells(plan, lengths) + 1) + 0.5
    here = where(operation, plan.grid.communicator)
    if any(isinstance(x, Tracer) for x in jax.tree.leaves(edges)):
        raise TypeError(f"{here}: edges must be static, as the number of shells depends on them")
    given = np.asarray(edges)
    # Modes on an edge are in the shell that begins there, also where edges are rounded.
    rounding = 4 * np.finfo(given.dtype).eps if given.dtype.kind == "f" else 0.0
    bounds = given.astype(float) * (max(lengths) / (2 * np.pi) * (1 - rounding))
    if bounds.ndim != 1 or len(bounds) < 2 or not (bounds[0] > 0 and np.all(np.diff(bounds) > 0)):
        raise ValueError(
            f"{here}: edges must be two or more positive wavenumbers that rise, got {edges!r}"
        )
    # All modes of a shell are in its volume, up to its surface; they lie further apart along the
    # shorter sides.
    density = math.prod(side / max(lengths) for side in lengths)
    most = min(4 / 3 * np.pi * density * np.diff(bounds**3).max(), math.prod(plan.shape))
    if most > np.iinfo(np.int32).max:
        raise ValueError(
            f"{here}: a shell of these edges has some {most:.1e} modes, which are counted in 32 "
            "bits; take narrower shells, and means of them weighted by their modes"
        )
    return bounds


class Shells:
    """The modes of this rank's spectrum by their wavenumbers, in units of k_f = 2 pi / L of the
    longest side. Shell i has those with ``bounds[i] <= |k| < bounds[i + 1]``.

    What lies on the edge of a shell, as modes do where sides are commensurate, is in the shell
    that begins there, whatever the unit of length and the precision. (With unequal sides and in
    float32, beyond a hundred shells or so some of those just below an edge are, too.)

    Attributes:
        plan: the transforms.
        sides: of the box.
        dtype: of the fields.
        operation: whose name errors have.
        painted_on: the plan of the mesh on which fields were painted, which may be finer.
        fundamental: k_f.
        number: how many shells there are.
        m: wavenumbers along the axes in units of k_f, which broadcast against the spectrum.
        square: the sum of their squares, for each mode.
        radius: their length, for each mode.
        rounding: the relative error that `square` may have.
        weights: how often each mode is in the whole spectrum.

    """

    def __init__(
        self,
        plan: PencilFFT,
        lengths: Sequence[float],
        dtype: DTypeLike,
        operation: str,
        bounds: np.ndarray | None = None,
        painted_on: PencilFFT | None = None,
    ) -> None:
        self.plan: PencilFFT = plan
        self.sides: Sequence[float] = lengths
        self.dtype: np.dtype = jnp.dtype(dtype)
        self.operation: str = operation
        self.painted_on: PencilFFT = plan if painted_on is None else painted_on
        self.fundamental: float = 2 * np.pi / max(lengths)
        self._has_width_of_one: bool = bounds is None
        self.bounds: np.ndarray = (
            bounds_of(None, plan, lengths, operation) if bounds is None else bounds
        )
        self.number: int = len(self.bounds) - 1
        self._k = plan.wavenumbers(tuple(lengths), dtype)
        self.m: list[jax.Array] = [
            jnp.round(k * np.asarray(side / (2 * np.pi), dtype))
            * np.asarray(max(lengths) / side, dtype)
            for k, side in zip(self._k, lengths, strict=True)
        ]
        self.square: jax.Array = functools.reduce(jnp.add, [m**2 for m in self.m])
        self.radius: jax.Array = jnp.sqrt(self.square)
        # In a cube these are sums of whole numbers.
        self.rounding: float = 0.0
        if len(set(lengths)) > 1:
            self.rounding = 4 * float(np.finfo(self.dtype).eps)
        self.weights: jax.Array = jnp.broadcast_to(
            plan.hermitian_weights(dtype), self.radius.shape
        )

    @functools.cached_property
    def shell(self) -> jax.Array:
        """The shell of each mode; that after the last for those in none."""
        if not self._has_width_of_one:
            shell = jnp.searchsorted(self.squares, self.square, side="right").astype(jnp.int32) - 1
            return jnp.where(shell < 0, self.number, shell)

        def begins_before(shell: jax.Array) -> jax.Array:
            # (i + 1/2)^2 without its quarter is a whole number.
            return self.square - shell * (shell + 1) >= 0.25 - self.rounding * self.square

        near = jnp.floor(self.radius - 0.5)  # a root may be rounded to the next shell
        shell = near + begins_before(near + 1) - ~begins_before(near)
        shell = shell.astype(jnp.int32)
        return jnp.where((shell >= 0) & (shell < self.number), shell, self.number)

    @functools.cached_property
    def squares(self) -> np.ndarray:
        """The least `square` of modes beyond each of `bounds`: a little below the square of the
        edge, on which modes may lie.
        """
        least = self.bounds**2 * (1 - ROUNDING)
        # In a cube it is that of the next whole number.
        least = np.ceil(least) if self.rounding == 0 else least * (1 - self.rounding)
        return least.astype(self.dtype)

    @property
    def volume(self) -> float:
        """The volume of the box."""
        return self.sides[0] * self.sides[1] * self.sides[2]

    def power(self, y: jax.Array, z: jax.Array | None, *kernels: Kernel | None) -> jax.Array:
        """The power of each mode of a spectrum, or that of two, without the smoothing of the
        kernels by which the fields were painted, one for each.
        """
        if z is None:
            square = y.real**2 + y.imag**2
        else:
            square = y.real * z.real + y.imag * z.imag
        n0, n1, n2 = self.plan.shape
        power = square * np.asarray(self.volume / float(n0 * n1 * n2) ** 2, self.dtype)
        for kernel in kernels:
            power = self.deconvolved(power, kernel)
        return power

    def deconvolved(self, spectrum: jax.Array, kernel: Kernel | None) -> jax.Array:
        """A spectrum without the smoothing of the kernel by which its field was painted."""
        if kernel is not None:
            mesh = self.painted_on
            points = assignment_of(kernel, mesh.input, self.operation).points
            for k, n, side in zip(self._k, mesh.shape, self.sides, strict=True):
                spectrum = spectrum / jnp.sinc(k * (side / n / (2 * np.pi))) ** points
        return spectrum

    def total(self, values: jax.Array, bin_of: jax.Array | None = None, bins: int = 0) -> Numbers:
        """Sums of what each mode has over the shells, on every rank; or over other bins, of which
        that after the last has the rest.
        """
        if bin_of is None:
            bin_of, bins = self.shell, self.number
        # Plane by plane: a long sum in float32 would lose digits.
        planes = jax.vmap(lambda v, s: jnp.zeros(bins + 1, v.dtype).at[s.ravel()].add(v.ravel()))(
            values, bin_of
        )
        return allreduce(planes.sum(0)[:bins], comm=self.plan.grid.comm)

    @functools.cached_property
    def modes(self) -> Counts:
        """How many modes are in each shell."""
        return self.total(self.weights.astype(jnp.int32))

    def mean(self, values: jax.Array) -> Series:
        """The mean of what each mode has in each shell; 0 in one without modes."""
        return self.total(self.weights * values) / jnp.maximum(self.modes, 1).astype(self.dtype)

    @property
    def k(self) -> Series:
        """The mean wavenumber of each shell."""
        return self.mean(self.radius) * np.asarray(self.fundamental, self.dtype)


def shells_of(
    field: RealBlockLike,
    plan: PencilFFT,
    box_size: BoxSize,
    other: RealBlockLike | None,
    other_kernel: Kernel | None,
    edges: SeriesLike | None,
    operation: str,
) -> tuple[Shells, jax.Array, jax.Array | None]:
    """The shells for a field and perhaps another one, and the spectra of both."""
    lengths = static_sides(box_size, plan, operation)
    field, other = fields_of_one_dtype(field, other, other_kernel, plan, operation)
    y = plan.forward(field)
    z = None if other is None else plan.forward(other)
    bounds = None if edges is None else bounds_of(edges, plan, lengths, operation)
    return Shells(plan, lengths, field.dtype, operation, bounds), y, z

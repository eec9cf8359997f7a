"""A transform of a distributed array, and what is read off it."""

import dataclasses
import functools
import math
from collections.abc import Sequence
from typing import cast

import jax.numpy as jnp
import numpy as np
from jax.core import Tracer
from jax.typing import ArrayLike, DTypeLike

from pfftjax._runtime.arguments import where
from pfftjax._runtime.arrays import BoxSize, Field, FieldLike, Indices, Number, Reals
from pfftjax.pencils import ExchangePrecision, Pencil
from pfftjax.pencils.internal import check_dimensions, checked_method, checked_precision

from ._description import Description, describe
from ._local import hermitian_weights
from ._steps import (
    SCALES,
    Steps,
    Transform,
    forward_steps,
    inverse_steps,
    run,
    spectral_shape,
    stages,
)
from ._timings import Timings
from ._trigonometric import OFFSETS


@dataclasses.dataclass(frozen=True)
class Plan(Transform):
    """A transform of two or three axes of a distributed array, each of a kind of its own.

    `PencilFFT` and `PencilTransform` make plans; they differ in what they are given, and say what
    the attributes are.
    """

    timings: Timings = dataclasses.field(compare=False, repr=False)

    def __post_init__(self) -> None:
        here = self._here()
        checked_method(self.method, type(self).__name__, self.grid.communicator)
        checked_precision(self.precision, type(self).__name__, self.grid.communicator)
        if len(self.shape) == 2 and self.grid.dims[1] != 1:
            raise ValueError(
                f"{here}: an array of two axes is distributed in slabs, over a grid of "
                f"({self.grid.size}, 1), but the grid is {self.grid.dims}; make one by "
                "pfftjax.ProcessGrid((None, 1))"
            )
        if not isinstance(self.norm, str) or self.norm not in SCALES:
            raise ValueError(f"{here}: norm must be one of {', '.join(SCALES)}, got {self.norm!r}")
        if self.layout not in ("transposed", "natural"):
            raise ValueError(f"{here}: layout must be transposed or natural, got {self.layout!r}")
        # On every grid alike, also where nothing is sent, or a program fails when it gets ranks.
        is_of_fourier = len(self.shape) == 3 and {*self.kinds} <= {"fft", "rfft"}
        is_rounded = self.precision != ExchangePrecision.FULL
        if is_rounded and not (is_of_fourier and self.layout == "transposed"):
            raise ValueError(
                f"{here}: {self.precision} is for Fourier transforms of three axes with "
                f"layout='transposed', got {len(self.shape)} axes of kinds {self.kinds} with "
                f"layout {self.layout!r}, which can have an exchange without one of them; "
                "take ExchangePrecision.FULL"
            )

    def _here(self, method: str = "") -> str:
        return where(f"{type(self).__name__}{method and '.'}{method}", self.grid.communicator)

    @property
    def spectral_shape(self) -> tuple[int, ...]:
        """Global shape of the spectrum."""
        return spectral_shape(self.shape, self.kinds)

    @functools.cached_property
    def input(self) -> Pencil:
        """Pencil of the array in real space: whole along the last axis."""
        return Pencil(self.shape, self.grid)

    @functools.cached_property
    def output(self) -> Pencil:
        """Pencil of the spectrum."""
        way = stages(Pencil(self.spectral_shape, self.grid))
        return way[0] if self.layout == "natural" else way[-1]

    @functools.cached_property
    def _forward(self) -> Steps:
        return forward_steps(self, self.shape)

    @functools.cached_property
    def _inverse(self) -> Steps:
        return inverse_steps(self, self.shape)

    def forward(self, x: FieldLike) -> Field:
        """The spectrum of an array in real space.

        Args:
            x: this rank's block, of shape ``(..., *input.local_shape)``; float32 or float64, and
                without the kind "rfft" also complex64 or complex128. Integers become
                floating-point numbers. Donated to the program
                (``jax.jit(..., donate_argnums=...)``), it becomes the spectrum in place where both
                have one shape and dtype.

        Returns:
            This rank's block of the spectrum, of shape ``(..., *output.local_shape)``: complex if
            `x` is or any kind is "fft" or "rfft", real otherwise.

        Raises:
            ValueError: a block that does not match its pencil.
            TypeError: complex numbers where real ones belong, or a dtype without a transform.

        """
        return run(self._forward, operand(x, self, self._here("forward"), is_spectrum=False))

    def inverse(self, y: FieldLike) -> Field:
        """The array in real space that belongs to a spectrum.

        Args:
            y: this rank's block of the spectrum, of shape ``(..., *output.local_shape)``. With the
                kind "rfft", imaginary parts that a Hermitian spectrum does not have are ignored,
                as by `numpy.fft.irfftn`.

        Returns:
            This rank's block, of shape ``(..., *input.local_shape)``: real if the last kind is
            "rfft", or `y` is real and no kind is "fft"; complex otherwise.

        Raises:
            ValueError: a block that does not match its pencil.
            TypeError: a dtype without a transform.

        """
        return run(self._inverse, operand(y, self, self._here("inverse"), is_spectrum=True))

    def describe(self, dtype: DTypeLike | None = None) -> Description:
        """What a forward transform does on this rank: steps, blocks, messages and bytes.

        A notebook shows it for a plan that it displays. `repr` of a plan is the same on all ranks
        instead, as whatever ranks compare has to be.

        Args:
            dtype: of the array in real space; by default of JAX's default precision, and real
                where the plan has real numbers or no kind "fft".

        Raises:
            TypeError: a dtype that the plan does not transform.

        Example:
            >>> from pfftjax import PencilFFT, ProcessGrid
            >>> plan = PencilFFT((64, 64, 64), ProcessGrid((None, 1)), real=True)
            >>> description = plan.describe("float32")
            >>> description.stages[-1].axes, description.stages[-1].dtype.name
            ((1, 2, 0), 'complex64')
            >>> description.sent_bytes == 0 if plan.grid.size == 1 else description.sent_bytes > 0
            True

        """
        here = self._here("describe")
        grid, comm = self.grid, self.grid.communicator
        if dtype is None:
            is_real = self.kinds[-1] == "rfft" or "fft" not in self.kinds
            dtype = jnp.result_type(float if is_real else complex)
        dtype = checked_dtype(np.dtype(dtype), self, here, is_spectrum=False, name="dtype")
        full = self.precision == ExchangePrecision.FULL
        precision = "" if full else f", precision {self.precision.name}"
        title = (
            f"{type(self).__name__} of {self.shape} {dtype.name}, norm {self.norm}, method "
            f"{self.method.name}{precision}, on rank {comm.rank} of {comm.size}: row "
            f"{grid.coords[0]} and column {grid.coords[1]} of {grid.dims[0]} x {grid.dims[1]}"
        )
        return describe(self, title, self.input, dtype)

    def _repr_html_(self) -> str:
        return self.describe()._repr_html_()

    def wavenumbers(self, box_size: BoxSize, dtype: DTypeLike | None = None) -> tuple[Reals, ...]:
        """Wavenumbers of this rank's block of the spectrum.

        Args:
            box_size: side of the box, in the length unit of choice: a number, or one for each
                axis: the period, or the distance between the walls. May be traced, and
                differentiated.
            dtype: floating-point dtype, JAX's default by default.

        Returns:
            One array for each global axis, in radians per unit length, which broadcasts against
            the block, whatever its memory order. Of coefficient k: 2 pi / side times
            `numpy.fft.fftfreq(n, 1 / n)`, or `rfftfreq`; of "dct1" and "dct2" pi / side times k,
            of "dst1" and "dst2" times k + 1, and of types 3 and 4 times k + 1/2.

        Raises:
            ValueError: a box whose sides are not positive, or not as many as axes.
            TypeError: a dtype that is not floating-point.

        Example:
            >>> from pfftjax import PencilFFT, ProcessGrid
            >>> plan = PencilFFT((4, 6, 5), ProcessGrid())
            >>> kx, ky, kz = plan.wavenumbers(2 * np.pi)
            >>> kx.shape, kx.ravel().tolist()
            ((1, 1, 4), [0.0, 1.0, -2.0, -1.0])

        """
        here = where("wavenumbers", self.grid.communicator)
        dtype = real_dtype_of(dtype, here, "wavenumbers")
        sides = sides_of(box_size, len(self.shape), here)
        return tuple(
            wavenumbers_along(self, self.output, axis, side, dtype)
            for axis, side in enumerate(sides)
        )

    def hermitian_weights(self, dtype: DTypeLike | None = None) -> Reals:
        """How often each coefficient of this rank's spectrum occurs in the whole spectrum.

        For sums over all modes, as in a power spectrum or an inner product: with "rfft" along the
        last axis, of n points, 2, but 1 for coefficient 0 and, where n is even, n / 2; 1 without.

        Args:
            dtype: floating-point dtype, JAX's default by default.

        Returns:
            Array that broadcasts against the block of the spectrum.

        Raises:
            TypeError: a dtype that is not floating-point.

        """
        dtype = real_dtype_of(dtype, self._here("hermitian_weights"), "weights")
        last = len(self.shape) - 1
        if self.kinds[last] != "rfft":
            return jnp.ones((1,) * len(self.shape), dtype)
        weights = jnp.asarray(hermitian_weights(self.shape[last], dtype))
        return weights[self.output.indices(last)]


def operand(
    x: ArrayLike,
    plan: Plan,
    here: str,
    *,
    is_spectrum: bool,
    what: str = "the block",
    name: str = "x",
    otherwise: str = "",
) -> Field:
    """A block of a field or of a spectrum, of a dtype that the plan transforms, or an error, which
    begins with `here` and calls the block `what` and the array `name`. `otherwise` says what to do
    with a block of the other one.
    """
    x = jnp.asarray(x)
    pencil, other = (plan.output, plan.input) if is_spectrum else (plan.input, plan.output)
    is_other = x.shape[max(x.ndim - len(plan.shape), 0) :] == other.local_shape
    pencil.check_block(x, here, what=what, hint=otherwise if is_other else "")
    check_dimensions(x, here)
    if jnp.issubdtype(x.dtype, jnp.integer) or x.dtype == bool:
        x = x.astype(float)
    checked_dtype(x.dtype, plan, here, is_spectrum=is_spectrum, name=name)
    return x.astype(x.dtype)  # without a weak type


def checked_dtype(
    dtype: np.dtype, plan: Plan, here: str, *, is_spectrum: bool, name: str = "x"
) -> np.dtype:
    """`dtype`, if the plan transforms such numbers in real space, or in a spectrum."""
    if dtype not in ("float32", "float64", "complex64", "complex128"):
        raise TypeError(f"{here}: no transform of {dtype}; cast to float32 or float64 first")
    if plan.kinds[-1] == "rfft" and not is_spectrum and dtype.kind == "c":
        raise TypeError(
            f"{here}: {name} is {dtype}, but the plan is for real arrays; pass x.real, or make "
            "the plan with real=False (the kind 'fft')"
        )
    return dtype


def wavenumbers_along(
    plan: Plan, pencil: Pencil, axis: int, side: ArrayLike, dtype: np.dtype, *, odd: bool = False
) -> Reals:
    """Wavenumbers of this rank's part of an axis, in any pencil of the spectrum of `plan`.

    With `odd`, those of derivatives of odd order: zero at the Nyquist frequency n / 2 of an even
    axis. Its sign is not known, and the wave of least slope through the points has derivative zero
    on all of them.
    """
    kind, n, index = plan.kinds[axis], plan.shape[axis], pencil.indices(axis)
    if kind in OFFSETS:
        return ((index.astype(dtype) + OFFSETS[kind]) * (np.pi / side)).astype(dtype)
    return wavenumbers_of(index, n, side, dtype, is_half=kind == "rfft", odd=odd)


def wavenumbers_of(
    index: Indices, n: int, side: ArrayLike, dtype: np.dtype, *, is_half: bool, odd: bool
) -> Reals:
    """Wavenumbers of coefficients by their indices along an axis of n points; `is_half`: of the
    half spectrum of real lines. `odd` is that of `wavenumbers_along`.
    """
    signed = index if is_half else jnp.where(index < (n + 1) // 2, index, index - n)
    if odd and n % 2 == 0:
        signed = jnp.where(index == n // 2, 0, signed)
    return (signed.astype(dtype) * (2 * np.pi / side)).astype(dtype)


def sides_of(box_size: BoxSize, axes: int, here: str) -> tuple[Number, ...]:
    """One side of the box for each of so many axes."""
    if isinstance(box_size, Sequence) or np.ndim(box_size) > 0:
        sides = tuple(cast(Sequence[Number], box_size))
    else:
        sides = (cast(Number, box_size),) * axes
    if len(sides) != axes or not all(map(is_length, sides)):
        raise ValueError(
            f"{here}: box_size must be a positive length, or one for each of the {axes} axes, got "
            f"{box_size!r}"
        )
    return sides


def is_length(x: object, *, or_zero: bool = False) -> bool:
    """Whether `x` is one positive number, or also zero, as far as its value is known."""
    if isinstance(x, Tracer):
        return x.ndim == 0
    value = np.asarray(x)
    is_real = any(jnp.issubdtype(value.dtype, kind) for kind in (np.integer, np.floating))
    if value.ndim or not is_real:
        return False
    return 0 < float(value) < math.inf or (or_zero and float(value) == 0)


def real_dtype_of(dtype: DTypeLike | None, here: str, what: str) -> np.dtype:
    """The dtype of `what`, JAX's default for None."""
    dtype = jnp.result_type(float) if dtype is None else jnp.dtype(dtype)
    if not jnp.issubdtype(dtype, np.floating):
        raise TypeError(f"{here}: {what} are floating-point numbers, but dtype is {dtype}")
    return dtype

"""What a transform of a distributed array is, and the two ways to say it."""

import dataclasses
import functools
import math
from collections.abc import Sequence
from typing import Any, ClassVar, Literal, cast

import jax
import jax.numpy as jnp
import numpy as np
from jax.core import Tracer
from mpi4py import MPI

from pfftjax._runtime.communicators import Communicator
from pfftjax._runtime.primitive import where
from pfftjax.pencils import (
    ExchangeMethod,
    Pencil,
    ProcessGrid,
    check_dimensions,
    checked_method,
)

from ._grids import shape_and_grid
from ._local import hermitian_weights
from ._steps import SCALES, Steps, forward_steps, inverse_steps, run, spectral_shape, stages
from ._trigonometric import INVERSES, OFFSETS
from ._tuning import Timings, Tuning, chosen

Norm = Literal["backward", "ortho", "forward"]
Layout = Literal["transposed", "natural"]

_KINDS = ("fft", "rfft", *INVERSES)


@dataclasses.dataclass(frozen=True)
class Plan:
    """A transform of two or three axes of a distributed array, each of a kind of its own.

    `PencilFFT` and `PencilTransform` make plans; they differ in what they are given, and say what
    the attributes are.
    """

    shape: tuple[int, ...]
    grid: ProcessGrid
    kinds: tuple[str, ...]
    norm: Norm
    layout: Layout
    method: ExchangeMethod
    timings: Timings = dataclasses.field(compare=False, repr=False)

    is_scaled_at_the_end: ClassVar[bool] = False
    """Whether the last transform has the factors of all axes, and not each its own."""

    def __post_init__(self) -> None:
        here = self._here()
        checked_method(self.method, type(self).__name__, self.grid.communicator)
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

    def forward(self, x: Any) -> jax.Array:
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

    def inverse(self, y: Any) -> jax.Array:
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

    def wavenumbers(self, box_size: Any, dtype: Any = None) -> tuple[jax.Array, ...]:
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

        Example:
            >>> plan = PencilFFT((4, 6, 5), ProcessGrid())
            >>> kx, ky, kz = plan.wavenumbers(2 * np.pi)
            >>> kx.shape, kx.ravel().tolist()
            ((1, 1, 4), [0.0, 1.0, -2.0, -1.0])

        """
        here = where("wavenumbers", self.grid.communicator)
        dtype = wavenumber_dtype(dtype, here)
        sides = sides_of(box_size, len(self.shape), here)
        return tuple(
            wavenumbers_along(self, self.output, axis, side, dtype)
            for axis, side in enumerate(sides)
        )

    def hermitian_weights(self, dtype: Any = None) -> jax.Array:
        """How often each coefficient of this rank's spectrum occurs in the whole spectrum.

        For sums over all modes, as in a power spectrum or an inner product: with "rfft" along the
        last axis, of n points, 2, but 1 for coefficient 0 and, where n is even, n / 2; 1 without.

        Returns:
            Array that broadcasts against the block of the spectrum.

        """
        dtype = jnp.result_type(float) if dtype is None else dtype
        last = len(self.shape) - 1
        if self.kinds[last] != "rfft":
            return jnp.ones((1,) * len(self.shape), dtype)
        weights = jnp.asarray(hermitian_weights(self.shape[last], dtype))
        return weights[self.output.indices(last)]


@dataclasses.dataclass(frozen=True, init=False)
class PencilFFT(Plan):
    """A three-dimensional Fourier transform of an array distributed over a process grid.

    In real space, axis 0 is split over the first dimension of the grid and axis 1 over the second.
    The axes are transformed in the order 2, 1, 0, and back in the order 0, 1, 2, on every grid:
    each rank's results are the same bits, however many ranks there are. Between transforms the
    array is redistributed so that the next axis is whole and contiguous; a grid of P by 1 (slabs)
    needs one redistribution, others two.

    A plan is a description: frozen, hashable and equal by value. It can be made anywhere, in
    jitted code too, and be a static argument. Only making the `ProcessGrid` communicates, and
    `tune`.

    Both directions are linear. Their derivatives, forward and reverse, cost one transform each and
    store nothing (docs/theory/fft.md).

    Attributes:
        shape: global shape in real space, any sizes from 1.
        grid: the process grid; must have been made on all of its ranks. In its place the plan can
            be given a communicator, over whose ranks it then makes the grid of `default_dims`, or
            with `tune` the fastest one; making it is collective.
        real: real in real space; the spectrum then has n2 // 2 + 1 points along axis 2, as in
            `numpy.fft.rfftn`.
        norm: where the factor 1 / (n0 n1 n2) goes, as in `numpy.fft`.
        layout: of the spectrum. "transposed" is (1, 2, 0) in memory, axis 1 split over the first
            dimension of the grid, axis 2 over the second and axis 0 whole: what the transform ends
            with. "natural" is distributed and ordered as in real space, and costs as many
            redistributions again.
        method: how the ranks exchange what they hold; all give the same bits.
        kinds: of the transform along each axis: "fft", and along axis 2 of a real plan "rfft".
        timings: what `tune` has measured; empty otherwise, and no part of a plan's value.

    Args:
        tune: times the process grids of the communicator (of a `ProcessGrid` only that) and the
            methods of exchange (of a `method` other than AUTOMATIC only that), forward and inverse
            together, and takes the fastest: `True`, or a `Tuning` with the dtype, the seconds that
            it may take, and a file that keeps the choices. Collective; not in jitted code.

    Raises:
        ValueError: a shape that is not three-dimensional, an unknown norm or layout, or a method
            that PFFTJAX_SHARED_MEMORY=0 forbids.
        TypeError: a grid that is neither a `ProcessGrid` nor a communicator, no method, or `real`
            that is no bool.
        RuntimeError: `tune` while a program is traced, or with arguments that differ between
            ranks.

    Example:
        >>> import jax.numpy as jnp
        >>> plan = PencilFFT((4, 6, 5), ProcessGrid(), real=True)
        >>> x = jnp.ones(plan.input.local_shape)
        >>> y = plan.forward(x)
        >>> y.shape == plan.output.local_shape, plan.output.global_shape, plan.output.axes
        (True, (4, 6, 3), (1, 2, 0))
        >>> bool(jnp.allclose(plan.inverse(y), x))
        True

    """

    is_scaled_at_the_end = True

    kinds: tuple[str, ...] = dataclasses.field(init=False, repr=False)
    timings: Timings = dataclasses.field(init=False, compare=False, repr=False)
    # What the kinds are made of, so that `dataclasses.replace` gives it to the new plan.
    real: bool = cast(bool, property(lambda plan: plan.kinds[-1] == "rfft"))

    def __init__(
        self,
        shape: Sequence[int],
        grid: ProcessGrid | MPI.Comm | Communicator,
        *,
        real: bool = False,
        norm: Norm = "backward",
        layout: Layout = "transposed",
        method: ExchangeMethod = ExchangeMethod.AUTOMATIC,
        tune: bool | Tuning = False,
    ) -> None:
        make = functools.partial(PencilFFT, shape, real=real, norm=norm, layout=layout)
        grid, method, timings = chosen(make, grid, method, tune)
        sizes, grid = shape_and_grid(shape, grid, "PencilFFT", (3,))
        if not isinstance(real, bool | np.bool_):
            here = where("PencilFFT", grid.communicator)
            raise TypeError(f"{here}: real must be True or False, got {real!r}")
        kinds = ("fft", "fft", "rfft" if real else "fft")
        super().__init__(sizes, grid, kinds, norm, layout, method, timings)


@dataclasses.dataclass(frozen=True, init=False)
class PencilTransform(Plan):
    """A transform of two or three axes of a distributed array, each of a kind of its own.

    Periodic axes take "fft", or "rfft" where the array is real; axes between walls take a cosine
    or sine transform, whose types are those of `scipy.fft.dct` and `scipy.fft.dst`: the type says
    whether the function is even or odd at each wall, and whether a point lies on it
    (docs/transforms.md). They act on real arrays, and on real and imaginary parts of complex ones.

    An array of three axes is distributed, and its spectrum laid out, as by `PencilFFT`: the axes
    are transformed in the order 2, 1, 0, each while it is whole and contiguous. One of two axes is
    distributed in slabs, over a grid of (P, 1): axis 0 in real space, axis 1 in the spectrum,
    whose axes are (1, 0) in memory. Leading axes of a block are a batch, which goes in the same
    messages.

    Real numbers stay real up to the first axis with "fft" or "rfft", in the order of transforms:
    before that, work and traffic are half. Frozen, hashable and equal by value, as `PencilFFT`;
    both directions are linear, and have derivatives of any order.

    Attributes:
        shape: global shape in real space: two or three sizes from 1, for "dct1" from 2.
        grid: the process grid; for two axes, of (P, 1). Or a communicator, as for `PencilFFT`.
        kinds: for each axis "fft", "rfft" (the last axis only), "dct1" to "dct4" or "dst1" to
            "dst4". The inverse of type 2 is type 3 and the other way round, as in scipy.
        norm: "backward", "ortho" or "forward", for each axis as in numpy.fft and scipy.fft: with
            "backward", cosine and sine transforms have no factor forward, and backward 1 / 2n, for
            "dct1" 1 / (2n - 2), for "dst1" 1 / (2n + 2).
        layout: of the spectrum, as for `PencilFFT`: "transposed" or "natural".
        method: how the ranks exchange what they hold, as for `PencilFFT`.
        timings: what `tune` has measured; empty otherwise, and no part of a plan's value.

    Args:
        tune: as for `PencilFFT`.

    Raises:
        ValueError: a shape, kinds, a grid, a norm or a layout that do not make sense, or a method
            that PFFTJAX_SHARED_MEMORY=0 forbids.
        TypeError: a grid that is neither a `ProcessGrid` nor a communicator, or no method.
        RuntimeError: `tune` while a program is traced, or with arguments that differ between
            ranks.

    Example:
        >>> import scipy.fft
        >>> plan = PencilTransform((4, 5, 6), ProcessGrid(), ("dct2", "fft", "rfft"))
        >>> x = np.random.default_rng(0).standard_normal((4, 5, 6))
        >>> y = plan.forward(plan.input.local_block(x))
        >>> expected = scipy.fft.rfftn(scipy.fft.dct(x, axis=0), axes=(1, 2))
        >>> bool(np.allclose(y, plan.output.local_block(expected), atol=1e-4))
        True
        >>> bool(np.allclose(plan.inverse(y), plan.input.local_block(x), atol=1e-5))
        True

    """

    timings: Timings = dataclasses.field(init=False, compare=False, repr=False)

    def __init__(
        self,
        shape: Sequence[int],
        grid: ProcessGrid | MPI.Comm | Communicator,
        kinds: Sequence[str],
        *,
        norm: Norm = "backward",
        layout: Layout = "transposed",
        method: ExchangeMethod = ExchangeMethod.AUTOMATIC,
        tune: bool | Tuning = False,
    ) -> None:
        make = functools.partial(PencilTransform, shape, kinds=kinds, norm=norm, layout=layout)
        grid, method, timings = chosen(make, grid, method, tune)
        sizes, grid = shape_and_grid(shape, grid, "PencilTransform", (2, 3))
        kinds = _checked_kinds(kinds, sizes, where("PencilTransform", grid.communicator))
        super().__init__(sizes, grid, kinds, norm, layout, method, timings)


def _checked_kinds(given: Sequence[str], shape: tuple[int, ...], here: str) -> tuple[str, ...]:
    kinds: tuple[Any, ...] = tuple(given) if isinstance(given, tuple | list) else (given,)
    unknown = [kind for kind in kinds if not isinstance(kind, str) or kind not in _KINDS]
    if len(kinds) != len(shape) or unknown:
        raise ValueError(
            f"{here}: kinds must be one of {', '.join(_KINDS)} for each axis of {shape}, got "
            f"{given!r}"
        )
    if "rfft" in kinds[:-1]:
        raise ValueError(
            f"{here}: only the last axis can have the kind 'rfft', got {kinds}; it is "
            "transformed first, and the result is complex"
        )
    for axis, (kind, n) in enumerate(zip(kinds, shape, strict=True)):
        if kind == "dct1" and n < 2:
            raise ValueError(
                f"{here}: 'dct1' has a point on each wall and is not defined for the one "
                f"point of axis {axis} of {shape}; take 'dct2', or two points"
            )
    return kinds


def operand(
    x: Any, plan: Plan, here: str, *, is_spectrum: bool, what: str = "the block", name: str = "x"
) -> jax.Array:
    """A block of a field or of a spectrum, of a dtype that the plan transforms, or an error.

    Args:
        x: what was given.
        plan: the plan that it belongs to.
        here: how an error begins: operation and rank.
        is_spectrum: whether it is in Fourier space.
        what: how an error calls the block.
        name: how an error calls `x`.

    """
    x = jnp.asarray(x)
    pencil, other = (plan.output, plan.input) if is_spectrum else (plan.input, plan.output)
    hint = ""
    if name != "x" and x.shape[max(x.ndim - len(plan.shape), 0) :] == other.local_shape:
        hint = f"; for the other one pass from_spectrum={not is_spectrum}"
    pencil.check_block(x, here, what=what, hint=hint)
    check_dimensions(x, here)
    if jnp.issubdtype(x.dtype, jnp.integer) or x.dtype == bool:
        x = x.astype(float)
    if x.dtype not in ("float32", "float64", "complex64", "complex128"):
        raise TypeError(f"{here}: no transform of {x.dtype}; cast to float32 or float64 first")
    if plan.kinds[-1] == "rfft" and not is_spectrum and jnp.iscomplexobj(x):
        raise TypeError(
            f"{here}: {name} is {x.dtype}, but the plan is for real arrays; pass x.real, or make "
            "the plan with real=False (the kind 'fft')"
        )
    return x.astype(x.dtype)  # without a weak type


def wavenumbers_along(
    plan: Plan, pencil: Pencil, axis: int, side: Any, dtype: Any, *, odd: bool = False
) -> jax.Array:
    """Wavenumbers of this rank's part of an axis, in any pencil of the spectrum of `plan`.

    With `odd`, those of derivatives of odd order: zero at the Nyquist frequency n / 2 of an even
    axis. Its sign is not known, and the wave of least slope through the points has derivative zero
    on all of them.
    """
    kind, n, index = plan.kinds[axis], plan.shape[axis], pencil.indices(axis)
    if kind in OFFSETS:
        return ((index.astype(dtype) + OFFSETS[kind]) * (np.pi / side)).astype(dtype)
    signed = jnp.where(index < (n + 1) // 2, index, index - n) if kind == "fft" else index
    if odd and n % 2 == 0:
        signed = jnp.where(index == n // 2, 0, signed)
    return (signed.astype(dtype) * (2 * np.pi / side)).astype(dtype)


def sides_of(box_size: Any, axes: int, here: str) -> tuple[Any, ...]:
    """One side of the box for each of so many axes."""
    several = isinstance(box_size, tuple | list) or getattr(box_size, "ndim", 0) > 0
    sides = tuple(box_size) if several else (box_size,) * axes
    if len(sides) != axes or not all(map(is_length, sides)):
        raise ValueError(
            f"{here}: box_size must be a positive length, or one for each of the {axes} axes, got "
            f"{box_size!r}"
        )
    return sides


def is_length(x: Any, *, or_zero: bool = False) -> bool:
    """Whether `x` is one positive number, or also zero, as far as its value is known."""
    if isinstance(x, Tracer):
        return x.ndim == 0
    value = np.asarray(x)
    is_real = any(jnp.issubdtype(value.dtype, kind) for kind in (np.integer, np.floating))
    if value.ndim or not is_real:
        return False
    return 0 < float(value) < math.inf or (or_zero and float(value) == 0)


def wavenumber_dtype(dtype: Any, here: str) -> np.dtype:
    """The dtype of wavenumbers, JAX's default for None."""
    dtype = jnp.result_type(float) if dtype is None else jnp.dtype(dtype)
    if not jnp.issubdtype(dtype, np.floating):
        raise TypeError(f"{here}: wavenumbers are floating-point numbers, but dtype is {dtype}")
    return dtype

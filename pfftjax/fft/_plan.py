"""The transform of a distributed array as a list of steps."""

import dataclasses
import functools
import math
from collections.abc import Callable, Sequence
from typing import Any, Literal

import jax
import jax.numpy as jnp
import numpy as np
from jax.core import Tracer
from mpi4py import MPI

from pfftjax._runtime.communicators import Communicator
from pfftjax._runtime.primitive import where
from pfftjax.pencils import ExchangeMethod, Pencil, ProcessGrid, checked_method, transpose

from ._fused import Fused
from ._grids import shape_and_grid
from ._local import Kind, Local, as_complex, fft_of_lines, hermitian_weights
from ._tuning import Timings, Tuning, tune_plan

Norm = Literal["backward", "ortho", "forward"]
Layout = Literal["transposed", "natural"]
Step = Callable[[jax.Array], jax.Array]


class _Transform(Local):
    """Transforms the last axis of a block, or the last two."""

    def __call__(self, x: jax.Array) -> jax.Array:
        return fft_of_lines(x, self.kind, self.n, axes=self.axes, scale=self.scale)


@dataclasses.dataclass(frozen=True)
class _Move:
    """Takes a block from one pencil to another."""

    source: Pencil
    target: Pencil
    method: ExchangeMethod

    def __call__(self, x: jax.Array) -> jax.Array:
        return transpose(x, self.source, self.target, method=self.method)

    @property
    def backward(self) -> "_Move":
        return _Move(self.target, self.source, self.method)


_Steps = tuple[_Transform | _Move, ...]


def fuse(steps: Sequence[Step]) -> list[Step]:
    """The same steps in fewer passes: moves with the transforms on both sides of them first, then
    with the one on the side that is left.
    """
    result = list(steps)
    for before, after in ((1, 1), (0, 1), (1, 0)):
        i = before
        while i < len(result) - after:
            step = _fused(result[i - before : i + after + 1], before, after)
            if step is not None:
                i -= before
                result[i : i + before + after + 1] = [step]
            i += 1
    last = len(result) - 1
    return [
        dataclasses.replace(step, private=(i > 0, i < last)) if isinstance(step, Fused) else step
        for i, step in enumerate(result)
    ]


def _fused(group: Sequence[Step], before: int, after: int) -> Fused | None:
    """A move with so many transforms on its sides as one step, if there is one."""
    move = group[before]
    first, second = group[0] if before else None, group[-1] if after else None
    if (
        isinstance(move, _Move)
        and (first is None or isinstance(first, _Transform))
        and (second is None or isinstance(second, _Transform))
    ):
        return Fused.between(first, move.source, move.target, second, move.method)
    return None


def between_two_transforms(
    steps: _Steps, *, last: bool = False
) -> tuple[_Steps, tuple[_Transform, _Move, _Transform], _Steps]:
    """The first two transforms with the move between them, or the last two: the steps before,
    these three, and the steps after.
    """
    transforms = [i for i, step in enumerate(steps) if isinstance(step, _Transform)]
    at = transforms[-2] if last else transforms[0]
    first, move, second = steps[at : at + 3]
    assert isinstance(first, _Transform)
    assert isinstance(move, _Move)
    assert isinstance(second, _Transform)
    return steps[:at], (first, move, second), steps[at + 3 :]


def run(steps: Sequence[Step], x: jax.Array) -> jax.Array:
    """Apply `steps`, one after the other."""
    for step in fuse(steps):
        x = step(x)
    return x


@dataclasses.dataclass(frozen=True, init=False)
class PencilFFT:
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

    shape: tuple[int, int, int]
    grid: ProcessGrid
    real: bool
    norm: Norm
    layout: Layout
    method: ExchangeMethod
    timings: Timings = dataclasses.field(init=False, compare=False, repr=False)

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
        any_grid = not isinstance(grid, ProcessGrid)
        whole, grid = shape_and_grid(shape, grid, "PencilFFT", (3,))
        if not isinstance(real, bool | np.bool_):
            raise TypeError(
                f"{where('PencilFFT', grid._comm)}: real must be True or False, got {real!r}"
            )
        spectrum = (*whole[:-1], whole[-1] // 2 + 1) if real else whole
        attributes = {"shape": whole, "real": real, "norm": norm, "layout": layout}
        for name, value in {**attributes, "grid": grid, "method": method}.items():
            object.__setattr__(self, name, value)
        object.__setattr__(self, "timings", Timings())
        checked_method(method, "PencilFFT", grid._comm)
        if not isinstance(self.norm, str) or self.norm not in _SCALES:
            raise ValueError(
                f"{self._here('PencilFFT')}: norm must be one of {', '.join(_SCALES)}, got "
                f"{self.norm!r}"
            )
        if self.layout not in ("transposed", "natural"):
            raise ValueError(
                f"{self._here('PencilFFT')}: layout must be transposed or natural, got "
                f"{self.layout!r}"
            )
        if tune is not False:
            kinds = ("fft", "fft", "rfft" if real else "fft")
            tuned = tune_plan(self, kinds, spectrum, tune, any_grid=any_grid)
            for name in ("grid", "method", "timings"):
                object.__setattr__(self, name, getattr(tuned, name))

    def _here(self, operation: str) -> str:
        return where(operation, self.grid._comm)

    @property
    def spectral_shape(self) -> tuple[int, int, int]:
        """Global shape of the spectrum."""
        n0, n1, n2 = self.shape
        return (n0, n1, n2 // 2 + 1) if self.real else self.shape

    @functools.cached_property
    def input(self) -> Pencil:
        """Pencil of the array in real space: whole along axis 2."""
        return Pencil(self.shape, self.grid, split=(0, 1), axes=(0, 1, 2))

    @functools.cached_property
    def output(self) -> Pencil:
        """Pencil of the spectrum."""
        return self._z if self.layout == "natural" else self._x

    # The spectrum, or what will become it, whole and contiguous along each axis in turn.
    @functools.cached_property
    def _z(self) -> Pencil:
        return Pencil(self.spectral_shape, self.grid, split=(0, 1), axes=(0, 1, 2))

    @functools.cached_property
    def _y(self) -> Pencil:
        return Pencil(self.spectral_shape, self.grid, split=(0, 2), axes=(0, 2, 1))

    @functools.cached_property
    def _x(self) -> Pencil:
        return Pencil(self.spectral_shape, self.grid, split=(1, 2), axes=(1, 2, 0))

    def _steps(self, along_z: Kind, across: Kind, scale: float) -> _Steps:
        """From real space to the spectrum. `scale` goes with the last transform."""
        n0, n1, n2 = self.shape
        along_x = _Transform(across, n0, 1, scale)
        move = functools.partial(_Move, method=self.method)
        if self.grid.dims[1] == 1:
            # Axis 1 is whole already: two transforms while a plane is in the cache.
            steps: _Steps = (_Transform(along_z, n2, 2, 1.0), move(self._z, self._x), along_x)
            back: _Steps = (move(self._x, self._z),)
        else:
            steps = (
                _Transform(along_z, n2, 1, 1.0),
                move(self._z, self._y),
                _Transform(across, n1, 1, 1.0),
                move(self._y, self._x),
                along_x,
            )
            back = (move(self._x, self._y), move(self._y, self._z))
        return steps + back if self.layout == "natural" else steps

    @functools.cached_property
    def _forward(self) -> _Steps:
        kind = Kind.REAL_TO_COMPLEX if self.real else Kind.FORWARD
        return self._steps(kind, Kind.FORWARD, self._scale(0))

    @functools.cached_property
    def _inverse(self) -> _Steps:
        """The steps of `_forward` backward, each with its own inverse."""
        steps: list[_Transform | _Move] = []
        for step in reversed(self._forward):
            if isinstance(step, _Move):
                steps.append(step.backward)
            else:
                steps.append(step._replace(kind=_INVERSES[step.kind], scale=1.0))
        for i in reversed(range(len(steps))):
            step = steps[i]
            if isinstance(step, _Transform):
                steps[i] = step._replace(scale=self._scale(1))
                break
        return tuple(steps)

    def _scale(self, direction: int) -> float:
        # Exact for any size: a product of Python integers.
        return float(math.prod(self.shape)) ** _SCALES[self.norm][direction]

    def forward(self, x: Any) -> jax.Array:
        """The spectrum of an array in real space.

        Args:
            x: this rank's block, of shape ``(..., *input.local_shape)``; float32 or float64, and
                with `real=False` also complex64 or complex128. Integers become floating-point
                numbers. Donated to the program (``jax.jit(..., donate_argnums=...)``), it becomes
                the spectrum in place where both have one shape and dtype.

        Returns:
            This rank's block of the spectrum, complex, of shape ``(..., *output.local_shape)``.

        Raises:
            ValueError: a block that does not match its pencil.
            TypeError: complex numbers where real ones belong, or a dtype without a transform.

        """
        x = self._checked(x, self.input, "forward", to_complex=not self.real)
        if self.real and jnp.iscomplexobj(x):
            raise TypeError(
                f"{self._here('PencilFFT.forward')}: x is {x.dtype}, but the plan is for real "
                "arrays; pass x.real, or make the plan with real=False"
            )
        return run(self._forward, x)

    def inverse(self, y: Any) -> jax.Array:
        """The array in real space that belongs to a spectrum.

        Args:
            y: this rank's block of the spectrum, of shape ``(..., *output.local_shape)``,
                complex64 or complex128. With `real=True`, imaginary parts that a Hermitian
                spectrum does not have are ignored, as by `numpy.fft.irfftn`.

        Returns:
            This rank's block, real or complex, of shape ``(..., *input.local_shape)``.

        Raises:
            ValueError: a block that does not match its pencil.
            TypeError: a dtype without a transform.

        """
        y = self._checked(y, self.output, "inverse", to_complex=True)
        return run(self._inverse, y)

    def _checked(self, x: Any, pencil: Pencil, name: str, *, to_complex: bool) -> jax.Array:
        x = checked_block(x, pencil, self._here(f"PencilFFT.{name}"))
        return as_complex(x) if to_complex else x

    def wavenumbers(
        self, box_size: Any, dtype: Any = None
    ) -> tuple[jax.Array, jax.Array, jax.Array]:
        """Wavenumbers of this rank's block of the spectrum.

        Args:
            box_size: side of the box, in the length unit of choice: a number, or one for each
                axis. May be traced, and differentiated.
            dtype: floating-point dtype, JAX's default by default.

        Returns:
            (kx, ky, kz), by global axis, in radians per unit length: 2 pi / side times
            `numpy.fft.fftfreq(n, 1 / n)`, for axis 2 of a real plan `numpy.fft.rfftfreq`. Each
            broadcasts against the block, whatever its memory order.

        Example:
            >>> plan = PencilFFT((4, 6, 5), ProcessGrid())
            >>> kx, ky, kz = plan.wavenumbers(2 * np.pi)
            >>> kx.shape, kx.ravel().tolist()
            ((1, 1, 4), [0.0, 1.0, -2.0, -1.0])

        """
        dtype = wavenumber_dtype(dtype, self._here("wavenumbers"))
        sides = sides_of(box_size, 3, self._here("wavenumbers"))
        result = []
        for axis, (n, side) in enumerate(zip(self.shape, sides, strict=True)):
            index = self.output.indices(axis)
            if not (self.real and axis == 2):
                index = jnp.where(index < (n + 1) // 2, index, index - n)
            result.append(index.astype(dtype) * (2 * np.pi / side))
        kx, ky, kz = (k.astype(dtype) for k in result)
        return kx, ky, kz

    def hermitian_weights(self, dtype: Any = None) -> jax.Array:
        """How often each coefficient of this rank's spectrum occurs in the whole spectrum.

        For sums over all modes, as in a power spectrum or an inner product: with `real=True`, 2
        but for kz = 0 and, where n2 is even, kz = n2 / 2, which have 1; with `real=False`, 1.

        Returns:
            Array that broadcasts against the block of the spectrum.

        """
        dtype = jnp.result_type(float) if dtype is None else dtype
        if not self.real:
            return jnp.ones((1, 1, 1), dtype)
        return jnp.asarray(hermitian_weights(self.shape[2], dtype))[self.output.indices(2)]


# Powers of n0 n1 n2 that the forward and the inverse transform are multiplied by.
_SCALES = {"backward": (0.0, -1.0), "ortho": (-0.5, -0.5), "forward": (-1.0, 0.0)}
_INVERSES = {Kind.FORWARD: Kind.BACKWARD, Kind.REAL_TO_COMPLEX: Kind.COMPLEX_TO_REAL}


def checked_block(x: Any, pencil: Pencil, here: str) -> jax.Array:
    """A block that matches its pencil and has a transform: `x` as an array, or an error."""
    x = jnp.asarray(x)
    pencil.check_block(x, here)
    if jnp.issubdtype(x.dtype, jnp.integer) or x.dtype == bool:
        x = x.astype(float)
    if x.dtype not in ("float32", "float64", "complex64", "complex128"):
        raise TypeError(f"{here}: no transform of {x.dtype}; cast to float32 or float64 first")
    return x.astype(x.dtype)  # without a weak type


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

"""Transforms of two or three axes, each of a kind of its own."""

import dataclasses
import functools
import itertools
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from mpi4py import MPI

from pfftjax._runtime.communicators import Communicator
from pfftjax._runtime.primitive import where
from pfftjax.pencils import ExchangeMethod, Pencil, ProcessGrid, checked_method

from ._grids import shape_and_grid
from ._local import Kind, as_complex, hermitian_weights
from ._plan import (
    _INVERSES,
    _SCALES,
    Layout,
    Norm,
    PencilFFT,
    Step,
    _Move,
    _Transform,
    checked_block,
    run,
    sides_of,
    wavenumber_dtype,
)
from ._resize import Resize
from ._trigonometric import INVERSES, OFFSETS, TrigonometricTransform, logical_size
from ._tuning import Timings, Tuning, tune_plan

_KINDS = ("fft", "rfft", *INVERSES)

# (split, memory order) of the pencils that an array passes through, by its number of axes: the
# last in memory order is the one that is transformed.
_STAGES = {
    2: (((0, 1), (0, 1)), ((1, 0), (1, 0))),
    3: (((0, 1), (0, 1, 2)), ((0, 2), (0, 2, 1)), ((1, 2), (1, 2, 0))),
}


@dataclasses.dataclass(frozen=True)
class _AsComplex:
    """Makes a real block complex."""

    def __call__(self, x: jax.Array) -> jax.Array:
        return as_complex(x)


@dataclasses.dataclass(frozen=True, init=False)
class PencilTransform:
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

    shape: tuple[int, ...]
    grid: ProcessGrid
    kinds: tuple[str, ...]
    norm: Norm
    layout: Layout
    method: ExchangeMethod
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
        any_grid = not isinstance(grid, ProcessGrid)
        whole, grid = shape_and_grid(shape, grid, "PencilTransform", tuple(_STAGES))
        attributes = {"shape": whole, "grid": grid, "norm": norm, "layout": layout}
        for name, value in {**attributes, "method": method}.items():
            object.__setattr__(self, name, value)
        object.__setattr__(self, "kinds", self._checked_kinds(kinds))
        object.__setattr__(self, "timings", Timings())
        self._check()
        if tune is not False:
            spectrum = self.spectral_shape
            tuned = tune_plan(self, self.kinds, spectrum, tune, any_grid=any_grid)
            for name in ("grid", "method", "timings"):
                object.__setattr__(self, name, getattr(tuned, name))

    def _checked_kinds(self, given: Sequence[str]) -> tuple[str, ...]:
        here, shape = self._here("PencilTransform"), self.shape
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

    def _check(self) -> None:
        here = self._here("PencilTransform")
        checked_method(self.method, "PencilTransform", self.grid._comm)
        if len(self.shape) == 2 and self.grid.dims[1] != 1:
            raise ValueError(
                f"{here}: an array of two axes is distributed in slabs, over a grid of "
                f"({self.grid.size}, 1), but the grid is {self.grid.dims}; make one by "
                "pfftjax.ProcessGrid((None, 1))"
            )
        if not isinstance(self.norm, str) or self.norm not in _SCALES:
            raise ValueError(
                f"{here}: norm must be one of {', '.join(_SCALES)}, got {self.norm!r}"
            )
        if self.layout not in ("transposed", "natural"):
            raise ValueError(f"{here}: layout must be transposed or natural, got {self.layout!r}")

    def _here(self, operation: str) -> str:
        return where(operation, self.grid._comm)

    @property
    def spectral_shape(self) -> tuple[int, ...]:
        """Global shape of the spectrum."""
        return spectral_shape(self.shape, self.kinds)

    @functools.cached_property
    def input(self) -> Pencil:
        """Pencil of the array in real space: whole along the last axis."""
        split, axes = _STAGES[len(self.shape)][0]
        return Pencil(self.shape, self.grid, split, axes)

    @functools.cached_property
    def output(self) -> Pencil:
        """Pencil of the spectrum."""
        split, axes = _STAGES[len(self.shape)][0 if self.layout == "natural" else -1]
        return Pencil(self.spectral_shape, self.grid, split, axes)

    @functools.cached_property
    def _forward(self) -> tuple[Step, ...]:
        return forward_steps(self, self.shape)

    @functools.cached_property
    def _inverse(self) -> tuple[Step, ...]:
        return inverse_steps(self, self.shape)

    def forward(self, x: Any) -> jax.Array:
        """The spectrum of an array in real space.

        Args:
            x: this rank's block, of shape ``(..., *input.local_shape)``; float32, float64, and
                unless the last kind is "rfft" also complex64 or complex128. Integers become
                floating-point numbers.

        Returns:
            This rank's block of the spectrum, of shape ``(..., *output.local_shape)``: complex if
            `x` is or any kind is "fft" or "rfft", real otherwise.

        Raises:
            ValueError: a block that does not match its pencil.
            TypeError: complex numbers where real ones belong, or a dtype without a transform.

        """
        here = self._here("PencilTransform.forward")
        x = checked_block(x, self.input, here)
        if self.kinds[-1] == "rfft" and jnp.iscomplexobj(x):
            raise TypeError(
                f"{here}: x is {x.dtype}, but the last kind is 'rfft', for real arrays; pass "
                "x.real, or make the plan with 'fft'"
            )
        return run(self._forward, x)

    def inverse(self, y: Any) -> jax.Array:
        """The array in real space that belongs to a spectrum.

        Args:
            y: this rank's block of the spectrum, of shape ``(..., *output.local_shape)``. With
                "rfft", imaginary parts that a Hermitian spectrum does not have are ignored.

        Returns:
            This rank's block, of shape ``(..., *input.local_shape)``: real if the last kind is
            "rfft", or `y` is real and no kind is "fft"; complex otherwise.

        Raises:
            ValueError: a block that does not match its pencil.
            TypeError: a dtype without a transform.

        """
        y = checked_block(y, self.output, self._here("PencilTransform.inverse"))
        return run(self._inverse, y)

    def wavenumbers(self, box_size: Any, dtype: Any = None) -> tuple[jax.Array, ...]:
        """Wavenumbers of this rank's block of the spectrum.

        Args:
            box_size: side of the box, in the length unit of choice: a number, or one for each
                axis: the period, or the distance between the walls. May be traced, and
                differentiated.
            dtype: floating-point dtype, JAX's default by default.

        Returns:
            One array for each global axis, in radians per unit length, which broadcasts against
            the block. Of coefficient k: 2 pi / side times `numpy.fft.fftfreq(n, 1 / n)`, or
            `rfftfreq`; of "dct1" and "dct2" pi / side times k, of "dst1" and "dst2" times k + 1,
            and of types 3 and 4 times k + 1/2.

        Example:
            >>> plan = PencilTransform((3, 4), ProcessGrid((None, 1)), ("dst2", "fft"))
            >>> [k.ravel().tolist() for k in plan.wavenumbers((np.pi, 2 * np.pi))][0]
            [1.0, 2.0, 3.0]

        """
        dtype = wavenumber_dtype(dtype, self._here("wavenumbers"))
        sides = sides_of(box_size, len(self.shape), self._here("wavenumbers"))
        result = []
        for axis, (kind, n, side) in enumerate(zip(self.kinds, self.shape, sides, strict=True)):
            index = self.output.indices(axis)
            if kind == "fft":
                index = jnp.where(index < (n + 1) // 2, index, index - n)
            if kind in OFFSETS:
                k = (index.astype(dtype) + OFFSETS[kind]) * (np.pi / side)
            else:
                k = index.astype(dtype) * (2 * np.pi / side)
            result.append(k.astype(dtype))
        return tuple(result)

    def hermitian_weights(self, dtype: Any = None) -> jax.Array:
        """How often each coefficient of this rank's spectrum occurs in the whole spectrum.

        With "rfft" along the last axis, 2, but 1 for coefficient 0 and, for even sizes, the last;
        1 without.

        Returns:
            Array that broadcasts against the block of the spectrum.

        """
        dtype = jnp.result_type(float) if dtype is None else dtype
        last = len(self.shape) - 1
        if self.kinds[last] != "rfft":
            return jnp.ones((1,) * len(self.shape), dtype)
        weights = jnp.asarray(hermitian_weights(self.shape[last], dtype))
        return weights[self.output.indices(last)]


Plan = PencilFFT | PencilTransform


def kinds_of(plan: Plan) -> tuple[str, ...]:
    """The kind of transform along each axis of a plan."""
    if isinstance(plan, PencilTransform):
        return plan.kinds
    return ("fft", "fft", "rfft" if plan.real else "fft")


def spectral_shape(shape: Sequence[int], kinds: Sequence[str]) -> tuple[int, ...]:
    """Global shape of the spectrum of an array of global shape `shape`."""
    return tuple(n // 2 + 1 if kind == "rfft" else n for n, kind in zip(shape, kinds, strict=True))


def _transform(kind: str, n: int, norm: Norm, direction: int) -> Step:
    """The transform of lines of n points, forward (direction 0) or back (1)."""
    scale = float(logical_size(kind, n)) ** _SCALES[norm][direction]
    if kind in INVERSES:
        name = INVERSES[kind] if direction else kind
        return TrigonometricTransform(name, n, scale, norm == "ortho")
    forward = Kind.REAL_TO_COMPLEX if kind == "rfft" else Kind.FORWARD
    return _Transform(_INVERSES[forward] if direction else forward, n, scale=scale)


def forward_steps(plan: Plan, shape: Sequence[int]) -> tuple[Step, ...]:
    """From an array of global shape `shape` in real space to the spectrum of `plan`.

    Where `shape` has more points than `plan` along an axis, its coefficients are cut down to those
    of `plan` as soon as the axis has been transformed: what is left out is not exchanged.
    """
    steps = _steps(plan, shape, 0)
    complex_at = [
        i
        for i, step in enumerate(steps)
        if isinstance(step, _Transform) and step.kind in (Kind.FORWARD, Kind.REAL_TO_COMPLEX)
    ]
    if complex_at and kinds_of(plan)[-1] != "rfft":
        steps.insert(complex_at[0], _AsComplex())
    return tuple(steps)


def inverse_steps(plan: Plan, shape: Sequence[int]) -> tuple[Step, ...]:
    """From the spectrum of `plan` to an array of global shape `shape` in real space."""
    back: list[Step] = [
        step.backward if isinstance(step, _Move) else step
        for step in reversed(_steps(plan, shape, 1))
    ]
    if {"fft", "rfft"} & set(kinds_of(plan)):
        back.insert(0, _AsComplex())
    return tuple(back)


def _steps(plan: Plan, shape: Sequence[int], direction: int) -> list[Step]:
    """The steps from real space to the spectrum: with direction 1, each has its inverse in its
    place, but for moves.
    """
    kinds, grid, norm = kinds_of(plan), plan.grid, plan.norm
    stages = _STAGES[len(shape)]
    sizes = list(shape)
    steps: list[Step] = []

    def move(source: Any, target: Any) -> None:
        whole = tuple(sizes)
        pencils = Pencil(whole, grid, *source), Pencil(whole, grid, *target)
        steps.append(_Move(*pencils, plan.method))

    if _by_planes(plan, shape):
        # Axis 1 is whole already: two transforms while a plane is in the cache.
        along, across = (_transform(kinds[a], shape[a], norm, direction) for a in (2, 1))
        assert isinstance(along, _Transform)
        assert isinstance(across, _Transform)
        steps.append(along._replace(axes=2, scale=along.scale * across.scale))
        sizes = list(spectral_shape(shape, kinds))
        move(stages[0], stages[2])
        stages = stages[2:]
    for i, stage in enumerate(stages):
        if i > 0:
            move(stages[i - 1], stage)
        axis = stage[1][-1]
        kind, n, kept = kinds[axis], shape[axis], plan.shape[axis]
        pair: list[Step] = [_transform(kind, n, norm, direction)]
        if n != kept:
            sizes_of_line = (kept, n) if direction else (n, kept)
            pair.append(Resize(kind, *sizes_of_line, norm, of_real_lines=True))
        steps += pair
        sizes[axis] = kept // 2 + 1 if kind == "rfft" else kept
    if plan.layout == "natural":
        every = _STAGES[len(shape)]
        # On slabs, the stage between is on the way of no message.
        way = every[::-1] if grid.dims[1] > 1 else (every[-1], every[0])
        for source, target in itertools.pairwise(way):
            move(source, target)
    return steps


def _by_planes(plan: Plan, shape: Sequence[int]) -> bool:
    """Whether axes 1 and 2 are whole on every rank, and transformed together."""
    return (
        len(shape) == 3
        and plan.grid.dims[1] == 1
        and not set(kinds_of(plan)[1:]) & set(INVERSES)
        and tuple(shape[1:]) == tuple(plan.shape[1:])
    )

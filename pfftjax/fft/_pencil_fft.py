"""The two ways to say what a plan is, whose grid and method may be chosen by measurement."""

import dataclasses
import functools
from collections.abc import Sequence
from typing import cast

import jax
import numpy as np
from mpi4py import MPI

from pfftjax._runtime.arguments import where
from pfftjax._runtime.communicators import Communicator
from pfftjax.pencils import ExchangeMethod, ExchangePrecision, ProcessGrid

from ._grids import shape_and_grid
from ._plan import Plan
from ._steps import Layout, Norm
from ._timings import Timings, Tuning
from ._trigonometric import INVERSES
from ._tuning import chosen

_KINDS = ("fft", "rfft", *INVERSES)


@jax.tree_util.register_static
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
        precision: of the numbers on their way between ranks; `ExchangePrecision.HALF` halves what
            is exchanged, and rounds it.
        kinds: of the transform along each axis: "fft", and along axis 2 of a real plan "rfft".
        timings: what `tune` has measured; empty otherwise, and no part of a plan's value.

    Args:
        tune: times the process grids of the communicator (of a `ProcessGrid` only that) and the
            methods of exchange (of a `method` other than AUTOMATIC only that), forward and inverse
            together, and takes the fastest: `True`, or a `Tuning` with the dtype, the seconds that
            it may take, and a file that keeps the choices. Collective; not in jitted code.

    Raises:
        ValueError: a shape that is not three-dimensional, an unknown norm or layout, a method
            that PFFTJAX_SHARED_MEMORY=0 forbids, or a precision that an exchange cannot have.
        TypeError: a grid that is neither a `ProcessGrid` nor a communicator, no method or
            precision, or `real` that is no bool.
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
    # `dataclasses.replace` gives it to the new plan, which makes its kinds of it.
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
        precision: ExchangePrecision = ExchangePrecision.FULL,
        tune: bool | Tuning = False,
    ) -> None:
        make = functools.partial(
            PencilFFT, shape, real=real, norm=norm, layout=layout, precision=precision
        )
        grid, method, timings = chosen(make, grid, method, tune)
        sizes, grid = shape_and_grid(shape, grid, "PencilFFT", (3,))
        if not isinstance(real, bool | np.bool_):
            here = where("PencilFFT", grid.communicator)
            raise TypeError(f"{here}: real must be True or False, got {real!r}")
        kinds = ("fft", "fft", "rfft" if real else "fft")
        super().__init__(sizes, grid, kinds, norm, layout, method, precision, timings)


@jax.tree_util.register_static
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
        precision: of the numbers on their way, as for `PencilFFT`; `HALF` is for the kinds "fft"
            and "rfft" of three axes.
        timings: what `tune` has measured; empty otherwise, and no part of a plan's value.

    Args:
        tune: as for `PencilFFT`.

    Raises:
        ValueError: a shape, kinds, a grid, a norm or a layout that do not make sense, a method
            that PFFTJAX_SHARED_MEMORY=0 forbids, or a precision that an exchange cannot have.
        TypeError: a grid that is neither a `ProcessGrid` nor a communicator, or no method or
            precision.
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
        precision: ExchangePrecision = ExchangePrecision.FULL,
        tune: bool | Tuning = False,
    ) -> None:
        make = functools.partial(
            PencilTransform, shape, kinds=kinds, norm=norm, layout=layout, precision=precision
        )
        grid, method, timings = chosen(make, grid, method, tune)
        sizes, grid = shape_and_grid(shape, grid, "PencilTransform", (2, 3))
        kinds = _checked_kinds(kinds, sizes, where("PencilTransform", grid.communicator))
        super().__init__(sizes, grid, kinds, norm, layout, method, precision, timings)


def _checked_kinds(given: Sequence[str], shape: tuple[int, ...], here: str) -> tuple[str, ...]:
    kinds = tuple(given) if isinstance(given, tuple | list) else (cast(str, given),)
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

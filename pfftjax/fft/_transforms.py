"""The transforms as functions, with the names of numpy.fft, and wavenumbers without a plan."""

from collections.abc import Sequence

import jax.numpy as jnp
from jax.typing import DTypeLike

from pfftjax._runtime.arguments import static_ints, where
from pfftjax._runtime.arrays import (
    BlockLike,
    BoxSize,
    ComplexBlock,
    ComplexField,
    FieldLike,
    RealBlock,
    RealField,
    Reals,
)
from pfftjax._runtime.communicators import Communicator, world
from pfftjax.pencils import ExchangeMethod, ExchangePrecision, ProcessGrid
from pfftjax.pencils.internal import checked_grid

from . import sharded
from ._pencil_fft import PencilFFT, PencilTransform
from ._plan import Plan
from ._shards import is_global
from ._steps import Layout, Norm


def _plan_of(
    x: FieldLike,
    name: str,
    grid: ProcessGrid | None,
    shape: Sequence[int] | None,
    norm: Norm,
    layout: Layout,
    method: ExchangeMethod,
    precision: ExchangePrecision = ExchangePrecision.FULL,
) -> Plan:
    """The plan of the function `name` for a block, of the global `shape` in real space, or else of
    that of the block on one rank.
    """
    axes = 3 if name.endswith("3d") else 2
    grid = checked_grid(grid, name, "dims" if axes == 3 else "(None, 1)")
    here = where(name, grid.communicator)
    names = ", ".join(f"n{axis}" for axis in range(axes))
    if shape is None:
        if grid.size > 1 or name.startswith("irfft"):
            last = f"n{axes - 1}"
            why = (
                "a rank cannot tell the global shape from its block"
                if grid.size > 1
                else f"{last} and {last} + 1 have spectra of the same size"
            )
            raise ValueError(f"{here}: give shape=({names}), the shape in real space: {why}")
        if jnp.ndim(x) < axes:
            number = {2: "two", 3: "three"}[axes]
            raise ValueError(f"{here}: x must have {number} dimensions, got shape {jnp.shape(x)}")
        shape = jnp.shape(x)[-axes:]
        if name.startswith("i") and layout == "transposed":
            shape = (shape[-1], *shape[:-1])
    shape = static_ints(shape, "shape", name, grid.communicator)
    if len(shape) != axes:
        raise ValueError(f"{here}: shape must be ({names}), got {shape}")
    real = "rfft" in name
    if axes == 3:
        return PencilFFT(
            shape, grid, real=real, norm=norm, layout=layout, method=method, precision=precision
        )
    kinds = ("fft", "rfft" if real else "fft")
    return PencilTransform(shape, grid, kinds, norm=norm, layout=layout, method=method)


def _communicator(grid: ProcessGrid | None, name: str) -> Communicator:
    """That of a grid, or of the grid that a global array has by default."""
    return world if grid is None else checked_grid(grid, name).communicator


def _same_shape(
    given: Sequence[int] | None, found: Sequence[int], name: str, grid: ProcessGrid | None
) -> None:
    """A global array has a shape; one that is given besides must be the same."""
    if given is None:
        return
    comm = _communicator(grid, name)
    given = static_ints(given, "shape", name, comm)
    if given != tuple(found):
        raise ValueError(
            f"{where(name, comm)}: shape is {given}, but the global array is one of "
            f"{tuple(found)} in real space; leave it out, or pass this rank's block"
        )


def fft3d(
    x: BlockLike,
    grid: ProcessGrid | None = None,
    *,
    shape: Sequence[int] | None = None,
    norm: Norm = "backward",
    layout: Layout = "transposed",
    method: ExchangeMethod = ExchangeMethod.AUTOMATIC,
    precision: ExchangePrecision = ExchangePrecision.FULL,
) -> ComplexBlock:
    """Fourier transform of a distributed array over its last three axes.

    Args:
        x: this rank's block, of shape (..., local n0, local n1, n2): axis 0 split over the first
            dimension of `grid`, axis 1 over the second (`PencilFFT.input`). float32, float64,
            complex64 or complex128.
            A global array, sharded over the devices of all ranks, is transformed as one, by
            `pfftjax.sharded.fft3d`, which says more; `grid` and `shape` follow from it.
        grid: process grid, required for a block.
        shape: the global shape (n0, n1, n2), required as soon as `grid` has more than one rank.
        norm: where the factor 1 / (n0 n1 n2) goes: "backward", "ortho" or "forward", as in numpy.
        layout: "transposed": the spectrum has axes (1, 2, 0) in memory, axis 1 split over the
            first dimension of `grid` and axis 2 over the second. "natural": as `x`, for as many
            more exchanges.
        method: way of the exchanges, as for `PencilFFT`.
        precision: of the numbers that are exchanged, as for `PencilFFT`.

    Returns:
        This rank's block of the spectrum (`PencilFFT.output`), complex.

    Raises:
        ValueError: a block that does not match its pencil, or a missing global shape.
        TypeError: a dtype without a transform.

    Example:
        >>> import numpy as np
        >>> grid = ProcessGrid()
        >>> plan = PencilFFT((4, 5, 6), grid)
        >>> x = np.random.default_rng(0).standard_normal((4, 5, 6))
        >>> y = fft3d(plan.input.local_block(x), grid, shape=(4, 5, 6))
        >>> bool(np.allclose(y, plan.output.local_block(np.fft.fftn(x))))
        True
        >>> back = ifft3d(y, grid, shape=(4, 5, 6))
        >>> bool(np.allclose(back, plan.input.local_block(x), atol=1e-6))
        True

    """
    if is_global(x, grid):
        _same_shape(shape, x.shape[-3:], "fft3d", grid)
        return sharded.fft3d(x, grid, norm=norm, layout=layout, method=method, precision=precision)
    return _plan_of(x, "fft3d", grid, shape, norm, layout, method, precision).forward(x)


def ifft3d(
    y: BlockLike,
    grid: ProcessGrid | None = None,
    *,
    shape: Sequence[int] | None = None,
    norm: Norm = "backward",
    layout: Layout = "transposed",
    method: ExchangeMethod = ExchangeMethod.AUTOMATIC,
    precision: ExchangePrecision = ExchangePrecision.FULL,
) -> ComplexBlock:
    """The inverse of `fft3d`: from a spectrum to this rank's block in real space, complex.

    `y` is this rank's block as `fft3d` returns it for the same layout. The other arguments and the
    errors are those of `fft3d`: `shape` is that in real space.

    See `fft3d` for an example.

    """
    if is_global(y, grid):
        _same_shape(shape, sharded.shape_in_space(y, layout), "ifft3d", grid)
        return sharded.ifft3d(
            y, grid, norm=norm, layout=layout, method=method, precision=precision
        )
    return _plan_of(y, "ifft3d", grid, shape, norm, layout, method, precision).inverse(y)


def rfft3d(
    x: BlockLike,
    grid: ProcessGrid | None = None,
    *,
    shape: Sequence[int] | None = None,
    norm: Norm = "backward",
    layout: Layout = "transposed",
    method: ExchangeMethod = ExchangeMethod.AUTOMATIC,
    precision: ExchangePrecision = ExchangePrecision.FULL,
) -> ComplexBlock:
    """Fourier transform of a distributed real array: half the work and traffic of `fft3d`.

    Arguments and errors are those of `fft3d`; complex numbers are a TypeError, too.

    Returns:
        This rank's block of the spectrum, whose global shape is (n0, n1, n2 // 2 + 1).

    Example:
        >>> import numpy as np
        >>> grid = ProcessGrid()
        >>> plan = PencilFFT((4, 5, 6), grid, real=True)
        >>> x = np.random.default_rng(0).standard_normal((4, 5, 6))
        >>> y = rfft3d(plan.input.local_block(x), grid, shape=(4, 5, 6))
        >>> bool(np.allclose(y, plan.output.local_block(np.fft.rfftn(x))))
        True
        >>> back = irfft3d(y, grid, shape=(4, 5, 6))
        >>> bool(np.allclose(back, plan.input.local_block(x), atol=1e-6))
        True

    """
    if is_global(x, grid):
        _same_shape(shape, x.shape[-3:], "rfft3d", grid)
        return sharded.rfft3d(
            x, grid, norm=norm, layout=layout, method=method, precision=precision
        )
    return _plan_of(x, "rfft3d", grid, shape, norm, layout, method, precision).forward(x)


def irfft3d(
    y: BlockLike,
    grid: ProcessGrid | None = None,
    *,
    shape: Sequence[int] | None = None,
    norm: Norm = "backward",
    layout: Layout = "transposed",
    method: ExchangeMethod = ExchangeMethod.AUTOMATIC,
    precision: ExchangePrecision = ExchangePrecision.FULL,
) -> RealBlock:
    """The inverse of `rfft3d`: from a half spectrum to this rank's block in real space, real.

    `y` is this rank's block as `rfft3d` returns it for the same layout. The other arguments and
    the errors are those of `fft3d`, but `shape`, in real space, is always required: the spectrum
    does not say whether n2 is even or odd.

    See `rfft3d` for an example.

    """
    if is_global(y, grid):
        if shape is None:
            raise ValueError(
                f"{where('irfft3d', _communicator(grid, 'irfft3d'))}: give shape=(n0, n1, n2), "
                "that in real space: the spectrum does not say whether n2 is even or odd"
            )
        return sharded.irfft3d(
            y, grid, shape=shape, norm=norm, layout=layout, method=method, precision=precision
        )
    return _plan_of(y, "irfft3d", grid, shape, norm, layout, method, precision).inverse(y)


def fft2d(
    x: FieldLike,
    grid: ProcessGrid,
    *,
    shape: Sequence[int] | None = None,
    norm: Norm = "backward",
    layout: Layout = "transposed",
    method: ExchangeMethod = ExchangeMethod.AUTOMATIC,
) -> ComplexField:
    """Fourier transform of a distributed array over its last two axes.

    Args:
        x: this rank's block, of shape (..., local n0, n1): axis 0 split over the ranks. Leading
            axes are a batch: the same in all planes, and in the same messages. float32, float64,
            complex64 or complex128.
        grid: process grid of (P, 1): ``ProcessGrid((None, 1))``.
        shape: the global shape (n0, n1), required as soon as `grid` has more than one rank.
        norm: where the factor 1 / (n0 n1) goes: "backward", "ortho" or "forward", as in numpy.
        layout: "transposed": the spectrum has axes (1, 0) in memory, axis 1 split over the ranks.
            "natural": as `x`, for one more exchange.
        method: way of the exchanges, as for `PencilFFT`.

    Returns:
        This rank's block of the spectrum (`PencilTransform.output`), complex.

    Raises:
        ValueError: a block that does not match, a grid of columns, or a missing global shape.
        TypeError: a dtype without a transform.

    Example:
        >>> import numpy as np
        >>> from pfftjax import PencilTransform
        >>> grid = ProcessGrid((None, 1))
        >>> plan = PencilTransform((4, 5), grid, ("fft", "fft"))
        >>> x = np.random.default_rng(0).standard_normal((4, 5))
        >>> y = fft2d(plan.input.local_block(x), grid, shape=(4, 5))
        >>> bool(np.allclose(y, plan.output.local_block(np.fft.fft2(x)), atol=1e-5))
        True
        >>> back = ifft2d(y, grid, shape=(4, 5))
        >>> bool(np.allclose(back, plan.input.local_block(x), atol=1e-6))
        True

    """
    return _plan_of(x, "fft2d", grid, shape, norm, layout, method).forward(x)


def ifft2d(
    y: FieldLike,
    grid: ProcessGrid,
    *,
    shape: Sequence[int] | None = None,
    norm: Norm = "backward",
    layout: Layout = "transposed",
    method: ExchangeMethod = ExchangeMethod.AUTOMATIC,
) -> ComplexField:
    """The inverse of `fft2d`: from a spectrum to this rank's block in real space, complex.

    `y` is this rank's block as `fft2d` returns it for the same layout. The other arguments and the
    errors are those of `fft2d`: `shape` is that in real space.

    See `fft2d` for an example.

    """
    return _plan_of(y, "ifft2d", grid, shape, norm, layout, method).inverse(y)


def rfft2d(
    x: FieldLike,
    grid: ProcessGrid,
    *,
    shape: Sequence[int] | None = None,
    norm: Norm = "backward",
    layout: Layout = "transposed",
    method: ExchangeMethod = ExchangeMethod.AUTOMATIC,
) -> ComplexField:
    """Fourier transform of a distributed real array: half the work and traffic of `fft2d`.

    Arguments and errors are those of `fft2d`; complex numbers are a TypeError, too.

    Returns:
        This rank's block of the spectrum, whose global shape is (n0, n1 // 2 + 1).

    Example:
        >>> import numpy as np
        >>> from pfftjax import PencilTransform
        >>> grid = ProcessGrid((None, 1))
        >>> plan = PencilTransform((4, 5), grid, ("fft", "rfft"))
        >>> x = np.random.default_rng(0).standard_normal((4, 5))
        >>> y = rfft2d(plan.input.local_block(x), grid, shape=(4, 5))
        >>> bool(np.allclose(y, plan.output.local_block(np.fft.rfft2(x)), atol=1e-5))
        True
        >>> back = irfft2d(y, grid, shape=(4, 5))
        >>> bool(np.allclose(back, plan.input.local_block(x), atol=1e-6))
        True

    """
    return _plan_of(x, "rfft2d", grid, shape, norm, layout, method).forward(x)


def irfft2d(
    y: FieldLike,
    grid: ProcessGrid,
    *,
    shape: Sequence[int] | None = None,
    norm: Norm = "backward",
    layout: Layout = "transposed",
    method: ExchangeMethod = ExchangeMethod.AUTOMATIC,
) -> RealField:
    """The inverse of `rfft2d`: from a half spectrum to this rank's block in real space, real.

    `y` is this rank's block as `rfft2d` returns it for the same layout. The other arguments and
    the errors are those of `fft2d`, but `shape`, in real space, is always required: the spectrum
    does not say whether n1 is even or odd.

    See `rfft2d` for an example.

    """
    return _plan_of(y, "irfft2d", grid, shape, norm, layout, method).inverse(y)


def wavenumbers(
    shape: Sequence[int],
    grid: ProcessGrid,
    box_size: BoxSize,
    *,
    real: bool = False,
    layout: Layout = "transposed",
    dtype: DTypeLike | None = None,
) -> tuple[Reals, Reals, Reals]:
    """Wavenumbers of this rank's block of the spectrum that `fft3d` or `rfft3d` returns.

    Args:
        shape: global shape in real space.
        grid: process grid.
        box_size: side of the box, in the length unit of choice: a number, or one for each axis.
        real: for `rfft3d`.
        layout: as given to the transform.
        dtype: floating-point dtype, JAX's default by default.

    Returns:
        (kx, ky, kz), by global axis, in radians per unit length, each of which broadcasts against
        the block of the spectrum.

    Raises:
        ValueError: a shape, a layout or a box that is none.
        TypeError: no process grid, or a dtype that is not floating-point.

    Example:
        >>> kx, ky, kz = wavenumbers((4, 6, 5), ProcessGrid(), 6.283185307179586, real=True)
        >>> k2 = kx**2 + ky**2 + kz**2
        >>> k2.shape == PencilFFT((4, 6, 5), ProcessGrid(), real=True).output.local_shape
        True

    """
    plan = PencilFFT(shape, grid, real=real, layout=layout)
    kx, ky, kz = plan.wavenumbers(box_size, dtype)
    return kx, ky, kz

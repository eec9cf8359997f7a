"""Fourier transforms of two axes as functions, with the names of numpy.fft."""

from collections.abc import Sequence

from pfftjax._runtime.arrays import ComplexField, FieldLike, RealField
from pfftjax.pencils import ExchangeMethod, ProcessGrid

from ._steps import Layout, Norm
from ._transforms import plan_of


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

    """
    return plan_of(x, "fft2d", grid, shape, norm, layout, method).forward(x)


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

    Example:
        >>> import jax.numpy as jnp
        >>> from pfftjax import PencilTransform
        >>> grid = ProcessGrid((None, 1))
        >>> x = jnp.ones(PencilTransform((4, 5), grid, ("fft", "fft")).input.local_shape)
        >>> y = fft2d(x, grid, shape=(4, 5))
        >>> bool(jnp.allclose(ifft2d(y, grid, shape=(4, 5)), x))
        True

    """
    return plan_of(y, "ifft2d", grid, shape, norm, layout, method).inverse(y)


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

    """
    return plan_of(x, "rfft2d", grid, shape, norm, layout, method).forward(x)


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

    Example:
        >>> import jax.numpy as jnp
        >>> from pfftjax import PencilTransform
        >>> grid = ProcessGrid((None, 1))
        >>> x = jnp.ones(PencilTransform((4, 5), grid, ("fft", "rfft")).input.local_shape)
        >>> y = rfft2d(x, grid, shape=(4, 5))
        >>> bool(jnp.allclose(irfft2d(y, grid, shape=(4, 5)), x))
        True

    """
    return plan_of(y, "irfft2d", grid, shape, norm, layout, method).inverse(y)

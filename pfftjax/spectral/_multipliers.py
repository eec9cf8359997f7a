"""Multiplications by functions of the wavenumbers."""

import functools
import math
import operator
from collections.abc import Callable
from typing import Literal, TypeAlias

import jax.numpy as jnp
import numpy as np
from jax.typing import ArrayLike

from pfftjax._runtime.arrays import BoxSize, Field, FieldLike, Reals
from pfftjax._runtime.rematerialization import select
from pfftjax.fft.internal import Plan, as_complex, check_series, is_length

from ._operands import (
    check_periodic,
    check_squares,
    here,
    inverse_square,
    operand,
    real_dtype,
    sides,
    square,
    times_real,
)

AssignmentKernel = Literal["ngp", "cic", "tsc", "pcs"]
Kernel: TypeAlias = Callable[..., ArrayLike]

# The window of a B-spline of order p is sinc^p along each axis (Hockney & Eastwood 1988, 5-3).
_ORDERS = {"ngp": 1, "cic": 2, "tsc": 3, "pcs": 4}


def apply(
    x: FieldLike,
    plan: Plan,
    box_size: BoxSize,
    kernel: Kernel,
    *,
    from_spectrum: bool = False,
    to_spectrum: bool = False,
) -> Field:
    """Multiply a field by any function of the wavenumbers.

    Args:
        x: this rank's block of the field, ``(..., *plan.input.local_shape)``, or of its spectrum,
            ``(..., *plan.output.local_shape)``, as `plan.forward` returns it.
        plan: any `PencilFFT` or `PencilTransform`; with norm "ortho" not one of the kinds "dct1",
            "dct3" and "dst3", which weight the values on the walls.
        box_size: side of the box, in the length unit of choice: a number, or one for each axis.
            May be traced, and differentiated.
        kernel: (kx, ky, kz) -> multiplier, real or complex, that broadcasts against the block of
            the spectrum. The wavenumbers are those of `plan.wavenumbers`, [radians per length], in
            the precision of `x`: each has the size 1 along all but one axis. Every rank calls it
            for its own part. It may depend on traced values, and the result is differentiable in
            them. One that is the same on all ranks is named in `pfftjax.grad`, and its derivative
            is the total. Leading dimensions of the multiplier become a batch.
        from_spectrum: whether `x` is a spectrum.
        to_spectrum: whether to return a spectrum.

    Returns:
        A block of the shape of a field, or of a spectrum, in the precision of `x`. Between walls
        only (no axis of the kind fft or rfft) it is real if `x` and the multiplier are.

    Raises:
        ValueError: a block that does not match its pencil, a multiplier that does not broadcast
            against it, or a box that is none.
        TypeError: complex numbers where real ones belong, or a dtype without a transform.

    With a real plan a multiplier should have K(-k) = conj(K(k)), as a real convolution has; of
    another one the inverse transform drops what would be imaginary. A kernel that is infinite
    at k = 0 has to say what it is there, by a double `where` (as in docs/tutorial.md) if it is to
    be differentiated.

    Example:
        >>> from pfftjax import PencilFFT, ProcessGrid
        >>> plan = PencilFFT((8, 6, 5), ProcessGrid(), real=True)
        >>> x = 2 * jnp.pi / 8 * plan.input.indices(0) + jnp.zeros(plan.input.local_shape)
        >>> y = apply(jnp.sin(x), plan, 2 * jnp.pi, lambda kx, ky, kz: 1 / (1 + kx**2 + ky**2))
        >>> bool(jnp.allclose(y, jnp.sin(x) / 2, atol=1e-6))
        True

    """
    return _apply("apply", x, plan, box_size, kernel, from_spectrum, to_spectrum)


def _apply(
    operation: str,
    x: FieldLike,
    plan: Plan,
    box_size: BoxSize,
    kernel: Kernel,
    from_spectrum: bool,
    to_spectrum: bool,
    *,
    has_squares: bool = False,
) -> Field:
    x = operand(x, plan, operation, from_spectrum=from_spectrum)
    check_series(plan, here(operation, plan))
    lengths = sides(box_size, plan, operation)
    dtype = real_dtype(x)
    if has_squares:
        check_squares(lengths, plan, dtype, operation)
    # The kernel is called before anything is exchanged: one that raises may do so on one rank.
    multiplier = jnp.asarray(kernel(*plan.wavenumbers(lengths, dtype)))
    local_shape, axes = plan.output.local_shape, len(plan.shape)
    y_shape = (*x.shape[:-axes], *local_shape)
    try:
        fits = jnp.broadcast_shapes(multiplier.shape, y_shape)[-axes:] == local_shape
    except ValueError:
        fits = False
    if not fits:
        raise ValueError(
            f"{here(operation, plan)}: the kernel returned a multiplier of shape "
            f"{multiplier.shape}, which does not broadcast against the block of the spectrum, "
            f"{y_shape}; compute it from kx, ky and kz, which do"
        )
    y = x if from_spectrum else plan.forward(x)
    if jnp.iscomplexobj(multiplier):
        y = as_complex(y)
        y = multiplier.astype(y.dtype) * y
    else:
        y = times_real(multiplier.astype(dtype), y)
    return y if to_spectrum else plan.inverse(y)


def laplacian(
    x: FieldLike,
    plan: Plan,
    box_size: BoxSize,
    *,
    from_spectrum: bool = False,
    to_spectrum: bool = False,
) -> Field:
    """The Laplacian of a field on a periodic box: -k^2 in Fourier space, all frequencies included.

    Arguments, result and errors are those of `apply`; a box of which k^2 is no number in the
    precision of `x` is a ValueError too. The result is in units of `x` per squared length.

    Example:
        >>> from pfftjax import PencilFFT, ProcessGrid
        >>> plan = PencilFFT((8, 6, 5), ProcessGrid(), real=True)
        >>> x = 2 * jnp.pi / 8 * plan.input.indices(0) + jnp.zeros(plan.input.local_shape)
        >>> bool(jnp.allclose(laplacian(jnp.sin(x), plan, jnp.pi), -4 * jnp.sin(x), atol=1e-5))
        True

    """
    return _apply(
        "laplacian",
        x,
        plan,
        box_size,
        lambda *k: -square(*k),
        from_spectrum,
        to_spectrum,
        has_squares=True,
    )


def inverse_laplacian(
    x: FieldLike,
    plan: Plan,
    box_size: BoxSize,
    *,
    from_spectrum: bool = False,
    to_spectrum: bool = False,
) -> Field:
    """The field phi of mean zero with laplacian phi = x - mean(x): Poisson's equation.

    -1 / k^2 in Fourier space and 0 at k = 0, where no derivative is NaN either.

    Arguments, result and errors are those of `apply`; a box of which k^2 is no number in the
    precision of `x` is a ValueError too. The result is in units of `x` times squared length, and
    `gradient` can start from its spectrum.

    Example:
        >>> from pfftjax import PencilFFT, ProcessGrid
        >>> plan = PencilFFT((8, 6, 5), ProcessGrid(), real=True)
        >>> x = 2 * jnp.pi / 8 * plan.input.indices(0) + jnp.zeros(plan.input.local_shape)
        >>> phi = inverse_laplacian(3 + jnp.sin(x), plan, 2 * jnp.pi)
        >>> bool(jnp.allclose(phi, -jnp.sin(x), atol=1e-6))
        True

    """

    def kernel(*k: Reals) -> Reals:
        return -inverse_square(*k)

    return _apply(
        "inverse_laplacian",
        x,
        plan,
        box_size,
        kernel,
        from_spectrum,
        to_spectrum,
        has_squares=True,
    )


def gaussian_smoothing(
    x: FieldLike,
    plan: Plan,
    box_size: BoxSize,
    radius: ArrayLike,
    *,
    from_spectrum: bool = False,
    to_spectrum: bool = False,
) -> Field:
    """Convolve a field with a normal distribution of standard deviation R along each axis.

    exp(-k^2 R^2 / 2) in Fourier space.

    Arguments, result and errors are those of `apply`. The radius R is in the unit of the box, and
    may be traced and differentiated; a negative one is a ValueError.

    Example:
        >>> from pfftjax import PencilFFT, ProcessGrid
        >>> plan = PencilFFT((8, 6, 5), ProcessGrid(), real=True)
        >>> x = 2 * jnp.pi / 8 * plan.input.indices(0) + jnp.zeros(plan.input.local_shape)
        >>> y = gaussian_smoothing(1 + jnp.sin(x), plan, 2 * jnp.pi, 0.5)
        >>> bool(jnp.allclose(y, 1 + jnp.exp(-0.125) * jnp.sin(x), atol=1e-6))
        True

    """
    _check_radius(radius, plan, "gaussian_smoothing")

    def kernel(*k: Reals) -> Reals:
        return jnp.exp(-0.5 * square(*(x * radius for x in k)))

    return _apply("gaussian_smoothing", x, plan, box_size, kernel, from_spectrum, to_spectrum)


def top_hat_smoothing(
    x: FieldLike,
    plan: Plan,
    box_size: BoxSize,
    radius: ArrayLike,
    *,
    from_spectrum: bool = False,
    to_spectrum: bool = False,
) -> Field:
    """The mean of a field in a sphere of the given radius around each point.

    W(k R) in Fourier space, W(x) = 3 (sin x - x cos x) / x^3 (Peebles 1980, equation 26.9), from
    its series at small x.

    Arguments, result and errors are those of `apply`, of plans of three axes. The radius R is in
    the unit of the box, and may be traced and differentiated; a negative one is a ValueError.

    Example:
        >>> from pfftjax import PencilFFT, ProcessGrid
        >>> plan = PencilFFT((8, 6, 5), ProcessGrid(), real=True)
        >>> x = 2 * jnp.pi / 8 * plan.input.indices(0) + jnp.zeros(plan.input.local_shape)
        >>> y = top_hat_smoothing(1 + jnp.sin(x), plan, 2 * jnp.pi, 1.0)
        >>> bool(jnp.allclose(y, 1 + 0.903506 * jnp.sin(x), atol=1e-5))
        True

    """
    _check_radius(radius, plan, "top_hat_smoothing")
    begin = here("top_hat_smoothing", plan)
    if len(plan.shape) != 3:
        raise ValueError(
            f"{begin}: the mean is that in a sphere, but the plan has the shape {plan.shape}"
        )

    def kernel(*k: Reals) -> Reals:
        return top_hat(square(*(x * radius for x in k)))

    return _apply("top_hat_smoothing", x, plan, box_size, kernel, from_spectrum, to_spectrum)


def _check_radius(radius: ArrayLike, plan: Plan, operation: str) -> None:
    if not is_length(radius, or_zero=True):
        raise ValueError(
            f"{here(operation, plan)}: the radius must be a length in the unit of the box, got "
            f"{radius!r}"
        )


# W(x) = 3 sum_m (-1)^m (2 m + 2) x^(2 m) / (2 m + 3)!: to x = 1.5 exact to 1e-17 with ten terms.
# Beyond it the closed form loses 3 / x^2 of the precision at most.
_SERIES = [(-1) ** m * 3 * (2 * m + 2) / math.factorial(2 * m + 3) for m in range(10)]
_SERIES_UP_TO = 1.5**2


def top_hat(x2: Reals) -> Reals:
    """W of a squared argument: its derivative in x^2 exists at 0, that in x would make NaN."""
    near = x2 < _SERIES_UP_TO
    small = select(near, x2, 0)
    series = jnp.zeros_like(small)
    for coefficient in reversed(_SERIES):
        series = series * small + coefficient
    x = jnp.sqrt(select(near, 1, x2))
    return select(near, series, 3 * (jnp.sin(x) - x * jnp.cos(x)) / x**3)


def order_of(kernel: AssignmentKernel, here: str) -> int:
    """The order of the assignment kernel of that name."""
    if not isinstance(kernel, str) or kernel not in _ORDERS:
        raise ValueError(f"{here}: kernel must be one of {', '.join(_ORDERS)}, got {kernel!r}")
    return _ORDERS[kernel]


def deconvolve(
    x: FieldLike,
    plan: Plan,
    kernel: AssignmentKernel = "cic",
    *,
    times: int = 1,
    from_spectrum: bool = False,
    to_spectrum: bool = False,
) -> Field:
    """Divide out the smoothing of a field that was painted from particles, or read out to them.

    The window is the product over axes of sinc(k h / 2)^p, h the side of a cell, sinc(x) =
    sin(x) / x, and p = 1, 2, 3, 4 for NGP, CIC, TSC and PCS (Hockney & Eastwood 1988, section
    5-3; Jing 2005, equation 18, without the aliases).

    Arguments, result and errors are those of `apply`, of plans of the kinds fft and rfft. `kernel`
    is "ngp", "cic", "tsc" or "pcs", as given to `pfftjax.pm.paint`; others are a ValueError.
    `times` is how often the field was smoothed: 2 for painting and readout together. At the
    Nyquist frequency of an axis it multiplies by (pi / 2)^p, and noise with it.

    Example:
        >>> from pfftjax import PencilFFT, ProcessGrid
        >>> plan = PencilFFT((4, 6, 5), ProcessGrid(), real=True)
        >>> x = 2 * jnp.pi / 4 * plan.input.indices(0) + jnp.zeros(plan.input.local_shape)
        >>> y = deconvolve(jnp.sin(x), plan, "cic")
        >>> bool(jnp.allclose(y, jnp.pi**2 / 8 * jnp.sin(x), atol=1e-6))
        True

    """
    begin = here("deconvolve", plan)
    check_periodic(plan, "deconvolve")
    order = order_of(kernel, begin)
    if isinstance(times, bool) or not isinstance(times, int | np.integer) or times < 0:
        raise ValueError(f"{begin}: times is how often the field was smoothed, got {times!r}")
    power = order * int(times)

    def inverse_window(*k: Reals) -> Reals:
        # Cells have side 1 in a box of sides n. numpy's sinc has pi in its argument.
        windows = (jnp.sinc(x / (2 * np.pi)) ** -power for x in k)
        return functools.reduce(operator.mul, windows)

    lengths = tuple(float(n) for n in plan.shape)
    return _apply("deconvolve", x, plan, lengths, inverse_window, from_spectrum, to_spectrum)

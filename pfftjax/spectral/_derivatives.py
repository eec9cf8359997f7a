"""First derivatives: fewer exchanges than transforms of every component would need.

The derivative along one axis commutes with the transforms along the others. There are three ways
to use it, by what an operator starts from and ends in; counted in exchanged arrays, on pencils and
on slabs (P x 1):

    spectrum to field     gradient: multiply by i k late, while the axis is still spectral, and
                          share the steps before: 5 and 2, instead of 6 and 3
    field to spectrum     divergence: the same backward, multiply as soon as the axis is spectral,
                          and add: 5 and 2, instead of 6 and 3
    field to field        lines are transformed along the axis of the derivative only. Gradient: 5
                          and 2, instead of 7 and 3; divergence: the same; curl: 10 and 4, instead
                          of 12 and 6

A divergence of spectra is one inverse transform of their sum, a gradient into spectra one forward
transform; in a curl from or into spectra nothing can be shared.
"""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.core import Tracer

from pfftjax.fft import PencilFFT
from pfftjax.fft.internal import (
    Fused,
    Kind,
    What,
    between_two_transforms,
    fft_of_lines,
    run,
    times_i,
)
from pfftjax.pencils import Pencil, transpose

from ._operands import Vector, odd_wavenumbers, operand, real_dtype, sides, vector


def gradient(
    x: Any,
    plan: PencilFFT,
    box_size: Any,
    *,
    from_spectrum: bool = False,
    to_spectrum: bool = False,
) -> Vector:
    """The gradient of a scalar field on a periodic box: i k in Fourier space.

    The Nyquist frequency of an even axis has no derivative along that axis, with real and complex
    plans alike: the wave (-1)^j could run either way. The gradient of a real field is thus real,
    and `divergence` is minus its adjoint. (`laplacian` keeps that frequency, so that it differs
    from the divergence of a gradient there.)

    Args:
        x: this rank's block of the field, ``(..., *plan.input.local_shape)``, or of its spectrum,
            ``(..., *plan.output.local_shape)``, as `plan.forward` returns it.
        plan: any `PencilFFT`.
        box_size: side of the box, in the length unit of choice: a number, or one for each axis.
            May be traced, and differentiated.
        from_spectrum: whether `x` is a spectrum.
        to_spectrum: whether to return spectra.

    Returns:
        The derivatives along axes 0, 1 and 2, three blocks of the shape of a field, or of a
        spectrum, in the precision of `x`; in units of `x` per length.

    Raises:
        ValueError: a block that does not match its pencil, or a box that is none.
        TypeError: complex numbers where real ones belong, or a dtype without a transform.

    Of a spectrum it takes 5 exchanges of a spectrum (2 on P x 1 ranks), fewer than three inverse
    transforms; of a field as many exchanges of a field.

    Example:
        >>> import jax.numpy as jnp
        >>> from pfftjax import ProcessGrid
        >>> plan = PencilFFT((8, 6, 5), ProcessGrid(), real=True)
        >>> x = 2 * jnp.pi / 8 * plan.input.indices(0) + jnp.zeros(plan.input.local_shape)
        >>> fx, fy, fz = gradient(jnp.sin(x), plan, 2 * jnp.pi)
        >>> bool(jnp.allclose(fx, jnp.cos(x), atol=1e-6)), bool(jnp.allclose(fy, 0, atol=1e-6))
        (True, True)

    """
    x = operand(x, plan, "gradient", from_spectrum=from_spectrum)
    lengths = sides(box_size, plan, "gradient")
    if to_spectrum:
        y = x if from_spectrum else plan.forward(x)
        kx, ky, kz = _spectral(plan, lengths, y)
        return times_i(kx, y), times_i(ky, y), times_i(kz, y)
    if from_spectrum:
        return _late(x, plan, lengths)
    x_in_y = _moved(x, plan, 2, 1)
    return (
        _moved(_along(_moved(x_in_y, plan, 1, 0), plan, 0, lengths), plan, 0, 2),
        _moved(_along(x_in_y, plan, 1, lengths), plan, 1, 2),
        _along(x, plan, 2, lengths),
    )


def divergence(
    v: Any,
    plan: PencilFFT,
    box_size: Any,
    *,
    from_spectrum: bool = False,
    to_spectrum: bool = False,
) -> jax.Array:
    """The divergence of a vector field on a periodic box, minus the adjoint of `gradient`.

    Args:
        v: three blocks (vx, vy, vz), or an array with the components in front: of fields, each
            ``(..., *plan.input.local_shape)``, or of spectra.
        plan: any `PencilFFT`.
        box_size: side of the box, as in `gradient`.
        from_spectrum: whether `v` are spectra.
        to_spectrum: whether to return a spectrum.

    Returns:
        A block of the shape of a field, or of a spectrum, in the precision of `v`.

    Raises:
        ValueError: blocks that do not match their pencil, no three of them, or a box that is none.
        TypeError: complex numbers where real ones belong, or a dtype without a transform.

    Nyquist frequencies are left out as in `gradient`.

    Example:
        >>> import jax.numpy as jnp
        >>> from pfftjax import ProcessGrid
        >>> plan = PencilFFT((8, 6, 5), ProcessGrid(), real=True)
        >>> x = 2 * jnp.pi / 8 * plan.input.indices(0) + jnp.zeros(plan.input.local_shape)
        >>> result = divergence((jnp.sin(x), x * 0, x * 0 + 1), plan, 2 * jnp.pi)
        >>> bool(jnp.allclose(result, jnp.cos(x), atol=1e-6))
        True

    """
    vx, vy, vz = vector(v, plan, "divergence", from_spectrum=from_spectrum)
    lengths = sides(box_size, plan, "divergence")
    if from_spectrum:
        kx, ky, kz = _spectral(plan, lengths, vx)
        y = times_i(kx, vx) + times_i(ky, vy) + times_i(kz, vz)
        return y if to_spectrum else plan.inverse(y)
    if to_spectrum:
        return _early((vx, vy, vz), plan, lengths)
    dx = _along(_moved(vx, plan, 2, 0), plan, 0, lengths)
    dy = _along(_moved(vy, plan, 2, 1), plan, 1, lengths)
    dz = _along(vz, plan, 2, lengths)
    return _moved(_moved(dx, plan, 0, 1) + dy, plan, 1, 2) + dz


def curl(
    v: Any,
    plan: PencilFFT,
    box_size: Any,
    *,
    from_spectrum: bool = False,
    to_spectrum: bool = False,
) -> Vector:
    """The curl of a vector field on a periodic box: its own adjoint.

    Args:
        v: three blocks, as in `divergence`.
        plan: any `PencilFFT`.
        box_size: side of the box, as in `gradient`.
        from_spectrum: whether `v` are spectra.
        to_spectrum: whether to return spectra.

    Returns:
        (dvz/dy - dvy/dz, dvx/dz - dvz/dx, dvy/dx - dvx/dy), three blocks of the shape of a field,
        or of a spectrum, in the precision of `v`.

    Raises:
        ValueError: blocks that do not match their pencil, no three of them, or a box that is none.
        TypeError: complex numbers where real ones belong, or a dtype without a transform.

    Nyquist frequencies are left out as in `gradient`.

    Example:
        >>> import jax.numpy as jnp
        >>> from pfftjax import ProcessGrid
        >>> plan = PencilFFT((8, 6, 5), ProcessGrid(), real=True)
        >>> x = 2 * jnp.pi / 8 * plan.input.indices(0) + jnp.zeros(plan.input.local_shape)
        >>> cx, cy, cz = curl((x * 0, jnp.sin(x), x * 0), plan, 2 * jnp.pi)
        >>> bool(jnp.allclose(cz, jnp.cos(x), atol=1e-6)), bool(jnp.allclose(cx, 0, atol=1e-6))
        (True, True)

    """
    vx, vy, vz = vector(v, plan, "curl", from_spectrum=from_spectrum)
    lengths = sides(box_size, plan, "curl")
    if from_spectrum or to_spectrum:
        if not from_spectrum:
            vx, vy, vz = plan.forward(vx), plan.forward(vy), plan.forward(vz)
        kx, ky, kz = _spectral(plan, lengths, vx)
        cx = times_i(ky, vz) - times_i(kz, vy)
        cy = times_i(kz, vx) - times_i(kx, vz)
        cz = times_i(kx, vy) - times_i(ky, vx)
        if not to_spectrum:
            cx, cy, cz = plan.inverse(cx), plan.inverse(cy), plan.inverse(cz)
        return cx, cy, cz
    vz_in_y = _moved(vz, plan, 2, 1)
    dvz_dx = _moved(_along(_moved(vz_in_y, plan, 1, 0), plan, 0, lengths), plan, 0, 2)
    dvz_dy = _moved(_along(vz_in_y, plan, 1, lengths), plan, 1, 2)
    # Both parts of the last component go back together.
    dvy_dx = _moved(_along(_moved(vy, plan, 2, 0), plan, 0, lengths), plan, 0, 1)
    dvx_dy = _along(_moved(vx, plan, 2, 1), plan, 1, lengths)
    return (
        dvz_dy - _along(vy, plan, 2, lengths),
        _along(vx, plan, 2, lengths) - dvz_dx,
        _moved(dvy_dx - dvx_dy, plan, 1, 2),
    )


# ---- Between spectra and fields ----------------------------------------------------------------


def _spectral(plan: PencilFFT, lengths: Any, y: jax.Array) -> Vector:
    """Wavenumbers for first derivatives, which broadcast against the block of the spectrum."""
    dtype = real_dtype(y)
    kx, ky, kz = (odd_wavenumbers(plan, plan.output, a, lengths[a], dtype) for a in range(3))
    return kx, ky, kz


def _fixed(side: Any) -> Any:
    """The side of the box, or that of a box of wavenumbers 1, 2, ... where it is traced."""
    return 2 * np.pi if isinstance(side, Tracer) else side


def _scaled(y: jax.Array, side: Any) -> jax.Array:
    """What `_fixed` has left out."""
    return y * (2 * np.pi / side).astype(real_dtype(y)) if isinstance(side, Tracer) else y


def _wavenumbers(plan: PencilFFT, lengths: Any, ends: tuple[Pencil, Pencil], y: Any) -> Vector:
    """Vectors of wavenumbers: along axis 0 as in the first of the pencils, in which it is whole;
    along the others as in the second.
    """
    kx, ky, kz = (
        odd_wavenumbers(plan, ends[axis > 0], axis, _fixed(lengths[axis]), real_dtype(y)).ravel()
        for axis in range(3)
    )
    return kx, ky, kz


def _late(y: jax.Array, plan: PencilFFT, lengths: Any) -> Vector:
    """The gradient of a spectrum in real space. i k is a part of two transforms and the move
    between them: those along axis 0 and axis 1, or axes 1 and 2. Two components share the way
    until axis 1 is transformed. The third could share one step more on pencils, but no exchange:
    then it would be rounded in another way than on slabs, where a plane is one step.
    """
    before, (first, move, second), after = between_two_transforms(plan._inverse)
    y = run(before, y)
    ks = _wavenumbers(plan, lengths, (move.source, move.target), y)
    step = Fused.between(first, move.source, move.target, second, move.method, What.GRADIENT)
    assert step is not None
    parts = step.bind(y, *ks)
    dx, dy, dz = (
        _scaled(run(after, part), side) for part, side in zip(parts, lengths, strict=True)
    )
    return dx, dy, dz


def _early(v: Vector, plan: PencilFFT, lengths: Any) -> jax.Array:
    """The spectrum of the divergence of fields: `_late` backward."""
    before, (first, move, second), after = between_two_transforms(plan._forward, last=True)
    vx, vy, vz = (run(before, _scaled(x, side)) for x, side in zip(v, lengths, strict=True))
    ks = _wavenumbers(plan, lengths, (move.target, move.source), vx)
    step = Fused.between(first, move.source, move.target, second, move.method, What.DIVERGENCE)
    assert step is not None
    (y,) = step.bind(vx, vy, vz, *ks)
    return run(after, y)


# ---- From fields to fields ---------------------------------------------------------------------


def _pencil(plan: PencilFFT, axis: int) -> Pencil:
    """A pencil of real space, in which lines along the axis are whole and contiguous: those that a
    transform goes through.
    """
    split, axes = {2: ((0, 1), (0, 1, 2)), 1: ((0, 2), (0, 2, 1)), 0: ((1, 2), (1, 2, 0))}[axis]
    return Pencil(plan.shape, plan.grid, split=split, axes=axes)


def _moved(x: jax.Array, plan: PencilFFT, source: int, target: int) -> jax.Array:
    """From lines along one axis to lines along another."""
    if abs(source - target) == 2 and plan.grid.dims[1] > 1:
        return _moved(_moved(x, plan, source, 1), plan, 1, target)
    pencils = _pencil(plan, source), _pencil(plan, target)
    return transpose(x, *pencils, method=plan.method)


def _along(x: jax.Array, plan: PencilFFT, axis: int, lengths: Any) -> jax.Array:
    """The derivative along an axis, in the pencil of its lines."""
    n = plan.shape[axis]
    there, back = (
        (Kind.REAL_TO_COMPLEX, Kind.COMPLEX_TO_REAL)
        if plan.real
        else (Kind.FORWARD, Kind.BACKWARD)
    )
    index = np.arange(n // 2 + 1) if plan.real else np.fft.fftfreq(n, 1 / n)
    index = np.where(2 * np.abs(index) == n, 0, index)  # as `odd_wavenumbers`
    dtype = real_dtype(x)
    k = (jnp.asarray(index, dtype) * (2 * np.pi / lengths[axis])).astype(dtype)
    y = fft_of_lines(x, there, n)
    return fft_of_lines(times_i(k, y), back, n, scale=1 / n)

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

import functools
import operator

import jax.numpy as jnp
import numpy as np
from jax.core import Tracer
from jax.typing import ArrayLike

from pfftjax._runtime.arrays import BoxSize, Field, FieldLike, Reals
from pfftjax.fft.internal import (
    Kind,
    Plan,
    What,
    differentiating,
    fft_of_lines,
    run,
    stages,
    times_i,
    wavenumbers_along,
    wavenumbers_of,
)
from pfftjax.pencils import Pencil, transpose

from ._operands import (
    Sides,
    Vector,
    VectorLike,
    check_periodic,
    odd_wavenumbers,
    operand,
    real_dtype,
    sides,
    vector,
)


def gradient(
    x: FieldLike,
    plan: Plan,
    box_size: BoxSize,
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
        plan: any `PencilFFT`, or `PencilTransform` of the kinds "fft" and "rfft", of two axes or
            three.
        box_size: side of the box, in the length unit of choice: a number, or one for each axis.
            May be traced, and differentiated.
        from_spectrum: whether `x` is a spectrum.
        to_spectrum: whether to return spectra.

    Returns:
        The derivatives along axes 0, 1 and 2, as many blocks of the shape of a field, or of a
        spectrum, in the precision of `x`; in units of `x` per length.

    Raises:
        ValueError: a block that does not match its pencil, other kinds, or an invalid box.
        TypeError: complex numbers where real ones belong, or a dtype without a transform.

    Of a spectrum it takes 5 exchanges of a spectrum (2 on P x 1 ranks), fewer than three inverse
    transforms; of a field as many exchanges of a field.

    Example:
        >>> import jax.numpy as jnp
        >>> from pfftjax import PencilFFT, ProcessGrid
        >>> plan = PencilFFT((8, 6, 5), ProcessGrid(), real=True)
        >>> x = 2 * jnp.pi / 8 * plan.input.indices(0) + jnp.zeros(plan.input.local_shape)
        >>> fx, fy, fz = gradient(jnp.sin(x), plan, 2 * jnp.pi)
        >>> bool(jnp.allclose(fx, jnp.cos(x), atol=1e-6)), bool(jnp.allclose(fy, 0, atol=1e-6))
        (True, True)

    """
    check_periodic(plan, "gradient")
    x = operand(x, plan, "gradient", from_spectrum=from_spectrum)
    lengths = sides(box_size, plan, "gradient")
    if from_spectrum and not to_spectrum and len(lengths) == 3:
        return _late(x, plan, lengths)
    if from_spectrum or to_spectrum:
        y = x if from_spectrum else plan.forward(x)
        parts = [times_i(k, y) for k in odd_wavenumbers(plan, lengths, real_dtype(y))]
        return tuple(parts if to_spectrum else map(plan.inverse, parts))
    last, parts = len(lengths) - 1, []
    for axis in range(last, -1, -1):
        x = x if axis == last else _moved(x, plan, axis + 1, axis)
        parts.append(_moved(_along(x, plan, axis, lengths), plan, axis, last))
    return tuple(parts[::-1])


def divergence(
    v: VectorLike,
    plan: Plan,
    box_size: BoxSize,
    *,
    from_spectrum: bool = False,
    to_spectrum: bool = False,
) -> Field:
    """The divergence of a vector field on a periodic box, minus the adjoint of `gradient`.

    `v` is a block for each axis, (vx, vy, vz), or an array with the components in front: of
    fields, each ``(..., *plan.input.local_shape)``, or of spectra. The other arguments and the
    errors are those of `gradient`; too few or too many components are a ValueError, too. Nyquist
    frequencies are left out as there.

    Returns:
        A block of the shape of a field, or of a spectrum, in the precision of `v`.

    Example:
        >>> import jax.numpy as jnp
        >>> from pfftjax import PencilFFT, ProcessGrid
        >>> plan = PencilFFT((8, 6, 5), ProcessGrid(), real=True)
        >>> x = 2 * jnp.pi / 8 * plan.input.indices(0) + jnp.zeros(plan.input.local_shape)
        >>> result = divergence((jnp.sin(x), x * 0, x * 0 + 1), plan, 2 * jnp.pi)
        >>> bool(jnp.allclose(result, jnp.cos(x), atol=1e-6))
        True

    """
    check_periodic(plan, "divergence")
    parts = vector(v, plan, "divergence", from_spectrum=from_spectrum)
    lengths = sides(box_size, plan, "divergence")
    if to_spectrum and not from_spectrum and len(lengths) == 3:
        return _early(parts, plan, lengths)
    if from_spectrum or to_spectrum:
        ys = parts if from_spectrum else tuple(map(plan.forward, parts))
        ks = odd_wavenumbers(plan, lengths, real_dtype(ys[0]))
        y = functools.reduce(operator.add, map(times_i, ks, ys))
        return y if to_spectrum else plan.inverse(y)
    last = len(lengths) - 1
    slopes = [
        _along(_moved(x, plan, last, axis), plan, axis, lengths) for axis, x in enumerate(parts)
    ]
    total = slopes[0]
    for axis in range(1, last + 1):
        total = _moved(total, plan, axis - 1, axis) + slopes[axis]
    return total


def curl(
    v: VectorLike,
    plan: Plan,
    box_size: BoxSize,
    *,
    from_spectrum: bool = False,
    to_spectrum: bool = False,
) -> Vector:
    """The curl of a vector field on a periodic box: its own adjoint.

    Arguments and errors are those of `divergence`, for plans of three axes.

    Returns:
        (dvz/dy - dvy/dz, dvx/dz - dvz/dx, dvy/dx - dvx/dy), three blocks of the shape of a field,
        or of a spectrum, in the precision of `v`.

    Example:
        >>> import jax.numpy as jnp
        >>> from pfftjax import PencilFFT, ProcessGrid
        >>> plan = PencilFFT((8, 6, 5), ProcessGrid(), real=True)
        >>> x = 2 * jnp.pi / 8 * plan.input.indices(0) + jnp.zeros(plan.input.local_shape)
        >>> cx, cy, cz = curl((x * 0, jnp.sin(x), x * 0), plan, 2 * jnp.pi)
        >>> bool(jnp.allclose(cz, jnp.cos(x), atol=1e-6)), bool(jnp.allclose(cx, 0, atol=1e-6))
        (True, True)

    """
    check_periodic(plan, "curl", (3,))
    vx, vy, vz = vector(v, plan, "curl", from_spectrum=from_spectrum)
    lengths = sides(box_size, plan, "curl")
    if from_spectrum or to_spectrum:
        if not from_spectrum:
            vx, vy, vz = plan.forward(vx), plan.forward(vy), plan.forward(vz)
        kx, ky, kz = odd_wavenumbers(plan, lengths, real_dtype(vx))
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


def _fixed(side: ArrayLike) -> ArrayLike:
    """The side of the box, or that of a box of wavenumbers 1, 2, ... where it is traced."""
    return 2 * np.pi if isinstance(side, Tracer) else side


def _scaled(y: Field, side: ArrayLike) -> Field:
    """`y` times the factor that `_fixed` has left out."""
    return y * (2 * np.pi / side).astype(real_dtype(y)) if isinstance(side, Tracer) else y


def _wavenumbers(
    plan: Plan, lengths: Sides, ends: tuple[Pencil, Pencil], y: Field
) -> tuple[Reals, ...]:
    """Vectors of wavenumbers: along axis 0 as in the first of the pencils, in which it is whole;
    along the others as in the second.
    """
    return tuple(
        wavenumbers_along(
            plan, ends[axis > 0], axis, _fixed(side), real_dtype(y), odd=True
        ).ravel()
        for axis, side in enumerate(lengths)
    )


def _late(y: Field, plan: Plan, lengths: Sides) -> Vector:
    """The gradient of a spectrum in real space. i k is a part of two transforms and the move
    between them: those along axis 0 and axis 1, or axes 1 and 2. Two components share the way
    until axis 1 is transformed. The third could share one step more on pencils, but no exchange:
    then it would be rounded in another way than on slabs, where a plane is one step.
    """
    way = differentiating(plan, What.GRADIENT)
    y = run(way.before, y)
    parts = way.step.bind(y, *_wavenumbers(plan, lengths, (way.lines, way.others), y))
    return tuple(
        _scaled(run(way.after, part), side) for part, side in zip(parts, lengths, strict=True)
    )


def _early(v: Vector, plan: Plan, lengths: Sides) -> Field:
    """The spectrum of the divergence of fields: `_late` backward."""
    way = differentiating(plan, What.DIVERGENCE)
    xs = [run(way.before, _scaled(x, side)) for x, side in zip(v, lengths, strict=True)]
    (y,) = way.step.bind(*xs, *_wavenumbers(plan, lengths, (way.lines, way.others), xs[0]))
    return run(way.after, y)


# ---- From fields to fields ---------------------------------------------------------------------


def _moved(x: Field, plan: Plan, source: int, target: int) -> Field:
    """`x` with lines along one axis redistributed as lines along another."""
    if abs(source - target) == 2 and plan.grid.dims[1] > 1:
        return _moved(_moved(x, plan, source, 1), plan, 1, target)
    by_axis = stages(plan.input)[::-1]
    return transpose(x, by_axis[source], by_axis[target], method=plan.method)


def _along(x: Field, plan: Plan, axis: int, lengths: Sides) -> Field:
    """The derivative along an axis, in the pencil of its lines."""
    n, is_real = plan.shape[axis], plan.kinds[-1] == "rfft"
    there, back = (
        (Kind.REAL_TO_COMPLEX, Kind.COMPLEX_TO_REAL) if is_real else (Kind.FORWARD, Kind.BACKWARD)
    )
    index = jnp.arange(n // 2 + 1 if is_real else n)
    k = wavenumbers_of(index, n, lengths[axis], real_dtype(x), is_half=is_real, odd=True)
    y = fft_of_lines(x, there, n)
    return fft_of_lines(times_i(k, y), back, n, scale=1 / n)

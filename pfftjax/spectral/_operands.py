"""The operands of all operators, checked, and products with them."""

import functools
import operator
from collections.abc import Sequence, Sized
from typing import TypeAlias, cast

import jax
import jax.numpy as jnp
import numpy as np
from jax.core import Tracer
from jax.typing import ArrayLike, DTypeLike

from pfftjax._runtime.arguments import where
from pfftjax._runtime.arrays import BoxSize, Field, FieldLike, Number, Reals
from pfftjax._runtime.rematerialization import select
from pfftjax.fft.internal import Plan, as_complex, sides_of, wavenumbers_along
from pfftjax.fft.internal import operand as block_of

Vector: TypeAlias = tuple[Field, ...]
VectorLike: TypeAlias = FieldLike | Sequence[FieldLike]
Sides: TypeAlias = tuple[Number, ...]
_NUMBERS = {2: "two", 3: "three"}
_FOURIER = {"fft", "rfft"}


def here(operation: str, plan: object) -> str:
    """How an error begins."""
    if not isinstance(plan, Plan):
        raise TypeError(
            f"{operation}: the plan must be a pfftjax.PencilFFT or a PencilTransform, got "
            f"{type(plan).__name__}; the order is (array, plan, box_size)"
        )
    return where(operation, plan.grid.communicator)


def check_periodic(plan: Plan, operation: str, axes: tuple[int, ...] = (2, 3)) -> None:
    """Raise unless all axes are periodic, and as many as the operation has a meaning for."""
    begin = here(operation, plan)
    if not set(plan.kinds) <= _FOURIER or len(plan.shape) not in axes:
        several = " or ".join(_NUMBERS[n] for n in axes)
        raise ValueError(
            f"{begin}: the plan must have {several} axes of the kinds fft and rfft, got "
            f"{plan.kinds}"
        )


def operand(
    x: ArrayLike, plan: Plan, operation: str, *, from_spectrum: bool, has_choice: bool = True
) -> Field:
    """A block of a field, or of a spectrum, of a dtype that the plan transforms; complex where the
    plan makes it so. An operation that takes either has the choice.
    """
    what = "spectrum" if from_spectrum else "field"
    otherwise = "; pass plan.inverse of a spectrum"
    if has_choice:
        otherwise = f"; for the other one pass from_spectrum={not from_spectrum}"
    x = block_of(
        x,
        plan,
        here(operation, plan),
        is_spectrum=from_spectrum,
        what=f"the block of the {what}",
        name=f"the {what}",
        otherwise=otherwise,
    )
    is_real = not set(plan.kinds) & _FOURIER or (plan.kinds[-1] == "rfft" and not from_spectrum)
    return x if is_real else as_complex(x)


def vector(v: VectorLike, plan: Plan, operation: str, *, from_spectrum: bool) -> Vector:
    """Blocks of one shape and dtype, one for each axis."""
    begin, axes = here(operation, plan), len(plan.shape)
    several = v if isinstance(v, Sized) else ()
    if len(several) != axes:
        got = f"{len(several)} of them" if isinstance(v, Sized) else type(v).__name__
        raise ValueError(
            f"{begin}: a vector has {_NUMBERS[axes]} components, a tuple "
            f"({', '.join(('vx', 'vy', 'vz')[:axes])}) or an array with the components in front; "
            f"got {got}"
        )
    blocks = [
        operand(x, plan, operation, from_spectrum=from_spectrum)
        for x in cast(Sequence[FieldLike], v)
    ]
    if len({x.shape for x in blocks}) > 1:
        raise ValueError(
            f"{begin}: the components have shapes {', '.join(str(x.shape) for x in blocks)}; "
            "give them the same batch dimensions"
        )
    return tuple(x.astype(jnp.result_type(*blocks)) for x in blocks)


def sides(box_size: BoxSize, plan: Plan, operation: str) -> Sides:
    """The side of the box along each axis."""
    return sides_of(box_size, len(plan.shape), here(operation, plan))


def real_dtype(x: Field) -> np.dtype:
    """The dtype of real and imaginary parts."""
    return jnp.finfo(x.dtype).dtype


def times_real(factor: Reals, y: Field) -> Field:
    """A real factor times a spectrum, without the products by the factor's imaginary part."""
    if not jnp.iscomplexobj(y):  # between walls
        return factor * y
    return jax.lax.complex(factor * y.real, factor * y.imag)


def odd_wavenumbers(plan: Plan, lengths: Sides, dtype: np.dtype) -> tuple[Reals, ...]:
    """Wavenumbers of first derivatives, which broadcast against the block of the spectrum: zero at
    Nyquist frequencies, which have no sign.
    """
    return tuple(
        wavenumbers_along(plan, plan.output, axis, side, dtype, odd=True)
        for axis, side in enumerate(lengths)
    )


def check_squares(box_size: BoxSize, plan: Plan, dtype: DTypeLike, operation: str) -> None:
    """Raise if the square of a wavenumber is zero or infinite in that precision: k^2 of a box in
    centimetres is, in float32. Of a box that is traced nothing is known.
    """
    limits = jnp.finfo(dtype)
    for side, n in zip(sides(box_size, plan, operation), plan.shape, strict=True):
        if isinstance(side, Tracer) or n == 1:
            continue
        k = np.pi / float(side)
        if k**2 < float(limits.tiny) or 3 * (n * k) ** 2 > float(limits.max):
            raise ValueError(
                f"{here(operation, plan)}: squares of the wavenumbers of a box of side {side} "
                f"are no numbers of {jnp.dtype(dtype)}; choose another unit of length, in which "
                "the box is between 1e-10 and 1e10, or float64"
            )


def square(*k: Reals) -> Reals:
    """The squared length of a vector of wavenumbers."""
    return functools.reduce(operator.add, (x**2 for x in k))


def inverse_square(*k: Reals) -> Reals:
    """1 / k^2, and 0 at k = 0, where no division by zero is made in any derivative either."""
    k2 = square(*k)
    zero = k2 == 0
    return select(zero, 0, 1 / select(zero, 1, k2))

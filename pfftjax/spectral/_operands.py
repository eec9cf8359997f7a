"""What operators are given, checked; and what all of them do with it."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from pfftjax._runtime.primitive import where
from pfftjax.fft import PencilFFT
from pfftjax.fft.internal import sides_of
from pfftjax.pencils import Pencil

Vector = tuple[jax.Array, jax.Array, jax.Array]


def here(operation: str, plan: PencilFFT) -> str:
    """How an error begins."""
    if not isinstance(plan, PencilFFT):
        raise TypeError(
            f"{operation}: the plan must be a pfftjax.PencilFFT, got {type(plan).__name__}; the "
            "order is (array, plan, box_size)"
        )
    return where(operation, plan.grid._comm)


def operand(x: Any, plan: PencilFFT, operation: str, *, from_spectrum: bool) -> jax.Array:
    """A block of a field, or of a spectrum, of a dtype that the plan transforms."""
    begin = here(operation, plan)
    x = jnp.asarray(x)
    pencil = plan.output if from_spectrum else plan.input
    if x.ndim < 3 or x.shape[-3:] != pencil.local_shape:
        what, other, remedy = (
            ("spectrum", plan.input, "from_spectrum=False")
            if from_spectrum
            else ("field", plan.output, "from_spectrum=True")
        )
        hint = f"; for the other one pass {remedy}" if x.shape[-3:] == other.local_shape else ""
        raise ValueError(
            f"{begin}: the block of the {what} has shape {x.shape}, but this rank holds "
            f"{pencil.local_shape} of {pencil.global_shape} (axes {pencil.axes} on {plan.grid}); "
            f"leading batch dimensions may precede it{hint}"
        )
    if jnp.issubdtype(x.dtype, jnp.integer) or x.dtype == bool:
        x = x.astype(float)
    if x.dtype not in ("float32", "float64", "complex64", "complex128"):
        raise TypeError(f"{begin}: no transform of {x.dtype}; cast to float32 or float64 first")
    if plan.real and not from_spectrum:
        if jnp.iscomplexobj(x):
            raise TypeError(
                f"{begin}: the field is {x.dtype}, but the plan is for real arrays; pass x.real, "
                "or make the plan with real=False"
            )
    elif not jnp.iscomplexobj(x):
        x = jax.lax.complex(x, jnp.zeros_like(x))
    return x.astype(x.dtype)  # without a weak type


def vector(v: Any, plan: PencilFFT, operation: str, *, from_spectrum: bool) -> Vector:
    """Three blocks of one shape and dtype."""
    begin = here(operation, plan)
    if not hasattr(v, "__len__") or len(v) != 3:
        got = f"{len(v)} of them" if hasattr(v, "__len__") else type(v).__name__
        raise ValueError(
            f"{begin}: a vector has three components, a tuple (vx, vy, vz) or an array with the "
            f"components in front; got {got}"
        )
    blocks = [operand(x, plan, operation, from_spectrum=from_spectrum) for x in v]
    if len({x.shape for x in blocks}) > 1:
        raise ValueError(
            f"{begin}: the components have shapes {', '.join(str(x.shape) for x in blocks)}; "
            "give them the same batch dimensions"
        )
    vx, vy, vz = (x.astype(jnp.result_type(*blocks)) for x in blocks)
    return vx, vy, vz


def sides(box_size: Any, plan: PencilFFT, operation: str) -> tuple[Any, Any, Any]:
    """The side of the box along each axis."""
    x, y, z = sides_of(box_size, 3, here(operation, plan))
    return x, y, z


def real_dtype(x: jax.Array) -> np.dtype:
    """The dtype of real and imaginary parts."""
    return jnp.finfo(x.dtype).dtype


def times_real(factor: jax.Array, y: jax.Array) -> jax.Array:
    """A real factor times a spectrum, without the products by the factor's imaginary part."""
    return jax.lax.complex(factor * y.real, factor * y.imag)


def odd_wavenumbers(
    plan: PencilFFT, pencil: Pencil, axis: int, side: Any, dtype: np.dtype
) -> jax.Array:
    """Wavenumbers along an axis, in any pencil of the spectrum, for derivatives of odd order.

    Zero at the Nyquist frequency n / 2 of an even axis: its sign is not known, and the wave of
    least slope through the points has derivative zero on all of them.
    """
    n = plan.shape[axis]
    index = pencil.indices(axis)
    signed = (
        index if plan.real and axis == 2 else jnp.where(index < (n + 1) // 2, index, index - n)
    )
    if n % 2 == 0:
        signed = jnp.where(index == n // 2, 0, signed)
    return (signed.astype(dtype) * (2 * np.pi / side)).astype(dtype)

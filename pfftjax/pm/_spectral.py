"""Kernels in Fourier space."""

from typing import Any

import jax
import jax.numpy as jnp

from pfftjax.fft import PencilFFT


def real_plan(plan: PencilFFT, operation: str) -> PencilFFT:
    """The plan, if it is for real fields with numpy's factors, whose kernels these are."""
    if not isinstance(plan, PencilFFT) or not plan.real or plan.norm != "backward":
        raise ValueError(
            f"{operation}: the plan must be a PencilFFT(shape, grid, real=True) with norm "
            f"'backward', got {plan!r}"
        )
    return plan


def gradient_wavenumbers(plan: PencilFFT, box_size: Any, dtype: Any) -> list[jax.Array]:
    """Wavenumbers for first derivatives: zero at the Nyquist frequency, which has no sign."""
    result = []
    for axis, k in enumerate(plan.wavenumbers(box_size, dtype)):
        n = plan.shape[axis]
        result.append(jnp.where(2 * plan.output.indices(axis) == n, 0, k) if n % 2 == 0 else k)
    return result


def inverse_k2(plan: PencilFFT, box_size: Any, dtype: Any) -> jax.Array:
    """1 / k^2, and 0 at k = 0, where no division by zero is made in any derivative either."""
    kx, ky, kz = plan.wavenumbers(box_size, dtype)
    k2 = kx**2 + ky**2 + kz**2
    zero = k2 == 0
    return jnp.where(zero, 0, 1 / jnp.where(zero, 1, k2))


def sides(box_size: Any) -> tuple[Any, Any, Any]:
    """The side of the box along each axis."""
    several = isinstance(box_size, tuple | list) or getattr(box_size, "ndim", 0) > 0
    lengths = tuple(box_size) if several else (box_size,) * 3
    if len(lengths) != 3 or any(isinstance(x, int | float) and not x > 0 for x in lengths):
        raise ValueError(
            f"box_size must be a positive length, or one for each of three axes, got {box_size!r}"
        )
    x, y, z = lengths
    return x, y, z

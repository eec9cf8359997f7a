"""Kernels in Fourier space."""

from typing import Any

import jax
import jax.numpy as jnp

from pfftjax.fft import PencilFFT
from pfftjax.spectral.internal import here, operand


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


def field(x: Any, plan: PencilFFT, operation: str) -> jax.Array:
    """A block of one real field, of a dtype that has transforms: integers become such a one."""
    x = operand(x, plan, operation, from_spectrum=False)
    if x.ndim != 3:
        raise ValueError(
            f"{here(operation, plan)}: one field at a time, got a block of shape {x.shape}; use "
            "jax.vmap over a batch"
        )
    return x

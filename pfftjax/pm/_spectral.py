"""Kernels in Fourier space."""

from typing import Any

import jax

from pfftjax.fft.internal import Plan
from pfftjax.spectral.internal import here, inverse_square, operand


def real_plan(plan: Any, operation: str) -> Plan:
    """The plan, if it is for real fields with numpy's factors, whose kernels these are."""
    is_plan = isinstance(plan, Plan) and plan.kinds == ("fft", "fft", "rfft")
    if not is_plan or plan.norm != "backward":
        raise ValueError(
            f"{operation}: the plan must be a PencilFFT(shape, grid, real=True) with norm "
            f"'backward', got {plan!r}"
        )
    return plan


def inverse_k2(plan: Plan, box_size: Any, dtype: Any) -> jax.Array:
    """1 / k^2, and 0 at k = 0."""
    return inverse_square(*plan.wavenumbers(box_size, dtype))


def field(x: Any, plan: Plan, operation: str) -> jax.Array:
    """A block of one real field, of a dtype that has transforms: integers become such a one."""
    x = operand(x, plan, operation, from_spectrum=False)
    if x.ndim != 3:
        raise ValueError(
            f"{here(operation, plan)}: one field at a time, got a block of shape {x.shape}; use "
            "jax.vmap over a batch"
        )
    return x

"""Kernels in Fourier space."""

import jax
from jax.typing import DTypeLike

from pfftjax._runtime.arrays import BoxSize, RealBlock, RealBlockLike
from pfftjax.fft.internal import Plan
from pfftjax.spectral.internal import check_squares, here, inverse_square, operand


def real_plan(plan: object, operation: str) -> Plan:
    """The plan, if it is for real fields with numpy's factors, whose kernels these are."""
    kinds = ("fft", "fft", "rfft")
    if not isinstance(plan, Plan) or plan.kinds != kinds or plan.norm != "backward":
        raise ValueError(
            f"{operation}: the plan must be a PencilFFT(shape, grid, real=True) with norm "
            f"'backward', got {plan!r}"
        )
    return plan


def inverse_k2(plan: Plan, box_size: BoxSize, dtype: DTypeLike) -> jax.Array:
    """1 / k^2, and 0 at k = 0."""
    check_squares(box_size, plan, dtype, "inverse_laplacian")
    return inverse_square(*plan.wavenumbers(box_size, dtype))


def fields(x: RealBlockLike, plan: Plan, operation: str) -> RealBlock:
    """`x`, the block of real fields, in a dtype that has transforms."""
    return operand(x, plan, operation, from_spectrum=False, has_choice=False)


def field(x: RealBlockLike, plan: Plan, operation: str) -> RealBlock:
    """`x`, the block of one real field, in a dtype that has transforms."""
    x = fields(x, plan, operation)
    if x.ndim != 3:
        raise ValueError(
            f"{here(operation, plan)}: one field at a time, got a block of shape {x.shape}; use "
            "jax.vmap over a batch"
        )
    return x

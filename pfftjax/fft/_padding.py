"""More or fewer modes of the same field: interpolation, and products without aliases."""

import dataclasses
from collections.abc import Sequence

import jax
import jax.numpy as jnp

from pfftjax._runtime.arguments import static_ints, where
from pfftjax._runtime.arrays import Field, FieldLike
from pfftjax.pencils import Pencil, transpose

from ._plan import Plan, operand
from ._resize import Resize
from ._steps import forward_steps, inverse_steps, run, spectral_shape
from ._trigonometric import NO_SERIES_IF_ORTHOGONAL

# Kinds closed under multiplication; sines and types 3 and 4 are not.
_CLOSED = ("fft", "rfft", "dct1", "dct2")


def pad_spectrum(y: FieldLike, plan: Plan, padded_plan: Plan) -> Field:
    """The spectrum of the same field on a finer mesh: new modes are zero.

    ``padded_plan.inverse`` of it interpolates ``plan.inverse(y)`` trigonometrically; points that
    both meshes have keep their values. Factors of the norm are taken care of. A coefficient at a
    Nyquist frequency n / 2 stands for both of its signs and is shared out between them, half each,
    so that a real field stays real.

    On its way an axis that is split between ranks is brought together and split again, which is
    two exchanges for each split axis whose size changes. Where an inverse transform is next,
    `padded_inverse` needs none of them.

    Args:
        y: this rank's block of the spectrum, of shape ``(..., *plan.output.local_shape)``.
        plan: `PencilFFT` or `PencilTransform` that it belongs to.
        padded_plan: the same with a shape that is nowhere smaller.

    Returns:
        Array of shape ``(..., *padded_plan.output.local_shape)``.

    Raises:
        ValueError: a block that does not match its plan, plans that differ in more than their
            shape, a shape that is smaller somewhere, or "dct1", "dct3" or "dst3" with norm
            "ortho", which weight the values on the walls.
        TypeError: arguments that are no plans, or a dtype without a transform.

    Its inverse is `truncate_spectrum`; its transpose is that too, up to real weights: with
    r = new points / old points, to the power 2, 1 or 0 for norm "backward", "ortho" or "forward",
    and 1/2 for each coordinate of a coefficient that is a Nyquist frequency of `plan` (1/4 where
    the axis has the kind "rfft").

    Example:
        >>> from pfftjax import PencilFFT, ProcessGrid
        >>> coarse, fine = (PencilFFT((n, n, n), ProcessGrid(), real=True) for n in (4, 6))
        >>> x = jnp.ones(coarse.input.local_shape)
        >>> y = pad_spectrum(coarse.forward(x), coarse, fine)
        >>> bool(jnp.allclose(fine.inverse(y), 1.0))
        True

    """
    _check(plan, padded_plan, "pad_spectrum")
    return _resized(y, plan, padded_plan, "pad_spectrum")


def truncate_spectrum(y: FieldLike, plan: Plan, smaller_plan: Plan) -> Field:
    """The spectrum of a field without its highest modes, on a coarser mesh.

    Modes beyond the Nyquist frequencies of the coarser mesh are left out. Those of both signs of
    a Nyquist frequency m / 2, m even, look the same on it and are added up, so that truncating
    undoes padding. For "rfft" there is one of them, which is doubled: ``smaller_plan.inverse``
    gets the real field that it should have, because it ignores what is not Hermitian. Factors of
    the norm are taken care of: the modes that are left are those of the same field.

    Args:
        y: this rank's block of the spectrum, of shape ``(..., *plan.output.local_shape)``.
        plan: `PencilFFT` or `PencilTransform` that it belongs to.
        smaller_plan: the same with a shape that is nowhere larger.

    Returns:
        Array of shape ``(..., *smaller_plan.output.local_shape)``.

    Costs, errors and transpose are those of `pad_spectrum`; `truncated_forward` does it without
    exchanges of its own.

    Example:
        >>> from pfftjax import PencilFFT, ProcessGrid
        >>> coarse, fine = (PencilFFT((n, n, n), ProcessGrid(), real=True) for n in (4, 6))
        >>> y = fine.forward(jnp.ones(fine.input.local_shape))
        >>> bool(jnp.allclose(coarse.inverse(truncate_spectrum(y, fine, coarse)), 1.0))
        True

    """
    _check(smaller_plan, plan, "truncate_spectrum")
    return _resized(y, plan, smaller_plan, "truncate_spectrum")


def padded_inverse(y: FieldLike, plan: Plan, padded_plan: Plan) -> Field:
    """``padded_plan.inverse(pad_spectrum(y, plan, padded_plan))`` with the exchanges of one
    inverse transform.

    Each axis is padded when it is whole for its transform, so that zeros are neither exchanged
    nor, along the axes that come later, transformed. Exchanges have the method and the
    precision of `plan`.

    Arguments and errors are those of `pad_spectrum`.

    Returns:
        Array in real space, of shape ``(..., *padded_plan.input.local_shape)``.

    Example:
        >>> from pfftjax import PencilFFT, ProcessGrid
        >>> coarse, fine = (PencilFFT((n, n, n), ProcessGrid()) for n in (4, 6))
        >>> x = jnp.ones(coarse.input.local_shape)
        >>> bool(jnp.allclose(padded_inverse(coarse.forward(x), coarse, fine), 1.0))
        True

    """
    _check(plan, padded_plan, "padded_inverse")
    y = operand(y, plan, where("padded_inverse", plan.grid.communicator), is_spectrum=True)
    return run(inverse_steps(plan, padded_plan.shape), y)


def truncated_forward(x: FieldLike, padded_plan: Plan, plan: Plan) -> Field:
    """``truncate_spectrum(padded_plan.forward(x), padded_plan, plan)`` with the exchanges of one
    forward transform.

    Each axis is truncated when it has been transformed, so that what is left out is not exchanged.
    Exchanges have the method and the precision of `plan`.
    Along an axis with "rfft" the coefficient at a Nyquist frequency is that of the truncated real
    field, Hermitian, where `truncate_spectrum` leaves a part that the inverse ignores.

    Args:
        x: this rank's block in real space, of shape ``(..., *padded_plan.input.local_shape)``.
        padded_plan: `PencilFFT` or `PencilTransform` that it belongs to.
        plan: the same with a shape that is nowhere larger.

    Returns:
        This rank's block of the spectrum, of shape ``(..., *plan.output.local_shape)``.

    Errors are those of `truncate_spectrum`, and a TypeError for complex numbers where real ones
    belong.

    Example:
        >>> from pfftjax import PencilFFT, ProcessGrid
        >>> coarse, fine = (PencilFFT((n, n, n), ProcessGrid()) for n in (4, 6))
        >>> y = truncated_forward(jnp.ones(fine.input.local_shape), fine, coarse)
        >>> bool(jnp.allclose(coarse.inverse(y), 1.0))
        True

    """
    _check(plan, padded_plan, "truncated_forward")
    here = where("truncated_forward", plan.grid.communicator)
    x = operand(x, padded_plan, here, is_spectrum=False)
    return run(forward_steps(plan, padded_plan.shape), x)


def dealiased_product(
    plan: Plan, a: FieldLike, b: FieldLike, *, padded_shape: Sequence[int] | None = None
) -> Field:
    """The spectrum of the product of two fields, without aliases: the 3/2 rule.

    On the mesh of `plan` the modes of a product beyond its Nyquist frequencies would appear as
    others. The product is formed on a mesh with 3/2 as many points along each axis (Orszag 1971),
    where they do not reach those that are kept: `padded_inverse` of both, the product, and
    `truncated_forward`. Of an even n, the product of two modes at the Nyquist frequency is the one
    that appears again, at the Nyquist frequency: zero these, or take more points.

    Args:
        plan: `PencilFFT` or `PencilTransform` of both spectra. Its kinds must be such that
            products are of the same kind: "fft", "rfft", "dct1", "dct2".
        a: this rank's block of a spectrum, of shape ``(..., *plan.output.local_shape)``.
        b: the same of the other. Leading axes broadcast. With as many as those of `a`, both travel
            in the same messages; the square of a field (`b` is `a`) is one inverse transform.
        padded_shape: points of the mesh that the product is formed on; by default 3 n / 2, rounded
            up, along each axis, and the one point of an axis that has no more.

    Returns:
        This rank's block of the spectrum of the product, such that ``plan.inverse`` of it is the
        product of the fields without the modes that the mesh does not have.

    Raises:
        ValueError: blocks, kinds or a shape that do not fit.
        TypeError: a plan that is none, or a dtype without a transform.

    Example:
        >>> from pfftjax import PencilFFT, ProcessGrid
        >>> plan = PencilFFT((8, 8, 8), ProcessGrid(), real=True)
        >>> j = jnp.broadcast_to(plan.input.indices(2), plan.input.local_shape)
        >>> wave = plan.forward(jnp.cos(2 * jnp.pi * 3 * j / 8))
        >>> square = plan.inverse(dealiased_product(plan, wave, wave))   # 1/2 + cos(6 ...) / 2
        >>> bool(jnp.allclose(square, 0.5, atol=1e-5))
        True

    """
    _check(plan, plan, "dealiased_product")
    here = where("dealiased_product", plan.grid.communicator)
    kinds = plan.kinds
    if not set(kinds) <= set(_CLOSED):
        raise ValueError(
            f"{here}: a product of two fields of kinds {kinds} is not one of them; use "
            "padded_inverse and truncated_forward, with a plan of the kinds of the product"
        )
    if padded_shape is None:
        padded_shape = tuple(-(-3 * n // 2) if n > 1 else 1 for n in plan.shape)
    shape = static_ints(padded_shape, "padded_shape", "dealiased_product", plan.grid.communicator)
    if len(shape) != len(plan.shape) or any(m < n for m, n in zip(shape, plan.shape, strict=True)):
        raise ValueError(
            f"{here}: padded_shape must be nowhere smaller than {plan.shape}, got {shape}"
        )
    inverse = inverse_steps(plan, shape)
    same = a is b
    a, b = (operand(y, plan, here, is_spectrum=True) for y in (a, b))
    if same:
        fields = run(inverse, a)
        product = fields * fields
    elif a.shape == b.shape and a.dtype == b.dtype:
        # `_trigonometric._part` says why this is not fields[0].
        fields = run(inverse, jnp.stack([a, b]))
        first, second = (jax.lax.index_in_dim(fields, i, keepdims=False) for i in (0, 1))
        product = first * second
    else:
        product = run(inverse, a) * run(inverse, b)
    return run(forward_steps(plan, shape), product)


def _check(plan: Plan, finer: Plan, operation: str) -> None:
    """Raise unless the plans differ in their shape only, and `finer` has nowhere fewer points."""
    for each in (plan, finer):
        if not isinstance(each, Plan):
            raise TypeError(
                f"{operation}: a plan is a PencilFFT or a PencilTransform, got "
                f"{type(each).__name__}"
            )
    here = where(operation, plan.grid.communicator)
    alike = [(p.grid, p.kinds, p.norm, p.layout) for p in (plan, finer)]
    if alike[0] != alike[1]:
        raise ValueError(
            f"{here}: the plans may differ in their shape only (same grid, kinds, norm and "
            f"layout), got {plan} and {finer}"
        )
    check_series(plan, here)
    if any(n > m for n, m in zip(plan.shape, finer.shape, strict=True)):
        raise ValueError(
            f"{here}: the plan with more points has the shape {finer.shape}, which is smaller "
            f"than {plan.shape} somewhere; the order of the arguments is the way of the data"
        )


def check_series(plan: Plan, here: str) -> None:
    """Raise unless coefficients of `plan` are those of a function of space."""
    weighted = sorted(set(plan.kinds) & set(NO_SERIES_IF_ORTHOGONAL))
    if plan.norm == "ortho" and weighted:
        raise ValueError(
            f"{here}: with norm='ortho', {weighted[0]} multiplies the values on the walls by "
            "sqrt(2), so that the spectrum is not that of a function at other points; make the "
            "plans with norm='backward'"
        )


def _resized(y: FieldLike, plan: Plan, target: Plan, operation: str) -> Field:
    """The coefficients of `plan` as those of `target`."""
    y = operand(y, plan, where(operation, plan.grid.communicator), is_spectrum=True)
    kinds, pencil = plan.kinds, plan.output
    sizes = list(plan.shape)
    changing = [axis for axis, n in enumerate(plan.shape) if n != target.shape[axis]]
    # The axes of which every rank has all are cut before others are exchanged, and padded after.
    growing = any(target.shape[axis] > plan.shape[axis] for axis in changing)
    changing.sort(key=lambda axis: (_is_split(pencil, axis) != growing, axis))
    for axis in changing:
        whole = _gathered_along(pencil, axis)
        if whole != pencil:
            y = transpose(y, pencil, whole, method=plan.method)
        dimension = whole.axes.index(axis) - len(whole.axes)
        n, m = sizes[axis], target.shape[axis]
        y = Resize(kinds[axis], n, m, plan.norm, dimension)(y)
        sizes[axis] = m
        shape = spectral_shape(sizes, kinds)
        after, pencil = (dataclasses.replace(p, global_shape=shape) for p in (whole, pencil))
        if after != pencil:
            y = transpose(y, after, pencil, method=plan.method)
    return y


def _is_split(pencil: Pencil, axis: int) -> bool:
    return axis in pencil.split and pencil.grid.dims[pencil.split.index(axis)] > 1


def _gathered_along(pencil: Pencil, axis: int) -> Pencil:
    """The pencil, or one in which `axis` is whole on every rank: it changes places with an axis
    that was.
    """
    if not _is_split(pencil, axis):
        return pencil
    free = next(other for other in pencil.axes if not _is_split(pencil, other))
    return pencil.swapped(axis, free)

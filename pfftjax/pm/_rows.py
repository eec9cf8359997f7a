"""Rows of several arrays to other ranks and back: one message for each pair of ranks.

Both ways are linear in the rows, and each is the other's adjoint.
"""

import functools
import math
from collections.abc import Callable, Sequence
from typing import cast

import jax
import jax.numpy as jnp
import numpy as np
from jax.core import ShapedArray
from jax.extend.core import Primitive
from jax.interpreters import ad, batching, mlir
from jax.typing import ArrayLike

from pfftjax._runtime.primitive import communicating
from pfftjax._runtime.rules import (
    Axes,
    Operands,
    Primal,
    Tangent,
    Tangents,
    batch_in_front,
    zero_tangent,
)
from pfftjax.collectives.internal import alltoallv_p, rows_axis

# The first operands say which way the rows go: their order, and how many go to each rank and come
# from each. Arrays follow.
_WAY = 3


def _results(*operands: ShapedArray, capacity: int, **_: object) -> list[ShapedArray]:
    axis = rows_axis(operands[_WAY - 1])
    return [
        x.update(shape=(*x.shape[:axis], capacity, *x.shape[axis + 1 :]), weak_type=False)
        for x in operands[_WAY:]
    ]


def _agreement(*operands: ShapedArray, **_: object) -> str:
    axis = rows_axis(operands[_WAY - 1])
    batch = f" in a batch of {operands[0].shape[0]}" if axis else ""
    widths = (math.prod(x.shape[axis + 1 :]) for x in operands[_WAY:])
    names = (np.dtype(x.dtype).name for x in operands[_WAY:])
    rows = (f"{name} rows of {width}" for name, width in zip(names, widths, strict=True))
    return f"{' and '.join(rows)} elements{batch}"


def _in_place(ctx: mlir.LoweringRuleContext, *_: mlir.ir.Value, **__: object) -> dict[int, int]:
    """Where arrays keep their number of rows, those that stay on their rank are not touched."""
    pairs = zip(ctx.avals_in[_WAY:], ctx.avals_out, strict=True)
    return {
        _WAY + i: i
        for i, (x, y) in enumerate(pairs)
        if cast(ShapedArray, x).shape == cast(ShapedArray, y).shape
    }


# ---- On GPUs -----------------------------------------------------------------------------------

# XLA brings the rows into order and a transport moves them. The handlers for CPUs would take all
# rows to the host, most of them only to come back. Each array goes by itself: side by side in one
# message they would need 19 bytes more for each particle.


def _one_by_one(move: Callable[..., jax.Array]) -> Callable[..., list[jax.Array]]:
    """`move`, of one array, for several."""

    def moved(*operands: jax.Array, **params: object) -> list[jax.Array]:
        way, xs = operands[:_WAY], operands[_WAY:]
        if rows_axis(way[-1]):
            return jax.vmap(functools.partial(moved, **params))(*operands)
        return [move(x, *way, **params) for x in xs]

    return moved


def _sorted_and_moved(
    x: jax.Array, order: jax.Array, to: jax.Array, from_: jax.Array, **params: object
) -> jax.Array:
    x = x.at[order].get(mode="clip", unique_indices=True, wrap_negative_indices=False)
    return alltoallv_p.bind(x, to, from_, **params)


def _returned_and_placed(
    y: jax.Array, order: jax.Array, to: jax.Array, from_: jax.Array, **params: object
) -> jax.Array:
    x = alltoallv_p.bind(y, from_, to, **params)
    places = jnp.zeros_like(x).at[order]
    return places.set(x, mode="drop", unique_indices=True, wrap_negative_indices=False)


# ---- The two ways ------------------------------------------------------------------------------


def _moving(name: str, on_gpus: Callable[..., jax.Array]) -> Primitive:
    return communicating(
        name,
        result=_results,
        agreement=_agreement,
        multiple_results=True,
        in_place=_in_place,
        on_gpus=_one_by_one(on_gpus),
    )


# order, rows to each rank, rows from each rank, then arrays (rows, ...) -> arrays (capacity, ...),
# of which the first rows are used, the same ones in all arrays. With a batch in front of all of
# these, each member goes its own way, in the same messages.
move_rows_p = _moving("move_rows", _sorted_and_moved)
# The way back takes what has arrived, and its capacity is the number of rows of what was sent.
return_rows_p = _moving("return_rows", _returned_and_placed)


def _linear_in_rows(primitive: Primitive, back: Primitive) -> None:
    """Give a primitive its batching rule and its derivatives; `back` is its adjoint."""

    def jvp(
        primals: Sequence[ArrayLike], tangents: Tangents, **params: object
    ) -> tuple[list[jax.Array], list[Tangent]]:
        ys = primitive.bind(*primals, **params)
        dots: list[Tangent] = [zero_tangent(y) for y in ys]
        moving = [i for i in range(len(ys)) if not isinstance(tangents[_WAY + i], ad.Zero)]
        if moving:
            theirs = (tangents[_WAY + i] for i in moving)
            moved = primitive.bind(*primals[:_WAY], *theirs, **params)
            for i, dot in zip(moving, moved, strict=True):
                dots[i] = dot
        return ys, dots

    def transpose(
        cotangents: Sequence[Tangent], *operands: Primal, **params: object
    ) -> list[jax.Array | None]:
        # Also cotangents that are known to be zero on this rank: the others wait for them.
        wanted = [i for i, x in enumerate(operands) if ad.is_undefined_primal(x)]
        known = (ad.instantiate_zeros(cotangents[i - _WAY]) for i in wanted)
        way = operands[:_WAY]
        sent = cast(ad.UndefinedPrimal, operands[wanted[0]]).aval
        params["capacity"] = sent.shape[rows_axis(cast(jax.Array, way[-1]))]
        found: list[jax.Array | None] = [None] * len(operands)
        for i, x in zip(wanted, back.bind(*way, *known, **params), strict=True):
            found[i] = x
        return found

    def batched(
        operands: Operands, axes: Axes, **params: object
    ) -> tuple[list[jax.Array], list[int | None]]:
        if all(axis is None for axis in axes[:_WAY]):
            # All members go the same way: the batch travels inside the rows.
            inside = rows_axis(operands[_WAY - 1]) + 1
            moved = (
                x if axis is None else jnp.moveaxis(x, axis, inside)
                for x, axis in zip(operands, axes, strict=True)
            )
            ys = primitive.bind(*moved, **params)
            return ys, [None if axis is None else inside for axis in axes[_WAY:]]
        size, members = batch_in_front(operands, axes)
        if rows_axis(members[_WAY - 1]) == 1:
            ys = primitive.bind(*members, **params)
        else:
            inner = members[0].shape[1]
            flat = (a.reshape(size * inner, *a.shape[2:]) for a in members)
            ys = [y.reshape(size, inner, *y.shape[1:]) for y in primitive.bind(*flat, **params)]
        return ys, [0] * len(ys)

    ad.primitive_jvps[primitive] = jvp
    ad.primitive_transposes[primitive] = transpose
    batching.primitive_batchers[primitive] = batched


_linear_in_rows(move_rows_p, return_rows_p)
_linear_in_rows(return_rows_p, move_rows_p)

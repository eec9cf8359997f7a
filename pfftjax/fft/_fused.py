"""A transform, a change of pencil and another transform as one operation (cpp/fft/fused.cc).

Its derivative is the same operation backward, each transform of the transposed kind.
"""

import functools
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.extend.core import Primitive
from jax.interpreters import ad, batching, mlir, xla

from pfftjax._runtime.ordering import is_donated, is_temporary, platforms_of
from pfftjax._runtime.primitive import communicating, linear
from pfftjax.pencils import ExchangeMethod, Pencil, block, check_dimensions
from pfftjax.pencils.internal import overlapped, refuse_on_cpus, refuse_on_gpus, transpose_p

from ._local import (
    FROM_REAL,
    TO_REAL,
    Kind,
    Local,
    apply,
    result_dtype,
    since_conjugation,
    until_conjugation,
)
from ._pipelined import in_chunks


def _travelling(x: Any, first: Local | None) -> list[int]:
    """Shape of what travels, on this rank, before it does."""
    return [*x.shape[:-1], x.shape[-1] if first is None else first.out_of]


def _shape_after(x: Any, shape: list[int], *, second: Local | None, order: tuple[int, ...]) -> Any:
    shape = [shape[d] for d in order]
    dtype = np.result_type(x.dtype, np.complex64)
    if second is not None:
        shape[-1] = second.out_of
        dtype = result_dtype(dtype, second.kind)
    return x.update(shape=tuple(shape), dtype=dtype, weak_type=False)


def _result(
    x: Any,
    *,
    first: Local | None,
    second: Local | None,
    order: tuple[int, ...],
    scatter: int,
    gather: int,
    private: tuple[bool, bool] = (False, False),
    whole: int,
    method: ExchangeMethod,
    comm: Any,
) -> Any:
    del private, method
    shape = _travelling(x, first)
    lead = x.ndim - 3
    shape[lead + scatter] = block(shape[lead + scatter], comm.size, comm.rank)[1]
    shape[lead + gather] = whole
    return _shape_after(x, shape, second=second, order=order)


def _agreement(
    x: Any,
    *,
    first: Local | None,
    second: Local | None,
    order: tuple[int, ...],
    scatter: int,
    gather: int,
    private: tuple[bool, bool] = (False, False),
    whole: int,
    method: ExchangeMethod,
    comm: Any,
) -> str:
    del private, comm
    shape = _travelling(x, first)
    shape[x.ndim - 3 + gather] = whole
    kinds = "/".join(
        "none" if t is None else f"{t.kind.name.lower()}{t.axes}[{t.n}] * {t.scale!r}"
        for t in (first, second)
    )
    dtype = np.dtype(x.dtype).name
    what = f"{dtype}{shape} axis {gather} for axis {scatter} in order {order}, {kinds}"
    return f"{what} {method.name.lower()}"


def _attributes(
    *,
    first: Local | None,
    second: Local | None,
    order: tuple[int, ...],
    scatter: int,
    gather: int,
    along: tuple[int, ...] = (),
    method: ExchangeMethod = ExchangeMethod.AUTOMATIC,
    **_: Any,
) -> dict[str, Any]:
    def words(t: Local | None) -> np.ndarray:
        return np.array((-1, 0, 0) if t is None else (t.kind, t.axes, t.n), np.int64)

    scales = [1.0 if t is None else t.scale for t in (first, second)]
    return {
        "first": words(first),
        "second": words(second),
        "scales": np.array(scales, np.float64),
        "order": np.array(order, np.int64),
        "scatter": np.int64(scatter),
        "gather": np.int64(gather),
        "along": np.array(along, np.int64),
        "method": np.int64(method),
    }


def _in_place(ctx: Any, x: Any, *, private: tuple[bool, bool], **_: Any) -> bool:
    """Whether the result takes the memory of `x`: the handlers have read all of it before they
    write, and nobody else wants it. So it is with what another step of the transform has made, and
    with an argument that is donated to the program.
    """
    before, after = ctx.avals_in[0], ctx.avals_out[0]
    if (before.shape, before.dtype) != (after.shape, after.dtype):
        return False
    return is_temporary(x) and (private[0] or is_donated(x))


def _backward(
    x: Any,
    *,
    first: Local | None,
    second: Local | None,
    order: Any,
    scatter: int,
    gather: int,
    private: tuple[bool, bool] = (False, False),
) -> dict[str, Any]:
    """Parameters of the transpose."""
    lead = x.ndim - 3
    place = tuple(order.index(lead + d) - lead for d in range(3))  # of each axis in the result
    return {
        "first": None if second is None else second.transposed,
        "second": None if first is None else first.transposed,
        "order": (*range(lead), *(lead + p for p in place)),
        "scatter": place[gather],
        "gather": place[scatter],
        "private": private[::-1],
    }


def _with_batch(order: tuple[int, ...]) -> tuple[int, ...]:
    return (0, *(d + 1 for d in order))


def moved(
    x: jax.Array,
    *,
    order: tuple[int, ...],
    scatter: int,
    gather: int,
    whole: int = 0,
    method: ExchangeMethod = ExchangeMethod.AUTOMATIC,
    comm: Any = None,
    **_: Any,
) -> jax.Array:
    """The change of pencil by itself, where it cannot be fused with transforms: on GPUs."""
    if comm is None:
        return jax.lax.transpose(x, order)
    refuse_on_gpus("transform", method, comm)
    lead = x.ndim - 3
    return transpose_p.bind(
        x,
        order=order,
        scatter=lead + scatter,
        gather=lead + gather,
        whole=whole,
        method=method,
        comm=comm,
    )


def through(
    operands: Any,
    begins: Sequence[Callable[[Any], jax.Array]],
    ends: Sequence[Callable[[jax.Array], Any]],
    **move: Any,
) -> list[Any]:
    """``end(moved(begin(operands)))`` for each pair of `begins` and `ends`, on GPUs; each exchange
    beside what comes before and after the others, where the method is `PIPELINED`.
    """
    if move.get("method") != ExchangeMethod.PIPELINED:
        return [
            end(moved(begin(operands), **move)) for begin, end in zip(begins, ends, strict=True)
        ]
    lead = len(move["order"]) - 3
    return overlapped(
        operands,
        begins,
        ends,
        order=move["order"],
        scatter=lead + move["scatter"],
        gather=lead + move["gather"],
        whole=move["whole"],
        comm=move["comm"],
    )


def _in_steps(
    x: jax.Array,
    *,
    first: Local | None,
    second: Local | None,
    private: tuple[bool, bool] = (False, False),
    **move: Any,
) -> jax.Array:
    if move.get("method") == ExchangeMethod.PIPELINED:
        names = "order", "scatter", "gather", "whole", "comm"
        y = in_chunks(x, first=first, second=second, **{name: move[name] for name in names})
        if y is not None:
            return y
    if first is not None:
        until, since = until_conjugation(first)
        return apply(second, since(moved(until(x), **move)))
    if second is not None and second.kind == Kind.COMPLEX_TO_REAL and private[0]:
        # Of an inverse transform, and so made by BACKWARD: what that ends with goes away.
        return apply(second, jnp.conj(moved(jnp.conj(x), **move)))
    until, since = since_conjugation(second)
    return since(moved(until(x), **move))


across_p = communicating(
    "fft_across",
    result=_result,
    agreement=_agreement,
    attributes=_attributes,
    in_place=_in_place,
    on_gpus=_in_steps,
    check_on_cpus=functools.partial(refuse_on_cpus, "transform"),
)


def _adjoint(
    cotangent: Any, x: Any, *, whole: int, method: ExchangeMethod, comm: Any, **params: Any
) -> Any:
    del whole
    length = _travelling(x, params["first"])[x.ndim - 3 + params["scatter"]]
    backward = _backward(x, **params)
    return across_p.bind(cotangent, **backward, whole=length, method=method, comm=comm)


linear(
    across_p,
    batch=(0, 0),
    adjoint=_adjoint,
    batched_params=lambda _, params: {**params, "order": _with_batch(params["order"])},
)

# On one rank.
alone_p = Primitive("fft_alone")
alone_p.def_impl(functools.partial(xla.apply_primitive, alone_p))


@alone_p.def_abstract_eval
def _(x: Any, *, first: Any, second: Any, order: Any, **_: Any) -> Any:
    return _shape_after(x, _travelling(x, first), second=second, order=order)


ad.deflinear2(
    alone_p,
    lambda cotangent, x, **params: [alone_p.bind(cotangent, **_backward(x.aval, **params))],
)
batching.primitive_batchers[alone_p] = lambda operands, axes, *, order, **params: (
    alone_p.bind(jnp.moveaxis(operands[0], axes[0], 0), order=_with_batch(order), **params),
    0,
)


_lower = jax.ffi.ffi_lowering("pfftjax_fft_alone")
_lower_in_place = jax.ffi.ffi_lowering("pfftjax_fft_alone", operand_output_aliases={0: 0})
_lower_in_steps = mlir.lower_fun(_in_steps, multiple_results=False)


def _alone(ctx: Any, x: Any, **params: Any) -> Any:
    if platforms_of(ctx) != ("cpu",):
        return _lower_in_steps(ctx, x, **params)
    lower = _lower_in_place if _in_place(ctx, x, **params) else _lower
    return lower(ctx, x, **_attributes(**params))


# Not from JAX's cache, in which `x` is an argument of a function of its own.
mlir.register_lowering(alone_p, _alone, cacheable=False)


def can_fuse(first: Local | None, source: Pencil, target: Pencil, second: Local | None) -> bool:
    """Whether there is one operation for these steps."""
    if len(source.axes) != 3:
        return False
    if (first and first.kind in TO_REAL) or (second and second.kind in FROM_REAL):
        return False  # what travels is real
    order = tuple(source.axes.index(axis) for axis in target.axes)
    if order[2] == 2 or len(_differing(source, target)) > 1:
        return False
    if second is not None and second.axes == 1:
        return _gathered(source, target) in (None, order[2])
    return first is not None and first.axes == 1 and _scattered(source, target) in (None, 2)


def _differing(source: Pencil, target: Pencil) -> list[int]:
    """The grid dimensions over which data move."""
    dims = source.grid.dims
    return [d for d in range(2) if dims[d] > 1 and source.split[d] != target.split[d]]


def _scattered(source: Pencil, target: Pencil) -> int | None:
    moved = _differing(source, target)
    return source.axes.index(target.split[moved[0]]) if moved else None


def _gathered(source: Pencil, target: Pencil) -> int | None:
    moved = _differing(source, target)
    return source.axes.index(source.split[moved[0]]) if moved else None


def fused(
    x: jax.Array,
    first: Local | None,
    source: Pencil,
    target: Pencil,
    second: Local | None,
    method: ExchangeMethod,
    private: tuple[bool, bool],
) -> jax.Array:
    """`second(transpose(first(x), source, target))`, for steps that `can_fuse` allows.

    Args:
        x: complex, or real where `first` takes real numbers; of shape (..., *source.local_shape),
            but for the last axis, which is as long as `first` has it.
        first: along the last axis of `source`, or the last two.
        source: pencil of what travels, before it does.
        target: pencil of the same, afterward.
        second: along the last axis of `target`, or the last two.
        method: the way of the exchange.
        private: whether no other operation takes what comes in, and what goes out.

    """
    check_dimensions(x, "transform", source.grid._comm)
    params = parameters(x.ndim, first, source, target, second, method)
    params["private"] = private
    return (across_p if "comm" in params else alone_p).bind(x, **params)


def parameters(
    ndim: int,
    first: Local | None,
    source: Pencil,
    target: Pencil,
    second: Local | None,
    method: ExchangeMethod,
) -> dict[str, Any]:
    """Those of the primitives, for arrays of so many dimensions; with a communicator where data
    move between ranks.
    """
    lead = ndim - 3
    order = tuple(source.axes.index(axis) for axis in target.axes)
    params = {
        "first": first,
        "second": second,
        "order": (*range(lead), *(lead + d for d in order)),
    }
    moved = _differing(source, target)
    if not moved:
        columns = second is not None and second.axes == 1
        gather = order[2] if columns else 0
        scatter = next(d for d in (2, 1) if d != gather)
        return {**params, "scatter": scatter, "gather": gather}
    return {
        **params,
        "scatter": _scattered(source, target),
        "gather": _gathered(source, target),
        "whole": source.global_shape[source.split[moved[0]]],
        "method": method,
        "comm": source.grid.along(moved[0]),
    }

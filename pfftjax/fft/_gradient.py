"""The transforms at which a gradient of a spectrum and a divergence of fields multiply by i k,
with the products and sums inside (cpp/fft/fused.cc).

With F the first of two fused transforms, S the second, and M the change of pencil between them,

    gradient     x -> S M F (i k0 x),  S (i k1 M F x),  S (i k2 M F x)
    divergence   x0, x1, x2 -> i k0 S M F x0 + S M (i k1 F x1 + i k2 F x2)

What is multiplied is in the cache, and two arrays travel instead of three. Each is the transpose
of the other. They are linear in the arrays; wavenumbers are constants.
"""

import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax.extend.core import Primitive
from jax.interpreters import ad, batching, mlir, xla

from pfftjax._runtime.primitive import communicating
from pfftjax.pencils import ExchangeMethod, Pencil, check_dimensions
from pfftjax.pencils.internal import refuse_on_cpus

from . import _fused
from ._fused import Local, parameters
from ._local import apply, since_conjugation, until_conjugation

Three = tuple[jax.Array, jax.Array, jax.Array]


def times_i(k: jax.Array, y: jax.Array) -> jax.Array:
    """I k y, for real k."""
    return jax.lax.complex(-k * y.imag, k * y.real)


def _arrays(operands: Any) -> Any:
    """The operands but for k0, k1 and k2."""
    return operands[:-3]


def _agreement(*avals: Any, along: tuple[int, int], **params: Any) -> str:
    return f"{_fused._agreement(avals[0], **params)}, i k along {along}"


def _backward(x: Any, along: tuple[int, int], params: dict[str, Any]) -> dict[str, Any]:
    """Parameters of the transpose."""
    lead = x.ndim - 3
    order = params["order"]
    back = _fused._backward(
        x, **{name: params[name] for name in ("first", "second", "order", "scatter", "gather")}
    )
    del back["private"]
    if "comm" in params:
        travelling = _fused._travelling(x, params["first"])
        back |= {"whole": travelling[lead + params["scatter"]]}
        back |= {name: params[name] for name in ("method", "comm")}
    return {**back, "along": tuple(order.index(lead + axis) - lead for axis in along)}


def _give_rules(gradient_p: Primitive, divergence_p: Primitive) -> None:
    """Derivatives and batches: of one array into three, and of three into one."""

    def several(p: Primitive, results: Any) -> list[Any]:
        return list(results) if p.multiple_results else [results]

    def jvp(p: Primitive, primals: Any, tangents: Any, **params: Any) -> Any:
        ks = primals[-3:]
        if any(type(tangent) is not ad.Zero for tangent in tangents[-3:]):
            raise TypeError(f"{p.name}: no derivative in the wavenumbers")
        # Also of arrays whose tangent is known to be zero: another rank's may not be.
        moved = [ad.instantiate_zeros(tangent) for tangent in _arrays(tangents)]
        return p.bind(*primals, **params), p.bind(*moved, *ks, **params)

    def transpose(
        p: Primitive,
        transposed: Primitive,
        cotangents: Any,
        *operands: Any,
        along: Any,
        **params: Any,
    ) -> Any:
        arrays = _arrays(operands)
        linear = [ad.is_undefined_primal(x) for x in arrays]
        x = next(x.aval for x, is_linear in zip(arrays, linear, strict=True) if is_linear)
        given = cotangents if p.multiple_results else [cotangents]
        given = [ad.instantiate_zeros(cotangent) for cotangent in given]
        results = several(
            transposed, transposed.bind(*given, *operands[-3:], **_backward(x, along, params))
        )
        kept = [y if is_linear else None for y, is_linear in zip(results, linear, strict=True)]
        return [*kept, None, None, None]

    def batched(p: Primitive, operands: Any, axes: Any, *, order: Any, **params: Any) -> Any:
        if any(axis is not None for axis in axes[-3:]):
            raise TypeError(f"{p.name}: no batches of wavenumbers")
        size = next(x.shape[a] for x, a in zip(operands, axes, strict=True) if a is not None)
        moved = [
            jnp.broadcast_to(x, (size, *x.shape)) if axis is None else jnp.moveaxis(x, axis, 0)
            for x, axis in zip(_arrays(operands), _arrays(axes), strict=True)
        ]
        y = p.bind(*moved, *operands[-3:], order=_fused._with_batch(order), **params)
        return (y, [0, 0, 0]) if p.multiple_results else (y, 0)

    for p, transposed in ((gradient_p, divergence_p), (divergence_p, gradient_p)):
        ad.primitive_jvps[p] = functools.partial(jvp, p)
        ad.primitive_transposes[p] = functools.partial(transpose, p, transposed)
        batching.primitive_batchers[p] = functools.partial(batched, p)


def _along(k: jax.Array, axis: int) -> jax.Array:
    """To be broadcast against a block along one of its three axes."""
    return jnp.expand_dims(k, [d for d in range(3) if d != axis])


def _gradient_in_steps(
    x: jax.Array,
    k0: jax.Array,
    k1: jax.Array,
    k2: jax.Array,
    *,
    first: Local,
    second: Local,
    along: tuple[int, int],
    **move: Any,
) -> list[jax.Array]:
    lead = x.ndim - 3
    at1, at2 = (move["order"].index(lead + axis) - lead for axis in along)
    until, since = until_conjugation(first)

    def end(y: jax.Array) -> list[jax.Array]:
        y = since(y)
        return [apply(second, times_i(_along(k, at), y)) for k, at in ((k1, at1), (k2, at2))]

    y0, (y1, y2) = _fused.through(
        x,
        [lambda x: until(times_i(k0, x)), until],
        [lambda y: apply(second, since(y)), end],
        **move,
    )
    return [y0, y1, y2]


def _divergence_in_steps(
    x0: jax.Array,
    x1: jax.Array,
    x2: jax.Array,
    k0: jax.Array,
    k1: jax.Array,
    k2: jax.Array,
    *,
    first: Local,
    second: Local,
    along: tuple[int, int],
    **move: Any,
) -> jax.Array:
    def shared(xs: Three) -> jax.Array:
        y1, y2 = (
            times_i(_along(k, axis), apply(first, x))
            for k, axis, x in zip((k1, k2), along, xs[1:], strict=True)
        )
        return y1 + y2

    until, since = since_conjugation(second)
    y0, y = _fused.through(
        (x0, x1, x2),
        [lambda xs: until(apply(first, xs[0])), lambda xs: until(shared(xs))],
        [lambda y: times_i(k0, since(y)), since],
        **move,
    )
    return y0 + y


def _across(name: str, in_steps: Callable[..., Any], *, results: int) -> Primitive:
    def result(x: Any, *_: Any, along: Any, **params: Any) -> Any:
        del along
        y = _fused._result(x, **params)
        return y if results == 1 else [y] * results

    def attributes(*, along: Any, **params: Any) -> Any:
        return _fused._attributes(**params, along=along)

    return communicating(
        name,
        result=result,
        agreement=_agreement,
        attributes=attributes,
        multiple_results=results > 1,
        on_gpus=in_steps,
        check_on_cpus=functools.partial(refuse_on_cpus, "transform"),
    )


def _alone(name: str, in_steps: Callable[..., Any], *, results: int) -> Primitive:
    """On one rank."""
    p = Primitive(name)
    p.multiple_results = results > 1
    p.def_impl(functools.partial(xla.apply_primitive, p))

    @p.def_abstract_eval
    def _(x: Any, *_: Any, first: Any, second: Any, order: Any, **__: Any) -> Any:
        y = _fused._shape_after(x, _fused._travelling(x, first), second=second, order=order)
        return y if results == 1 else [y] * results

    lower = jax.ffi.ffi_lowering(f"pfftjax_{name}")
    mlir.register_lowering(p, mlir.lower_fun(in_steps, multiple_results=results > 1))
    mlir.register_lowering(
        p,
        lambda ctx, *operands, **params: lower(ctx, *operands, **_fused._attributes(**params)),
        platform="cpu",
    )
    return p


gradient_across_p = _across("gradient_across", _gradient_in_steps, results=3)
divergence_across_p = _across("divergence_across", _divergence_in_steps, results=1)
gradient_alone_p = _alone("gradient_alone", _gradient_in_steps, results=3)
divergence_alone_p = _alone("divergence_alone", _divergence_in_steps, results=1)
_give_rules(gradient_across_p, divergence_across_p)
_give_rules(gradient_alone_p, divergence_alone_p)


def _parameters(
    ndim: int, first: Local, source: Pencil, target: Pencil, second: Local, method: ExchangeMethod
) -> dict[str, Any]:
    along = (source.axes.index(1), source.axes.index(2))
    return {**parameters(ndim, first, source, target, second, method), "along": along}


def fused_gradient(
    x: jax.Array,
    ks: Three,
    first: Local,
    source: Pencil,
    target: Pencil,
    second: Local,
    method: ExchangeMethod,
) -> Three:
    """What the steps make of i k0 x, and of x with i k1 and i k2 between the transforms.

    Args:
        x: complex, of shape ``(..., *source.local_shape)``.
        ks: wavenumbers along global axes 0, 1 and 2, real vectors in the precision of `x`: of axis
            0, which is that of lines of `source`, whole; of axis 1, whole, and of axis 2, of this
            rank's block, as they are in `target`.
        first: along the last axis of `source`, from complex to complex numbers.
        source: pencil of what travels, before it does.
        target: pencil of the same, afterward.
        second: along the last axis of `target`, or the last two; the steps are some that
            `can_fuse` allows.
        method: the way of the exchange; SHARED is as FUSED.

    """
    check_dimensions(x, "gradient", source.grid._comm)
    params = _parameters(x.ndim, first, source, target, second, method)
    return tuple(
        (gradient_across_p if "comm" in params else gradient_alone_p).bind(x, *ks, **params)
    )


def fused_divergence(
    xs: Three,
    ks: Three,
    first: Local,
    source: Pencil,
    target: Pencil,
    second: Local,
    method: ExchangeMethod,
) -> jax.Array:
    """The transpose of `fused_gradient`, but for the kinds of the transforms.

    Args:
        xs: three blocks as `first` takes them, of shape ``(..., *source.local_shape)``.
        ks: as above, with axis 0 that of lines of `target`, and axes 1 and 2 as in `source`.
        first: along the last axis of `source`, or the last two.
        source: pencil of what travels, before it does.
        target: pencil of the same, afterward.
        second: along the last axis of `target`, from complex to complex numbers.
        method: as above.

    """
    check_dimensions(xs[0], "divergence", source.grid._comm)
    params = _parameters(xs[0].ndim, first, source, target, second, method)
    p = divergence_across_p if "comm" in params else divergence_alone_p
    return p.bind(*xs, *ks, **params)

"""The operations of `_fused.py` by others, for GPUs: transforms, changes of pencil, products."""

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp

from pfftjax.pencils import ExchangeMethod
from pfftjax.pencils.internal import overlapped, refuse_on_gpus, transpose_p

from ._local import Kind, apply, since_conjugation, times_i, until_conjugation
from ._pipelined import in_chunks

if TYPE_CHECKING:
    from ._fused import Fused


def _move(of: "Fused") -> dict[str, Any]:
    """Parameters of the change of pencil between ranks."""
    return {
        "order": of.whole_order,
        "scatter": of.lead + of.scatter,
        "gather": of.lead + of.gather,
        "whole": of.lengths[1],
        "comm": of.comm,
    }


def _moved(x: jax.Array, of: "Fused") -> jax.Array:
    """The change of pencil by itself."""
    if of.comm is None:
        return jax.lax.transpose(x, of.whole_order)
    refuse_on_gpus("transform", of.method, of.comm)
    return transpose_p.bind(x, **_move(of), method=of.method)


def _through(
    operands: Any,
    begins: Sequence[Callable[[Any], jax.Array]],
    ends: Sequence[Callable[[jax.Array], Any]],
    of: "Fused",
) -> list[Any]:
    """``end(_moved(begin(operands)))`` for each pair of `begins` and `ends`; each exchange beside
    what comes before and after the others, where the method is `PIPELINED`.
    """
    if of.comm is None or of.method != ExchangeMethod.PIPELINED:
        return [end(_moved(begin(operands), of)) for begin, end in zip(begins, ends, strict=True)]
    return overlapped(operands, begins, ends, **_move(of))


def transform_in_steps(x: jax.Array, *, of: "Fused") -> list[jax.Array]:
    """The transform of one array."""
    if of.comm is not None and of.method == ExchangeMethod.PIPELINED:
        y = in_chunks(x, of.first, of.second, **_move(of))
        if y is not None:
            return [y]
    if of.first is not None:
        until, since = until_conjugation(of.first)
        return [apply(of.second, since(_moved(until(x), of)))]
    if of.second is not None and of.second.kind == Kind.COMPLEX_TO_REAL and of.private[0]:
        # Of an inverse transform, and so made by BACKWARD: what that ends with goes away.
        return [apply(of.second, jnp.conj(_moved(jnp.conj(x), of)))]
    until, since = since_conjugation(of.second)
    return [since(_moved(until(x), of))]


def _along(k: jax.Array, axis: int) -> jax.Array:
    """To be broadcast against a block along one of its three axes."""
    return jnp.expand_dims(k, [d for d in range(3) if d != axis])


def gradient_in_steps(
    x: jax.Array, k0: jax.Array, k1: jax.Array, k2: jax.Array, *, of: "Fused"
) -> list[jax.Array]:
    """The gradient of one array."""
    at1, at2 = (of.order.index(axis) for axis in of.along)
    until, since = until_conjugation(of.first)

    def end(y: jax.Array) -> list[jax.Array]:
        y = since(y)
        return [apply(of.second, times_i(_along(k, at), y)) for k, at in ((k1, at1), (k2, at2))]

    y0, (y1, y2) = _through(
        x,
        [lambda x: until(times_i(k0, x)), until],
        [lambda y: apply(of.second, since(y)), end],
        of,
    )
    return [y0, y1, y2]


def divergence_in_steps(
    x0: jax.Array,
    x1: jax.Array,
    x2: jax.Array,
    k0: jax.Array,
    k1: jax.Array,
    k2: jax.Array,
    *,
    of: "Fused",
) -> list[jax.Array]:
    """The divergence of three arrays."""

    def shared(xs: tuple[jax.Array, ...]) -> jax.Array:
        y1, y2 = (
            times_i(_along(k, axis), apply(of.first, x))
            for k, axis, x in zip((k1, k2), of.along, xs[1:], strict=True)
        )
        return y1 + y2

    until, since = since_conjugation(of.second)
    y0, y = _through(
        (x0, x1, x2),
        [lambda xs: until(apply(of.first, xs[0])), lambda xs: until(shared(xs))],
        [lambda y: times_i(k0, since(y)), since],
        of,
    )
    return [y0 + y]

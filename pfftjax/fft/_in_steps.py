"""The operations of `_fused.py` by others, for GPUs: transforms, changes of pencil, products."""

from collections.abc import Callable, Sequence
from typing import TypeVar

import jax
import jax.numpy as jnp

from pfftjax._runtime.arrays import Block, ComplexBlock, Reals
from pfftjax.pencils import ExchangeMethod
from pfftjax.pencils.internal import overlapped, refuse_on_gpus, transpose_p

from ._local import Kind, Local, apply, by_xla, since_conjugation, times_i, until_conjugation
from ._operation import Operation
from ._pipelined import in_chunks

_Operands = TypeVar("_Operands")
_Result = TypeVar("_Result")


def _moved(x: ComplexBlock, of: Operation) -> ComplexBlock:
    """The change of pencil by itself."""
    if of.comm is None:
        return jax.lax.transpose(x, of.whole_order)
    refuse_on_gpus(of.method, of.comm, of.precision)
    return transpose_p.bind(x, way=of.way, method=of.method, comm=of.comm)


def _through(
    operands: _Operands,
    begins: Sequence[Callable[[_Operands], jax.Array]],
    ends: Sequence[Callable[[jax.Array], _Result]],
    of: Operation,
) -> list[_Result]:
    """``end(_moved(begin(operands)))`` for each pair of `begins` and `ends`; each exchange beside
    what comes before and after the others, where the method is `PIPELINED`.
    """
    if of.comm is None or of.method != ExchangeMethod.PIPELINED:
        return [end(_moved(begin(operands), of)) for begin, end in zip(begins, ends, strict=True)]
    refuse_on_gpus(of.method, of.comm, of.precision)
    return overlapped(operands, begins, ends, of.way, of.comm)


def _inverse_of_three_axes(of: Operation) -> Local | None:
    """Both transforms in one, where no rank is between them: turned first, the array is conjugated
    on that way, and not in a pass of its own.
    """
    first, second = of.first, of.second
    if first is None or second is None or of.comm is not None:
        return None
    inverse = first.kind == Kind.BACKWARD and second.kind in (Kind.BACKWARD, Kind.COMPLEX_TO_REAL)
    if not inverse or first.axes != 1 or second.axes != 2 or of.order[0] != 2:
        return None
    return second._replace(axes=3, scale=first.scale * second.scale)


def transform_in_steps(x: Block, *, of: Operation) -> list[Block]:
    """The transform of one array."""
    if of.comm is not None and of.method == ExchangeMethod.PIPELINED:
        refuse_on_gpus(of.method, of.comm, of.precision)
        y = in_chunks(x, of.first, of.second, of.way, of.comm)
        if y is not None:
            return [y]
    if (whole := _inverse_of_three_axes(of)) is not None:
        return [by_xla(_moved(x, of), **whole._asdict())]
    if of.first is not None:
        until, since = until_conjugation(of.first)
        return [apply(of.second, since(_moved(until(x), of)))]
    if of.second is not None and of.second.kind == Kind.COMPLEX_TO_REAL and of.private[0]:
        # In an inverse transform BACKWARD made `x`, and ended with a conjugation: it goes away.
        return [apply(of.second, jnp.conj(_moved(jnp.conj(x), of)))]
    until, since = since_conjugation(of.second)
    return [since(_moved(until(x), of))]


def _along(k: Reals, axis: int) -> Reals:
    """`k` as it broadcasts against a block along one of its three axes."""
    return jnp.expand_dims(k, [d for d in range(3) if d != axis])


def gradient_in_steps(x: Block, k0: Reals, k1: Reals, k2: Reals, *, of: Operation) -> list[Block]:
    """The gradient of one array."""
    at1, at2 = (of.order.index(axis) for axis in of.along)
    until, since = until_conjugation(of.first)

    def one(y: ComplexBlock) -> list[Block]:
        return [apply(of.second, since(y))]

    def two(y: ComplexBlock) -> list[Block]:
        y = since(y)
        return [apply(of.second, times_i(_along(k, at), y)) for k, at in ((k1, at1), (k2, at2))]

    parts = _through(x, [lambda x: until(times_i(k0, x)), until], [one, two], of)
    return [*parts[0], *parts[1]]


def divergence_in_steps(
    x0: Block, x1: Block, x2: Block, k0: Reals, k1: Reals, k2: Reals, *, of: Operation
) -> list[Block]:
    """The divergence of three arrays."""

    def shared(xs: tuple[Block, ...]) -> ComplexBlock:
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

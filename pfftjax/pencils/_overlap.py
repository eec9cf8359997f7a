"""Transpositions between GPUs in two halves: what is computed in between overlaps the exchange
(cpp/gpu/beside.h).

Only lowering rules for GPUs bind these primitives, and so they have no derivatives and no batches.
"""

import functools
from collections.abc import Callable, Sequence
from typing import Any

import jax
import numpy as np

from pfftjax._runtime.ffi import native
from pfftjax._runtime.primitive import communicating

from . import _transpose
from ._method import ExchangeMethod
from ._pencil import block


def _agreement(x: Any, *_: Any, index: int, **move: Any) -> str:
    line = _transpose._agreement(x, **move, method=ExchangeMethod.PIPELINED)
    return f"{line} {index}"


_ATTRIBUTES = {
    "order": functools.partial(np.array, dtype=np.int64),
    **dict.fromkeys(("scatter", "gather", "whole", "index"), np.int64),
}


def _bytes(x: Any, counts: Sequence[int], rank: int) -> int:
    """What is packed for all ranks but this one takes at most, if each has so many elements."""
    alignment = native.packed_alignment
    sizes = [count * x.dtype.itemsize for other, count in enumerate(counts) if other != rank]
    return sum(-(-size // alignment) * alignment for size in sizes)


def _started(
    x: Any, *, order: Any, scatter: int, gather: int, whole: int, index: int, comm: Any
) -> list[Any]:
    """What leaves, packed, and the memory for what arrives."""
    del order, index
    rest = 1
    for d, extent in enumerate(x.shape):
        rest *= 1 if d in (scatter, gather) else extent

    def blocks(n: int) -> list[int]:
        return [block(n, comm.size, rank)[1] for rank in range(comm.size)]

    leaving = [rest * x.shape[gather] * n for n in blocks(x.shape[scatter])]
    mine = block(x.shape[scatter], comm.size, comm.rank)[1]
    arriving = [rest * mine * n for n in blocks(whole)]
    return [
        x.update(shape=(_bytes(x, counts, comm.rank),), dtype=np.dtype("uint8"), weak_type=False)
        for counts in (leaving, arriving)
    ]


def _waited(x: Any, *_: Any, index: int, **move: Any) -> Any:
    del index
    return _transpose._result(x, **move, method=None)


# x -> packed, received
start_p = communicating(
    "transpose_start",
    result=_started,
    agreement=_agreement,
    attributes=_ATTRIBUTES,
    multiple_results=True,
)
# x, packed, received, and whatever is to be computed before -> y. XLA keeps what an operation
# names until it is enqueued, and the exchange is at work on these until then.
wait_p = communicating(
    "transpose_wait", result=_waited, agreement=_agreement, attributes=_ATTRIBUTES
)


def overlapped(
    operands: Any,
    begins: Sequence[Callable[[Any], jax.Array]],
    ends: Sequence[Callable[[jax.Array], Any]],
    **move: Any,
) -> list[Any]:
    """``end(transpose(begin(operands)))`` for each pair of `begins` and `ends`, on GPUs: each
    exchange while the one after it is begun and the one before it is ended.

    With f, g for `begins` and `ends`, s, w for the halves of an exchange, what XLA is given is
    f0 s0 f1 s1 w0 g0 f2 s2 w1 g1 ... The calls s and w are in order by their token; f and g would
    be computed whenever it suits XLA, but for what ties them here: operands come out of a barrier
    together with what the last s packed, and w takes a number of the last g. XLA's compiler for
    GPUs removes barriers only after it has ordered its operations (OptimizationBarrierExpander in
    xla/service/gpu/gpu_compiler.cc, RunPostSchedulingPipelines).

    Args:
        operands: arrays, as a pytree; taken whole by each of `begins`.
        begins: what is computed before each exchange.
        ends: and after it.
        **move: parameters of `transpose_p`, but for the method.

    """
    results: list[Any] = []
    started: tuple[jax.Array, ...] = ()
    computed: tuple[jax.Array, ...] = ()
    last = len(begins) - 1
    for i in range(len(begins) + 1):
        waiting = started
        if i <= last:
            x = begins[i](operands)
            packed, received = start_p.bind(x, index=i, **move)
            if i < last:
                # Both results are used: XLA drops those that are not.
                operands, packed = jax.lax.optimization_barrier((operands, packed))
            started = (x, packed, received)
        if i > 0:
            y = wait_p.bind(*waiting, *computed, index=i - 1, **move)
            results.append(ends[i - 1](y))
            computed = _one_number(results[-1])
    return results


def _one_number(tree: Any) -> tuple[jax.Array, ...]:
    """Of the first array; none of an empty one."""
    x = jax.tree.leaves(tree)[0]
    return (jax.lax.slice(x, (0,) * x.ndim, (1,) * x.ndim),) if x.size else ()

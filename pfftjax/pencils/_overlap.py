"""Transpositions between GPUs in two halves: what is computed in between overlaps the exchange
(cpp/gpu/beside.h).

Only lowering rules for GPUs bind these primitives, and so they have no derivatives and no batches.
"""

import math
from collections.abc import Callable, Sequence
from typing import TypeVar

import jax
import numpy as np
from jax.core import ShapedArray

from pfftjax._runtime.arrays import PyTree
from pfftjax._runtime.communicators import Communicator
from pfftjax._runtime.ffi import native
from pfftjax._runtime.primitive import communicating

from ._method import ExchangeMethod
from ._pencil import block
from ._transpose import Redistribution

_Operands = TypeVar("_Operands")
_Result = TypeVar("_Result")


def _agreement(
    x: ShapedArray, *_: ShapedArray, way: Redistribution, index: int, comm: Communicator
) -> str:
    del comm
    return f"{way.agreement(x, ExchangeMethod.PIPELINED)} {index}"


def _attributes(way: Redistribution, index: int) -> dict[str, np.ndarray | np.int64]:
    return {**way.attributes(), "whole": np.int64(way.whole), "index": np.int64(index)}


def _started(
    x: ShapedArray, *, way: Redistribution, index: int, comm: Communicator
) -> list[ShapedArray]:
    """The packed parts that leave, and memory for those that arrive."""
    del index
    alignment = native.packed_alignment
    kept = (way.scatter, way.gather)
    rest = math.prod(n for d, n in enumerate(x.shape) if d not in kept) * x.dtype.itemsize

    def memory(lines: int, n: int) -> ShapedArray:
        """Memory for the parts of n cells of so many lines that are for all ranks but this."""
        parts = [block(n, comm.size, other)[1] for other in range(comm.size) if other != comm.rank]
        size = sum(-(-rest * lines * part // alignment) * alignment for part in parts)
        return x.update(shape=(size,), dtype=np.dtype("uint8"), weak_type=False)

    mine = block(x.shape[way.scatter], comm.size, comm.rank)[1]
    return [memory(x.shape[way.gather], x.shape[way.scatter]), memory(mine, way.whole)]


# x -> packed, received
start_p = communicating(
    "transpose_start",
    result=_started,
    agreement=_agreement,
    attributes=_attributes,
    multiple_results=True,
)
# x, packed, received, and whatever is to be computed before -> y. XLA keeps what an operation
# names until it is enqueued, and the exchange is at work on these until then.
wait_p = communicating(
    "transpose_wait",
    result=lambda x, *_, way, index, comm: way.result(x, comm),
    agreement=_agreement,
    attributes=_attributes,
)


def overlapped(
    operands: _Operands,
    begins: Sequence[Callable[[_Operands], jax.Array]],
    ends: Sequence[Callable[[jax.Array], _Result]],
    way: Redistribution,
    comm: Communicator,
) -> list[_Result]:
    """``end(transpose(begin(operands)))`` for each pair of `begins` and `ends`, on GPUs: each
    exchange while the one after it is begun and the one before it is ended.

    With f, g for `begins` and `ends`, s, w for the halves of an exchange, what XLA is given is
    f0 s0 f1 s1 w0 g0 f2 s2 w1 g1 ... The calls s and w are in order by their token; f and g would
    be computed whenever it suits XLA, but for what ties them here: operands come out of a barrier
    together with what the last s packed, and w takes a number of the last g. XLA's compiler for
    GPUs removes barriers only after it has ordered its operations (OptimizationBarrierExpander in
    xla/service/gpu/gpu_compiler.cc, RunPostSchedulingPipelines).
    """
    results: list[_Result] = []
    started: tuple[jax.Array, ...] = ()
    computed: tuple[jax.Array, ...] = ()
    last = len(begins) - 1
    for i in range(len(begins) + 1):
        waiting = started
        if i <= last:
            x = begins[i](operands)
            packed, received = start_p.bind(x, way=way, index=i, comm=comm)
            if i < last:
                # Both results are used: XLA drops those that are not.
                operands, packed = jax.lax.optimization_barrier((operands, packed))
            started = (x, packed, received)
        if i > 0:
            y = wait_p.bind(*waiting, *computed, way=way, index=i - 1, comm=comm)
            results.append(ends[i - 1](y))
            computed = _one_number(results[-1])
    return results


def _one_number(tree: PyTree) -> tuple[jax.Array, ...]:
    """A number of the first array, unless it is empty."""
    x = jax.tree.leaves(tree)[0]
    return (jax.lax.slice(x, (0,) * x.ndim, (1,) * x.ndim),) if x.size else ()

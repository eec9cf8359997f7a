"""The ways by which an array is redistributed."""

import enum
from typing import Any

from pfftjax._runtime.communicators import Communicator
from pfftjax._runtime.ffi import native
from pfftjax._runtime.options import options
from pfftjax._runtime.primitive import where


class ExchangeMethod(enum.IntEnum):
    """How ranks exchange what they hold when an array goes from one pencil to another.

    All methods give the same bits on CPUs, and on GPUs to rounding. A method is part of the
    compiled program, and the same on all ranks; which one is fastest depends on the machine
    (docs/tuning.md).

    Attributes:
        AUTOMATIC: `FUSED` between ranks that share memory, `MESSAGES` between others: what a plan
            does unless it is told otherwise.
        FUSED: through memory that all ranks of the row or column share, in one pass with the
            transforms before and after: each piece is transformed while it is in the cache. What
            cannot be fused (cosine and sine transforms, padding, `transpose`) goes as by `SHARED`.
        SHARED: through the same memory, but transform, exchange and transform one after the other.
        MESSAGES: in pieces of 256 KiB from rank to rank, several at a time, each packed and
            unpacked in the cache. No memory is needed for the exchange.
        ALLTOALL: packed, exchanged by one MPI_Alltoall, unpacked. The MPI library has algorithms
            of few messages for many ranks with little to say to each other. Needs memory of twice
            what is exchanged.
        PIPELINED: between GPUs only: in at most PFFTJAX_GPU_CHUNKS parts, of a batch or of planes
            across the axis that stays in place, each of which is exchanged while others are
            transformed. Needs memory and time for copies of the chunks. What is not fused goes as
            by `AUTOMATIC`. On CPUs an error.

    Example:
        >>> from pfftjax import PencilFFT, ProcessGrid
        >>> PencilFFT((4, 6, 5), ProcessGrid(), method=ExchangeMethod.MESSAGES).method
        ExchangeMethod.MESSAGES

    """

    AUTOMATIC = native.Method.AUTOMATIC.value
    FUSED = native.Method.FUSED.value
    SHARED = native.Method.SHARED.value
    MESSAGES = native.Method.MESSAGES.value
    ALLTOALL = native.Method.ALLTOALL.value
    # The core has no such method: other operations are made of it (`pencils/_overlap.py`).
    PIPELINED = 5

    def __repr__(self) -> str:
        return f"ExchangeMethod.{self.name}"

    __str__ = __repr__


def refuse_on_cpus(
    operation: str, *, method: ExchangeMethod, comm: Communicator, **_: Any
) -> None:
    """Raise for a method that is for arrays on GPUs."""
    if method == ExchangeMethod.PIPELINED:
        raise ValueError(
            f"{where(operation, comm)}: {method} lets exchanges between GPUs overlap transforms, "
            "and the arrays are on CPUs; take AUTOMATIC"
        )


def checked_method(method: Any, operation: str, comm: Communicator) -> ExchangeMethod:
    """`method`, or an error if it is none, or none that can be had."""
    names = ", ".join(m.name for m in ExchangeMethod)
    if not isinstance(method, ExchangeMethod):
        raise TypeError(
            f"{where(operation, comm)}: method must be one of ExchangeMethod.{{{names}}}, got "
            f"{method!r}"
        )
    is_shared = method in (ExchangeMethod.FUSED, ExchangeMethod.SHARED)
    if is_shared and comm.size > 1 and not options.shared_memory:
        raise ValueError(
            f"{where(operation, comm)}: {method} goes through memory that ranks share, and "
            "PFFTJAX_SHARED_MEMORY=0 forbids that; take MESSAGES, ALLTOALL or AUTOMATIC, or unset "
            "it"
        )
    return method

"""The ways by which an array is redistributed: which there are, which can be had where."""

import enum

import jax
import numpy as np
from mpi4py import MPI

from pfftjax._runtime.arguments import where
from pfftjax._runtime.communicators import Communicator
from pfftjax._runtime.ffi import native
from pfftjax._runtime.options import options
from pfftjax._runtime.primitive import as_on_gpus

from ._process_grid import ProcessGrid


class ExchangeMethod(enum.IntEnum):
    """How ranks exchange what they hold when an array goes from one pencil to another.

    All methods give the same bits on CPUs, and on GPUs to rounding. A method is part of the
    compiled program, and the same on all ranks; which one is fastest depends on the machine
    (docs/tuning.md).

    Attributes:
        AUTOMATIC: `FUSED` between ranks that share memory, `HIERARCHICAL` where the ranks of a row
            or column are on several nodes, for what can be fused, and `MESSAGES` for all else:
            what a plan does unless it is told otherwise.
        FUSED: through memory that all ranks of the row or column share, in one pass with the
            transforms before and after: each piece is transformed while it is in the cache. What
            cannot be fused (cosine and sine transforms, padding, `transpose`) goes as by `SHARED`.
        SHARED: through the same memory, but transform, exchange and transform one after the other.
        MESSAGES: in pieces of 256 KiB from rank to rank, several at a time, each packed and
            unpacked in the cache. No memory is needed for the exchange.
        ALLTOALL: packed, exchanged by one MPI_Alltoall, unpacked. The MPI library has algorithms
            of few messages for many ranks with little to say to each other. Needs memory of twice
            what is exchanged.
        HIERARCHICAL: within a node as `FUSED`, or as `SHARED` what cannot be fused; between nodes
            in few messages. The parcels that all ranks of a node have for a rank on another node
            lie together in the memory that they share, and one of them sends these as one
            message: between nodes of m ranks go m messages each way, not m * m. Large exchanges go
            in pieces, which are on their way while others are transformed. Needs memory of twice
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
    HIERARCHICAL = native.Method.HIERARCHICAL.value
    PIPELINED = native.Method.PIPELINED.value  # made of other operations (`_overlap.py`)

    def __repr__(self) -> str:
        return f"ExchangeMethod.{self.name}"

    __str__ = __repr__


class ExchangePrecision(enum.IntEnum):
    """What numbers are while they travel between ranks in a transform on CPUs.

    A precision is part of the compiled program, as a method is, and the same on all ranks. What
    stays on its rank is never rounded, so that results of `HALF` depend on the process grid, but
    not on the method. Derivatives are those of the exact transform; their exchanges are as precise
    as that of the transform.

    Attributes:
        FULL: numbers travel as they are.
        HALF: each 16 real numbers of a row share an exponent, and each of them has 16 bits
            (float32 and complex64) or 32 (float64 and complex128): 0.52 of the bytes. An exchange
            changes each number by at most 2^-15 (2^-31) of the largest one in its block. A block
            with an infinity or a NaN arrives as NaNs (docs/tuning.md). For Fourier transforms of
            three axes with the layout "transposed"; not between GPUs. What operators redistribute
            besides (`pad_spectrum`, `truncate_spectrum`, and derivatives from fields to fields)
            travels as it is.

    Example:
        >>> from pfftjax import PencilFFT, ProcessGrid
        >>> PencilFFT((4, 6, 5), ProcessGrid(), precision=ExchangePrecision.HALF).precision
        ExchangePrecision.HALF

    """

    FULL = native.Precision.FULL.value
    HALF = native.Precision.HALF.value

    def __repr__(self) -> str:
        return f"ExchangePrecision.{self.name}"

    __str__ = __repr__


_BY_SHARED_MEMORY = (ExchangeMethod.FUSED, ExchangeMethod.SHARED, ExchangeMethod.HIERARCHICAL)


def refuse_on_cpus(
    operation: str, *, method: ExchangeMethod, comm: Communicator, **_: object
) -> None:
    """Raise for a method that is for arrays on GPUs."""
    if method == ExchangeMethod.PIPELINED:
        raise ValueError(
            f"{where(operation, comm)}: {method} lets exchanges between GPUs overlap transforms, "
            "and the arrays are on CPUs; take AUTOMATIC"
        )


def refuse_on_gpus(
    method: ExchangeMethod, comm: Communicator, precision: ExchangePrecision
) -> None:
    """Raise for a transform by a method or in a precision that is for arrays on CPUs."""
    here = where("transform", comm)
    if precision != ExchangePrecision.FULL:
        raise ValueError(
            f"{here}: {precision} is for exchanges between CPUs, and the arrays are on a GPU; "
            "take ExchangePrecision.FULL"
        )
    if method in _BY_SHARED_MEMORY:
        raise ValueError(
            f"{here}: {method} goes through memory that CPUs share, and the arrays are on a GPU; "
            "take AUTOMATIC"
        )


def checked_method(method: object, operation: str, comm: Communicator) -> ExchangeMethod:
    """`method`, or an error if it is none, or none that can be had."""
    names = ", ".join(m.name for m in ExchangeMethod)
    if not isinstance(method, ExchangeMethod):
        raise TypeError(
            f"{where(operation, comm)}: method must be one of ExchangeMethod.{{{names}}}, got "
            f"{method!r}"
        )
    if method in _BY_SHARED_MEMORY and comm.size > 1 and not options.shared_memory:
        raise ValueError(
            f"{where(operation, comm)}: {method} goes through memory that ranks share, and "
            "PFFTJAX_SHARED_MEMORY=0 forbids that; take MESSAGES, ALLTOALL or AUTOMATIC, or unset "
            "it"
        )
    return method


def checked_precision(precision: object, operation: str, comm: Communicator) -> ExchangePrecision:
    """`precision`, or an error if it is none."""
    if not isinstance(precision, ExchangePrecision):
        names = ", ".join(p.name for p in ExchangePrecision)
        raise TypeError(
            f"{where(operation, comm)}: precision must be one of ExchangePrecision.{{{names}}}, "
            f"got {precision!r}"
        )
    return precision


def different_methods(
    grid: ProcessGrid, method: ExchangeMethod, precision: ExchangePrecision, *, is_fused: bool
) -> list[ExchangeMethod]:
    """The methods that differ from each other where `method` is asked for on `grid`, in exchanges
    of which some are fused with transforms, or none is.

    The first is `method`. The same on all ranks of the grid; collective.
    """
    lines = [line for line in map(grid.along, range(2)) if line.size > 1]
    if method != ExchangeMethod.AUTOMATIC or not lines:
        return [method]
    if as_on_gpus(jax.default_backend()):
        # The transport is the same for all methods; only chunks make a difference.
        return [method, ExchangeMethod.PIPELINED]
    # Over all rows and columns of the grid: the fewest of this rank's that are so, and the most.
    sharing = [bool(native.shares_memory(line.number)) for line in lines]
    nodes = [native.nodes(line.number) for line in lines]
    by_nodes = [options.shared_memory and max(of) > 0 for of in nodes]
    here = np.array([min(sharing), -max(sharing), -max(by_nodes)], np.int64)
    grid.comm.Allreduce(MPI.IN_PLACE, here, MPI.MIN)
    all_share, some_share, some_by_nodes = (bool(x) for x in here)
    # By itself AUTOMATIC takes shared memory or messages, and with transforms also goes by nodes.
    is_full = precision == ExchangePrecision.FULL  # else SHARED goes as FUSED
    differing = {
        ExchangeMethod.SHARED: all_share and is_full and is_fused,
        ExchangeMethod.HIERARCHICAL: some_by_nodes and not is_fused,
        ExchangeMethod.MESSAGES: some_share or (some_by_nodes and is_fused),
        ExchangeMethod.ALLTOALL: True,
    }
    return [method, *(other for other, differs in differing.items() if differs)]

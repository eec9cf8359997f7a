"""sendrecv: one message to a rank, one from a rank, in either order."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from mpi4py import MPI

from ._comm import Communicator, as_communicator
from ._ffi import native
from ._primitive import as_array, communicating, linear, static_int, where

# Ranks are kept as shifts from one's own rank, modulo the size: the program of a ring is the same
# on every rank. _NOBODY stands for MPI.PROC_NULL.
_NOBODY = -1
# As in cpp/communicator.h.
_ANY_TAG = -1
_DEFAULT_TAG = -2

sendrecv_p = communicating(
    "sendrecv",
    result=lambda x, *, shape, dtype, **_: x.update(shape=shape, dtype=dtype, weak_type=False),
    agreement=lambda *_, **__: None,
    attributes=lambda *, source, dest, sendtag, recvtag, **_: {
        "source": np.int32(source),
        "dest": np.int32(dest),
        "sendtag": np.int32(sendtag),
        "recvtag": np.int32(recvtag),
    },
)


def _adjoint(
    cotangent: Any,
    x: Any,
    *,
    source: int,
    dest: int,
    sendtag: int,
    recvtag: int,
    comm: Communicator,
    **_: Any,
) -> Any:
    # The message the other way round. A tag that was given comes back as the tag that is expected,
    # so that messages told apart by tags stay apart.
    return sendrecv_p.bind(
        cotangent,
        source=dest,
        dest=source,
        sendtag=recvtag if recvtag >= 0 else sendtag,
        recvtag=sendtag if recvtag >= 0 else recvtag,
        shape=x.shape,
        dtype=x.dtype,
        comm=comm,
    )


linear(
    sendrecv_p,
    batch=(0, 0),
    adjoint=_adjoint,
    message=True,
    batched_params=lambda size, params: {**params, "shape": (size, *params["shape"])},
)


def sendrecv(
    sendbuf: Any,
    recvbuf: Any,
    source: int,
    dest: int,
    *,
    sendtag: int = 0,
    recvtag: int | None = None,
    comm: MPI.Comm | Communicator | None = None,
) -> jax.Array:
    """Send `sendbuf` to rank `dest` and receive an array from rank `source`.

    Args:
        sendbuf: array to send.
        recvbuf: array of the shape and dtype to receive. It is not changed.
        source: the rank to receive from, a static integer, or `MPI.PROC_NULL` for nobody.
        dest: the rank to send to, likewise.
        sendtag: tag of the message sent.
        recvtag: tag to receive, `MPI.ANY_TAG`, or None for any tag among pfftjax's messages (on
            a communicator that pfftjax has not duplicated yet, see `duplicate`, None means
            `sendtag`).
        comm: communicator, `MPI.COMM_WORLD` by default.

    Returns:
        Array of the shape and dtype of `recvbuf`: what was received, or `recvbuf` itself where
        `source` is `MPI.PROC_NULL`.

    Raises:
        ValueError: a rank or a tag out of range.
        TypeError: a rank or a tag that is not static, a dtype that cannot be sent, or one buffer
            of floating-point numbers and one of others.

    Its adjoint is the message the other way round. Where it is differentiated on one side, let
    `sendbuf` depend on what is differentiated on the other side too, if only as ``0 * x``: JAX
    leaves constants out of derivatives, and the partner would wait. Ranks that have no partner
    need not call.

    Example:
        >>> from mpi4py import MPI
        >>> rank, size = MPI.COMM_WORLD.rank, MPI.COMM_WORLD.size
        >>> left, right = (rank - 1) % size, (rank + 1) % size
        >>> int(sendrecv(rank, rank, source=left, dest=right)) == left
        True

    """
    comm = as_communicator(comm, "sendrecv")
    x = as_array(sendbuf, "sendrecv", comm)
    template = as_array(recvbuf, "sendrecv", comm)
    kinds = [jnp.issubdtype(a.dtype, jnp.inexact) for a in (x, template)]
    if kinds[0] != kinds[1]:
        raise TypeError(
            f"{where('sendrecv', comm)}: sendbuf is {x.dtype} and recvbuf {template.dtype}, of "
            "which only one has a derivative; cast one of them"
        )
    received = sendrecv_p.bind(
        x,
        source=_shift(source, "source", comm),
        dest=_shift(dest, "dest", comm),
        sendtag=_tag(sendtag, "sendtag", comm),
        recvtag=_DEFAULT_TAG if recvtag is None else _tag(recvtag, "recvtag", comm),
        shape=tuple(template.shape),
        dtype=template.dtype,
        comm=comm,
    )
    if source != MPI.PROC_NULL:
        return received
    # Selected, not returned as it is: the derivative of the message must stay part of the program
    # on this rank too, or its partner waits.
    return jax.lax.select(np.False_, received, template)


def _shift(rank: Any, name: str, comm: Communicator) -> int:
    rank = static_int(rank, name, "sendrecv", comm)
    if rank == MPI.PROC_NULL:
        return _NOBODY
    if rank == MPI.ANY_SOURCE:
        raise ValueError(
            f"{where('sendrecv', comm)}: {name}=MPI.ANY_SOURCE has no adjoint and no order; name "
            "the rank"
        )
    if not 0 <= rank < comm.size:
        raise ValueError(
            f"{where('sendrecv', comm)}: {name} is {rank}, but the ranks are 0 to "
            f"{comm.size - 1} (MPI.PROC_NULL for nobody)"
        )
    return (rank - comm.rank) % comm.size


def _tag(tag: Any, name: str, comm: Communicator) -> int:
    tag = static_int(tag, name, "sendrecv", comm)
    if name == "recvtag" and tag == MPI.ANY_TAG:
        return _ANY_TAG
    if not 0 <= tag <= native.max_tag():
        raise ValueError(
            f"{where('sendrecv', comm)}: {name} is {tag}, but tags go from 0 to {native.max_tag()}"
        )
    return tag

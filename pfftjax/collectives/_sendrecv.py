"""sendrecv: one message to a rank, one from a rank, in either order."""

from collections.abc import Mapping
from typing import TypeVar

import jax
import jax.numpy as jnp
import numpy as np
from jax.core import ShapedArray
from jax.interpreters import ad, batching
from mpi4py import MPI

from pfftjax._runtime.arguments import as_array, where
from pfftjax._runtime.arrays import PyTree
from pfftjax._runtime.communicators import Comm, Communicator, as_communicator, as_private
from pfftjax._runtime.primitive import communicating, not_compared
from pfftjax._runtime.rules import (
    Axes,
    Operands,
    Params,
    Primal,
    Tangent,
    Tangents,
    batch_in_front,
    linear,
    zero_tangent,
)

from ._partner import ANYBODY, DEFAULT_TAG, NOBODY, partner, tag_number
from ._status import NO_STATUS, with_status

_Tree = TypeVar("_Tree")

_RANKS = {"source": np.int32, "dest": np.int32}
_ENVELOPE = {**_RANKS, "sendtag": np.int32, "recvtag": np.int32}


def _received(
    x: ShapedArray, *, shape: tuple[int, ...], dtype: np.dtype, **_: object
) -> ShapedArray:
    return x.update(shape=shape, dtype=dtype, weak_type=False)


sendrecv_p = communicating(
    "sendrecv", result=_received, agreement=not_compared, attributes=_ENVELOPE
)
# All ranks of the communicator make this call, a collective like the others: it is compared in the
# first call, and goes from GPU to GPU. The sizes may differ between pairs.
sendrecv_all_p = communicating(
    "sendrecv_all",
    result=_received,
    agreement=lambda x, **_: np.dtype(x.dtype).name,
    attributes=_RANKS,
)
# The second operand is the result where nothing arrives.
sendrecv_status_p = communicating(
    "sendrecv_status",
    result=lambda x, template, **_: template.update(weak_type=False),
    agreement=not_compared,
    attributes={**_ENVELOPE, "status": np.int64, "exact": np.bool_},
)


def _adjoint(
    cotangent: jax.Array,
    x: ShapedArray,
    *,
    source: int,
    dest: int,
    sendtag: int,
    recvtag: int,
    **params: object,
) -> jax.Array:
    # The message the other way round. A tag that was given comes back as the tag that is expected,
    # so that messages told apart by tags stay apart.
    if recvtag >= 0:
        sendtag, recvtag = recvtag, sendtag
    way_back = {"source": dest, "dest": source, "sendtag": sendtag, "recvtag": recvtag}
    return sendrecv_p.bind(cotangent, **{**params, "shape": x.shape, "dtype": x.dtype}, **way_back)


def _check_source(*, source: object, **_: object) -> None:
    """Refuse the derivative of a message from anybody."""
    if source == ANYBODY:
        raise TypeError(
            "sendrecv: a message from MPI.ANY_SOURCE has no derivative: its adjoint would not "
            "know where to go; name the source, or wrap sendbuf in jax.lax.stop_gradient"
        )


def _batched_params(size: int, params: Params) -> Params:
    return {**params, "shape": (size, *params["shape"])}


linear(
    sendrecv_all_p,
    batch=(0, 0),
    adjoint=lambda cotangent, x, *, source, dest, comm, **_: sendrecv_all_p.bind(
        cotangent, source=dest, dest=source, shape=x.shape, dtype=x.dtype, comm=comm
    ),
    batched_params=_batched_params,
)
linear(
    sendrecv_p,
    batch=(0, 0),
    adjoint=_adjoint,
    batched_params=_batched_params,
    check_differentiable=_check_source,
)


def _status_jvp(
    primals: Operands, tangents: Tangents, *, status: int, exact: bool, **params: object
) -> tuple[jax.Array, Tangent]:
    x, template = primals
    is_inexact = jnp.issubdtype(x.dtype, jnp.inexact)
    if is_inexact:
        _check_source(**params)  # before anything is sent
    y = sendrecv_status_p.bind(x, template, status=status, exact=exact, **params)
    if not is_inexact:
        return y, zero_tangent(y)
    # As without a status on either side, there is one message more, or none where the tangent is
    # known to be zero. It has no status: one that is shorter than recvbuf is an error.
    tangent = zero_tangent(y)
    if not isinstance(tangents[0], ad.Zero):
        like = {"shape": template.shape, "dtype": template.dtype}
        tangent = sendrecv_p.bind(tangents[0], **like, **params)
    if params["source"] == NOBODY:
        both = map(ad.instantiate_zeros, (tangent, tangents[1]))
        tangent = jax.lax.select(np.False_, *both)
    return y, tangent


def _status_transpose(
    cotangent: Tangent, x: Primal, template: Primal, *, status: int, exact: bool, **params: object
) -> list[Tangent | None]:
    del status, exact
    back = None
    if isinstance(x, ad.UndefinedPrimal):
        like = jax.typeof(cotangent)
        (back,) = ad.primitive_transposes[sendrecv_p](
            cotangent, x, shape=like.shape, dtype=like.dtype, **params
        )
    if not isinstance(template, ad.UndefinedPrimal):
        return [back, None]
    from_nobody = params["source"] == NOBODY
    return [back, cotangent if from_nobody else ad.Zero(template.aval.to_tangent_aval())]


def _status_batched(operands: Operands, axes: Axes, **params: object) -> tuple[jax.Array, int]:
    _, batched = batch_in_front(operands, axes)
    # The elements of a shorter message would run through the rows.
    return sendrecv_status_p.bind(*batched, **{**params, "exact": True}), 0


ad.primitive_jvps[sendrecv_status_p] = _status_jvp
ad.primitive_transposes[sendrecv_status_p] = _status_transpose
batching.primitive_batchers[sendrecv_status_p] = _status_batched


def sendrecv(
    sendbuf: PyTree,
    recvbuf: _Tree,
    source: int,
    dest: int,
    *,
    sendtag: int = 0,
    recvtag: int | None = None,
    comm: Comm = None,
    status: MPI.Status | None = None,
    collective: bool = False,
) -> _Tree:
    """Send `sendbuf` to rank `dest` and receive an array from rank `source`.

    Args:
        sendbuf: array to send, or a pytree of arrays: a message for each, in order.
        recvbuf: array of the shape and dtype to receive, or a pytree like `sendbuf` of such
            arrays. It is not changed.
        source: the rank to receive from, a static integer; `MPI.PROC_NULL` for nobody, or
            `MPI.ANY_SOURCE` for any rank.
        dest: the rank to send to, a static integer, or `MPI.PROC_NULL` for nobody.
        sendtag: tag of the message sent.
        recvtag: tag to receive, `MPI.ANY_TAG`, or None for any tag among pfftjax's messages (on
            a communicator that pfftjax has not duplicated yet, see `duplicate`, None means
            `sendtag`).
        comm: communicator, `MPI.COMM_WORLD` by default.
        status: filled with source, tag and number of elements of what was received. Inside jitted
            code it is valid once the result is. With a status the message may be shorter than
            `recvbuf`; the rest of the result is then that of `recvbuf`. Without one, or
            under `jax.vmap`, that is an error; so is the derivative of a shorter one.
        collective: every rank of `comm` makes this call, with `MPI.PROC_NULL` where it has no
            partner: a ring, a line, an exchange of pairs. It is then checked as collectives are,
            and between GPUs it does not go by way of the host. Without tags, ANY_SOURCE and
            status; sendbuf and recvbuf have the same dtype, on all ranks.

    Returns:
        Array of the shape and dtype of `recvbuf`: what was received, or `recvbuf` itself where
        `source` is `MPI.PROC_NULL`.

    Raises:
        ValueError: a rank or a tag out of range, or what `collective` does not go with.
        TypeError: a rank or a tag that is not static, a dtype that cannot be sent, one buffer of
            floating-point numbers and one of others, or the derivative of a message from
            `MPI.ANY_SOURCE`.
        jax.errors.JaxRuntimeError: when it runs: a message of another size; if `collective`, on
            all ranks, partners that do not fit.

    Its adjoint is the message the other way round. Where it is differentiated on one side, let
    `sendbuf` depend on what is differentiated on the other side too, if only as ``0 * x``: JAX
    leaves constants out of derivatives, and the partner would wait. Ranks that have no partner
    need not call, unless `collective`.

    Example:
        >>> from mpi4py import MPI
        >>> rank, size = MPI.COMM_WORLD.rank, MPI.COMM_WORLD.size
        >>> left, right = (rank - 1) % size, (rank + 1) % size
        >>> int(sendrecv(rank, rank, source=left, dest=right)) == left
        True

    """
    private = as_private if collective else as_communicator
    comm = private(comm, "sendrecv")
    envelope = {
        "source": partner(source, "source", "sendrecv", comm),
        "dest": partner(dest, "dest", "sendrecv", comm),
        "sendtag": tag_number(sendtag, "sendtag", "sendrecv", comm),
        "recvtag": tag_number(recvtag, "recvtag", "sendrecv", comm),
    }

    def exchange(x: PyTree, template: PyTree) -> PyTree:
        return _sendrecv(
            as_array(x, "sendrecv", comm),
            as_array(template, "sendrecv", comm),
            envelope,
            comm,
            status,
            collective,
        )

    if isinstance(recvbuf, jax.Array) or jax.tree_util.all_leaves([recvbuf]):
        return exchange(sendbuf, recvbuf)
    return jax.tree.map(exchange, sendbuf, recvbuf)


def _sendrecv(
    x: jax.Array,
    template: jax.Array,
    envelope: dict[str, int],
    comm: Communicator,
    status: MPI.Status | None,
    collective: bool,
) -> jax.Array:
    kinds = [jnp.issubdtype(a.dtype, jnp.inexact) for a in (x, template)]
    if kinds[0] != kinds[1]:
        raise TypeError(
            f"{where('sendrecv', comm)}: sendbuf is {x.dtype} and recvbuf {template.dtype}, of "
            "which only one has a derivative; cast one of them"
        )
    if collective:
        _check_collective(x, template, envelope, status, comm)

    def exchange(number: int) -> jax.Array:
        if number != NO_STATUS:
            return sendrecv_status_p.bind(
                x, template, status=number, exact=False, **envelope, comm=comm
            )
        like = {"shape": template.shape, "dtype": template.dtype}
        if collective:
            ranks = {name: envelope[name] for name in _RANKS}
            received = sendrecv_all_p.bind(x, **like, **ranks, comm=comm)
        else:
            received = sendrecv_p.bind(x, **like, **envelope, comm=comm)
        if envelope["source"] != NOBODY:
            return received
        # Selected, not returned as it is: the derivative of the message must stay part of the
        # program on this rank too, or its partner waits.
        return jax.lax.select(np.False_, received, template)

    return with_status("sendrecv", status, comm, exchange)


def _check_collective(
    x: jax.Array,
    template: jax.Array,
    envelope: Mapping[str, int],
    status: MPI.Status | None,
    comm: Communicator,
) -> None:
    """Check that a message is one that `collective=True` goes with."""
    refused = [
        what
        for what, is_given in (
            ("a status", status is not None),
            ("MPI.ANY_SOURCE", envelope["source"] == ANYBODY),
            ("tags", (envelope["sendtag"], envelope["recvtag"]) != (0, DEFAULT_TAG)),
        )
        if is_given
    ]
    start = f"{where('sendrecv', comm)}: collective=True"
    if refused:
        raise ValueError(f"{start} does not go with {' or '.join(refused)}; leave that out")
    if x.dtype != template.dtype:
        raise ValueError(
            f"{start} wants one dtype on all ranks, but sendbuf is {x.dtype} and recvbuf "
            f"{template.dtype}; cast one of them"
        )

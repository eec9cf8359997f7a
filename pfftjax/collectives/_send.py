"""send and recv: one message from one rank to another."""

import jax
import numpy as np
from jax.interpreters import ad
from jax.typing import ArrayLike
from mpi4py import MPI

from pfftjax._runtime.arguments import as_array, over_leaves, where
from pfftjax._runtime.arrays import PyTree
from pfftjax._runtime.communicators import Comm, Communicator, as_communicator
from pfftjax._runtime.primitive import communicating, not_compared
from pfftjax._runtime.rematerialization import never_repeat
from pfftjax._runtime.rules import Operands, Tangent, Tangents, batch_along, zero_tangent

from ._partner import NOBODY, partner, tag_number
from ._status import NO_STATUS, with_status

send_p = communicating(
    "send",
    result=lambda *_, **__: [],
    agreement=not_compared,
    attributes={"dest": np.int32, "tag": np.int32},
    multiple_results=True,
)
recv_p = communicating(
    "recv",
    agreement=not_compared,
    attributes={"source": np.int32, "tag": np.int32, "status": np.int64, "exact": np.bool_},
)


# A send has no result, so no cotangent comes back through it: the receiver would differentiate a
# constant, silently.
def _send_jvp(
    primals: Operands, tangents: Tangents, *, comm: Communicator, **params: object
) -> tuple[list[jax.Array], list[Tangent]]:
    if not isinstance(tangents[0], ad.Zero):
        raise TypeError(
            f"{where('send', comm)}: send has no derivative, because nothing comes back through "
            "it; call sendrecv on both ranks (with MPI.PROC_NULL for the direction that is not "
            "used), or wrap the argument in jax.lax.stop_gradient"
        )
    return send_p.bind(*primals, comm=comm, **params), []


def _recv_jvp(
    primals: Operands, _: object, *, status: int, comm: Communicator, **params: object
) -> tuple[jax.Array, ad.Zero]:
    if status != NO_STATUS:
        raise TypeError(
            f"{where('recv', comm)}: with a status, part of x may be part of the result, and that "
            "has no derivative; wrap x in jax.lax.stop_gradient"
        )
    y = recv_p.bind(*primals, status=status, comm=comm, **params)
    return y, zero_tangent(y)


never_repeat(send_p)
never_repeat(recv_p)
ad.primitive_jvps[send_p] = _send_jvp
ad.primitive_jvps[recv_p] = _recv_jvp
batch_along(send_p, (0, 0))
# The elements of a shorter message would run through the rows.
batch_along(recv_p, (0, 0), lambda _, params: {**params, "exact": True})


def send(x: PyTree, dest: int, *, tag: int = 0, comm: Comm = None) -> None:
    """Send `x` to rank `dest`, which receives it by `recv` or `sendrecv`.

    Takes its place in the order of communication, and is sent whether or not anything depends on
    it. A large message waits for its receiver, so two ranks that both send first may wait for each
    other: that is what `sendrecv` is for. A message to this rank itself is copied, and waits for
    nothing.

    Args:
        x: array, or a pytree of arrays: a message for each, in order.
        dest: the rank to send to, a static integer, or `MPI.PROC_NULL` for nobody.
        tag: tag of the message, a static integer.
        comm: communicator, `MPI.COMM_WORLD` by default.

    Raises:
        ValueError: a rank or a tag out of range.
        TypeError: a rank or a tag that is not static, a dtype that cannot be sent, or the
            derivative: `sendrecv` has one.

    Example:
        >>> from mpi4py import MPI
        >>> rank, size = MPI.COMM_WORLD.rank, MPI.COMM_WORLD.size
        >>> if rank > 0:
        ...     send(float(rank), 0)
        >>> if rank == 0:
        ...     assert sum(recv(0.0, source) for source in range(1, size)) == sum(range(size))

    """
    comm = as_communicator(comm, "send")
    to = partner(dest, "dest", "send", comm)
    number = tag_number(tag, "tag", "send", comm)
    for leaf in jax.tree.leaves(x):
        send_p.bind(as_array(leaf, "send", comm), dest=to, tag=number, comm=comm)


@over_leaves
def recv(
    x: ArrayLike,
    source: int = MPI.ANY_SOURCE,
    *,
    tag: int | None = None,
    comm: Comm = None,
    status: MPI.Status | None = None,
) -> jax.Array:
    """Receive an array from rank `source`.

    Args:
        x: array of the shape and dtype to receive, or a pytree of such arrays: a message for
            each, in order. It is not changed.
        source: the rank to receive from, a static integer; `MPI.ANY_SOURCE` for any rank, or
            `MPI.PROC_NULL` for nobody.
        tag: tag to receive, `MPI.ANY_TAG`, or None for any tag among pfftjax's messages (on a
            communicator that pfftjax has not duplicated yet, see `duplicate`, None means 0).
        comm: communicator, `MPI.COMM_WORLD` by default.
        status: filled with source, tag and number of elements of what was received. Inside jitted
            code it is valid once the result is. With a status the message may be shorter than
            `x`; the rest of the result is then that of `x`. Without one, or under `jax.vmap`,
            that is an error.

    Returns:
        Array of the shape and dtype of `x`: what was received, or `x` itself from
        `MPI.PROC_NULL`.

    Raises:
        ValueError: a rank or a tag out of range.
        TypeError: a rank or a tag that is not static, a dtype that cannot be sent, or, with a
            status, the derivative with respect to `x`.
        jax.errors.JaxRuntimeError: when it runs: a message of another size. Another dtype of the
            same size is not noticed.

    What is received is a constant for derivatives, and `send` refuses to be differentiated:
    `sendrecv` has derivatives.

    Example:
        >>> from mpi4py import MPI
        >>> rank, status = MPI.COMM_WORLD.rank, MPI.Status()
        >>> send(3.0, rank, tag=5)
        >>> float(recv(0.0, rank, status=status)), status.Get_tag()
        (3.0, 5)

    """
    comm = as_communicator(comm, "recv")
    x = as_array(x, "recv", comm)
    shift = partner(source, "source", "recv", comm)
    number = tag_number(tag, "tag", "recv", comm)
    if shift == NOBODY and status is None:
        return x
    return with_status(
        "recv",
        status,
        comm,
        lambda slot: recv_p.bind(
            x, source=shift, tag=number, status=slot, exact=status is None, comm=comm
        ),
    )

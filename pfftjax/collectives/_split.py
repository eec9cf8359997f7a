"""Exchanges that go on while something else is computed: start them, and wait for them later.

What is started is the message, not the operation: `wait` takes the operand again, and is the
operation itself as far as values and derivatives are concerned. So a program with start and wait
has the derivatives of one without.
"""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
from jax.core import ShapedArray
from jax.interpreters import ad, batching
from jax.typing import ArrayLike

from pfftjax._runtime.arguments import as_array, one_entry_a_rank, where
from pfftjax._runtime.arrays import STATIC
from pfftjax._runtime.communicators import Comm, Communicator, as_private
from pfftjax._runtime.primitive import communicating, elements
from pfftjax._runtime.rematerialization import never_repeat
from pfftjax._runtime.rules import (
    Axes,
    Operands,
    Tangent,
    Tangents,
    batch_along,
    constant,
    zero_tangent,
)

from ._allgather import allgather_p
from ._alltoall import alltoall_p

# The operations that can be started, by the attribute that tells them apart.
_OPERATIONS = {False: alltoall_p, True: allgather_p}


def _agreement(x: ShapedArray, *_: object, same_for_all: bool, **__: object) -> str:
    return f"{'allgather' if same_for_all else 'alltoall'} {elements(x)}"


_ATTRIBUTES = {"same_for_all": np.bool_}

# x -> ticket
start_p = communicating(
    "start",
    result=lambda x, **_: x.update(shape=(2,), dtype=np.dtype("uint32"), weak_type=False),
    agreement=_agreement,
    attributes=_ATTRIBUTES,
)
# x, ticket -> what the operation gives on x
wait_p = communicating(
    "wait",
    result=lambda x, _, *, same_for_all, comm: x.update(
        shape=(comm.size, *x.shape) if same_for_all else x.shape, weak_type=False
    ),
    agreement=_agreement,
    attributes=_ATTRIBUTES,
)
constant(start_p)
# One message for a batch, with the batch inside its blocks.
batch_along(start_p, lambda *, same_for_all, **_: (0 if same_for_all else 1, None))


# The tangent's message was not started: it is the operation itself, and so is its adjoint.
def _wait_jvp(
    primals: Operands, tangents: Tangents, *, same_for_all: bool, comm: Communicator
) -> tuple[jax.Array, Tangent]:
    y = wait_p.bind(*primals, same_for_all=same_for_all, comm=comm)
    if isinstance(tangents[0], ad.Zero):
        return y, zero_tangent(y)
    return y, _OPERATIONS[same_for_all].bind(tangents[0], comm=comm)


# `jax.linear_transpose` sees start and wait with an unknown operand: the exchange is that of wait.
def _start_transpose(_: object, x: ad.UndefinedPrimal, **__: object) -> list[ad.Zero]:
    return [ad.Zero(x.aval.to_tangent_aval())]


def _wait_transpose(
    cotangent: Tangent, x: ad.UndefinedPrimal, _: object, *, same_for_all: bool, comm: Communicator
) -> list[jax.Array | None]:
    adjoint = ad.primitive_transposes[_OPERATIONS[same_for_all]]
    return [*adjoint(cotangent, x, comm=comm), None]


def _wait_batched(
    operands: Operands, axes: Axes, *, same_for_all: bool, comm: Communicator
) -> tuple[jax.Array, int]:
    (x, ticket), (axis, ticket_axis) = operands, axes
    if ticket_axis is not None or axis is None:
        raise ValueError(
            f"{where('wait', comm)}: start and wait of an exchange must be under the same jax.vmap"
        )
    moved = jnp.moveaxis(x, axis, 0 if same_for_all else 1)
    return wait_p.bind(moved, ticket, same_for_all=same_for_all, comm=comm), 1


# A ticket is good for one wait.
never_repeat(start_p)
never_repeat(wait_p)
ad.primitive_jvps[wait_p] = _wait_jvp
ad.primitive_transposes[start_p] = _start_transpose
ad.primitive_transposes[wait_p] = _wait_transpose
batching.primitive_batchers[wait_p] = _wait_batched


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Pending:
    """An exchange that has been started; a pytree, so that loops and branches can carry it."""

    x: jax.Array
    ticket: jax.Array
    same_for_all: bool = dataclasses.field(metadata=STATIC)
    comm: Communicator = dataclasses.field(metadata=STATIC)


def alltoall_start(x: ArrayLike, *, comm: Comm = None) -> Pending:
    """Begin an `alltoall`; `wait` gives its result.

    The operand is copied aside and travels while whatever comes before `wait` in the program is
    computed. Starting and waiting copy the data once more each, so this pays where the other ranks
    are late or the network is slow, and not for two ranks on one node that arrive together.

    Inside jitted code XLA may move computation that does not depend on the exchange: let what is
    to overlap come between start and wait, and use its result after `wait`, or in it.

    Args:
        x: array of shape (size of `comm`, ...), of the same size and dtype on every rank.
        comm: communicator, `MPI.COMM_WORLD` by default.

    Returns:
        What `wait` takes, once. An exchange that is never waited for keeps its memory, which is
        that of operand and result.

    Raises:
        ValueError, TypeError: as `alltoall`.

    Derivatives are those of `alltoall`; the exchange of cotangents is not split. `jax.checkpoint`
    saves the result of `wait`, and does not start again.

    Example:
        >>> import jax.numpy as jnp
        >>> from mpi4py import MPI
        >>> x = jnp.zeros((MPI.COMM_WORLD.size, 3)) + MPI.COMM_WORLD.rank
        >>> pending = alltoall_start(x)
        >>> other = jnp.sum(x**2)
        >>> [float(block[0]) for block in wait(pending)] == list(range(MPI.COMM_WORLD.size))
        True

    """
    comm = as_private(comm, "alltoall_start")
    x = as_array(x, "alltoall_start", comm)
    one_entry_a_rank(x, "alltoall_start", comm)
    return Pending(x, start_p.bind(x, same_for_all=False, comm=comm), False, comm)


def allgather_start(x: ArrayLike, *, comm: Comm = None) -> Pending:
    """Begin an `allgather`; `wait` gives its result. See `alltoall_start`.

    Args:
        x: array of any shape, of the same size and dtype on every rank.
        comm: communicator, `MPI.COMM_WORLD` by default.

    Returns:
        What `wait` takes, once.

    Raises:
        TypeError: as `allgather`.

    Example:
        >>> from mpi4py import MPI
        >>> pending = allgather_start(MPI.COMM_WORLD.rank)
        >>> wait(pending).tolist() == list(range(MPI.COMM_WORLD.size))
        True

    """
    comm = as_private(comm, "allgather_start")
    x = as_array(x, "allgather_start", comm)
    return Pending(x, start_p.bind(x, same_for_all=True, comm=comm), True, comm)


def wait(pending: Pending) -> jax.Array:
    """Wait for an exchange that was started, and return its result.

    Every rank of the communicator waits for its exchanges at the same places of the program, in
    any order among those that were started; each once.

    Args:
        pending: from `alltoall_start` or `allgather_start`.

    Returns:
        What `alltoall` or `allgather` returns.

    Raises:
        TypeError: `pending` is something else.
        ValueError: start and wait are not under the same `jax.vmap`.
        jax.errors.JaxRuntimeError: when it runs: an exchange that was waited for already.

    """
    if not isinstance(pending, Pending):
        raise TypeError(
            f"wait: takes what alltoall_start or allgather_start returned, got {pending!r}"
        )
    comm = pending.comm
    if pending.ticket.shape != (2,):
        raise ValueError(
            f"{where('wait', comm)}: start and wait of an exchange must be under the same jax.vmap"
        )
    if not pending.same_for_all:
        one_entry_a_rank(pending.x, "wait", comm)
    return wait_p.bind(pending.x, pending.ticket, same_for_all=pending.same_for_all, comm=comm)

"""MPI.Status objects that programs write to.

A program names the status by the order in which this process first used it, as it does
communicators, and the C++ core writes to it when the message has come: no Python runs meanwhile.
"""

import ctypes
from collections.abc import Callable

import jax
from mpi4py import MPI

from pfftjax._runtime.arguments import where
from pfftjax._runtime.communicators import Communicator
from pfftjax._runtime.ffi import native
from pfftjax._runtime.ordering import is_tracing

NO_STATUS = -1

# Programs that write to a status may run as long as the process lives, and so does the status.
_numbers: dict[int, tuple[MPI.Status, int]] = {}
# Calls outside of programs come and go, and share one status while none waits for it.
_spare: list[tuple[MPI.Status, int]] = []


def _add(status: MPI.Status) -> int:
    return native.add_status(MPI._addressof(status))


def with_status(
    operation: str,
    status: MPI.Status | None,
    comm: Communicator,
    receive: Callable[[int], jax.Array],
) -> jax.Array:
    """The result of `receive(number of the status)`.

    Inside a program, `status` is written when the result is there. Outside it is valid on return.
    """
    if status is None:
        return receive(NO_STATUS)
    if not isinstance(status, MPI.Status):
        raise TypeError(
            f"{where(operation, comm)}: status must be an mpi4py.MPI.Status or None, got "
            f"{type(status).__name__}"
        )
    if is_tracing():
        if id(status) not in _numbers:
            _numbers[id(status)] = status, _add(status)
        return receive(_numbers[id(status)][1])
    try:
        written, number = _spare.pop()
    except IndexError:
        written = MPI.Status()
        number = _add(written)
    result = jax.block_until_ready(receive(number))
    ctypes.memmove(MPI._addressof(status), MPI._addressof(written), MPI._sizeof(MPI.Status))
    _spare.append((written, number))
    return result

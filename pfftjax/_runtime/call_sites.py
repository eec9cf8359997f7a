"""Which line of the user's program makes a call, for the texts of errors.

Programs are the same bytes on every rank and in every run, so a line cannot be written into one. A
call carries a key instead, made of what the program communicates up to it, and this process keeps
a table from keys to lines, which the C++ core reads (call_sites.h). Where several programs begin
alike, a key has several lines.

What is called outside of jit is compiled once for all lines that do the same. Such a call is noted
each time, with the number of calls that the communicator has begun.
"""

import threading
from collections.abc import Callable
from typing import TypeVar

from .communicators import Communicator
from .ffi import native
from .user_code import user_line

_Result = TypeVar("_Result")

# The operations of the C++ core whose primitives have other names.
_NAMES = {
    "exchange_counts": "alltoallv (counts)",
    "sendrecv_all": "sendrecv (collective)",
    "sendrecv_status": "sendrecv",
    "pencil_transpose": "transpose",
    "fft_across": "fft",
}


class _Here(threading.local):
    is_eager = False


_here = _Here()


def note_lowered(comm: int, key: str, before: str, signature: int, program: int) -> None:
    """Remember the line of an operation that is being lowered.

    Args:
        comm: number of its communicator.
        key: what the call carries.
        before: the key of the collective before it on that communicator, or empty.
        signature: of the list of collectives that ends with it; 0 for a message.
        program: a number that this process has given to its program.

    """
    line = "" if _here.is_eager else user_line()
    native.note_call(comm, key, before, signature, program, line)


def noted(name: str, implementation: Callable[..., _Result]) -> Callable[..., _Result]:
    """`implementation` of primitive `name`, for calls outside of jit, which are noted each."""
    operation = _NAMES.get(name, name)

    def run(*operands: object, comm: Communicator, **params: object) -> _Result:
        if comm.size == 1:
            return implementation(*operands, comm=comm, **params)
        native.note_eager_call(comm.number, operation, user_line())
        before, _here.is_eager = _here.is_eager, True
        try:
            return implementation(*operands, comm=comm, **params)
        finally:
            _here.is_eager = before

    return run

"""Outside of programs: an error on one rank is an error on all, and all ranks ask for the same."""

import contextlib
import zlib
from collections.abc import Callable, Iterator
from typing import TypeVar

import jax
from mpi4py import MPI

T = TypeVar("T")

# The other ranks raise the first of these types that fits the error of the failing one, so that
# `except FileNotFoundError` means the same on every rank.
_TYPES = (
    FileNotFoundError,
    FileExistsError,
    PermissionError,
    IsADirectoryError,
    NotADirectoryError,
    OSError,
    ImportError,
    KeyError,
    ValueError,
    TypeError,
    MemoryError,
)


def _free(comm: MPI.Comm, keyval: int, own: MPI.Comm) -> None:
    # MPI_COMM_WORLD goes while MPI ends, and its duplicate with it.
    if comm not in (MPI.COMM_WORLD, MPI.COMM_SELF):
        own.Free()


_duplicate = MPI.Comm.Create_keyval(delete_fn=_free)


def private(comm: MPI.Intracomm) -> MPI.Intracomm:
    """A duplicate of `comm`, so that no message of the caller's is taken for ours. Collective.

    It is kept with `comm` and freed with it: between nodes Open MPI 5.0 loses some kilobytes with
    each duplicate on which there was a collective. What this process has begun is finished first.
    On several nodes Open MPI 5 makes communicators of its own within the first collective on one
    (coll/han), and only one at a time in an order that ranks need not have alike: a rank that is
    still in that collective, and one that is here already, would wait for each other for ever.
    """
    jax.effects_barrier()
    own = comm.Get_attr(_duplicate)
    if not isinstance(own, MPI.Intracomm):
        own = comm.Dup()
        comm.Set_attr(_duplicate, own)
    return own


@contextlib.contextmanager
def together(comm: MPI.Intracomm, operation: str) -> Iterator[None]:
    """Wait for all ranks at the end; what one raised, all raise, with its text.

    Collective over `comm`. The body must not wait for another rank that may have failed.
    """
    failure: Exception | None = None
    try:
        yield
    except Exception as error:
        failure = error
    first = comm.allreduce(comm.size if failure is None else comm.rank, MPI.MIN)
    if first == comm.size:
        return
    mine = None
    if comm.rank == first and failure is not None:
        kind = next((i for i, t in enumerate(_TYPES) if isinstance(failure, t)), None)
        # The text of a KeyError is the repr of what it was made of.
        text = failure.args[0] if isinstance(failure, KeyError) and failure.args else failure
        mine = kind, str(text).removeprefix(f"{operation}: ") or type(failure).__name__
    kind, text = comm.bcast(mine, first)
    here = f"{operation} on rank {first} of {comm.size}: "
    error = RuntimeError if kind is None else _TYPES[kind]
    raise error(text if text.startswith(here) else here + text) from failure


def on_root(work: Callable[[], T], comm: MPI.Intracomm, operation: str) -> T:
    """Do `work` on rank 0 for all ranks; they get its result, or its error. Collective."""
    result = None
    with together(comm, operation):
        if comm.rank == 0:
            result = work()
    return comm.bcast(result)


def same_everywhere(
    asked: str,
    comm: MPI.Intracomm,
    here: str,
    remedy: str = "every rank must call with the same names, shapes and dtypes",
) -> None:
    """Raise on every rank if the ranks ask for different things. Collective over `comm`."""
    key = zlib.crc32(asked.encode())
    if comm.allreduce(key, MPI.MIN) != comm.allreduce(key, MPI.MAX):
        everybody = comm.allgather(asked)
        rank = next(r for r, other in enumerate(everybody) if other != everybody[0])
        raise RuntimeError(
            f"{here}: rank 0 asks for {everybody[0]} and rank {rank} for {everybody[rank]}; "
            f"{remedy}"
        )

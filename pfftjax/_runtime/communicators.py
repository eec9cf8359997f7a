"""Communicators by number.

A compiled program names its communicator by the order in which this process first used it: 0 is
MPI_COMM_WORLD. No pointer, handle or rank enters a program, so all ranks, and all runs, compile
the same bytes.
"""

import functools
import os
import warnings

import jax
from mpi4py import MPI

from . import launcher
from .ffi import library_version, native
from .options import options
from .ordering import communicates
from .user_code import user_line
from .waiting import ALL_IMPORT, wait_for


def _world_ranks(mpi: MPI.Intracomm) -> list[int]:
    """The ranks of `mpi`, as MPI_COMM_WORLD numbers them; negative for those that it has not."""
    group, of_world = mpi.Get_group(), MPI.COMM_WORLD.Get_group()
    ranks = group.Translate_ranks(group=of_world)
    group.Free()
    of_world.Free()
    return [max(rank, -1) for rank in ranks]


@jax.tree_util.register_static
class Communicator:
    """An MPI communicator as a static value of a JAX program: hashed and compared by its number.

    Made by `communicator`. Keeps the mpi4py communicator alive.
    """

    __slots__ = ("__weakref__", "has_others", "mpi", "number", "rank", "size")

    def __init__(self, mpi: MPI.Intracomm):
        """Register `mpi` under the next number. No communication."""
        is_world = mpi == MPI.COMM_WORLD
        world_ranks = [] if is_world else _world_ranks(mpi)
        self.number: int = native.add_communicator(MPI._addressof(mpi), world_ranks)
        # Whether some of its ranks have another MPI_COMM_WORLD; then all of them find such ranks.
        self.has_others: bool = -1 in world_ranks
        self.mpi: MPI.Intracomm = mpi
        self.rank: int = mpi.Get_rank()
        self.size: int = mpi.Get_size()

    def __hash__(self) -> int:
        return hash((Communicator, self.number))

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Communicator) and other.number == self.number

    def __repr__(self) -> str:
        # The rank is left out: this text appears in programs.
        return f"Communicator({self.number}, size={self.size})"


def _note_freed(_mpi: MPI.Comm, _keyval: int, wrapper: Communicator) -> None:
    native.note_freed(wrapper.number)


# MPI itself keeps the wrapper with the communicator: a freed communicator forgets it, so that a
# new one that reuses its handle is never taken for the old one.
_keyval = MPI.Comm.Create_keyval(delete_fn=_note_freed)


def _make_private(comm: Communicator, operation: str, waits_for: str) -> None:
    """Duplicate `comm`, collectively, saying after a while what this rank waits for.

    The watch looks after this wait as after those of calls.
    """
    native.duplicate_start(comm.number, operation, user_line())
    made = functools.partial(native.duplicate_poll, comm.number)
    wait_for(made, comm.rank, comm.size, waits_for)


def _compare_settings(comm: Communicator) -> None:
    """Raise on all ranks where they would wait for each other, as they check, profile, or cut
    messages, in different ways. Collective.
    """
    names = ("check", "first_call", "lazy_world", "max_chunk_bytes", "shared_memory", "profile")
    settings = options.as_set(*names)
    lines = "\n".join(f"{name}={value}" for name, value in settings.items())
    how = native.compare(comm.number, lines) if comm.size > 1 else ""
    if how:
        raise RuntimeError(
            f"pfftjax: the environment differs between ranks: {how}; export it to all of them "
            "(with Open MPI: mpirun -x PFFTJAX_CHECK)"
        )


def _register_world() -> Communicator:
    """MPI_COMM_WORLD, with its private duplicates.

    Every rank of a job imports pfftjax, so that this is the moment at which a duplicate waits for
    nobody who takes no part: later, a send between two ranks must not wait for a third.
    """
    world = Communicator(MPI.COMM_WORLD)
    MPI.COMM_WORLD.Set_attr(_keyval, world)
    if not options.lazy_world:
        _make_private(world, "import pfftjax", ALL_IMPORT)
        _compare_settings(world)
    text = launcher.warn_alone(os.environ, world.size, library_version)
    if text is not None:
        warnings.warn(text, RuntimeWarning, stacklevel=2)
    return world


world = _register_world()


# Operations take one of these as ``comm=``; None stands for MPI_COMM_WORLD.
Comm = MPI.Comm | Communicator | None


def as_communicator(comm: Comm, operation: str) -> Communicator:
    """The wrapper of `comm`, MPI_COMM_WORLD for None; the same one for the same communicator."""
    communicates()
    if comm is None:
        return world
    if isinstance(comm, Communicator):
        return comm
    if not isinstance(comm, MPI.Comm):
        raise TypeError(
            f"{operation}: comm must be an mpi4py communicator or None for MPI.COMM_WORLD, got "
            f"{type(comm).__name__}"
        )
    if comm == MPI.COMM_NULL:
        raise ValueError(
            f"{operation} on rank {world.rank}: comm is MPI.COMM_NULL; this rank is not a member "
            "of the communicator and must not call, or the communicator has been freed"
        )
    if not isinstance(comm, MPI.Intracomm):
        raise TypeError(f"{operation}: comm is an intercommunicator; merge it first: comm.Merge()")
    known = comm.Get_attr(_keyval)
    if isinstance(known, Communicator):
        return known
    new = Communicator(comm)
    comm.Set_attr(_keyval, new)
    return new


def as_private(comm: Comm, operation: str) -> Communicator:
    """The wrapper of `comm` with its private duplicates; collective on the first call.

    For operations that every rank of `comm` takes part in. While they are traced, not when they
    run: XLA's threads would meet the user's own calls on `comm`, which go on meanwhile.
    """
    wrapper = as_communicator(comm, operation)
    if not native.duplicate_poll(wrapper.number):
        # Messages travel on the duplicate from now on; those of earlier programs go the old way.
        jax.effects_barrier()
        _make_private(
            wrapper,
            operation,
            f"the other ranks of the communicator to come to their first collective on it; here "
            f"it is {operation}",
        )
        # The ranks of MPI_COMM_WORLD have done so at import. A rank that runs a program of
        # jax.export here, by which it makes the duplicates, would not be in this comparison.
        if options.lazy_world or wrapper.has_others:
            _compare_settings(wrapper)
    return wrapper


def communicator(comm: Comm = None) -> Communicator:
    """`comm` as a value that jitted functions take as an argument.

    mpi4py's communicators cannot be hashed, so JAX refuses them. What this returns can be passed
    to `jax.jit`, as a static argument or as any other (it is a pytree without leaves), and as
    ``comm=`` to every operation. Another communicator makes another program.

    Args:
        comm: an mpi4py intracommunicator, `MPI.COMM_WORLD` by default. No communication.

    Returns:
        The same object for the same communicator, with attributes mpi, rank and size.

    Raises:
        TypeError, ValueError: `comm` is no intracommunicator, or null.

    Example:
        >>> import jax
        >>> from pfftjax.collectives import allreduce
        >>> total = jax.jit(lambda x, comm: allreduce(x, comm=comm))
        >>> float(total(1.0, communicator())) == communicator().size
        True

    """
    return as_communicator(comm, "communicator")


def duplicate(comm: MPI.Comm) -> None:
    """Make pfftjax's private duplicates of `comm` now. Collective over `comm`.

    The first collective on a communicator does this by itself, so only programs need it that send
    messages (`send`, `recv`, `sendrecv`) on a communicator of their own before any collective on
    it. Until then messages travel on the communicator itself, where `MPI.ANY_TAG` is refused and
    wildcard receives of others could take them; and a message that is sent before must be received
    before. MPI_COMM_WORLD is duplicated at import.

    Args:
        comm: an mpi4py intracommunicator; every rank of it must call.

    Raises:
        TypeError, ValueError: `comm` is no intracommunicator, or null.

    Example:
        >>> from mpi4py import MPI
        >>> duplicate(MPI.COMM_WORLD.Split(0))

    """
    as_private(comm, "duplicate")

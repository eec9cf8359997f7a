"""How this process becomes a rank of a job, what that changes in it, and how the job ends.

A rank that fails ends the job; a rank that has finished waits for the others. Otherwise the others
would wait in MPI for a message that never comes.
"""

import atexit
import contextlib
import functools
import os
import re
import sys
import threading
import time
import traceback
import warnings
from types import TracebackType

import jax
import mpi4py
from mpi4py import MPI

from . import device as _device  # noqa: F401 (before anything starts a backend)
from . import ordering, support, transports, while_loop
from .communicators import world
from .ffi import native
from .options import unknown, warning_of

# A child of fork must not speak MPI.
_PID = os.getpid()


def abort_job(reason: str) -> None:
    """End all ranks with status 1, after writing `reason` to standard error.

    Does nothing on a single rank, or when MPI is not there any more.
    """
    if world.size > 1 and os.getpid() == _PID and not native.finalized():
        with contextlib.suppress(Exception):
            sys.stdout.flush()
            sys.stderr.flush()
        native.abort_job(f"rank {world.rank} of {world.size} {reason}")


def _name(kind: type[BaseException], value: BaseException | None) -> str:
    if "pfftjax: " in str(value):  # printed in full just before
        return f"the {kind.__name__} above"
    return f"{kind.__name__}: {value}".strip()


def _is_from_here(trace: TracebackType | None) -> bool:
    """Whether the exception comes from this package, or through it."""
    package = __name__.partition(".")[0]
    return any(
        frame.f_globals.get("__name__", "").partition(".")[0] == package
        for frame, _ in traceback.walk_tb(trace)
    )


# An error that every rank of a communicator raises says so.
_RAISED_BY_ALL = re.compile(
    rf"failed on rank (\d+) of .*{re.escape(native.raised_by_all)}", re.DOTALL
)
_SECONDS_FOR_THE_FIRST = 5.0


def _let_the_first_speak(value: BaseException | None) -> None:
    """Let the first rank print an error that every rank raises, and end the job.

    The others speak only if it does not end: it may have caught the error.
    """
    found = _RAISED_BY_ALL.search(str(value))
    if found and int(found[1]) > 0:
        time.sleep(_SECONDS_FOR_THE_FIRST)


def join_job() -> None:
    """Make this process a rank of its job: what `import pfftjax` changes in a process.

    The modules of this folder have done a part of it when they were imported, as their constants
    follow from it:

    - `device`: tells JAX which GPU to take and which part of its memory, where ranks have any.
    - `ffi`: loads the core and its backend for this MPI, registers handlers with JAX, and lets
      glibc's malloc keep memory that is freed (`PFFTJAX_KEEP_BYTES`).
    - `communicators`: duplicates MPI_COMM_WORLD, for which it waits for all ranks. With more than
      one, the core starts the thread of the watch, and handlers of SIGTERM (unless the program has
      one) and SIGINT that say what the rank was in, and then do what the signal did before.
    - `ordering`: registers the effects of operations with JAX.

    The rest is done here:

    - Functions inside JAX are wrapped (`ordering`, `while_loop`). Where JAX is newer than the
      tested ones, or another one than they know, rank 0 warns of what that degrades.
    - `threading.Thread.start` tells the watch that the process has several threads.
    - `sys.excepthook` and `threading.excepthook` show the exception as before, and end the job.
    - Rank 0 warns of variables of the environment that begin like pfftjax's and are none.
    - An exit handler, `MPI.Finalize` and an attribute of MPI_COMM_SELF wait for what is under way
      and for the other ranks, before MPI is finalized.

    docs/sharp-bits.md has this list for users.
    """
    transports.configure()
    while_loop.change_jax()
    degraded = support.warn_of_jax(jax.__version_info__, ordering.change_jax())
    if world.rank == 0:
        for text in filter(None, [degraded, *map(warning_of, unknown(os.environ))]):
            warnings.warn(text, RuntimeWarning, stacklevel=2)
    _abort_on_error()
    _note_threads()
    # Registered after JAX's own exit handlers, so run before them, and long before mpi4py
    # finalizes MPI.
    atexit.register(_leave)
    _leave_before_finalize()


def _note_threads() -> None:
    """Tell the watch of threads, any of which may make the call that another rank waits for."""
    if threading.active_count() > 1:
        native.note_thread()
    start = threading.Thread.start

    @functools.wraps(start)
    def note_and_start(self: threading.Thread) -> None:
        native.note_thread()
        start(self)

    threading.Thread.start = note_and_start


def _abort_on_error() -> None:
    """Let uncaught exceptions end the job.

    Of exceptions in threads, those in threads that communicate: nobody waits for another one's
    message (one that writes a log, say), and Python shows its exception and goes on.
    """
    show = sys.excepthook

    def on_exception(
        kind: type[BaseException], value: BaseException, trace: TracebackType | None
    ) -> None:
        _let_the_first_speak(value)
        show(kind, value, trace)
        abort_job(f"failed with {_name(kind, value)}; the other ranks would wait for it")

    sys.excepthook = on_exception

    show_in_thread = threading.excepthook

    def on_thread_exception(args: threading.ExceptHookArgs) -> None:
        _let_the_first_speak(args.exc_value)
        show_in_thread(args)
        if issubclass(args.exc_type, SystemExit):
            return
        if ordering.has_communicated() or _is_from_here(args.exc_traceback):
            abort_job(
                f"failed in a thread with {_name(args.exc_type, args.exc_value)}; the other "
                "ranks would wait for it"
            )

    threading.excepthook = on_thread_exception


def _leave_before_finalize() -> None:
    """Finish the asynchronous work of a program that finalizes MPI itself first.

    A wait inside MPI_Finalize comes too late for MPICH, which locks no more from its first line
    on: if another thread is in MPI then, such as the watch, the heap is destroyed, or the job ends
    in an error. A caller gets there who had taken the function from mpi4py before.
    """
    finalize = MPI.Finalize

    @functools.wraps(finalize)
    def leave_and_finalize() -> None:
        _leave()
        native.prepare_to_finalize()
        finalize()

    MPI.Finalize = leave_and_finalize
    # Where the program does not call it, mpi4py finalizes MPI when Python has ended. Python calls
    # exit functions from the latest to the first, and so this one before mpi4py's.
    rc = mpi4py.rc
    if rc.finalize or (rc.finalize is None and rc.initialize):
        native.prepare_to_finalize_at_exit()
    # MPI begins to finalize by deleting this.
    keyval = MPI.Comm.Create_keyval(delete_fn=lambda *_: _leave())
    MPI.COMM_SELF.Set_attr(keyval, True)


def _leave() -> None:
    """Finish what is still running, in whatever thread it was called, then wait until every rank
    has come here; before MPI_Finalize, and once.

    Until then the watch thread answers for this rank: one that waits for it learns that it has
    ended. Exit handlers that come later may communicate, until MPI is finalized.
    """
    if os.getpid() != _PID or native.finalized():
        return
    try:
        jax.effects_barrier()
        ordering.wait_for_threads(native.leave_is_stuck)
    except Exception as error:
        # An error that nobody has looked at must not end with status 0.
        sys.excepthook(type(error), error, error.__traceback__)
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(1)  # a single rank: no job to abort, and an exit handler cannot set the status
    native.leave_start()
    pause = 1e-4
    while not native.leave_poll():
        time.sleep(pause)
        pause = min(2 * pause, 0.05)
    ordering.run_at_once()

"""A file from which a long run goes on."""

import os
import pathlib
import signal
import threading
import time
from collections.abc import Iterable, Mapping
from types import FrameType
from typing import Any

import jax.numpy as jnp
from mpi4py import MPI

from pfftjax._runtime.agreement import on_root, private
from pfftjax.collectives import allreduce
from pfftjax.pencils import Pencil
from pfftjax.pm import Particles

from ._contents import Path
from ._fields import attributes as attributes_of
from ._fields import check_how
from ._file import Layout
from ._particles import load_particles, save_particles


class Checkpoint:
    """The file of `pm.Simulation.snapshots` from which a run goes on in another job.

    It is replaced when it is old enough or a signal asks for it, at the end of the step that is
    under way, and only by one that is whole and on disk.

    Args:
        path: of the file, the same on every rank.
        minutes: how old it may become. At 0 it is written after every step but the last.
        signals: those that ask for a checkpoint, whichever rank they reach; the run goes on. By
            default SIGUSR1, which a batch system sends before the time is up
            (``#SBATCH --signal=USR1@300``), or ``scancel --signal=USR1``. A handler that the
            program has set before is called as well. Signals can be handled in the main thread
            only: made in another one, a checkpoint must be given none.
        layout: as in `save`. "per_rank" has all ranks write at once, which pip's h5py cannot do
            in one file: for many ranks.

    Raises:
        ValueError: `minutes` below zero, no signal, or signals outside of the main thread; an
            unknown layout.

    Example:
        >>> import pathlib, tempfile
        >>> from mpi4py import MPI
        >>> folder = MPI.COMM_WORLD.bcast(tempfile.mkdtemp() if MPI.COMM_WORLD.rank == 0 else "")
        >>> checkpoint = Checkpoint(pathlib.Path(folder) / "run.h5", minutes=20)
        >>> checkpoint.minutes
        20.0

    """

    def __init__(
        self,
        path: Path,
        *,
        minutes: float = 30.0,
        signals: Iterable[int] = (signal.SIGUSR1,),
        layout: Layout = "shared",
    ) -> None:
        if not minutes >= 0:
            raise ValueError(f"Checkpoint: minutes must be zero or more, got {minutes!r}")
        self.path: pathlib.Path = pathlib.Path(os.fspath(path))
        self.minutes: float = float(minutes)
        check_how("w", layout)
        self.layout: Layout = layout
        self._last: float = time.monotonic()
        self._is_asked_for = False
        numbers = [signal.Signals(number) for number in signals]
        if numbers and threading.current_thread() is not threading.main_thread():
            raise ValueError(
                "Checkpoint: signals can be handled in the main thread only; make it there, or "
                "pass signals=()"
            )
        for number in numbers:
            self._listen_to(number)

    def _listen_to(self, number: signal.Signals) -> None:
        before = signal.getsignal(number)

        def ask(received: int, frame: FrameType | None) -> None:
            self._is_asked_for = True
            if callable(before):
                before(received, frame)

        signal.signal(number, ask)

    def load(
        self, mesh: Pencil, capacity: int | None
    ) -> tuple[Particles, Mapping[str, Any]] | None:
        """The particles, on the ranks that own them, and the attributes; None if there is no file.

        Args:
            mesh: that of forces, on this job's grid.
            capacity: particles that each rank has room for, by default as many as it takes.

        Raises:
            ValueError, KeyError, TypeError, OSError, ImportError: as `load_particles`.

        """
        comm = private(mesh.grid.comm)
        is_there = on_root(self.path.exists, comm, "Checkpoint.load")
        if not is_there:
            return None
        particles = load_particles(self.path, mesh, capacity=capacity)
        return particles, attributes_of(self.path, mesh.grid)

    def save_if_due(
        self, particles: Particles, mesh: Pencil, attributes: Mapping[str, object]
    ) -> None:
        """Replace the file, if by the clock of rank 0 it is old enough, or a rank was asked to.

        Raises:
            TypeError, OSError, ImportError: as `save_particles`.

        """
        comm = mesh.grid.communicator
        is_old = comm.rank == 0 and time.monotonic() - self._last >= 60 * self.minutes
        if allreduce(jnp.asarray(self._is_asked_for or is_old), MPI.LOR, comm=comm):
            self._is_asked_for = False
            save_particles(
                self.path, particles, mesh, attributes=attributes, mode="w", layout=self.layout
            )
            self._last = time.monotonic()

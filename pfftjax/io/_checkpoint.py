"""A file from which a long run goes on."""

import os
import pathlib
import time
from collections.abc import Mapping
from typing import Any

from pfftjax._runtime.agreement import on_root, private
from pfftjax.pencils import Pencil
from pfftjax.pm import Particles

from ._contents import Path
from ._fields import attributes as attributes_of
from ._particles import load_particles, save_particles


class Checkpoint:
    """The file of `pm.Simulation.snapshots` from which a run goes on in another job.

    It is replaced when it is old enough, and only by one that is whole and on disk.

    Args:
        path: of the file, the same on every rank.
        minutes: how old it may become. At 0 it is written after every step.

    Example:
        >>> import pathlib, tempfile
        >>> from mpi4py import MPI
        >>> folder = MPI.COMM_WORLD.bcast(tempfile.mkdtemp() if MPI.COMM_WORLD.rank == 0 else "")
        >>> checkpoint = Checkpoint(pathlib.Path(folder) / "run.h5", minutes=20)
        >>> checkpoint.minutes
        20.0

    """

    def __init__(self, path: Path, *, minutes: float = 30.0) -> None:
        if not minutes >= 0:
            raise ValueError(f"Checkpoint: minutes must be zero or more, got {minutes!r}")
        self.path: pathlib.Path = pathlib.Path(os.fspath(path))
        self.minutes: float = float(minutes)
        self._last: float = time.monotonic()

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
        with private(mesh.grid.comm) as comm:
            is_there = on_root(self.path.exists, comm, "Checkpoint.load")
        if not is_there:
            return None
        particles = load_particles(self.path, mesh, capacity=capacity)
        return particles, attributes_of(self.path, mesh.grid)

    def save_if_due(
        self, particles: Particles, mesh: Pencil, attributes: Mapping[str, object]
    ) -> None:
        """Replace the file, if by the clock of rank 0 it is old enough.

        Raises:
            TypeError, OSError, ImportError: as `save_particles`.

        """
        with private(mesh.grid.comm) as comm:
            is_due = comm.bcast(time.monotonic() - self._last >= 60 * self.minutes)
        if is_due:
            save_particles(self.path, particles, mesh, attributes=attributes, mode="w")
            self._last = time.monotonic()

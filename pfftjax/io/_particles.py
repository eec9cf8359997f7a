"""Particles to and from HDF5."""

import os
from collections.abc import Mapping

import jax.numpy as jnp
import numpy as np
from jax.typing import DTypeLike

from pfftjax._runtime.agreement import private, same_everywhere, together
from pfftjax.pencils import Pencil, ProcessGrid
from pfftjax.pencils.internal import block
from pfftjax.pm import Particles, to_owners
from pfftjax.pm.internal import check_fits, default_capacity, to_owners_with_room

from . import _file
from ._contents import Contents, Dataset, Path, host
from ._fields import check_how, on_this_rank
from ._file import Layout
from ._kept import with_kept
from ._mode import Mode

_TABLES = ("cell", "offset", "momentum")
# A prefix of the names of what they know of themselves: the file may have fields of another box.
_OF_PARTICLES = "particles_"


def save_particles(
    path: Path,
    particles: Particles,
    mesh: Pencil,
    *,
    attributes: Mapping[str, object] | None = None,
    mode: Mode = "x",
    layout: Layout = "shared",
) -> None:
    """Write particles to an HDF5 file, each rank its own.

    The file has the tables `cell`, `offset` and `momentum`, of shape (total, 3), rank after rank,
    and the attributes `mesh_shape` and, where the particles know them, `particles_scale_factor`
    and `particles_box_size`; positions in the box are
    ``(cell + offset) % mesh_shape * box_size / mesh_shape``. In everything else as `save`.

    Args:
        path: of the file, the same on every rank.
        particles: this rank's particles.
        mesh: the mesh that they are in units of, as `PencilFFT.input`.
        attributes: numbers, strings and arrays to keep with them; those of rank 0 are written.
        mode: as in `save`: "x" (a new file), "w" (replace), "a" (keep the fields that are there).
        layout: as in `save`.

    Raises:
        TypeError, ValueError: no particles of this mesh, or traced ones.
        FileExistsError, OSError, ImportError: as `save`.

    Example:
        >>> import pathlib, tempfile
        >>> from mpi4py import MPI
        >>> from pfftjax import PencilFFT, ProcessGrid, pm
        >>> mesh = PencilFFT((4, 4, 4), ProcessGrid(), real=True).input
        >>> n = mesh.local_shape[0] * mesh.local_shape[1] * 4
        >>> cell = jnp.stack([jnp.broadcast_to(mesh.indices(a), mesh.local_shape).ravel()
        ...                   for a in range(3)], -1)
        >>> at_rest = jnp.zeros((n, 3), "float32")
        >>> particles = pm.Particles(cell, at_rest, at_rest, jnp.int32(n), 64, (4, 4, 4))
        >>> folder = MPI.COMM_WORLD.bcast(tempfile.mkdtemp() if MPI.COMM_WORLD.rank == 0 else "")
        >>> save_particles(pathlib.Path(folder) / "particles.h5", particles, mesh)
        >>> int(load_particles(pathlib.Path(folder) / "particles.h5", mesh).used) == n
        True

    """
    with private(_grid_of(mesh, "save_particles").comm) as comm:
        with together(comm, "save_particles"):
            check_fits(particles, mesh, "save_particles")
            tables = {name: on_this_rank(getattr(particles, name), name) for name in _TABLES}
            used = int(np.asarray(on_this_rank(particles.used, "used")))
            if not 0 <= used <= particles.rows:
                raise ValueError(f"used is {used}, but the arrays have {particles.rows} rows")
            check_how(mode, layout)
            when_and_where = {
                f"{_OF_PARTICLES}{name}": np.asarray(on_this_rank(value, name), float)
                for name in ("scale_factor", "box_size")
                if (value := getattr(particles, name)) is not None
            }
        counts = comm.allgather(used)
        starts = [0, *np.cumsum(counts).tolist()]
        with together(comm, "save_particles"):
            if starts[-1] != particles.total:
                raise ValueError(
                    f"the ranks have {starts[-1]} particles, but total is {particles.total}"
                )
        asked = [(name, table.dtype.name) for name, table in tables.items()]
        how = f"{mode} {layout}"
        same_everywhere(f"{os.fspath(path)!r} {how} {asked}", comm, "save_particles")
        total = particles.total
        contents = Contents(
            datasets=tuple(
                Dataset(
                    name=name,
                    shape=(total, 3),
                    dtype=np.dtype(table.dtype),
                    dims=("particle", "axis"),
                    values=host(table)[:used],
                    order=(0, 1),
                    box_of=lambda rank: ((starts[rank], counts[rank]), (0, 3)),
                )
                for name, table in tables.items()
            ),
            sizes={"particle": total, "axis": 3},
            coordinates={},
            attributes={
                **(attributes or {}),
                **when_and_where,
                "mesh_shape": np.array(mesh.global_shape),
            },
        )
        if mode == "a":
            with together(comm, "save_particles"):
                contents = with_kept(path, contents, comm)
        _file.write(path, contents, comm, layout, "save_particles", replace=mode != "x")


def load_particles(
    path: Path,
    mesh: Pencil,
    *,
    capacity: int | None = None,
    dtype: DTypeLike | None = None,
) -> Particles:
    """Read particles that `save_particles` wrote, on any grid and number of ranks.

    Each rank reads an equal share, and `pm.to_owners` brings them to the owners of their cells.

    Args:
        path: of the file, the same on every rank.
        mesh: the mesh that they are in units of, as `PencilFFT.input`, on this job's grid.
        capacity: rows on each rank, as in `pm.to_owners`; by default as many as it takes.
        dtype: float32 or float64, of offset and momentum; by default as in the file.

    Returns:
        `Particles` on the ranks that own them, which know their scale factor and box if the file
        does; files of releases before these were stored do not.

    Raises:
        ValueError: they are in units of the cells of another mesh.
        FileNotFoundError, KeyError, TypeError, OSError, ImportError: as `load`.
        jax.errors.JaxRuntimeError: too small a capacity, as `pm.to_owners`.

    """
    comm = _grid_of(mesh, "load_particles").comm
    with together(comm, "load_particles"), _file.opened(path) as file:
        tables = [_file.find(file, name) for name in _TABLES]
        total = tables[0].shape[0]
        stored = tuple(int(n) for n in np.ravel(np.asarray(file.attrs.get("mesh_shape", ()))))
        if stored != mesh.global_shape:
            raise ValueError(
                f"the particles in {os.fspath(path)} are in units of the cells of a mesh "
                f"{stored}, but this one is {mesh.global_shape}; load them on that mesh, and "
                "then use particles.rescaled(mesh)"
            )
        if any(table.shape != (total, 3) for table in tables):
            raise ValueError(
                f"{os.fspath(path)}: the tables must have one shape (total, 3), got "
                f"{[table.shape for table in tables]}"
            )
        known = {
            name: np.asarray(file.attrs[_OF_PARTICLES + name], float)
            for name in ("scale_factor", "box_size")
            if _OF_PARTICLES + name in file.attrs
        }
        start, count = block(total, comm.size, comm.rank)
        rows = max(block(total, comm.size, 0)[1], 1)  # as many on every rank: one program
        padded = []
        for table in tables:
            wanted = dtype if table.dtype.kind == "f" else None
            into = _file.readable(table.dtype, wanted, f"{table.name} in {os.fspath(path)}")
            values = np.zeros((rows, 3), into)
            values[:count] = _file.read(table, ((start, count), (0, 3)), (0, 1), into)
            padded.append(jnp.asarray(values))
    n0, n1, n2 = mesh.global_shape
    cell, offset, momentum = padded
    shares = Particles(cell, offset, momentum, jnp.int32(count), total, (n0, n1, n2), **known)
    if capacity is None:
        return to_owners_with_room(shares, mesh, default_capacity(total, comm.size))
    return to_owners(shares, mesh, capacity)


def _grid_of(mesh: object, operation: str) -> ProcessGrid:
    if not isinstance(mesh, Pencil):
        raise TypeError(
            f"{operation}: mesh must be a Pencil, as PencilFFT.input, got {type(mesh).__name__}"
        )
    return mesh.grid

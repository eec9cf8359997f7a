"""Particles to and from HDF5."""

import os
from collections.abc import Mapping, Sequence
from typing import Any

import jax.numpy as jnp
import numpy as np
from jax.typing import DTypeLike

from pfftjax._runtime.agreement import private, same_everywhere, together
from pfftjax.pencils import Pencil, ProcessGrid
from pfftjax.pencils.internal import block, checked_pencil
from pfftjax.pm import Particles, to_owners
from pfftjax.pm.internal import Cosmology, check_fits, default_capacity, to_owners_with_room

from . import _file
from ._contents import Contents, Dataset, Path, host
from ._fields import attributes as attributes_of
from ._fields import check_how, on_this_rank
from ._file import Layout
from ._kept import with_kept
from ._mode import Mode

# The tables of particles, with the units that readers of other codes want to know.
_TABLES = {
    "cell": "cells of mesh_shape; modulo mesh_shape, where the particle started",
    "offset": "cells of mesh_shape, from there",
    "momentum": "a^2 dx/dt, x in comoving Mpc/h and t in 1/H0",
}
# Particles that keep their displacements have one more table for each order.
_DISPLACEMENTS = ("displacement1", "displacement2")
_PHYSICAL = {"position": "comoving Mpc/h", "velocity": "km/s, peculiar: a dx/dt"}
_PARAMETERS = ("Omega_c", "Omega_b", "h", "n_s", "sigma8", "Omega_k", "w0", "wa")
_OF_COSMOLOGY = "cosmology_"
# A prefix of the names of what they know of themselves: the file may have fields of another box.
_OF_PARTICLES = "particles_"
_KNOWN = ("scale_factor", "box_size")
_COUNTS = "particles_on_ranks"
_MOST_COUNTS = 8000  # an attribute of HDF5 has less than 64 KiB


def save_particles(
    path: Path,
    particles: Particles,
    mesh: Pencil,
    *,
    cosmology: Cosmology | None = None,
    physical: bool = False,
    attributes: Mapping[str, object] | None = None,
    mode: Mode = "x",
    layout: Layout = "shared",
) -> None:
    """Write particles to an HDF5 file, each rank its own.

    The file has the tables `cell`, `offset` and `momentum`, of shape (total, 3), rank after rank,
    each with its `units`, and the attributes `mesh_shape` and, where the particles know them,
    `particles_scale_factor` and `particles_box_size`; `particles_on_ranks` says how many each rank
    had (on 8000 ranks at most), so that the same grid reads them in the same order. Positions in
    the box are ``(cell + offset) % mesh_shape * box_size / mesh_shape``. A `cell` is also an
    identity, by which a particle is found again in another file. Displacements that particles keep
    are the tables `displacement1` and `displacement2`. In everything else as `save`.

    Args:
        path: of the file, the same on every rank.
        particles: this rank's particles.
        mesh: the mesh that they are in units of, as `PencilFFT.input`.
        cosmology: a `jax_cosmo.Cosmology`, whose parameters become attributes, as
            `cosmology_Omega_c`; `load_cosmology` reads them. The file does not keep the cosmology
            of particles whose place these take.
        physical: also write the tables `position` [comoving Mpc/h] and `velocity` [km/s], of
            shape (total, 3), which other codes read. Nothing reads them back here.
        attributes: numbers, strings and arrays to keep with them; those of rank 0 are written.
        mode: as in `save`: "x" (a new file), "w" (replace), "a" (keep the fields that are there).
        layout: as in `save`.

    Raises:
        TypeError, ValueError: no particles of this mesh, or traced ones; a cosmology without one
            of the parameters; `physical` of particles that do not know their box or scale factor.
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
    comm = private(checked_pencil(mesh, "save_particles", "mesh").grid.comm)
    with together(comm, "save_particles"):
        check_fits(particles, mesh, "save_particles")
        tables = {
            name: (on_this_rank(getattr(particles, name), name), units)
            for name, units in _TABLES.items()
        }
        if particles.displacements is not None:
            its = on_this_rank(particles.displacements, "displacements")
            tables |= {
                name: (its[:, order], "comoving Mpc/h, of perturbation theory")
                for order, name in enumerate(_DISPLACEMENTS)
            }
        used = int(np.asarray(on_this_rank(particles.used, "used")))
        if not 0 <= used <= particles.rows:
            raise ValueError(f"used is {used}, but the arrays have {particles.rows} rows")
        check_how(mode, layout)
        known = {
            f"{_OF_PARTICLES}{name}": np.asarray(on_this_rank(value, name), float)
            for name in _KNOWN
            if (value := getattr(particles, name)) is not None
        }
        given = {} if cosmology is None else parameters_of(cosmology, _PARAMETERS)
        parameters = {_OF_COSMOLOGY + k: float(on_this_rank(x, k)) for k, x in given.items()}
        if physical:
            values = particles.coordinates(), particles.velocities()
            for (name, units), x in zip(_PHYSICAL.items(), values, strict=True):
                tables[name] = on_this_rank(x, name), units
    counts = comm.allgather(used)
    starts = [0, *np.cumsum(counts).tolist()]
    with together(comm, "save_particles"):
        if starts[-1] != particles.total:
            raise ValueError(
                f"the ranks have {starts[-1]} particles, but total is {particles.total}"
            )
    asked = [(name, table.dtype.name) for name, (table, _) in tables.items()]
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
                attributes={"units": units},
            )
            for name, (table, units) in tables.items()
        ),
        sizes={"particle": total, "axis": 3},
        coordinates={},
        attributes={
            **(attributes or {}),
            **known,
            **parameters,
            "mesh_shape": np.array(mesh.global_shape),
            **({_COUNTS: np.array(counts)} if comm.size <= _MOST_COUNTS else {}),
        },
    )
    if mode == "a":
        with together(comm, "save_particles"):
            # What these particles may be without must not stay from others.
            contents = with_kept(
                path,
                contents,
                comm,
                but_arrays=(*_DISPLACEMENTS, *_PHYSICAL),
                but_attributes=[
                    _COUNTS,
                    *(_OF_PARTICLES + name for name in _KNOWN),
                    *(_OF_COSMOLOGY + name for name in _PARAMETERS),
                ],
            )
    _file.write(path, contents, comm, layout, "save_particles", replace=mode != "x")


def load_particles(
    path: Path, mesh: Pencil, *, capacity: int | None = None, dtype: DTypeLike | None = None
) -> Particles:
    """Read particles that `save_particles` wrote, on any grid and number of ranks.

    Each rank reads what it wrote where there are as many ranks, and else an equal share, and
    `pm.to_owners` brings particles to the owners of their cells. On the grid that wrote them they
    have the same order on each rank, so that a run which goes on comes to the same bits.

    Args:
        path: of the file, the same on every rank.
        mesh: the mesh that they are in units of, as `PencilFFT.input`, on this job's grid.
        capacity: rows on each rank, as in `pm.to_owners`; by default as many as it takes.
        dtype: float32 or float64, of all but the cells; by default as in the file.

    Returns:
        `Particles` on the ranks that own them, which know their scale factor and box if the file
        does; files of releases before these were stored do not.

    Raises:
        ValueError: they are in units of the cells of another mesh.
        FileNotFoundError, KeyError, TypeError, OSError, ImportError: as `load`.
        jax.errors.JaxRuntimeError: too small a capacity, as `pm.to_owners`.

    """
    comm = private(checked_pencil(mesh, "load_particles", "mesh").grid.comm)
    with together(comm, "load_particles"), _file.opened(path) as file:
        tables = [_file.find(file, name) for name in _TABLES]
        total = tables[0].shape[0]
        # The file may have fields of the same names.
        if all(getattr(file.get(name), "shape", ()) == (total, 3) for name in _DISPLACEMENTS):
            tables += [_file.find(file, name) for name in _DISPLACEMENTS]
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
            for name in _KNOWN
            if _OF_PARTICLES + name in file.attrs
        }
        counts = np.ravel(np.asarray(file.attrs.get(_COUNTS, ()), int))
        if counts.size != comm.size or counts.sum() != total:
            counts = np.array([block(total, comm.size, rank)[1] for rank in range(comm.size)])
        # On as many ranks as before each reads its own, and particles keep their order there.
        start, count = int(counts[: comm.rank].sum()), int(counts[comm.rank])
        rows = max(int(counts.max()), 1)  # as many on every rank: one program
        padded = []
        for table in tables:
            wanted = dtype if table.dtype.kind == "f" else None
            into = _file.readable(table.dtype, wanted, f"{table.name} in {os.fspath(path)}")
            values = np.zeros((rows, 3), into)
            values[:count] = _file.read(table, ((start, count), (0, 3)), (0, 1), into)
            padded.append(jnp.asarray(values))
    n0, n1, n2 = mesh.global_shape
    cell, offset, momentum, *psi = padded
    displacements = jnp.stack(psi, 1) if psi else None
    shares = Particles(
        cell,
        offset,
        momentum,
        jnp.int32(count),
        total,
        (n0, n1, n2),
        displacements=displacements,
        **known,
    )
    return brought_home(shares, mesh, capacity)


def brought_home(shares: Particles, mesh: Pencil, capacity: int | None) -> Particles:
    """Particles of which each rank has read a share, on the ranks that own their cells."""
    if capacity is None:
        sides = None if shares.box_size is None else np.asarray(shares.box_size)
        room = default_capacity(shares.total, mesh, sides)
        return to_owners_with_room(shares, mesh, room)
    return to_owners(shares, mesh, capacity)


def load_cosmology(path: Path, grid: ProcessGrid) -> Any:
    """The cosmology that `save_particles` wrote, as a `jax_cosmo.Cosmology`.

    Args:
        path: of the file, the same on every rank.
        grid: every rank of it calls.

    Raises:
        KeyError: the file has none, or not all of it.
        FileNotFoundError, OSError: as `load`.
        ImportError: no h5py, or no jax_cosmo.

    Example:
        >>> import pathlib, tempfile
        >>> import jax_cosmo
        >>> from mpi4py import MPI
        >>> from pfftjax import Pencil, ProcessGrid, pm
        >>> grid, none = ProcessGrid(), jnp.zeros((0, 3), "float32")
        >>> particles = pm.Particles(none.astype(int), none, none, jnp.int32(0), 0, (4, 4, 4))
        >>> folder = MPI.COMM_WORLD.bcast(tempfile.mkdtemp() if MPI.COMM_WORLD.rank == 0 else "")
        >>> path = pathlib.Path(folder) / "particles.h5"
        >>> planck = jax_cosmo.Planck15()
        >>> save_particles(path, particles, Pencil((4, 4, 4), grid), cosmology=planck)
        >>> load_cosmology(path, grid).Omega_m == planck.Omega_m
        True

    """
    kept = attributes_of(path, grid)
    comm = private(grid.comm)
    with together(comm, "load_cosmology"):
        missing = [name for name in _PARAMETERS if _OF_COSMOLOGY + name not in kept]
        if missing:
            raise KeyError(
                f"no attribute {_OF_COSMOLOGY}{missing[0]} in {os.fspath(path)}; "
                "save_particles(..., cosmology=) writes them"
            )
        try:
            import jax_cosmo
        except ImportError as error:
            raise ImportError("load_cosmology needs jax_cosmo: pip install jax-cosmo") from error
        return jax_cosmo.Cosmology(**{name: kept[_OF_COSMOLOGY + name] for name in _PARAMETERS})


def parameters_of(cosmology: object, names: Sequence[str]) -> dict[str, Any]:
    """Parameters of a cosmology, which has to have them."""
    missing = [name for name in names if not hasattr(cosmology, name)]
    if missing:
        raise TypeError(
            f"cosmology must be a jax_cosmo.Cosmology, got {cosmology!r} without {missing[0]}"
        )
    return {name: getattr(cosmology, name) for name in names}

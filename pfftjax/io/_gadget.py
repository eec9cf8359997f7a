"""Snapshots of Gadget-4 in HDF5.

The format is that of the code's documentation,
https://wwwmpa.mpa-garching.mpg.de/gadget4/06_snapshotformat/: one or several files with a header,
the parameters of the run, and a group of tables for each type of particles. Velocities are stored
as u = v / sqrt(a), v = a dx/dt being the peculiar velocity.
"""

import dataclasses
import functools
import math
import os
import pathlib
import re
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, cast

import numpy as np
from jax.typing import DTypeLike
from mpi4py import MPI

from pfftjax._runtime.agreement import on_root, private, same_everywhere, together
from pfftjax._runtime.arrays import Number
from pfftjax.pencils import Pencil
from pfftjax.pencils.internal import checked_pencil
from pfftjax.pm import Particles
from pfftjax.pm.internal import Cosmology, placed

from . import _file
from ._contents import Contents, Dataset, Path
from ._fields import check_how
from ._file import Layout
from ._mode import Mode, check_free
from ._particles import brought_home
from ._snapshots import (
    CM_PER_MPC,
    DARK_MATTER,
    GRAMS_PER_MASS,
    Header,
    Rows,
    attribute,
    length_of,
    one_side,
    rows_of,
    shares_of,
)

if TYPE_CHECKING:
    import h5py

# Types of particles that a header has room for.
_TYPES = 6
# Gadget's usual unit of length, kpc/h, in Mpc/h: readers that ignore the parameters take it.
_KPC = 1e-3


def save_gadget(
    path: Path,
    particles: Particles,
    mesh: Pencil,
    *,
    cosmology: Cosmology,
    dtype: DTypeLike | None = None,
    mode: Mode = "x",
    layout: Layout = "shared",
) -> None:
    """Write particles as a snapshot of Gadget-4 in HDF5, each rank its own.

    The particles are those of type 1, dark matter, in Gadget's units: comoving kpc/h, 1e10 Msun/h
    and km/s. The header has the box, the time and the numbers; the cosmology is in it, as older
    versions of the code have it, and among the parameters, where version 4 has it. There is no
    word for dark energy that is no constant. `ParticleIDs` are the numbers of the particles'
    cells: those of a lattice as large as the mesh are in row-major order, from zero.

    Collective over the ranks of the mesh's grid, and outside of jitted code.

    Args:
        path: of the file, the same on every rank: ``snapshot_000.hdf5``.
        particles: this rank's particles, which know their box and scale factor.
        mesh: the mesh that they are in units of, as `PencilFFT.input`.
        cosmology: a `jax_cosmo.Cosmology`, for the header and the mass of a particle.
        dtype: float32 or float64, of positions and velocities; by default that of the particles.
        mode: "x": a new file. "w": in place of one that is there, and of all files of a snapshot
            that is there.
        layout: "shared": one file. "per_rank": a snapshot of several files, one a rank, all at
            once: ``snapshot_000.0.hdf5`` and so on.

    Raises:
        TypeError, ValueError: no particles of this mesh, or traced ones; particles that do not
            know their box or scale factor; a box that is no cube.
        FileExistsError, OSError, ImportError, RuntimeError: as `save`.

    Example:
        >>> import pathlib, tempfile
        >>> import jax.numpy as jnp, jax_cosmo
        >>> from pfftjax import ProcessGrid, pm
        >>> mesh = Pencil((4, 4, 4), ProcessGrid())
        >>> cell, at_rest = jnp.zeros((1, 3), "int32"), jnp.zeros((1, 3), "float32")
        >>> mine = jnp.int32(mesh.grid.comm.rank == 0)
        >>> particles = pm.Particles(cell, at_rest, at_rest, mine, 1, (4, 4, 4),
        ...                          scale_factor=0.5, box_size=(8.0, 8.0, 8.0))
        >>> folder = MPI.COMM_WORLD.bcast(tempfile.mkdtemp() if MPI.COMM_WORLD.rank == 0 else "")
        >>> path = pathlib.Path(folder) / "snapshot_000.hdf5"
        >>> save_gadget(path, particles, mesh, cosmology=jax_cosmo.Planck15())
        >>> float(load_gadget(path, mesh).scale_factor)
        0.5

    """
    operation = "save_gadget"
    comm = private(checked_pencil(mesh, operation, "mesh").grid.comm)
    with together(comm, operation):
        check_how(mode, layout, may_add=False)
    rows = rows_of(particles, mesh, cosmology, dtype, comm, operation)
    asked = f"{os.fspath(path)!r} {mode} {layout} {rows.dtype} {rows.header}"
    same_everywhere(asked, comm, operation)
    target = pathlib.Path(path)
    replace = mode == "w"
    if layout == "shared":
        starts = [0, *np.cumsum(rows.counts).tolist()]
        contents = _contents(rows, rows.header.total, starts, 1)
        _file.write(target, contents, comm, layout, operation, replace=replace)
        files = 0
    else:
        _write_several(target, rows, comm, operation, replace)
        files = comm.size
    if replace:
        on_root(functools.partial(_remove_others, target, files), comm, operation)


def _write_several(
    target: pathlib.Path, rows: Rows, comm: MPI.Intracomm, operation: str, replace: bool
) -> None:
    """Each rank its own file; none of them is new if one cannot be written."""
    mine = _numbered(target, comm.rank)
    with together(comm, operation):
        if not replace:
            check_free(mine)
    is_written = False
    try:
        with together(comm, operation):
            count = rows.counts[comm.rank]
            own = dataclasses.replace(rows, counts=(count,))
            contents = _contents(own, count, [0], comm.size)
            _file.write(mine, contents, MPI.COMM_SELF, "shared", operation, replace=replace)
            is_written = True
    except BaseException:
        if is_written and not replace:
            mine.unlink(missing_ok=True)
        raise


def _numbered(path: pathlib.Path, number: int) -> pathlib.Path:
    """The name of a file of a snapshot of several."""
    return path.with_name(f"{path.stem}.{number}{path.suffix}")


def _remove_others(target: pathlib.Path, files: int) -> None:
    """Remove files that a snapshot of another layout or number of files has left."""
    if files:
        target.unlink(missing_ok=True)
    ours = re.compile(re.escape(target.stem) + r"\.(\d+)" + re.escape(target.suffix))
    for other in target.parent.iterdir():
        found = ours.fullmatch(other.name)
        if found and int(found[1]) >= files:
            other.unlink()


def _contents(rows: Rows, here: int, starts: list[int], files: int) -> Contents:
    """A file that has `here` particles of all."""
    header, counts = rows.header, rows.counts
    # What each table is in, as powers of a, h and the units of length and velocity.
    tables = {
        "Coordinates": (rows.positions_in(_KPC), (1, -1, 1, 0)),
        "Velocities": (rows.velocities_in(math.sqrt(header.scale_factor)), (0.5, 0, 0, 1)),
        "ParticleIDs": (rows.identity, (0, 0, 0, 0)),
    }
    return Contents(
        datasets=tuple(
            Dataset(
                name=f"PartType{DARK_MATTER}/{name}",
                shape=(here, *values.shape[1:]),
                dtype=np.dtype(values.dtype),
                dims=(),
                values=values,
                order=tuple(range(values.ndim)),
                box_of=lambda rank, ndim=values.ndim: (
                    (starts[rank], counts[rank]),
                    *((0, 3),) * (ndim - 1),
                ),
                attributes=_scaling(*powers),
            )
            for name, (values, powers) in tables.items()
        ),
        sizes={},
        coordinates={},
        attributes={},
        groups={
            "Header": _header(header, here, files),
            "Parameters": _parameters(header),
            f"PartType{DARK_MATTER}": {},
        },
    )


def _scaling(a: float, h: float, length: float, velocity: float) -> dict[str, float]:
    """The attributes by which Gadget-4 says what a table is in."""
    to_cgs = (CM_PER_MPC * _KPC) ** length * 1e5**velocity
    return {
        "a_scaling": float(a),
        "h_scaling": float(h),
        "length_scaling": float(length),
        "mass_scaling": 0.0,
        "velocity_scaling": float(velocity),
        "to_cgs": to_cgs if length or velocity else 0.0,
    }


def _header(header: Header, here: int, files: int) -> dict[str, object]:
    def of_dark_matter(value: float, dtype: DTypeLike) -> np.ndarray:
        result = np.zeros(_TYPES, dtype)
        result[DARK_MATTER] = value
        return result

    return {
        "BoxSize": header.side / _KPC,
        "MassTable": of_dark_matter(header.mass, np.float64),
        "NumFilesPerSnapshot": np.int32(files),
        "NumPart_ThisFile": of_dark_matter(here, np.uint64),
        "NumPart_Total": of_dark_matter(header.total, np.uint64),
        # The high 32 bits of numbers of 32 bits, which these are not.
        "NumPart_Total_HighWord": np.zeros(_TYPES, np.uint32),
        "Time": header.scale_factor,
        "Redshift": header.redshift,
        "Omega0": header.omega_m,
        "OmegaLambda": header.omega_lambda,
        "HubbleParam": header.h,
    }


def _parameters(header: Header) -> dict[str, object]:
    return {
        "BoxSize": header.side / _KPC,
        "Omega0": header.omega_m,
        "OmegaBaryon": header.omega_b,
        "OmegaLambda": header.omega_lambda,
        "HubbleParam": header.h,
        "Hubble": 100 * _KPC,
        "ComovingIntegrationOn": np.int32(1),
        "UnitLength_in_cm": CM_PER_MPC * _KPC,
        "UnitMass_in_g": GRAMS_PER_MASS,
        "UnitVelocity_in_cm_per_s": 1e5,
    }


def load_gadget(
    path: Path,
    mesh: Pencil,
    *,
    particle_type: int = DARK_MATTER,
    length_unit: Number | None = None,
    capacity: int | None = None,
    dtype: DTypeLike | None = None,
) -> Particles:
    """Read particles from a snapshot of Gadget in HDF5, of one file or several.

    Each rank reads an equal share of the rows, and sends them to the owners of their cells. The
    snapshot may be one of Gadget-2 to 4, or of any code that writes their format. A particle's
    `cell` is the one that has the number of its identity, and its offset reaches from there to
    where it is. The mesh is any.

    Collective over the ranks of the mesh's grid, and outside of jitted code.

    Args:
        path: of the file, or of the first one of several, or of these without their numbers; the
            same on every rank.
        mesh: of the pencil in which particles will be used, as `PencilFFT.input`.
        particle_type: 1 for dark matter.
        length_unit: the file's unit of length in Mpc/h: 1e-3 for kpc/h. By default as its
            parameters say.
        capacity: rows on each rank, as in `pm.to_owners`; by default as many as it takes.
        dtype: float32 or float64, of offsets and momenta; by default that of the coordinates.

    Returns:
        `Particles` on the ranks that own them, which know their scale factor and box.

    Raises:
        FileNotFoundError: no such file, or one of several is missing.
        KeyError: a file without what it should have.
        ValueError: a box that is no cube, particles of different masses or outside of the box, an
            unknown unit of length.
        TypeError, OSError, ImportError, jax.errors.JaxRuntimeError: as `load_particles`.

    See `save_gadget` for an example.

    """
    operation = "load_gadget"
    comm = private(checked_pencil(mesh, operation, "mesh").grid.comm)
    with together(comm, operation):
        first, files = _first_of(pathlib.Path(path))
        names = [_sibling(first, number) if files > 1 else first for number in range(files)]
        mine = range(comm.rank, files, comm.size)
        counts = {n: _count_of(names[n], particle_type) for n in mine}
    here = {n: count for part in comm.allgather(counts) for n, count in part.items()}
    with together(comm, operation):
        kept = _Kept.of(first, particle_type, length_unit)
        total = sum(here.values())
        if kept.total != total:
            raise ValueError(
                f"{os.fspath(path)} is of {kept.total} particles of type {particle_type}, but "
                f"its {files} files have {total}"
            )
        start, count, room = shares_of(total, comm)
        into, tables, masses = _read_share(names, here, start, count, particle_type, dtype)
    lightest = comm.allreduce(float(np.min(masses, initial=np.inf)), MPI.MIN)
    heaviest = comm.allreduce(float(np.max(masses, initial=-np.inf)), MPI.MAX)
    with together(comm, operation):
        if heaviest > lightest * (1 + 1e-6):
            raise ValueError(
                f"particles of type {particle_type} in {os.fspath(path)} have masses from "
                f"{lightest:.6g} to {heaviest:.6g}, but those of pfftjax have one; load one "
                "kind of particles"
            )
        shares = placed(
            tables["Coordinates"].astype(np.float64) * kept.length,
            tables["Velocities"].astype(np.float64) * kept.to_momentum,
            tables["ParticleIDs"],
            rows=room,
            sides=np.full(3, kept.side),
            scale_factor=kept.scale_factor,
            total=total,
            mesh=mesh,
            dtype=into,
            source="the file, in Mpc/h,",
        )
    return brought_home(shares, mesh, capacity)


def _first_of(path: pathlib.Path) -> tuple[pathlib.Path, int]:
    """The file of a snapshot that is there for sure, and how many there are."""
    first = path if path.exists() else _numbered(path, 0)
    if not first.exists():
        raise FileNotFoundError(f"there is no file {path}, nor {first}")
    with _opened(first) as file:
        return first, int(_attribute(file, "Header", "NumFilesPerSnapshot"))


def _sibling(first: pathlib.Path, number: int) -> pathlib.Path:
    stem, dot, _ = first.stem.rpartition(".")
    if not dot:
        raise ValueError(
            f"{first} says that it is one of several files, but its name has no number, as "
            "snapshot_000.0.hdf5"
        )
    return first.with_name(f"{stem}.{number}{first.suffix}")


def _opened(path: pathlib.Path) -> "h5py.File":
    return cast("h5py.File", _file.opened(path))


def _attribute(file: "h5py.File", group: str, name: str, default: object = None) -> Any:
    found: Mapping[str, Any] = file[group].attrs if group in file else {}
    return attribute(found, file.filename, f"the group {group}", name, default)


def _count_of(path: pathlib.Path, particle_type: int) -> int:
    with _opened(path) as file:
        counts = np.ravel(_attribute(file, "Header", "NumPart_ThisFile"))
        return int(counts[particle_type]) if particle_type < len(counts) else 0


@dataclasses.dataclass(frozen=True)
class _Kept:
    """What the header of a snapshot says.

    Attributes:
        total: particles of the type.
        side: of the box [Mpc/h].
        scale_factor: of the snapshot.
        length: the unit of length [Mpc/h].
        to_momentum: of a velocity as it is stored.

    """

    total: int
    side: float
    scale_factor: float
    length: float
    to_momentum: float

    @classmethod
    def of(cls, path: pathlib.Path, particle_type: int, length_unit: Number | None) -> "_Kept":
        with _opened(path) as file:
            low = np.ravel(_attribute(file, "Header", "NumPart_Total"))
            high = np.ravel(_attribute(file, "Header", "NumPart_Total_HighWord", 0 * low))
            if not 0 <= particle_type < len(low):
                raise ValueError(f"{path} has particles of {len(low)} types, from 0")
            total = int(low[particle_type])
            if total < 1 << 32 and particle_type < len(high):
                total += int(high[particle_type]) << 32
            a = float(_attribute(file, "Header", "Time"))
            if not 0 < a <= 10:
                raise ValueError(f"{path}: Time must be a scale factor, got {a}")
            units = [
                file[group].attrs["UnitLength_in_cm"]
                for group in ("Parameters", "Header", "Units")
                if group in file and "UnitLength_in_cm" in file[group].attrs
            ]
            length = length_of(units[0] if units else None, length_unit, path)
            speed = _attribute(file, "Parameters", "UnitVelocity_in_cm_per_s", 1e5) / 1e5
            side = one_side(_attribute(file, "Header", "BoxSize"), path) * length
        # The peculiar velocity is u sqrt(a), and a^2 dx/dt that times a; H0 is 100 km/s/(Mpc/h).
        return cls(total, side, a, length, speed * a**1.5 / 100)


def _read_share(
    names: list[pathlib.Path],
    here: dict[int, int],
    start: int,
    count: int,
    particle_type: int,
    dtype: DTypeLike | None,
) -> tuple[np.dtype, dict[str, np.ndarray], np.ndarray]:
    """Rows from `start` of all files together: tables, and masses where they are stored."""
    wanted = ("Coordinates", "Velocities", "ParticleIDs")
    pieces: dict[str, list[np.ndarray]] = {name: [] for name in (*wanted, "Masses")}
    into, begin = np.dtype(dtype or np.float32), 0
    for number, path in enumerate(names):
        rows = here[number]
        low, high = max(start - begin, 0), min(start + count - begin, rows)
        begin += rows
        # A rank without rows still asks the first file that has some for the types.
        if rows and (low < high or count == 0):
            with _opened(path) as file:
                group = f"PartType{particle_type}"
                coordinates = _file.find(file, f"{group}/Coordinates")
                what = f"{coordinates.name} in {path}"
                into = _file.readable(coordinates.dtype, dtype, what)
                for name in wanted:
                    table = _file.find(file, f"{group}/{name}")
                    if table.shape != (rows, 3)[: 1 if name == "ParticleIDs" else 2]:
                        raise ValueError(
                            f"{path}: {table.name} has shape {table.shape}, but the header says "
                            f"that there are {rows} particles"
                        )
                    pieces[name].append(np.asarray(table[low : max(low, high)]))
                if f"{group}/Masses" in file and low < high:
                    pieces["Masses"].append(
                        np.asarray(_file.find(file, f"{group}/Masses")[low:high])
                    )
            if count == 0:
                break
    empty = {name: np.zeros((0, 3) if name != "ParticleIDs" else 0) for name in wanted}
    tables = {n: np.concatenate(pieces[n]) if pieces[n] else empty[n] for n in wanted}
    masses = np.concatenate(pieces["Masses"]) if pieces["Masses"] else np.zeros(0)
    return into, tables, masses

"""Snapshots in the format bigfile, as MP-Gadget and FastPM write them and nbodykit reads them."""

import functools
import os
import pathlib

import numpy as np
from jax.typing import DTypeLike
from mpi4py import MPI

from pfftjax._runtime.agreement import on_root, private, same_everywhere, together
from pfftjax._runtime.arrays import Number
from pfftjax.pencils import Pencil
from pfftjax.pencils.internal import block, checked_pencil
from pfftjax.pm import Particles
from pfftjax.pm.internal import Cosmology, placed

from . import _file
from ._blocks import HEADER, Block, read_attributes
from ._contents import Path
from ._fields import check_how
from ._folder import new_folder
from ._mode import Mode
from ._particles import brought_home
from ._snapshots import (
    CM_PER_MPC,
    DARK_MATTER,
    GRAMS_PER_MASS,
    Header,
    attribute,
    length_of,
    one_side,
    rows_of,
    shares_of,
)

# The block that has attributes only.
_HEADER = "Header"
_TYPES = 6


def save_bigfile(
    path: Path,
    particles: Particles,
    mesh: Pencil,
    *,
    cosmology: Cosmology,
    dtype: DTypeLike | None = None,
    mode: Mode = "x",
    files: int | None = None,
) -> None:
    """Write particles in the format bigfile, all ranks at once.

    The blocks are those of MP-Gadget and FastPM: `1/Position` [comoving Mpc/h], `1/Velocity`
    [peculiar, km/s], `1/ID` (uint64, the number of the particle's cell) and the attributes of
    `Header`. Nothing but NumPy is needed.

    Collective over the ranks of the mesh's grid, and outside of jitted code. The folder appears
    under its name when all of it is written.

    Args:
        path: of the folder, the same on every rank.
        particles: this rank's particles, which know their box and scale factor.
        mesh: the mesh that they are in units of, as `PencilFFT.input`.
        cosmology: a `jax_cosmo.Cosmology`, for the header and the mass of a particle.
        dtype: float32 or float64, of positions and velocities; by default that of the particles.
        mode: "x": a new folder. "w": in place of one that is there.
        files: into how many files a block is divided, by default as many as there are ranks, each
            of which then writes its own. On many ranks few large ones are easier to handle.

    Raises:
        TypeError, ValueError, FileExistsError, OSError, RuntimeError: as `save_gadget`.

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
        >>> path = pathlib.Path(folder) / "fastpm_0.5000"
        >>> save_bigfile(path, particles, mesh, cosmology=jax_cosmo.Planck15())
        >>> float(load_bigfile(path, mesh).scale_factor)
        0.5

    """
    operation = "save_bigfile"
    comm = private(checked_pencil(mesh, operation, "mesh").grid.comm)
    with together(comm, operation):
        check_how(mode, "shared", may_add=False)
        if files is not None and (not isinstance(files, int | np.integer) or files < 1):
            raise ValueError(f"files must be a positive number, got {files!r}")
    rows = rows_of(particles, mesh, cosmology, dtype, comm, operation)
    asked = f"{os.fspath(path)!r} {mode} {files} {rows.dtype} {rows.header}"
    same_everywhere(asked, comm, operation)
    total = rows.header.total
    start = sum(rows.counts[: comm.rank])
    if files is None:
        divided = rows.counts
    else:
        divided = tuple(block(total, files, number)[1] for number in range(files))
    tables = {
        "Position": rows.positions_in(1.0),
        "Velocity": rows.velocities_in(1.0),
        "ID": rows.identity,
    }
    folder = new_folder(
        pathlib.Path(path),
        comm,
        operation,
        replace=mode == "w",
        is_ours=is_bigfile,
        kind="snapshot of bigfile",
    )
    with folder as temporary:
        for name, values in tables.items():
            width = values.shape[1] if values.ndim > 1 else 1
            place = temporary / str(DARK_MATTER) / name
            table = Block(place, values.dtype.newbyteorder("<"), width, divided)
            on_root(table.create, comm, operation)
            with together(comm, operation):
                sums = table.write(start, values)
            sums = comm.allreduce(sums, MPI.SUM)
            on_root(functools.partial(table.finish, sums.tolist(), {}), comm, operation)
        with together(comm, operation):
            if comm.rank == 0:
                header = Block(temporary / _HEADER, np.dtype("<i8"), 0, ())
                header.create()
                header.finish((), _attributes(rows.header))


def is_bigfile(path: pathlib.Path) -> bool:
    """Whether there is a snapshot in this format."""
    return (path / _HEADER / HEADER).is_file()


def _attributes(header: Header) -> dict[str, object]:
    """The attributes of the header, those of MP-Gadget and those of FastPM."""
    number, mass = np.zeros(_TYPES, np.int64), np.zeros(_TYPES)
    number[DARK_MATTER], mass[DARK_MATTER] = header.total, header.mass
    return {
        "BoxSize": header.side,
        "TotNumPart": number,
        "MassTable": mass,
        "Time": header.scale_factor,
        "ScalingFactor": header.scale_factor,
        "Redshift": header.redshift,
        "Omega0": header.omega_m,
        "OmegaM": header.omega_m,
        "OmegaBaryon": header.omega_b,
        "OmegaLambda": header.omega_lambda,
        "HubbleParam": header.h,
        "UsePeculiarVelocity": np.int32(1),
        "UnitLength_in_cm": CM_PER_MPC,
        "UnitMass_in_g": GRAMS_PER_MASS,
        "UnitVelocity_in_cm_per_s": 1e5,
    }


def load_bigfile(
    path: Path,
    mesh: Pencil,
    *,
    particle_type: int = DARK_MATTER,
    length_unit: Number | None = None,
    capacity: int | None = None,
    dtype: DTypeLike | None = None,
) -> Particles:
    """Read particles in the format bigfile, as MP-Gadget, FastPM and `save_bigfile` write them.

    Each rank reads an equal share of the rows, and sends them to the owners of their cells. As in
    `load_gadget`, a particle's `cell` is the one that has the number of its identity. Velocities
    are those that the header says: peculiar ones, or a^2 dx/dt.

    Collective over the ranks of the mesh's grid, and outside of jitted code.

    Args:
        path: of the folder, the same on every rank.
        mesh: of the pencil in which particles will be used, as `PencilFFT.input`.
        particle_type: 1 for dark matter.
        length_unit: the file's unit of length in Mpc/h, by default as its header says.
        capacity: rows on each rank, as in `pm.to_owners`; by default as many as it takes.
        dtype: float32 or float64, of offsets and momenta; by default that of the positions.

    Returns:
        `Particles` on the ranks that own them, which know their scale factor and box.

    Raises:
        FileNotFoundError, KeyError, ValueError, TypeError, OSError: as `load_gadget`.
        jax.errors.JaxRuntimeError: as `load_particles`.

    See `save_bigfile` for an example.

    """
    operation = "load_bigfile"
    comm = private(checked_pencil(mesh, operation, "mesh").grid.comm)
    with together(comm, operation):
        folder = pathlib.Path(path)
        if not is_bigfile(folder):
            raise FileNotFoundError(f"there is no snapshot of bigfile at {folder}")
        header = read_attributes(folder / _HEADER)
        tables = {
            name: Block.at(folder / str(particle_type) / name)
            for name in ("Position", "Velocity", "ID")
        }
        sizes = {name: (table.total, table.width) for name, table in tables.items()}
        total = tables["Position"].total
        if list(sizes.values()) != [(total, 3), (total, 3), (total, 1)]:
            raise ValueError(f"{folder}: blocks of unequal rows or widths: {sizes}")
        number = functools.partial(attribute, header, folder, "its header")
        length = length_of(header.get("UnitLength_in_cm"), length_unit, path)
        side = one_side(number("BoxSize"), path) * length
        time = "Time" if "Time" in header else "ScalingFactor"
        a = float(number(time))
        if not 0 < a <= 10:
            raise ValueError(f"{folder}: {time} must be a scale factor, got {a}")
        what = f"block {particle_type}/Position in {folder}"
        into = _file.readable(tables["Position"].dtype, dtype, what)
        speed = float(number("UnitVelocity_in_cm_per_s", 1e5)) / 1e5
        is_peculiar = bool(number("UsePeculiarVelocity", 1))
        start, count, room = shares_of(total, comm)
        velocity = tables["Velocity"].read(start, count).astype(np.float64)
        shares = placed(
            tables["Position"].read(start, count).astype(np.float64) * length,
            velocity * (speed * (a if is_peculiar else 1.0) / 100),
            tables["ID"].read(start, count),
            rows=room,
            sides=np.full(3, side),
            scale_factor=a,
            total=total,
            mesh=mesh,
            dtype=into,
            source="the file, in Mpc/h,",
        )
    return brought_home(shares, mesh, capacity)

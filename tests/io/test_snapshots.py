"""Snapshots that other codes read and write: Gadget in HDF5, and bigfile."""

import dataclasses
import math

import jax.numpy as jnp
import numpy as np
import pytest
from mpi4py import MPI

import pfftjax
from pfftjax import pm
from pfftjax.io._blocks import Block, read_attributes, write_attributes
from pfftjax.pm._identity import cells_of
from pfftjax.pm.internal import identities_of
from tests.distributed import grids, raised_everywhere
from tests.helpers import CONTROL, RANK, SIZE, on_one_rank
from tests.pm.universe import cosmology

h5py = pytest.importorskip("h5py")
pytestmark = [pytest.mark.mpi, pytest.mark.ranks(1, 2, 3)]

MESH, SIDE, A = (6, 7, 5), 25.0, 0.25
TOTAL = 41
SAVE = {"gadget": pfftjax.io.save_gadget, "bigfile": pfftjax.io.save_bigfile}
LOAD = {"gadget": pfftjax.io.load_gadget, "bigfile": pfftjax.io.load_bigfile}
# How a snapshot may be divided into files.
LAYOUTS = [
    ("gadget", {}),
    ("gadget", {"layout": "per_rank"}),
    ("bigfile", {}),
    ("bigfile", {"files": 1}),
    ("bigfile", {"files": 5}),
]


def mesh_on(grid, shape=MESH):
    """Its pencil."""
    return pfftjax.PencilFFT(shape, grid, real=True).input


def table():
    """(identity, position [Mpc/h], velocity [km/s]) of all particles, some on the edge of the
    box."""
    rng = np.random.default_rng(1)
    position = rng.uniform(0, SIDE, (TOTAL, 3))
    position[:3] = [[0, 0, 0], [SIDE * (1 - 1e-12)] * 3, [-1e-12 % SIDE, 1, 1]]
    return (
        rng.permutation(TOTAL * 9)[:TOTAL].astype(np.uint64),
        position,
        rng.normal(0, 300, (TOTAL, 3)),
    )


def scattered(dtype="float64"):
    """The particles, on any ranks: the first one has none if there are three."""
    identity, position, velocity = table()
    cell = cells_of(identity, MESH)
    offset = position / SIDE * MESH - cell
    share = np.arange(TOTAL) % (SIZE - 1) + 1 if SIZE > 2 else np.arange(TOTAL) % SIZE
    mine = np.flatnonzero(share == RANK)
    rows = np.concatenate([mine, [0, 0]])
    return pm.Particles(
        jnp.asarray(cell[rows], jnp.int32),
        jnp.asarray(offset[rows], dtype),
        jnp.asarray(velocity[rows] * A / 100, dtype),
        jnp.int32(len(mine)),
        TOTAL,
        MESH,
        scale_factor=A,
        box_size=(SIDE,) * 3,
    )


def check(particles, mesh, tolerance=1e-11):
    """These are the particles of the table, each on the rank that owns its cell."""
    used = int(particles.used)
    mine = (
        identities_of(np.asarray(particles.cell)[:used], mesh.global_shape),
        np.asarray(particles.coordinates())[:used],
        np.asarray(particles.velocities())[:used],
    )
    identity, position, velocity = (
        np.concatenate(x) for x in zip(*CONTROL.allgather(mine), strict=True)
    )
    order, expected = np.argsort(identity), table()
    by = np.argsort(expected[0])
    np.testing.assert_array_equal(identity[order], expected[0][by])
    apart = position[order] - expected[1][by]
    assert np.abs(apart - SIDE * np.round(apart / SIDE)).max() < tolerance * SIDE
    np.testing.assert_allclose(
        velocity[order], expected[2][by], rtol=tolerance, atol=tolerance * 300
    )
    cells = np.asarray(particles.cell)[:used].astype(float) + np.asarray(particles.offset)[:used]
    at = np.floor(cells).astype(int) % mesh.global_shape
    for axis in (0, 1):
        start, count = mesh.range_of(axis)
        assert ((start <= at[:, axis]) & (at[:, axis] < start + count)).all()


@pytest.mark.parametrize(("kind", "layout"), LAYOUTS)
def test_read_back_on_any_grid_and_mesh(folder, kind, layout):
    for dtype, tolerance in (("float64", 1e-11), ("float32", 1e-5)):
        path = folder / f"snapshot_{dtype}.hdf5"
        source = mesh_on(grids()[0])
        SAVE[kind](path, scattered(dtype), source, cosmology=cosmology(), **layout)
        for grid in grids():
            for shape in (MESH, (9, 4, 8)):
                mesh = mesh_on(grid, shape)
                loaded = LOAD[kind](path, mesh, capacity=TOTAL)
                assert loaded.offset.dtype == dtype
                assert loaded.total == TOTAL
                assert float(loaded.scale_factor) == A
                assert np.asarray(loaded.box_size).tolist() == pytest.approx([SIDE] * 3, rel=1e-14)
                check(loaded, mesh, tolerance)
        assert LOAD[kind](path, mesh, dtype="float32").offset.dtype == "float32"


def as_gadget_says(files):
    """(identity, position [Mpc/h], velocity [km/s]), as the code's documentation has it."""
    with h5py.File(files[0]) as file:
        header, parameters = dict(file["Header"].attrs), dict(file["Parameters"].attrs)
    assert header["NumFilesPerSnapshot"] == len(files)
    parts = {"Coordinates": [], "Velocities": [], "ParticleIDs": []}
    for path in files:
        with h5py.File(path) as file:
            assert set(file) == {"Header", "Parameters", "PartType1"}
            count = file["Header"].attrs["NumPart_ThisFile"]
            assert count.shape == (6,)
            assert count.sum() == count[1] == len(file["PartType1/ParticleIDs"])
            for name, pieces in parts.items():
                pieces.append(file["PartType1"][name][:])
    whole = {name: np.concatenate(pieces) for name, pieces in parts.items()}
    assert header["NumPart_Total"].tolist() == [0, TOTAL, 0, 0, 0, 0]
    # Gadget's lengths are in units of UnitLength_in_cm / h, and its velocities lack sqrt(a).
    unit = parameters["UnitLength_in_cm"] / 3.085678e24
    assert header["BoxSize"] * unit == pytest.approx(SIDE)
    velocity = whole["Velocities"] * math.sqrt(header["Time"])
    return header, whole["ParticleIDs"], whole["Coordinates"] * unit, velocity


@pytest.mark.parametrize("layout", ["shared", "per_rank"])
def test_gadget_files_say_what_others_expect(folder, layout):
    """By h5py alone."""
    path, mesh = folder / "snapshot_000.hdf5", mesh_on(grids()[-1])
    universe = cosmology()
    pfftjax.io.save_gadget(path, scattered(), mesh, cosmology=universe, layout=layout)
    numbered = [folder / f"snapshot_000.{rank}.hdf5" for rank in range(SIZE)]
    files = [path] if layout == "shared" else numbered
    header, identity, position, velocity = as_gadget_says(files)
    expected, order = table(), np.argsort(identity)
    by = np.argsort(expected[0])
    assert identity.dtype == np.uint64
    np.testing.assert_array_equal(identity[order], expected[0][by])
    assert position.min() >= 0
    assert position.max() < SIDE
    apart = position[order] - expected[1][by]
    assert np.abs(apart - SIDE * np.round(apart / SIDE)).max() < 1e-11
    np.testing.assert_allclose(velocity[order], expected[2][by], rtol=1e-12)
    assert header["Time"] == A
    assert header["Redshift"] == 3
    assert header["Omega0"] == pytest.approx(0.309641)
    assert header["HubbleParam"] == universe.h
    mass = 27.7536627 * 0.309641 * SIDE**3 / TOTAL
    assert header["MassTable"][1] == pytest.approx(mass)
    with h5py.File(files[0]) as file:
        scaling = dict(file["PartType1/Velocities"].attrs)
        assert (scaling["a_scaling"], scaling["velocity_scaling"]) == (0.5, 1)
        assert file["PartType1/Coordinates"].attrs["to_cgs"] == pytest.approx(3.085678e21)


def test_a_snapshot_takes_the_place_of_another(folder):
    """With all its files, those of more ranks too."""
    path, mesh = folder / "snapshot_000.hdf5", mesh_on(grids()[0])
    particles, universe = scattered(), cosmology()
    save = pfftjax.io.save_gadget
    save(path, particles, mesh, cosmology=universe)
    raised_everywhere(
        FileExistsError, "is there already", save, path, particles, mesh, cosmology=universe
    )
    if RANK == 0:
        (folder / f"snapshot_000.{SIZE + 3}.hdf5").touch()
        (folder / "snapshot_0001.0.hdf5").touch()
    CONTROL.barrier()
    save(path, particles, mesh, cosmology=universe, layout="per_rank", mode="w")
    names = sorted(p.name for p in folder.iterdir())
    assert names == sorted(
        ["snapshot_0001.0.hdf5", *(f"snapshot_000.{i}.hdf5" for i in range(SIZE))]
    )
    check(pfftjax.io.load_gadget(path, mesh), mesh)
    check(pfftjax.io.load_gadget(folder / "snapshot_000.0.hdf5", mesh), mesh)
    CONTROL.barrier()
    save(path, particles, mesh, cosmology=universe, mode="w")
    assert sorted(p.name for p in folder.iterdir()) == [
        "snapshot_000.hdf5",
        "snapshot_0001.0.hdf5",
    ]
    check(pfftjax.io.load_gadget(path, mesh), mesh)


def test_a_file_of_an_older_gadget(folder):
    """With 32-bit numbers in two words, masses by particle, lengths in Mpc/h and no parameters;
    and what such a file may have that particles cannot be made of."""
    path, mesh = folder / "old.hdf5", mesh_on(grids()[-1])
    identity, position, velocity = table()

    def written(**changes):
        CONTROL.barrier()
        if RANK == 0:
            with h5py.File(path, "w") as file:
                header = {
                    "NumPart_ThisFile": np.array([0, TOTAL, 0, 0, 0, 0], "u4"),
                    "NumPart_Total": np.array([0, TOTAL, 0, 0, 0, 0], "u4"),
                    "NumPart_Total_HighWord": np.zeros(6, "u4"),
                    "MassTable": np.zeros(6),
                    "NumFilesPerSnapshot": 1,
                    "BoxSize": SIDE,
                    "Time": A,
                    **{k: v for k, v in changes.items() if k[0].isupper()},
                }
                for name, value in header.items():
                    file.create_group("Header", track_order=True) if "Header" not in file else None
                    if value is not None:
                        file["Header"].attrs[name] = value
                file["PartType1/Coordinates"] = position.astype("f4") * changes.get("scale", 1)
                file["PartType1/Velocities"] = (velocity / math.sqrt(A)).astype("f4")
                file["PartType1/ParticleIDs"] = identity.astype("u4")
                file["PartType1/Masses"] = np.full(TOTAL, 0.5) + changes.get("masses", 0)
        CONTROL.barrier()

    load = pfftjax.io.load_gadget
    written()
    loaded = load(path, mesh, length_unit=1.0)
    check(loaded, mesh, 1e-5)
    raised_everywhere(ValueError, "does not say its unit of length", load, path, mesh)
    raised_everywhere(ValueError, "length_unit must be", load, path, mesh, length_unit=0)
    raised_everywhere(ValueError, "of 6 types", load, path, mesh, length_unit=1.0, particle_type=6)
    assert load(path, mesh, length_unit=1.0, particle_type=0).total == 0
    unit = {"length_unit": 1.0}
    written(masses=np.arange(TOTAL))
    raised_everywhere(ValueError, "have masses from", load, path, mesh, **unit)
    written(scale=2)
    raised_everywhere(ValueError, "outside of the box", load, path, mesh, **unit)
    written(BoxSize=np.array([SIDE, SIDE, 1.0]))
    raised_everywhere(ValueError, "BoxSize must be", load, path, mesh, **unit)
    written(Time=0.0)
    raised_everywhere(ValueError, "Time must be a scale factor", load, path, mesh, **unit)
    written(Time=None)
    raised_everywhere(KeyError, "no attribute Time", load, path, mesh, **unit)
    written(NumPart_Total_HighWord=np.array([0, 1, 0, 0, 0, 0], "u4"))
    raised_everywhere(ValueError, f"{2**32 + TOTAL} particles", load, path, mesh, **unit)
    written(
        NumPart_ThisFile=np.array([0, TOTAL - 1, 0, 0, 0, 0]),
        NumPart_Total=np.array([0, TOTAL - 1]),
    )
    raised_everywhere(ValueError, "the header says", load, path, mesh, **unit)
    written(NumFilesPerSnapshot=2)
    raised_everywhere(ValueError, "its name has no number", load, path, mesh, **unit)


@pytest.mark.parametrize("kind", ["gadget", "bigfile"])
def test_no_particles(folder, kind):
    mesh = mesh_on(grids()[-1])
    none = jnp.zeros((0, 3))
    particles = pm.Particles(
        none.astype("int32"),
        none,
        none,
        jnp.int32(0),
        0,
        MESH,
        scale_factor=1.0,
        box_size=(1.0,) * 3,
    )
    SAVE[kind](folder / "none", particles, mesh, cosmology=cosmology())
    loaded = LOAD[kind](folder / "none", mesh)
    assert loaded.total == int(loaded.used) == 0


@pytest.mark.wrong_types
@pytest.mark.parametrize("kind", ["gadget", "bigfile"])
def test_what_is_refused(folder, kind):
    path, mesh, universe = folder / "snapshot", mesh_on(grids()[0]), cosmology()
    save, load, particles = SAVE[kind], LOAD[kind], scattered()

    def refused(error, text, changed=particles, on=mesh, **arguments):
        given = {"cosmology": universe, **arguments}
        raised_everywhere(error, text, save, path, changed, on, **given)

    refused(TypeError, "must be pm.Particles", {})
    refused(ValueError, "but this one is", on=mesh_on(grids()[0], (8, 8, 8)))
    refused(ValueError, "no box_size of their own", dataclasses.replace(particles, box_size=None))
    refused(
        ValueError,
        "no scale_factor of their own",
        dataclasses.replace(particles, scale_factor=None),
    )
    refused(ValueError, "cubic boxes", dataclasses.replace(particles, box_size=(1.0, 1.0, 2.0)))
    refused(ValueError, "but total is 9", dataclasses.replace(particles, total=9))
    refused(TypeError, "without Omega_m", cosmology={})
    refused(TypeError, "dtype must be", dtype="int32")
    refused(ValueError, "mode='a' is not for snapshots", mode="a")
    refused(ValueError, "mode must be", mode="r")
    raised_everywhere(FileNotFoundError, "there is no", load, path, mesh)
    assert list(folder.iterdir()) == []
    if kind == "bigfile":
        refused(ValueError, "files must be", files=0)
        if RANK == 0:
            path.mkdir()
        CONTROL.barrier()
        refused(FileExistsError, "is no snapshot of bigfile", mode="w")


def test_bigfile_is_not_there_until_it_is_whole(folder):
    """And one that was there stays, when a rank cannot write."""
    path, mesh = folder / "snapshot", mesh_on(grids()[0])
    particles = scattered()
    save = pfftjax.io.save_bigfile
    save(path, particles, mesh, cosmology=cosmology())
    broken = dataclasses.replace(particles, offset=particles.offset / (RANK != SIZE - 1))
    raised_everywhere(
        ValueError, "no finite number", save, path, broken, mesh, cosmology=cosmology(), mode="w"
    )
    check(pfftjax.io.load_bigfile(path, mesh), mesh)
    assert [p.name for p in folder.iterdir()] == ["snapshot"]
    CONTROL.barrier()
    if RANK == 0:
        with open(path / "1" / "Position" / "000000", "ab") as file:
            file.truncate(8)
    CONTROL.barrier()
    if SIZE < 3:
        raised_everywhere(OSError, "is too short", pfftjax.io.load_bigfile, path, mesh)


@pytest.mark.parametrize("files", [None, 1, 5])
def test_checksums_are_those_of_the_bytes(folder, files):
    """System V's `sum` of each file, whichever ranks have written to it."""
    path, mesh = folder / "snapshot", mesh_on(grids()[0])
    pfftjax.io.save_bigfile(path, scattered(), mesh, cosmology=cosmology(), files=files)
    for name in ("Position", "Velocity", "ID"):
        lines = (path / "1" / name / "header").read_text().splitlines()[3:]
        assert len(lines) == (files or SIZE)
        for line in lines:
            number, _, folded, whole = (part.strip() for part in line.split(":"))
            total = sum((path / "1" / name / number).read_bytes())
            assert int(whole) == total
            assert int(folded) == total % 65536 + total // 65536


def test_velocities_of_mp_gadget_without_its_option(folder):
    """They are a^2 dx/dt where the header does not say that they are peculiar."""
    path, mesh = folder / "snapshot", mesh_on(grids()[0])
    pfftjax.io.save_bigfile(path, scattered(), mesh, cosmology=cosmology())
    header = read_attributes(path / "Header")
    CONTROL.barrier()
    if RANK == 0:
        write_attributes(path / "Header", {**header, "UsePeculiarVelocity": np.int32(0)})
    CONTROL.barrier()
    loaded = pfftjax.io.load_bigfile(path, mesh)
    at = dataclasses.replace(loaded, momentum=loaded.momentum * A)
    check(at, mesh)
    CONTROL.barrier()
    if RANK == 0:
        write_attributes(path / "Header", {k: v for k, v in header.items() if k[:4] != "Unit"})
    CONTROL.barrier()
    load = pfftjax.io.load_bigfile
    raised_everywhere(ValueError, "does not say its unit", load, path, mesh)
    check(load(path, mesh, length_unit=1.0), mesh)


@on_one_rank
def test_a_block_is_what_the_library_writes(tmp_path):
    """The texts of two files and of attributes that bigfile 0.1.52 wrote."""
    table = Block(tmp_path / "Position", np.dtype("<f8"), 3, (5, 5))
    table.create()
    values = np.arange(30.0).reshape(10, 3)
    sums = table.write(0, values[:3]) + table.write(3, values[3:])
    attributes = {
        "Time": 0.5,
        "TotNumPart": np.array([0, 10, 0], "u8"),
        "Name": "abc",
        "I": np.int32(3),
    }
    table.finish(sums.tolist(), attributes)
    assert (tmp_path / "Position" / "header").read_text() == (
        "DTYPE: <f8\nNMEMB: 3\nNFILE: 2\n000000: 5 : 1497 : 1497\n000001: 5 : 1769 : 1769\n"
    )
    assert (tmp_path / "Position" / "attr-v2").read_text() == (
        "I <i4 1 03000000 #HUMANE [ 3 ]\n"
        "Name <a1 3 616263 #HUMANE [ abc ]\n"
        "Time <f8 1 000000000000E03F #HUMANE [ 0.5 ]\n"
        "TotNumPart <u8 3 00000000000000000A000000000000000000000000000000 "
        "#HUMANE [ 0 10 0 ]\n"
    )
    again = Block.at(tmp_path / "Position")
    assert again == table
    np.testing.assert_array_equal(again.read(2, 6), values[2:8])
    found = read_attributes(tmp_path / "Position")
    assert found["Name"] == "abc"
    assert found["TotNumPart"].tolist() == [0, 10, 0]
    with pytest.raises(KeyError, match="there is no block"):
        Block.at(tmp_path / "Velocity")
    (tmp_path / "Position" / "header").write_text(
        "DTYPE: <f8\nNMEMB: 3\nNFILE: 2\n000000: 5 : 1 : 1\n"
    )
    with pytest.raises(ValueError, match="is no header"):
        Block.at(tmp_path / "Position")
    (tmp_path / "Position" / "attr-v2").write_text("Time <f8 1 00\n")
    with pytest.raises(ValueError, match="no attribute of bigfile"):
        read_attributes(tmp_path / "Position")


def test_ranks_that_ask_for_different_things(folder):
    if SIZE == 1:
        return
    mesh = mesh_on(grids()[0])
    wanted = ("float32", "float64")[RANK % 2]
    for save in SAVE.values():
        raised_everywhere(
            RuntimeError, "rank 0 asks for", save, folder / "s", scattered(), mesh,
            cosmology=cosmology(), dtype=wanted,
        )  # fmt: skip
    assert MPI.COMM_WORLD.size == SIZE

"""Particles in HDF5, read back on every grid."""

import dataclasses

import jax.numpy as jnp
import numpy as np
import pytest

import pfftjax
from pfftjax import pm
from tests.distributed import grids, raised_everywhere
from tests.helpers import CONTROL, RANK, SIZE
from tests.pm.universe import cosmology

h5py = pytest.importorskip("h5py")
pytestmark = [pytest.mark.mpi, pytest.mark.ranks(1, 2, 3)]

MESH = (6, 7, 5)
TOTAL = 41


def table():
    """Every particle that there is: cell, offset, momentum."""
    rng = np.random.default_rng(0)
    cell = rng.integers(0, MESH, (TOTAL, 3)).astype(np.int32)
    return cell, rng.uniform(-9, 9, (TOTAL, 3)), rng.standard_normal((TOTAL, 3))


def scattered(dtype):
    """On any ranks: an uneven share each, the first one none; unused rows hold nonsense."""
    ends = (
        np.linspace(0, TOTAL, SIZE + 1).astype(int)
        if SIZE < 3
        else np.array([0, 0, *np.linspace(20, TOTAL, SIZE - 1).astype(int)])
    )
    mine = slice(ends[RANK], ends[RANK + 1])
    cell, offset, momentum = (np.concatenate([x[mine], x[:3] * 0 + 77]) for x in table())
    used = jnp.int32(ends[RANK + 1] - ends[RANK])
    offset, momentum = jnp.asarray(offset, dtype), jnp.asarray(momentum, dtype)
    return pm.Particles(jnp.asarray(cell), offset, momentum, used, TOTAL, MESH)


def rows(particles):
    """All particles of all ranks, sorted."""
    used = int(particles.used)
    mine = np.concatenate(
        [np.asarray(x)[:used] for x in (particles.cell, particles.offset, particles.momentum)], 1
    )
    everything = np.concatenate(CONTROL.allgather(mine))
    return everything[np.lexsort(everything.T)]


def test_the_grid_that_wrote_them_reads_them_in_the_same_order(folder):
    """What is painted adds them up in it."""
    for grid in grids():
        mesh = pfftjax.PencilFFT(MESH, grid, real=True).input
        particles = pm.to_owners(scattered("float64"), mesh, TOTAL)
        pfftjax.io.save_particles(folder / "p.h5", particles, mesh, mode="w")
        loaded = pfftjax.io.load_particles(folder / "p.h5", mesh, capacity=TOTAL)
        used = int(particles.used)
        assert int(loaded.used) == used
        for name in ("cell", "offset", "momentum"):
            read, written = (getattr(of, name)[:used] for of in (loaded, particles))
            np.testing.assert_array_equal(read, written)


@pytest.mark.parametrize("layout", ["shared", "per_rank"])
def test_read_back_by_their_owners_on_any_grid(folder, layout):
    path = folder / "p.h5"
    for dtype in ("float32", "float64"):
        particles = scattered(dtype)
        expected = np.concatenate([x.astype(dtype) for x in table()], 1)
        expected = expected[np.lexsort(expected.T)]
        for source in grids():
            mesh = pfftjax.PencilFFT(MESH, source, real=True).input
            pm_io = {"attributes": {"a": 0.5}, "layout": layout, "mode": "w"}
            pfftjax.io.save_particles(path, particles, mesh, **pm_io)
            with h5py.File(path) as file:
                assert file["cell"].shape == (TOTAL, 3)
                np.testing.assert_array_equal(file["momentum"], table()[2].astype(dtype))
                assert file["offset"].dims[0][0].name == "/particle"
            for target in grids() if source == grids()[-1] else [grids()[-1]]:
                mesh = pfftjax.PencilFFT(MESH, target, real=True).input
                loaded = pfftjax.io.load_particles(path, mesh, capacity=TOTAL)
                assert loaded.offset.dtype == dtype
                assert loaded.total == TOTAL
                np.testing.assert_array_equal(rows(loaded), expected)
                used = int(loaded.used)
                at = np.floor(np.asarray(loaded.cell + loaded.offset)[:used]).astype(int) % MESH
                for axis in (0, 1):
                    start, count = mesh.range_of(axis)
                    assert ((start <= at[:, axis]) & (at[:, axis] < start + count)).all()
    assert pfftjax.io.attributes(path, mesh.grid)["mesh_shape"].tolist() == list(MESH)
    assert pfftjax.io.load_particles(path, mesh, dtype="float32").offset.dtype == "float32"


def test_a_file_that_other_codes_read(folder):
    """Positions in Mpc/h, velocities in km/s, units and the cosmology."""
    path = folder / "p.h5"
    mesh = pfftjax.PencilFFT(MESH, grids()[-1], real=True).input
    box, a = (12.0, 21.0, 5.0), 0.25
    particles = dataclasses.replace(scattered("float64"), scale_factor=a, box_size=box)
    universe = cosmology(w0=-0.9)
    pfftjax.io.save_particles(path, particles, mesh, physical=True, cosmology=universe)
    cell, offset, momentum = table()
    with h5py.File(path) as file:
        expected = (cell + offset) % MESH * np.divide(box, MESH)
        np.testing.assert_allclose(file["position"], expected, atol=1e-13)
        np.testing.assert_allclose(file["velocity"], 400 * momentum, rtol=1e-14)
        assert file["velocity"].attrs["units"].startswith("km/s")
        assert all("units" in file[name].attrs for name in ("cell", "offset", "momentum"))
    loaded = pfftjax.io.load_cosmology(path, mesh.grid)
    assert vars(loaded) == vars(universe)
    assert float(pfftjax.io.load_particles(path, mesh).scale_factor) == a
    pfftjax.io.save_particles(path, scattered("float32"), mesh, mode="w")
    load = pfftjax.io.load_cosmology
    raised_everywhere(KeyError, "no attribute cosmology_Omega_c", load, path, mesh.grid)


def test_what_only_some_particles_have(folder):
    """It comes back with them, and does not stay in a file in which others take their place."""
    path, mesh = folder / "p.h5", pfftjax.PencilFFT(MESH, grids()[-1], real=True).input
    plain = scattered("float32")
    its = jnp.stack([plain.offset, plain.momentum], 1)
    particles = dataclasses.replace(
        plain, displacements=its, scale_factor=0.5, box_size=(1.0,) * 3
    )
    fields = {name: jnp.full(mesh.local_shape, 3.0) for name in ("velocity", "displacement1")}
    pfftjax.io.save(path, fields, mesh, attributes={"position": 7})
    pfftjax.io.save_particles(path, plain, mesh, mode="a")
    assert pfftjax.io.load_particles(path, mesh).displacements is None
    pfftjax.io.save(
        path, {"velocity": fields["velocity"]}, mesh, attributes={"position": 7}, mode="w"
    )
    pfftjax.io.save_particles(path, particles, mesh, cosmology=cosmology(w0=-0.9), mode="a")
    assert float(pfftjax.io.load_cosmology(path, mesh.grid).w0) == -0.9
    loaded = pfftjax.io.load_particles(path, mesh, capacity=TOTAL)
    np.testing.assert_array_equal(loaded.displacements[:, 0], loaded.offset)
    np.testing.assert_array_equal(loaded.displacements[:, 1], loaded.momentum)
    pfftjax.io.save_particles(path, plain, mesh, mode="a")
    loaded = pfftjax.io.load_particles(path, mesh, capacity=TOTAL)
    assert loaded.displacements is loaded.scale_factor is loaded.box_size is None
    load = pfftjax.io.load_cosmology
    raised_everywhere(KeyError, "no attribute cosmology_Omega_c", load, path, mesh.grid)
    with h5py.File(path) as file:
        assert file["velocity"].shape == MESH
        assert file.attrs["position"] == 7


@pytest.mark.wrong_types
def test_what_is_refused(folder):
    path = folder / "p.h5"
    mesh = pfftjax.PencilFFT(MESH, grids()[0], real=True).input
    other = pfftjax.PencilFFT((6, 7, 8), grids()[0], real=True).input
    particles = scattered("float64")
    save, load = pfftjax.io.save_particles, pfftjax.io.load_particles
    raised_everywhere(ValueError, r"mesh \(6, 7, 5\), but this", save, path, particles, other)
    raised_everywhere(TypeError, "must be pm.Particles", save, path, {}, mesh)
    raised_everywhere(FileNotFoundError, "no file", load, path, mesh)
    # As many in all as there should be, but not where they should be.
    wrong = dataclasses.replace(particles, used=particles.used + (9, -9)[RANK % 2])
    what = "used is " if SIZE > 1 else "used is 50, but the arrays have 44 rows"
    raised_everywhere(ValueError, what, save, path, wrong, mesh)
    for total in (TOTAL - 1, TOTAL + 1):
        other_total = dataclasses.replace(particles, total=total)
        said = f"the ranks have {TOTAL} particles, but total is {total}"
        raised_everywhere(ValueError, said, save, path, other_total, mesh)
    save(path, particles, mesh)
    raised_everywhere(ValueError, "units of the cells of a mesh", load, path, other)
    raised_everywhere(FileExistsError, "is there already", save, path, particles, mesh)
    more = {"mode": "w", "physical": True}
    raised_everywhere(ValueError, "no box_size of their own", save, path, particles, mesh, **more)
    in_box = dataclasses.replace(particles, box_size=(1.0, 1.0, 1.0))
    for a in (None, 0.0):
        unknown = dataclasses.replace(in_box, scale_factor=a)
        raised_everywhere(
            ValueError, "no positive scale_factor", save, path, unknown, mesh, **more
        )
    raised_everywhere(TypeError, "without Omega_c", save, path, particles, mesh, cosmology={})
    with pytest.raises(ValueError, match="must be a positive number, got -1"):
        particles.velocities(-1.0)
    raised_everywhere(ValueError, "mode must be", save, path, particles, mesh, mode="r")
    pfftjax.io.save(path, {"q": jnp.zeros(mesh.local_shape)}, mesh, mode="w")
    raised_everywhere(KeyError, "no dataset 'cell'", load, path, mesh)
    with pytest.raises(TypeError, match="mesh must be a Pencil"):
        load(path, None)

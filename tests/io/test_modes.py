"""What becomes of a file that is there already: refused, replaced, or kept beside what is new."""

import dataclasses

import jax.numpy as jnp
import numpy as np
import pytest

import pfftjax
from pfftjax import pm
from pfftjax.io import _contents, _file, _zarr
from tests.distributed import grids, raised_everywhere
from tests.helpers import CONTROL, RANK, SIZE, assert_equal, random

h5py = pytest.importorskip("h5py")
pytestmark = pytest.mark.mpi

SHAPE = (4, 5, 6)
LAYOUTS = {
    "shared": {"layout": "shared"},
    "per_rank": {"layout": "per_rank"},
    "zarr": {"format": "zarr"},
}
save, load = pfftjax.io.save, pfftjax.io.load


@pytest.fixture(params=list(LAYOUTS))
def how(request):
    if request.param == "zarr":
        pytest.importorskip("zarr")
    return LAYOUTS[request.param]


def fields(pencil):
    wholes = {"delta": random(SHAPE), "v": random((2, *SHAPE), "complex64", seed=1)}
    return wholes, {name: jnp.asarray(pencil.local_block(x)) for name, x in wholes.items()}


def test_what_is_there_is_kept_unless_it_is_named(how, folder, monkeypatch):
    """From another grid, in pieces of a few elements."""
    path, last = folder / "x", pfftjax.Pencil(SHAPE, grids()[-1], (1, 2), (1, 2, 0))
    first = pfftjax.Pencil(SHAPE, grids()[0])
    wholes, blocks = fields(first)
    # Without a file "a" is as "x".
    save(path, blocks, first, box_size=8.0, attributes={"a": 0.1, "code": "x"}, **how, mode="a")
    new = random(SHAPE, "float32", seed=2)
    monkeypatch.setattr(_contents, "PIECE_BYTES", 100)
    raised_everywhere(FileExistsError, "is there already", save, path, blocks, first, **how)
    added = {"phi": last.local_block(new), "delta": last.local_block(wholes["delta"] + 1)}
    save(path, added, last, attributes={"a": 0.5}, **how, mode="a")
    for pencil in (first, last):
        assert_equal(load(path, "delta", pencil), pencil.local_block(wholes["delta"] + 1))
        assert_equal(load(path, "v", pencil), pencil.local_block(wholes["v"]))
        assert_equal(load(path, "phi", pencil), pencil.local_block(new))
    assert pfftjax.io.attributes(path, first.grid) == {"a": 0.5, "code": "x", "box_size": 8.0}
    with _file.opened(path) as file:
        np.testing.assert_allclose(file["x"][...], np.arange(0, 8, 2))

    # Contents that cannot be kept are refused, and all of the old file stays.
    def refused(error, said, *more, **options):
        raised_everywhere(error, said, save, path, *more, **how, **options, mode="a")
        assert_equal(load(path, "phi", last), last.local_block(new))

    finer = pfftjax.Pencil((8, 5, 6), grids()[0])
    said = "has an axis 'x' of 4 points, but this one is of 8"
    refused(ValueError, said, {"fine": np.zeros(finer.local_shape)}, finer)
    said = r"coordinates of 'x' from 0\.0 to 6\.0, but these are from 0\.0 to 3\.0"
    refused(ValueError, said, {"q": blocks["delta"]}, first, box_size=4.0)

    def full(*_):
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        if RANK == SIZE - 1:
            patch.setattr(_zarr, "_write_box", full)
            patch.setattr(_file.Dataset, "pieces", full)
        refused(OSError, "No space left", {"q": blocks["delta"]}, first)

    # All of it anew.
    save(path, {"q": blocks["delta"]}, first, **how, mode="w")
    raised_everywhere(KeyError, "no dataset 'delta'", load, path, "delta", first)
    CONTROL.barrier()
    there = [p.name for p in folder.iterdir()]
    assert len(there) == (2 if how.get("layout") == "per_rank" else 1), there


def test_the_box_goes_with_its_coordinates(how, folder):
    """Whether or not another field has the axes of one that is replaced."""
    path, pencil = folder / "x", pfftjax.Pencil(SHAPE, grids()[0])
    _, blocks = fields(pencil)

    def found():
        CONTROL.barrier()
        with _file.opened(path) as file:
            along = _file.find(file, "x")[...].tolist() if "x" in file else None
        CONTROL.barrier()
        return along, pfftjax.io.attributes(path, pencil.grid).get("box_size")

    def saved(name, **options):
        save(path, {name: blocks["delta"]}, pencil, **how, **options, mode="a")
        return found()

    first = [0.0, 2.0, 4.0, 6.0], 8.0
    assert saved("delta", box_size=8.0) == first
    assert saved("delta") == first
    assert saved("phi") == first
    save(path, {"delta": blocks["delta"]}, pencil, box_size=8.0, **how, mode="w")
    assert saved("delta", box_size=4.0) == ([0.0, 1.0, 2.0, 3.0], 4.0)
    assert saved("delta", coordinates={"x": range(4)}) == ([0, 1, 2, 3], 4.0)
    assert saved("delta", coordinates={"x": [0, 1, 4, 9]}) == ([0, 1, 4, 9], None)

    # The coordinates do not fit to other axes, or to another number of points.
    save(path, {"delta": blocks["delta"]}, pencil, box_size=8.0, **how, mode="w")
    assert saved("delta", dims=("a", "b", "c")) == (None, None)
    save(path, {"delta": blocks["delta"]}, pencil, box_size=8.0, **how, mode="w")
    finer = pfftjax.Pencil((8, 5, 6), pencil.grid)
    save(path, {"delta": np.zeros(finer.local_shape)}, finer, **how, mode="a")
    _, box_size = found()
    assert box_size is None


@pytest.mark.parametrize("layout", ["shared", "per_rank"])
def test_particles_beside_fields(layout, folder):
    """With what they know of themselves; files that do not say it can be read."""
    path, plan = folder / "p.h5", pfftjax.PencilFFT(SHAPE, grids()[-1], real=True)
    mesh = plan.input
    _, blocks = fields(mesh)
    save(path, blocks, mesh, box_size=8.0, layout=layout)
    rows = int(np.prod(mesh.local_shape))
    cell = np.stack(
        [np.broadcast_to(mesh.indices(a), mesh.local_shape).ravel() for a in range(3)], 1
    )
    rest = jnp.zeros((rows, 3))
    total = int(np.prod(SHAPE))
    particles = pm.Particles(
        jnp.asarray(cell, "int32"), rest, rest, jnp.int32(rows), total, SHAPE, 0.25, (4, 5.0, 6)
    )
    options = {"layout": layout, "mode": "a"}
    pfftjax.io.save_particles(path, particles, mesh, attributes={"a": 0.25}, **options)
    loaded = pfftjax.io.load_particles(path, mesh, capacity=total)
    assert float(loaded.scale_factor) == 0.25
    assert loaded.box_size.tolist() == [4.0, 5.0, 6.0]
    assert_equal(load(path, "delta", mesh), blocks["delta"])
    # Added to them, a field leaves them; and their box is not that of the fields.
    save(path, {"phi": blocks["delta"]}, mesh, **options)
    assert pfftjax.io.load_particles(path, mesh, capacity=total).total == total
    kept = pfftjax.io.attributes(path, mesh.grid)
    assert (kept["box_size"], kept["particles_scale_factor"]) == (8.0, 0.25)
    unknown = dataclasses.replace(particles, scale_factor=None, box_size=None)
    pfftjax.io.save_particles(path, unknown, mesh, layout=layout, mode="w")
    again = pfftjax.io.load_particles(path, mesh, capacity=total)
    assert again.scale_factor is None
    assert again.box_size is None


def test_files_of_others(folder):
    """Attributes of an array are kept; what is no array is not thrown away without a word."""
    path, pencil = folder / "x.h5", pfftjax.Pencil(SHAPE, grids()[0])
    _, blocks = fields(pencil)
    save(path, {"delta": blocks["delta"]}, pencil)
    if RANK == 0:
        with h5py.File(path, "r+") as file:
            file["delta"].attrs["units"] = "1"
    CONTROL.barrier()
    save(path, {"phi": blocks["delta"]}, pencil, mode="a")
    with h5py.File(path) as file:
        assert file["delta"].attrs["units"] == "1"
    CONTROL.barrier()
    for name, content, said in (
        ("halos", None, "has a group, 'halos', which mode='a' cannot keep"),
        ("text", "words", "has 'text', of object"),
        ("plain", np.zeros(3), r"has 'plain', of float64 and shape \(3,\) with axes \(''"),
    ):
        if RANK == 0:
            with h5py.File(path, "r+") as file:
                if content is None:
                    file.create_group(name)
                else:
                    file[name] = content
        CONTROL.barrier()
        raised_everywhere(ValueError, said, save, path, {"q": blocks["delta"]}, pencil, mode="a")
        CONTROL.barrier()
        if RANK == 0:
            with h5py.File(path, "r+") as file:
                del file[name]

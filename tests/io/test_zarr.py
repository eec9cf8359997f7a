"""Fields in Zarr and compressed fields: what other readers see, and restarts on other grids."""

import os

import jax.numpy as jnp
import numpy as np
import pytest
import zarr
from mpi4py import MPI

import pfftjax
from pfftjax.io import _zarr
from tests.distributed import grids, raised_everywhere
from tests.helpers import CONTROL, RANK, SIZE, assert_equal, random

xarray = pytest.importorskip("xarray")
h5py = pytest.importorskip("h5py")
pytestmark = [pytest.mark.mpi, pytest.mark.ranks(1, 2, 4)]

DTYPES = ("bool", "int8", "uint64", "float16", "float32", "float64", "complex64", "complex128")


@pytest.mark.parametrize("shape", [(6, 7, 5), (2, 1, 3)], ids=str)
def test_any_grid_reads_what_any_other_wrote(folder, shape, monkeypatch):
    path = folder / "q.zarr"
    wholes = {"v": random((2, *shape), "complex64"), "none": np.zeros(shape)}
    every = [pfftjax.Pencil(shape, g, (1, 2), (1, 2, 0)) for g in (*grids()[:1], *grids()[-1:])]
    every += [pfftjax.Pencil(shape, grids()[-1])]
    for i, source in enumerate(every):
        monkeypatch.setattr(_zarr, "_CHUNK_BYTES", (200, 1 << 25)[i % 2])
        fields = {name: source.local_block(x) for name, x in wholes.items()}
        compression = (None, "gzip")[i % 2]
        # In place of the group before.
        options = {"format": "zarr", "compression": compression}
        if i > 0:
            said = "is there already; mode='a' adds to it"
            call = pfftjax.io.save, path, {"other": fields["none"]}, source
            raised_everywhere(FileExistsError, said, *call, **options)
        pfftjax.io.save(path, fields, source, **options, mode="w")
        for name, x in wholes.items():
            assert_equal(zarr.open_group(path, mode="r")[name][...], x)
            target = every[(i + 1) % len(every)]
            assert_equal(pfftjax.io.load(path, name, target), target.local_block(x))
        CONTROL.barrier()
    assert [p.name for p in folder.iterdir()] == ["q.zarr"]


def test_no_two_ranks_write_to_one_chunk():
    for shape in ((6, 7, 5), (2, 1, 3), (12, 9, 4), (1, 1, 1)):
        for grid in grids():
            for split in ((0, 1), (1, 2), (2, 0)):
                pencil = pfftjax.Pencil(shape, grid, split, (0, 1, 2))
                fields = {"q": np.zeros(pencil.local_shape)}
                (dataset,) = pfftjax.io._fields._datasets(fields, pencil, ("x", "y", "z"))
                chunks = _zarr.chunks_of(dataset, grid.size)
                writers = {}
                for rank in range(grid.size):
                    box = dataset.box_of(rank)
                    cells = np.ndindex(*(count for _, count in box))
                    for cell in cells:
                        at = (s + i for (s, _), i in zip(box, cell, strict=True))
                        chunk = tuple(i // c for i, c in zip(at, chunks, strict=True))
                        assert writers.setdefault(chunk, rank) == rank


def test_a_piece_is_no_copy_where_it_is_contiguous():
    """JAX's own slices are arrays of their own."""
    pencil = pfftjax.Pencil((6, 7, 5), pfftjax.ProcessGrid((1, 1), MPI.COMM_SELF))
    x = jnp.arange(210.0).reshape(6, 7, 5)
    (dataset,) = pfftjax.io._fields._datasets({"q": x}, pencil, ("x", "y", "z"))
    part = dataset.piece((slice(2, 4), slice(0, 7), slice(0, 5)))
    assert np.shares_memory(part, np.asarray(x))
    assert_equal(part, x[2:4])


def test_every_dtype_and_what_xarray_sees(folder):
    shape, path = (4, 5, 6), folder / "x.zarr"
    pencil = pfftjax.Pencil(shape, grids()[-1], (1, 2), (1, 2, 0))
    wholes = {f"a {d}": random((3, *shape) if d == "int8" else shape, d) for d in DTYPES}
    fields = {name: pencil.local_block(x) for name, x in wholes.items()}
    kept = {"a": 0.5, "code": "pfftjax", "seeds": np.arange(3)}
    options = {"format": "zarr", "box_size": (1.0, 10.0, 3.0), "attributes": kept}
    pfftjax.io.save(path, fields, pencil, **options)
    with xarray.open_zarr(path, consolidated=False, chunks=None) as data:
        for name, x in wholes.items():
            batch = (f"{name}_batch0",) if x.ndim == 4 else ()
            assert data[name].dims == (*batch, "x", "y", "z")
            assert_equal(data[name].values, x)
        np.testing.assert_allclose(data["y"], [0, 2, 4, 6, 8])
    for name, x in wholes.items():
        assert_equal(pfftjax.io.load(path, name, pencil), pencil.local_block(x))
    found = pfftjax.io.attributes(path, pencil.grid)
    assert set(found) == {"a", "code", "seeds", "box_size"}
    assert found["seeds"].tolist() == [0, 1, 2]
    CONTROL.barrier()
    # A lost chunk, which Zarr would read as NaN.
    if RANK == 0:
        next(p for p in (path / "a float64" / "c").rglob("*") if p.is_file()).unlink()
    CONTROL.barrier()
    load, said = pfftjax.io.load, "chunks; it is not complete"
    raised_everywhere(FileNotFoundError, said, load, path, "a float64", pencil)
    raised_everywhere(KeyError, "there is no dataset 'p'", load, path, "p", pencil)


@pytest.mark.wrong_types
def test_compressed_parts_and_what_is_refused(folder, monkeypatch):
    shape, path = (3, 12, 40), folder / "x.h5"
    pencil = pfftjax.Pencil(shape, grids()[-1])
    x = np.zeros(shape)
    x[:, 5] = 1
    save, block = pfftjax.io.save, {"q": pencil.local_block(x)}
    save(path, block, pencil, layout="per_rank", compression="gzip")
    if RANK == 0:
        (part,) = folder.glob("*.parts-*/000000.h5")
        with h5py.File(part) as file:
            assert file["q"].compression == "gzip"
            assert file["q"].shuffle
    with h5py.File(path) as file:
        assert_equal(file["q"][()], x)
    assert_equal(pfftjax.io.load(path, "q", pencil), pencil.local_block(x))
    if SIZE > 1:
        said = "use layout='per_rank', or format='zarr'"
        raised_everywhere(
            ValueError, said, save, path, block, pencil, compression="gzip", mode="w"
        )
    else:
        save(path, block, pencil, compression="gzip", mode="w")
        assert_equal(pfftjax.io.load(path, "q", pencil), x)
    for said, options in (
        ("compression must be None or gzip", {"compression": "magic"}),
        ("format must be hdf5 or zarr", {"format": "fits"}),
        ("layout='per_rank' is of HDF5", {"format": "zarr", "layout": "per_rank"}),
    ):
        raised_everywhere(ValueError, said, save, path, block, pencil, **options)
    said = "is there and is no Zarr group"
    raised_everywhere(OSError, said, save, path, block, pencil, format="zarr")
    said, attributes = "attribute 'phase': .*complex", {"phase": 1j}
    raised_everywhere(
        TypeError, said, save, folder / "z", block, pencil, format="zarr", attributes=attributes
    )

    def full(*_):
        raise OSError("no space left")

    if RANK == SIZE - 1:
        monkeypatch.setattr(_zarr, "_write_box", full)
    said = f"save on rank {SIZE - 1} of {SIZE}: no space left"
    raised_everywhere(OSError, said, save, folder / "z", block, pencil, format="zarr")
    assert sorted(p.name for p in folder.glob("z*")) == []
    # The old array stays where the new one cannot take its place.
    monkeypatch.undo()
    save(folder / "z", block, pencil, format="zarr")
    rename = os.rename

    def refused(source, target):
        if ".tmp-" in str(source):
            raise OSError("not now")
        rename(source, target)

    with monkeypatch.context() as patch:
        patch.setattr(os, "rename", refused)
        options = {"format": "zarr", "mode": "w"}
        raised_everywhere(OSError, "not now", save, folder / "z", block, pencil, **options)
    assert sorted(p.name for p in folder.glob("z*")) == ["z"]
    assert_equal(pfftjax.io.load(folder / "z", "q", pencil), pencil.local_block(x))
    monkeypatch.setitem(__import__("sys").modules, "zarr", None)
    said = r"pip install pfftjax\[zarr\]"
    raised_everywhere(ImportError, said, save, folder / "z", block, pencil, format="zarr")

"""Fields in HDF5: what h5py and xarray see, every pencil and grid that reads them back, and errors
that all ranks raise."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from mpi4py import MPI

import pfftjax
from pfftjax.io import _contents, _file
from tests.distributed import alone, grids, raised_everywhere
from tests.helpers import CONTROL, RANK, SIZE, assert_equal, random

h5py = pytest.importorskip("h5py")
pytestmark = [pytest.mark.mpi, pytest.mark.ranks(1, 2, 3)]

PENCILS = (((0, 1), (0, 1, 2)), ((0, 2), (0, 2, 1)), ((1, 2), (1, 2, 0)), ((2, 0), (2, 0, 1)))
DTYPES = ("bool", "int8", "uint64", "float16", "float32", "float64", "complex64", "complex128")


def pencils(shape):
    return [pfftjax.Pencil(shape, grid, *layout) for grid in grids() for layout in PENCILS]


def files(folder):
    CONTROL.barrier()
    return sorted(path.name for path in folder.iterdir())


@pytest.mark.parametrize("layout", ["shared", "per_rank"])
def test_every_dtype_is_itself_in_the_file(layout, folder, monkeypatch):
    shape = (5, 6, 7)
    wholes = {f"a {d}": random((2, *shape) if d == "int8" else shape, d) for d in DTYPES}
    pencil = pfftjax.Pencil(shape, grids()[-1], (1, 2), (1, 2, 0))
    fields = {name: jnp.asarray(pencil.local_block(x)) for name, x in wholes.items()}
    monkeypatch.setattr(_contents, "PIECE_BYTES", 200)
    pfftjax.io.save(folder / "all.h5", fields, pencil, layout=layout)
    with h5py.File(folder / "all.h5") as file:
        for name, x in wholes.items():
            assert_equal(file[name][()], x)
    for name, x in wholes.items():
        block = pfftjax.io.load(folder / "all.h5", name, pencil)
        assert isinstance(block, jax.Array)
        assert_equal(block, pencil.local_block(x))


@pytest.mark.parametrize("layout", ["shared", "per_rank"])
@pytest.mark.parametrize("shape", [(5, 6, 7), (2, 1, 3)], ids=str)
def test_any_pencil_reads_what_any_other_wrote(shape, layout, folder, monkeypatch):
    wholes = {"q": random(shape), "v": random((2, *shape), "complex64")}
    every = pencils(shape)
    for i, source in enumerate(every):
        # In pieces of a few elements, and all at once.
        monkeypatch.setattr(_contents, "PIECE_BYTES", (40, 1 << 26)[i % 2])
        fields = {name: source.local_block(x) for name, x in wholes.items()}
        # In place of the file before.
        pfftjax.io.save(folder / "q.h5", fields, source, layout=layout, mode="w")
        with h5py.File(folder / "q.h5") as file:
            for name, x in wholes.items():
                assert_equal(file[name][()], x)
        for target in every if i == len(every) - 2 else [every[(5 * i + 3) % len(every)]]:
            for name, x in wholes.items():
                block = pfftjax.io.load(folder / "q.h5", name, target)
                assert_equal(block, target.local_block(x))
    there = files(folder)
    assert "q.h5" in there
    assert len(there) == (1 if layout == "shared" else 2)


def test_other_arrays_than_those_of_jax_in_three_dimensions(folder):
    for shape in ((6, 5), (2, 3, 4, 5)):
        x = random(shape)
        pencil = pfftjax.Pencil(shape, grids()[0], (1, 0), tuple(reversed(range(len(shape)))))
        pfftjax.io.save(folder / "x.h5", {"q": pencil.local_block(x)}, pencil, mode="w")
        with h5py.File(folder / "x.h5") as file:
            assert_equal(file["q"][()], x)
        assert_equal(pfftjax.io.load(folder / "x.h5", "q", pencil), pencil.local_block(x))


def test_a_spectrum_is_in_natural_order_in_the_file(folder):
    shape = (4, 6, 5)
    x = random(shape)
    for layout in ("transposed", "natural"):
        plan = pfftjax.PencilFFT(shape, grids()[-1], real=True, layout=layout)
        spectrum = plan.forward(plan.input.local_block(x))
        pfftjax.io.save(
            folder / "k.h5",
            {"delta_k": spectrum},
            plan.output,
            dims=("kx", "ky", "kz"),
            coordinates={"kz": 2 * np.pi * np.fft.rfftfreq(5, 1 / 5)},
            mode="w",
        )
        with h5py.File(folder / "k.h5") as file:
            assert np.abs(file["delta_k"][()] - np.fft.rfftn(x)).max() < 1e-12
            assert [d.label or d[0].name for d in file["delta_k"].dims][2] == "/kz"


@pytest.mark.parametrize("layout", ["shared", "per_rank"])
def test_xarray_sees_coordinates_and_attributes(folder, layout):
    xarray = pytest.importorskip("xarray")
    pytest.importorskip("h5netcdf")
    shape = (4, 5, 6)
    pencil = pfftjax.Pencil(shape, grids()[0], (1, 2), (1, 2, 0))
    x, v, z = random(shape, "float32"), random((3, *shape)), random(shape, "complex64")
    blocks = {"delta": x, "velocity": v, "field": z}
    pfftjax.io.save(
        folder / "x.h5",
        {name: pencil.local_block(a) for name, a in blocks.items()},
        pencil,
        box_size=(1.0, 10.0, 3.0),
        attributes={
            "a": 0.5,
            "code": "pfftjax",
            "seeds": np.arange(3),
            "h": jnp.float32(0.5),
            "more than 64 KiB": np.arange(10_000),
        },
        layout=layout,
    )
    with xarray.open_dataset(folder / "x.h5", engine="h5netcdf") as data:
        assert_equal(data.attrs["more than 64 KiB"], np.arange(10_000))
        assert data["delta"].dims == ("x", "y", "z")
        assert data["velocity"].dims == ("velocity_batch0", "x", "y", "z")
        assert_equal(data["delta"].values, x)
        assert_equal(data["velocity"].values, v)
        assert_equal(data["field"].values, z)
        np.testing.assert_allclose(data["x"], np.arange(4) / 4)
        np.testing.assert_allclose(data["y"], [0, 2, 4, 6, 8])
        assert float(data["delta"].sel(x=0.13, y=2.1, z=2.7, method="nearest")) == x[1, 1, 5]
        assert "velocity_batch0" not in data.coords
        assert data.attrs["code"] == "pfftjax"
    kept = pfftjax.io.attributes(folder / "x.h5", pencil.grid)
    assert set(kept) == {"a", "code", "seeds", "h", "box_size", "more than 64 KiB"}
    assert kept["a"] == kept["h"] == 0.5
    assert kept["box_size"].tolist() == [1.0, 10.0, 3.0]
    only = {"delta": pencil.local_block(x)}
    pfftjax.io.save(folder / "x.h5", only, pencil, box_size=4.0, offset=0.5, mode="w")
    with h5py.File(folder / "x.h5") as file:
        assert file["x"][()].tolist() == [0.5, 1.5, 2.5, 3.5]


def test_dtypes_at_loading(folder):
    pencil = pfftjax.Pencil((2, 3, 4), grids()[0])
    x, n = random((2, 3, 4)), random((2, 3, 4), "int32")
    blocks = {"q": pencil.local_block(x), "n": pencil.local_block(n)}
    pfftjax.io.save(folder / "x.h5", blocks, pencil)
    path = folder / "x.h5"
    expected = pencil.local_block(x.astype("float32"))
    assert_equal(pfftjax.io.load(path, "q", pencil, dtype="float32"), expected)
    assert_equal(pfftjax.io.load(path, "n", pencil, dtype=float), pencil.local_block(n * 1.0))
    with pytest.raises(TypeError, match="is float64, which int32 cannot hold"):
        pfftjax.io.load(path, "q", pencil, dtype="int32")
    # Integers are read into any type that has them.
    small = {"few": pencil.local_block(n % 100), "many": pencil.local_block(n % 100 + 200)}
    pfftjax.io.save(folder / "small.h5", small, pencil)
    assert_equal(
        pfftjax.io.load(folder / "small.h5", "few", pencil, dtype="int8"),
        small["few"].astype("int8"),
    )
    with pytest.raises(TypeError, match=r"has 2\d\d, which int8 cannot hold"):
        pfftjax.io.load(folder / "small.h5", "many", pencil, dtype="int8")
    with jax.enable_x64(False):
        with pytest.raises(
            TypeError, match="float64 needs JAX_ENABLE_X64=1; or pass dtype='float"
        ):
            pfftjax.io.load(path, "q", pencil)
    if RANK == 0:
        with h5py.File(path, "w") as file:
            file["q"] = x.astype(">f8")
            file["text"] = "text"
    CONTROL.barrier()
    assert_equal(pfftjax.io.load(path, "q", pencil), pencil.local_block(x))
    with pytest.raises(ValueError, match=r"'text' .* has shape \(\)"):
        pfftjax.io.load(path, "text", pencil)


@pytest.mark.wrong_types
@pytest.mark.parametrize("layout", ["shared", "per_rank"])
def test_an_error_on_one_rank_is_raised_on_all_and_the_old_file_stays(folder, layout, monkeypatch):
    last = RANK == SIZE - 1
    pencil = pfftjax.Pencil((4, 5, 6), grids()[-1])
    whole = random((4, 5, 6))
    x = pencil.local_block(whole)
    path = folder / "x.h5"
    pfftjax.io.save(path, {"q": x}, pencil, layout=layout)
    before = files(folder)

    def refused(error, text, fields, at=path, **options):
        said = rf"^.?save on rank \d of {SIZE}: .*{text}"
        options = {"layout": layout, "mode": "w", **options}
        raised_everywhere(error, said, pfftjax.io.save, at, fields, pencil, **options)
        assert files(folder) == before
        assert_equal(pfftjax.io.load(path, "q", pencil), x)

    wrong = np.zeros((9, 9)) if last else x
    refused(ValueError, rf"'q': the block has shape {'.' * 6}, but this", {"q": wrong})
    refused(TypeError, "HDF5 has no bfloat16; cast it to float32", {"q": jnp.bfloat16(x)})
    keys = jax.random.split(jax.random.key(0), x.shape)
    refused(TypeError, "save jax.random.key_data", {"q": keys if last else x})
    refused(TypeError, "without any", {})
    refused(ValueError, "the name of a field and of an axis", {"q": x, "y": x})
    refused(ValueError, "dims must be 3 different names", {"q": x}, dims=("q", "q", "r"))
    refused(ValueError, "a word without slashes", {"a/b": x})
    refused(ValueError, "one for each of the 3 axes", {"q": x}, box_size=(1.0, 2.0))
    refused(ValueError, "box_size must be a positive length", {"q": x}, box_size=(1.0, 0.0, 1.0))
    refused(ValueError, "box_size must be a positive length", {"q": x}, box_size=True)
    refused(ValueError, "offset must be a number", {"q": x}, box_size=1.0, offset=np.nan)
    nowhere = {"x": [1, 2, np.nan, 3]}
    refused(ValueError, "'x' must be finite numbers", {"q": x}, coordinates=nowhere)
    refused(ValueError, "coordinates of 'x': 3 of them", {"q": x}, coordinates={"x": [1, 2, 3]})
    refused(ValueError, "the axes are x, y, z", {"q": x}, coordinates={"k": [1]})
    refused(ValueError, "mode must be x .*, w .* or a .*, got 'r'", {"q": x}, mode="r")
    refused(ValueError, "mode must be", {"q": x}, mode=None)
    refused(FileExistsError, "is there already; mode='a' adds to it", {"p": x}, mode="x")
    refused(FileExistsError, "mode='w' replaces all of it", {"p": x}, mode="x")
    refused(ValueError, "layout must be shared or per_rank", {"q": x}, layout="sideways")
    refused(
        TypeError,
        "attribute 'f': function cannot be stored",
        {"q": x},
        attributes={"f": test_dtypes_at_loading},
    )
    refused((OSError, FileNotFoundError), "", {"q": x}, at=folder / "none" / "x.h5")
    refused(IsADirectoryError, "give the path of a file", {"q": x}, at=folder)
    with pytest.raises(TypeError, match="'q' is traced; save outside of jitted code"):
        jax.jit(lambda a: pfftjax.io.save(path, {"q": a}, pencil))(x)
    if SIZE > 1:
        said = "save: rank 0 asks for .* and rank . for "
        fields = {"name of the last" if last else "name": x}
        raised_everywhere(RuntimeError, said, pfftjax.io.save, path, fields, pencil)

    # A disk that is full, on one rank in the middle of its data.
    pieces = _file.Dataset.pieces

    def full(self):
        yield next(pieces(self))
        raise OSError(28, "No space left on device")

    for rank in range(SIZE):
        with monkeypatch.context() as patch:
            if RANK == rank:
                patch.setattr(_file.Dataset, "pieces", full)
            said = rf"save on rank {rank} of {SIZE}: .*No space left"
            call = pfftjax.io.save, path, {"q": x}, pencil
            raised_everywhere(OSError, said, *call, layout=layout, mode="w")
        assert files(folder) == before
    assert_equal(pfftjax.io.load(path, "q", pencil), x)


@pytest.mark.wrong_types
def test_what_cannot_be_loaded(folder):
    pencil = pfftjax.Pencil((4, 5, 6), grids()[-1])
    x = pencil.local_block(random((4, 5, 6)))
    path = folder / "x.h5"
    load = pfftjax.io.load
    raised_everywhere(FileNotFoundError, "there is no file", load, path, "x", pencil)
    raised_everywhere(
        FileNotFoundError, "there is no file", pfftjax.io.attributes, path, pencil.grid
    )
    pfftjax.io.save(path, {"q": x}, pencil, layout="per_rank")
    raised_everywhere(
        KeyError, r"no dataset 'p' in .*x.h5, which has \[.{1,2}q.{1,2}\]", load, path, "p", pencil
    )
    other = pfftjax.Pencil((4, 5, 7), grids()[-1])
    said = r"has shape \(4, 5, 6\), but the pencil is of \(4, 5, 7\)"
    raised_everywhere(ValueError, said, load, path, "q", other)
    # Another batch in the file that each rank finds.
    if SIZE > 1:
        mine = folder / f"{RANK}.h5"
        with h5py.File(mine, "w") as file:
            file["q"] = random((RANK + 1, 4, 5, 6))
        raised_everywhere(RuntimeError, "rank 0 asks for .* and rank 1", load, mine, "q", pencil)
    # Parts that are not all, which HDF5 would read as NaN.
    if RANK == 0:
        (folder / "parts").mkdir()
        with h5py.File(folder / "parts" / "0.h5", "w") as file:
            file["q"] = random((3, 5, 6))
        with h5py.File(folder / "half.h5", "w") as file:
            virtual = h5py.VirtualLayout((4, 5, 6), float)
            virtual[:3] = h5py.VirtualSource("parts/0.h5", "q", (3, 5, 6), float)
            file.create_virtual_dataset("q", virtual, np.nan)
            file.attrs[_file.PARTS] = "parts"
    CONTROL.barrier()
    said = r"elements that are asked for of /q; it is not complete"
    raised_everywhere(OSError, said, load, folder / "half.h5", "q", pencil)
    # A lost part.
    if RANK == 0:
        (part,) = folder.glob("*.parts-*/000000.h5")
        part.unlink()
    CONTROL.barrier()
    with h5py.File(path) as file:
        assert np.isnan(file["q"][0, 0, 0])
    raised_everywhere(FileNotFoundError, "there is no file .*000000.h5", load, path, "q", pencil)
    # A file cut short, on one rank's side only.
    if RANK == 0:
        path.write_bytes(path.read_bytes()[:1000])
    CONTROL.barrier()
    raised_everywhere(OSError, rf"load on rank 0 of {SIZE}: .*x.h5", load, path, "q", pencil)
    for function in (pfftjax.io.save, pfftjax.io.load):
        with pytest.raises(TypeError, match="pencil must be a Pencil"):
            function(path, {}, None)


def test_boxes_cover_and_are_bounded():
    for count in ((3,), (5, 7), (2, 3, 4), (1, 1, 9), (4, 0, 2)):
        for most in (1, 2, 5, 12, 1000):
            seen = np.zeros(count, int)
            for place in _file.boxes(count, most):
                seen[place] += 1
                assert seen[place].size <= most
            assert (seen == 1).all()


@pytest.mark.parametrize("layout", ["shared", "per_rank"])
def test_indices_past_32_bits(folder, layout):
    """A row in a dataset of 2^33 elements, of which nothing else is ever allocated."""
    n, own = 1 << 32, MPI.COMM_SELF
    values = np.arange(1, 5, dtype=np.int8)[None]
    box = ((1, 1), (n - 4, 4))
    data = _file.Dataset("x", (2, n), values.dtype, ("a", "b"), values, (0, 1), lambda _: box)
    contents = _file.Contents((data,), {"a": 2, "b": n}, {"a": np.arange(2)}, {})
    path = folder / f"{RANK}.h5"
    if layout == "per_rank":
        contents = _file.Contents((data,), {"a": 2, "b": n}, {}, {})
    _file.write(path, contents, own, layout, "save", replace=False)
    with _file.opened(path) as file:
        assert _file.read(file["x"], box, (0, 1), values.dtype).tolist() == [[1, 2, 3, 4]]
        assert file["x"][1, n - 2] == 3
    whole = _file.boxes((3, 1 << 33), 1 << 32)
    assert [(p[0].start, p[1].stop) for p in whole][-1] == (2, 1 << 33)


def test_with_hdf5_on_mpi(folder, monkeypatch):
    """The calls to an h5py that is built with MPI, by one rank: pip's is not."""

    class Parallel(h5py.File):
        def __init__(self, name, mode, driver=None, comm=None, **options):
            assert mode == "r" or (driver == "mpio" and comm.size == 1)
            super().__init__(name, mode, **options)

    monkeypatch.setattr(h5py, "File", Parallel)
    monkeypatch.setattr(h5py, "get_config", lambda: type("Config", (), {"mpi": True}))
    pencil = pfftjax.Pencil((4, 5, 6), alone(), (1, 2), (1, 2, 0))
    x = random((4, 5, 6))
    pfftjax.io.save(folder / f"{RANK}.h5", {"q": pencil.local_block(x)}, pencil)
    assert_equal(pfftjax.io.load(folder / f"{RANK}.h5", "q", pencil), pencil.local_block(x))


def test_attributes_of_numpys_strings(folder):
    pencil = pfftjax.Pencil((2, 3, 4), grids()[0])
    x = pencil.local_block(random((2, 3, 4)))
    own = {"one": np.str_("a"), "two": np.array(["a", "bcd"]), "plain": "e"}
    pfftjax.io.save(folder / "x.h5", {"q": x}, pencil, attributes=own)
    kept = pfftjax.io.attributes(folder / "x.h5", pencil.grid)
    assert [kept["one"], *kept["two"], kept["plain"]] == ["a", "a", "bcd", "e"]


@pytest.mark.ranks(2)
def test_with_hdf5_on_mpi_all_ranks_write_what_rank_0_has(folder, monkeypatch):
    """What makes a file is collective there, of the same things on all ranks."""
    written = {}

    class Parallel(h5py.File):
        def __init__(self, name, mode, **_):
            super().__init__(f"{name}-{RANK}" if RANK else name, mode)

        def close(self):
            written.update({name: value for name, value in self.attrs.items()})
            super().close()

    monkeypatch.setattr(h5py, "File", Parallel)
    monkeypatch.setattr(h5py, "get_config", lambda: type("Config", (), {"mpi": True}))
    monkeypatch.setattr(_file, "_to_disk", lambda path: None)
    pencil = pfftjax.Pencil((4, 5, 6), grids()[0])
    x = {"q": pencil.local_block(random((4, 5, 6)))}
    own = {"a": 0.5} if RANK == 0 else None
    pfftjax.io.save(folder / "x.h5", x, pencil, box_size=1.0 + RANK, attributes=own)
    assert written["a"] == 0.5
    assert written["box_size"] == 1.0
    unknown = {"a": lambda: 0} if RANK == 0 else None
    with pytest.raises(Exception, match="save on rank 0 of 2: "):
        pfftjax.io.save(folder / "y.h5", x, pencil, attributes=unknown)


def test_without_h5py(folder, monkeypatch):
    pencil = pfftjax.Pencil((4, 5, 6), grids()[0])
    monkeypatch.setitem(__import__("sys").modules, "h5py", None)
    with pytest.raises(ImportError, match=r"pip install pfftjax\[io\]"):
        pfftjax.io.save(folder / "x.h5", {"q": np.zeros(pencil.local_shape)}, pencil)
    with pytest.raises(ImportError, match=r"pip install pfftjax\[io\]"):
        pfftjax.io.load(folder / "x.h5", "q", pencil)

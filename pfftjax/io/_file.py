"""Datasets of which each rank has one box: written without gathering them, and read.

Contiguous datasets, unless they are compressed: any box of another distribution is read at the
same cost. HDF5 takes 64-bit sizes; data go through in pieces of a bounded size.
"""

import dataclasses
import math
import os
import pathlib
import pickle
import re
import secrets
import shutil
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from types import ModuleType
from typing import TYPE_CHECKING, Literal, TypeAlias, TypeGuard, cast

import jax
import numpy as np
from jax.typing import DTypeLike
from mpi4py import MPI

from pfftjax._runtime.agreement import on_root, together

from . import _contents, _zarr
from ._contents import STORED, Box, Contents, Dataset, Path, boxes, moved
from ._mode import check_free

if TYPE_CHECKING:
    import h5py
    import zarr

Layout = Literal["shared", "per_rank"]

# A file of layout="per_rank" says so, and where its parts are.
PARTS = "pfftjax_parts"

File: TypeAlias = "h5py.File | zarr.Group"
Array: TypeAlias = "h5py.Dataset | zarr.Array"


def h5py_module() -> ModuleType:
    """h5py, or an error that says how to get it."""
    try:
        import h5py
    except ImportError as error:
        raise ImportError(
            "pfftjax.io needs h5py, which is not installed: pip install pfftjax[io]"
        ) from error
    return h5py


def write(
    path: Path,
    contents: Contents,
    comm: MPI.Intracomm,
    layout: Layout,
    operation: str,
    *,
    replace: bool,
) -> None:
    """Write a file. Collective; it is under its name when it is complete, or not at all.

    Where `replace` is false, only under a name that is free.
    """
    target = pathlib.Path(path)
    with together(comm, operation):
        h5py_module()
        if comm.rank == 0 and target.is_dir():
            raise IsADirectoryError(f"{target} is a directory; give the path of a file")
        if comm.rank == 0 and not replace:
            check_free(target)
        if contents.compression and layout == "shared" and comm.size > 1:
            raise ValueError(
                "HDF5 compresses whole chunks, which ranks that write to one file would share; "
                "use layout='per_rank', or format='zarr'"
            )
    number = comm.bcast(secrets.token_hex(4))
    temporary = target.with_name(f"{target.name}.tmp-{number}")
    parts = target.with_name(f"{target.name}.parts-{number}")
    try:
        if layout == "per_rank":
            _write_parts(temporary, parts, contents, comm, operation)
        elif h5py_module().get_config().mpi:
            _write_by_mpi(temporary, contents, comm, operation)
        else:
            _write_in_turn(temporary, contents, comm, operation)
        with together(comm, operation):
            if comm.rank == 0:
                before = _parts_of(target) if replace else None
                if not replace:
                    check_free(target)
                os.replace(temporary, target)
                if before is not None:
                    shutil.rmtree(before, ignore_errors=True)
    except BaseException:
        if comm.rank == 0:
            temporary.unlink(missing_ok=True)
            shutil.rmtree(parts, ignore_errors=True)
        raise


def _write_in_turn(
    path: pathlib.Path, contents: Contents, comm: MPI.Intracomm, operation: str
) -> None:
    """One rank after the other opens the file, writes its boxes and closes it."""
    with together(comm, operation):
        before_me = comm.recv(source=comm.rank - 1) if comm.rank > 0 else True
        done = False
        try:
            if before_me:
                with _opened(path, "w" if comm.rank == 0 else "r+") as file:
                    if comm.rank == 0:
                        _create(file, contents)
                    _write_boxes(file, contents, comm.rank)
                _to_disk(path)
            done = before_me
        finally:  # the next rank waits, whatever happened here
            if comm.rank + 1 < comm.size:
                comm.send(done, comm.rank + 1)


def _write_by_mpi(
    path: pathlib.Path, contents: Contents, comm: MPI.Intracomm, operation: str
) -> None:
    """All ranks at once, by HDF5 on MPI-IO.

    Creating and closing is collective, of the same things on all ranks: those of rank 0. The boxes
    are written independently: in a collective write a rank that fails would leave the others
    waiting.
    """
    described = dataclasses.replace(contents, datasets=())
    of_first = pickle.loads(on_root(lambda: pickle.dumps(described), comm, operation))
    contents = dataclasses.replace(of_first, datasets=contents.datasets)
    with together(comm, operation):
        with _opened(path, "w", driver="mpio", comm=comm) as file:
            _create(file, contents)
            _write_boxes(file, contents, comm.rank)
        _to_disk(path)


def _write_parts(
    path: pathlib.Path,
    parts: pathlib.Path,
    contents: Contents,
    comm: MPI.Intracomm,
    operation: str,
) -> None:
    """Each rank its own file, and one of virtual datasets that puts them together."""
    h5py = h5py_module()
    on_root(parts.mkdir, comm, operation)
    with together(comm, operation):
        part = parts / _part_name(comm.rank)
        with _opened(part, "w") as file:
            for dataset in contents.datasets:
                count = tuple(n for _, n in dataset.box_of(comm.rank))
                how = contents.stored() if 0 not in count else {}
                array = file.create_dataset(dataset.name, count, dataset.dtype, **how)
                for place, values in dataset.pieces():
                    array[place] = values
        _to_disk(part)
    with together(comm, operation):
        if comm.rank == 0:
            with _opened(path, "w", libver="v110") as file:
                _create(file, contents, lambda dataset: _virtual(dataset, parts, comm.size, h5py))
                file.attrs[PARTS] = parts.name
            _to_disk(path)


def _part_name(rank: int) -> str:
    return f"{rank:06d}.h5"


def _virtual(
    dataset: Dataset, parts: pathlib.Path, ranks: int, h5py: ModuleType
) -> "h5py.VirtualLayout":
    layout = h5py.VirtualLayout(dataset.shape, dataset.dtype)
    for rank in range(ranks):
        box = dataset.box_of(rank)
        count = tuple(n for _, n in box)
        if 0 not in count:
            # The name is relative, so that parts and whole can be moved together.
            name = f"{parts.name}/{_part_name(rank)}"
            place = tuple(slice(start, start + n) for start, n in box)
            layout[place] = h5py.VirtualSource(name, dataset.name, count, dataset.dtype)
    return layout


def _opened(path: pathlib.Path, mode: str, **options: object) -> "h5py.File":
    h5py = h5py_module()
    if mode == "r" and not path.exists():
        raise FileNotFoundError(f"there is no file {path}")
    # The older format, which is the default, refuses attributes of more than 64 KiB.
    created = {"libver": "v108"} if mode == "w" else {}
    try:
        # Some parallel file systems have no locks; nobody else writes to this file.
        return h5py.File(path, mode, locking="best-effort", **{**created, **options})
    except OSError as error:
        if isinstance(error, PermissionError | FileNotFoundError | IsADirectoryError):
            raise
        raise OSError(f"{path}: {error}") from error


def _to_disk(path: pathlib.Path) -> None:
    descriptor = os.open(path, os.O_RDWR)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _create(
    file: "h5py.File",
    contents: Contents,
    virtual: Callable[[Dataset], "h5py.VirtualLayout"] | None = None,
) -> None:
    """Dimensions, datasets and attributes, without the data."""
    for i, (name, size) in enumerate(contents.sizes.items()):
        if name in contents.coordinates:
            scale = file.create_dataset(name, data=contents.coordinates[name])
            scale.make_scale(name)
        else:
            # The netCDF-4 format's word for a dimension without coordinates.
            scale = file.create_dataset(name, (size,), "float32")
            scale.make_scale(f"This is a netCDF dimension but not a netCDF variable.{size:10d}")
        scale.attrs["_Netcdf4Dimid"] = np.int32(i)
    for dataset in contents.datasets:
        if virtual is None:
            how = contents.stored()
            array = file.create_dataset(dataset.name, dataset.shape, dataset.dtype, **how)
        else:
            # A reader of the virtual dataset sees a lost part as NaN; `read` raises.
            fill = np.nan if dataset.dtype.kind == "f" else None
            array = file.create_virtual_dataset(dataset.name, virtual(dataset), fillvalue=fill)
        for d, name in enumerate(dataset.dims):
            array.dims[d].attach_scale(file[name])
        for name, value in dataset.attributes.items():
            array.attrs[name] = value
    for name, attributes in contents.groups.items():
        _set_attributes(file.require_group(name), attributes)
    _set_attributes(file, contents.attributes)


def _set_attributes(group: "h5py.Group", attributes: Mapping[str, object]) -> None:
    for name, value in attributes.items():
        try:
            plain = np.asarray(value) if isinstance(value, jax.Array) else value
            # HDF5 has no strings of so many characters each, as NumPy's are.
            if isinstance(plain, np.ndarray | np.generic) and plain.dtype.kind == "U":
                plain = plain.tolist()
            group.attrs[name] = plain
        except (TypeError, ValueError) as error:
            raise TypeError(
                f"attribute {name!r}: {type(value).__name__} cannot be stored in HDF5 ({error}); "
                "give a number, a string or an array"
            ) from error


def _write_boxes(file: "h5py.File", contents: Contents, rank: int) -> None:
    for dataset in contents.datasets:
        array = cast("h5py.Dataset", file[dataset.name])
        starts = [start for start, _ in dataset.box_of(rank)]
        for place, values in dataset.pieces():
            array[moved(place, starts)] = values


def _parts_of(path: pathlib.Path) -> pathlib.Path | None:
    """The folder with the parts of a file that is there already, and is one of ours."""
    try:
        with _opened(path, "r") as file:
            name = file.attrs.get(PARTS)
    except OSError:
        return None
    ours = re.escape(path.name) + r"\.parts-[0-9a-f]{8}"
    return path.with_name(name) if isinstance(name, str) and re.fullmatch(ours, name) else None


def is_hdf5(file: File) -> TypeGuard["h5py.File"]:
    """Whether a file is one of HDF5, and no group of Zarr arrays."""
    return hasattr(file, "filename")


def is_of_hdf5(array: Array) -> TypeGuard["h5py.Dataset"]:
    """Whether an array is in a file of HDF5."""
    return hasattr(array, "file")


def opened(path: Path) -> "AbstractContextManager[h5py.File | zarr.Group]":
    """A file to read, or a group of Zarr arrays."""
    if _zarr.is_store(path):
        return _zarr.opened(path)
    return _opened(pathlib.Path(path), "r")


def find(file: File, name: str, is_to_count: bool = True) -> Array:
    """A dataset of `file`. One rank is enough to count the chunks of a Zarr array."""
    if not is_hdf5(file):
        return _zarr.find(cast("zarr.Group", file), name, is_to_count)
    kind = h5py_module().Dataset
    found = file.get(name)
    if not isinstance(found, kind):
        datasets = {n: x for n, x in file.items() if isinstance(x, kind)}
        there = sorted(n for n, x in datasets.items() if not x.is_scale)
        raise KeyError(f"there is no dataset {name!r} in {file.filename}, which has {there}")
    return cast("h5py.Dataset", found)


def read(dataset: Array, box: Box, order: tuple[int, ...], dtype: np.dtype) -> np.ndarray:
    """A box of a dataset, piece by piece: dimension d of the dataset becomes dimension
    ``order[d]`` of the result.
    """
    count = tuple(n for _, n in box)
    shape = [0] * len(count)
    for d, n in zip(order, count, strict=True):
        shape[d] = n
    result = np.empty(shape, dtype)
    as_stored = result.transpose(order)
    most = max(1, _contents.PIECE_BYTES // max(dataset.dtype.itemsize, 1))
    starts = [start for start, _ in box]
    if not is_of_hdf5(dataset) or PARTS not in dataset.file.attrs:
        for place in boxes(count, most):
            as_stored[place] = _held(dataset[moved(place, starts)], dtype, dataset)
        return result
    # Reads the parts themselves, as HDF5 gives the fill value for one that is lost.
    folder = pathlib.Path(dataset.file.filename).parent
    covered = 0
    for source in dataset.virtual_sources():
        first, last = source.vspace.get_select_bounds()
        low = [max(a, start) for a, (start, _) in zip(first, box, strict=True)]
        high = [min(b + 1, start + n) for b, (start, n) in zip(last, box, strict=True)]
        common = tuple(b - a for a, b in zip(low, high, strict=True))
        if min(common) <= 0:
            continue
        with _opened(folder / source.file_name, "r") as part:
            there = find(part, source.dset_name)
            for place in boxes(common, most):
                mine = moved(place, [a - s for a, s in zip(low, starts, strict=True)])
                theirs = moved(place, [a - f for a, f in zip(low, first, strict=True)])
                as_stored[mine] = _held(there[theirs], dtype, dataset)
        covered += math.prod(common)
    if covered != math.prod(count):
        raise OSError(
            f"{dataset.file.filename} has {covered} of the {math.prod(count)} elements that are "
            f"asked for of {dataset.name}; it is not complete"
        )
    return result


def _held(given: object, dtype: np.dtype, dataset: Array) -> np.ndarray:
    """What was read, of which integers must be among those of `dtype`."""
    values = np.asarray(given)
    are_integers = values.dtype.kind in "iu" and dtype.kind in "iu"
    if are_integers and values.size and not np.can_cast(values.dtype, dtype, "safe"):
        limits = np.iinfo(dtype)
        for value in (int(values.min()), int(values.max())):
            if not limits.min <= value <= limits.max:
                raise TypeError(f"{dataset.name} has {value}, which {dtype.name} cannot hold")
    return values


def readable(stored: np.dtype, asked: DTypeLike | None, what: str) -> np.dtype:
    """The dtype that a dataset is read into."""
    if stored.name not in STORED:
        raise TypeError(f"{what} is {stored}, which JAX has no arrays of")
    into = np.dtype(stored.newbyteorder("=") if asked is None else asked)
    if jax.dtypes.canonicalize_dtype(into) != into:
        raise TypeError(
            f"{what} is {stored.name}, and {into.name} needs JAX_ENABLE_X64=1; or pass "
            f"dtype={jax.dtypes.canonicalize_dtype(into).name!r}"
        )
    are_integers = stored.kind in "iu" and into.kind in "iu"  # of which `read` looks at each
    if not are_integers and not np.can_cast(stored, into, "same_kind"):
        raise TypeError(f"{what} is {stored.name}, which {into.name} cannot hold")
    return into

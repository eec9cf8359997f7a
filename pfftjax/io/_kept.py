"""What a file has already and keeps, where arrays are added to it.

The file is written anew with all of its arrays, and takes the place of the old one when it is
complete: a crash never costs what was there. Each rank copies its share, in pieces.
"""

import dataclasses
import pathlib
from collections.abc import Collection, Mapping
from typing import TYPE_CHECKING, cast

import numpy as np
from mpi4py import MPI

from pfftjax.pencils.internal import block

from . import _file, _zarr
from ._contents import STORED, Box, Contents, Dataset, Path

if TYPE_CHECKING:
    import h5py
    import zarr

# Attributes that hold the dimensions of netCDF-4 and HDF5 together; written anew.
_OF_DIMENSIONS = ("DIMENSION_LIST", "REFERENCE_LIST", "CLASS", "NAME", "DIMENSION_LABELS")


@dataclasses.dataclass(frozen=True)
class Stored:
    """A rank's share of an array in a file, read piece by piece."""

    path: pathlib.Path
    name: str
    shape: tuple[int, ...]
    dtype: np.dtype
    box: Box

    def __getitem__(self, place: tuple[slice, ...]) -> np.ndarray:
        with _file.opened(self.path) as file:
            box = tuple(
                (start + p.start, p.stop - p.start)
                for p, (start, _) in zip(place, self.box, strict=True)
            )
            order = tuple(range(len(box)))
            # No chunk is lost, as `_stored` has found.
            return _file.read(_file.find(file, self.name, False), box, order, self.dtype)


def with_kept(
    path: Path,
    contents: Contents,
    comm: MPI.Intracomm,
    *,
    but_arrays: Collection[str] = (),
    but_attributes: Collection[str] = (),
) -> Contents:
    """`contents`, and what the file at `path` has besides; each rank sees the same.

    Args:
        path: of the file.
        contents: what is added.
        comm: of the ranks that write.
        but_arrays: not kept if their first axis is one of `contents`: they belong to what
            `contents` takes the place of.
        but_attributes: not kept.

    Raises:
        ValueError: the file has what cannot be kept, or has other axes of these names.

    """
    target = pathlib.Path(path)
    if not target.exists():
        return contents
    new = {dataset.name for dataset in contents.datasets}
    sizes, datasets = {}, []
    found: dict[str, np.ndarray] = {}
    with _file.opened(target) as file:
        attributes = {
            name: value
            for name, value in file.attrs.items()
            if name not in (_file.PARTS, _zarr.COMPLETE, *but_attributes)
        }
        arrays = _arrays(file, target)
        for name, array in sorted(arrays.items()):
            if name in new:
                continue
            dims, is_scale = _axes(array)
            if is_scale:
                along = _coordinate(array)
                if along is not None:
                    found[name] = along
                continue
            if name in but_arrays and any(dim in contents.sizes for dim in dims[:1]):
                continue
            shape = tuple(array.shape)
            if array.dtype.name not in STORED or "" in dims or not shape:
                raise ValueError(
                    f"{target} has {name!r}, of {array.dtype} and shape {shape} with axes {dims}, "
                    "which mode='a' cannot keep; write to another file"
                )
            for dim, n in zip(dims, shape, strict=True):
                now = contents.sizes.get(dim, n)
                if now != n:
                    raise ValueError(
                        f"{target} has an axis {dim!r} of {n} points, but this one is of {now}; "
                        "give other dims=, or write to another file"
                    )
                sizes[dim] = n
            datasets.append(_stored(target, name, _file.find(file, name), dims, comm))
    coordinates: dict[str, np.ndarray] = dict(contents.coordinates)
    for dim, along in found.items():
        # What takes the place of an array keeps its coordinates, if it has as many points.
        if dim in sizes or along.shape == (contents.sizes.get(dim),):
            coordinates.setdefault(dim, along)
        now = coordinates.get(dim, along[:0])
        if now.shape == along.shape and np.allclose(along, now, rtol=1e-6, atol=0):
            continue
        if dim in sizes:
            raise ValueError(
                f"{target} has coordinates of {dim!r} from {along[0]} to {along[-1]}, but these "
                f"are from {now[0]} to {now[-1]}; give the same box_size and offset, or other "
                "dims="
            )
        # The attribute tells of coordinates that are not in the file any more.
        attributes.pop("box_size", None)
    return dataclasses.replace(
        contents,
        datasets=(*datasets, *contents.datasets),
        sizes={**sizes, **contents.sizes},
        coordinates=coordinates,
        attributes={**attributes, **contents.attributes},
    )


def _arrays(file: _file.File, target: pathlib.Path) -> "Mapping[str, h5py.Dataset | zarr.Array]":
    """The arrays of a file by name. One that has more than arrays is not ours to write anew."""
    entries = dict(file.items() if _file.is_hdf5(file) else cast("zarr.Group", file).members())
    for name, entry in entries.items():
        if not hasattr(entry, "shape"):
            raise ValueError(
                f"{target} has a group, {name!r}, which mode='a' cannot keep; write to another "
                "file"
            )
    return cast("dict[str, h5py.Dataset | zarr.Array]", entries)


def _axes(array: _file.Array) -> tuple[tuple[str, ...], bool]:
    """The names of an array's axes, empty where there is none, and whether it is coordinates."""
    if _file.is_of_hdf5(array):
        return (
            tuple(str(d[0].name).lstrip("/") if len(d) else "" for d in array.dims),
            array.is_scale,
        )
    return _zarr.axes(cast("zarr.Array", array))


def _coordinate(scale: _file.Array) -> np.ndarray | None:
    """The coordinates of an axis, if it has any."""
    # NetCDF-4 says so of a dimension without coordinates; Zarr has no array for such a one.
    is_empty = "not a netCDF variable" in str(scale.attrs.get("NAME", ""))
    return None if is_empty else np.asarray(scale[...])


def _stored(
    target: pathlib.Path, name: str, array: _file.Array, dims: tuple[str, ...], comm: MPI.Intracomm
) -> Dataset:
    shape, dtype = tuple(array.shape), np.dtype(array.dtype)

    def box_of(rank: int) -> Box:
        return (block(shape[0], comm.size, rank), *((0, n) for n in shape[1:]))

    mine = box_of(comm.rank)
    values = Stored(target, name, tuple(n for _, n in mine), dtype, mine)
    attributes = {
        key: value
        for key, value in array.attrs.items()
        if key not in _OF_DIMENSIONS and not key.startswith("_Netcdf4")
    }
    order = tuple(range(len(shape)))
    return Dataset(name, shape, dtype, dims, values, order, box_of, attributes)

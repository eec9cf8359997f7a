"""Arrays in Zarr: a folder of chunks, each of which one rank writes.

Zarr's format 3, with the names of dimensions that xarray reads. The chunks along a split axis are
as long as all blocks begin at multiples of, so that no two ranks write to one.
"""

import contextlib
import functools
import json
import math
import os
import pathlib
from collections.abc import Iterator
from types import ModuleType
from typing import TYPE_CHECKING, cast

import jax
import numpy as np
from mpi4py import MPI

from pfftjax._runtime.agreement import on_root, together

from ._contents import Contents, Dataset, Path, moved
from ._folder import new_folder

if TYPE_CHECKING:
    import zarr

# The most that a chunk holds: a reader of one number must decompress all of it.
_CHUNK_BYTES = 1 << 25
# The name of an attribute that groups have in which every chunk is stored.
COMPLETE = "pfftjax_all_chunks"


def zarr_module() -> ModuleType:
    """zarr, or an error that says how to get it."""
    try:
        import zarr
    except ImportError as error:
        raise ImportError(
            "format='zarr' needs zarr, which is not installed: pip install pfftjax[zarr]"
        ) from error
    return zarr


def is_store(path: Path) -> bool:
    """Whether there is a group of Zarr arrays at `path`."""
    return (pathlib.Path(path) / "zarr.json").is_file()


@contextlib.contextmanager
def opened(path: Path) -> Iterator["zarr.Group"]:
    """A group to read."""
    yield zarr_module().open_group(os.fspath(path), mode="r")


def find(group: "zarr.Group", name: str, is_to_count: bool) -> "zarr.Array":
    """An array of `group`. With `is_to_count` it is an error if a chunk of it is lost."""
    found = group.get(name)
    if not isinstance(found, zarr_module().Array):
        there = sorted(name for name, _ in group.arrays())
        raise KeyError(f"there is no dataset {name!r} in {group.store_path}, which has {there}")
    array = cast("zarr.Array", found)
    if is_to_count and COMPLETE in group.attrs and array.nchunks_initialized != array.nchunks:
        raise FileNotFoundError(
            f"{name!r} in {group.store_path} has {array.nchunks_initialized} of its "
            f"{array.nchunks} chunks; it is not complete"
        )
    return array


def axes(array: "zarr.Array") -> tuple[tuple[str, ...], bool]:
    """The names of an array's axes, empty where there is none, and whether it is coordinates."""
    names = getattr(array.metadata, "dimension_names", None) or ("",) * array.ndim
    return tuple(names), names == (array.basename,)


def chunks_of(dataset: Dataset, ranks: int) -> tuple[int, ...]:
    """The shape of the chunks of a dataset of which each rank has a box."""
    result = []
    boxes = [dataset.box_of(rank) for rank in range(ranks)]
    for d, n in enumerate(dataset.shape):
        # Chunks end where blocks begin or end, but empty blocks begin nowhere.
        ends = {end for box in boxes for end in (box[d][0], sum(box[d])) if box[d][1] > 0}
        result.append(math.gcd(*(end for end in ends if end < n)) or n)
    most = max(1, _CHUNK_BYTES // dataset.dtype.itemsize)
    for d, length in enumerate(result):
        # The slowest axes are cut first, into parts that divide them.
        room = max(1, most // math.prod(result[d + 1 :]))
        if length > room:
            whole = length == dataset.shape[d]
            parts = [m for m in range(1, room + 1) if length % m == 0]
            result[d] = room if whole else parts[-1]
    return tuple(result)


def write(
    path: Path,
    contents: Contents,
    comm: MPI.Intracomm,
    compression: str | None,
    operation: str,
    *,
    replace: bool,
) -> None:
    """Write a group. Collective; it is under its name when it is complete, or not at all.

    Where `replace` is false, only under a name that is free.
    """
    with together(comm, operation):
        zarr = zarr_module()
    folder = new_folder(
        pathlib.Path(path), comm, operation, replace=replace, is_ours=is_store, kind="Zarr group"
    )
    with folder as temporary:
        create = functools.partial(_create, zarr, temporary, contents, comm.size, compression)
        on_root(create, comm, operation)
        with together(comm, operation):
            # A chunk of nothing but the fill value too, so that one that is lost is missed.
            with zarr.config.set({"array.write_empty_chunks": True}):
                group = zarr.open_group(os.fspath(temporary), mode="r+")
                for dataset in contents.datasets:
                    _write_box(group[dataset.name], dataset, comm.rank)


def _create(
    zarr: ModuleType, path: pathlib.Path, contents: Contents, ranks: int, compression: str | None
) -> None:
    path.mkdir()
    attributes = {**_plain(contents), COMPLETE: True}
    group = zarr.create_group(os.fspath(path), zarr_format=3, attributes=attributes)
    for name, values in contents.coordinates.items():
        along = group.create_array(
            name, shape=values.shape, dtype=values.dtype, dimension_names=(name,)
        )
        along[...] = values
    coded = zarr.codecs.GzipCodec(level=4) if compression == "gzip" else None
    for dataset in contents.datasets:
        group.create_array(
            dataset.name,
            shape=dataset.shape,
            dtype=dataset.dtype,
            chunks=chunks_of(dataset, ranks),
            compressors=coded,
            dimension_names=dataset.dims,
            # A chunk that is lost reads as this.
            fill_value=np.nan if dataset.dtype.kind in "fc" else 0,
            attributes=dict(dataset.attributes),
        )


def _plain(contents: Contents) -> dict[str, object]:
    """The attributes as JSON has them."""
    result = {}
    for name, value in contents.attributes.items():
        if isinstance(value, jax.Array | np.ndarray | np.generic):
            value = np.asarray(value).tolist()
        result[name] = list(value) if isinstance(value, tuple) else value
        try:
            json.dumps(result[name])
        except TypeError as error:
            raise TypeError(
                f"attribute {name!r}: {error} in Zarr; give real numbers, strings, or lists or "
                "arrays of them"
            ) from error
    return result


def _write_box(array: "zarr.Array", dataset: Dataset, rank: int) -> None:
    """Write this rank's box chunk by chunk, each of which no other rank writes."""
    box = dataset.box_of(rank)
    counts = [-(-count // chunk) for (_, count), chunk in zip(box, array.chunks, strict=True)]
    for number in np.ndindex(*counts):
        place = tuple(
            slice(i * chunk, min((i + 1) * chunk, count))
            for i, chunk, (_, count) in zip(number, array.chunks, box, strict=True)
        )
        array[moved(place, [start for start, _ in box])] = dataset.piece(place)

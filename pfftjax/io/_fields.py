"""Distributed arrays to and from HDF5 and Zarr."""

import os
from collections.abc import Mapping, Sequence
from typing import Any, Literal, SupportsFloat

import jax
import jax.numpy as jnp
import numpy as np
from jax.core import Tracer
from jax.typing import ArrayLike, DTypeLike

from pfftjax._runtime.agreement import private, same_everywhere, together
from pfftjax._runtime.arrays import AnyArray, BoxSize, SeriesLike
from pfftjax.fft.internal import sides_of
from pfftjax.pencils import Pencil, ProcessGrid
from pfftjax.pencils.internal import checked_grid, checked_pencil

from . import _file, _zarr
from ._contents import STORED, Box, Compression, Contents, Dataset, Path
from ._file import Layout
from ._kept import with_kept
from ._mode import Mode, check_mode


def save(
    path: Path,
    fields: Mapping[str, ArrayLike],
    pencil: Pencil,
    *,
    box_size: BoxSize | None = None,
    offset: float = 0.0,
    dims: Sequence[str] | None = None,
    coordinates: Mapping[str, SeriesLike] | None = None,
    attributes: Mapping[str, object] | None = None,
    mode: Mode = "x",
    layout: Layout = "shared",
    format: Literal["hdf5", "zarr"] = "hdf5",
    compression: Compression | None = None,
) -> None:
    """Write distributed arrays to an HDF5 file or a Zarr group, each rank its own block.

    In the file an array is whole and in global order (x, y, z), whatever the process grid and the
    memory order of `pencil`: h5py and xarray read it as if one process had written it, and `load`
    reads it on any other grid and number of ranks. Complex numbers are h5py's, a compound of r
    and i.

    Collective over the ranks of the pencil's grid, and outside of jitted code. The file appears
    under its name when all of it is written (HDF5: and on disk); one that was there stays until
    then. After an error, which every rank raises, there is nothing new.

    Args:
        path: of the file, the same on every rank; its folder must be there.
        fields: this rank's blocks by name, each of shape ``(..., *pencil.local_shape)``. Leading
            axes, the same on every rank, are those of a batch. bool, integers, float16, float32,
            float64, complex64 or complex128.
        pencil: who holds what.
        box_size: side of the box, in the length unit of choice: a number, or one for each axis.
            The coordinates of the cells are then stored, and `box_size` itself as an attribute.
        offset: the coordinate of point i is (i + offset) box_size / n: 0 for fields of
            `pfftjax.pm` and of transforms, 0.5 where values are those at the centres of cells.
        dims: names of the axes, ("x", "y", "z") by default.
        coordinates: whole vectors of coordinates by name of the axis, in place of those of
            `box_size`: wavenumbers, say.
        attributes: numbers, strings and arrays to keep with them; those of rank 0 are written.
        mode: "x": a new file; one that is there is an error. "w": in place of one that is there,
            with all that is in it, as for a checkpoint that is overwritten. "a": the arrays and
            attributes of one that is there are kept, but for those of the same names; it is
            written anew with all of them, at the cost of that. Axes keep their coordinates, and
            `box_size` goes where some do not.
        layout: "shared": one file. Where h5py is built with MPI all ranks write at once, elsewhere
            (as from pip) one after the other. "per_rank": each rank writes a file of its own, all
            at once, into a folder beside `path`; `path` is a virtual dataset made of them. Of
            HDF5 only.
        format: "hdf5", or "zarr": `path` is a folder, in format 3 of Zarr, which all ranks write
            at once. Every chunk belongs to one rank: largest where sizes divide by the grid.
        compression: None or "gzip", of layout "per_rank", of one rank or of Zarr.

    Raises:
        FileExistsError: a file that is there, with mode "x".
        ValueError: blocks that do not match the pencil, names that collide, coordinates of another
            length, compression of a file that ranks share, a file that mode "a" cannot keep.
        TypeError: a dtype that HDF5 does not have, or a traced value.
        RuntimeError: ranks that ask for different things.
        OSError: what the file system said, on whichever rank.
        ImportError: no h5py, or no zarr.

    Example:
        >>> import pathlib, tempfile
        >>> from mpi4py import MPI
        >>> from pfftjax import ProcessGrid
        >>> folder = MPI.COMM_WORLD.bcast(tempfile.mkdtemp() if MPI.COMM_WORLD.rank == 0 else "")
        >>> path = pathlib.Path(folder) / "density.h5"
        >>> pencil = Pencil((4, 5, 6), ProcessGrid())
        >>> x = jnp.ones(pencil.local_shape)
        >>> save(path, {"density": x}, pencil, box_size=100.0, attributes={"a": 0.5})
        >>> bool(jnp.all(load(path, "density", pencil) == x))
        True
        >>> attributes(path, pencil.grid)
        {'a': 0.5, 'box_size': 100.0}

    """
    checked_pencil(pencil, "save")
    comm = private(pencil.grid.comm)
    with together(comm, "save"):
        check_how(mode, layout)
        if format not in ("hdf5", "zarr"):
            raise ValueError(f"format must be hdf5 or zarr, got {format!r}")
        if format == "zarr" and layout != "shared":
            raise ValueError("layout='per_rank' is of HDF5; format='zarr' has many files anyway")
        if compression not in (None, "gzip"):
            raise ValueError(f"compression must be None or gzip, got {compression!r}")
        names = _dims(pencil, dims)
        datasets = _datasets(fields, pencil, names)
        sizes = dict(zip(names, pencil.global_shape, strict=True))
        along = _coordinates(sizes, box_size, offset, coordinates)
        for dataset in datasets:
            sizes.update(zip(dataset.dims, dataset.shape, strict=True))
        for dataset in datasets:
            if dataset.name in sizes:
                raise ValueError(
                    f"{dataset.name!r} is the name of a field and of an axis; rename one, the "
                    "axes by dims="
                )
        kept = dict(attributes or {})
        if box_size is not None:
            kept.setdefault("box_size", np.asarray(box_size))
    asked = [(d.name, d.shape, d.dtype.name, d.dims) for d in datasets]
    how = f"{mode} {layout} {format} {compression}"
    same_everywhere(f"{os.fspath(path)!r} {how} {asked}", comm, "save")
    contents = Contents(datasets, sizes, along, kept, compression)
    replace = mode != "x"
    if mode == "a":
        with together(comm, "save"):
            contents = with_kept(path, contents, comm)
    if format == "zarr":
        _zarr.write(path, contents, comm, compression, "save", replace=replace)
    else:
        _file.write(path, contents, comm, layout, "save", replace=replace)


def load(path: Path, name: str, pencil: Pencil, *, dtype: DTypeLike | None = None) -> AnyArray:
    """Read this rank's block of an array in an HDF5 file or a Zarr group.

    The file may have been written by `save` from any grid and number of ranks, or by anything else
    that writes whole arrays in global order. Every rank reads its own block, all at once.

    Collective over the ranks of the pencil's grid, and outside of jitted code.

    Args:
        path: of the file, the same on every rank.
        name: of the dataset, with slashes for one in a group.
        pencil: who is to hold what; the last axes of the dataset are its global shape, and those
            before them a batch.
        dtype: of the result, by default that of the dataset; complex numbers do not become real.

    Returns:
        This rank's block, of shape ``(..., *pencil.local_shape)``.

    Raises:
        FileNotFoundError: no such file, or a part of it is lost; on every rank, as all below.
        KeyError: no such dataset.
        ValueError: a dataset of another shape.
        TypeError: a dtype that JAX does not have, does not have now (float64 without
            JAX_ENABLE_X64), or that the one asked for cannot hold.
        OSError: what the file system said, on whichever rank.
        ImportError: no h5py.

    See `save` for an example.

    """
    checked_pencil(pencil, "load")
    comm = private(pencil.grid.comm)
    ndim = len(pencil.global_shape)
    with together(comm, "load"), _file.opened(path) as file:
        dataset = _file.find(file, name, comm.rank == 0)
        lead = dataset.ndim - ndim
        if lead < 0 or dataset.shape[lead:] != pencil.global_shape:
            raise ValueError(
                f"{name!r} in {os.fspath(path)} has shape {dataset.shape}, but the pencil is "
                f"of {pencil.global_shape}; leading batch dimensions may precede it"
            )
        box = _box(dataset.shape[:lead], pencil, comm.rank)
        into = _file.readable(dataset.dtype, dtype, f"{name!r} in {os.fspath(path)}")
        block = jnp.asarray(_file.read(dataset, box, _order(lead, pencil), into))
    same_everywhere(f"{name!r} of {block.shape[:lead]} {block.dtype.name}", comm, "load")
    return block


def attributes(path: Path, grid: ProcessGrid) -> dict[str, Any]:
    """The attributes of an HDF5 file or a Zarr group: what `save` was given, and its `box_size`.

    Args:
        path: of the file, the same on every rank.
        grid: every rank of it calls.

    Returns:
        Values by name: strings, Python's numbers, NumPy's arrays.

    Raises:
        FileNotFoundError, OSError, ImportError: as `load`.

    """
    comm = private(checked_grid(grid, "attributes").comm)
    with together(comm, "attributes"), _file.opened(path) as file:
        kept = {k: v for k, v in file.attrs.items() if k not in (_file.PARTS, _zarr.COMPLETE)}
    kept = {k: np.asarray(v) if isinstance(v, list) else v for k, v in kept.items()}  # of JSON
    return {k: v.item() if isinstance(v, np.generic) else v for k, v in kept.items()}


def check_how(mode: object, layout: object, *, may_add: bool = True) -> None:
    """Refuse a mode or a layout that there is not."""
    check_mode(mode)
    if mode == "a" and not may_add:
        raise ValueError("mode='a' is not for snapshots of other codes; use x or w")
    if layout not in ("shared", "per_rank"):
        raise ValueError(f"layout must be shared or per_rank, got {layout!r}")


def _dims(pencil: Pencil, dims: Sequence[str] | None) -> tuple[str, ...]:
    ndim = len(pencil.global_shape)
    if dims is None:
        dims = ("x", "y", "z")[:ndim] if ndim <= 3 else [f"axis{i}" for i in range(ndim)]
    if isinstance(dims, str) or len(set(dims)) != ndim or len(dims) != ndim:
        raise ValueError(f"dims must be {ndim} different names, one for each axis, got {dims!r}")
    for name in dims:
        _check_name(name, "the axis")
    return tuple(dims)


def _check_name(name: object, of: str) -> None:
    if not isinstance(name, str) or not name or "/" in name or name == ".":
        raise ValueError(f"the name of {of} must be a word without slashes, got {name!r}")


def _datasets(
    fields: Mapping[str, ArrayLike], pencil: Pencil, dims: tuple[str, ...]
) -> tuple[Dataset, ...]:
    if not isinstance(fields, Mapping) or not fields:
        raise TypeError(
            f"fields must be blocks by name, {{'density': x}}, got {type(fields).__name__}"
            + (" without any" if isinstance(fields, Mapping) else "")
        )
    ndim = len(dims)
    result = []
    for name, values in fields.items():
        _check_name(name, "a field")
        values = on_this_rank(values, f"field {name!r}")
        pencil.check_block(values, f"field {name!r}")
        lead = values.ndim - ndim
        batch = values.shape[:lead]
        if 0 in batch:
            raise ValueError(f"field {name!r}: a batch of none, of shape {values.shape}")
        result.append(
            Dataset(
                name=name,
                shape=(*batch, *pencil.global_shape),
                dtype=np.dtype(values.dtype),
                dims=(*(f"{name}_batch{i}" for i in range(lead)), *dims),
                values=values,
                order=_order(lead, pencil),
                box_of=lambda rank, batch=batch: _box(batch, pencil, rank),
            )
        )
    return tuple(result)


def on_this_rank(values: ArrayLike | SeriesLike, what: str) -> jax.Array | np.ndarray:
    """A block that has been computed, of a dtype that HDF5 has."""
    if isinstance(values, Tracer):
        raise TypeError(f"{what} is traced; save outside of jitted code, what that returns")
    if isinstance(values, jax.Array):
        if not values.is_fully_addressable:
            raise TypeError(
                f"{what} is a global array of shape {values.shape}; pass this rank's block of it: "
                "x.addressable_shards[0].data"
            )
        computed = jax.block_until_ready(values)
    else:
        computed = np.asarray(values)
    dtype = computed.dtype
    if str(dtype) not in STORED:
        remedy = (
            "save jax.random.key_data(x)"
            if jnp.issubdtype(dtype, jax.dtypes.prng_key)
            else "cast it to float32"
        )
        raise TypeError(f"{what}: HDF5 has no {dtype}; {remedy}")
    return computed


def _order(lead: int, pencil: Pencil) -> tuple[int, ...]:
    """The dimension of a block that holds each dimension of the file."""
    ndim = len(pencil.axes)
    return (*range(lead), *(lead + pencil.axes.index(axis) for axis in range(ndim)))


def _box(batch: tuple[int, ...], pencil: Pencil, rank: int) -> Box:
    row, column = divmod(rank, pencil.grid.dims[1])
    ranges = (pencil.range_of(a, (row, column)) for a in range(len(pencil.global_shape)))
    return (*((0, n) for n in batch), *ranges)


def _coordinates(
    sizes: Mapping[str, int],
    box_size: BoxSize | None,
    offset: float,
    given: Mapping[str, SeriesLike] | None,
) -> dict[str, np.ndarray]:
    result = {}
    if box_size is not None:
        is_one = isinstance(offset, SupportsFloat) and np.ndim(offset) == 0
        if not is_one or not np.isfinite(float(offset)):
            raise ValueError(f"offset must be a number, 0.5 for centres, got {offset!r}")
        sides = sides_of(box_size, len(sizes), "coordinates")
        for (name, n), side in zip(sizes.items(), sides, strict=True):
            result[name] = (np.arange(n) + float(offset)) * (float(side) / n)
    for name, values in (given or {}).items():
        if name not in sizes:
            raise ValueError(f"coordinates of {name!r}, but the axes are {', '.join(sizes)}")
        values = np.ravel(np.asarray(values))
        if values.dtype.kind not in "iuf" or not np.all(np.isfinite(values)):
            raise ValueError(f"coordinates of {name!r} must be finite numbers, got {values}")
        if values.shape != (sizes[name],):
            raise ValueError(
                f"coordinates of {name!r}: {values.size} of them for an axis of {sizes[name]}; "
                "give those of the whole axis"
            )
        result[name] = values
    return result

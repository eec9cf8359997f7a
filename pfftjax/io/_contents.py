"""What a file holds, or is to hold: arrays of which each rank has one box."""

import dataclasses
import math
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Literal, Protocol, TypeAlias, runtime_checkable

import jax
import numpy as np
from jax.typing import ArrayLike

Path: TypeAlias = str | os.PathLike[str]
Compression = Literal["gzip"]

STORED = frozenset(
    "bool int8 int16 int32 int64 uint8 uint16 uint32 uint64 float16 float32 float64 complex64 "
    "complex128".split()
)
# How much memory a rank takes beside its block, while it writes or reads.
PIECE_BYTES = 1 << 26

Box = tuple[tuple[int, int], ...]
"""(start, count) along each dimension."""


@runtime_checkable
class Sliceable(Protocol):
    """An array somewhere: on the host, on a device or in a file."""

    @property
    def shape(self) -> tuple[int, ...]: ...

    def __getitem__(self, place: tuple[slice, ...], /) -> ArrayLike: ...


@dataclasses.dataclass(frozen=True)
class Dataset:
    """A dataset, of which this rank's `values` are the box ``box_of(rank)``.

    Dimension d of the file is dimension ``order[d]`` of `values`.
    """

    name: str
    shape: tuple[int, ...]
    dtype: np.dtype
    dims: tuple[str, ...]
    values: Sliceable
    order: tuple[int, ...]
    box_of: Callable[[int], Box]
    attributes: Mapping[str, object] = dataclasses.field(default_factory=dict)

    def pieces(self) -> Iterator[tuple[tuple[slice, ...], np.ndarray]]:
        """The elements as contiguous arrays, each with its place in this rank's box."""
        count = tuple(self.values.shape[d] for d in self.order)
        for place in boxes(count, max(1, PIECE_BYTES // self.dtype.itemsize)):
            yield place, self.piece(place)

    def piece(self, place: tuple[slice, ...]) -> np.ndarray:
        """The elements at a place in this rank's box, as a contiguous array."""
        values = host(self.values) if isinstance(self.values, jax.Array) else self.values
        index = [slice(None)] * len(place)
        for d, part in zip(self.order, place, strict=True):
            index[d] = part
        return np.ascontiguousarray(np.asarray(values[tuple(index)]).transpose(self.order))


@dataclasses.dataclass(frozen=True)
class Contents:
    """All that a file holds: datasets, the sizes of their dimensions by name, and coordinates of
    some of these.
    """

    datasets: tuple[Dataset, ...]
    sizes: Mapping[str, int]
    coordinates: Mapping[str, np.ndarray]
    attributes: Mapping[str, object]
    compression: Compression | None = None
    # Attributes of groups by the names of these, which HDF5 has and Zarr here does not.
    groups: Mapping[str, Mapping[str, object]] = dataclasses.field(default_factory=dict)

    def stored(self) -> dict[str, str | bool]:
        """How HDF5 stores a dataset: nobody reads what has not been written, so nothing is filled
        first.
        """
        if self.compression is None:
            return {"fill_time": "never"}
        return {"compression": self.compression, "shuffle": True, "chunks": True}


def host(values: jax.Array | np.ndarray) -> jax.Array | np.ndarray:
    """`values` as an array of NumPy where that is no copy; those of other devices as they are."""
    if isinstance(values, jax.Array) and all(d.platform == "cpu" for d in values.devices()):
        return np.asarray(values)
    return values


def boxes(count: tuple[int, ...], most: int) -> Iterator[tuple[slice, ...]]:
    """Boxes of at most `most` elements which cover one of shape `count`, in order."""
    if 0 in count:
        return
    axis = next(a for a in range(len(count)) if math.prod(count[a + 1 :]) <= most)
    step = max(1, most // math.prod(count[axis + 1 :]))
    rest = tuple(slice(0, n) for n in count[axis + 1 :])
    for outer in np.ndindex(count[:axis]):
        for start in range(0, count[axis], step):
            along = slice(start, min(start + step, count[axis]))
            yield (*(slice(i, i + 1) for i in outer), along, *rest)


def moved(place: tuple[slice, ...], by: Sequence[int]) -> tuple[slice, ...]:
    """A place, so many elements further on along each dimension."""
    return tuple(slice(p.start + n, p.stop + n) for p, n in zip(place, by, strict=True))

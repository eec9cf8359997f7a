"""The ranks of a communicator in rows and columns."""

import contextlib
import math
import operator
from collections.abc import Sequence
from typing import NoReturn, SupportsIndex, TypeAlias, cast

import jax
from mpi4py import MPI

from pfftjax._runtime.agreement import same_everywhere
from pfftjax._runtime.arguments import where
from pfftjax._runtime.communicators import Comm, Communicator, as_private

Dims: TypeAlias = SupportsIndex | Sequence[SupportsIndex | None] | None

# Grids that have been made, with the communicators of their rows and columns. MPI has only so many
# of those: an equal grid has the same ones.
_lines: dict[tuple[Communicator, tuple[int, int]], tuple[Communicator, Communicator]] = {}


@jax.tree_util.register_static
class ProcessGrid:
    """A two-dimensional grid of the ranks of a communicator.

    Rank r has the coordinates ``divmod(r, dims[1])``: ranks that differ in the second one only are
    neighbours in the communicator, and mostly on the same node. The first axis of a real-space
    array is distributed over ``dims[0]`` ranks, the second over ``dims[1]``: (P, 1) makes slabs,
    the least communication where there are enough planes, and other grids pencils.

    Making one is collective over `comm`: do it once, outside of jitted code. Grids are equal, and
    hash alike, if their dimensions and communicators are; equal ones share the communicators of
    their rows and columns.

    Args:
        dims: (rows, columns), whose product is the size of `comm`. One of them may be None, and
            follows from the other. None in place of both makes the grid as square as it can be,
            with no fewer rows than columns. A single number p means (p, 1).
        comm: an mpi4py intracommunicator, `MPI.COMM_WORLD` by default.

    Raises:
        ValueError: dims that do not multiply to the size of `comm`.
        TypeError: dims that are not integers, or `comm` is no intracommunicator.
        RuntimeError: ranks that ask for different grids.

    Example:
        >>> from mpi4py import MPI
        >>> grid = ProcessGrid((None, 1))
        >>> grid.dims == (MPI.COMM_WORLD.size, 1) and grid.coords == (MPI.COMM_WORLD.rank, 0)
        True

    """

    __slots__ = ("_lines", "communicator", "dims")

    communicator: Communicator
    dims: tuple[int, int]

    def __init__(self, dims: Dims = None, comm: Comm = None):
        self.communicator = comm = as_private(comm, "ProcessGrid")
        # A rank that is refused must not leave the others waiting: what they ask for is compared
        # before it is known to fit.
        given = _normalised(dims)
        same_everywhere(
            f"dims={given!r}",
            comm.mpi,
            where("ProcessGrid", comm),
            "every rank must make the same grid",
        )
        self.dims = _as_dims(given, comm)
        key = (comm, self.dims)
        if key not in _lines:
            _lines[key] = _split(comm, self.dims)
        self._lines = _lines[key]

    @property
    def comm(self) -> MPI.Intracomm:
        """The communicator that the grid is made of."""
        return self.communicator.mpi

    @property
    def size(self) -> int:
        """The number of ranks."""
        return self.communicator.size

    @property
    def coords(self) -> tuple[int, int]:
        """Row and column of this rank."""
        row, column = divmod(self.communicator.rank, self.dims[1])
        return row, column

    def along(self, dimension: int) -> Communicator:
        """The ranks that differ from this one in coordinate `dimension` only, in its order."""
        return self._lines[dimension]

    def __hash__(self) -> int:
        return hash((ProcessGrid, self.communicator, self.dims))

    def __eq__(self, other: object) -> bool:
        return (
            isinstance(other, ProcessGrid)
            and other.communicator == self.communicator
            and other.dims == self.dims
        )

    def __repr__(self) -> str:
        return f"ProcessGrid({self.dims})"

    def __copy__(self) -> "ProcessGrid":
        return self

    def __deepcopy__(self, _: object) -> "ProcessGrid":
        return self

    def __reduce__(self) -> NoReturn:
        raise TypeError(
            "a ProcessGrid cannot be pickled: it belongs to the ranks that run here; save its "
            "dims, and make it again by pfftjax.ProcessGrid(dims)"
        )


def checked_grid(
    grid: object, operation: str, dims: str = "dims", otherwise: str = ""
) -> ProcessGrid:
    """`grid`, if it is one; else an error that says how one is made, and ends with `otherwise`."""
    if not isinstance(grid, ProcessGrid):
        raise TypeError(
            f"{operation}: grid must be a ProcessGrid, got {type(grid).__name__}; make it once by "
            f"pfftjax.ProcessGrid({dims}){otherwise}"
        )
    return grid


def _normalised(dims: Dims) -> object:
    """The same value for what ranks have written differently: two integers or None where `dims`
    can be read so, and anything else unchanged.
    """
    if dims is None:
        return None, None
    with contextlib.suppress(TypeError):
        return operator.index(cast(SupportsIndex, dims)), 1
    try:
        several = cast(Sequence[SupportsIndex | None], dims)
        given = tuple(None if d is None else operator.index(d) for d in several)
    except TypeError:
        return dims
    return (*given, 1) if len(given) == 1 else given


def _as_dims(dims: object, comm: Communicator) -> tuple[int, int]:
    here = where("ProcessGrid", comm)
    if not isinstance(dims, tuple) or not all(d is None or isinstance(d, int) for d in dims):
        raise TypeError(f"{here}: dims must be two integers or None, got {dims!r}")
    given = list(dims)
    if len(given) != 2:
        raise ValueError(f"{here}: a process grid has two dimensions, got {dims!r}")
    if any(d is not None and d < 1 for d in given):
        raise ValueError(f"{here}: dims must be positive, got {dims!r}")
    known = math.prod(d for d in given if d is not None)
    rows, columns = given
    if rows is None or columns is None:
        if comm.size % known:
            raise ValueError(
                f"{here}: {comm.size} ranks cannot be arranged in {known} equal parts as "
                f"dims={dims!r} asks for"
            )
        if rows is None and columns is None:
            return _square(comm.size)
        rows, columns = (comm.size // known if d is None else d for d in given)
    if rows * columns != comm.size:
        raise ValueError(
            f"{here}: dims={dims!r} needs {rows * columns} ranks, but the communicator has "
            f"{comm.size}; choose dims whose product is {comm.size}, leave one of them None, or "
            f"pass a communicator of {rows * columns} ranks"
        )
    return rows, columns


def _square(ranks: int) -> tuple[int, int]:
    """Rows and columns as close to each other as they can be. MPI_Dims_create is free to choose
    otherwise, and does: Open MPI makes 12 x 6 of 72 ranks.

    >>> _square(72), _square(7)
    ((9, 8), (7, 1))
    """
    columns = next(n for n in range(math.isqrt(ranks), 0, -1) if ranks % n == 0)
    return ranks // columns, columns


def _split(comm: Communicator, dims: tuple[int, int]) -> tuple[Communicator, Communicator]:
    """The communicators of this rank's column (dimension 0) and row (dimension 1)."""
    row, column = divmod(comm.rank, dims[1])

    def line(dimension: int, color: int, key: int) -> Communicator:
        if dims[dimension] == comm.size:
            return comm
        if dims[dimension] == 1:
            return as_private(MPI.COMM_SELF, "ProcessGrid")
        return as_private(comm.mpi.Split(color, key), "ProcessGrid")

    return line(0, column, row), line(1, row, column)

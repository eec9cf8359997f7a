"""The process grid of a plan that is given none."""

import math
from collections.abc import Sequence

from mpi4py import MPI

from pfftjax._runtime.arguments import static_ints, where
from pfftjax._runtime.communicators import Communicator, as_communicator
from pfftjax.pencils import ProcessGrid
from pfftjax.pencils.internal import checked_grid

# The fewest numbers in a message, about 1 KiB, at which the volume counts more than how many
# messages there are.
_LEAST_MESSAGE = 128


def factorisations(ranks: int) -> list[tuple[int, int]]:
    """All (rows, columns), by falling rows.

    >>> factorisations(6)
    [(6, 1), (3, 2), (2, 3), (1, 6)]
    """
    return [(ranks // c, c) for c in range(1, ranks + 1) if ranks % c == 0]


def uses_all_ranks(dims: tuple[int, int], shape: Sequence[int], spectrum: Sequence[int]) -> bool:
    """Whether every rank holds something at every step of a transform."""
    if len(shape) == 2:
        return dims[0] <= min(shape[0], spectrum[1])
    rows, columns = dims
    return rows <= min(shape[0], shape[1]) and columns <= min(shape[1], spectrum[2])


def default_dims(shape: Sequence[int], ranks: int) -> tuple[int, int]:
    """The process grid of a plan that is given a communicator, and told nothing else.

    Slabs, (P, 1), have one exchange where others have two. They need a plane for each rank, and
    messages of 1 / P^2 of the array, whose number matters more than their size below about
    1 KiB: there, and where planes are too few, the grid is as square as it can be without ranks
    that hold nothing at some step, if there is such a grid.

    Args:
        shape: global shape in real space, of two axes or three.
        ranks: P.

    Returns:
        (rows, columns).

    Example:
        >>> default_dims((256, 256, 256), 64), default_dims((64, 64, 64), 128)
        ((64, 1), (16, 8))
        >>> default_dims((2, 256, 256), 16)
        (2, 8)

    """
    if len(shape) == 2:
        return ranks, 1
    numbers = math.prod(shape) // ranks**2
    if ranks <= min(shape[0], shape[1]) and numbers >= _LEAST_MESSAGE:
        return ranks, 1
    half = (*shape[:2], shape[2] // 2 + 1)  # the spectrum of a real array, which has less
    return min(
        factorisations(ranks),
        key=lambda d: (not uses_all_ranks(d, shape, half), abs(d[0] - d[1]), -d[0]),
    )


def shape_and_grid(
    shape: Sequence[int], grid: object, operation: str, axes: tuple[int, ...]
) -> tuple[tuple[int, ...], ProcessGrid]:
    """The global shape, checked, and the process grid: `grid`, or one for the communicator."""
    if isinstance(grid, MPI.Comm | Communicator):
        comm = as_communicator(grid, operation)
    else:
        otherwise = ", or pass a communicator and have one chosen"
        comm = checked_grid(grid, operation, otherwise=otherwise).communicator
    sizes = static_ints(shape, "shape", operation, comm)
    if len(sizes) not in axes or min(sizes) < 1:
        several = " or ".join({2: "two", 3: "three"}[n] for n in axes)
        batch = "" if axes == (3,) else "; leading axes of a block are a batch and not part of it"
        raise ValueError(
            f"{where(operation, comm)}: the global shape must be {several} positive sizes, got "
            f"{shape!r}{batch}"
        )
    if not isinstance(grid, ProcessGrid):
        grid = ProcessGrid(default_dims(sizes, comm.size), comm)
    return sizes, grid

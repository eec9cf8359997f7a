"""Blocks with their neighbours' cells around them, and the way back."""

import operator
from collections.abc import Sequence
from typing import Any, SupportsIndex, TypeAlias, TypedDict, cast

import jax
import jax.numpy as jnp
import numpy as np
from jax.core import ShapedArray
from jax.typing import ArrayLike

from pfftjax._runtime.arguments import as_array, where
from pfftjax._runtime.arrays import AnyArray, Numbers
from pfftjax._runtime.communicators import Communicator
from pfftjax._runtime.primitive import communicating
from pfftjax._runtime.rules import linear

from ._pencil import Pencil, checked_pencil

Width: TypeAlias = SupportsIndex | Sequence[SupportsIndex | Sequence[SupportsIndex]]
Periodic: TypeAlias = bool | np.bool_ | Sequence[bool | np.bool_]


class _Side(TypedDict):
    """Parameters of the primitives, which pad along one dimension of the process grid."""

    axis: int  # of the operand
    whole: int  # the global length of that axis
    before: int
    after: int
    periodic: bool
    comm: Communicator


def _padding(x: ShapedArray, axis: int, ghosts: int) -> ShapedArray:
    shape = (*x.shape[:axis], x.shape[axis] + ghosts, *x.shape[axis + 1 :])
    return x.update(shape=shape, weak_type=False)


def _agreement(x: ShapedArray, *, axis: int, comm: Communicator, **params: object) -> str:
    del comm
    others = [n for d, n in enumerate(x.shape) if d != axis]
    return f"{np.dtype(x.dtype).name} along axis {axis}, others {others}, {params}"


_ATTRIBUTES = {
    **dict.fromkeys(("axis", "whole", "before", "after"), np.int64),
    "periodic": np.bool_,
}
halo_exchange_p = communicating(
    "halo_exchange",
    result=lambda x, *, axis, before, after, **_: _padding(x, axis, before + after),
    agreement=_agreement,
    attributes=_ATTRIBUTES,
)
halo_reduce_p = communicating(
    "halo_reduce",
    result=lambda x, *, axis, before, after, **_: _padding(x, axis, -before - after),
    agreement=_agreement,
    attributes=_ATTRIBUTES,
)


def _with_batch(_: int, params: dict[str, Any]) -> dict[str, Any]:
    return {**params, "axis": params["axis"] + 1}


# The exchange copies a cell to each place where it appears; the sum over these is the adjoint.
linear(halo_exchange_p, batch=(0, 0), adjoint=halo_reduce_p, batched_params=_with_batch)
linear(halo_reduce_p, batch=(0, 0), adjoint=halo_exchange_p, batched_params=_with_batch)


def halo_exchange(
    x: ArrayLike, pencil: Pencil, width: Width, *, periodic: Periodic = True
) -> AnyArray:
    """Pad a block with ghost cells from the ranks that own them, along both split axes.

    Corners are included. A ghost zone may be wider than a neighbour's block, or than the whole
    axis: cells come from as far as need be. Along grid dimensions of a single rank the padding is
    that of the block itself, so that a program is the same on any grid.

    Args:
        x: this rank's block, of shape ``(..., *pencil.local_shape)``.
        pencil: its pencil.
        width: ghost cells on each side: a number, or one for each dimension of the grid, which may
            be a pair (before, after).
        periodic: whether the axes close on themselves: a bool, or one for each dimension of the
            grid. Ghosts beyond the end of an axis that does not are zero.

    Returns:
        Array of the shape of `x`, with ``before + after`` more cells along each split axis.

    Raises:
        ValueError: a block that does not match its pencil, or a negative width.
        TypeError: a width that is no static integer, `periodic` that is no bool, no pencil, or a
            dtype that cannot be sent.

    Its adjoint is `halo_reduce`.

    Example:
        >>> import jax.numpy as jnp
        >>> from pfftjax import Pencil, ProcessGrid
        >>> pencil = Pencil((4, 5, 6), ProcessGrid((None, 1)))
        >>> x = jnp.ones(pencil.local_shape)
        >>> padded = halo_exchange(x, pencil, 2)
        >>> [int(n) for n in np.subtract(padded.shape, x.shape)], bool(jnp.all(padded == 1))
        ([4, 4, 0], True)

    """
    comm = checked_pencil(pencil, "halo_exchange").grid.communicator
    block = as_array(x, "halo_exchange", comm)
    steps = _steps(block, pencil, width, periodic, "halo_exchange")
    _check(block, pencil, [], "halo_exchange")
    for side in steps:
        block = halo_exchange_p.bind(block, **side)
    return block


def halo_reduce(
    x: ArrayLike, pencil: Pencil, width: Width, *, periodic: Periodic = True
) -> Numbers:
    """Add the ghost cells of padded blocks to the cells that they stand for, on their owners.

    Painting with a halo needs it: mass that a rank has deposited beyond its block ends where it
    belongs. Ghosts beyond the end of an axis that is not periodic stand for no cell, and are left
    out.

    Args:
        x: this rank's padded block, of the shape that `halo_exchange` returns.
        pencil: pencil of the block without ghosts.
        width: as in `halo_exchange`.
        periodic: as in `halo_exchange`.

    Returns:
        Array of shape ``(..., *pencil.local_shape)``. The order of the sums is fixed.

    Raises:
        ValueError: a padded block that does not match its pencil, or a negative width.
        TypeError: as `halo_exchange`, or a dtype that cannot be summed.

    Its adjoint is `halo_exchange`.

    Example:
        >>> import jax.numpy as jnp
        >>> from pfftjax import Pencil, ProcessGrid
        >>> pencil = Pencil((4, 5, 6), ProcessGrid((None, 1)))
        >>> padded = halo_exchange(jnp.ones(pencil.local_shape), pencil, (1, 0))
        >>> total = halo_reduce(padded, pencil, (1, 0)).sum()
        >>> bool(total == padded.size)
        True

    """
    comm = checked_pencil(pencil, "halo_reduce").grid.communicator
    padded = as_array(x, "halo_reduce", comm)
    if padded.dtype == bool:
        raise TypeError(f"{where('halo_reduce', comm)}: cannot add bool; cast it")
    steps = _steps(padded, pencil, width, periodic, "halo_reduce")
    _check(padded, pencil, steps, "halo_reduce")
    for side in reversed(steps):
        is_whole = side["comm"].size == 1
        padded = _summed_alone(padded, side) if is_whole else halo_reduce_p.bind(padded, **side)
    return padded


def _summed_alone(x: jax.Array, side: _Side) -> jax.Array:
    """`halo_reduce_p` where one rank has the whole axis: XLA sums within the pass that follows."""
    axis, count, begin = side["axis"], side["whole"], side["before"]
    end = begin + count
    total = jax.lax.slice_in_dim(x, begin, end, axis=axis)
    if not side["periodic"]:
        return total
    beyond = x.shape[axis]
    parts = [(start, min(start + count, beyond)) for start in range(end, beyond, count)]
    parts += [(max(stop - count, 0), stop) for stop in range(begin, 0, -count)]
    nothing = jnp.zeros((), x.dtype)
    for start, stop in parts:
        low = (start - begin) % count
        room = [(0, 0, 0)] * x.ndim
        room[axis] = (low, count - low - (stop - start), 0)
        total += jax.lax.pad(jax.lax.slice_in_dim(x, start, stop, axis=axis), nothing, room)
    return total


def _steps(
    x: jax.Array, pencil: Pencil, width: Width, periodic: Periodic, name: str
) -> list[_Side]:
    """The parameters for each dimension of the grid that is padded."""
    here = where(name, pencil.grid.communicator)
    lead = x.ndim - len(pencil.axes)
    widths = width if isinstance(width, tuple | list) else (width, width)
    rounds = periodic if isinstance(periodic, tuple | list) else (periodic, periodic)
    if len(widths) != 2 or len(rounds) != 2:
        raise ValueError(
            f"{here}: width and periodic are one value, or one for each of the two dimensions of "
            f"the grid; got {width!r} and {periodic!r}"
        )
    if any(not isinstance(around, bool | np.bool_) for around in rounds):
        raise TypeError(
            f"{here}: periodic is True or False, or one of them for each dimension of the grid, "
            f"got {periodic!r}"
        )
    steps = []
    for dimension, (w, around) in enumerate(zip(widths, rounds, strict=True)):
        sides = w if isinstance(w, tuple | list) else (w, w)
        try:
            before, after = (operator.index(cast(SupportsIndex, side)) for side in sides)
        except (TypeError, ValueError):
            raise TypeError(
                f"{here}: a width is a static integer or a pair (before, after), got {w!r}"
            ) from None
        if min(before, after) < 0:
            raise ValueError(f"{here}: a width cannot be negative, got {width!r}")
        if before + after > 0:
            axis = pencil.split[dimension]
            side = _Side(
                axis=lead + pencil.axes.index(axis),
                whole=pencil.global_shape[axis],
                before=before,
                after=after,
                periodic=bool(around),
                comm=pencil.grid.along(dimension),
            )
            steps.append(side)
    return steps


def _check(x: jax.Array, pencil: Pencil, steps: list[_Side], name: str) -> None:
    """Raise unless `x` is a block with the ghosts of `steps` around it."""
    lead, padded = x.ndim - len(pencil.axes), list(pencil.local_shape)
    for side in steps if lead >= 0 else []:
        padded[side["axis"] - lead] += side["before"] + side["after"]
    ghosts = tuple(padded) if steps else None
    pencil.check_block(x, where(name, pencil.grid.communicator), padded=ghosts)

"""Identities of particles as 64-bit numbers, as files and catalogues have them.

A particle's identity is its `cell`. The number of a cell inside of the mesh is its place in
row-major order. Particles of a lattice that is finer than the mesh have cells in copies of the
mesh, which follow one after the other: copy (q0, q1, q2) has the number that the bits of the three
make in turn (a Morton code). Every 64-bit number is thereby the number of one cell, so that
identities of other codes are cells as well.
"""

import math

import numpy as np

# Bits of a copy's number along each axis: three times as many are 63.
_COPY_BITS = 21


def identities_of(cell: np.ndarray, mesh_shape: tuple[int, int, int]) -> np.ndarray:
    """The identity of each particle, uint64 (rows,), from its `cell`, (rows, 3).

    Raises:
        ValueError: cells below zero, or so many copies of the mesh that 64 bits cannot name them.

    """
    if cell.size and cell.min() < 0:
        raise ValueError("particles whose cell is below zero have no identity as a number")
    volume = math.prod(mesh_shape)
    place = np.zeros(len(cell), np.uint64)
    code = np.zeros(len(cell), np.uint64)
    for axis, n in enumerate(mesh_shape):
        copy, inside = np.divmod(cell[:, axis].astype(np.uint64), np.uint64(n))
        place = place * np.uint64(n) + inside
        if copy.any():
            code |= _spread(copy) << np.uint64(2 - axis)
    most = int(code.max(initial=0))
    if (most + 1) * volume > 1 << 64:
        raise ValueError(
            f"particles in {most + 1} copies of a mesh {mesh_shape} have no identities of 64 bits"
        )
    return code * np.uint64(volume) + place


def cells_of(identity: np.ndarray, mesh_shape: tuple[int, int, int]) -> np.ndarray:
    """The cells, int32 (rows, 3), of which these are the numbers: the inverse.

    Raises:
        ValueError: a cell that 32 bits cannot hold.

    """
    code, place = np.divmod(identity.astype(np.uint64), np.uint64(math.prod(mesh_shape)))
    cell = np.zeros((len(identity), 3), np.int32)
    for axis in (2, 1, 0):
        n = np.uint64(mesh_shape[axis])
        place, inside = np.divmod(place, n)
        whole = _gathered(code >> np.uint64(2 - axis)) * n + inside if code.any() else inside
        if int(whole.max(initial=0)) > np.iinfo(np.int32).max:
            raise ValueError(
                f"identities up to {int(identity.max())} are no cells of copies of a mesh "
                f"{mesh_shape} whose numbers have 32 bits"
            )
        cell[:, axis] = whole
    return cell


def _spread(x: np.ndarray) -> np.ndarray:
    """The bits of each number, with two zeros between them."""
    result = np.zeros_like(x)
    for bit in range(min(int(x.max()).bit_length(), _COPY_BITS + 1)):
        result |= (x >> np.uint64(bit) & np.uint64(1)) << np.uint64(3 * bit)
    return result


def _gathered(x: np.ndarray) -> np.ndarray:
    """Every third bit of each number: the inverse of `_spread`."""
    result = np.zeros_like(x)
    for bit in range(-(-int(x.max(initial=0)).bit_length() // 3)):
        result |= (x >> np.uint64(3 * bit) & np.uint64(1)) << np.uint64(bit)
    return result

"""Groups of friends over the ranks: each links what it owns, and all agree on what is one group.

A rank receives copies ("ghosts") of the particles of others that are within a linking length of
its block, links them with its own, and so finds which groups of others continue in its own ones.
Only one of two ranks gets the ghosts of the other: it sees every pair of friends that lie on both.
"""

import dataclasses
import math

import numpy as np
from mpi4py import MPI

from pfftjax._runtime.agreement import together
from pfftjax._runtime.ffi import native
from pfftjax.pencils import Pencil

from ._rows import Mail

# Ghosts are taken from a little farther than the linking length, so that rounding loses none.
_MARGIN = 1e-6


@dataclasses.dataclass(frozen=True)
class Groups:
    """The groups of all ranks. Of a group that lies on several, each has a part.

    Attributes:
        part: int64 (particles,), the part that each particle of this rank is in, by number.
        parts: how many parts this rank has.
        first: the number of its first part among those of all ranks.
        root: int64 (parts,), the part that stands for the group, by its number among all: the same
            for all parts of a group.
        rounds: how often the ranks exchanged what they knew of the groups.

    """

    part: np.ndarray
    parts: int
    first: int
    root: np.ndarray
    rounds: int


class _Everywhere:
    """Numbers of parts among those of all ranks, and values that their owners have."""

    def __init__(self, parts: int, comm: MPI.Intracomm) -> None:
        self.comm = comm
        self.begins = np.concatenate([[0], np.cumsum(comm.allgather(parts))])
        self.first = int(self.begins[comm.rank])

    def owner(self, number: np.ndarray) -> np.ndarray:
        return np.searchsorted(self.begins, number, side="right") - 1

    def lowered(self, values: np.ndarray, number: np.ndarray, to: np.ndarray) -> None:
        """Lower the owners' values of some numbers. Collective."""
        mail = Mail.to(self.owner(number), self.comm)
        arrived = mail.send(np.stack([number, to], 1))
        np.minimum.at(values, arrived[:, 0] - self.first, arrived[:, 1])


def owners(cells: np.ndarray, mesh: Pencil) -> np.ndarray:
    """The rank that owns each of these cells, int (rows, 3)."""
    rank = np.zeros(len(cells), np.int64)
    for axis, parts in enumerate(mesh.grid.dims):
        begins = [begin for begin, _ in _ranges(mesh, axis)]
        # Blocks without cells come last, and begin where the mesh ends.
        part = np.searchsorted(begins, cells[:, axis], side="right") - 1
        rank = rank * parts + part
    return rank


def linked(
    positions: np.ndarray, mesh: Pencil, sides: np.ndarray, length: float, comm: MPI.Intracomm
) -> Groups:
    """The groups of friends. Collective.

    Args:
        positions: float64 (particles, 3), of those whose cells this rank owns, in [0, sides).
        mesh: whose cells they are.
        sides: float64 (3,), of the periodic box.
        length: two particles are friends if they are no farther apart.
        comm: the ranks of the mesh.

    """
    with together(comm, "friends_of_friends"):
        rows, ranks = _near_others(positions, mesh, sides, length, comm)
    mail = Mail.to(ranks, comm)
    ghosts = mail.send(positions[rows])
    own = len(positions)
    with together(comm, "friends_of_friends"):
        lowest = np.empty(own + len(ghosts), np.int64)
        everything = np.concatenate([positions, ghosts])
        native.link_friends(everything, sides.tolist(), length, lowest)
        # Own particles come first: a group has some if and only if its lowest row is one.
        stands = lowest[:own] == np.arange(own)
        number = np.cumsum(stands) - 1
        part = number[lowest[:own]]
        parts = int(stands.sum())
    everywhere = _Everywhere(parts, comm)
    theirs = mail.send(everywhere.first + part[rows])
    with together(comm, "friends_of_friends"):
        touched = lowest[own:] < own
        mine = everywhere.first + number[lowest[own:][touched]]
        edges = np.unique(np.stack([mine, theirs[touched]], 1), axis=0)
    root, rounds = _merged(edges, parts, everywhere)
    return Groups(part, parts, everywhere.first, root, rounds)


def _ranges(mesh: Pencil, axis: int) -> list[tuple[int, int]]:
    """(start, count) of all parts of an axis of the mesh."""
    parts = mesh.grid.dims[axis]
    coords = [(part, 0) if axis == 0 else (0, part) for part in range(parts)]
    return [mesh.range_of(axis, at) for at in coords]


def _apart(
    low: np.ndarray, high: np.ndarray, begin: float, end: float, side: float
) -> np.ndarray | np.floating:
    """The distances of intervals from another one in a periodic box."""
    images = [
        np.maximum(begin - (high + shift), low + shift - end) for shift in (-side, 0.0, side)
    ]
    return np.maximum(np.minimum.reduce(images), 0)


def _near_others(
    positions: np.ndarray, mesh: Pencil, sides: np.ndarray, length: float, comm: MPI.Intracomm
) -> tuple[np.ndarray, np.ndarray]:
    """The particles that other ranks need as ghosts, as rows and the ranks that need them."""
    reach = length * (1 + _MARGIN)
    near: list[dict[int, np.ndarray]] = []
    for axis in range(2):
        x, side = positions[:, axis], float(sides[axis])
        cell = side / mesh.global_shape[axis]
        ranges = [(start * cell, (start + n) * cell, n) for start, n in _ranges(mesh, axis)]
        low, high, _ = (np.asarray(v) for v in ranges[mesh.grid.coords[axis]])
        found = {}
        for part, (begin, end, n) in enumerate(ranges):
            # Most blocks are far from all of this one, and none of its particles is looked at.
            if part == mesh.grid.coords[axis]:
                found[part] = np.ones(len(x), bool)
            elif n and _apart(low, high, begin, end, side) <= reach:
                found[part] = np.asarray(_apart(x, x, begin, end, side) <= reach)
        near.append(found)
    rows, ranks = [], []
    for part0, is_near0 in near[0].items():
        candidates = np.flatnonzero(is_near0)
        for part1, is_near1 in near[1].items():
            rank = part0 * mesh.grid.dims[1] + part1
            if not _gets_ghosts(rank, comm.rank):
                continue
            chosen = candidates[is_near1[candidates]]
            rows.append(chosen)
            ranks.append(np.full(len(chosen), rank))
    none = np.zeros(0, np.int64)
    return np.concatenate([none, *rows]), np.concatenate([none, *ranks])


def _gets_ghosts(rank: int, of: int) -> bool:
    """Which of two ranks gets the other's: as many of one's neighbours do as do not."""
    return rank != of and (rank > of) == ((rank + of) % 2 == 0)


def _merged(edges: np.ndarray, parts: int, everywhere: _Everywhere) -> tuple[np.ndarray, int]:
    """The lowest part of each group, where each edge joins a part of this rank to another one.

    The ranks exchange until nothing changes. In each round the lower end of an edge lowers what
    stands for the group of the other one, and each part takes over what stands for that which
    stands for it: the way to the lowest halves each time, so that a group that winds through n
    parts takes about log n rounds (Zhang, Azad & Hu 2020).
    """
    comm, first = everywhere.comm, everywhere.first
    root = first + np.arange(parts)
    mine, theirs = edges[:, 0], edges[:, 1]
    mail = Mail.to(everywhere.owner(theirs), comm)
    asked = mail.send(theirs) - first
    # Parts that no edge reaches stand for themselves, and take no part in this.
    active = np.unique(np.concatenate([mine - first, asked]))
    for rounds in range(1, 2 + 64 * (1 + math.ceil(math.log2(2 + int(everywhere.begins[-1]))))):
        before = root[active]
        of_mine, of_theirs = root[mine - first], mail.send_back(root[asked])
        low, high = np.minimum(of_mine, of_theirs), np.maximum(of_mine, of_theirs)
        differ = np.flatnonzero(low < high)
        everywhere.lowered(root, high[differ], low[differ])
        np.minimum.at(root, mine - first, low)
        moved = active[root[active] != first + active]
        of_root = Mail.to(everywhere.owner(root[moved]), comm)
        answers = root[of_root.send(root[moved]) - first]
        root[moved] = np.minimum(root[moved], of_root.send_back(answers))
        if not comm.allreduce(bool(np.any(root[active] != before)) or len(differ) > 0, MPI.LOR):
            return root, rounds
    raise AssertionError("friends_of_friends: the ranks did not agree on the groups")

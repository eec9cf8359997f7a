"""Catalogues of groups: what their particles add up to, in one order for all ranks."""

import dataclasses

import numpy as np
from mpi4py import MPI

from pfftjax._runtime.agreement import private
from pfftjax.pencils import ProcessGrid
from pfftjax.pencils.internal import checked_grid

from ._linking import Groups
from ._rows import Mail, in_order

# A part of a group, for the rank whose part stands for the group: how many particles it has, and
# the one of the lowest identity.
_PART = np.dtype(
    [("root", "i8"), ("length", "i8"), ("identity", "u8"), ("x", "f8", 3), ("v", "f8", 3)]
)
# Sums over particles, of what they differ by from the one of the lowest identity.
_SUMS = np.dtype([("root", "i8"), ("x", "f8", 3), ("v", "f8", 3), ("v2", "f8")])
# A group, and the place of the part that stands for it.
_GROUP = np.dtype(
    [
        ("length", "i8"),
        ("identity", "u8"),
        ("position", "f8", 3),
        ("velocity", "f8", 3),
        ("dispersion", "f8"),
        ("rank", "i8"),
        ("row", "i8"),
    ]
)


@dataclasses.dataclass(frozen=True, eq=False)
class GroupCatalogue:
    """Groups of particles, the heaviest first, and those of one mass by identity.

    Each rank has an equal share of the rows, one after the other; `whole` is all of them. All
    arrays are NumPy's, in double precision.

    Attributes:
        identity: uint64 (groups,), the lowest identity among the particles, as files of
            `pfftjax.io` number them. It is the name of the group in any run of the same particles.
        length: int64 (groups,), how many particles it has.
        mass: (groups,), [Msun/h], or in masses of a particle if no cosmology was given.
        position: (groups, 3), the centre of mass [Mpc/h], in the periodic box.
        velocity: (groups, 3), the mean peculiar velocity [km/s]; None if it is not known when the
            particles are.
        dispersion: (groups,), the velocity dispersion along one axis [km/s]: the root of a third
            of the mean square of the particles' velocities about `velocity`; None likewise.
        first: the place of this rank's first group among all.
        total: groups of all ranks together.

    """

    identity: np.ndarray
    length: np.ndarray
    mass: np.ndarray
    position: np.ndarray
    velocity: np.ndarray | None
    dispersion: np.ndarray | None
    first: int
    total: int

    def __len__(self) -> int:
        """How many groups this rank has."""
        return len(self.length)

    def whole(self, grid: ProcessGrid) -> "GroupCatalogue":
        """The groups of all ranks, on every rank. Collective over the ranks of `grid`.

        Example:
            >>> import jax.numpy as jnp
            >>> from pfftjax import Pencil, ProcessGrid, observables, pm
            >>> mesh = Pencil((4, 4, 4), ProcessGrid())
            >>> none = jnp.zeros((0, 3))
            >>> particles = pm.Particles(none.astype("int32"), none, none, jnp.int32(0), 0,
            ...                          mesh.global_shape, box_size=(8.0, 8.0, 8.0))
            >>> catalogue, _ = observables.friends_of_friends(particles, mesh)
            >>> len(catalogue.whole(mesh.grid))
            0

        """
        comm = private(checked_grid(grid, "whole").comm)
        everybody = {
            name: np.concatenate(comm.allgather(value))
            for name, value in vars(self).items()
            if isinstance(value, np.ndarray)
        }
        return dataclasses.replace(self, **everybody, first=0)


@dataclasses.dataclass(frozen=True)
class Members:
    """The particles of this rank, of which groups consist.

    Attributes:
        position: float64 (particles, 3) [Mpc/h], in the box.
        velocity: float64 (particles, 3), zero where it is not known.
        identity: uint64 (particles,).

    """

    position: np.ndarray
    velocity: np.ndarray
    identity: np.ndarray


def catalogued(
    members: Members, groups: Groups, sides: np.ndarray, smallest: int, comm: MPI.Intracomm
) -> tuple[np.ndarray, np.ndarray]:
    """The groups with enough particles, as rows of `_GROUP` in the order of the catalogue.

    Returns:
        This rank's share of them, and for each particle the place of its group among all, int32,
        -1 for one of none.

    """
    own = groups.first + np.arange(groups.parts)
    # Parts of groups for which a part of another rank stands; the others have all that they need.
    away = np.flatnonzero(groups.root != own)
    begins = np.asarray(comm.allgather(groups.first))
    # Ranks without parts have the same first number as the next one, and own none.
    mail = Mail.to(np.searchsorted(begins, groups.root[away], side="right") - 1, comm)

    parts = _parts(members, groups)
    arrived = mail.send(parts[away])
    at = arrived["root"] - groups.first
    np.add.at(parts["length"], at, arrived["length"])
    order = np.lexsort((arrived["identity"], at))
    lowest = order[np.unique(at[order], return_index=True)[1]]
    lowest = lowest[arrived["identity"][lowest] < parts["identity"][at[lowest]]]
    for name in ("identity", "x", "v"):
        parts[name][at[lowest]] = arrived[name][lowest]
    parts[away] = mail.send_back(parts[at])

    is_large = parts["length"] >= smallest
    sums = _sums(members, groups, parts, is_large, sides)
    arrived = mail.send(sums[away])
    for name in ("x", "v", "v2"):
        np.add.at(sums[name], at, arrived[name])

    stands = np.flatnonzero((groups.root == own) & is_large)
    rows = _rows(parts[stands], sums[stands], sides)
    rows["rank"], rows["row"] = comm.rank, stands
    rows = in_order(rows, _keys(rows), comm)

    # The place of a group goes to the part that stands for it, to the other parts, and to them.
    before = comm.exscan(len(rows)) or 0
    to = Mail.to(rows["rank"], comm)
    place = np.full(groups.parts, -1, np.int32)
    place[to.send(rows["row"])] = to.send(np.arange(before, before + len(rows), dtype=np.int32))
    place[away] = mail.send_back(place[at])
    return rows, place[groups.part] if groups.parts else np.zeros(0, np.int32)


def _parts(members: Members, groups: Groups) -> np.ndarray:
    """What this rank's parts are before it hears of others."""
    parts = np.zeros(groups.parts, _PART)
    parts["root"] = groups.root
    parts["length"] = np.bincount(groups.part, minlength=groups.parts)
    parts["identity"] = np.iinfo(np.uint64).max
    np.minimum.at(parts["identity"], groups.part, members.identity)
    rows = np.flatnonzero(members.identity == parts["identity"][groups.part])
    lowest = np.zeros(groups.parts, np.int64)
    lowest[groups.part[rows]] = rows
    parts["x"], parts["v"] = members.position[lowest], members.velocity[lowest]
    return parts


def _sums(
    members: Members, groups: Groups, parts: np.ndarray, is_large: np.ndarray, sides: np.ndarray
) -> np.ndarray:
    """Sums over the particles of each part, of groups that are large enough."""
    sums = np.zeros(groups.parts, _SUMS)
    sums["root"] = groups.root
    rows = np.flatnonzero(is_large[groups.part]) if groups.parts else np.zeros(0, int)
    part = groups.part[rows]
    apart = members.position[rows] - parts["x"][part]
    apart -= sides * np.round(apart / sides)
    faster = members.velocity[rows] - parts["v"][part]
    for axis in range(3):
        sums["x"][:, axis] = np.bincount(part, apart[:, axis], groups.parts)
        sums["v"][:, axis] = np.bincount(part, faster[:, axis], groups.parts)
    sums["v2"] = np.bincount(part, np.sum(faster**2, 1), groups.parts)
    return sums


def _rows(parts: np.ndarray, sums: np.ndarray, sides: np.ndarray) -> np.ndarray:
    """The groups of which these are all the particles."""
    rows = np.zeros(len(parts), _GROUP)
    rows["length"], rows["identity"] = parts["length"], parts["identity"]
    n = parts["length"][:, None]
    centre = np.mod(parts["x"] + sums["x"] / n, sides)
    rows["position"] = np.where(centre < sides, centre, 0)  # what is hardly below zero rounds up
    faster = sums["v"] / n
    rows["velocity"] = parts["v"] + faster
    spread = sums["v2"] / parts["length"] - np.sum(faster**2, 1)
    rows["dispersion"] = np.sqrt(np.maximum(spread, 0) / 3)
    return rows


def _keys(rows: np.ndarray) -> np.ndarray:
    """Bytes that compare as groups do: by falling length, and then by identity."""
    key = np.empty((len(rows), 2), ">u8")
    key[:, 0] = np.iinfo(np.int64).max - rows["length"]
    key[:, 1] = rows["identity"]
    return np.ascontiguousarray(key).view("S16")[:, 0] if len(rows) else np.zeros(0, "S16")

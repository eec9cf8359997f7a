"""Groups by brute force: all pairs, and sums over members one group at a time."""

import numpy as np
import scipy.sparse.csgraph


def groups_of(position, sides, length):
    """The number of the group of each particle, from the distances of all pairs."""
    apart = np.abs(position[:, None] - position[None])
    apart = np.minimum(apart, sides - apart)
    friends = np.sum(apart**2, -1) <= length**2
    return scipy.sparse.csgraph.connected_components(friends, directed=False)[1]


def catalogue_of(position, velocity, identity, group, sides, smallest):
    """(length, identity, position, velocity, dispersion) of each group, in the order of a
    catalogue."""
    rows = []
    for number in np.unique(group):
        members = np.flatnonzero(group == number)
        if len(members) < smallest:
            continue
        lowest = members[np.argmin(identity[members])]
        apart = position[members] - position[lowest]
        apart -= sides * np.round(apart / sides)
        mean = velocity[members].mean(0)
        rows.append(
            (
                len(members),
                int(identity[lowest]),
                (position[lowest] + apart.mean(0)) % sides,
                mean,
                np.sqrt(np.mean(np.sum((velocity[members] - mean) ** 2, 1)) / 3),
            )
        )
    return sorted(rows, key=lambda row: (-row[0], row[1]))

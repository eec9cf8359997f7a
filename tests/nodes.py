"""Nodes that are made of this one: ranks of different numbers share no memory.

Every case makes a communicator of its own, as a communicator keeps what it knows of its nodes.
"""

import contextlib

from mpi4py import MPI

from pfftjax._runtime.ffi import native
from tests.helpers import NODES, RANK, SIZE

# The node of each rank: of equal and of unequal ones, and of ranks that are no neighbours.
PLACEMENTS = {
    1: [(0,)],
    2: [(0, 1), (0, 0)],
    3: [(0, 0, 1), (0, 1, 0), (0, 1, 1)],
    4: [(0, 0, 1, 1), (0, 1, 0, 1), (0, 1, 1, 1), (0, 1, 1, 2)],
}[SIZE]


@contextlib.contextmanager
def on_nodes(placement):
    """A communicator whose ranks are on these nodes."""
    comm = MPI.COMM_WORLD.Dup()
    native.set_node(placement[RANK])
    try:
        yield comm
    finally:
        native.set_node(NODES[RANK] if len(NODES) > 1 else 0)

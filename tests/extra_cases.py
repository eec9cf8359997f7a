"""Cases for the table of transformations that the matrix of tests/helpers.py does not have: what
has no derivative, or is not linear."""

import jax
import jax.numpy as jnp
from mpi4py import MPI

from pfftjax import collectives as pc
from tests.helpers import RANK, SIZE, Case

RIGHT, LEFT = (RANK + 1) % SIZE, (RANK - 1) % SIZE


def _send_recv(x):
    pc.send(x, RIGHT, tag=3)
    # Not zeros_like(x): under vmap that is one array, and the messages are batches.
    return pc.recv(x, LEFT, tag=3)


def _behind_a_barrier(x):
    pc.barrier()
    return x


def _range(x):
    return pc.replicate(pc.allreduce(x, MPI.MAX) - pc.allreduce(x, MPI.MIN))


def _to_the_right(x):
    return jnp.roll(x, 1, axis=0)


DIFFERENTIABLE = (
    Case(
        "allreduce_extremes",
        (2, 3),
        _range,
        lambda x: jnp.broadcast_to(x.max(0) - x.min(0), x.shape),
    ),
)
FORWARD = (
    Case("barrier", (2, 3), _behind_a_barrier, lambda x: x),
    Case("send_recv", (4,), _send_recv, _to_the_right),
    Case(
        "sendrecv_anybody",
        (4,),
        lambda x: pc.sendrecv(x, x, MPI.ANY_SOURCE, RIGHT),
        _to_the_right,
    ),
    Case("scan_max", (2, 3), lambda x: pc.scan(x, MPI.MAX), lambda x: jax.lax.cummax(x, axis=0)),
)
EXTRA = (*DIFFERENTIABLE, *FORWARD)

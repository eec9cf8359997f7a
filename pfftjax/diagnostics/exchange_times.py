"""How long exchanges take inside a jitted program, and by MPI alone."""

import dataclasses
import time
from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np
from mpi4py import MPI

from pfftjax.collectives import alltoall

_SECONDS = 0.3
_REPETITIONS = range(3, 31)


@dataclasses.dataclass(frozen=True)
class ExchangeTime:
    """The best time of one alltoall, on the slowest rank.

    Attributes:
        bytes: of one rank's array.
        jitted: seconds inside a jitted program.
        raw: seconds by mpi4py, between two buffers.

    """

    bytes: int
    jitted: float
    raw: float


def seconds_of(work: Callable[[], object], comm: MPI.Intracomm) -> float:
    """How long `work` takes on the slowest rank, begun together. Collective."""
    comm.Barrier()
    start = time.perf_counter()
    work()
    return comm.allreduce(time.perf_counter() - start, MPI.MAX)


def exchange_time(block: int, chain: int, comm: MPI.Intracomm) -> ExchangeTime:
    """Time `chain` exchanges in a row. Collective.

    Args:
        block: number of float32 that a rank sends to each rank.
        chain: how many exchanges are timed together, each of the result of the one before.
        comm: communicator whose ranks exchange.

    Example:
        >>> from mpi4py import MPI
        >>> exchange_time(2, 4, MPI.COMM_WORLD).bytes == 8 * MPI.COMM_WORLD.size
        True

    """

    # A loop of XLA's would copy what it carries.
    @jax.jit
    def program(x: jax.Array) -> jax.Array:
        for _ in range(chain):
            x = alltoall(x, comm=comm)
        return x

    x = jnp.ones((comm.size, block), jnp.float32)
    buffers = [np.ones((comm.size, block), np.float32) for _ in range(2)]

    def jitted() -> None:
        program(x).block_until_ready()

    def raw() -> None:
        for i in range(chain):
            comm.Alltoall(buffers[i % 2], buffers[1 - i % 2])

    jitted()
    once = seconds_of(jitted, comm) + seconds_of(raw, comm)
    repetitions = min(max(int(_SECONDS / once), _REPETITIONS.start), _REPETITIONS.stop - 1)
    # The two take turns, so that whatever else the node does meets both.
    times = [(seconds_of(jitted, comm), seconds_of(raw, comm)) for _ in range(repetitions)]
    best_jitted, best_raw = (min(column) / chain for column in zip(*times, strict=True))
    return ExchangeTime(x.nbytes, best_jitted, best_raw)

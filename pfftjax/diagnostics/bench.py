"""``pfftjax bench``: how long transforms take on the ranks that there are."""

import time
from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np
from mpi4py import MPI

from pfftjax.fft import PencilFFT
from pfftjax.pencils import ProcessGrid

from .exchange_times import seconds_of

_SECONDS = 2.0
_MOST = 50
_WARM = 2


def bench(mesh: int = 128) -> int:
    """Time transforms of `mesh`^3 numbers forward and back, and print a table; the status.

    Single precision, complex and real, on the slowest rank. Beside it stands what `jax.numpy.fft`
    takes for the whole array in the one process of rank 0, which has its cores to itself then.
    Collective over MPI_COMM_WORLD.
    """
    grid = ProcessGrid()
    comm, shape = grid.comm, (mesh, mesh, mesh)
    first = comm.rank == 0
    if first:
        device = jax.devices()[0].device_kind
        dims = f"{grid.dims[0]} x {grid.dims[1]}"
        print(f"{mesh}^3 points on {grid.size} ranks as {dims}, {device}; best and median time")
        print(f"{'':22}{'pfftjax':>20}{'jnp.fft, 1 process':>24}", flush=True)
    alone = (jnp.fft.fftn, jnp.fft.ifftn, jnp.fft.rfftn, lambda y: jnp.fft.irfftn(y, shape))
    for real in (False, True):
        plan = PencilFFT(shape, grid, real=real)
        x = jnp.ones(plan.input.local_shape, "float32" if real else "complex64")
        y = plan.forward(x)
        wholes: list[jax.Array] = []
        if first:
            wholes.append(jnp.ones(shape, x.dtype))
            wholes.append(alone[2 * real](wholes[0]))
        ways = (("forward", plan.forward, x), ("inverse", plan.inverse, y))
        for i, (name, f, block) in enumerate(ways):
            ours = _times(jax.jit(f), block, comm)
            if first:
                theirs = _times(jax.jit(alone[2 * real + i]), wholes[i], MPI.COMM_SELF)
                beside = f"{_text(theirs):>24}   {min(theirs) / min(ours):.2f} times as long"
                print(f"{name + ', ' + x.dtype.name:22}{_text(ours):>20}{beside}", flush=True)
            _sleep_until_all_come(comm)
    return 0


def _sleep_until_all_come(comm: MPI.Intracomm) -> None:
    """As a barrier, but the cores of those that wait are free for the others."""
    everybody = comm.Ibarrier()
    while not everybody.Test():
        time.sleep(1e-3)


def _times(f: Callable[[jax.Array], jax.Array], x: jax.Array, comm: MPI.Intracomm) -> list[float]:
    """Seconds of calls, each on the slowest rank, until enough are measured."""
    found: list[float] = []
    while len(found) < _WARM or (sum(found[_WARM:]) < _SECONDS and len(found) < _WARM + _MOST):
        found.append(seconds_of(lambda: jax.block_until_ready(f(x)), comm))
    return found[_WARM:] or found


def _text(seconds: list[float]) -> str:
    return f"{1e3 * min(seconds):.2f} {1e3 * float(np.median(seconds)):.2f} ms"

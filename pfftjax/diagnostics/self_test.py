"""A few operations with known results, to see that an installation computes what it should."""

import jax
import jax.numpy as jnp
import numpy as np
from mpi4py import MPI

from pfftjax.collectives import allreduce, alltoall, sendrecv
from pfftjax.fft import PencilFFT
from pfftjax.pencils import ProcessGrid

_TOLERANCE = 1e-5  # of float32


def _differs(actual: jax.Array, expected: np.ndarray) -> bool:
    """Also for NaN, and for another shape."""
    if actual.shape != expected.shape:
        return True
    scale = max(float(np.abs(expected).max(initial=0.0)), 1.0)
    return not bool(np.all(np.abs(np.asarray(actual) - expected) <= _TOLERANCE * scale))


def wrong_operations(comm: MPI.Intracomm) -> list[str]:
    """The names of operations whose results are wrong on this rank. Collective.

    Example:
        >>> from mpi4py import MPI
        >>> wrong_operations(MPI.COMM_WORLD)
        []

    """
    rank, size = comm.rank, comm.size
    plan = PencilFFT((12, 10, 9), ProcessGrid(comm=comm))
    # The same on every rank, and no two values alike.
    whole = np.random.default_rng(0).standard_normal(plan.shape).astype(np.complex64)
    others = np.arange(size)

    @jax.jit
    def program(x: jax.Array, u: jax.Array) -> dict[str, jax.Array]:
        return {
            "alltoall": alltoall(x, comm=comm),
            "sendrecv": sendrecv(
                x, x, source=(rank - 1) % size, dest=(rank + 1) % size, comm=comm
            ),
            "allreduce": allreduce(x, comm=comm),
            "PencilFFT.forward": plan.forward(u),
            "PencilFFT.inverse": plan.inverse(plan.forward(u)),
            "gradient of PencilFFT.forward": jax.grad(
                lambda u: jnp.sum(jnp.abs(plan.forward(u)) ** 2)
            )(u),
        }

    block = np.asarray(plan.input.local_block(whole))
    expected = {
        "alltoall": others * size + rank,
        "sendrecv": (rank - 1) % size * size + others,
        "allreduce": size * others + size * size * (size - 1) // 2,
        "PencilFFT.forward": np.asarray(plan.output.local_block(np.fft.fftn(whole))),
        "PencilFFT.inverse": block,
        # Parseval: the sum of squares grows by the number of cells. JAX's gradients of real
        # functions are conjugated.
        "gradient of PencilFFT.forward": 2 * whole.size * np.conj(block),
    }
    results = program(jnp.asarray(rank * size + others), jnp.asarray(block))
    return [name for name, result in results.items() if _differs(result, expected[name])]


def self_test() -> int:
    """Run them on the ranks that there are, and say how it went; the status to end with.

    Collective over MPI_COMM_WORLD, and the same on all ranks.
    """
    comm = MPI.COMM_WORLD
    found = comm.allgather(wrong_operations(comm))
    lines = [
        f"{name} is wrong on rank {rank}" for rank, names in enumerate(found) for name in names
    ]
    if comm.rank == 0:
        ranks = "1 rank" if comm.size == 1 else f"{comm.size} ranks"
        right = f"Operations, transforms and their gradient are right on {ranks}."
        print("\n".join(lines) or right, flush=True)
    return int(bool(lines))

"""barrier: no rank leaves before all have come."""

from pfftjax._runtime.communicators import Comm, as_private
from pfftjax._runtime.primitive import communicating

barrier_p = communicating(
    "barrier", result=lambda **_: [], agreement=lambda **_: "", multiple_results=True
)


def barrier(*, comm: Comm = None) -> None:
    """Wait until all ranks of `comm` have come to this point of the program.

    Takes its place in the order of communication; inside jitted code it does not wait for
    computation that no communication depends on. Asynchronous like every JAX operation:
    `jax.effects_barrier()` waits for it in Python.

    Args:
        comm: communicator, `MPI.COMM_WORLD` by default.

    Example:
        >>> import jax
        >>> barrier()
        >>> jax.effects_barrier()

    """
    barrier_p.bind(comm=as_private(comm, "barrier"))

"""The rank of this process in a communicator, as a value that is known only when a program runs.

As a constant it would make each rank's program a different one, to be compiled and cached apart.
"""

import jax
import jax.numpy as jnp
import numpy as np
from jax.core import ShapedArray

from pfftjax._runtime.communicators import Communicator
from pfftjax._runtime.primitive import local

coordinate_p = local(
    "coordinate",
    lambda comm: ShapedArray((), jnp.int32),
    lambda comm: {"comm": np.int64(comm.number)},
)


def coordinate(comm: Communicator) -> jax.Array:
    """The rank in `comm`, an int32 scalar."""
    return coordinate_p.bind(comm=comm)

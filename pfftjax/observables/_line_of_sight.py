"""The direction in which an observer looks, the same everywhere: a far one."""

from typing import TypeAlias

import jax
import jax.numpy as jnp
import numpy as np
from jax.core import Tracer
from jax.typing import DTypeLike

from pfftjax._runtime.arguments import static_int, where
from pfftjax._runtime.arrays import SeriesLike
from pfftjax._runtime.communicators import Communicator
from pfftjax.pm.internal import as_known

# The number of an axis, or a vector.
LineOfSight: TypeAlias = int | SeriesLike


def direction(
    line_of_sight: LineOfSight, dtype: DTypeLike, operation: str, comm: Communicator
) -> jax.Array:
    """The unit vector along an axis, or along a vector of any length, which may be traced."""
    vector = as_known(line_of_sight)
    if vector.ndim == 0:
        axis = static_int(line_of_sight, "line_of_sight", operation, comm)
        if axis not in (0, 1, 2):
            raise ValueError(
                f"{where(operation, comm)}: line_of_sight must be the axis 0, 1 or 2, or a vector "
                f"of three numbers, got {axis}"
            )
        return jnp.asarray(np.eye(3)[axis], dtype)
    is_possible = isinstance(vector, Tracer) or (np.all(np.isfinite(vector)) and np.any(vector))
    if vector.shape != (3,) or not is_possible:
        raise ValueError(
            f"{where(operation, comm)}: a vector as line_of_sight has three finite numbers that "
            f"are not all zero, got {line_of_sight!r}"
        )
    # The squares of long vectors, and of short ones, are no numbers. The direction does not change
    # with the length, and so has no derivative by this one.
    unit = vector / jax.lax.stop_gradient(jnp.max(jnp.abs(jnp.asarray(vector))))
    unit = jnp.asarray(unit, dtype)
    return unit / jnp.sqrt(jnp.sum(unit**2))

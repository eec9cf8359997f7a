"""Whether particles are when and where a call says: scale factors and boxes.

A redshift in place of a scale factor, or the box of another run, gives numbers that look right.
What is known while a program is traced is compared at once; the rest when it runs.
"""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.core import Tracer
from jax.interpreters import ad, batching

from pfftjax._runtime.communicators import Communicator, as_private
from pfftjax._runtime.primitive import batch_in_front, communicating, where

# Relative. A scale factor may be rounded in a file of parameters: 0.333 for z = 2.
SCALE_FACTORS_DIFFER = 2e-3
BOXES_DIFFER = 1e-5

# passed, value, expected -> passed, if value is expected
expect_p = communicating(
    "expect",
    result=lambda passed, *_, **__: passed,
    agreement=lambda *_, operation, what, **__: f"({operation}: {what})",
    attributes=lambda *, tolerance, **texts: {"tolerance": np.float64(tolerance), **texts},
    in_place=lambda *_, **__: True,
)


def _batched(operands: Any, axes: Any, **params: Any) -> Any:
    (passed, value, expected), (axis, *others) = operands, axes
    if others != [None, None]:
        _, (value, expected) = batch_in_front((value, expected), others)
    return expect_p.bind(passed, value, expected, **params), axis


ad.primitive_jvps[expect_p] = lambda primals, tangents, **params: (
    expect_p.bind(*primals, **params),
    tangents[0],
)
batching.primitive_batchers[expect_p] = _batched


def expect(
    passed: jax.Array,
    value: Any,
    expected: Any,
    *,
    operation: str,
    what: str,
    but: str,
    remedy: str,
    tolerance: float,
    comm: Communicator,
) -> jax.Array:
    """`passed`, if `value` is `expected`: "`what` is 0.5, but `but` 0.1; `remedy`".

    Args:
        passed: an integer that what the program computes next depends on.
        value: a number or a vector.
        expected: the same; numbers that are not positive are not known.
        operation: the user's operation. These texts are the same on all ranks.
        what: what `value` is.
        but: what `expected` is, with the verb.
        remedy: what the user can do.
        tolerance: relative.
        comm: the ranks that compute together.

    Raises:
        ValueError: both are known, and differ.
        jax.errors.JaxRuntimeError: the same, when it runs.

    """
    if not isinstance(value, Tracer) and not isinstance(expected, Tracer):
        a, b = np.asarray(value, float), np.asarray(expected, float)
        differ = np.abs(a - b) > tolerance * np.maximum(a, b)
        if np.any(differ & (a > 0) & (b > 0)):
            raise ValueError(
                f"{where(operation, comm)}: {what} is {a.tolist()}, but {but} {b.tolist()}; "
                f"{remedy}"
            )
        return passed
    comm = as_private(comm, operation)
    numbers = jnp.broadcast_arrays(jnp.asarray(value, float), jnp.asarray(expected, float))
    texts = {"operation": operation, "what": what, "but": but, "remedy": remedy}
    return expect_p.bind(
        jnp.asarray(passed),
        *jax.lax.stop_gradient(numbers),
        tolerance=tolerance,
        comm=comm,
        **texts,
    )


def as_known(x: Any) -> Any:
    """`x`, numbers that may be traced, as one array that stays known where all of them are."""
    if any(isinstance(leaf, Tracer) for leaf in jax.tree.leaves(x)):
        return jnp.asarray(x, float)
    return np.asarray(x, jnp.result_type(float))

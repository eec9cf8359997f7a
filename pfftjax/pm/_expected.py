"""Whether particles are when and where a call says: scale factors and boxes.

A redshift in place of a scale factor, or the box of another run, gives numbers that look right.
What is known while a program is traced is compared at once; the rest when it runs.
"""

from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np
from jax.core import Tracer
from jax.extend.core import Primitive
from jax.interpreters import ad, batching
from jax.typing import ArrayLike

from pfftjax._runtime.arguments import where
from pfftjax._runtime.arrays import BoxSize
from pfftjax._runtime.communicators import Communicator, as_private
from pfftjax._runtime.primitive import communicating
from pfftjax._runtime.rules import Axes, Operands, batch_in_front

# Relative differences. A scale factor may be rounded in a file of parameters: 0.333 for z = 2.
SCALE_FACTORS_DIFFER = 2e-3
BOXES_DIFFER = 1e-5


def _expecting(on_gpus: Callable[..., jax.Array] | None = None) -> Primitive:
    """passed, value, expected -> passed, if value is expected."""
    return communicating(
        "expect",
        result=lambda passed, *_, **__: passed,
        agreement=lambda *_, operation, what, **__: f"({operation}: {what})",
        attributes=lambda *, tolerance, **texts: {"tolerance": np.float64(tolerance), **texts},
        in_place=lambda *_, **__: {0: 0},
        on_gpus=on_gpus,
    )


# The handler is the host's: what it is given is copied there and back.
_expect_by_host_p = _expecting()


def _expect_on_gpus(
    passed: jax.Array, value: jax.Array, expected: jax.Array, **params: object
) -> jax.Array:
    nothing = _expect_by_host_p.bind(jnp.zeros(()), value, expected, **params)
    return jax.lax.optimization_barrier((passed, nothing))[0]


expect_p = _expecting(_expect_on_gpus)


def _batched(operands: Operands, axes: Axes, **params: object) -> tuple[jax.Array, int | None]:
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
    value: ArrayLike,
    expected: BoxSize | None,
    *,
    operation: str,
    what: str,
    but: str,
    remedy: str,
    tolerance: float,
    comm: Communicator,
) -> jax.Array:
    """`passed`, on which the rest of the program depends, if `value` is `expected`.

    Otherwise an error says "`what` is 0.5, but `but` 0.1; `remedy`": a ValueError where both are
    known, or else a jax.errors.JaxRuntimeError when the program runs. Nothing is expected by None
    and by numbers that are not positive. The texts are the same on all ranks, and `tolerance` is
    relative.
    """
    if expected is None:
        return passed
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


def as_known(x: BoxSize) -> jax.Array | np.ndarray:
    """`x`, numbers that may be traced, as one array that stays known where all of them are."""
    if any(isinstance(leaf, Tracer) for leaf in jax.tree.leaves(x)):
        return jnp.asarray(x, float)
    return np.asarray(x, jnp.result_type(float))

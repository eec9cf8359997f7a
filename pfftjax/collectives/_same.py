"""same: values that all ranks must share, compared the first time a program runs.

A seed or a parameter that differs between ranks makes numbers that look right and mean nothing.
The operation is the identity, in its derivatives too; it looks at the value as it passes. Later
calls of a jitted program send nothing. Outside of jit, where each operation is a program of its
own and all of them are alike, and under ``PFFTJAX_CHECK=1``, each call compares.
"""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.interpreters import ad, batching, xla
from mpi4py import MPI

from . import _call_sites
from ._comm import Communicator, as_private
from ._primitive import check_dtype, communicating, elements

same_p = communicating(
    "same",
    result=lambda x, **_: x,
    agreement=lambda x, *, operation, what, each_call, **_: (
        f"{elements(x)} ({operation}: {what}{', on each call' if each_call else ''})"
    ),
    attributes=lambda *, each_call, operation, what, remedy: {
        "each_call": np.bool_(each_call),
        "operation": operation,
        "what": what,
        "remedy": remedy,
    },
    in_place=lambda *_, **__: True,
    has_place=True,
)


def _at_once(x: Any, **params: Any) -> Any:
    return xla.apply_primitive(same_p, x, **{**params, "each_call": True})


same_p.def_impl(_call_sites.noted("same", _at_once))


# Tangents and cotangents go by: they are those of the identity, and need not be alike.
def _jvp(primals: Any, tangents: Any, **params: Any) -> Any:
    return same_p.bind(*primals, **params), *tangents


def _batched(operands: Any, axes: Any, **params: Any) -> Any:
    return same_p.bind(*operands, **params), *axes


ad.primitive_jvps[same_p] = _jvp
ad.primitive_transposes[same_p] = lambda cotangent, _, **__: [cotangent]
batching.primitive_batchers[same_p] = _batched


def same(
    x: Any,
    what: str,
    *,
    operation: str = "same",
    remedy: str = "give every rank the same value",
    comm: MPI.Comm | Communicator | None = None,
) -> Any:
    """`x`, which must have the same bits on every rank.

    Every rank of `comm` takes part, as in any collective. The ranks compare a hash when a jitted
    program runs for the first time, and outside of jit on each call. Programs are told apart by
    their lists of collectives (`_first_call`): another one with an equal list is not a new one.

    Args:
        x: array, typed key of `jax.random`, or a pytree of these.
        what: what it is, as the subject of a sentence: "the key". Equal on all ranks.
        operation: the user's operation, with which an error begins. Equal on all ranks.
        remedy: what the user can do, as the end of a sentence. Equal on all ranks.
        comm: the ranks that share the value, `MPI.COMM_WORLD` by default.

    Returns:
        `x`, its leaves as arrays.

    Raises:
        jax.errors.JaxRuntimeError: when it runs, on every rank: the values differ. The text has
            two ranks that differ, and what they have.
        TypeError: a dtype that cannot be sent.

    Example:
        >>> float(same(3.5, "the answer"))
        3.5

    """
    comm = as_private(comm, operation)

    def passed(leaf: Any) -> jax.Array:
        leaf = jnp.asarray(leaf)
        if jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key):
            words = passed(jax.random.key_data(leaf))
            return jax.random.wrap_key_data(words, impl=jax.random.key_impl(leaf))
        check_dtype(leaf, operation, comm)
        if comm.size == 1:
            return leaf
        text = {"operation": operation, "what": what, "remedy": remedy}
        return same_p.bind(leaf, each_call=False, **text, comm=comm)

    return jax.tree.map(passed, x)

"""same: values that all ranks must share, compared the first time a program runs.

A seed or a parameter that differs between ranks makes numbers that look right and mean nothing.
The operation is the identity, in its derivatives too; it looks at the value as it passes. Later
calls of a jitted program send nothing. Outside of jit, where each operation is a program of its
own and all of them are alike, and under ``PFFTJAX_CHECK=1``, each call compares.

`same` wants the same bits. `compare` names arrays in its errors and lets ranks differ by rounding.
"""

from collections.abc import Iterable, Sequence
from typing import TypeVar

import jax
import jax.numpy as jnp
import numpy as np
from jax.interpreters import ad, xla
from jax.typing import ArrayLike

from pfftjax._runtime import call_sites
from pfftjax._runtime.arguments import check_dtype
from pfftjax._runtime.communicators import Comm, Communicator, as_private
from pfftjax._runtime.ffi import native
from pfftjax._runtime.first_call import NO_PLACE
from pfftjax._runtime.options import options
from pfftjax._runtime.primitive import communicating, elements
from pfftjax._runtime.rules import Tangents, batch_along

# The members say what the ranks' values are expected to be (cpp/collectives/same.h).
Expected = native.Expected
_Tree = TypeVar("_Tree")


same_p = communicating(
    "same",
    result=lambda x, **_: x,
    # Without the subject: ranks may have functions of their own that communicate alike.
    agreement=lambda x, *, operation, what, each_call, **_: (
        f"{elements(x)} ({operation}: {what}{', on each call' if each_call else ''})"
    ),
    attributes=lambda *, each_call, expected, operation, what, subject, labels, remedy: {
        **NO_PLACE,
        "each_call": np.bool_(each_call),
        "expected": np.int32(expected),
        "operation": operation,
        "what": f"{what} {subject}".strip(),
        "labels": labels,
        "remedy": remedy,
    },
    in_place=lambda *_, **__: {0: 0},
)


def _at_once(x: jax.Array, **params: object) -> jax.Array:
    return xla.apply_primitive(same_p, x, **{**params, "each_call": True})


same_p.def_impl(call_sites.noted("same", _at_once))


# Tangents and cotangents go by: they are those of the identity, and need not be alike.
def _jvp(
    primals: Sequence[ArrayLike], tangents: Tangents, **params: object
) -> tuple[jax.Array, ArrayLike | ad.Zero]:
    return same_p.bind(*primals, **params), tangents[0]


ad.primitive_jvps[same_p] = _jvp
ad.primitive_transposes[same_p] = lambda cotangent, _, **__: [cotangent]
# A batch goes in front: labels say what lies in one operand, and hold for each of the batch.
batch_along(same_p, (0, 0))


def _bind(
    x: jax.Array, expected: Expected, *, subject: str = "", labels: str = "", **params: object
) -> jax.Array:
    return same_p.bind(
        x, each_call=False, expected=int(expected), subject=subject, labels=labels, **params
    )


def same(
    x: _Tree,
    what: str,
    *,
    operation: str = "same",
    remedy: str = "give every rank the same value",
    comm: Comm = None,
) -> _Tree:
    """`x`, which must have the same bits on every rank.

    Every rank of `comm` takes part, as in any collective. The ranks compare a hash when a jitted
    program runs for the first time, and outside of jit on each call. Programs are told apart by
    their lists of collectives (first_call.py): another one with an equal list is not a new one.

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

    def passed(given: ArrayLike) -> jax.Array:
        leaf = jnp.asarray(given)
        if jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key):
            words = passed(jax.random.key_data(leaf))
            return jax.random.wrap_key_data(words, impl=jax.random.key_impl(leaf))
        check_dtype(leaf, operation, comm)
        if comm.size == 1:
            return leaf
        return _bind(
            leaf, Expected.SAME_BITS, operation=operation, what=what, remedy=remedy, comm=comm
        )

    return jax.tree.map(passed, x)


# Arrays of up to so many elements go together; a copy of larger ones would cost more.
_FEW = 1024


def compare(
    values: Iterable[tuple[str, ArrayLike]],
    what: str,
    subject: str,
    *,
    operation: str,
    remedy: str,
    comm: Communicator,
    expected: Expected = Expected.SAME,
) -> None:
    """Compare arrays over the ranks of `comm` when the program runs.

    Args:
        values: names for error messages, with arrays of any shape and of dtypes that can be sent.
        what: begins the error: "a shared argument".
        subject: goes on: "of power".
        operation: the user's operation.
        remedy: ends the error, a sentence.
        comm: the ranks.
        expected: how the values of the ranks should be related.

    """
    if comm.size == 1 or not (options.first_call or options.check):
        return
    groups: dict[object, list[tuple[str, jax.Array]]] = {}
    for name, value in values:
        array = jnp.asarray(value)
        if jnp.issubdtype(array.dtype, jax.dtypes.prng_key):
            array = jax.random.key_data(array)
        array = jax.lax.stop_gradient(array)
        if array.size:
            key = array.dtype if array.size <= _FEW else len(groups)
            groups.setdefault(key, []).append((name, array))
    for group in groups.values():
        flat = [array.ravel() for _, array in group]
        array = jnp.concatenate(flat) if len(flat) > 1 else flat[0]
        _bind(
            array,
            expected,
            operation=operation,
            what=what,
            subject=subject,
            labels="\n".join(f"{name}\t{array.size}" for name, array in group),
            remedy=remedy,
            comm=comm,
        )


def report_if_equal(cotangent: jax.Array, operation: str, comm: Communicator) -> None:
    """Under PFFTJAX_CHECK=1: say so if what is to be summed is equal on all ranks already.

    The sum over ranks of the cotangents of a value that has passed `replicate` before is one: it
    would be counted as often as there are ranks. Equal data on all ranks give equal cotangents
    too, and so this is a report, not an error.
    """
    compare(
        [("cotangent", cotangent)],
        f"the derivative of {operation} {elements(cotangent)} sums over the ranks a cotangent",
        "that is equal on all of them already",
        operation=operation,
        remedy=(
            "if the value, or what it was calculated from, has passed through replicate before, "
            f"its gradient is {comm.size} times too large: let it pass once, or differentiate by "
            "pfftjax.grad, which counts it once (docs/sharp-bits.md); equal data on all ranks are "
            "another, harmless reason"
        ),
        comm=comm,
        expected=Expected.DIFFERENT,
    )

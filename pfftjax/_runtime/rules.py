"""The rules of linear operations between ranks: derivatives, adjoints, and batches.

Rules bind primitives of pfftjax's: what JAX would derive by itself knows nothing of other ranks.
"""

from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

import jax
import jax.numpy as jnp
import numpy as np
from jax.extend.core import Primitive
from jax.interpreters import ad, batching
from jax.typing import ArrayLike

from .arrays import PyTree
from .communicators import Communicator

# The parameters of an equation, each of a type of its own.
Params: TypeAlias = dict[str, Any]
# JAX hands these to rules: the operands (small constants are NumPy arrays), their tangents, the
# operands of a linear function, of which some are unknown, and the batch axis of each.
Operands: TypeAlias = Sequence[jax.Array | np.ndarray]
Tangent: TypeAlias = jax.Array | ad.Zero
Tangents: TypeAlias = Sequence[jax.Array | np.ndarray | ad.Zero]
Primal: TypeAlias = ArrayLike | ad.UndefinedPrimal
Axes: TypeAlias = Sequence[int | None]
# Axis of the operand to which a batch axis is moved, and axis of the result at which it then
# appears, or (**params) -> these. One message carries the batch.
Batch: TypeAlias = tuple[int, int] | Callable[..., tuple[int, int | None]]
_BatchedParams: TypeAlias = Callable[[int, Params], Params]


def batch_along(
    primitive: Primitive, batch: Batch, batched_params: _BatchedParams = lambda _, params: params
) -> None:
    """Give a primitive of one operand its batching rule; the arguments are those of `linear`."""

    def batched(
        operands: Operands, axes: Sequence[int], **params: object
    ) -> tuple[PyTree, int | list[int] | None]:
        (x,), (axis,) = operands, axes
        into, out_of = batch(**params) if callable(batch) else batch
        result = primitive.bind(
            jnp.moveaxis(x, axis, into), **batched_params(x.shape[axis], params)
        )
        return result, [] if primitive.multiple_results else out_of

    batching.primitive_batchers[primitive] = batched


def batch_in_front(operands: Operands, axes: Axes) -> tuple[int, list[jax.Array]]:
    """The size of a batch, and its operands with that axis in front; what has none is repeated."""
    size = next(x.shape[d] for x, d in zip(operands, axes, strict=True) if d is not None)
    return size, [
        jnp.broadcast_to(x, (size, *x.shape)) if d is None else jnp.moveaxis(x, d, 0)
        for x, d in zip(operands, axes, strict=True)
    ]


def linear(
    primitive: Primitive,
    *,
    adjoint: Primitive | Callable[..., jax.Array],
    batch: Batch | None = None,
    batched_params: _BatchedParams = lambda _, params: params,
    check_differentiable: Callable[..., None] = lambda **_: None,
) -> None:
    """Give a primitive its derivative and batching rules.

    Args:
        primitive: linear in its first operand; the others (counts, say) have no derivative.
        adjoint: (cotangent, aval of the operand, *other operands, **params) -> cotangent of the
            operand, or the primitive which is that with the same parameters. It binds a
            primitive: a rule that returned the cotangent itself would be wrong one order up.
        batch: as above; None for a primitive whose batching rule is given elsewhere.
        batched_params: (size of the batch, params) -> params of the batched operation.
        check_differentiable: (**params), raises where there is no derivative.

    """

    def jvp(
        primals: Sequence[ArrayLike], tangents: Tangents, **params: object
    ) -> tuple[jax.Array, Tangent]:
        check_differentiable(**params)  # before anything is sent
        y = primitive.bind(*primals, **params)
        if isinstance(tangents[0], ad.Zero):
            return y, zero_tangent(y)
        return y, primitive.bind(tangents[0], *primals[1:], **params)

    def transpose(
        cotangent: Tangent, x: ad.UndefinedPrimal, *others: ArrayLike, **params: object
    ) -> list[jax.Array | None]:
        # Also for a cotangent that is known to be zero on this rank (a loss on one rank only):
        # the others wait for this one.
        cotangent = ad.instantiate_zeros(cotangent)
        back = (
            adjoint.bind(cotangent, *others, **params)
            if isinstance(adjoint, Primitive)
            else adjoint(cotangent, x.aval, *others, **params)
        )
        return [back, *[None] * len(others)]

    ad.primitive_jvps[primitive] = jvp
    ad.primitive_transposes[primitive] = transpose
    if batch is not None:
        batch_along(primitive, batch, batched_params)


def transposed_by(primitive: Primitive, other: Primitive, *, communicates: bool) -> None:
    """Make `other` the transpose of a primitive that is linear in its last operand."""

    def transpose(
        cotangent: Tangent, *operands: object, **params: object
    ) -> list[jax.Array | None]:
        if not communicates and isinstance(cotangent, ad.Zero):
            return [None] * len(operands)
        # Where it communicates, the others wait for this rank also if its cotangent is zero.
        back = other.bind(*operands[:-1], ad.instantiate_zeros(cotangent), **params)
        return [*[None] * (len(operands) - 1), back]

    ad.primitive_transposes[primitive] = transpose


def zero_tangent(y: jax.Array) -> ad.Zero:
    """The tangent of a result that does not depend on what is differentiated."""
    return ad.Zero(jax.typeof(y).to_tangent_aval())


def with_tangent(y: jax.Array, terms: Sequence[jax.Array]) -> tuple[jax.Array, Tangent]:
    """A result, and its tangent: the sum of `terms`."""
    return y, sum(terms[1:], terms[0]) if terms else zero_tangent(y)


def constant(primitive: Primitive) -> None:
    """Give a primitive the derivative of one whose result depends on no value: zero."""

    def jvp(primals: Sequence[ArrayLike], _: object, **params: object) -> tuple[PyTree, PyTree]:
        y = primitive.bind(*primals, **params)
        return y, jax.tree.map(zero_tangent, y)

    ad.primitive_jvps[primitive] = jvp


def on_root_only(result: jax.Array, x: jax.Array, root: int, comm: Communicator) -> jax.Array:
    """`result` on rank `root`, `x` elsewhere.

    Selected, not returned as it is: the derivative of the message must stay part of the program
    on every rank, or the root waits.
    """
    return result if comm.rank == root else jax.lax.select(np.False_, result, x)

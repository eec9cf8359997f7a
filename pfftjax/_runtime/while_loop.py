"""vmap of a `while_loop` whose condition communicates.

JAX batches a loop with a batched predicate by running it until no row wants to go on, and keeps
finished rows by evaluating the condition once more inside the body; it leaves that out for
conditions with effects, and finished rows are then silently changed. A loop that carries its
predicate has no communication in the condition, and JAX does it right.
"""

from collections.abc import Sequence
from typing import Any

import jax
from jax.extend.core import ClosedJaxpr, jaxpr_as_fun
from jax.extend.core.primitives import while_p
from jax.interpreters import batching
from jax.typing import ArrayLike

from .ordering import communication

_jax_rule = batching.fancy_primitive_batchers[while_p]


def _carry_the_predicate(
    axis_data: Any,
    args: Sequence[ArrayLike],
    dims: Sequence[int | None],
    *,
    cond_jaxpr: ClosedJaxpr,
    body_jaxpr: ClosedJaxpr,
    **params: Any,
) -> tuple[Sequence[ArrayLike], Sequence[int | None]]:
    if communication not in cond_jaxpr.effects:
        return _jax_rule(
            axis_data, args, dims, cond_jaxpr=cond_jaxpr, body_jaxpr=body_jaxpr, **params
        )
    condition = jaxpr_as_fun(cond_jaxpr)
    body = jaxpr_as_fun(body_jaxpr)
    first_body = params["cond_nconsts"]
    first_carry = first_body + params["body_nconsts"]

    def loop(*operands: ArrayLike) -> list[ArrayLike]:
        condition_constants = operands[:first_body]
        body_constants = operands[first_body:first_carry]

        def going_on(carry: list[ArrayLike]) -> ArrayLike:
            return condition(*condition_constants, *carry)[0]

        def step(state: tuple[ArrayLike, list[ArrayLike]]) -> tuple[ArrayLike, list[ArrayLike]]:
            carry = body(*body_constants, *state[1])
            return going_on(carry), carry

        start = list(operands[first_carry:])
        return jax.lax.while_loop(lambda state: state[0], step, (going_on(start), start))[1]

    batched = jax.vmap(
        loop,
        in_axes=tuple(dims),
        axis_size=axis_data.size,
        axis_name=axis_data.name,
        spmd_axis_name=axis_data.spmd_name,
    )
    results = batched(*args)
    return results, [0] * len(results)


def change_jax() -> None:
    """Put this rule in the place of JAX's own, which it calls where a condition is silent."""
    batching.fancy_primitive_batchers[while_p] = _carry_the_predicate

"""`jax.checkpoint` around operations that communicate.

JAX saves the result of every effectful operation, so that checkpointing a program full of
exchanges would save no memory. Repeating a collective in the backward pass is safe: every rank
repeats it at the same place. Where the backward pass does not need its result, JAX would repeat it
all the same, for its effect; as the first one has had that, all ranks leave the second one out.
"""

from collections.abc import Callable, Sequence
from typing import TypeAlias

import jax
import jax.numpy as jnp
from jax.extend.core import JaxprEqn, Primitive, Var
from jax.interpreters import partial_eval
from jax.typing import ArrayLike

_communicating: set[Primitive] = set()

# The equation in the program that is known and in the one that is staged for the backward pass,
# which of its results are unknown there and which have been instantiated, and the residuals.
_Split: TypeAlias = tuple[JaxprEqn | None, JaxprEqn | None, list[bool], list[bool], list[Var]]


def recompute(primitive: Primitive) -> None:
    """Let `jax.checkpoint` and its policies treat `primitive` as they treat any other."""
    _communicating.add(primitive)
    partial_eval.partial_eval_jaxpr_custom_rules[primitive] = _partial_eval
    partial_eval.dce_rules[primitive] = _drop_if_repeated


def never_repeat(primitive: Primitive) -> None:
    """Let `jax.checkpoint` keep what `primitive` gave, and not do it again.

    For messages, which the other rank would have to repeat as well, and for what can be done once.
    """
    # JAX itself does so with whatever has effects and no rule.
    partial_eval.partial_eval_jaxpr_custom_rules.pop(primitive, None)


def save_collectives(primitive: Primitive, *_: object, **__: object) -> bool:
    """Policy for `jax.checkpoint`: keep what was communicated, recompute the rest.

    For programs in which an exchange costs more than the memory for its result. Combine it with
    another policy by `jax.checkpoint_policies.save_from_both_policies`.

    Example:
        >>> import jax
        >>> from pfftjax.collectives import allreduce, save_collectives
        >>> f = jax.checkpoint(lambda x: allreduce(x**2) ** 2, policy=save_collectives)
        >>> float(jax.grad(f)(1.0)) > 0
        True

    """
    return primitive in _communicating


def select(condition: ArrayLike, x: ArrayLike, y: ArrayLike) -> jax.Array:
    """`jnp.where`, whose result depends on both in empty arrays, too.

    There `jnp.where` is `x`. A rank that has no part of a field or of a spectrum would need less
    than the others, and leave out collectives that they repeat.
    """
    dtype = jnp.result_type(x, y)
    return jax.lax.select(
        *jnp.broadcast_arrays(condition, jnp.asarray(x, dtype), jnp.asarray(y, dtype))
    )


def _partial_eval(
    saveable: Callable[..., object],
    unknown: Sequence[bool],
    instantiated: Sequence[bool],
    eqn: JaxprEqn,
) -> _Split:
    residuals = [
        var
        for var, is_ready in zip(eqn.invars, instantiated, strict=True)
        if isinstance(var, Var) and not is_ready
    ]
    outs = len(eqn.outvars)
    if any(unknown):
        return None, eqn, [True] * outs, [True] * outs, residuals
    verdict = saveable(eqn.primitive, *[var.aval for var in eqn.invars], **eqn.params)
    # Policies answer with a bool, or with a marker of JAX's: only its "save" keeps on the device.
    if verdict is True or type(verdict).__name__ == "SaveableType":
        return eqn, None, [False] * outs, [False] * outs, []
    return eqn, _repeated(eqn), [False] * outs, [True] * outs, residuals


# The scope in which the backward pass repeats what the forward pass has done.
_REPEATED = "pfftjax.repeated"


def _repeated(eqn: JaxprEqn) -> JaxprEqn:
    """The equation in that scope, in which it stays however often the program is traced again."""
    info = eqn.source_info
    return eqn.replace(source_info=info.replace(name_stack=info.name_stack.extend(_REPEATED)))


def _drop_if_repeated(used: list[bool], *rest: JaxprEqn) -> tuple[list[bool], JaxprEqn | None]:
    """JAX's rule for what a program does not use: which operands it needs, and what is left."""
    eqn = rest[-1]  # JAX 0.12 passes which operands are alive before it
    if _REPEATED in str(eqn.source_info.name_stack) and not any(used):
        return [False] * len(eqn.invars), None
    return [True] * len(eqn.invars), eqn

"""Functions whose reverse derivative is written by hand, and whose other derivatives are JAX's.

`jax.custom_vjp` gives up forward mode, and with it Hessian-vector products. Here the derivative
along a direction is one operation, which forward mode runs as JAX would, and which reverse mode
transposes by hand.
"""

import functools
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.core import ShapedArray
from jax.dtypes import float0
from jax.extend.core import Primitive
from jax.interpreters import ad, batching, mlir

from pfftjax._runtime.arrays import PyTree
from pfftjax._runtime.ordering import EFFECTS
from pfftjax._runtime.rematerialization import recompute
from pfftjax._runtime.rules import Axes, Operands, Tangents
from pfftjax.collectives.internal import traced, vjp_of_copies

# Both take and return flat lists of arrays; `back` takes `jax.vjp`, or its like, first.
Flat = Callable[..., Sequence[jax.Array]]


def differentiated_by_hand(
    run: Callable[[PyTree, PyTree], tuple[PyTree, PyTree]],
    forward: Callable[[PyTree, PyTree], tuple[tuple[PyTree, PyTree], PyTree]],
    backward: Callable[[PyTree, PyTree, PyTree, PyTree, Callable], PyTree],
) -> Callable[[PyTree, PyTree], tuple[PyTree, PyTree]]:
    """`run` with another way of differentiating it in reverse.

    Args:
        run: (moving, fixed) -> (moving results, fixed results). What moves are pytrees of
            floating-point arrays; what is fixed has no derivative, as integers.
        forward: (moving, fixed) -> (the results of `run`, what `backward` needs besides). Called
            in place of `run` where it is differentiated.
        backward: (moving, fixed, what `forward` has kept, cotangents of the moving results, vjp)
            -> cotangents of what moves. Differentiable itself, for higher derivatives. Its own
            reverse derivatives are taken by `vjp`, which is `jax.vjp` except below
            `pfftjax.grad`, where a sum over the ranks has another adjoint.

    Derivatives along a direction are those of `run`, to any order; so are those of the derivative
    in reverse, as `backward` is a function like any other.

    """

    @jax.custom_jvp
    def function(moving: PyTree, fixed: PyTree) -> tuple[PyTree, PyTree]:
        return run(moving, fixed)

    @function.defjvp
    def _(primals: Sequence[PyTree], tangents: Sequence[PyTree]) -> tuple[PyTree, PyTree]:
        moving, fixed = primals
        (results, others), kept = forward(moving, fixed)
        operands, structure = jax.tree.flatten((moving, fixed, kept))
        directions, of_moving = jax.tree.flatten(tangents[0])
        leaves, of_results = jax.tree.flatten(results)

        def along(*values: Any) -> list[jax.Array]:
            at, given, _ = jax.tree.unflatten(structure, values[: len(operands)])
            way = jax.tree.unflatten(of_moving, values[len(operands) :])
            return jax.tree.leaves(jax.jvp(lambda x: run(x, given)[0], (at,), (way,))[1])

        def back(vjp: Callable, *values: Any) -> list[jax.Array]:
            at, given, others = jax.tree.unflatten(structure, values[: len(operands)])
            cotangents = jax.tree.unflatten(of_results, values[len(operands) :])
            return jax.tree.leaves(backward(at, given, others, cotangents, vjp))

        changes = by_hand_p.bind(
            *operands,
            *directions,
            kept=len(operands),
            results=tuple(ShapedArray(x.shape, x.dtype) for x in leaves),
            along=along,
            back=back,
            of_copies=False,
        )
        no_changes = jax.tree.map(lambda x: np.zeros(np.shape(x), float0), others)
        return (results, others), (jax.tree.unflatten(of_results, changes), no_changes)

    return function


# operands on which the derivative depends, a direction -> the change of the results
by_hand_p = Primitive("differentiated_by_hand")
by_hand_p.multiple_results = True


def _changes(*operands: Any, along: Flat, of_copies: bool, **_: object) -> Sequence[jax.Array]:
    # The derivative along a direction is the same program for copies and without them. What is
    # made of it by transposition is not.
    return traced(along, *operands)(*operands) if of_copies else along(*operands)


by_hand_p.def_impl(
    lambda *operands, **params: jax.jit(functools.partial(_changes, **params))(*operands)
)
by_hand_p.def_effectful_abstract_eval(lambda *_, results, **__: (list(results), EFFECTS))
mlir.register_lowering(by_hand_p, mlir.lower_fun(_changes, multiple_results=True), cacheable=False)
recompute(by_hand_p)


def _jvp(
    primals: Operands, tangents: Tangents, **params: Any
) -> tuple[Sequence[jax.Array], Sequence[jax.Array]]:
    def direction(x: Any, tangent: Any) -> object:
        if not isinstance(tangent, ad.Zero):
            return tangent
        is_real = jnp.issubdtype(jnp.result_type(x), jnp.inexact)
        return jnp.zeros_like(x) if is_real else np.zeros(np.shape(x), float0)

    directions = [direction(x, t) for x, t in zip(primals, tangents, strict=True)]
    changes = functools.partial(_changes, **params)
    return jax.jvp(lambda *x: list(changes(*x)), tuple(primals), tuple(directions))


def _transpose(
    cotangents: Tangents,
    *operands: Any,
    kept: int,
    results: Sequence[ShapedArray],
    back: Flat,
    of_copies: bool,
    **_: object,
) -> list[jax.Array | None]:
    given = [
        jnp.zeros(aval.shape, aval.dtype) if isinstance(x, ad.Zero) else x
        for x, aval in zip(cotangents, results, strict=True)
    ]
    values = *operands[:kept], *given
    if of_copies:
        found = traced(functools.partial(back, vjp_of_copies), *values)(*values)
    else:
        found = back(jax.vjp, *values)
    # A direction that is known, as zero, needs no cotangent.
    wanted = [ad.is_undefined_primal(x) for x in operands[kept:]]
    return [None] * kept + [x if w else None for x, w in zip(found, wanted, strict=True)]


def _batch(
    operands: Operands,
    axes: Axes,
    *,
    kept: int,
    results: Sequence[ShapedArray],
    along: Flat,
    back: Flat,
    of_copies: bool,
) -> tuple[Sequence[jax.Array], list[int]]:
    (size,) = {x.shape[axis] for x, axis in zip(operands, axes, strict=True) if axis is not None}

    def all_back(vjp: Callable, *values: Any) -> list[jax.Array]:
        mapped = jax.vmap(
            functools.partial(back, vjp), in_axes=(*axes[:kept], *(0 for _ in results))
        )
        found = mapped(*values)
        return [
            x.sum(0) if axis is None else jnp.moveaxis(x, 0, axis)
            for x, axis in zip(found, axes[kept:], strict=True)
        ]

    changes = by_hand_p.bind(
        *operands,
        kept=kept,
        results=tuple(ShapedArray((size, *x.shape), x.dtype) for x in results),
        along=jax.vmap(along, in_axes=tuple(axes)),
        back=all_back,
        of_copies=of_copies,
    )
    return changes, [0] * len(results)


ad.primitive_jvps[by_hand_p] = _jvp
ad.primitive_transposes[by_hand_p] = _transpose
batching.primitive_batchers[by_hand_p] = _batch

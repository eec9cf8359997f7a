"""Programs in which every rank's copy of a value is a variable of its own.

The derivatives of `allreduce` and `replicate` hold where the user keeps book of which values are
one for all ranks. A value that passes `replicate` twice, or not at all, has a wrong gradient, and
nothing local can tell. No book is needed where the P processes are taken for what they are: one
program with P times as many variables. Its operations have exact adjoints: that of the sum is the
sum, and `replicate` is nothing. `with_copies` makes such a program out of a traced one. It
computes the same; docs/theory/adjoints.md says why its derivatives are right.
"""

import weakref
from collections.abc import Callable, Sequence

import jax
import jax.numpy as jnp
import numpy as np
from jax.extend.core import ClosedJaxpr, Jaxpr, JaxprEqn, jaxpr_as_fun
from jax.interpreters import ad, batching, mlir
from jax.typing import ArrayLike

from pfftjax._runtime.arrays import PyTree
from pfftjax._runtime.primitive import like_operand, local

from ._allreduce import allreduce_of_copies_p, allreduce_p, replicate_of_copies_p, replicate_p

_OF_COPIES = {allreduce_p: allreduce_of_copies_p, replicate_p: replicate_of_copies_p}

# One new program for each old one: JAX finds compiled loops and functions by the identity of their
# programs. None for one that need not change (a reference to itself would keep it for ever).
_made: weakref.WeakKeyDictionary[Jaxpr, Jaxpr | None] = weakref.WeakKeyDictionary()


def with_copies(program: PyTree) -> PyTree:
    """The same program, whose derivatives are those of all ranks' copies.

    Args:
        program: a (closed) jaxpr, or parameters of an equation: tuples and lists are searched,
            and other values returned as they are.

    Raises:
        NotImplementedError: a `jax.custom_vjp` function that calls `allreduce` or `replicate`, or
            whose rule does; in reverse mode, a linear solve whose operator does.

    """
    # First: from JAX 0.12 on the two are one class, whose constants are part of it.
    if isinstance(program, Jaxpr):
        if program not in _made:
            eqns = [_equation(eqn) for eqn in program.eqns]
            is_same = all(new is old for new, old in zip(eqns, program.eqns, strict=True))
            _made[program] = None if is_same else program.replace(eqns=eqns)
        return _made[program] or program
    if isinstance(program, ClosedJaxpr):
        inner = with_copies(program.jaxpr)
        return program if inner is program.jaxpr else program.replace(jaxpr=inner)
    if isinstance(program, (tuple, list)):
        parts = [with_copies(part) for part in program]
        if all(new is old for new, old in zip(parts, program, strict=True)):
            return program
        make = type(program)
        return make(*parts) if hasattr(program, "_fields") else make(parts)
    return program


def _equation(eqn: JaxprEqn) -> JaxprEqn:
    of_copies = _OF_COPIES.get(eqn.primitive)
    if of_copies is not None:
        return eqn.replace(primitive=of_copies)
    params = {name: with_copies(value) for name, value in eqn.params.items()}
    if params.get("of_copies") is False:
        # This operation differentiates functions of its own, and has to be told.
        return eqn.replace(params={**params, "of_copies": True})
    is_same = all(value is eqn.params[name] for name, value in params.items())
    if eqn.primitive.name.startswith("custom_vjp_call"):
        if is_same and not _sums_on_the_way_back(eqn):
            return eqn
        raise NotImplementedError(
            "pfftjax.grad: a function with a jax.custom_vjp rule, or the rule, calls allreduce or "
            "replicate, and its backward pass may or may not sum over the ranks what pfftjax.grad "
            "sums; keep these two outside of both, give the function a jax.custom_jvp rule, or "
            "differentiate by jax.grad and pass shared parameters through replicate yourself"
        )
    if is_same:
        return eqn
    if eqn.primitive.name == "custom_linear_solve":
        solve = eqn.params["jaxprs"]
        # Solvers are not differentiated, and go on as they are.
        return _one_way(eqn) if _changes((solve.matvec, solve.vecmat)) else eqn
    if eqn.primitive.name.startswith("custom_jvp_call"):
        return _custom_jvp(eqn, params["call_jaxpr"])
    return eqn.replace(params=params)


def _original(eqn: JaxprEqn) -> Callable[..., Sequence[jax.Array]]:
    """What an equation with a rule of its own computes; differentiated, it follows that rule."""

    def original(*args: ArrayLike) -> Sequence[jax.Array]:
        given = eqn.primitive.get_bind_params(eqn.params)
        functions, params = given if isinstance(given, tuple) else ((), given)
        return eqn.primitive.bind(*functions, *args, **params)

    return original


def _sums_on_the_way_back(eqn: JaxprEqn) -> bool:
    """Whether the rule of a `jax.custom_vjp` function calls `allreduce` or `replicate`."""

    def back(*primals: ArrayLike) -> Sequence[jax.Array]:
        results, pullback = jax.vjp(_original(eqn), *primals)
        return pullback([_cotangent(result) for result in results])

    try:
        rule = jax.make_jaxpr(back)(*(var.aval for var in eqn.invars))
    except Exception:
        # The rule refuses, as some do on purpose. If it is ever taken, it says so itself.
        return False
    return _changes(rule)


def _changes(program: PyTree) -> bool:
    """Whether `with_copies` would change a program, whatever the rules of its functions do.

    Forward rules call the function that they are of, so that to look into their rules has no end.
    """
    if isinstance(program, Jaxpr):
        return any(
            eqn.primitive in _OF_COPIES
            or eqn.params.get("of_copies") is False
            or any(map(_changes, eqn.params.values()))
            for eqn in program.eqns
        )
    if isinstance(program, ClosedJaxpr):
        return _changes(program.jaxpr)
    return isinstance(program, (tuple, list)) and any(map(_changes, program))


def _cotangent(result: jax.Array) -> jax.Array | np.ndarray:
    if jnp.issubdtype(result.dtype, jnp.inexact):
        return jnp.ones_like(result)
    return np.zeros(result.shape, jax.dtypes.float0)


def _custom_jvp(eqn: JaxprEqn, program: ClosedJaxpr) -> JaxprEqn:
    """A function with a rule of its own, both changed."""
    original = _original(eqn)

    @jax.custom_jvp
    def changed(*args: ArrayLike) -> Sequence[jax.Array]:
        return jaxpr_as_fun(program)(*args)

    @changed.defjvp
    def _(
        primals: Sequence[ArrayLike], tangents: Sequence[ArrayLike]
    ) -> tuple[Sequence[jax.Array], Sequence[jax.Array]]:
        rule = jax.make_jaxpr(lambda *both: jax.jvp(original, *both))(primals, tangents)
        results = jaxpr_as_fun(with_copies(rule))(*primals, *tangents)
        return results[: len(results) // 2], results[len(results) // 2 :]

    (new,) = jax.make_jaxpr(changed)(*(var.aval for var in eqn.invars)).eqns
    return eqn.replace(params=new.params)


# The identity, of which reverse mode is refused.
_one_way_p = local("one_way_solve", like_operand)
mlir.register_lowering(_one_way_p, lambda _, x: [x])
batching.primitive_batchers[_one_way_p] = lambda xs, axes: (_one_way_p.bind(*xs), axes[0])


def _no_way_back(*_: object) -> Sequence[jax.Array]:
    raise NotImplementedError(
        "pfftjax.grad: the operator of a linear solve (jax.lax.custom_linear_solve, or one of "
        "jax.scipy.sparse.linalg) calls allreduce or replicate. With every rank's copy of a "
        "vector as a variable of its own it is another operator, whose transpose that solver does "
        "not have; differentiate by pfftjax.jacfwd or pfftjax.jvp, or by jax.grad, with replicate "
        "once on the way from what all ranks share, as the vector does, to what differs"
    )


ad.deflinear2(_one_way_p, _no_way_back)


def _one_way(eqn: JaxprEqn) -> JaxprEqn:
    """A linear solve, as it is, that forward mode may follow."""

    @jax.jit
    def solved(*args: ArrayLike) -> list[jax.Array]:
        return [_one_way_p.bind(x) for x in _original(eqn)(*args)]

    (new,) = jax.make_jaxpr(solved)(*(var.aval for var in eqn.invars)).eqns
    return eqn.replace(primitive=new.primitive, params=new.params, effects=new.effects)


def traced(
    function: Callable[..., Sequence[object]], *args: object
) -> Callable[..., list[jax.Array]]:
    """`function`, traced for `args`, with every rank's copies as variables of their own.

    Args:
        function: of pytrees of arrays, to a list of arrays.
        args: what it is traced for.

    Returns:
        A function of the same arguments.

    """
    run = jaxpr_as_fun(with_copies(jax.make_jaxpr(function)(*args)))
    return lambda *args: run(*jax.tree.leaves(args))


def vjp_of_copies(
    function: Callable[..., PyTree], *primals: PyTree
) -> tuple[PyTree, Callable[[PyTree], tuple[PyTree, ...]]]:
    """`jax.vjp` of a function that every rank's copies enter as variables of their own."""
    program, results = jax.make_jaxpr(function, return_shape=True)(*primals)
    run, structure = jaxpr_as_fun(with_copies(program)), jax.tree.structure(results)

    def changed(*primals: PyTree) -> PyTree:
        return jax.tree.unflatten(structure, run(*jax.tree.leaves(primals)))

    return jax.vjp(changed, *primals)

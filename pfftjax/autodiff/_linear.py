"""Derivatives along a direction, and their transposes: jvp, linearize, vjp."""

from collections.abc import Sequence

import jax

from pfftjax._runtime.arrays import PyTree
from pfftjax._runtime.communicators import Comm

from ._function import Declaration, OverRanks
from ._ownership import Arguments, Function, Key


def _over_ranks(
    function: Function, primals: Sequence[PyTree], name: str, declaration: Declaration
) -> OverRanks:
    operation = f"pfftjax.{name}"
    if not isinstance(primals, (tuple, list)):
        raise TypeError(f"{operation}: primals must be a tuple or a list, got {primals!r}")
    arguments: dict[Key, PyTree] = dict(enumerate(primals))
    positions = tuple(range(len(primals)))
    return OverRanks(function, positions, arguments, declaration, operation)


def jvp(
    fun: Function,
    primals: Sequence[PyTree],
    tangents: Sequence[PyTree],
    shared: Arguments = (),
    *,
    own: Arguments = (),
    shared_result: PyTree = True,
    has_aux: bool = False,
    comm: Comm = None,
) -> tuple[PyTree, ...]:
    """Value and derivative along a direction, as `jax.jvp`.

    Forward mode needs no sum over the ranks: where each rank's copy of a shared argument moves in
    the same direction, the ranks' results move as they should. It is here because it compares
    these directions over the ranks, and because what it returns may be differentiated in reverse.

    `primals` is a tuple of the arguments of `fun`, which may return an array of any shape, or a
    pytree. `tangents` is the direction, in the same shapes; of shared arguments it is the same on
    every rank. `shared_result` says whether what `fun` returns is the same on every rank: False
    for each rank's own blocks, or a tree of booleans. The others are those of `value_and_grad`.

    Returns:
        (value, derivative), with `has_aux` (value, derivative, aux).

    Raises:
        jax.errors.JaxRuntimeError: as `value_and_grad`; also for tangents that differ.

    Others as `value_and_grad`.

    Example:
        >>> import jax.numpy as jnp
        >>> from pfftjax.autodiff import grad
        >>> from pfftjax.collectives import allreduce
        >>> def loss(x):
        ...     return allreduce(jnp.sum(x**3))
        >>> x, v = jnp.ones(2), jnp.array([1.0, 2.0])
        >>> product = jvp(grad(loss, own=0), (x,), (v,), own=0, shared_result=False)[1]
        >>> product.tolist()
        [6.0, 12.0]

    """
    declaration = Declaration(shared, own, shared_result, has_aux, comm)
    whole = _over_ranks(fun, primals, "jvp", declaration)
    tangents = tuple(tangents)
    if len(tangents) == len(whole.primals):
        whole.compare_tangents(tangents)
    result = jax.jvp(whole, whole.primals, tangents, has_aux=has_aux)
    whole.warn()
    return result


def linearize(
    fun: Function,
    *primals: PyTree,
    shared: Arguments = (),
    own: Arguments = (),
    shared_result: PyTree = True,
    has_aux: bool = False,
    comm: Comm = None,
) -> tuple[PyTree, ...]:
    """Value and linear approximation, as `jax.linearize`: `jvp` for several directions.

    Its arguments are those of `jvp`, with the `primals` one by one, and without `tangents`.

    Returns:
        (value, function of the tangents), with `has_aux` (value, function, aux). The function is
        linear, and may be transposed by `jax.linear_transpose`. Tangents are not compared.

    Raises, and warns, as `jvp`.

    Example:
        >>> import jax.numpy as jnp
        >>> from mpi4py import MPI
        >>> from pfftjax.collectives import allreduce
        >>> value, along = linearize(lambda t: allreduce(t**2), 3.0, shared=0)
        >>> float(along(1.0)) == 6.0 * MPI.COMM_WORLD.size
        True

    """
    declaration = Declaration(shared, own, shared_result, has_aux, comm)
    whole = _over_ranks(fun, primals, "linearize", declaration)
    result = jax.linearize(whole, *whole.primals, has_aux=has_aux)
    whole.warn()
    return result


def vjp(
    fun: Function,
    *primals: PyTree,
    shared: Arguments = (),
    own: Arguments = (),
    shared_result: PyTree = True,
    has_aux: bool = False,
    comm: Comm = None,
) -> tuple[PyTree, ...]:
    """Value and its derivative in reverse, as `jax.vjp`.

    Its arguments are those of `linearize`. `shared_result` says whether what `fun` returns is the
    same on every rank, one value, whose cotangent is one value too; it is False for each rank's
    own blocks, whose cotangents are blocks, or a tree of booleans.

    Returns:
        (value, function from a cotangent to cotangents of the arguments), with `has_aux`
        (value, function, aux). Those of shared arguments are whole, on every rank.

    Raises, and warns, as `jvp`.

    Example:
        >>> import jax.numpy as jnp
        >>> from mpi4py import MPI
        >>> rank, size = MPI.COMM_WORLD.rank, MPI.COMM_WORLD.size
        >>> value, back = vjp(lambda t: rank * t, 3.0, shared=0, shared_result=False)
        >>> float(back(1.0)[0]) == sum(range(size))
        True

    """
    declaration = Declaration(shared, own, shared_result, has_aux, comm)
    whole = _over_ranks(fun, primals, "vjp", declaration)
    result = jax.vjp(whole, *whole.primals, has_aux=has_aux)
    whole.warn()
    return result

"""allreduce and replicate: into and out of values that are equal on all ranks.

A value that is equal on all ranks (a total loss, a cosmological parameter) is one value, not one
a rank. `allreduce` makes such a value, and its cotangent, one again, is wanted on every rank as it
is: `replicate`. `replicate` brings such a value into work that differs between ranks, and the
cotangents of that work add up: `allreduce`. The two are each other's adjoints in this sense.
docs/theory/adjoints.md has the derivation and an example that goes wrong without it.
"""

import functools
from collections.abc import Callable
from typing import TypeVar, overload

import jax
import jax.numpy as jnp
import numpy as np
from jax.extend.core import Primitive
from jax.interpreters import ad, mlir
from jax.typing import ArrayLike
from mpi4py import MPI

from pfftjax._runtime.arguments import as_array, over_leaves, where
from pfftjax._runtime.arrays import PyTree
from pfftjax._runtime.communicators import Comm, Communicator, as_private
from pfftjax._runtime.first_call import NO_PLACE
from pfftjax._runtime.options import options
from pfftjax._runtime.primitive import communicating
from pfftjax._runtime.rules import Operands, Tangent, Tangents, linear

from ._reduction import MAX, MIN, SUM, elements_and_op, is_location, only_sums, reducible
from ._same import Expected, report_if_equal

_Tree = TypeVar("_Tree")


def _reducing() -> Primitive:
    return communicating("allreduce", agreement=elements_and_op, attributes={"op": np.int32})


allreduce_p = _reducing()


def _unchanged() -> Primitive:
    """`replicate`: under PFFTJAX_CHECK=1 it compares the bytes over all ranks."""
    if options.check:
        return communicating(
            "replicate",
            result=lambda x, **_: x,
            attributes=lambda **_: {
                **NO_PLACE,
                "each_call": np.bool_(True),
                "expected": np.int32(Expected.SAME_BITS),
                "operation": "replicate",
                "what": "a value (or, under grad, the cotangent of an allreduce)",
                "labels": "",
                "remedy": (
                    "pass replicated values into rank-dependent work through replicate, and use "
                    "the result of allreduce alike on every rank"
                ),
            },
        )
    # What is replicated needs no message.
    primitive = Primitive("replicate")
    primitive.def_impl(lambda x, **_: x)
    primitive.def_abstract_eval(lambda x, **_: x)
    mlir.register_lowering(primitive, lambda ctx, x, **_: [x])
    return primitive


replicate_p = _unchanged()

# The same two where every rank's copy of a value is a variable of its own (_copies.py): the exact
# adjoint of the sum is the sum, and nothing has to be said of a value that is equal everywhere.
allreduce_of_copies_p = _reducing()
replicate_of_copies_p = _unchanged()


def _differentiable(primitive: Primitive, adjoint: Primitive | Callable[..., jax.Array]) -> None:
    """Give an allreduce its rules."""
    check = functools.partial(only_sums, "allreduce")
    linear(primitive, batch=(0, 0), adjoint=adjoint, check_differentiable=check)
    jvp_of_sum = ad.primitive_jvps[primitive]

    def jvp(
        primals: Operands, tangents: Tangents, *, op: int, comm: Communicator
    ) -> tuple[jax.Array, Tangent]:
        (x,), (tangent,) = primals, tangents
        if op not in (MIN, MAX):
            return jvp_of_sum(primals, tangents, op=op, comm=comm)
        # Elements that attain the extreme share it: the mean of their tangents, as in jnp.max.
        y = primitive.bind(x, op=op, comm=comm)
        attained = (x == y).astype(x.dtype)
        number = primitive.bind(attained, op=SUM, comm=comm)
        return y, primitive.bind(tangent * (attained / number), op=SUM, comm=comm)

    ad.primitive_jvps[primitive] = jvp


def _sum_of_contributions(cotangent: jax.Array, _: object, *, comm: Communicator) -> jax.Array:
    if options.check:
        report_if_equal(cotangent, "replicate", comm)
    return allreduce_p.bind(cotangent, op=SUM, comm=comm)


_differentiable(
    allreduce_p, lambda cotangent, _, *, op, comm: replicate_p.bind(cotangent, comm=comm)
)
_differentiable(allreduce_of_copies_p, allreduce_of_copies_p)
linear(replicate_p, batch=(0, 0), adjoint=_sum_of_contributions)
linear(replicate_of_copies_p, batch=(0, 0), adjoint=lambda cotangent, _, **__: cotangent)


@overload
def allreduce(x: ArrayLike, op: MPI.Op = MPI.SUM, *, comm: Comm = None) -> jax.Array: ...
@overload
def allreduce(x: _Tree, op: MPI.Op = MPI.SUM, *, comm: Comm = None) -> _Tree: ...
def allreduce(x: PyTree, op: MPI.Op = MPI.SUM, *, comm: Comm = None) -> PyTree:
    """Reduce the arrays of all ranks; every rank gets the result.

    Args:
        x: array of any shape, of the same size and dtype on every rank, or a pytree of arrays.
            For `MPI.MAXLOC` and `MPI.MINLOC` a pair (values, integer indices) of equal shape.
        op: one of MPI's reductions, or one made by `MPI.Op.Create`. On booleans sums are "or",
            products "and". A NaN wins every minimum and maximum.
        comm: communicator, `MPI.COMM_WORLD` by default.

    Returns:
        Array of the shape and dtype of `x`, equal on every rank; for `MPI.MAXLOC` and
        `MPI.MINLOC` the pair of the extremes and of the smallest index where each is attained.

    Raises:
        ValueError: an `op` that means nothing for arrays.
        TypeError: a dtype that cannot be sent or that `op` is not defined for; the derivative of
            any `op` but `MPI.SUM`, `MPI.MIN` and `MPI.MAX`.

    The derivative takes the result for one value, the same for all ranks: the gradient of
    ``allreduce(local_loss)`` is the gradient of the total loss. Parameters that such a loss
    depends on on every rank go through `replicate` first. The derivative of an extreme is shared
    out equally over the ranks that attain it, as that of `jax.numpy.max` over elements.

    Example:
        >>> import jax
        >>> from mpi4py import MPI
        >>> float(allreduce(2.0)) == 2.0 * MPI.COMM_WORLD.size
        True
        >>> float(jax.grad(lambda x: allreduce(x**2))(3.0))
        6.0

    """
    if is_location(op):
        return _extreme_with_location(x, op, comm)
    return _allreduce(x, op, comm=comm)


@over_leaves
def _allreduce(x: ArrayLike, op: MPI.Op, *, comm: Comm) -> jax.Array:
    comm = as_private(comm, "allreduce")
    x, params = reducible(x, op, "allreduce", comm)
    return allreduce_p.bind(x, **params)


def _extreme_with_location(pair: object, op: MPI.Op, comm: Comm) -> tuple[jax.Array, jax.Array]:
    comm = as_private(comm, "allreduce")
    if not isinstance(pair, tuple) or len(pair) != 2:
        raise TypeError(
            f"{where('allreduce', comm)}: MPI.MAXLOC and MPI.MINLOC take a pair (values, indices)"
        )
    values, indices = (as_array(x, "allreduce", comm) for x in pair)
    if values.shape != indices.shape or not jnp.issubdtype(indices.dtype, jnp.integer):
        raise TypeError(
            f"{where('allreduce', comm)}: the indices of MPI.MAXLOC and MPI.MINLOC must be "
            f"integers in the shape of the values, {values.shape}, got {indices.dtype} of shape "
            f"{indices.shape}"
        )
    extreme = _allreduce(values, MPI.MAX if op == MPI.MAXLOC else MPI.MIN, comm=comm)
    is_here = (values == extreme) | (values != values)  # a NaN is the extreme, and unlike itself
    most = np.asarray(jnp.iinfo(indices.dtype).max, indices.dtype)
    return extreme, _allreduce(jnp.where(is_here, indices, most), MPI.MIN, comm=comm)


@over_leaves
def replicate(x: ArrayLike, *, comm: Comm = None) -> jax.Array:
    """Bring a value that is equal on all ranks into work that differs between ranks.

    The identity; no message is sent. Its adjoint is ``allreduce``: each rank's work contributes to
    the cotangent of the one value. Without it the gradient with respect to a shared parameter is
    only this rank's part.

    Args:
        x: array, or a pytree of arrays, equal on every rank (``PFFTJAX_CHECK=1`` verifies it).
        comm: the ranks that share the value, `MPI.COMM_WORLD` by default.

    Returns:
        `x`.

    Raises:
        TypeError: a dtype that cannot be sent.

    Example:
        >>> import jax
        >>> from mpi4py import MPI
        >>> rank, size = MPI.COMM_WORLD.rank, MPI.COMM_WORLD.size
        >>> def total(theta):
        ...     return allreduce(rank * replicate(theta))
        >>> float(jax.grad(total)(1.0)) == sum(range(size))
        True

    """
    comm = as_private(comm, "replicate")
    # A Python number stays one, which makes no float64 out of the float32 that it meets.
    return replicate_p.bind(as_array(x, "replicate", comm, weak=True), comm=comm)

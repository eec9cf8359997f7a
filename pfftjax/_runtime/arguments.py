"""The arguments of operations: checked, with errors that name the operation and the rank."""

import functools
import operator
from collections.abc import Callable
from typing import (
    Any,
    Concatenate,
    ParamSpec,
    Protocol,
    SupportsIndex,
    TypeVar,
    overload,
    runtime_checkable,
)

import jax
import jax.numpy as jnp
import numpy as np
from jax.typing import ArrayLike

from .arrays import PyTree
from .communicators import Communicator
from .ffi import native

_P = ParamSpec("_P")
_Tree = TypeVar("_Tree")

_DTYPES = frozenset(np.dtype(name) for name in native.elements)


def where(operation: str, comm: Communicator) -> str:
    """How an error begins: the operation and the rank."""
    return f"{operation} on rank {comm.rank} of {comm.size}"


def as_array(x: ArrayLike, operation: str, comm: Communicator, *, weak: bool = False) -> jax.Array:
    """`x` as a JAX array of a dtype that can be sent; with `weak`, a weak type is kept."""
    array = jnp.asarray(x)
    check_dtype(array, operation, comm)
    # A Python number has a weak type, which jitted code would not keep either.
    return array.astype(array.dtype) if array.weak_type and not weak else array


def check_dtype(array: jax.Array, operation: str, comm: Communicator) -> None:
    """Refuse a dtype that cannot be sent."""
    if array.dtype not in _DTYPES:
        remedy = (
            "send jax.random.key_data(x) and wrap it again"
            if jnp.issubdtype(array.dtype, jax.dtypes.prng_key)
            else "cast it first"
        )
        raise TypeError(f"{where(operation, comm)}: dtype {array.dtype} cannot be sent; {remedy}")


def static_int(value: object, name: str, operation: str, comm: Communicator) -> int:
    """`value` as a Python int; it is part of the compiled program."""
    try:
        if isinstance(value, SupportsIndex):
            return operator.index(value)
    except TypeError:
        pass
    raise TypeError(
        f"{where(operation, comm)}: {name} must be a static integer, got {value!r}; it is part of "
        "the compiled program (pass it as a Python int, or make it a static argument)"
    )


def static_ints(values: Any, name: str, operation: str, comm: Communicator) -> tuple[int, ...]:
    """`values` as Python ints; nothing is rounded."""
    try:
        return tuple(operator.index(value) for value in values)
    except TypeError:
        raise TypeError(
            f"{where(operation, comm)}: {name} must be static integers, got {values!r}"
        ) from None


def root_rank(root: object, operation: str, comm: Communicator) -> int:
    """`root`, checked."""
    root = static_int(root, "root", operation, comm)
    if not 0 <= root < comm.size:
        raise ValueError(
            f"{where(operation, comm)}: root is {root}, but the ranks are 0 to {comm.size - 1}"
        )
    return root


def one_entry_a_rank(x: jax.Array, operation: str, comm: Communicator) -> None:
    """Check that axis 0 of `x` counts the ranks."""
    if x.ndim < 1 or x.shape[0] != comm.size:
        raise ValueError(
            f"{where(operation, comm)}: {operation.capitalize()} input must have shape "
            f"(nproc, ...), one entry for each of the {comm.size} ranks, got shape {x.shape}; "
            f"reshape it to ({comm.size}, ...)"
        )


@runtime_checkable
class OverLeaves(Protocol[_P]):
    """An operation on one array, or on each array of a pytree, which stays as it is built."""

    @overload
    def __call__(self, x: ArrayLike, /, *args: _P.args, **kwargs: _P.kwargs) -> jax.Array: ...
    @overload
    def __call__(self, x: _Tree, /, *args: _P.args, **kwargs: _P.kwargs) -> _Tree: ...


def over_leaves(operation: Callable[Concatenate[ArrayLike, _P], jax.Array]) -> OverLeaves[_P]:
    """Let `operation`, on one array, take a pytree of arrays: one call for each leaf, in order."""

    @functools.wraps(operation)
    def on_tree(x: PyTree, *arguments: _P.args, **options: _P.kwargs) -> PyTree:
        if isinstance(x, jax.Array) or jax.tree_util.all_leaves([x]):
            return operation(x, *arguments, **options)
        if x is None:
            raise TypeError(f"{operation.__name__.strip('_')}: x is None; give an array")
        return jax.tree.map(lambda leaf: operation(leaf, *arguments, **options), x)

    return on_tree

"""Which arguments are the same on every rank, and which are each rank's own part."""

import dataclasses
import enum
import inspect
import operator
import warnings
from collections.abc import Callable, Collection, Mapping
from typing import SupportsIndex, TypeAlias

import jax
import jax.numpy as jnp

from pfftjax._runtime.arguments import where
from pfftjax._runtime.arrays import PyTree
from pfftjax._runtime.communicators import Communicator
from pfftjax._runtime.user_code import stacklevel
from pfftjax.pencils.internal import is_block, is_distributed


class UndeclaredArgumentWarning(UserWarning):
    """An argument is differentiated, and nobody has said what it is on the other ranks.

    It is no block of a pencil, and neither in ``shared`` nor in ``own``. If it is the same on
    every rank, its gradient is only this rank's part. Said once for each argument, on rank 0.

    Example:
        >>> import warnings
        >>> warnings.simplefilter("error", UndeclaredArgumentWarning)

    """


class Owner(enum.Enum):
    """The ranks that a leaf of an argument belongs to."""

    ALL = "shared"
    EACH = "own"
    UNKNOWN = "unknown"


# An argument: its position, or its name where it is passed by keyword.
Key: TypeAlias = int | str
# Users name arguments one by one, several at once, or in a dict to trees of booleans.
Arguments: TypeAlias = Key | Collection[Key]
# A function of the user's: of any arguments, to a pytree.
Function: TypeAlias = Callable[..., PyTree]


@dataclasses.dataclass(frozen=True)
class Signature:
    """The names of a function's arguments, as far as they can be known.

    Attributes:
        name: of the function.
        parameters: what may be passed by position.
        by_keyword: what is passed by keyword only.

    """

    name: str
    parameters: tuple[str, ...]
    by_keyword: tuple[str, ...]

    @classmethod
    def of(cls, function: Function) -> "Signature":
        try:
            kinds = inspect.signature(function).parameters.values()
        except (TypeError, ValueError):
            kinds = ()
        by_position = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
        name = getattr(function, "__name__", None) or type(function).__name__
        return cls(
            name,
            tuple(p.name for p in kinds if p.kind in by_position),
            tuple(p.name for p in kinds if p.kind == inspect.Parameter.KEYWORD_ONLY),
        )

    def called(self, key: Key) -> str:
        """The name of an argument."""
        if isinstance(key, str):
            return key
        return self.parameters[key] if key < len(self.parameters) else f"argument {key}"


def positions_of(
    argnums: object, number: int, operation: str, option: str = "argnums"
) -> tuple[int, ...]:
    """``argnums`` of JAX as positions from 0, for so many positional arguments."""
    given = argnums if isinstance(argnums, (tuple, list)) else (argnums,)
    positions = []
    for value in given:
        try:
            position = operator.index(value) if isinstance(value, SupportsIndex) else None
        except TypeError:
            position = None
        if position is None or isinstance(value, bool):
            raise TypeError(f"{operation}: {option} must be integers, got {argnums!r}")
        if not -number <= position < number:
            raise ValueError(
                f"{operation}: {option}={argnums!r}, but the function was called with {number} "
                "positional arguments"
            )
        positions.append(position % number)
    return tuple(positions)


def declared(
    given: Arguments,
    option: str,
    signature: Signature,
    arguments: Mapping[Key, PyTree],
    operation: str,
) -> dict[Key, PyTree]:
    """The arguments that ``shared`` or ``own`` names, each with a prefix tree of booleans."""

    def key(named: object) -> Key:
        if isinstance(named, str):
            if named in arguments or named in signature.by_keyword:
                return named
            if named in signature.parameters:
                position = signature.parameters.index(named)
                return position if position in arguments else named  # left at its default
            known = [*signature.parameters, *(key for key in arguments if isinstance(key, str))]
            raise ValueError(
                f"{operation}: {option} names {named!r}, but the arguments of {signature.name} "
                f"are {', '.join(known) or 'not named'}"
            )
        if isinstance(named, bool) or not isinstance(named, SupportsIndex):
            remedy = (
                "name each argument by itself"
                if isinstance(named, (tuple, list))
                else "has_aux, holomorphic and allow_int are keyword arguments"
            )
            raise TypeError(
                f"{operation}: {option} takes positions, names, or a dict from these to trees of "
                f"booleans, got {named!r}; {remedy}"
            )
        number = sum(not isinstance(key, str) for key in arguments)
        return positions_of(named, number, operation, option)[0]

    if isinstance(given, Mapping):
        entries = list(given.items())
    else:
        several = given if isinstance(given, (tuple, list, set, frozenset)) else (given,)
        entries = [(named, True) for named in several]
    return {key(named): mask for named, mask in entries}


def masks(mask: PyTree, value: PyTree, label: str, operation: str) -> list[bool]:
    """A prefix tree of booleans, one for each leaf of `value`."""
    flags = jax.tree.leaves(mask)
    if not all(isinstance(flag, bool) for flag in flags):
        raise TypeError(
            f"{operation}: what says which parts of {label} are shared must be True, False, or a "
            f"tree of these, got {mask!r}"
        )
    try:
        spread = jax.tree.map(lambda flag, part: [flag] * len(jax.tree.leaves(part)), mask, value)
    except ValueError as error:
        raise ValueError(
            f"{operation}: the tree of booleans for {label} does not fit, as {label} is "
            f"{jax.tree.structure(value)}: {error}"
        ) from None
    return jax.tree.leaves(spread)


def owners(shared: PyTree, own: PyTree, value: PyTree, label: str, operation: str) -> list[Owner]:
    """The owners of an argument's leaves, by the masks given; None where it is not named."""
    number = len(jax.tree.leaves(value))
    of_all = [None] * number if shared is None else masks(shared, value, label, operation)
    of_each = [False] * number if own is None else masks(own, value, label, operation)
    result = []
    for is_shared, is_own in zip(of_all, of_each, strict=True):
        if is_shared and is_own:
            raise ValueError(
                f"{operation}: {label} is named as shared and as this rank's own; it is one of "
                "the two"
            )
        if is_shared:
            result.append(Owner.ALL)
        else:
            # A tree of booleans declares the leaves of which it says False, too.
            is_known = is_own or is_shared is not None
            result.append(Owner.EACH if is_known else Owner.UNKNOWN)
    return result


def labels(value: PyTree, name: str) -> list[str]:
    """The names of the leaves of an argument, for messages."""
    paths, _ = jax.tree_util.tree_flatten_with_path(value)
    return [name + jax.tree_util.keystr(path) for path, _ in paths]


def _unrecognised(value: PyTree) -> list[bool]:
    """For each leaf: whether nothing shows that it is a rank's own part."""
    nodes = jax.tree.leaves(value, is_leaf=is_distributed)
    result = []
    for node in nodes:
        leaves = jax.tree.leaves(node)
        if is_distributed(node):
            result += [False] * len(leaves)
        else:
            result += [not is_block(jnp.shape(leaf)) for leaf in leaves]
    return result


_said: set[tuple[object, str]] = set()


def warn_of_undeclared(
    value: PyTree,
    owned: list[Owner],
    name: str,
    function: Function,
    operation: str,
    comm: Communicator,
) -> None:
    """Say so, once, of a differentiated argument that may be shared and is not declared."""
    if comm.rank != 0:
        return
    for leaf, label, owner, is_unknown in zip(
        jax.tree.leaves(value), labels(value, name), owned, _unrecognised(value), strict=True
    ):
        code = getattr(inspect.unwrap(function), "__code__", type(function))
        if owner is not Owner.UNKNOWN or not is_unknown or (code, label) in _said:
            continue
        if jnp.size(leaf) == 0 or not jnp.issubdtype(jnp.result_type(leaf), jnp.inexact):
            continue
        _said.add((code, label))
        warnings.warn(
            f"{where(operation, comm)}: {label} of {Signature.of(function).name}, of shape "
            f"{jnp.shape(leaf)}, is differentiated, and is no block of a pencil that this process "
            "knows. If it is the same on every rank, its gradient is only this rank's part: say "
            f"shared={_spelt(name)}. If it is this rank's own, say own={_spelt(name)}",
            UndeclaredArgumentWarning,
            stacklevel=stacklevel(),
        )


def _spelt(name: str) -> str:
    prefix = "argument "
    return name.removeprefix(prefix) if name.startswith(prefix) else repr(name)

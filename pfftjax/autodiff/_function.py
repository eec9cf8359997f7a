"""A function of all ranks together, made of what each rank calls."""

import dataclasses
import inspect
import os
from collections.abc import Mapping, Sequence

import jax
import jax.numpy as jnp
from jax.typing import ArrayLike

from pfftjax._runtime.arrays import PyTree
from pfftjax._runtime.communicators import Comm, as_private
from pfftjax._runtime.options import options
from pfftjax.collectives import allreduce, replicate
from pfftjax.collectives.internal import Expected, compare, traced
from pfftjax.pencils.internal import coordinate

from ._ownership import (
    Arguments,
    Function,
    Key,
    Owner,
    Signature,
    declared,
    labels,
    masks,
    owners,
    warn_of_undeclared,
)

_SAME_ARGUMENT = (
    "Give every rank the same one (bcast it from a rank, or draw it from one key), or, if it is "
    "each rank's own part, say so: own="
)
_SAME_RESULT = (
    "If it is a sum over each rank's part, as a loss is, return allreduce of it; a part that "
    "belongs to one rank only counts zero on the others"
)


@dataclasses.dataclass(frozen=True)
class Declaration:
    """The user's word on the arguments and the result of a function."""

    shared: Arguments = ()
    own: Arguments = ()
    shared_result: PyTree = True
    has_aux: bool = False
    comm: Comm = None


class OverRanks:
    """A call of a user's function, as a function of those arguments that are differentiated.

    Called with these (`primals`), it is one function of P processes: shared arguments enter as one
    value (`replicate`), every rank's copies are variables of their own inside (`traced`), and the
    result that all ranks have alike is that of rank 0. All of JAX's transformations may be applied
    to it, and applied again to what they give.
    """

    def __init__(
        self,
        function: Function,
        positions: tuple[int, ...],
        arguments: dict[Key, PyTree],
        declaration: Declaration,
        operation: str,
    ):
        if not callable(function):
            raise TypeError(f"{operation}: the function to differentiate is {function!r}")
        self.function = function
        self.positions = positions
        self.arguments = arguments
        self.operation = operation
        self.comm = as_private(declaration.comm, operation)
        self.declaration = declaration
        self.signature = Signature.of(function)
        self.owned = self._owned()

    def _owned(self) -> dict[Key, list[Owner]]:
        """For every argument that is named or differentiated: whose its leaves are."""
        of_all, of_each = (
            declared(given, option, self.signature, self.arguments, self.operation)
            for option, given in (
                ("shared", self.declaration.shared),
                ("own", self.declaration.own),
            )
        )
        return {
            key: owners(
                of_all.get(key),
                of_each.get(key),
                self.arguments[key],
                self.signature.called(key),
                self.operation,
            )
            for key in {**dict.fromkeys(self.positions), **of_all, **of_each}
            if key in self.arguments  # and not left at its default
        }

    @property
    def primals(self) -> tuple[PyTree, ...]:
        """The arguments that are differentiated."""
        return tuple(self.arguments[position] for position in self.positions)

    @property
    def leaves_it_to_jax(self) -> bool:
        """Whether JAX's own derivatives are right: on one rank, and where JAX tracks the ranks."""
        return self.comm.size == 1 or jax_tracks_ranks()

    def __call__(self, *primals: PyTree) -> PyTree:
        arguments = self._with(self.arguments, primals)
        if self.leaves_it_to_jax:
            return self._called(arguments)
        declared = {key: arguments[key] for key in self.owned}
        self._compare_shared(declared, "a shared argument")
        for key, value in declared.items():
            arguments[key] = self._entered(value, self.owned[key])
        entered = tuple(arguments[position] for position in self.positions)
        static = []

        def of_arrays(*entered: PyTree) -> list[PyTree]:
            result, aux = self._split(self._called(self._with(arguments, entered)))
            leaves, tree = jax.tree.flatten(aux)
            # JAX hands on what is no array as it is.
            static[:] = [jax.tree.structure(result), tree, leaves]
            return [*jax.tree.leaves(result), *(x for x in leaves if isinstance(x, jax.Array))]

        run = traced(of_arrays, *entered)
        results_tree, aux_tree, aux_leaves = static
        leaves = iter(run(*entered))
        results = [next(leaves) for _ in range(results_tree.num_leaves)]
        result = self._left(jax.tree.unflatten(results_tree, results))
        if not self.declaration.has_aux:
            return result
        aux = [next(leaves) if isinstance(x, jax.Array) else x for x in aux_leaves]
        return result, jax.tree.unflatten(aux_tree, aux)

    def _with(
        self, arguments: Mapping[Key, PyTree], primals: Sequence[PyTree]
    ) -> dict[Key, PyTree]:
        return {**arguments, **dict(zip(self.positions, primals, strict=True))}

    def _called(self, arguments: Mapping[Key, PyTree]) -> PyTree:
        by_position = (arguments[key] for key in arguments if not isinstance(key, str))
        by_name = {key: value for key, value in arguments.items() if isinstance(key, str)}
        return self.function(*by_position, **by_name)

    def _split(self, returned: PyTree) -> tuple[PyTree, PyTree]:
        if not self.declaration.has_aux:
            return returned, ()
        if not isinstance(returned, tuple) or len(returned) != 2:
            raise TypeError(
                f"{self.operation}: with has_aux=True the function returns a pair (result, aux), "
                f"got {type(returned).__name__}"
            )
        return returned

    def _entered(self, value: PyTree, owned: list[Owner]) -> PyTree:
        """An argument with its shared leaves as one value for all ranks."""

        def enter(leaf: object, owner: Owner) -> object:
            is_one = owner is Owner.ALL and isinstance(leaf, jax.Array) and _is_inexact(leaf)
            return replicate(leaf, comm=self.comm) if is_one else leaf

        leaves, tree = jax.tree.flatten(value)
        return jax.tree.unflatten(tree, map(enter, leaves, owned))

    def _left(self, result: PyTree) -> PyTree:
        """The result, of which what all ranks have alike is one value for them."""
        leaves, tree = jax.tree.flatten(result)
        are_shared = masks(self.declaration.shared_result, result, "the result", self.operation)
        names = labels(result, "it" if len(leaves) == 1 else "part")
        self._compare(
            [
                (name, leaf)
                for name, leaf, is_shared in zip(names, leaves, are_shared, strict=True)
                if is_shared
            ],
            "the result",
            _SAME_RESULT + self._how_own_results(),
            Expected.SAME_TOTAL,
        )
        one = [
            self._of_rank_0(leaf) if is_shared and _is_inexact(leaf) else leaf
            for leaf, is_shared in zip(leaves, are_shared, strict=True)
        ]
        return jax.tree.unflatten(tree, one)

    def _how_own_results(self) -> str:
        takes = self.operation.endswith(("vjp", "jvp", "linearize", "jacfwd"))
        return "; if it is each rank's own part, say shared_result=False" if takes else ""

    def _of_rank_0(self, x: jax.Array) -> jax.Array:
        is_first = coordinate(self.comm) == 0
        return allreduce(jnp.where(is_first, x, jnp.zeros_like(x)), comm=self.comm)

    def _compare(
        self, values: list[tuple[str, ArrayLike]], what: str, remedy: str, expected: Expected
    ) -> None:
        compare(
            values,
            what,
            self._subject(),
            operation=self.operation,
            remedy=remedy,
            comm=self.comm,
            expected=expected,
        )

    def _subject(self) -> str:
        """The function, as an error names it."""
        code = getattr(inspect.unwrap(self.function), "__code__", None)
        at = f" ({os.path.basename(code.co_filename)}:{code.co_firstlineno})" if code else ""
        return f"of {self.signature.name}{at}"

    def _compare_shared(self, values: Mapping[Key, PyTree], what: str) -> None:
        named = []
        for key, value in values.items():
            name = self.signature.called(key)
            for leaf, label, owner in zip(
                jax.tree.leaves(value), labels(value, name), self.owned[key], strict=True
            ):
                if owner is Owner.ALL and _is_comparable(leaf):
                    named.append((label, leaf))
        self._compare(named, what, _SAME_ARGUMENT, Expected.SAME)

    def compare_tangents(self, tangents: Sequence[PyTree]) -> None:
        """Compare over the ranks what is given as a direction for shared arguments."""
        self._compare_of_primals(tangents, "the tangent of a shared argument")

    def check_gradients(self, gradients: Sequence[PyTree]) -> None:
        """Under PFFTJAX_CHECK=1: compare the gradients of shared arguments over the ranks."""
        if options.check:
            self._compare_of_primals(gradients, "the gradient of a shared argument")

    def _compare_of_primals(self, values: Sequence[PyTree], what: str) -> None:
        if not self.leaves_it_to_jax:
            self._compare_shared(dict(zip(self.positions, values, strict=True)), what)

    def warn(self) -> None:
        """Say of arguments that are differentiated that nobody has said whose they are.

        Afterwards, when the function has been traced: its pencils have been made by then.
        """
        if self.leaves_it_to_jax:
            return
        for position in self.positions:
            warn_of_undeclared(
                self.arguments[position],
                self.owned[position],
                self.signature.called(position),
                self.function,
                self.operation,
                self.comm,
            )

    def refuse_own(self) -> None:
        """For what takes derivatives along one unit vector after another, on all ranks at once."""
        if self.leaves_it_to_jax:
            return
        for position in self.positions:
            if any(owner is not Owner.ALL for owner in self.owned[position]):
                name = self.signature.called(position)
                raise ValueError(
                    f"{self.operation}: {name} is not named as shared. This takes one derivative "
                    "for each element, along the same direction on every rank, and so works for "
                    f"shared arguments only: say shared={name!r} if it is one. For blocks take "
                    "products, pfftjax.jvp of pfftjax.grad"
                )


def jax_tracks_ranks() -> bool:
    """Whether this is inside `jax.shard_map`, where JAX knows what differs between ranks.

    There its own derivatives sum over the ranks what has to be summed.
    """
    axes = getattr(jax.sharding.get_abstract_mesh(), "manual_axes", ())
    return any(jax.typeof(jax.lax.axis_index(axis)).manual_axis_type.varying for axis in axes)


def _is_inexact(x: ArrayLike) -> bool:
    return jnp.issubdtype(jnp.result_type(x), jnp.inexact)


def _is_comparable(x: object) -> bool:
    """Whether a leaf is an array or a number, of a type that can be sent; tangents may be void."""
    try:
        dtype = getattr(x, "dtype", None) or jnp.asarray(x).dtype
    except TypeError:
        return False
    return dtype != jax.dtypes.float0

"""Numbers that are known while a program is traced, computed then and not whenever it runs.

The factors of a simulation's steps follow from cosmology and scale factors, by hundreds of small
steps that each rank would do again in every run, and XLA compile again in every program.
"""

import collections
import functools
from collections.abc import Callable
from typing import Any, ParamSpec, TypeVar

import jax
import jax.numpy as jnp
import numpy as np
from jax.core import Tracer

from pfftjax._runtime.arrays import PyTree
from pfftjax._runtime.ordering import outside_of_programs

_Arguments = ParamSpec("_Arguments")
_Result = TypeVar("_Result", bound=PyTree)

# The results of the latest calls, by what they are called with.
_kept: "collections.OrderedDict[tuple, tuple[list, list[bool], Any]]" = collections.OrderedDict()
_MOST_KEPT = 64


def beforehand(function: Callable[_Arguments, _Result]) -> Callable[_Arguments, _Result]:
    """`function`, whose arrays are constants of a program that is traced, if all of its arguments
    are known.

    What has been computed is kept for the next program. It takes a compilation of its own for each
    set of arguments: functions that are called for many of them are better off without. Where
    arguments are traced, as in a derivative with respect to the cosmology, the function is a part
    of the program, and outside of programs it is called as it is.
    """

    @functools.wraps(function)
    def wrapped(*args: _Arguments.args, **kwargs: _Arguments.kwargs) -> _Result:
        leaves, structure = jax.tree.flatten((args, kwargs))
        # Operations of a derivative that is no part of a program are run at once, too.
        is_in_program = isinstance(jnp.zeros(()), Tracer)
        if not is_in_program or any(isinstance(leaf, Tracer) for leaf in leaves):
            return function(*args, **kwargs)
        known = [np.asarray(leaf) for leaf in leaves]
        if any(x.dtype.kind not in "biuf" for x in known):
            return function(*args, **kwargs)
        numbers = tuple((x.shape, x.dtype.str, x.tobytes()) for x in known)
        key = (function, structure, numbers, jnp.result_type(float), jax.default_backend())
        try:
            found = _kept.pop(key, None)
        except (TypeError, ValueError):  # a structure that cannot be compared
            return function(*args, **kwargs)
        if found is None:
            found = _computed(lambda: function(*args, **kwargs))
        _kept[key] = found  # as the latest
        while len(_kept) > _MOST_KEPT:
            _kept.popitem(last=False)
        parts, is_array, structure = found
        # They are arrays of JAX again where the function has such.
        again = [jnp.asarray(x) if a else x for x, a in zip(parts, is_array, strict=True)]
        return jax.tree.unflatten(structure, again)

    return wrapped


def _computed(call: Callable[[], PyTree]) -> tuple[list, list[bool], Any]:
    """The parts of a result, whether each is an array of JAX, and its structure."""
    seen: list = []

    def arrays() -> list[jax.Array]:
        leaves, structure = jax.tree.flatten(call())
        is_array = [isinstance(x, jax.Array) for x in leaves]
        others = [None if a else x for x, a in zip(leaves, is_array, strict=True)]
        seen[:] = others, is_array, structure
        return [x for x, a in zip(leaves, is_array, strict=True) if a]

    with outside_of_programs():
        found = iter(jax.jit(arrays)())
    others, is_array, structure = seen
    parts = [np.asarray(next(found)) if a else x for x, a in zip(others, is_array, strict=True)]
    for part in parts:
        if isinstance(part, np.ndarray):
            part.setflags(write=False)  # all programs have the same one
    return parts, is_array, structure

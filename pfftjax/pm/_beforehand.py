"""Numbers that are known while a program is traced, computed then and not whenever it runs.

The factors of a simulation's steps follow from cosmology and scale factors, by hundreds of small
steps that each rank would do again in every run, and XLA compile again in every program.
"""

import dataclasses
import functools
from collections.abc import Callable
from typing import Any, ParamSpec, TypeVar

import jax
import jax.numpy as jnp
import numpy as np
from jax.core import Tracer

from pfftjax._runtime.arrays import PyTree
from pfftjax._runtime.ordering import is_tracing, outside_of_programs

_Arguments = ParamSpec("_Arguments")
_Result = TypeVar("_Result", bound=PyTree)


@dataclasses.dataclass(frozen=True)
class _Call:
    """A function's call, which is equal to another one by its key."""

    key: tuple
    call: Callable[[], PyTree] = dataclasses.field(compare=False)


def beforehand(function: Callable[_Arguments, _Result]) -> Callable[_Arguments, _Result]:
    """`function`, whose arrays are constants of a program that is traced, if all of its arguments
    are known.

    What has been computed is kept for the next program. Where arguments are traced, as in a
    derivative with respect to the cosmology, the function is a part of the program, and outside of
    programs it is called as it is.
    """

    @functools.wraps(function)
    def wrapped(*args: _Arguments.args, **kwargs: _Arguments.kwargs) -> _Result:
        leaves, structure = jax.tree.flatten((args, kwargs))
        if not is_tracing() or any(isinstance(leaf, Tracer) for leaf in leaves):
            return function(*args, **kwargs)
        known = [np.asarray(leaf) for leaf in leaves]
        if any(x.dtype.kind not in "biuf" for x in known):
            return function(*args, **kwargs)
        numbers = tuple((x.shape, x.dtype.str, x.tobytes()) for x in known)
        key = (function, structure, numbers, jnp.result_type(float), jax.default_backend())
        found, structure = _computed(_Call(key, lambda: function(*args, **kwargs)))
        # They are arrays of JAX again where the function has such.
        parts = [jnp.asarray(value) if is_array else value for value, is_array in found]
        return jax.tree.unflatten(structure, parts)

    return wrapped


@functools.lru_cache(maxsize=64)
def _computed(call: _Call) -> tuple[list[tuple[Any, bool]], Any]:
    """The parts of a result, each with whether it is an array of JAX, and its structure."""
    seen: list = []

    def arrays() -> list[jax.Array]:
        leaves, structure = jax.tree.flatten(call.call())
        seen[:] = leaves, structure
        return [x for x in leaves if isinstance(x, jax.Array)]

    with outside_of_programs():
        found = iter(jax.jit(arrays)())
    leaves, structure = seen
    parts = [
        (np.asarray(next(found)), True) if isinstance(x, jax.Array) else (x, False) for x in leaves
    ]
    return parts, structure

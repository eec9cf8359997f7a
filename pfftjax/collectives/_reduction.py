"""The predefined MPI reductions, for which dtypes they mean something, and those of users."""

import jax
import jax.numpy as jnp
import numpy as np
from jax.core import ShapedArray
from jax.typing import ArrayLike
from mpi4py import MPI

from pfftjax._runtime.arguments import as_array, where
from pfftjax._runtime.communicators import Communicator
from pfftjax._runtime.ffi import native
from pfftjax._runtime.primitive import elements
from pfftjax._runtime.rules import Params

# Name, MPI operation; the index is the number that programs carry.
_OPS: tuple[tuple[str, MPI.Op], ...] = tuple(
    (reduction.name, getattr(MPI, reduction.name)) for reduction in native.Reduction
)
# These are for pairs, or for one-sided communication.
_WITHOUT_MEANING = (MPI.MAXLOC, MPI.MINLOC, MPI.REPLACE, MPI.NO_OP, MPI.OP_NULL)
_INDEX = {name: index for index, (name, _) in enumerate(_OPS)}
SUM, MIN, MAX = _INDEX["SUM"], _INDEX["MIN"], _INDEX["MAX"]
# NumPy's arithmetic of booleans, and its bitwise operations on them, are logical ones.
_ON_BOOL = {
    "SUM": "LOR", "PROD": "LAND", "MIN": "LAND", "MAX": "LOR",
    "BAND": "LAND", "BOR": "LOR", "BXOR": "LXOR",
}  # fmt: skip


# Operations of users, numbered after these in the order in which this process first uses them.
# Kept alive with the programs that name them.
_user_ops: list[tuple[MPI.Op, int]] = []


def name_of(op: int) -> str:
    """MPI's name of a reduction by its number."""
    return f"MPI.{_OPS[op][0]}" if op < len(_OPS) else "an operation of the user's"


def elements_and_op(x: ShapedArray, *, op: int, **_: object) -> str:
    """Elements and operation, on which ranks that reduce must agree."""
    return f"{elements(x)} {name_of(op)}"


def _user_op(op: MPI.Op) -> int:
    for known, number in _user_ops:
        if known == op:
            return number
    number = native.add_op(MPI._addressof(op))
    _user_ops.append((op, number))
    return number


def _reduction(op: object, dtype: np.dtype, operation: str, comm: Communicator) -> int:
    """The number of `op`, an `mpi4py.MPI.Op`, for arrays of `dtype`."""
    if not isinstance(op, MPI.Op):
        raise TypeError(
            f"{where(operation, comm)}: op must be an mpi4py operation such as MPI.SUM, got {op!r}"
        )
    name = next((name for name, known in _OPS if known == op), None)
    if name is None and op in _WITHOUT_MEANING:
        raise ValueError(
            f"{where(operation, comm)}: op must be one of "
            f"{', '.join('MPI.' + name for name, _ in _OPS)}, or made by MPI.Op.Create; "
            "MPI.MAXLOC and MPI.MINLOC take a pair (values, indices), in allreduce only"
        )
    if name is None:
        return _user_op(op)
    if dtype == np.bool_:
        return _INDEX[_ON_BOOL.get(name, name)]
    integer = jnp.issubdtype(dtype, jnp.integer)
    ordered = integer or jnp.issubdtype(dtype, jnp.floating)
    defined = {"SUM": True, "PROD": True, "MIN": ordered, "MAX": ordered}.get(name, integer)
    if not defined:
        raise TypeError(f"{where(operation, comm)}: MPI.{name} is not defined for {dtype} arrays")
    return _INDEX[name]


def reducible(
    x: ArrayLike, op: object, operation: str, comm: Communicator
) -> tuple[jax.Array, Params]:
    """The operand of a reduction, and the parameters that all reductions have."""
    x = as_array(x, operation, comm)
    number = _reduction(op, x.dtype, operation, comm)
    # MPI's results are zeros and ones only where something was combined; on a single rank the
    # operand would come back as it is.
    if number < len(_OPS) and _OPS[number][0].startswith("L") and x.dtype != np.bool_:
        x = (x != 0).astype(x.dtype)
    return x, {"op": number, "comm": comm}


def is_location(op: object) -> bool:
    """Whether `op` is MPI.MAXLOC or MPI.MINLOC."""
    return isinstance(op, MPI.Op) and op in (MPI.MAXLOC, MPI.MINLOC)


def only_sums(operation: str, *, op: int, **_: object) -> None:
    """Refuse the derivative of a reduction that is not a sum."""
    if op != SUM:
        raise TypeError(
            f"{operation}: {name_of(op)} has no derivative here; use op=MPI.SUM, or wrap the "
            "argument in jax.lax.stop_gradient"
        )

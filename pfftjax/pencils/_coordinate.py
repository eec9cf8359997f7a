"""The rank of this process in a communicator, as a value that is known only when a program runs.

As a constant it would make each rank's program a different one, to be compiled and cached apart.
"""

import functools
from collections.abc import Sequence
from typing import cast

import jax
import jax.numpy as jnp
import numpy as np
from jax.core import ShapedArray
from jax.extend.core import Primitive
from jax.interpreters import mlir, xla

from pfftjax._runtime.communicators import Communicator
from pfftjax._runtime.primitive import by_platform

coordinate_p = Primitive("coordinate")
coordinate_p.def_impl(functools.partial(xla.apply_primitive, coordinate_p))
coordinate_p.def_abstract_eval(lambda *, comm: ShapedArray((), jnp.int32))
_lower = jax.ffi.ffi_lowering("pfftjax_coordinate")


def _rule(ctx: mlir.LoweringRuleContext, *, comm: Communicator) -> Sequence[mlir.ir.Value]:
    return cast(Sequence[mlir.ir.Value], _lower(ctx, comm=np.int64(comm.number)))


mlir.register_lowering(coordinate_p, by_platform(_rule, _rule))


def coordinate(comm: Communicator) -> jax.Array:
    """The rank in `comm`, an int32 scalar."""
    return coordinate_p.bind(comm=comm)

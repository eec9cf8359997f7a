"""Paint and readout of four components that lie together at each point of the mesh.

The way back of a run needs a density beside three components of cotangents, and the other way
about. On CPUs a register holds all four in single precision, and two do in double: four take
little longer than one. Elsewhere the primitives of paint and readout do it.
"""

import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax.core import ShapedArray
from jax.extend.core import Primitive
from jax.interpreters import ad

from pfftjax._runtime.rules import Operands, Tangents, zero_tangent
from pfftjax.pencils import Pencil

from ._assignment import Assignment
from ._painting import VALUE, across_p, changes, check_slopes, of_particles, paint_p, readout_p
from ._positions import Positions


def _paint(*operands: jax.Array, **params: Any) -> list[jax.Array]:
    *at, values = operands
    return [jnp.moveaxis(paint_p.bind(*at, values[:, :, None], **params), 0, -1)]


def _readout(*operands: jax.Array, **params: Any) -> list[jax.Array]:
    *at, field, values = operands
    by_component = jnp.moveaxis(field, -1, 0)
    return [
        readout_p.bind(*at, by_component, **params)[:, :, 0],
        across_p.bind(*at, by_component, values, **params),
    ]


# cell, offset, used, values (rows, 4) -> (*padded, 4)
paint_fours_p = of_particles(
    "paint_fours",
    lambda cell, offset, used, values, *, orders, assignment, pencil: [
        ShapedArray((*assignment.padded(pencil), 4), values.dtype)
    ],
    _paint,
    multiple_results=True,
)
# The readout, and the cotangent of offsets for values that are the cotangent of it.
# cell, offset, used, field (*padded, 4), values (rows, 4) -> (rows, 4), (rows, 3)
readout_fours_p = of_particles(
    "readout_fours",
    lambda cell, offset, used, field, values, *, orders, assignment, pencil: [
        ShapedArray(x.shape, field.dtype) for x in (values, offset)
    ],
    _readout,
    multiple_results=True,
)


def _differentiated_as(primitive: Primitive, function: Callable[..., list[jax.Array]]) -> None:
    """Give a primitive the derivatives of the function that does the same by others."""

    def jvp(
        primals: Operands, tangents: Tangents, **params: object
    ) -> tuple[list[jax.Array], list[jax.Array] | list[ad.Zero]]:
        results = primitive.bind(*primals, **params)
        moving = (1, *range(3, len(primals)))  # neither cells nor how many rows are used
        change = changes(functools.partial(function, **params), primals, tangents, moving)
        return results, [zero_tangent(y) for y in results] if change is None else change

    ad.primitive_jvps[primitive] = jvp


_differentiated_as(paint_fours_p, _paint)
_differentiated_as(readout_fours_p, _readout)


def paint_fours(
    values: jax.Array, at: Positions, pencil: Pencil, assignment: Assignment
) -> jax.Array:
    """Values (rows, 4) of particles on a block with ghosts: (*padded, 4)."""
    return paint_fours_p.bind(*at, values, orders=VALUE, assignment=assignment, pencil=pencil)[0]


def readout_fours(
    with_ghosts: jax.Array,
    values: jax.Array,
    at: Positions,
    pencil: Pencil,
    assignment: Assignment,
) -> tuple[jax.Array, jax.Array]:
    """A block with ghosts (*padded, 4) at particles, (rows, 4), and the cotangent of offsets
    (rows, 3) for values (rows, 4) that are the cotangent of that.
    """
    check_slopes(assignment)
    read, to_offset = readout_fours_p.bind(
        *at, with_ghosts, values, orders=VALUE, assignment=assignment, pencil=pencil
    )
    return read, to_offset

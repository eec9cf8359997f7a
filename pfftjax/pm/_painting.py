"""Paint and readout: particles onto a mesh, and a mesh at particles.

Both are sums over the points near a particle, weighted by the assignment kernel W (Hockney &
Eastwood 1988, section 5-3: CIC and TSC are B-splines). As functions of positions they are
differentiated by differentiating W, so each primitive carries a list of orders of derivative, and
its rule binds the same primitive with each order raised by one along each axis:

    readout(u, f)[p, c, o] = sum_i f[c, i] D^o W(i - u_p)
    paint(u, v)[c, i]      = sum_{p, o} v[p, c, o] D^o W(i - u_p)

For given positions u each is the transpose of the other. Both are local: the particles are on the
ranks that own their cells, and the field has ghosts.
"""

import functools
from collections.abc import Callable, Sequence
from typing import Any, TypeGuard

import jax
import jax.numpy as jnp
import numpy as np
from jax.core import ShapedArray
from jax.extend.core import Primitive
from jax.interpreters import ad, batching, mlir
from jax.typing import ArrayLike

from pfftjax._runtime.arguments import where
from pfftjax._runtime.arrays import RealBlock, RealBlockLike, Rows, RowsLike
from pfftjax._runtime.primitive import local
from pfftjax._runtime.rules import Axes, Operands, Tangent, Tangents, transposed_by, with_tangent
from pfftjax.pencils import Pencil, halo_exchange, halo_reduce

from ._assignment import Assignment, Kernel, assignment_of
from ._positions import Places, Positions, as_positions, checked_mesh

# Orders of derivative along the axes: VALUE is that of no derivative, SLOPES are the three first.
Order = tuple[int, int, int]
Orders = tuple[Order, ...]
SLOPES: Orders = ((1, 0, 0), (0, 1, 0), (0, 0, 1))
VALUE: Orders = ((0, 0, 0),)


def of_particles(
    name: str,
    result: Callable[..., ShapedArray | list[ShapedArray]],
    by_xla: Callable[..., object] | None = None,
    *,
    multiple_results: bool = False,
) -> Primitive:
    """Make the primitive `name` of particles and a mesh, as `local` does."""

    def attributes(
        orders: Orders, assignment: Assignment, pencil: Pencil
    ) -> dict[str, np.ndarray | np.int64]:
        return {
            "orders": np.asarray(orders, np.int64).reshape(-1),
            "points": np.int64(assignment.points),
            "shift": np.int64(assignment.shift),
            **on(pencil),
        }

    primitive = local(name, result, attributes, by_xla, multiple_results=multiple_results)
    batching.primitive_batchers[primitive] = functools.partial(one_by_one, primitive)
    return primitive


def on(pencil: Pencil) -> dict[str, np.int64]:
    """The attributes by which a handler finds this rank's block; they are equal on all ranks."""
    n0, n1, n2 = pencil.global_shape
    return {
        "n0": np.int64(n0),
        "n1": np.int64(n1),
        "n2": np.int64(n2),
        "rows_comm": np.int64(pencil.grid.along(0).number),
        "columns_comm": np.int64(pencil.grid.along(1).number),
    }


def one_by_one(
    primitive: Primitive, operands: Operands, axes: Axes, **params: object
) -> tuple[jax.Array | list[jax.Array], int | list[int]]:
    """Batching rule that takes the members of the batch one after the other."""
    batched = [d is not None for d in axes]
    moved = [
        x if d is None else jnp.moveaxis(x, d, 0) for x, d in zip(operands, axes, strict=True)
    ]

    def member(mapped: Sequence[jax.Array]) -> jax.Array | list[jax.Array]:
        rest = iter(mapped)
        chosen = [next(rest) if b else x for x, b in zip(moved, batched, strict=True)]
        return primitive.bind(*chosen, **params)

    result = jax.lax.map(member, [x for x, b in zip(moved, batched, strict=True) if b])
    return result, [0] * len(result) if primitive.multiple_results else 0


# cell, offset (rows, 3), used, field (components, *padded) -> (rows, components, orders)
readout_p = of_particles(
    "readout",
    lambda cell, offset, used, field, *, orders, assignment, pencil: ShapedArray(
        (cell.shape[0], field.shape[0], len(orders)), field.dtype
    ),
)
# cell, offset, used, values (rows, components, orders) -> (components, *padded)
paint_p = of_particles(
    "paint",
    lambda cell, offset, used, values, *, orders, assignment, pencil: ShapedArray(
        (values.shape[1], *assignment.padded(pencil)), values.dtype
    ),
)


# The derivative of a readout along displacements, which is what jvp and vjp need of it, without an
# array of slopes in between.
# cell, offset, used, field, displacement (rows, 3) -> (rows, components)
along_p = of_particles(
    "readout_along",
    lambda cell, offset, used, field, displacement, *, orders, assignment, pencil: ShapedArray(
        (cell.shape[0], field.shape[0]), field.dtype
    ),
)
# Its transpose: cell, offset, used, field, values (rows, components) -> (rows, 3)
across_p = of_particles(
    "readout_across",
    lambda cell, offset, used, field, values, *, orders, assignment, pencil: ShapedArray(
        (cell.shape[0], 3), field.dtype
    ),
)


def changes(
    function: Callable[..., Any], primals: Operands, tangents: Tangents, among: Sequence[int]
) -> Any:
    """The tangents of a function's results, of operands of these numbers; None if none moves."""
    moving = [i for i in among if not isinstance(tangents[i], ad.Zero)]

    def of_moving(*values: jax.Array) -> Any:
        operands = [*map(jnp.asarray, primals)]
        for i, value in zip(moving, values, strict=True):
            operands[i] = value
        return function(*operands)

    if not moving:
        return None
    return jax.jvp(of_moving, [primals[i] for i in moving], [tangents[i] for i in moving])[1]


def _slope_jvp(primitive: Primitive, summed: int) -> None:
    """Give a primitive its derivatives: those of the slopes (rows, components, 3) that `readout_p`
    gives, times its last operand, summed over axis `summed`.
    """

    def jvp(primals: Operands, tangents: Tangents, **params: object) -> tuple[jax.Array, Tangent]:
        y = primitive.bind(*primals, **params)
        terms = []
        if not isinstance(tangents[4], ad.Zero):
            terms.append(primitive.bind(*primals[:4], tangents[4], **params))

        def composed(*operands: jax.Array) -> jax.Array:
            slopes = readout_p.bind(*operands[:4], **{**params, "orders": SLOPES})
            return (slopes * jnp.expand_dims(operands[4], 3 - summed)).sum(summed)

        change = changes(composed, primals, tangents, (1, 3))
        if change is not None:
            terms.append(change)
        return with_tangent(y, terms)

    ad.primitive_jvps[primitive] = jvp


_slope_jvp(along_p, 2)
_slope_jvp(across_p, 1)


def _raised(orders: Orders, points: int) -> tuple[Orders, list[list[tuple[int, int]]]]:
    """The orders one higher along some axis, and for each of `orders` the pairs (axis a, place of
    order + e_a among them).

    Splines of p points are of degree p - 1: derivatives that vanish (almost everywhere) are left
    out.
    """
    higher: list[Order] = []
    places = []
    for order in orders:
        pairs = []
        for axis in range(3):
            x, y, z = (n + (a == axis) for a, n in enumerate(order))
            if max(x, y, z) < points:
                if (x, y, z) not in higher:
                    higher.append((x, y, z))
                pairs.append((axis, higher.index((x, y, z))))
        places.append(pairs)
    return tuple(higher), places


def check_slopes(assignment: Assignment) -> None:
    """Refuse a kernel whose derivative in positions would be silently zero."""
    if assignment.points == 1:
        raise TypeError(
            "paint and readout by 'ngp' have no derivative in positions, as a particle gives all "
            "to one mesh point: take 'cic', 'tsc' or 'pcs', or jax.lax.stop_gradient(positions)"
        )


def _is_moving(offset_dot: object, assignment: Assignment) -> TypeGuard[jax.Array]:
    """Whether positions have a tangent."""
    if isinstance(offset_dot, ad.Zero):
        return False
    check_slopes(assignment)
    return True


def _readout_jvp(
    primals: Operands,
    tangents: Tangents,
    *,
    orders: Orders,
    assignment: Assignment,
    pencil: Pencil,
) -> tuple[jax.Array, Tangent]:
    *particles, field = primals
    _, offset_dot, _, field_dot = tangents
    at_orders = functools.partial(readout_p.bind, assignment=assignment, pencil=pencil)
    y = at_orders(*particles, field, orders=orders)
    terms = []
    if not isinstance(field_dot, ad.Zero):
        terms.append(at_orders(*particles, field_dot, orders=orders))
    higher, places = _raised(orders, assignment.points)
    if not _is_moving(offset_dot, assignment) or not higher:
        pass
    elif orders == VALUE:
        along = along_p.bind(
            *particles, field, offset_dot, orders=orders, assignment=assignment, pencil=pencil
        )
        terms.append(along[:, :, None])
    else:
        slopes = at_orders(*particles, field, orders=higher)
        each = [
            sum(
                (slopes[:, :, h] * offset_dot[:, None, axis] for axis, h in pairs),
                start=jnp.zeros_like(y[:, :, 0]),
            )
            for pairs in places
        ]
        terms.append(jnp.stack(each, axis=-1))
    return with_tangent(y, terms)


def _paint_jvp(
    primals: Operands,
    tangents: Tangents,
    *,
    orders: Orders,
    assignment: Assignment,
    pencil: Pencil,
) -> tuple[jax.Array, Tangent]:
    *particles, values = primals
    _, offset_dot, _, values_dot = tangents
    at_orders = functools.partial(paint_p.bind, assignment=assignment, pencil=pencil)
    field = at_orders(*particles, values, orders=orders)
    terms = []
    if not isinstance(values_dot, ad.Zero):
        terms.append(at_orders(*particles, values_dot, orders=orders))
    higher, places = _raised(orders, assignment.points)
    if _is_moving(offset_dot, assignment) and higher:
        if orders == VALUE:
            operands = *particles, values[:, :, 0], offset_dot
            along = paint_along_p.bind(
                *operands, orders=orders, assignment=assignment, pencil=pencil
            )
        else:
            each = [jnp.zeros_like(values[:, :, 0]) for _ in higher]
            for o, pairs in enumerate(places):
                for axis, h in pairs:
                    each[h] = each[h] + values[:, :, o] * offset_dot[:, None, axis]
            along = at_orders(*particles, jnp.stack(each, axis=-1), orders=higher)
        terms.append(along)
    return with_tangent(field, terms)


# The derivative of paint along displacements. It is painted by the slopes, but its transposes
# are those of readouts.
# cell, offset, used, values (rows, components), displacement (rows, 3) -> (components, *padded)
paint_along_p = local(
    "paint_along",
    lambda cell, offset, used, values, displacement, *, orders, assignment, pencil: ShapedArray(
        (values.shape[1], *assignment.padded(pencil)), values.dtype
    ),
)


def _paint_along(*operands: ArrayLike, **params: Any) -> jax.Array:
    *particles, values, displacement = map(jnp.asarray, operands)
    moved = values[:, :, None] * displacement[:, None, :]
    return paint_p.bind(*particles, moved, **{**params, "orders": SLOPES})


def _paint_along_jvp(
    primals: Operands, tangents: Tangents, **params: object
) -> tuple[jax.Array, Tangent]:
    terms = []
    for i in (3, 4):
        tangent = tangents[i]
        if not isinstance(tangent, ad.Zero):
            operands = [*primals]
            operands[i] = tangent
            terms.append(paint_along_p.bind(*operands, **params))
    change = changes(functools.partial(_paint_along, **params), primals, tangents, (1,))
    if change is not None:
        terms.append(change)
    return with_tangent(paint_along_p.bind(*primals, **params), terms)


def _paint_along_transposed(
    cotangent: Tangent,
    *operands: object,
    **params: object,
) -> list[jax.Array | None]:
    *particles, values, displacement = operands
    if isinstance(cotangent, ad.Zero):
        return [None] * len(operands)
    if ad.is_undefined_primal(values):
        found = along_p.bind(*particles, cotangent, displacement, **params), None
    else:
        found = None, across_p.bind(*particles, cotangent, values, **params)
    return [*(None for _ in particles), *found]


mlir.register_lowering(paint_along_p, mlir.lower_fun(_paint_along, multiple_results=False))
ad.primitive_jvps[paint_along_p] = _paint_along_jvp
ad.primitive_transposes[paint_along_p] = _paint_along_transposed
batching.primitive_batchers[paint_along_p] = functools.partial(one_by_one, paint_along_p)


ad.primitive_jvps[readout_p] = _readout_jvp
ad.primitive_jvps[paint_p] = _paint_jvp
transposed_by(readout_p, paint_p, communicates=False)
transposed_by(paint_p, readout_p, communicates=False)
transposed_by(along_p, across_p, communicates=False)
transposed_by(across_p, along_p, communicates=False)


def paint(
    positions: Places, pencil: Pencil, *, values: RowsLike | None = None, kernel: Kernel = "cic"
) -> RealBlock:
    """Deposit particles on a periodic mesh.

    Args:
        positions: `Positions`, or an array (rows, 3) of coordinates in units of mesh cells; mesh
            point i is at coordinate i. Each particle is on the rank that owns its cell (see
            `Route`).
        pencil: the mesh, as `PencilFFT.input`: axes 0 and 1 split, whole along axis 2.
        values: what each particle deposits, (rows,) or (rows, components); 1 by default.
        kernel: "ngp", nearest grid point; "cic", cloud in cell; "tsc", triangular-shaped cloud;
            or "pcs", piecewise cubic spline: B-splines of 1 to 4 points along each axis.

    Returns:
        This rank's block, ``local_shape`` or ``(components, *local_shape)`` of the pencil, of the
        dtype of the positions: the sum of what is deposited at each point. Its sum over ranks is
        that of the values.

    Raises:
        ValueError, TypeError: shapes, kernels or dtypes that do not fit.
        jax.errors.JaxRuntimeError: when it runs: a particle is not in this rank's block, or its
            position is not finite, or 2^30 cells or more away.

    Differentiable in `values` and in positions, to any order (derivatives of CIC are those of a
    piecewise linear function). NGP is not differentiable in positions, which is a TypeError. Its
    adjoint in `values` is `readout`.

    Example:
        >>> from pfftjax import Pencil, ProcessGrid
        >>> from pfftjax.collectives import allreduce
        >>> mesh = Pencil((8, 8, 8), ProcessGrid())
        >>> at_home = jnp.asarray(mesh.start) + jnp.array([[0.25, 0.0, 3.5], [0.5, 0.5, 7.75]])
        >>> density = paint(at_home, mesh)
        >>> bool(allreduce(density.sum()) == 2 * mesh.grid.size)
        True

    """
    checked_mesh(pencil, "paint")
    return painted(positions, pencil, values, assignment_of(kernel, pencil, "paint"), "paint")


def painted(
    positions: Places,
    pencil: Pencil,
    values: RowsLike | None,
    assignment: Assignment,
    operation: str,
) -> RealBlock:
    """`paint` on a mesh, for the user's operation of that name."""
    at = as_positions(positions, pencil, operation)
    rows, dtype = at.offset.shape[0], at.offset.dtype
    values = jnp.ones(rows, dtype) if values is None else _real(values, dtype, pencil, operation)
    if values.ndim not in (1, 2) or values.shape[0] != rows:
        raise ValueError(
            f"{where(operation, pencil.grid.communicator)}: values must be ({rows},) or "
            f"({rows}, components), one row for each particle, got {values.shape}"
        )
    columns = values.reshape(rows, *(values.shape[1:] or (1,)))
    with_ghosts = paint_padded(columns, at, pencil, assignment)
    field = halo_reduce(with_ghosts, pencil, assignment.width)
    return field[0] if values.ndim == 1 else field


def readout(
    field: RealBlockLike, positions: Places, pencil: Pencil, *, kernel: Kernel = "cic"
) -> Rows:
    """Interpolate fields on a periodic mesh to the positions of particles.

    Args:
        field: this rank's block, ``local_shape`` or ``(components, *local_shape)`` of the pencil.
        positions: as in `paint`.
        pencil: the mesh.
        kernel: as in `paint`; the same one for both keeps momentum.

    Returns:
        Array (rows,) or (rows, components) of the dtype of the positions, zero in unused rows.

    Raises:
        As `paint`.

    Differentiable in `field` and in positions, to any order. Its adjoint in `field` is `paint`.

    Example:
        >>> from pfftjax import Pencil, ProcessGrid
        >>> mesh = Pencil((8, 8, 8), ProcessGrid())
        >>> height = mesh.indices(2) + jnp.zeros(mesh.local_shape)
        >>> at_home = jnp.asarray(mesh.start) + jnp.array([[0.25, 0.5, 3.25]])
        >>> readout(height, at_home, mesh).tolist()
        [3.25]

    """
    checked_mesh(pencil, "readout")
    form = assignment_of(kernel, pencil, "readout")
    at = as_positions(positions, pencil, "readout")
    field = _real(field, at.offset.dtype, pencil, "readout")
    here = where("readout", pencil.grid.communicator)
    pencil.check_block(field, here, what="the field")
    if field.ndim > 4:
        raise ValueError(f"{here}: the field must be (components, *block), got {field.shape}")
    with_ghosts = halo_exchange(field if field.ndim == 4 else field[None], pencil, form.width)
    values = readout_padded(with_ghosts, at, pencil, form)
    return values if field.ndim == 4 else values[:, 0]


def _real(x: ArrayLike, dtype: np.dtype, pencil: Pencil, operation: str) -> jax.Array:
    if jnp.iscomplexobj(x):
        raise TypeError(
            f"{where(operation, pencil.grid.communicator)}: no {operation} of complex numbers; "
            "pass real and imaginary parts as components"
        )
    return jnp.asarray(x, dtype)


def readout_padded(
    with_ghosts: jax.Array, at: Positions, pencil: Pencil, assignment: Assignment
) -> jax.Array:
    """Components (components, *block with ghosts) at particles: (rows, components)."""
    values = readout_p.bind(*at, with_ghosts, orders=VALUE, assignment=assignment, pencil=pencil)
    return values[:, :, 0]


def paint_padded(
    values: jax.Array, at: Positions, pencil: Pencil, assignment: Assignment
) -> jax.Array:
    """Values (rows, components) of particles on a block with ghosts: (components, *padded)."""
    return paint_p.bind(
        *at, values[:, :, None], orders=VALUE, assignment=assignment, pencil=pencil
    )

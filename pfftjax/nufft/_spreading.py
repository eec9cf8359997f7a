"""Points onto the mesh and back, with the wide kernel of `_kernel`: local, as `pfftjax.pm.paint`.

    spread(u, c)[i]       = sum_p c_p psi(i - u_p)
    interpolate(u, b)[p]  = sum_i b_i psi(i - u_p)

For given points u each is the transpose of the other. Neither has a derivative in u: that of a
transform is a transform (`_transforms`).
"""

import functools
from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np
from jax.core import ShapedArray
from jax.interpreters import batching

from pfftjax._runtime.primitive import local
from pfftjax._runtime.rules import constant
from pfftjax.pencils import Pencil
from pfftjax.pm.internal import Assignment, located, on, one_by_one

from ._kernel import polynomials

COMPLEX = {"float32": np.dtype("complex64"), "float64": np.dtype("complex128")}


# ---- By XLA, on platforms that have no handler ------------------------------------------------


def _stencil(
    cell: jax.Array,
    offset: jax.Array,
    used: jax.Array,
    _: jax.Array,
    *,
    pencil: Pencil,
    width: int,
    sigma: float,
) -> tuple[jax.Array, jax.Array, jax.Array, jax.Array]:
    """First points (rows, 3) in the block with its ghosts, weights (rows, 3, width), which rows
    count, and which of these are not in the block.
    """
    wrapped, fraction, somewhere = located(cell, offset, pencil)
    reach = Assignment(width)
    shape = jnp.asarray(pencil.global_shape, jnp.int32)
    start = jnp.stack([pencil.indices(a).ravel()[:1].sum(dtype=jnp.int32) for a in range(3)])
    local = wrapped - start
    counts = jnp.asarray(pencil.local_shape, jnp.int32)
    filled = jnp.arange(cell.shape[0]) < used
    here = somewhere & jnp.all((local >= 0) & (local < counts), axis=1)
    beyond = fraction + (2 - width) / 2
    whole = jnp.floor(beyond)
    first = local + whole.astype(jnp.int32) + jnp.asarray([reach.before] * 2 + [0], jnp.int32)
    first = first.at[:, 2].set(first[:, 2] % shape[2])
    s = (2 * (beyond - whole) - 1)[:, :, None]
    coefficients = jnp.asarray(polynomials(width, sigma), offset.dtype).T  # (degree + 1, width)
    weights = functools.reduce(
        lambda sum_, c: sum_ * s + c,
        coefficients[::-1][1:],
        jnp.broadcast_to(coefficients[-1], (*offset.shape, width)),
    )
    return first, weights, filled & here, filled & ~here


_Places = tuple[jax.Array, jax.Array, jax.Array]


def _lines(
    first: jax.Array, weights: jax.Array, points: int, width: int
) -> Callable[[jax.Array], tuple[_Places, jax.Array]]:
    """A function from the number of a line to the places of its points in a block, of so many
    points along z, and their weights: both (rows, width). A place is an index for each axis, as a
    block may have more points than 32 bits count.
    """

    def line(number: jax.Array) -> tuple[_Places, jax.Array]:
        x, y = number // width, number % width
        z = (first[:, 2:] + jnp.arange(width, dtype=jnp.int32)) % points
        places = first[:, :1] + x, first[:, 1:2] + y, z
        return places, (weights[:, 0, x] * weights[:, 1, y])[:, None] * weights[:, 2]

    return line


def _spread_by_xla(*operands: jax.Array, pencil: Pencil, width: int, sigma: float) -> jax.Array:
    *points, strengths = operands
    shape = Assignment(width).padded(pencil)
    first, weights, counts, lost = _stencil(*points, pencil=pencil, width=width, sigma=sigma)
    line = _lines(first, weights, shape[2], width)
    given = jnp.where(counts[:, None], strengths, 0)

    def add(number: jax.Array, mesh: jax.Array) -> jax.Array:
        places, each = line(number)
        return mesh.at[places].add(given[:, None, :] * each[:, :, None], mode="drop")

    mesh = jnp.zeros((*shape, given.shape[1]), given.dtype)
    mesh = jax.lax.fori_loop(0, width * width, add, mesh)
    mesh = jnp.where(jnp.any(lost), jnp.nan, mesh)  # there is no error on these platforms
    return jnp.moveaxis(mesh, -1, 0)


def _interpolated_by_xla(
    *operands: jax.Array, pencil: Pencil, width: int, sigma: float
) -> jax.Array:
    *points, mesh = operands
    first, weights, counts, lost = _stencil(*points, pencil=pencil, width=width, sigma=sigma)
    line = _lines(first, weights, mesh.shape[3], width)

    def add(number: jax.Array, values: jax.Array) -> jax.Array:
        places, each = line(number)
        return values + (mesh.at[:, *places].get(mode="clip") * each).sum(-1).T

    values = jnp.zeros((first.shape[0], mesh.shape[0]), mesh.dtype)
    values = jax.lax.fori_loop(0, width * width, add, values)
    values = jnp.where(counts[:, None], values, 0)
    return jnp.where(lost[:, None], jnp.nan, values)


# ---- Primitives -------------------------------------------------------------------------------


def _order(*, pencil: Pencil, width: int) -> dict[str, np.int64]:
    """The attributes of the handlers."""
    return {"width": np.int64(width), **on(pencil)}


def _kernel(*, width: int, sigma: float, **of: Pencil) -> dict[str, np.ndarray | np.int64]:
    """The same with the polynomials as cpp/nufft/points.h has them, the highest power first."""
    rows = np.asarray(polynomials(width, sigma)).T[::-1]
    return {"coefficients": np.ascontiguousarray(rows).reshape(-1), **_order(width=width, **of)}


# cell, offset, used -> order, int32 (rows,)
order_p = local(
    "nufft_order",
    lambda cell, *_, **__: ShapedArray((cell.shape[0],), jnp.int32),
    _order,
    lambda cell, *_, **__: jnp.arange(cell.shape[0], dtype=jnp.int32),
)
constant(order_p)
batching.primitive_batchers[order_p] = functools.partial(one_by_one, order_p)

# cell, offset (rows, 3), used, order, strengths (rows, components) -> (components, *padded)
spread_p = local(
    "nufft_spread",
    lambda cell, offset, used, order, strengths, *, pencil, width, sigma: ShapedArray(
        (strengths.shape[1], *Assignment(width).padded(pencil)), strengths.dtype
    ),
    _kernel,
    _spread_by_xla,
)
# cell, offset, used, order, mesh (components, *padded) -> (rows, components)
interpolate_p = local(
    "nufft_interpolate",
    lambda cell, offset, used, order, mesh, **_: ShapedArray(
        (cell.shape[0], mesh.shape[0]), mesh.dtype
    ),
    _kernel,
    _interpolated_by_xla,
)

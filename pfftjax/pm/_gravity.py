"""The force of the density on a mesh."""

import functools
from typing import Literal

import jax
import jax.numpy as jnp
import numpy as np
from jax.ad_checkpoint import checkpoint_name

from pfftjax._runtime.arguments import where
from pfftjax._runtime.arrays import BoxSize, Number, RealBlock, RealBlockLike
from pfftjax._runtime.primitive import local_pair
from pfftjax.fft import PencilFFT
from pfftjax.pencils import halo_exchange
from pfftjax.spectral import gradient as spectral_gradient
from pfftjax.spectral.internal import sides

from ._spectral import field, inverse_k2, real_plan

Gradient = Literal["finite-difference", "spectral"]

_REACH = 2  # how far the fourth-order difference reaches, in cells
# The name of what reverse mode keeps of a step: one array of the size of the mesh, with which no
# transform is done again.
KEPT = "pfftjax.pm.gravity"


def gravity(
    density: RealBlockLike,
    plan: PencilFFT,
    box_size: BoxSize,
    *,
    gradient: Gradient = "finite-difference",
) -> RealBlock:
    """The field F = -grad phi, laplacian phi = density, on a periodic mesh.

    With density = 3/2 Omega_m delta this is the force of dp/dt = F / a (lengths in Mpc/h, H0 = 1).
    The mean of the density has no effect.

    Args:
        density: this rank's block, ``(*plan.input.local_shape,)``; one of integers becomes
            floating-point numbers.
        plan: ``PencilFFT(shape, grid, real=True)``.
        box_size: side of the box: a number, or one for each axis.
        gradient: "finite-difference", of fourth order (FastPM's default): one inverse transform
            and a halo, and antisymmetric, so that momentum is kept; or "spectral", exact for each
            mode, at 0.85 of three inverse transforms. Not for particles that still lie near
            a lattice of two cells: its derivative feels their discreteness, and growth comes out
            wrong by several per cent, too high or too low by mesh and scale (64^3 particles in
            1000 Mpc/h on 128^3 cells: 1.038 of it on the largest scales).

    Returns:
        Array ``(3, *plan.input.local_shape)``.

    Raises:
        ValueError: a plan, a block, a box or a gradient that do not fit.
        TypeError: complex numbers, or a dtype without a transform.

    Derivatives have no NaN at k = 0.

    Example:
        >>> from pfftjax import ProcessGrid
        >>> plan = PencilFFT((16, 16, 16), ProcessGrid(), real=True)
        >>> x = 2 * jnp.pi / 16 * plan.input.indices(0) + jnp.zeros(plan.input.local_shape)
        >>> force = gravity(jnp.sin(x), plan, 2 * jnp.pi, gradient="spectral")
        >>> bool(jnp.allclose(force[0], jnp.cos(x), atol=1e-6))
        True

    """
    return gravity_with_ghosts(density, plan, box_size, gradient=gradient, before=0, after=0)


def gravity_with_ghosts(
    density: RealBlockLike,
    plan: PencilFFT,
    box_size: BoxSize,
    *,
    gradient: Gradient,
    before: int,
    after: int,
) -> RealBlock:
    """`gravity` on the block and on ghosts around it along axes 0 and 1."""
    real_plan(plan, "gravity")
    checked_gradient(gradient, where("gravity", plan.grid.communicator))
    source = field(density, plan, "gravity")
    lengths = sides(box_size, plan, "gravity")
    if gradient == "spectral":
        source = checkpoint_name(source, KEPT)
    potential = -inverse_k2(plan, lengths, source.dtype) * plan.forward(source)
    if gradient == "finite-difference":
        width = (_REACH + before, _REACH + after)
        phi = checkpoint_name(plan.inverse(potential), KEPT)
        return _minus_gradient(halo_exchange(phi, plan.input, (width, width)), plan, lengths)
    force = jnp.stack(spectral_gradient(-potential, plan, lengths, from_spectrum=True))
    return halo_exchange(force, plan.input, ((before, after), (before, after)))


def checked_gradient(gradient: str, here: str) -> None:
    """Refuse what is not the name of one."""
    if gradient not in ("finite-difference", "spectral"):
        raise ValueError(
            f"{here}: gradient must be finite-difference or spectral, got {gradient!r}"
        )


def _minus_gradient(phi: jax.Array, plan: PencilFFT, lengths: tuple[Number, ...]) -> RealBlock:
    """-grad of a potential that has two ghosts more all around along axes 0 and 1."""
    n2 = phi.shape[2]
    if n2 >= _REACH:
        phi = jnp.concatenate([phi[..., -_REACH:], phi, phi[..., :_REACH]], axis=2)
    else:
        phi = phi[..., jnp.arange(-_REACH, n2 + _REACH) % n2]
    per_cell = [n / (12 * side) for n, side in zip(plan.shape, lengths, strict=True)]
    scale = jnp.stack([jnp.asarray(x, phi.dtype) for x in per_cell])
    return scale[:, None, None, None] * differences_p.bind(phi)


# ---- Differences -------------------------------------------------------------------------------

# -(8 (f(1) - f(-1)) - (f(2) - f(-2))) along each axis of an array with ghosts is a primitive: its
# adjoint is the same stencil with the other sign on an array padded by zeros, five times as fast
# as the sum of padded slices that JAX would make of it.
_OFFSETS = ((2, 1.0), (-2, -1.0), (1, -8.0), (-1, 8.0))


def _stencil(
    f: jax.Array, axis: int, shape: tuple[int, ...], corner: tuple[int, ...]
) -> jax.Array:
    """The stencil along one axis on the box of that shape whose first cell is at `corner`."""
    parts = []
    for by, weight in _OFFSETS:
        start = [c + (by if a == axis else 0) for a, c in enumerate(corner)]
        part = jax.lax.slice(f, start, [s + n for s, n in zip(start, shape, strict=True)])
        parts.append(part * np.asarray(weight, f.dtype))
    return functools.reduce(jnp.add, parts)


def _differences(f: jax.Array) -> jax.Array:
    inner = tuple(n - 2 * _REACH for n in f.shape)
    return jnp.stack([_stencil(f, axis, inner, (_REACH,) * 3) for axis in range(3)])


def _differences_transposed(g: jax.Array) -> jax.Array:
    whole = tuple(n + 2 * _REACH for n in g.shape[1:])
    parts = []
    for axis in range(3):
        widths = [2 * _REACH if a == axis else _REACH for a in range(3)]
        corner = tuple(_REACH if a == axis else 0 for a in range(3))
        parts.append(_stencil(jnp.pad(g[axis], [(w, w) for w in widths]), axis, whole, corner))
    return -functools.reduce(jnp.add, parts)


differences_p, differences_transposed_p = local_pair(
    "differences", _differences, _differences_transposed
)

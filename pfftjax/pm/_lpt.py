"""Initial conditions by Lagrangian perturbation theory."""

import dataclasses
import math
from collections.abc import Sequence
from typing import Literal

import jax
import jax.numpy as jnp
import numpy as np
from jax.core import Tracer
from jax.typing import DTypeLike

from pfftjax._runtime.arrays import BoxSize, Count, Number, RealBlockLike
from pfftjax._runtime.primitive import static_ints, where
from pfftjax.fft import PencilFFT, padded_inverse, truncated_forward
from pfftjax.spectral import gradient
from pfftjax.spectral.internal import odd_wavenumbers, sides

from ._expected import as_known, expect
from ._growth import Cosmology, check_cosmology, checked_scale_factors, growth
from ._particles import Particles, scaled_index
from ._spectral import field, inverse_k2, real_plan

# Later than this perturbation theory starts no simulation; redshifts are mostly larger.
_LATEST = 2.0


def lpt(
    delta: RealBlockLike,
    plan: PencilFFT,
    box_size: BoxSize,
    cosmology: Cosmology,
    scale_factor: Number,
    *,
    order: Literal[1, 2] = 2,
    mesh_shape: Sequence[int] | None = None,
    dealias: bool = False,
) -> Particles:
    """Particles displaced from a regular grid by Lagrangian perturbation theory.

        x = q + D1 psi1 + D2 psi2,    psi1 = -grad phi1,    psi2 = grad phi2
        laplacian phi1 = delta(z = 0) / D1(1)
        laplacian phi2 = sum over i < j of (phi1_ii phi1_jj - phi1_ij^2)
        p = a^2 E (dD1/dln a psi1 + dD2/dln a psi2)

    (Bouchet et al. 1995; Scoccimarro 1998). The products of the second order are formed on the
    particle grid as it is, and so have aliases, unless `dealias` is true.

    Args:
        delta: this rank's block of the linear density contrast at z = 0, of `linear_field`.
        plan: ``PencilFFT(shape, grid, real=True)``; there is one particle for each of its points.
        box_size: side of the box [Mpc/h]: a number, or one for each axis.
        cosmology: a `jax_cosmo.Cosmology`, under `grad` as in `simulate`.
        scale_factor: when, 1 being today; at most 2. Of redshift z it is 1 / (1 + z).
        order: 1 (Zel'dovich) or 2.
        mesh_shape: of the mesh on which forces are computed, whose cells are the unit of
            positions; by default that of `plan`.
        dealias: form the products by the 3/2 rule (Orszag 1971), on a grid of 27/8 as many points:
            the modes that the particle grid has are then those of the continuous product. Modes
            at a Nyquist frequency, which have no sign, are left out of the factors.

    Returns:
        `Particles`, on the ranks that own their points on the regular grid, in its order.

    Raises:
        ValueError: a plan, a block, a box, an order or a mesh that do not fit, or a scale factor
            that is not positive or above 2. A traced one above 2 is an error when it runs.
        TypeError: complex numbers, a dtype without a transform, or no cosmology.

    """
    real_plan(plan, "lpt")
    here = where("lpt", plan.grid.communicator)
    if isinstance(order, bool) or order not in (1, 2):
        raise ValueError(f"{here}: order must be 1 or 2, got {order!r}")
    if not isinstance(dealias, bool):
        raise TypeError(f"{here}: dealias must be True or False, got {dealias!r}")
    shape = static_ints(
        plan.shape if mesh_shape is None else mesh_shape,
        "mesh_shape",
        "lpt",
        plan.grid.communicator,
    )
    if len(shape) != 3 or min(shape) < 1:
        raise ValueError(f"{here}: mesh_shape must be three positive sizes, got {mesh_shape!r}")
    check_cosmology(cosmology, here)
    used = _not_a_redshift(scale_factor, math.prod(plan.input.local_shape), plan, here)
    delta = field(delta, plan, "lpt")
    lengths = sides(box_size, plan, "lpt")
    dtype = delta.dtype
    now, today = growth(cosmology, scale_factor), growth(cosmology, 1.0)
    velocity = now.scale_factor**2 * now.e

    source = plan.forward(delta / today.d1.astype(dtype))
    psi1 = displacement(source, plan, box_size, dtype)
    offset = now.d1.astype(dtype) * psi1
    momentum = (velocity * now.d1_rate).astype(dtype) * psi1
    if order == 2:
        second = _second_source(source, plan, box_size, dtype, dealias=dealias)
        psi2 = displacement(-second, plan, box_size, dtype)
        # psi2 = grad phi2 where psi1 = -grad phi1: hence the sign of the source.
        offset = offset + now.d2.astype(dtype) * psi2
        momentum = momentum + (velocity * now.d2_rate).astype(dtype) * psi2

    cells, starts = [], []
    for axis, (n, m) in enumerate(zip(plan.shape, shape, strict=True)):
        whole, rest = scaled_index(plan.input.indices(axis), n, m, dtype)
        cells.append(jnp.broadcast_to(whole, plan.input.local_shape))
        starts.append(jnp.broadcast_to(rest, plan.input.local_shape))
    per_cell = jnp.asarray([m / side for m, side in zip(shape, lengths, strict=True)])
    rows = math.prod(plan.input.local_shape)
    at_rest = jnp.stack(starts, -1).reshape(rows, 3)
    return Particles(
        cell=jnp.stack(cells, -1).reshape(rows, 3).astype(jnp.int32),
        offset=at_rest + _rows(offset) * per_cell.astype(dtype),
        momentum=_rows(momentum),
        used=used,
        total=math.prod(plan.shape),
        mesh_shape=(shape[0], shape[1], shape[2]),
        scale_factor=as_known(scale_factor),
        box_size=as_known(lengths),
    )


def _not_a_redshift(scale_factor: Number, rows: int, plan: PencilFFT, here: str) -> Count:
    """How many rows are used, unless the scale factor is one for which nobody starts."""
    a = checked_scale_factors(scale_factor)
    if a.ndim:
        raise ValueError(f"{here}: scale_factor must be one number, got shape {a.shape}")
    if not isinstance(scale_factor, Tracer):
        a = float(np.asarray(scale_factor))
        if a > _LATEST:
            raise ValueError(
                f"{here}: scale_factor={a!r} looks like a redshift; pass the scale factor, "
                f"a = 1 / (1 + z) = {1 / (1 + a):.6g}"
            )
        return jnp.int32(rows)
    return expect(
        jnp.int32(rows),
        a,
        jnp.minimum(a, _LATEST),
        operation="lpt",
        what="scale_factor",
        but="particles start at most at",
        remedy="of a redshift z the scale factor is a = 1 / (1 + z)",
        tolerance=0.0,
        comm=plan.grid.communicator,
    )


def displacement(
    source: jax.Array, plan: PencilFFT, box_size: BoxSize, dtype: DTypeLike
) -> jax.Array:
    """-grad of the inverse Laplacian of a field, from its spectrum: (3, *block)."""
    potential = inverse_k2(plan, box_size, dtype) * source
    return jnp.stack(gradient(potential, plan, box_size, from_spectrum=True))


def _second_source(
    source: jax.Array, plan: PencilFFT, box_size: BoxSize, dtype: DTypeLike, *, dealias: bool
) -> jax.Array:
    """The spectrum of the sum over i < j of phi_ii phi_jj - phi_ij^2, laplacian phi = source."""
    kx, ky, kz = plan.wavenumbers(box_size, dtype)
    gx, gy, gz = odd_wavenumbers(plan, sides(box_size, plan, "lpt"), kx.dtype)
    potential = inverse_k2(plan, box_size, dtype) * source  # -phi; its sign cancels in products
    finer = plan
    if dealias:
        n0, n1, n2 = (-(-3 * n // 2) if n > 1 else 1 for n in plan.shape)
        finer = dataclasses.replace(plan, shape=(n0, n1, n2))
        # A product of two modes at n / 2 would come back as one there.
        for axis, n in enumerate(plan.shape):
            if n > 1:
                potential = jnp.where(2 * plan.output.indices(axis) == n, 0, potential)

    def in_space(spectra: list[jax.Array]) -> jax.Array:
        y = jnp.stack(spectra)
        return padded_inverse(y, plan, finer) if dealias else plan.inverse(y)

    xx, yy, zz = in_space([k * k * potential for k in (kx, ky, kz)])
    result = xx * yy + (xx + yy) * zz
    xy, xz, yz = in_space([k * potential for k in (gx * gy, gx * gz, gy * gz)])
    result = result - (xy**2 + xz**2 + yz**2)
    return truncated_forward(result, finer, plan) if dealias else plan.forward(result)


def _rows(components: jax.Array) -> jax.Array:
    """(3, *block) -> (rows, 3)."""
    return components.reshape(3, -1).T

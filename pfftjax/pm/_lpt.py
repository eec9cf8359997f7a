"""Initial conditions by Lagrangian perturbation theory."""

import dataclasses
import functools
import math
from collections.abc import Sequence
from typing import Literal

import jax
import jax.numpy as jnp
import numpy as np
from jax.core import Tracer
from jax.typing import DTypeLike

from pfftjax._runtime.arguments import static_ints, where
from pfftjax._runtime.arrays import BoxSize, Count, Number, RealBlockLike
from pfftjax._runtime.rematerialization import select
from pfftjax.fft import PencilFFT, padded_inverse, truncated_forward
from pfftjax.spectral import gradient
from pfftjax.spectral.internal import odd_wavenumbers, sides

from ._expected import as_known, expect
from ._growth import Cosmology, check_cosmology, checked_scale_factors, growths
from ._particles import Particles, lattice_points
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
    order: Literal[1, 2, 3] = 2,
    mesh_shape: Sequence[int] | None = None,
    dealias: bool = False,
    keep_displacements: bool = False,
) -> Particles:
    """Particles displaced from a regular grid by Lagrangian perturbation theory.

        x = q + D1 psi1 + D2 psi2 + D3a psi3a + D3b psi3b + D3c psi3c
        psi1 = -grad phi1,    laplacian phi1 = delta(z = 0) / D1(1)
        psi2 = grad phi2,     laplacian phi2 = sum over i < j of (phi1_ii phi1_jj - phi1_ij^2)
        div psi3a = det psi1_ij,    psi_ij = d psi_i / dq_j
        div psi3b = sum over i and j of (psi1_ii psi2_jj - psi1_ij psi2_ij) / 2
        curl psi3c = sum over l of grad psi1_l x grad psi2_l
        p = a^2 E (dD1/dln a psi1 + ...)

    (Bouchet et al. 1995; Catelan 1995; Scoccimarro 1998). Products are formed on the particle grid
    as it is, and so have aliases, unless `dealias` is true.

    Args:
        delta: this rank's block of the linear density contrast at z = 0, of `linear_field`.
        plan: ``PencilFFT(shape, grid, real=True)``; there is one particle for each of its points.
        box_size: side of the box [Mpc/h]: a number, or one for each axis.
        cosmology: a `jax_cosmo.Cosmology`, under `grad` as in `simulate`.
        scale_factor: when, 1 being today; at most 2. Of redshift z it is 1 / (1 + z).
        order: 1 (Zel'dovich), 2 or 3, with which a simulation may start at about a = 0.1 to 0.2
            (Michaux et al. 2021).
        mesh_shape: of the mesh on which forces are computed, whose cells are the unit of
            positions; by default that of `plan`.
        dealias: form the products by the 3/2 rule (Orszag 1971), on a grid of 27/8 as many points,
            those of third order on one of 8 times as many: the modes that the particle grid has
            are then those of the continuous product. Modes at a Nyquist frequency, which have no
            sign, are left out of the factors.
        keep_displacements: particles keep psi1 and psi2, as `cola` needs them: 24 bytes a particle
            in float32. Only if `order` is 2 or 3.

    Returns:
        `Particles`, on the ranks that own their points on the regular grid, in its order.

    Raises:
        ValueError: a plan, a block, a box, an order or a mesh that do not fit, or a scale factor
            that is not positive or above 2. A traced one above 2 is an error when it runs.
        TypeError: complex numbers, a dtype without a transform, or no cosmology.

    """
    real_plan(plan, "lpt")
    here = where("lpt", plan.grid.communicator)
    if isinstance(order, bool) or order not in (1, 2, 3):
        raise ValueError(f"{here}: order must be 1, 2 or 3, got {order!r}")
    if not isinstance(dealias, bool):
        raise TypeError(f"{here}: dealias must be True or False, got {dealias!r}")
    if keep_displacements and order == 1:
        raise ValueError(f"{here}: order=1 has no second displacement to keep; pass order=2")
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
    times = checked_scale_factors(scale_factor), jnp.ones(())
    now, today = growths(cosmology, *times, order=3 if order == 3 else 2)
    velocity = now.scale_factor**2 * now.e

    source = plan.forward(delta / today.d1.astype(dtype))
    parts = [(now.d1, now.d1_rate, displacement(source, plan, box_size, dtype))]
    if order > 1:
        products = _Products(plan, lengths, dtype, dealias=dealias)
        second = products.second(source)
        # psi2 = grad phi2 where psi1 = -grad phi1: hence the sign of the source.
        parts.append((now.d2, now.d2_rate, displacement(-second, plan, box_size, dtype)))
        if now.d3 is not None and now.d3_rate is not None:
            parts += zip(now.d3, now.d3_rate, products.third(source, second), strict=True)
    offset = functools.reduce(jnp.add, [d.astype(dtype) * psi for d, _, psi in parts])
    momentum = functools.reduce(
        jnp.add, [(velocity * rate).astype(dtype) * psi for _, rate, psi in parts]
    )

    cell, at_rest = lattice_points(plan.input, shape, dtype)
    per_cell = jnp.asarray([m / side for m, side in zip(shape, lengths, strict=True)])
    return Particles(
        cell=cell,
        offset=at_rest + _rows(offset) * per_cell.astype(dtype),
        momentum=_rows(momentum),
        used=used,
        total=math.prod(plan.shape),
        mesh_shape=(shape[0], shape[1], shape[2]),
        scale_factor=as_known(scale_factor),
        box_size=as_known(lengths),
        displacements=jnp.stack([_rows(psi) for _, _, psi in parts[:2]], 1)
        if keep_displacements
        else None,
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


class _Products:
    """Products of second derivatives of potentials, as spectra."""

    def __init__(
        self, plan: PencilFFT, lengths: tuple[Number, ...], dtype: DTypeLike, *, dealias: bool
    ) -> None:
        self.plan, self.lengths, self.dtype, self.dealias = plan, lengths, dtype, dealias
        self.k = plan.wavenumbers(lengths, dtype)
        # A derivative of first order is zero at Nyquist frequencies, which have no sign.
        self.odd = odd_wavenumbers(plan, lengths, self.k[0].dtype)

    def _finer(self, degree: int) -> PencilFFT:
        """The mesh on which a product of so many factors has no aliases that are kept."""
        if not self.dealias:
            return self.plan
        n0, n1, n2 = (-(-(degree + 1) * n // 2) if n > 1 else 1 for n in self.plan.shape)
        return dataclasses.replace(self.plan, shape=(n0, n1, n2))

    def _hessian(self, source: jax.Array, mesh: PencilFFT) -> tuple[jax.Array, jax.Array]:
        """-phi_ij on a mesh, laplacian phi = source: xx, yy, zz and xy, xz, yz.

        Each three are inverted at once: a stack of all six would need buffers twice as large.
        """
        potential = inverse_k2(self.plan, self.lengths, self.dtype) * source  # -phi
        if self.dealias:
            # A product of two modes at n / 2 would come back as one there.
            for axis, n in enumerate(self.plan.shape):
                if n > 1:
                    is_last = 2 * self.plan.output.indices(axis) == n
                    potential = select(is_last, 0, potential)
        (kx, ky, kz), (gx, gy, gz) = self.k, self.odd

        def inverse(*factors: jax.Array) -> jax.Array:
            spectra = jnp.stack([-factor * potential for factor in factors])
            if self.dealias:
                return padded_inverse(spectra, self.plan, mesh)
            return self.plan.inverse(spectra)

        return inverse(kx * kx, ky * ky, kz * kz), inverse(gx * gy, gx * gz, gy * gz)

    def _spectrum(self, fields: jax.Array, mesh: PencilFFT) -> jax.Array:
        """The spectrum of fields on a mesh, in the modes that the particle grid has."""
        if self.dealias:
            return truncated_forward(fields, mesh, self.plan)
        return self.plan.forward(fields)

    def second(self, source: jax.Array) -> jax.Array:
        """The sum over i < j of phi_ii phi_jj - phi_ij^2."""
        mesh = self._finer(2)
        (xx, yy, zz), (xy, xz, yz) = self._hessian(source, mesh)
        result = xx * yy + (xx + yy) * zz - (xy**2 + xz**2 + yz**2)
        return self._spectrum(result, mesh)

    def third(self, source: jax.Array, second: jax.Array) -> list[jax.Array]:
        """psi3a, psi3b and psi3c, of the sources of first and second order: (3, *block) each."""
        plan, mesh = self.plan, self._finer(3)
        first = jnp.concatenate(self._hessian(source, mesh))  # psi1_ij
        xx, yy, zz, xy, xz, yz = first
        determinant = xx * (yy * zz - yz**2) - xy * (xy * zz - yz * xz) + xz * (xy * yz - yy * xz)
        other = -jnp.concatenate(self._hessian(second, mesh))  # psi2_ij
        uu, vv, ww, uv, uw, vw = other
        mixed = (
            xx * (vv + ww) + yy * (uu + ww) + zz * (uu + vv) - 2 * (xy * uv + xz * uw + yz * vw)
        ) / 2

        def cross(j: int, k: int) -> jax.Array:
            """The sum over l of psi1_lj psi2_lk - psi1_lk psi2_lj."""
            rows = ((0, 3, 4), (3, 1, 5), (4, 5, 2))
            terms = [first[row[j]] * other[row[k]] - first[row[k]] * other[row[j]] for row in rows]
            return functools.reduce(jnp.add, terms)

        products = jnp.stack([determinant, mixed, cross(1, 2), cross(2, 0), cross(0, 1)])
        det, mix, cx, cy, cz = self._spectrum(products, mesh)
        gx, gy, gz = self.odd
        curl = jnp.stack([gy * cz - gz * cy, gz * cx - gx * cz, gx * cy - gy * cx])
        inverse = inverse_k2(plan, self.lengths, self.dtype)
        return [
            displacement(-det, plan, self.lengths, self.dtype),
            displacement(-mix, plan, self.lengths, self.dtype),
            plan.inverse(1j * inverse * curl),
        ]


def _rows(components: jax.Array) -> jax.Array:
    """(3, *block) -> (rows, 3)."""
    return components.reshape(3, -1).T

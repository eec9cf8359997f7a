"""Weak gravitational lensing by the matter on a light cone."""

import jax.numpy as jnp
import numpy as np
from jax.core import Tracer

from pfftjax._runtime.arrays import Reals, RealsLike, Series
from pfftjax.pm import comoving_distance, scale_factor_at
from pfftjax.pm.internal import HUBBLE_DISTANCE, Cosmology, are_positive

from ._light_cone import LightCone, Shells, radial_rule


def lensing_weights(
    cone: LightCone, cosmology: Cosmology, redshift: RealsLike, weights: RealsLike | None = None
) -> Series:
    """By what the density contrast of each shell contributes to `convergence`: (shells,)."""
    here = "convergence"
    curvature = cosmology.Omega_k
    if not isinstance(curvature, Tracer) and abs(float(curvature)) > 1e-6:
        raise ValueError(
            f"{here}: Omega_k is {float(curvature)}, and a periodic box has no curvature; give a "
            "flat cosmology"
        )
    z = jnp.atleast_1d(jnp.asarray(redshift, float))
    share = jnp.ones_like(z) if weights is None else jnp.asarray(weights, float)
    if z.ndim != 1 or share.shape != z.shape:
        raise ValueError(
            f"{here}: redshift must be one number or a vector, with as many weights, if any; got "
            f"shapes {np.shape(redshift)} and {share.shape}"
        )
    if not are_positive(redshift):
        raise ValueError(f"{here}: redshifts of sources must be positive, got {redshift!r}")
    source = comoving_distance(cosmology, 1 / (1 + z))
    distance, measure = radial_rule(cone)
    behind = jnp.maximum(0, 1 - distance[:, None] / source) @ (share / share.sum())
    omega_m = jnp.asarray(cosmology.Omega_m, float)
    strength = 1.5 * omega_m / HUBBLE_DISTANCE**2
    lenses = jnp.where(behind > 0, distance, 0)  # others may be beyond any scale factor
    kernel = strength * distance * behind / scale_factor_at(cosmology, lenses)
    return (cone.weights(distance) * (measure * kernel)[:, None]).sum(0)


def convergence(
    shells: Shells, cosmology: Cosmology, redshift: RealsLike, weights: RealsLike | None = None
) -> Reals:
    """The convergence of light from sources behind the shells, to first order in the potential
    (Born's approximation):

        kappa = 3/2 Omega_m (H0/c)^2 int dchi chi (chi_s - chi) / chi_s delta / a

    along straight lines, over the distances of the shells, with their density contrast. Matter
    before the first edge or beyond the last does not lens.

    Args:
        shells: of a run with a `LightCone`.
        cosmology: that of the run, flat. May be traced and differentiated.
        redshift: of the sources, a number; or (n,), of samples of them.
        weights: (n,), of the samples, as n(z) at them; equal by default.

    Returns:
        (pixels,), the same on every rank. Differentiable in counts and cosmology.

    Raises:
        ValueError: a curved universe, or redshifts that are not positive or do not fit.

    Example:
        >>> import jax_cosmo
        >>> cone = LightCone(np.linspace(100.0, 900.0, 9), nside=8)
        >>> empty = Shells(jnp.zeros((8, 768)), jnp.asarray(1.0), cone)
        >>> bool((convergence(empty, jax_cosmo.Planck15(), 0.5) < 0).all())
        True

    """
    its = lensing_weights(shells.light_cone, cosmology, redshift, weights)
    return its.astype(shells.counts.dtype) @ shells.contrast()

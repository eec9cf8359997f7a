"""Initial conditions that are not Gaussian."""

from typing import Any

import jax.numpy as jnp

from pfftjax._runtime.arrays import BoxSize, Number, RealBlock, RealBlockLike, Reals
from pfftjax._runtime.rematerialization import select
from pfftjax.fft import PencilFFT
from pfftjax.spectral import apply
from pfftjax.spectral.internal import here

from ._distances import HUBBLE_DISTANCE
from ._field import Power, checked_power
from ._growth import Cosmology, check_cosmology, growth
from ._spectral import fields, real_plan

# Where the transfer function is taken to be one [h/Mpc].
_LARGE_SCALE = 1e-4


def local_non_gaussianity(
    delta: RealBlockLike,
    plan: PencilFFT,
    box_size: BoxSize,
    power: Power,
    cosmology: Cosmology,
    f_nl: Number,
) -> RealBlock:
    """A linear density contrast with primordial non-Gaussianity of the local kind.

    The potential of `delta` in matter domination, phi, becomes phi + f_nl (phi^2 - <phi^2>)
    (Komatsu & Spergel 2001). Density and potential are related by (Dalal et al. 2008)

        delta_k = alpha(k) phi_k,    alpha(k) = 2/3 k^2 T(k) D1 (c / H0)^2 / Omega_m

    with D1 today, normalised to the scale factor in matter domination. The transfer function is
    taken from the spectrum, P(k) ~ k^n_s T(k)^2, with T = 1 at 1e-4 h/Mpc. The bispectrum is then

        B = 2 f_nl P1 P2 alpha3 / (alpha1 alpha2) + 2 permutations.

    Args:
        delta: this rank's block of a Gaussian density contrast today, of `linear_field`.
        plan: ``PencilFFT(shape, grid, real=True)``.
        box_size: side of the box [Mpc/h]: a number, or one for each axis.
        power: P(k) [(Mpc/h)^3], that of `delta`, down to 1e-4 h/Mpc.
        cosmology: a `jax_cosmo.Cosmology`; n_s, Omega_m and what `growth` depends on.
        f_nl: the amplitude. A positive one makes more massive halos. May be traced, and
            differentiated.

    Returns:
        This rank's block, of mean zero.

    Raises:
        ValueError: a plan, a block, a box or a power that do not fit.
        TypeError: complex numbers, no cosmology, or a power that is no function of real values.

    Example:
        >>> import jax, jax_cosmo
        >>> from pfftjax import ProcessGrid, pm
        >>> plan = PencilFFT((8, 8, 8), ProcessGrid(), real=True)
        >>> planck, noise = jax_cosmo.Planck15(), pm.white_noise(jax.random.key(0), plan.input)
        >>> power = pm.eisenstein_hu(planck)
        >>> delta = pm.linear_field(noise, plan, 1000.0, power)
        >>> skewed = local_non_gaussianity(delta, plan, 1000.0, power, planck, 100.0)
        >>> 0 < float(jnp.abs(skewed - delta).max()) < 0.1
        True

    """
    operation = "local_non_gaussianity"
    real_plan(plan, operation)
    check_cosmology(cosmology, here(operation, plan))
    delta = fields(delta, plan, operation)
    n_s: Any = getattr(cosmology, "n_s", None)
    if n_s is None:
        raise TypeError(f"{here(operation, plan)}: the cosmology has no spectral index n_s")
    largest = checked_power(power, jnp.array([_LARGE_SCALE]), here(operation, plan))[0]
    of_all = 2 / 3 * HUBBLE_DISTANCE**2 * growth(cosmology, 1.0).d1 / cosmology.Omega_m

    def times(field: Reals, sign: int) -> RealBlock:
        """`field` times alpha, or over it. Modes that have no power stay without."""

        def kernel(kx: Reals, ky: Reals, kz: Reals) -> Reals:
            k2 = kx**2 + ky**2 + kz**2
            k = jnp.sqrt(select(k2 == 0, 1, k2))
            p = checked_power(power, k, here(operation, plan))
            is_none = (k2 == 0) | (p == 0)
            transfer = jnp.sqrt(select(is_none, 1, p) / largest)
            alpha = of_all * k**2 * transfer * (k / _LARGE_SCALE) ** (-n_s / 2)
            return select(is_none, 0, alpha**sign).astype(delta.dtype)

        return apply(field, plan, box_size, kernel)

    return delta + (f_nl * times(times(delta, -1) ** 2, 1)).astype(delta.dtype)

"""Gaussian random fields with a given power spectrum."""

from collections.abc import Callable
from typing import Any

import jax.numpy as jnp
import numpy as np
from jax.core import Tracer
from jax.tree_util import Partial

from pfftjax._runtime.arrays import BoxSize, RealBlock, RealBlockLike, Reals, RealsLike, SeriesLike
from pfftjax._runtime.rematerialization import select
from pfftjax.fft import PencilFFT
from pfftjax.spectral.internal import here, sides, top_hat

from ._expected import as_known
from ._growth import Cosmology, are_positive, check_cosmology
from ._spectral import fields, real_plan

Power = Callable[[Reals], Reals]


def tabulated(k: SeriesLike, power: SeriesLike) -> Callable[[RealsLike], Reals]:
    """A power spectrum from a table, linear in the logarithms of both.

    Args:
        k: wavenumbers [h/Mpc], positive and rising.
        power: P(k) [(Mpc/h)^3], positive. May be traced, and differentiated.

    Returns:
        A function of wavenumbers, a `jax.tree_util.Partial`, so that it may be an argument of
        jitted functions. Beyond the table, the slope at its end goes on.

    Raises:
        ValueError: vectors that are not of one length, wavenumbers that do not rise, or numbers
            that have no logarithm.

    Example:
        >>> power = tabulated([0.1, 1.0], [100.0, 1.0])
        >>> [round(float(power(jnp.array(k))), 2) for k in (0.01, 0.5)]
        [10000.0, 4.0]

    """
    x, y = jnp.log(jnp.asarray(k, float)), jnp.log(jnp.asarray(power, float))
    known = as_known(k)
    if x.ndim != 1 or x.shape != y.shape or x.shape[0] < 2:
        raise ValueError(
            f"tabulated: k and power must be vectors of one length, got {x.shape} and {y.shape}"
        )
    if not (are_positive(k) and are_positive(power)):
        raise ValueError("tabulated: k and power must be positive, as their logarithms are taken")
    if not (isinstance(known, Tracer) or are_positive(np.diff(known))):
        raise ValueError("tabulated: k must rise from each entry to the next; sort the table")
    return Partial(_interpolated, x, y)


def _interpolated(x: Reals, y: Reals, k: RealsLike) -> Reals:
    return jnp.exp(jnp.interp(jnp.log(k), x, y, left="extrapolate", right="extrapolate"))


def eisenstein_hu(cosmology: Cosmology) -> Callable[[RealsLike], Reals]:
    """The linear power spectrum today by Eisenstein & Hu (1998), from jax-cosmo.

    Evaluated at 512 wavenumbers from 1e-4 to 100 h/Mpc and interpolated, so that a fine mesh costs
    no more than a coarse one. Differentiable in the cosmology. Its amplitude is that of sigma8:
    jax-cosmo's own normalisation leaves out large scales, and gives 1.0017 of it.

    Args:
        cosmology: a `jax_cosmo.Cosmology`; sigma8 sets the amplitude.

    """
    from jax_cosmo import power, transfer

    check_cosmology(cosmology, "eisenstein_hu")
    k = jnp.logspace(-4, 2, 512)
    # Without jax-cosmo's normalisation: replaced below, it would be most of a small program.
    its: Any = cosmology
    shape = power.primordial_matter_power(its, k) * transfer.Eisenstein_Hu(its, k) ** 2
    return tabulated(k, shape * (its.sigma8**2 / _variance(k, shape, 8.0)))


def _variance(k: Reals, power: Reals, radius: float) -> Reals:
    """The variance of the density in spheres, by the trapezoidal rule in ln k."""
    window = top_hat((k * radius) ** 2)
    return jnp.trapezoid(k**3 * power * window**2 / (2 * np.pi**2), jnp.log(k))


def linear_field(
    noise: RealBlockLike, plan: PencilFFT, box_size: BoxSize, power: Power
) -> RealBlock:
    """A Gaussian random field: white noise with the power spectrum impressed on it.

        delta_k = sqrt(V P(k)) w_k,    w the orthonormal transform of the noise

    with the mean left out (the mode k = 0 is zero).

    Args:
        noise: this rank's block of white noise of unit variance, of `white_noise`.
        plan: ``PencilFFT(shape, grid, real=True)``.
        box_size: side of the box [Mpc/h]: a number, or one for each axis.
        power: P(k) [(Mpc/h)^3] as a function of k [h/Mpc]: `tabulated`, `eisenstein_hu`, or any
            other that works on arrays.

    Returns:
        This rank's block of the density contrast, linear in `noise`.

    Raises:
        ValueError: a plan that is not for real fields, a block that does not match it, or a box
            that is none.
        ValueError: a power that is negative or not finite, outside of jit.
        TypeError: complex noise, a dtype without a transform, or a power that is no function of
            real values.

    Example:
        >>> import jax
        >>> from pfftjax import ProcessGrid
        >>> from pfftjax.pm import white_noise
        >>> plan = PencilFFT((8, 8, 8), ProcessGrid(), real=True)
        >>> noise = white_noise(jax.random.key(0), plan.input)
        >>> flat = linear_field(noise, plan, 8.0, lambda k: 0 * k + 1.0)
        >>> flat.shape == noise.shape
        True

    """
    real_plan(plan, "linear_field")
    noise = fields(noise, plan, "linear_field")
    x, y, z = sides(box_size, plan, "linear_field")
    kx, ky, kz = plan.wavenumbers((x, y, z), noise.dtype)
    k2 = kx**2 + ky**2 + kz**2
    zero = k2 == 0
    p = checked_power(power, jnp.sqrt(select(zero, 1, k2)), here("linear_field", plan))
    p = p.astype(noise.dtype)
    n0, n1, n2 = plan.shape
    per_cell = (n0 / x) * (n1 / y) * (n2 / z)  # cells per volume
    # The derivative of a square root at zero must not make NaN of a spectrum that is cut off.
    zero = zero | (p == 0)
    amplitude = select(zero, 0, jnp.sqrt(per_cell * select(zero, 1, p)))
    return plan.inverse(amplitude.astype(noise.dtype) * plan.forward(noise))


def checked_power(power: Power, k: Reals, here: str) -> Reals:
    """P(k), unless it cannot be a power."""
    if not callable(power):
        raise TypeError(
            f"{here}: power must be a function of k, got {type(power).__name__}; of a table make "
            "one by pm.tabulated(k, power)"
        )
    values = jnp.asarray(power(k))
    if jnp.iscomplexobj(values):
        raise TypeError(f"{here}: power(k) must be real, got {values.dtype}")
    if not isinstance(values, Tracer) and not bool(jnp.all((values >= 0) & jnp.isfinite(values))):
        raise ValueError(
            f"{here}: power(k) must be finite and not negative; here it is from "
            f"{float(jnp.min(values))} to {float(jnp.max(values))}"
        )
    return values

"""Distances of light that arrives today."""

from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np
from jax.core import Tracer

from pfftjax._runtime.arrays import Reals, RealsLike, SeriesLike

from ._growth import Cosmology, check_cosmology, checked_scale_factors, hubble
from ._intervals import gauss_legendre

# Speed of light over H0 [Mpc/h].
HUBBLE_DISTANCE = 2997.92458
# The integrand is smooth in ln a: these many points give ten digits back to a = 1e-3.
_POINTS = 48
_LEAST = 1e-3


def comoving_distance(cosmology: Cosmology, a: RealsLike | SeriesLike) -> Reals:
    """The comoving distance [Mpc/h] along the line of sight from where light set out at scale
    factor a: c/H0 times the integral of da / (a^2 E) up to today.

    Args:
        cosmology: a `jax_cosmo.Cosmology`. May be traced and differentiated.
        a: scale factors, of any shape.

    Example:
        >>> import jax_cosmo
        >>> flat = {"h": 0.7, "n_s": 1.0, "sigma8": 0.8, "Omega_k": 0.0, "w0": -1.0, "wa": 0.0}
        >>> einstein_de_sitter = jax_cosmo.Cosmology(Omega_c=0.95, Omega_b=0.05, **flat)
        >>> bool(jnp.isclose(comoving_distance(einstein_de_sitter, 0.25), 2997.92458))
        True

    """
    check_cosmology(cosmology, "comoving_distance")
    a = checked_scale_factors(a)
    rule = gauss_legendre(_POINTS)[:2]
    nodes, weights = (jnp.asarray(x, a.dtype).reshape(-1, *[1] * a.ndim) for x in rule)
    length = -jnp.log(a)
    at = a * jnp.exp(nodes * length)
    rates = weights / (at * hubble(cosmology, at))
    return HUBBLE_DISTANCE * length * rates.sum(0)


def scale_factor_at(cosmology: Cosmology, distance: RealsLike | SeriesLike) -> Reals:
    """The scale factor at which light set out that arrives today from a comoving distance
    [Mpc/h]: the inverse of `comoving_distance`, by Newton's method.

    Args:
        cosmology: a `jax_cosmo.Cosmology`. May be traced and differentiated.
        distance: of any shape, below that of a = 1e-3. What is beyond has NaN where it is traced.

    Raises:
        ValueError: a distance beyond that of a = 1e-3.

    Example:
        >>> import jax_cosmo
        >>> cosmology = jax_cosmo.Planck15()
        >>> a = scale_factor_at(cosmology, comoving_distance(cosmology, 0.4))
        >>> bool(jnp.isclose(a, 0.4))
        True

    """
    distance = jnp.asarray(distance, float)
    table = jnp.exp(jnp.linspace(jnp.log(_LEAST), 0.0, 64)).astype(distance.dtype)
    known = jax.lax.stop_gradient(comoving_distance(cosmology, table))
    if not isinstance(distance, Tracer) and not isinstance(known, Tracer):
        if np.any(distance > known[0]):
            raise ValueError(
                f"scale_factor_at: distances must be below that of a = {_LEAST:g}, which is "
                f"{float(known[0]):.0f} Mpc/h in this cosmology, got {distance}"
            )
    a = jnp.exp(jnp.interp(-jax.lax.stop_gradient(distance), -known, jnp.log(table)))
    a = jnp.where(distance > known[0], jnp.nan, a)

    def excess(a: jax.Array) -> jax.Array:
        return comoving_distance(cosmology, a) - distance

    def solved(excess: Callable[[jax.Array], jax.Array], a: jax.Array) -> jax.Array:
        for _ in range(3):
            a = a + excess(a) * a**2 * hubble(cosmology, a) / HUBBLE_DISTANCE
        return a

    # Derivatives of any order are those of the root, whatever the steps that led to it.
    return jax.lax.custom_root(excess, a, solved, each_by_itself)


def each_by_itself(linear: Callable[[jax.Array], jax.Array], y: jax.Array) -> jax.Array:
    """The solution of ``linear(x) = y``, where each number of y depends on that of x alone."""
    return y / linear(jnp.ones_like(y))

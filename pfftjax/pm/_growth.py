"""Expansion and linear growth."""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.core import Tracer

# The growing modes are followed from deep in matter domination, where they are known.
_START = 1e-7
_STEPS = 512


class Growth(NamedTuple):
    """Growth factors at some scale factors, normalised to D1 = a and D2 = -3/7 a^2 early.

    Attributes:
        scale_factor: a.
        e: the Hubble rate H(a) / H0.
        d1: of first order, D1.
        d1_rate: dD1 / dln a.
        d2: of second order, D2, negative.
        d2_rate: dD2 / dln a.
        omega_m: the matter density parameter today.

    """

    scale_factor: jax.Array
    e: jax.Array
    d1: jax.Array
    d1_rate: jax.Array
    d2: jax.Array
    d2_rate: jax.Array
    omega_m: jax.Array

    @property
    def momentum(self) -> jax.Array:
        """a^3 E dD1/da: the momentum of a particle whose displacement is D1."""
        return self.scale_factor**2 * self.e * self.d1_rate

    @property
    def momentum_rate(self) -> jax.Array:
        """a^2 E d(momentum)/da: by the growth equation, the force 3/2 Omega_m D1."""
        return 1.5 * self.omega_m * self.d1


def are_positive(values: Any) -> bool:
    """Whether all of `values` are positive, as far as they are known."""
    if any(isinstance(x, Tracer) for x in jax.tree.leaves(values)):
        return True
    return bool(np.all(np.asarray(values) > 0))


def scale_factors(a: Any) -> jax.Array:
    """`a` as an array, checked: others would make NaN."""
    if not are_positive(a):
        raise ValueError(f"scale factors must be positive, got {a!r}")
    return jnp.asarray(a, jnp.result_type(float))


def hubble(cosmology: Any, a: Any) -> jax.Array:
    """The Hubble rate in units of today's, E(a) = H(a) / H0.

    Args:
        cosmology: a `jax_cosmo.Cosmology`: matter, curvature and dark energy w0 + wa (1 - a).
        a: scale factor.

    """
    from jax_cosmo import background

    return jnp.sqrt(background.Esqr(cosmology, a))


def growth(cosmology: Any, a: Any) -> Growth:
    """Linear and second-order growth at scale factors, by integration from matter domination.

        D1'' = -(2 + dln H/dln a) D1' + 3/2 Omega_m(a) D1
        D2'' = -(2 + dln H/dln a) D2' + 3/2 Omega_m(a) (D2 - D1^2),    ' = d/dln a

    (Bouchet et al. 1995). D1/a and D2/a^2, constant in matter domination, are followed from
    a = 1e-7 by 512 steps of fourth-order Runge-Kutta.

    Args:
        cosmology: a `jax_cosmo.Cosmology`. May be traced and differentiated.
        a: scale factors, of any shape.

    Returns:
        `Growth`, of arrays of the shape of `a`.

    Raises:
        ValueError: a scale factor that is not positive.

    Example:
        >>> import jax_cosmo
        >>> flat = {"h": 0.7, "n_s": 1.0, "sigma8": 0.8, "Omega_k": 0.0, "w0": -1.0, "wa": 0.0}
        >>> einstein_de_sitter = jax_cosmo.Cosmology(Omega_c=0.95, Omega_b=0.05, **flat)
        >>> g = growth(einstein_de_sitter, 0.5)
        >>> bool(jnp.allclose(g.d1, 0.5)), bool(jnp.allclose(g.d2, -3 / 7 * 0.25))
        (True, True)

    """
    a = scale_factors(a)
    omega_m = jnp.asarray(cosmology.Omega_m, a.dtype)

    def rates(x: jax.Array) -> tuple[jax.Array, jax.Array]:
        """(dln E/dln a, Omega_m(a)) at ln a."""
        e, slope = jax.jvp(lambda x: hubble(cosmology, jnp.exp(x)), (x,), (jnp.ones_like(x),))
        return slope / e, omega_m / (jnp.exp(x) * e ** (2 / 3)) ** 3

    def derivative(x: jax.Array, state: jax.Array) -> jax.Array:
        e, omega = rates(x)
        g1, g1_rate, g2, g2_rate = state
        return jnp.stack(
            [
                g1_rate,
                -(4 + e) * g1_rate - (3 + e - 1.5 * omega) * g1,
                g2_rate,
                -(6 + e) * g2_rate - (8 + 2 * e) * g2 + 1.5 * omega * (g2 - g1**2),
            ]
        )

    start = jnp.log(jnp.asarray(_START, a.dtype))
    h = (jnp.log(a) - start) / _STEPS

    def advance(state: jax.Array, i: jax.Array) -> tuple[jax.Array, None]:
        x = start + i * h
        k1 = derivative(x, state)
        k2 = derivative(x + h / 2, state + h / 2 * k1)
        k3 = derivative(x + h / 2, state + h / 2 * k2)
        k4 = derivative(x + h, state + h * k3)
        return state + h / 6 * (k1 + 2 * k2 + 2 * k3 + k4), None

    one = jnp.ones_like(a)
    initial = jnp.stack([one, 0 * one, -3 / 7 * one, 0 * one])
    (g1, g1_rate, g2, g2_rate), _ = jax.lax.scan(
        advance, initial, jnp.arange(_STEPS, dtype=a.dtype)
    )
    return Growth(
        scale_factor=a,
        e=hubble(cosmology, a),
        d1=a * g1,
        d1_rate=a * (g1 + g1_rate),
        d2=a**2 * g2,
        d2_rate=a**2 * (2 * g2 + g2_rate),
        omega_m=omega_m,
    )

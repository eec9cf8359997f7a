"""Time steps as numbers: what an integrator multiplies momenta and forces by.

With p = a^2 dx/dt and the force F = -grad phi, laplacian phi = 3/2 Omega_m delta (lengths in
Mpc/h, H0 = 1), dx = p da/(a^3 E) and dp = F da/(a^2 E). A step is a kick by half, a drift, and a
kick by half; kicks that follow each other at the same positions are one.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from pfftjax._runtime.arrays import Series, SeriesLike

from ._growth import Cosmology, checked_scale_factors, growth, hubble


class Steps(NamedTuple):
    """Kicks and drifts in turn, as `simulate` goes through them.

    Attributes:
        kick: (steps + 1,), momentum per force.
        drift: (steps + 1,), after each kick: displacement per momentum. The last one is zero.

    """

    kick: Series
    drift: Series


# What the second argument is, is up to the integrator; those below take the ends of the steps.
Integrator = Callable[[Cosmology, Any], Steps]


def _steps(drift: Series, first: Series, second: Series) -> Steps:
    """`Steps` of the drift and the two half kicks of each step."""
    zero = jnp.zeros_like(drift[:1])
    return Steps(
        jnp.concatenate([first, zero]) + jnp.concatenate([zero, second]),
        jnp.concatenate([drift, zero]),
    )


def fastpm(cosmology: Cosmology, scale_factors: SeriesLike) -> Steps:
    """Kicks and drifts that are exact for the linear growing mode (Feng et al. 2016, section 2).

    With G = a^3 E dD1/da, a kick from a_i to a_f by the force at a_r is
    (G(a_f) - G(a_i)) / (a_r^2 E dG/da(a_r)), and a drift by the momentum at a_v is
    (D1(a_f) - D1(a_i)) / G(a_v). Forces are those at the ends of a step, the momentum is that at
    a_v = sqrt(a_i a_f).

    Args:
        cosmology: a `jax_cosmo.Cosmology`.
        scale_factors: (steps + 1,), the ends of the steps, in any direction.

    Example:
        >>> import jax_cosmo
        >>> steps = fastpm(jax_cosmo.Planck15(), jnp.linspace(0.1, 1.0, 11))
        >>> steps.drift.shape, float(steps.drift[-1])
        ((11,), 0.0)

    """
    a = _ends(scale_factors)
    ends, middle = growth(cosmology, a), growth(cosmology, jnp.sqrt(a[:-1] * a[1:]))
    drift = jnp.diff(ends.d1) / middle.momentum
    first = (middle.momentum - ends.momentum[:-1]) / ends.momentum_rate[:-1]
    second = (ends.momentum[1:] - middle.momentum) / ends.momentum_rate[1:]
    return _steps(drift, first, second)


def leapfrog(cosmology: Cosmology, scale_factors: SeriesLike) -> Steps:
    """Kicks and drifts by the integrals of da/(a^2 E) and da/(a^3 E) (Quinn et al. 1997).

    Symplectic, and independent of linear theory: it needs more steps for the same growth than
    `fastpm` does.

    Args:
        cosmology: a `jax_cosmo.Cosmology`.
        scale_factors: (steps + 1,), the ends of the steps, in any direction.

    """
    a = _ends(scale_factors)
    middle = jnp.sqrt(a[:-1] * a[1:])

    def integral(power: int, start: jax.Array, end: jax.Array) -> jax.Array:
        x, w = np.polynomial.legendre.leggauss(16)
        at = start + (end - start) * jnp.asarray((x[:, None] + 1) / 2, a.dtype)
        f = 1 / (at**power * hubble(cosmology, at))
        return (end - start) / 2 * (jnp.asarray(w, a.dtype)[:, None] * f).sum(0)

    return _steps(
        integral(3, a[:-1], a[1:]), integral(2, a[:-1], middle), integral(2, middle, a[1:])
    )


def _ends(scale_factors: SeriesLike) -> Series:
    a = checked_scale_factors(scale_factors)
    if a.ndim != 1 or a.shape[0] < 2:
        raise ValueError(
            "scale_factors are the ends of the steps, a vector of two or more, as "
            f"jnp.linspace(0.1, 1, 11); got shape {a.shape}"
        )
    return a

"""Time steps as numbers: what an integrator multiplies momenta and forces by.

With p = a^2 dx/dt and the force F = -grad phi, laplacian phi = 3/2 Omega_m delta (lengths in
Mpc/h, H0 = 1), dx = p da/(a^3 E) and dp = F da/(a^2 E). A step is a kick between two drifts or a
drift between two kicks; kicks that follow each other at the same positions are one, and so are
drifts by the same momenta.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from pfftjax._runtime.arrays import Number, Series, SeriesLike

from ._growth import Cosmology, checked_scale_factors, growth, hubble


class Steps(NamedTuple):
    """Kicks and drifts in turn, as `simulate` goes through them.

        x <- x + first_drift p
        p <- momentum[i] p + kick[i] F(x),    x <- x + drift[i] p,    for each stage i

    Any scheme that evaluates the force once a stage has this form: whether it starts with a kick
    (`fastpm`, with one stage more than steps, the last drift zero) or with a drift (`bullfrog`).

    Attributes:
        kick: (stages,), momentum per force.
        drift: (stages,), after each kick: displacement per momentum.
        momentum: (stages,), by which momenta are multiplied before each kick; None for one.
        first_drift: before the first kick; None for zero.

    """

    kick: Series
    drift: Series
    momentum: Series | None = None
    first_drift: Number | None = None


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


def bullfrog(cosmology: Cosmology, scale_factors: SeriesLike) -> Steps:
    """Drift, kick and drift that are exact to second order (Rampf, List & Hahn 2025, section 3).

    In D = D1 as the time, with v = dx/dD, the kick is v <- alpha v + (1 - alpha) A / D_m with
    div A = -delta at the positions after the first drift, and D_m the time there. The growing mode
    to second order, x = q + D psi1 + E psi2 with E = D2, passes through a step exactly if

        alpha = (E'_f - Q) / (E'_i - Q),    Q = (E_i + (D_m - D_i) E'_i) / D_m - D_m,    ' = d/dD

    and if the drifts, which add up to D_f - D_i, have

        (D_f - D_m) (E'_f - E'_i) = E_f - E_i - (D_f - D_i) E'_i.

    There D_m is not quite half way, as it is in that paper, which differs in a universe with dark
    energy only. It takes a force for each step, and three to ten steps do for large scales;
    steps that are too long near the start (D grows by more than 3.2) have a negative alpha.

    Args:
        cosmology: a `jax_cosmo.Cosmology`.
        scale_factors: (steps + 1,), the ends of the steps, in any direction.

    Example:
        >>> import jax_cosmo
        >>> steps = bullfrog(jax_cosmo.Planck15(), jnp.linspace(0.1, 1.0, 6))
        >>> steps.kick.shape, steps.momentum.shape
        ((5,), (5,))

    """
    ends = growth(cosmology, _ends(scale_factors))
    d, e, slope = ends.d1, ends.d2, ends.d2_rate / ends.d1_rate
    # The drifts are half of D_f - D_i each but for the error of the trapezoidal rule.
    beyond = (jnp.diff(e) - jnp.diff(d) * (slope[:-1] + slope[1:]) / 2) / jnp.diff(slope)
    before, after = jnp.diff(d) / 2 - beyond, jnp.diff(d) / 2 + beyond
    middle = d[:-1] + before
    q = (e[:-1] + before * slope[:-1]) / middle - middle
    alpha = (slope[1:] - q) / (slope[:-1] - q)
    lost = (slope[:-1] - slope[1:]) / (slope[:-1] - q)  # 1 - alpha
    # v = p / momentum, F = 3/2 Omega_m A.
    force = 1.5 * ends.omega_m * middle
    between = after[:-1] + before[1:]
    return Steps(
        kick=lost * ends.momentum[1:] / force,
        drift=jnp.concatenate([between, after[-1:]]) / ends.momentum[1:],
        momentum=alpha * ends.momentum[1:] / ends.momentum[:-1],
        first_drift=before[0] / ends.momentum[0],
    )


def _ends(scale_factors: SeriesLike) -> Series:
    a = checked_scale_factors(scale_factors)
    if a.ndim != 1 or a.shape[0] < 2:
        raise ValueError(
            "scale_factors are the ends of the steps, a vector of two or more, as "
            f"jnp.linspace(0.1, 1, 11); got shape {a.shape}"
        )
    return a

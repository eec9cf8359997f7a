"""Time steps as numbers: what an integrator multiplies momenta and forces by.

With p = a^2 dx/dt and the force F = -grad phi, laplacian phi = 3/2 Omega_m delta (lengths in
Mpc/h, H0 = 1), dx = p da/(a^3 E) and dp = F da/(a^2 E). A step is a kick between two drifts or a
drift between two kicks; kicks that follow each other at the same positions are one, and so are
drifts by the same momenta.

Between two times growth factors change by their differences, in float64. In float32 the digits of
differences would be lost, and the changes are integrals.
"""

from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.core import Tracer

from pfftjax._runtime.arrays import Number, Reals, Series, SeriesLike

from ._beforehand import beforehand
from ._expected import as_known
from ._growth import Cosmology, Growth, checked_scale_factors, growths, hubble
from ._intervals import Intervals


class Paths(NamedTuple):
    """What stages or outputs add besides, for each of the displacements psi1 and psi2 of
    perturbation theory that particles keep (`Particles.displacements`):

        p <- p + kick[0] psi1 + kick[1] psi2,    x <- x + drift[0] psi1 + drift[1] psi2

    Attributes:
        kick: (stages, 2), or (outputs, 2).
        drift: as many.

    """

    kick: Reals
    drift: Reals


class Outputs(NamedTuple):
    """Particles between the steps, of the positions and the force of the nearest stage:

        x <- x + drift p + fall F,    p <- momentum p + kick F

    with the momenta before the kick of that stage.

    Attributes:
        stage: int (outputs,), known while a program is traced.
        drift: (outputs,), displacement per momentum.
        fall: (outputs,), displacement per force.
        momentum: (outputs,), by which momenta are multiplied.
        kick: (outputs,), momentum per force.
        paths: added to both; None for nothing.

    """

    stage: np.ndarray
    drift: Series
    fall: Series
    momentum: Series
    kick: Series
    paths: Paths | None = None


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
        outputs: `Outputs` at the scale factors that the integrator was asked for, in their order;
            None where it was asked for none.
        paths: added in each stage, as `cola` does, with its kick and with its drift; None for
            nothing. Particles must then keep their displacements.

    """

    kick: Series
    drift: Series
    momentum: Series | None = None
    first_drift: Number | None = None
    outputs: Outputs | None = None
    paths: Paths | None = None


# What the second argument is, is up to the integrator; those below take the ends of the steps. For
# outputs it is called with outputs=, their scale factors.
Integrator = Callable[..., Steps]


def _has_digits(x: jax.Array) -> bool:
    """Whether differences keep enough digits."""
    return x.dtype == jnp.float64


class _Changes(NamedTuple):
    """What grows between times, of a growing mode, or of a free particle's p = 1 and a force
    F = 1: displacements and momenta.
    """

    displacement: jax.Array
    momentum: jax.Array


class _Mode(NamedTuple):
    """A growing mode: displacement, momentum and force, and d/dln a of the former two."""

    displacement: jax.Array
    momentum: jax.Array
    force: jax.Array
    displacement_rate: jax.Array
    momentum_rate: jax.Array

    @classmethod
    def of_order(cls, order: int, g: Growth) -> "_Mode":
        """By the equations of D1 and D2, the forces are 3/2 Omega_m D1 and (D2 - D1^2)."""
        d, rate = (g.d1, g.d1_rate) if order == 1 else (g.d2, g.d2_rate)
        force = 1.5 * g.omega_m * (d if order == 1 else d - g.d1**2)
        velocity = g.scale_factor**2 * g.e
        return cls(d, velocity * rate, force, rate, force / (g.scale_factor * g.e))


class _Growing:
    """The growing mode through steps: at their ends, in their middle, and how it changes in the
    intervals of `_halves`.
    """

    def __init__(self, cosmology: Cosmology, ends: jax.Array, outputs: "_Placed") -> None:
        middle, start, end = _halves(ends, outputs)
        self._intervals = None if _has_digits(start) else Intervals(start, end, middle.size)
        within = jnp.stack([start, end]) if self._intervals is None else self._intervals.points
        self._growths = growths(cosmology, ends, middle, within)

    def of_order(self, order: int) -> tuple[_Mode, _Mode, _Changes]:
        """The mode of first or second order at ends and in the middle, and its changes."""
        at_ends, in_middle, mode = (_Mode.of_order(order, g) for g in self._growths)
        if self._intervals is None:
            ways = (jnp.diff(x, axis=0)[0] for x in (mode.displacement, mode.momentum))
        else:
            rates = (mode.displacement_rate, mode.momentum_rate)
            ways = (self._intervals.integral(x) for x in rates)
        return at_ends, in_middle, _Changes(*ways)


def _free(cosmology: Cosmology, start: jax.Array, end: jax.Array, steps: int) -> _Changes:
    """The integrals of da/(a^3 E) and da/(a^2 E)."""
    intervals = Intervals(start, end, steps)
    a, e = intervals.points, hubble(cosmology, intervals.points)
    return _Changes(intervals.integral(1 / (a**2 * e)), intervals.integral(1 / (a * e)))


def _kick_drift_kick(
    changes: _Changes, in_middle: jax.Array, at_ends: jax.Array, outputs: "_Placed"
) -> Steps:
    """Half a kick, a drift and half a kick of each step.

    Args:
        changes: of the first halves of all steps, of their second halves, and from the ends that
            are nearest to outputs to these.
        in_middle: the momentum in the middle of each step.
        at_ends: the force at the ends.
        outputs: where they are.

    """
    cut = np.cumsum([in_middle.size, in_middle.size])
    ways, pulls = (jnp.split(x, cut) for x in changes)
    drift = (ways[0] + ways[1]) / in_middle
    zero = jnp.zeros_like(drift[:1])
    before = jnp.concatenate([zero, pulls[1] / at_ends[1:]])
    after = jnp.concatenate([pulls[0] / at_ends[:-1], zero])
    steps = Steps(before + after, jnp.concatenate([drift, zero]))
    if outputs.step.size == 0:
        return steps
    # Positions are on the straight line of the step, and momenta are kicked from the middle.
    stage = outputs.nearest
    way = ways[2] / in_middle[outputs.step]
    return steps._replace(
        outputs=Outputs(
            stage,
            drift=way,
            fall=jnp.where(outputs.is_late, 0, way * steps.kick[stage]),
            momentum=jnp.ones_like(way),
            kick=before[stage] + pulls[2] / at_ends[stage],
        )
    )


def _halves(ends: jax.Array, outputs: "_Placed") -> tuple[jax.Array, jax.Array, jax.Array]:
    """The middle of each step, and the intervals whose changes `_kick_drift_kick` takes."""
    middle = jnp.sqrt(ends[:-1] * ends[1:])
    start = jnp.concatenate([ends[:-1], middle, ends[outputs.nearest]])
    return middle, start, jnp.concatenate([middle, ends[1:], outputs.scale_factor])


@beforehand
def fastpm(
    cosmology: Cosmology, scale_factors: SeriesLike, *, outputs: SeriesLike | None = None
) -> Steps:
    """Kicks and drifts that are exact for the linear growing mode (Feng et al. 2016, section 2).

    With G = a^3 E dD1/da, a kick from a_i to a_f by the force at a_r is
    (G(a_f) - G(a_i)) / (a_r^2 E dG/da(a_r)), and a drift by the momentum at a_v is
    (D1(a_f) - D1(a_i)) / G(a_v). Forces are those at the ends of a step, the momentum is that at
    a_v = sqrt(a_i a_f).

    Args:
        cosmology: a `jax_cosmo.Cosmology`.
        scale_factors: (steps + 1,), the ends of the steps, in any direction.
        outputs: scale factors between the first and the last, in any order.

    Example:
        >>> import jax_cosmo
        >>> steps = fastpm(jax_cosmo.Planck15(), jnp.linspace(0.1, 1.0, 11))
        >>> steps.drift.shape, float(steps.drift[-1])
        ((11,), 0.0)

    """
    ends, placed = _ends(scale_factors), _placed(scale_factors, outputs)
    at_ends, in_middle, changes = _Growing(cosmology, ends, placed).of_order(1)
    return _kick_drift_kick(changes, in_middle.momentum, at_ends.force, placed)


@beforehand
def leapfrog(
    cosmology: Cosmology, scale_factors: SeriesLike, *, outputs: SeriesLike | None = None
) -> Steps:
    """Kicks and drifts by the integrals of da/(a^2 E) and da/(a^3 E) (Quinn et al. 1997).

    Symplectic, and independent of linear theory: it needs more steps for the same growth than
    `fastpm` does.

    Arguments are those of `fastpm`.

    """
    ends, placed = _ends(scale_factors), _placed(scale_factors, outputs)
    middle, start, end = _halves(ends, placed)
    changes = _free(cosmology, start, end, middle.size)
    return _kick_drift_kick(changes, jnp.ones_like(middle), jnp.ones_like(ends), placed)


@beforehand
def cola(
    cosmology: Cosmology,
    scale_factors: SeriesLike,
    *,
    outputs: SeriesLike | None = None,
    n_lpt: float = 0.5,
) -> Steps:
    """Kicks and drifts of what particles do besides moving as perturbation theory of second order
    says (COLA: Tassev, Zaldarriaga & Eisenstein 2013).

    With s = D1 psi1 + D2 psi2, m = a^3 E ds/da and f = a^2 E dm/da, the steps are those of
    x - s by p - m and of p - m by F - f. That momentum is taken to go as u = a^n_lpt (their
    appendix A.3.2): with a_v = sqrt(a_i a_f) as in `fastpm`,

        kick from a_i to a_f by the force at a_r:      (u(a_f) - u(a_i)) / (a_r^2 E du/da(a_r))
        drift from a_i to a_f by the momentum at a_v:  the integral of u da / (a^3 E), over u(a_v)

    Large scales are right to second order for any number of steps; the particles must keep psi1
    and psi2, as those of ``lpt(..., keep_displacements=True)`` do, and those in the runs of a
    `Simulation` with these steps.

    `n_lpt` is a number that is not 0, as ``functools.partial(pm.cola, n_lpt=-2.5)``, which is that
    of the paper. What particles do besides grows, and positive numbers come nearer to it: few
    steps do better with the default. The other arguments are those of `fastpm`.

    Raises:
        ValueError: `n_lpt` is 0.

    Example:
        >>> import jax_cosmo
        >>> steps = cola(jax_cosmo.Planck15(), jnp.linspace(0.1, 1.0, 11))
        >>> steps.kick.shape, steps.paths.drift.shape
        ((11,), (11, 2))

    """
    if n_lpt == 0:
        raise ValueError("cola: n_lpt must not be 0, as a^n_lpt has to change with time")
    ends, placed = _ends(scale_factors), _placed(scale_factors, outputs)
    middle, start, end = _halves(ends, placed)
    intervals = Intervals(start, end, middle.size)
    a, e = intervals.points, hubble(cosmology, intervals.points)
    rest = _Changes(intervals.integral(a ** (n_lpt - 2) / e), intervals.integral(n_lpt * a**n_lpt))
    at_ends = n_lpt * ends ** (n_lpt + 1) * hubble(cosmology, ends)
    steps = _kick_drift_kick(rest, middle**n_lpt, at_ends, placed)
    growing = _Growing(cosmology, ends, placed)
    followed = [_followed_paths(growing, steps, order) for order in (1, 2)]
    of_stages, of_outputs = (
        Paths(*(jnp.stack(x, -1) for x in zip(*paths, strict=True)))
        for paths in zip(*followed, strict=True)
    )
    if steps.outputs is not None:
        steps = steps._replace(outputs=steps.outputs._replace(paths=of_outputs))
    return steps._replace(paths=of_stages)


def _followed_paths(growing: _Growing, steps: Steps, order: int) -> tuple[Paths, Paths]:
    """Return the paths of stages and of outputs for one order: these are what has to be added to
    kicks and drifts so that a particle whose displacement is of this order alone moves exactly.
    """
    at_ends, middle, changes = growing.of_order(order)
    in_middle = middle.momentum
    ways, pulls = (jnp.split(x, np.cumsum(2 * [in_middle.size])) for x in changes)
    zero = jnp.zeros_like(ways[0][:1])
    before = jnp.concatenate([zero, pulls[1]])
    after = jnp.concatenate([pulls[0], zero])
    kick = before + after - steps.kick * at_ends.force
    drift = jnp.concatenate([ways[0] + ways[1] - steps.drift[:-1] * in_middle, zero])
    at = steps.outputs
    if at is None:
        return Paths(kick, drift), Paths(zero[:0], zero[:0])
    momentum = jnp.concatenate([at_ends.momentum[:1], in_middle])[at.stage]
    force = at_ends.force[at.stage]
    return Paths(kick, drift), Paths(
        kick=before[at.stage] + pulls[2] - at.kick * force,
        drift=ways[2] - at.drift * momentum - at.fall * force,
    )


@beforehand
def bullfrog(
    cosmology: Cosmology, scale_factors: SeriesLike, *, outputs: SeriesLike | None = None
) -> Steps:
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
    Outputs within a step are the combinations of x, v and A that are exact to second order.

    Arguments are those of `fastpm`.

    Example:
        >>> import jax_cosmo
        >>> steps = bullfrog(jax_cosmo.Planck15(), jnp.linspace(0.1, 1.0, 6))
        >>> steps.kick.shape, steps.momentum.shape
        ((5,), (5,))

    """
    ends, placed = _ends(scale_factors), _placed(scale_factors, outputs)
    at, step = placed.scale_factor, placed.step
    start, end = (jnp.concatenate(x) for x in ((ends[:-1], ends[step]), (ends[1:], at)))
    steps = ends.size - 1
    intervals = None if _has_digits(start) else Intervals(start, end, steps)
    i, f, *within = growths(cosmology, start, end, *([intervals.points] if intervals else []))
    d, slope = i.d1, i.d2_rate / i.d1_rate
    if intervals is None:
        way, turn = f.d1 - d, f.d2_rate / f.d1_rate - slope
        curve = f.d2 - i.d2 - way * slope
    else:
        (g,) = within
        # dE' / dln a, by the equations of D1 and D2.
        bend = 1.5 * g.omega_m / (g.scale_factor**3 * g.e**2 * g.d1_rate**2)
        bend *= (g.d2 - g.d1**2) * g.d1_rate - g.d1 * g.d2_rate
        way, turn = intervals.integral(g.d1_rate), intervals.integral(bend)
        left = way - intervals.integral_to_points(g.d1_rate)
        curve = intervals.integral(left * bend)
    # way is D_f - D_i, turn E'_f - E'_i, and curve E_f - E_i - way E'_i, of steps and of outputs.

    second = curve[:steps] / turn[:steps]  # D_f - D_m
    first = way[:steps] - second
    middle = d[:steps] + first
    less = (d * slope - i.d2)[:steps] / middle + middle  # E'_i - Q
    lost = -turn[:steps] / less  # 1 - alpha
    # v = p / G, F = 3/2 Omega_m A.
    force = 1.5 * i.omega_m * middle
    begun, grown = i.momentum[:steps], f.momentum[:steps]
    between = second[:-1] + first[1:]
    result = Steps(
        kick=lost * grown / force,
        drift=jnp.concatenate([between, second[-1:]]) / grown,
        momentum=(1 - lost) * grown / begun,
        first_drift=first[0] / begun[0],
    )
    if step.size == 0:
        return result
    fall, lost = (-x[steps:] / less[step] for x in (curve, turn))
    return result._replace(
        outputs=Outputs(
            step,
            drift=(way[steps:] - first[step] - fall) / begun[step],
            fall=fall / force[step],
            momentum=(1 - lost) * f.momentum[steps:] / begun[step],
            kick=lost * f.momentum[steps:] / force[step],
        )
    )


# Functions that are the same ones in every call, so that programs with them may be kept.
INTEGRATORS: tuple[Integrator, ...] = (fastpm, leapfrog, cola, bullfrog)


def _ends(scale_factors: SeriesLike) -> Series:
    a = checked_scale_factors(scale_factors)
    if a.ndim != 1 or a.shape[0] < 2:
        raise ValueError(
            "scale_factors are the ends of the steps, a vector of two or more, as "
            f"jnp.linspace(0.1, 1, 11); got shape {a.shape}"
        )
    return a


class _Placed(NamedTuple):
    """Outputs, all known: the step of each, and whether it is nearer to the end of that step."""

    scale_factor: np.ndarray
    step: np.ndarray
    is_late: np.ndarray

    @property
    def nearest(self) -> np.ndarray:
        """The nearest end of a step to each."""
        return self.step + self.is_late


# Outputs may be so much outside, as ends and outputs are rounded.
_OUTSIDE = 1e-6


def _placed(scale_factors: SeriesLike, outputs: SeriesLike | None) -> _Placed:
    if outputs is None:
        return _Placed(np.zeros(0), np.zeros(0, int), np.zeros(0, int))
    a, at = as_known(scale_factors), as_known(outputs)
    if isinstance(a, Tracer) or isinstance(at, Tracer):
        raise TypeError(
            "outputs, and scale_factors beside them, must be known while the program is traced: "
            "make them by NumPy, as np.linspace(0.1, 1, 11), or outside of jax.jit"
        )
    a, at = np.asarray(a), np.asarray(at)
    if at.ndim != 1:
        raise ValueError(f"outputs are scale factors, a vector; got shape {at.shape}")
    direction = float(np.sign(a[-1] - a[0]))
    way = direction * a
    if not np.all(np.diff(way) > 0):
        raise ValueError(
            f"outputs need scale_factors that grow or fall from each to the next, got {a.tolist()}"
        )
    margin = _OUTSIDE * np.abs(at)
    inside = (direction * at >= way[0] - margin) & (direction * at <= way[-1] + margin)
    if not np.all(inside):
        raise ValueError(
            f"outputs must be between the first and the last of the scale factors, {a[0]} and "
            f"{a[-1]}; got {at[~inside].tolist()}"
        )
    step = np.clip(np.searchsorted(way, direction * at, side="right") - 1, 0, len(a) - 2)
    is_late = direction * (at - np.sqrt(a[step] * a[step + 1])) > 0
    return _Placed(at, step, is_late.astype(int))

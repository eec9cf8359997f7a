"""Microcanonical Langevin Monte Carlo over ranks.

Robnik, De Luca, Silverstein & Seljak 2023 (JMLR 24, 311): the momentum is a unit vector, whose
direction follows the gradient, and which is turned a little at random after each step. No step is
refused: its length decides how large the bias is, and `tune_mclmc` finds one for which that is
small beside the width of the distribution.
"""

import dataclasses
from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import PRNGKeyArray

from pfftjax._runtime.arguments import where
from pfftjax._runtime.arrays import Number, PyTree, Scalar

from ._space import Density, Space, scaled

# Parts of a step in which the momentum follows the gradient; between them the position follows the
# momentum for half a step each. This is McLachlan's second-order scheme of least error (1995).
_OUTER = 0.1931833275037836
_KICKS = (_OUTER, 1 - 2 * _OUTER, _OUTER)
# `tune_mclmc` aims at this mean square of a step's energy error, for each number of a position.
_ENERGY_VARIANCE = 5e-4
# The energy error goes with this power of the step, and its square with twice that.
_ORDER = 3


class MCLMCState(NamedTuple):
    """Where a chain is. All arrays of `position` are blocks, or shared, as its `Space` says.

    Attributes:
        position: what is sampled.
        momentum: a unit vector over all ranks, in the form of a position.
        logdensity: at the position; the same number on every rank.
        gradient: of the log density, in the form of a position.

    """

    position: PyTree
    momentum: PyTree
    logdensity: Scalar
    gradient: PyTree


class MCLMCInfo(NamedTuple):
    """What a step has done, the same numbers on every rank.

    Attributes:
        energy_change: the error of the energy, which an exact step would keep. Its square, for
            each number of a position, is best about 5e-4.
        kinetic_change: how much of it is the momentum's.

    """

    energy_change: Scalar
    kinetic_change: Scalar


@dataclasses.dataclass(frozen=True)
class MCLMC:
    """A sampler of positions over ranks: `init`, then `step` as often as wanted, in jitted code.

    Made by `mclmc`; the two functions are used as those of BlackJAX's samplers.
    """

    init: Callable[[PyTree, PRNGKeyArray], MCLMCState]
    step: Callable[[PRNGKeyArray, MCLMCState], tuple[MCLMCState, MCLMCInfo]]


def mclmc(
    logdensity: Density,
    space: Space,
    step_size: Number,
    length: Number | None = None,
    *,
    inverse_mass: PyTree = 1.0,
) -> MCLMC:
    """Unadjusted microcanonical Langevin Monte Carlo, of all ranks together.

    Args:
        logdensity: the logarithm of the density of a position, up to a constant: the same number
            on every rank, differentiable. `Space.density` is not needed, and not harmful.
        space: of the positions.
        step_size: by which a position moves in a step, in the metric of `inverse_mass`; two
            gradients are taken in each.
        length: after which the momentum has forgotten its direction, by default the root of the
            number of dimensions.
        inverse_mass: as in `metric`: best the variance of each number under the distribution.

    Returns:
        `MCLMC`.

    Raises:
        ValueError: a space of less than two dimensions.
        ValueError, TypeError: when it starts: positions that are not of `space`.

    The same key must be given on every rank. A chain is then the same on any process grid, but
    for the rounding of sums over ranks.

    Example:
        >>> from pfftjax import PencilFFT, ProcessGrid, norm
        >>> grid = ProcessGrid()
        >>> pencil = PencilFFT((4, 4, 4), grid, real=True).input
        >>> sampler = mclmc(lambda x: -norm(x, grid) ** 2 / 2, Space(pencil, grid), 1.0)
        >>> state = sampler.init(jnp.ones(pencil.local_shape), jax.random.key(0))
        >>> keys = jax.random.split(jax.random.key(1), 100)
        >>> step = lambda state, key: (sampler.step(key, state)[0], state.logdensity)
        >>> _, logs = jax.jit(lambda state: jax.lax.scan(step, state, keys))(state)
        >>> bool(jnp.abs(jnp.mean(logs[20:]) + 32) < 8)
        True

    """
    if space.size < 2:
        here = where("mclmc", space.grid.communicator)
        raise ValueError(
            f"{here}: a direction needs two dimensions or more, and {space!r} has "
            f"{space.size}; use sampling.metric with BlackJAX"
        )
    of_all = jax.value_and_grad(space.density(logdensity))

    def init(position: PyTree, key: PRNGKeyArray) -> MCLMCState:
        drawn = space.normal(key, position)
        return MCLMCState(position, _unit(drawn, space), *of_all(position))

    def step(key: PRNGKeyArray, state: MCLMCState) -> tuple[MCLMCState, MCLMCInfo]:
        return _step(key, state, space, of_all, step_size, length, inverse_mass)

    return MCLMC(init, step)


def _unit(x: PyTree, space: Space) -> PyTree:
    scale = 1 / jnp.sqrt(space.vdot(x, x))
    return jax.tree.map(lambda leaf: leaf * scale.astype(leaf.dtype), x)


def _turned(
    momentum: PyTree, gradient: PyTree, step: Scalar, dimensions: int, space: Space
) -> tuple[PyTree, Scalar]:
    """The momentum after it has followed a gradient for a step, and the gain of kinetic energy.

    Both are those of an exact solution for a gradient that does not vary, written in exponentials
    that do not overflow.
    """
    along, square = space.vdots((momentum, gradient), (gradient, gradient))
    is_flat = square == 0
    size = jnp.sqrt(jnp.where(is_flat, 1, square))
    cosine = jnp.where(is_flat, 0, along / size)
    angle = jnp.where(is_flat, 0, step * size / (dimensions - 1))
    fall = jnp.exp(-angle)
    # cosh(angle) + cosine sinh(angle), times 2 exp(-angle).
    norm = 1 + cosine + (1 - cosine) * fall**2
    of_momentum = 2 * fall / norm
    of_gradient = (1 - fall) * (1 + fall + cosine * (1 - fall)) / norm / size
    turned = jax.tree.map(
        lambda u, g: u * of_momentum.astype(u.dtype) + g * of_gradient.astype(u.dtype),
        momentum,
        gradient,
    )
    return turned, (dimensions - 1) * (angle + jnp.log(norm / 2))


def _step(
    key: PRNGKeyArray,
    state: MCLMCState,
    space: Space,
    of_all: Callable[[PyTree], tuple[Scalar, PyTree]],
    step_size: Number,
    length: Number | None,
    inverse_mass: PyTree,
) -> tuple[MCLMCState, MCLMCInfo]:
    position, momentum, logdensity, gradient = state
    value = logdensity
    dimensions = space.size
    step = jnp.asarray(step_size, logdensity.dtype)
    width = jax.tree.map(jnp.sqrt, inverse_mass)
    kinetic = jnp.zeros_like(logdensity)
    for number, part in enumerate(_KICKS):
        if number > 0:
            way = scaled(momentum, width)
            position = jax.tree.map(lambda x, u: x + (step / 2).astype(x.dtype) * u, position, way)
            value, gradient = of_all(position)
        momentum, gain = _turned(momentum, scaled(gradient, width), part * step, dimensions, space)
        kinetic += gain
    energy = kinetic - (value - logdensity)
    # The momentum forgets its direction over `length`.
    forgotten = jnp.asarray(dimensions**0.5 if length is None else length, step.dtype)
    spread = jnp.sqrt(jnp.expm1(2 * step / forgotten) / dimensions)
    drawn = space.normal(key, momentum)
    mixed = jax.tree.map(lambda u, z: u + spread.astype(u.dtype) * z, momentum, drawn)
    after = MCLMCState(position, _unit(mixed, space), value, gradient)
    return after, MCLMCInfo(energy, kinetic)


def tune_mclmc(
    logdensity: Density,
    space: Space,
    state: MCLMCState,
    key: PRNGKeyArray,
    *,
    steps: int,
    step_size: Number,
    length: Number | None = None,
    inverse_mass: PyTree = 1.0,
) -> tuple[MCLMCState, Scalar]:
    """Find the step of `mclmc` on the way from a start to where the distribution is.

    The step follows the energy errors that it makes, whose mean square it brings to 5e-4 for each
    number of a position, as in the paper. Late steps count more than early ones.

    `state` is from `MCLMC.init`, `key` the same on every rank, `steps` how many are made and
    `step_size` the first one: too small is better than too large. The other arguments are those
    of `mclmc`.

    Returns:
        The state after the last step, and the step to go on with. What was drawn on the way is not
        of the distribution.

    Example:
        >>> from pfftjax import PencilFFT, ProcessGrid, norm
        >>> grid = ProcessGrid()
        >>> pencil = PencilFFT((4, 4, 4), grid, real=True).input
        >>> space, log = Space(pencil, grid), lambda x: -norm(x, grid) ** 2 / 2
        >>> keys = jax.random.split(jax.random.key(0))
        >>> state = mclmc(log, space, 1.0).init(jnp.ones(pencil.local_shape), keys[0])
        >>> state, step = tune_mclmc(log, space, state, keys[1], steps=200, step_size=0.1)
        >>> bool((2 < step) & (step < 16))
        True

    """
    of_all = jax.value_and_grad(space.density(logdensity))
    target = _ENERGY_VARIANCE * space.size

    def advance(carry: tuple, key: PRNGKeyArray) -> tuple[tuple, None]:
        state, step, total, weight = carry
        after, info = _step(key, state, space, of_all, step, length, inverse_mass)
        error = (info.energy_change**2 / target).astype(step.dtype)
        # A step that leads to no number is not made, and the next one is shorter.
        is_good = jnp.isfinite(error) & jnp.isfinite(after.logdensity)
        error = jnp.clip(jnp.where(is_good, error, 1e6), 1e-8, 1e6)
        after = jax.tree.map(lambda new, old: jnp.where(is_good, new, old), after, state)
        # The mean of error / step^6 says for which step the error would be the target. What is
        # far from it says little.
        of_this = jnp.exp(-(jnp.log(error) ** 2) / 2 / (2 * _ORDER * 1.5) ** 2)
        total = 0.99 * total + of_this * error / step ** (2 * _ORDER)
        weight = 0.99 * weight + of_this
        wanted = (weight / total) ** (1 / (2 * _ORDER))
        step = jnp.where(is_good, jnp.clip(wanted, step / 2, step * 2), step / 2)
        return (after, step, total, weight), None

    first = jnp.asarray(step_size, state.logdensity.dtype)
    begun = (state, first, jnp.zeros_like(first), jnp.zeros_like(first))
    (state, step, _, _), _ = jax.jit(
        lambda carry: jax.lax.scan(advance, carry, jax.random.split(key, steps))
    )(begun)
    return state, step

"""What tells BlackJAX's samplers of ranks."""

from typing import TYPE_CHECKING

import jax
import jax.numpy as jnp

from pfftjax._runtime.arrays import PyTree, Scalar

from ._space import Space, scaled

if TYPE_CHECKING:
    from blackjax.mcmc.metrics import Metric


def metric(space: Space, inverse_mass: PyTree = 1.0) -> "Metric":
    """A Gaussian metric over all ranks, for ``inverse_mass_matrix`` of BlackJAX's HMC and NUTS.

    Momenta are drawn by `Space.normal`, and are the same on any process grid; energies and the
    U-turn criterion are those of all ranks. What BlackJAX draws besides comes from its key, and
    what it decides from these energies: all ranks decide alike.

    Args:
        space: of the positions.
        inverse_mass: the diagonal of the inverse mass matrix: a pytree like a position, or a
            prefix of one, of numbers or arrays; positive. It is best the variance of each number
            under the distribution.

    Raises:
        ImportError: BlackJAX is missing: ``pip install pfftjax[sampling]``.

    The density must be one of `Space.density`, and the key the same on every rank.

    Example:
        >>> import blackjax
        >>> from pfftjax import PencilFFT, ProcessGrid, norm
        >>> grid = ProcessGrid()
        >>> pencil = PencilFFT((4, 4, 4), grid, real=True).input
        >>> space = Space(pencil, grid)
        >>> density = space.density(lambda x: -norm(x, grid) ** 2 / 2)
        >>> hmc = blackjax.hmc(density, 0.1, metric(space), num_integration_steps=10)
        >>> state = hmc.init(jnp.zeros(pencil.local_shape))
        >>> state, info = jax.jit(hmc.step)(jax.random.key(0), state)
        >>> bool(info.is_accepted)
        True

    """
    try:
        from blackjax.mcmc.metrics import Metric
    except ImportError as error:
        raise ImportError(
            "sampling.metric needs BlackJAX: pip install pfftjax[sampling]"
        ) from error

    def times_power(x: PyTree, power: float) -> PyTree:
        return scaled(x, jax.tree.map(lambda mass: jnp.asarray(mass) ** power, inverse_mass))

    def is_raveled(x: PyTree) -> bool:
        return jax.tree_util.all_leaves([x]) and jnp.ndim(x) == 1

    def sample_momentum(key: jax.Array, position: PyTree) -> PyTree:
        return times_power(space.normal(key, position), -0.5)

    def kinetic_energy(momentum: PyTree, position: PyTree | None = None) -> Scalar:
        del position
        return space.vdot(momentum, times_power(momentum, 1.0)) / 2

    def check_turning(
        momentum_left: PyTree,
        momentum_right: PyTree,
        momentum_sum: PyTree,
        position_left: PyTree | None = None,
        position_right: PyTree | None = None,
    ) -> PyTree:
        del position_left, position_right
        # NUTS keeps momenta as vectors of their numbers.
        left, right, total = (
            space.unravel(x) if is_raveled(x) else x
            for x in (momentum_left, momentum_right, momentum_sum)
        )
        between = jax.tree.map(lambda s, a, b: s - (a + b) / 2, total, left, right)
        along = space.vdots((times_power(left, 1.0), between), (times_power(right, 1.0), between))
        return jnp.any(along <= 0)

    def scale(position: PyTree, element: PyTree, *, inv: bool, trans: bool) -> PyTree:
        del position, trans  # the matrix is diagonal
        return times_power(element, 0.5 if inv else -0.5)

    return Metric(sample_momentum, kinetic_energy, check_turning, scale)

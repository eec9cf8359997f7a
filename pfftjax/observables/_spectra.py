"""Power spectra by the direction of modes, and of two fields."""

import functools
from collections.abc import Sequence
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from pfftjax._runtime.arguments import static_int, static_ints, where
from pfftjax._runtime.arrays import (
    BoxSize,
    Counts,
    Numbers,
    RealBlockLike,
    Reals,
    Series,
    SeriesLike,
)
from pfftjax.fft import PencilFFT
from pfftjax.pm.internal import Kernel, Shells, real_plan, shells_of

from ._line_of_sight import LineOfSight, direction


class PowerMultipoles(NamedTuple):
    """Multipoles of a power spectrum in shells of wavenumbers, the same on every rank.

    Attributes:
        k: mean wavenumber of each shell [h/Mpc].
        power: (multipoles, shells), P_l(k) [(Mpc/h)^3], in the order that was asked for.
        modes: how many modes are in each shell, both of a conjugate pair counted.

    """

    k: Series
    power: Reals
    modes: Counts


class PowerWedges(NamedTuple):
    """A power spectrum by wavenumber and direction, the same on every rank.

    Attributes:
        k: (wedges, shells), mean wavenumber [h/Mpc].
        mu: (wedges, shells), mean cosine of the angle to the line of sight, without its sign.
        power: (wedges, shells), P(k, mu) [(Mpc/h)^3]; all three are 0 where there are no modes.
        modes: (wedges, shells), how many modes there are, both of a conjugate pair counted.

    """

    k: Reals
    mu: Reals
    power: Reals
    modes: Numbers


class CrossSpectrum(NamedTuple):
    """The spectra of two fields and of both together, the same on every rank.

    Attributes:
        k: mean wavenumber of each shell [h/Mpc].
        power: the cross spectrum Re <conj(other_k) field_k> [(Mpc/h)^3].
        field_power: the spectrum of `field`.
        other_power: the spectrum of `other`.
        modes: how many modes are in each shell, both of a conjugate pair counted.

    """

    k: Series
    power: Series
    field_power: Series
    other_power: Series
    modes: Counts

    @property
    def correlation(self) -> Series:
        """The correlation coefficient, from -1 to 1, and 0 where a field has no power."""
        # One root after the other: in float32 the product of both spectra may be too large.
        return _ratio(_ratio(self.power, _root(self.field_power)), _root(self.other_power))

    @property
    def transfer(self) -> Series:
        """The amplitude of `field` over that of `other`, sqrt(P / P_other), and 0 where one of
        them has no power.
        """
        return _ratio(_root(self.field_power), _root(self.other_power))


def power_multipoles(
    field: RealBlockLike,
    plan: PencilFFT,
    box_size: BoxSize,
    line_of_sight: LineOfSight = 2,
    *,
    multipoles: Sequence[int] = (0, 2, 4),
    edges: SeriesLike | None = None,
    other: RealBlockLike | None = None,
    kernel: Kernel | None = None,
    other_kernel: Kernel | None = None,
) -> PowerMultipoles:
    """Multipoles of the power spectrum of a distributed field, or of the cross spectrum of two.

        P_l(k) = (2l + 1) <P(k) L_l(mu)>,    mu = k . n / k

    over the modes of each shell, L_l being Legendre's polynomials and n the line of sight, the
    same everywhere. Shells, the smoothing of kernels and aliases are those of
    `pfftjax.pm.power_spectrum`, whose bits P_0 has. As there, no shot noise is subtracted: that of
    N particles, box volume / N, is in P_0 only.

    In shells of few modes P_0 shows in the other multipoles, as the mean of L_l over the modes of
    a shell is not zero: a theory to be compared is summed over the same modes, or shells are made
    wider. Modes at a Nyquist frequency have no sign. They count as if it were negative along axes
    0 and 1, and positive along axis 2, which matters if the line of sight is no axis.

    Args:
        field: this rank's block, ``(*plan.input.local_shape,)``.
        plan: ``PencilFFT(shape, grid, real=True)``.
        box_size: side of the box [Mpc/h]: a number, or one for each axis; static.
        line_of_sight: as in `redshift_space`.
        multipoles: which, even numbers; the odd ones are zero.
        edges: of the shells [h/Mpc], rising, as for `pfftjax.pm.power_spectrum`; static.
        other: a second field, for the cross spectrum Re <conj(other_k) field_k>.
        kernel: by which `field` was painted, if it was; its smoothing is divided out.
        other_kernel: the same for `other`.

    Returns:
        `PowerMultipoles`, the same on every rank.

    Raises:
        ValueError: a plan, a block, a kernel, a box, a line of sight, multipoles or edges that do
            not fit.
        TypeError: complex numbers, a dtype without a transform, or a box or edges that are traced.

    Example:
        >>> from pfftjax import ProcessGrid
        >>> plan = PencilFFT((16, 16, 16), ProcessGrid(), real=True)
        >>> x = 2 * jnp.pi / 16 * plan.input.indices(0) + jnp.zeros(plan.input.local_shape)
        >>> along, across = (power_multipoles(jnp.cos(3 * x), plan, 100.0, n) for n in (0, 2))
        >>> [round(float(r.power[1, 2] / r.power[0, 2]), 3) for r in (along, across)]
        [5.0, -2.5]

    """
    name = "power_multipoles"
    comm = real_plan(plan, name).grid.communicator
    orders = static_ints(multipoles, "multipoles", name, comm)
    if not orders or any(order < 0 or order % 2 for order in orders):
        raise ValueError(
            f"{where(name, comm)}: multipoles must be even numbers, as (0, 2, 4), got "
            f"{multipoles!r}; odd ones are zero"
        )
    shells, y, z = shells_of(field, plan, box_size, other, other_kernel, edges, name)
    power = shells.power(y, z, kernel, kernel if z is None else other_kernel)
    square = _cosine(shells, line_of_sight) ** 2
    means = [
        shells.mean(power * ((2 * order + 1) * _legendre(order, square)) if order else power)
        for order in orders
    ]
    return PowerMultipoles(k=shells.k, power=jnp.stack(means), modes=shells.modes)


def power_wedges(
    field: RealBlockLike,
    plan: PencilFFT,
    box_size: BoxSize,
    line_of_sight: LineOfSight = 2,
    *,
    wedges: int = 5,
    edges: SeriesLike | None = None,
    other: RealBlockLike | None = None,
    kernel: Kernel | None = None,
    other_kernel: Kernel | None = None,
) -> PowerWedges:
    """The power spectrum of a distributed field by wavenumber and by direction, P(k, mu).

    Wedge j of n has the modes with ``j / n <= |mu| < (j + 1) / n``, and the last one also mu = 1.
    `wedges` is n, into how many parts the size of mu, from 0 to 1, is divided. The other arguments
    are those of `power_multipoles`.

    Returns:
        `PowerWedges`, the same on every rank.

    Raises:
        ValueError, TypeError: as `power_multipoles`, and a number of wedges below 1.

    Example:
        >>> from pfftjax import ProcessGrid
        >>> plan = PencilFFT((16, 16, 16), ProcessGrid(), real=True)
        >>> x = 2 * jnp.pi / 16 * plan.input.indices(0) + jnp.zeros(plan.input.local_shape)
        >>> result = power_wedges(jnp.cos(3 * x), plan, 100.0, 0, wedges=4)
        >>> jnp.argmax(result.power[:, 2]).item(), result.power.shape
        (3, (4, 8))

    """
    name = "power_wedges"
    comm = real_plan(plan, name).grid.communicator
    number = static_int(wedges, "wedges", name, comm)
    if number < 1:
        raise ValueError(f"{where(name, comm)}: wedges must be 1 or more, got {wedges}")
    shells, y, z = shells_of(field, plan, box_size, other, other_kernel, edges, name)
    power = shells.power(y, z, kernel, kernel if z is None else other_kernel)
    along = jnp.abs(_along(shells, line_of_sight))
    # Both sides are whole numbers in a cube and along an axis: no mode depends on rounding.
    square = shells.square * (1 - 2 * shells.rounding)  # that of `along` is rounded, too
    beyond = [(number * along) ** 2 >= j**2 * square for j in range(1, number)]
    wedge = functools.reduce(jnp.add, beyond, jnp.zeros(along.shape, jnp.int32))
    bins = number * shells.number
    bin_of = jnp.where(shells.shell < shells.number, wedge * shells.number + shells.shell, bins)

    def total(values: jax.Array) -> jax.Array:
        return shells.total(values, bin_of, bins).reshape(number, shells.number)

    modes = total(shells.weights.astype(jnp.int32))
    count = jnp.maximum(modes, 1).astype(shells.dtype)
    k, mu, mean = (
        total(shells.weights * x) / count
        for x in (shells.radius, jnp.abs(_cosine(shells, line_of_sight)), power)
    )
    fundamental = np.asarray(shells.fundamental, shells.dtype)
    return PowerWedges(k=k * fundamental, mu=mu, power=mean, modes=modes)


def cross_spectrum(
    field: RealBlockLike,
    other: RealBlockLike,
    plan: PencilFFT,
    box_size: BoxSize,
    *,
    edges: SeriesLike | None = None,
    kernel: Kernel | None = None,
    other_kernel: Kernel | None = None,
) -> CrossSpectrum:
    """How much two distributed fields have in common, by scale: their cross spectrum, the spectra
    of both, and the correlation coefficient.

    Shells, the smoothing of kernels and aliases are those of `pfftjax.pm.power_spectrum`, which
    has each of the three alone; here each field is transformed once.

    Args:
        field: this rank's block, ``(*plan.input.local_shape,)``.
        other: the other field's.
        plan: ``PencilFFT(shape, grid, real=True)``.
        box_size: side of the box [Mpc/h]: a number, or one for each axis; static.
        edges: of the shells [h/Mpc], rising, as for `pfftjax.pm.power_spectrum`; static.
        kernel: by which `field` was painted, if it was; its smoothing is divided out.
        other_kernel: the same for `other`.

    Returns:
        `CrossSpectrum`, the same on every rank.

    Raises:
        ValueError: a plan, a block, a kernel, a box or edges that do not fit.
        TypeError: complex numbers, a dtype without a transform, or a box or edges that are traced.

    Example:
        >>> from pfftjax import ProcessGrid
        >>> plan = PencilFFT((16, 16, 16), ProcessGrid(), real=True)
        >>> x = 2 * jnp.pi / 16 * plan.input.indices(0) + jnp.zeros(plan.input.local_shape)
        >>> result = cross_spectrum(-2 * jnp.cos(3 * x), jnp.cos(3 * x), plan, 100.0)
        >>> round(float(result.correlation[2]), 5), round(float(result.transfer[2]), 5)
        (-1.0, 2.0)

    """
    shells, y, z = shells_of(field, plan, box_size, other, other_kernel, edges, "cross_spectrum")
    assert z is not None
    return CrossSpectrum(
        k=shells.k,
        power=shells.mean(shells.power(y, z, kernel, other_kernel)),
        field_power=shells.mean(shells.power(y, None, kernel, kernel)),
        other_power=shells.mean(shells.power(z, None, other_kernel, other_kernel)),
        modes=shells.modes,
    )


def _along(shells: Shells, line_of_sight: LineOfSight) -> jax.Array:
    """The wavenumber of each mode along the line of sight, in units of k_f."""
    comm = shells.plan.grid.communicator
    n = direction(line_of_sight, shells.dtype, shells.operation, comm)
    parts = [m * n[axis] for axis, m in enumerate(shells.m)]
    return functools.reduce(jnp.add, parts)


def _cosine(shells: Shells, line_of_sight: LineOfSight) -> jax.Array:
    """Return mu of each mode, and 0 of that which has no direction."""
    radius = jnp.where(shells.radius > 0, shells.radius, 1)
    return _along(shells, line_of_sight) / radius


def _legendre(order: int, square: jax.Array) -> jax.Array:
    """Legendre's polynomial of an even order, of the square of its argument."""
    coefficients = np.polynomial.legendre.leg2poly([0] * order + [1])[::2]
    return jnp.polyval(jnp.asarray(coefficients[::-1], square.dtype), square)


def _ratio(a: jax.Array, b: jax.Array) -> jax.Array:
    """Return a / b, and 0 where b is not positive, in derivatives too."""
    return jnp.where(b > 0, a / jnp.where(b > 0, b, 1), 0)


def _root(a: jax.Array) -> jax.Array:
    """The square root, and 0 where a is not positive, in derivatives too."""
    return jnp.where(a > 0, jnp.sqrt(jnp.where(a > 0, a, 1)), 0)

"""Power spectra of distributed fields."""

from typing import NamedTuple

from pfftjax._runtime.arrays import BoxSize, Counts, RealBlockLike, Series, SeriesLike
from pfftjax.fft import PencilFFT

from ._assignment import Kernel
from ._shells import shells_of


class PowerSpectrum(NamedTuple):
    """A power spectrum in shells of wavenumbers, the same on every rank.

    Attributes:
        k: mean wavenumber of each shell [h/Mpc]; like `power`, 0 where there are no modes.
        power: P(k) [(Mpc/h)^3].
        modes: how many modes are in each shell, both of a conjugate pair counted.

    """

    k: Series
    power: Series
    modes: Counts


def power_spectrum(
    field: RealBlockLike,
    plan: PencilFFT,
    box_size: BoxSize,
    *,
    edges: SeriesLike | None = None,
    other: RealBlockLike | None = None,
    kernel: Kernel | None = None,
    other_kernel: Kernel | None = None,
) -> PowerSpectrum:
    """The power spectrum of a distributed field, or the cross spectrum of two.

    Shell i has the modes with ``edges[i] <= |k| < edges[i + 1]``. By default that is
    ``(i + 1/2) k_f <= |k| < (i + 3/2) k_f``, k_f = 2 pi / L of the longest side, up to the highest
    mode that there is along every axis.

    Not all shells of painted particles are right: smaller structures appear in them as aliases,
    which `kernel` does not remove. They are below a per cent up to half of the Nyquist wavenumber
    pi n / L with CIC and up to 0.7 of it with TSC, and grow fast beyond. Of an interlaced density
    (`density_contrast(..., interlaced=True)`, `paint_interlaced`) they are below a per cent up to
    0.9 of it with any of CIC, TSC and PCS. docs/validation.md has the measurement.

    Args:
        field: this rank's block, ``(*plan.input.local_shape,)``; one of integers becomes
            floating-point numbers.
        plan: ``PencilFFT(shape, grid, real=True)``.
        box_size: side of the box [Mpc/h]: a number, or one for each axis; static.
        edges: of the shells [h/Mpc], rising; static.
        other: a second field, for the cross spectrum Re <conj(other_k) field_k>.
        kernel: by which `field` was painted, if it was; its smoothing is divided out (Jing 2005,
            equation 18 without the aliases).
        other_kernel: the same for `other`.

    Returns:
        `PowerSpectrum`, the same on every rank.

    Raises:
        ValueError: a plan, a block, a kernel, a box or edges that do not fit.
        TypeError: complex numbers, a dtype without a transform, or a box or edges that are traced.

    Example:
        >>> import jax.numpy as jnp
        >>> from pfftjax import ProcessGrid
        >>> plan = PencilFFT((16, 16, 16), ProcessGrid(), real=True)
        >>> x = 2 * jnp.pi / 16 * plan.input.indices(0) + jnp.zeros(plan.input.local_shape)
        >>> result = power_spectrum(jnp.cos(3 * x), plan, 100.0)
        >>> int(jnp.argmax(result.power)), int(result.modes[0])
        (2, 18)

        Two shells, as wide as one wishes:

        >>> result = power_spectrum(jnp.cos(3 * x), plan, 100.0, edges=(0.1, 0.2, 0.5))
        >>> result.power.shape, result.modes.tolist()
        ((2,), [128, 1956])

    """
    shells, y, z = shells_of(field, plan, box_size, other, other_kernel, edges, "power_spectrum")
    power = shells.power(y, z, kernel, kernel if z is None else other_kernel)
    return PowerSpectrum(k=shells.k, power=shells.mean(power), modes=shells.modes)

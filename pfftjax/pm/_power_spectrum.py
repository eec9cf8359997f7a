"""Power spectra of distributed fields."""

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.core import Tracer

from pfftjax._runtime.arrays import BoxSize, Counts, Number, RealBlockLike, Series
from pfftjax._runtime.primitive import where
from pfftjax.collectives import allreduce
from pfftjax.fft import PencilFFT
from pfftjax.spectral.internal import sides

from ._assignment import Kernel, assignment_of
from ._spectral import field as checked
from ._spectral import real_plan


class PowerSpectrum(NamedTuple):
    """A power spectrum in shells of wavenumbers, the same on every rank.

    Attributes:
        k: mean wavenumber of each shell [h/Mpc].
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
    other: RealBlockLike | None = None,
    kernel: Kernel | None = None,
    other_kernel: Kernel | None = None,
) -> PowerSpectrum:
    """The power spectrum of a distributed field, or the cross spectrum of two.

    Shell i has the modes with ``(i + 1/2) k_f <= |k| < (i + 3/2) k_f``, k_f = 2 pi / L of the
    longest side, up to the highest mode that there is along every axis.

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
        other: a second field, for the cross spectrum Re <conj(other_k) field_k>.
        kernel: by which `field` was painted, if it was; its smoothing is divided out (Jing 2005,
            equation 18 without the aliases).
        other_kernel: the same for `other`.

    Returns:
        `PowerSpectrum`, the same on every rank.

    Raises:
        ValueError: a plan, a block, a kernel or a box that do not fit.
        TypeError: complex numbers, a dtype without a transform, or a box that is traced.

    Example:
        >>> from pfftjax import ProcessGrid
        >>> plan = PencilFFT((16, 16, 16), ProcessGrid(), real=True)
        >>> x = 2 * jnp.pi / 16 * plan.input.indices(0) + jnp.zeros(plan.input.local_shape)
        >>> result = power_spectrum(jnp.cos(3 * x), plan, 100.0)
        >>> int(jnp.argmax(result.power)), int(result.modes[0])
        (2, 18)

    """
    real_plan(plan, "power_spectrum")
    here = where("power_spectrum", plan.grid.communicator)
    lengths = _static(sides(box_size, plan, "power_spectrum"), here)
    field = checked(field, plan, "power_spectrum")
    if other is not None:
        other = checked(other, plan, "power_spectrum")
        dtype = jnp.result_type(field, other)
        field, other = field.astype(dtype), other.astype(dtype)
    elif other_kernel is not None:
        raise ValueError(f"{here}: other_kernel is that of `other`, and there is no such field")
    dtype = field.dtype
    fundamental = 2 * np.pi / max(lengths)
    # The last shell is the one of the highest mode of the axis that has the lowest one.
    highest = min(
        n // 2 * max(lengths) / side for n, side in zip(plan.shape, lengths, strict=True)
    )
    shells = max(int(highest + 0.5), 1)

    y = plan.forward(field)
    if other is None:
        square = y.real**2 + y.imag**2
    else:
        z = plan.forward(other)
        square = y.real * z.real + y.imag * z.imag
    n0, n1, n2 = plan.shape
    volume = lengths[0] * lengths[1] * lengths[2]
    power = square * np.asarray(volume / float(n0 * n1 * n2) ** 2, dtype)
    ks = plan.wavenumbers(tuple(lengths), dtype)
    for painted in (kernel, kernel if other is None else other_kernel):
        if painted is not None:
            points = assignment_of(painted, plan.input, "power_spectrum").points
            for k, n, side in zip(ks, plan.shape, lengths, strict=True):
                power = power / jnp.sinc(k * (side / n / (2 * np.pi))) ** points

    # Wavenumbers in units of k_f: whole numbers in a cube, whose shells do not depend on rounding.
    mx, my, mz = (
        k * np.asarray(1 / fundamental, dtype)
        if len(set(lengths)) > 1
        else jnp.round(k * np.asarray(1 / fundamental, dtype))
        for k in ks
    )
    m = jnp.sqrt(mx**2 + my**2 + mz**2)
    shell = jnp.floor(m - 0.5).astype(jnp.int32)
    shell = jnp.where((shell >= 0) & (shell < shells), shell, shells)
    weights = jnp.broadcast_to(plan.hermitian_weights(dtype), m.shape)

    def total(values: jax.Array) -> jax.Array:
        # Plane by plane: a long sum in float32 would lose digits.
        planes = jax.vmap(lambda v, s: jnp.zeros(shells + 1, v.dtype).at[s].add(v))(
            values.reshape(values.shape[0], -1), shell.reshape(values.shape[0], -1)
        )
        return allreduce(planes.sum(0)[:shells], comm=plan.grid.comm)

    modes = total(weights.astype(jnp.int32))
    count = jnp.maximum(modes, 1).astype(dtype)
    return PowerSpectrum(
        k=total(weights * m) / count * np.asarray(fundamental, dtype),
        power=total(weights * power) / count,
        modes=modes,
    )


def _static(lengths: tuple[Number, ...], here: str) -> list[float]:
    """The sides of the box as numbers: how many shells there are depends on them."""
    if any(isinstance(side, Tracer) for side in lengths):
        raise TypeError(f"{here}: box_size must be static, as the number of shells depends on it")
    return [float(side) for side in lengths]

"""Particles painted on two meshes half a cell apart, whose aliases cancel."""

import jax
import jax.numpy as jnp

from pfftjax._runtime.arrays import RealBlock, RowsLike
from pfftjax._runtime.rematerialization import select
from pfftjax.fft import PencilFFT
from pfftjax.spectral.internal import odd_wavenumbers

from ._assignment import Kernel, assignment_of
from ._painting import painted
from ._positions import Places, as_positions
from ._spectral import real_plan


def paint_interlaced(
    positions: Places, plan: PencilFFT, *, values: RowsLike | None = None, kernel: Kernel = "cic"
) -> RealBlock:
    """Deposit particles on a periodic mesh, as `paint`, without half of the aliases.

    A wave that is shorter than two cells appears on a mesh as another, longer one: its alias.
    Particles are painted twice, as they are and half a cell further up along each axis, and the
    mean of both is taken in Fourier space, the second moved back. Aliases from an odd number of
    sampling wavenumbers away, which are the largest ones, then cancel (Hockney & Eastwood 1988,
    section 7-8; Sefusatti et al. 2016, section 3). It costs two paintings and three transforms.
    Waves at the Nyquist wavenumber of an axis, which cannot be moved, are those of `paint`.

    It is for measurements: what is painted is no longer positive, and a particle no longer touches
    the nearest points only.

    Args:
        positions: as in `paint`.
        plan: ``PencilFFT(shape, grid, real=True)`` of the mesh.
        values: as in `paint`.
        kernel: as in `paint`; its smoothing is still there, for `power_spectrum` or
            `spectral.deconvolve` to divide out.

    Returns:
        This rank's block, ``local_shape`` or ``(components, *local_shape)`` of ``plan.input``, of
        the dtype of the positions. Its sum over ranks is that of the values.

    Raises:
        As `paint`; and ValueError for another plan.

    Differentiable as `paint` is.

    Example:
        >>> from pfftjax import PencilFFT, ProcessGrid
        >>> from pfftjax.collectives import allreduce
        >>> plan = PencilFFT((8, 8, 8), ProcessGrid(), real=True)
        >>> at_home = jnp.asarray(plan.input.start) + jnp.array([[0.25, 0.0, 3.5]])
        >>> density = paint_interlaced(at_home, plan, kernel="tsc")
        >>> bool(jnp.isclose(allreduce(density.sum()), plan.grid.size, rtol=1e-5))
        True

    """
    real_plan(plan, "paint_interlaced")
    mesh = plan.input
    at = as_positions(positions, mesh, "paint_interlaced")
    form = assignment_of(kernel, mesh, "paint_interlaced")
    plain, moved = (
        plan.forward(painted(at, mesh, values, form._replace(shift=shift), "paint_interlaced"))
        for shift in (0, 1)
    )
    # Wavenumbers for each cell; zero at the Nyquist wavenumber where they are odd.
    n0, n1, n2 = plan.shape
    sides = (float(n0), float(n1), float(n2))
    ks = plan.wavenumbers(sides, at.offset.dtype)
    odd = odd_wavenumbers(plan, sides, at.offset.dtype)
    can_move = True
    for k, k_odd in zip(ks, odd, strict=True):
        can_move = can_move & (k == k_odd)
    angle = sum(odd) / 2
    back = jax.lax.complex(jnp.cos(angle), jnp.sin(angle))
    return plan.inverse(select(can_move, (plain + back * moved) / 2, plain))

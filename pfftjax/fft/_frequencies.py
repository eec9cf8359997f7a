"""Wavenumbers without a plan in hand."""

from collections.abc import Sequence

from jax.typing import DTypeLike

from pfftjax._runtime.arrays import BoxSize, Factors
from pfftjax.pencils import ProcessGrid

from ._pencil_fft import PencilFFT
from ._steps import Layout


def wavenumbers(
    shape: Sequence[int],
    grid: ProcessGrid,
    box_size: BoxSize,
    *,
    real: bool = False,
    layout: Layout = "transposed",
    dtype: DTypeLike | None = None,
) -> tuple[Factors, Factors, Factors]:
    """Wavenumbers of this rank's block of the spectrum that `fft3d` or `rfft3d` returns.

    Args:
        shape: global shape in real space.
        grid: process grid.
        box_size: side of the box, in the length unit of choice: a number, or one for each axis.
        real: for `rfft3d`.
        layout: as given to the transform.
        dtype: floating-point dtype, JAX's default by default.

    Returns:
        (kx, ky, kz), by global axis, in radians per unit length, each of which broadcasts against
        the block of the spectrum.

    Raises:
        ValueError: a shape, a layout or a box that is none.
        TypeError: no process grid, or a dtype that is not floating-point.

    Example:
        >>> kx, ky, kz = wavenumbers((4, 6, 5), ProcessGrid(), 6.283185307179586, real=True)
        >>> k2 = kx**2 + ky**2 + kz**2
        >>> k2.shape == PencilFFT((4, 6, 5), ProcessGrid(), real=True).output.local_shape
        True

    """
    plan = PencilFFT(shape, grid, real=real, layout=layout)
    kx, ky, kz = plan.wavenumbers(box_size, dtype)
    return kx, ky, kz

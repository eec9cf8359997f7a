"""Operators in Fourier space on global arrays: each from a field to a field.

They are those of `pfftjax.spectral` on arrays that are sharded as for `pfftjax.sharded.fft3d`. A
half spectrum is nothing that JAX has to shard here, so that real fields need no more of their
sizes than that both sharded axes divide.
"""

from collections.abc import Sequence
from typing import Any, cast

import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh
from jax.typing import ArrayLike

from pfftjax import spectral
from pfftjax._runtime.arrays import Block, BlockLike, BoxSize
from pfftjax.fft import PencilFFT
from pfftjax.fft.internal import Shards, shards_of
from pfftjax.pencils import ProcessGrid

from ._multipliers import AssignmentKernel, Kernel
from ._operands import Vector, VectorLike


def plan_of(shape: Sequence[int], shards: Shards, *, real: bool) -> PencilFFT:
    """The plan for global fields of this shape, whose sizes divide."""
    plan = PencilFFT(shape, shards.grid, real=real)
    shards.check_sizes(plan.input)
    return plan


def _of_shards(
    name: str,
    x: ArrayLike,
    grid: ProcessGrid | None,
    mesh: Mesh | None,
    *arguments: object,
    takes: int = 0,
    gives: int = 0,
    **options: object,
) -> Any:
    """The operator of that name on a global array.

    Args:
        name: the operator.
        x: a field, or the components of a vector in front.
        grid: as for `gradient`.
        mesh: as for `gradient`.
        arguments: those after the plan.
        takes: components of a vector in `x`, 0 for a field.
        gives: arrays in the result, 0 for one that is no tuple.
        options: keyword arguments of the operator.

    """
    shards = shards_of(x, grid, mesh, name)
    if takes and (np.ndim(x) < 4 or np.shape(x)[0] != takes):
        raise ValueError(
            f"{shards.here}: a vector has three components, a tuple (vx, vy, vz) or an array with "
            f"the components in front; got shape {np.shape(x)}"
        )
    plan = plan_of(np.shape(x)[-3:], shards, real=not jnp.iscomplexobj(x))
    lead = np.ndim(x) - 3
    target = shards.spec(plan.input, lead - bool(takes))
    return shards.run(
        getattr(spectral, name),
        (plan, *arguments),
        (shards.spec(plan.input, lead),),
        (target,) * gives if gives else target,
        x,
        is_kept=not any(callable(argument) for argument in arguments),
        **options,
    )


def _stacked(v: VectorLike) -> ArrayLike:
    """A vector field as one array, the components in front."""
    if isinstance(v, list | tuple):
        return jnp.stack([jnp.asarray(x) for x in cast(Sequence[ArrayLike], v)])
    return cast(ArrayLike, v)


def gradient(
    x: BlockLike, box_size: BoxSize, *, grid: ProcessGrid | None = None, mesh: Mesh | None = None
) -> Vector:
    """The gradient of a global field on a periodic box.

    Args:
        x: a field (..., n0, n1, n2), real or complex, sharded as for `fft3d`; n0 and n1 divide by
            the grid.
        box_size: side of the box, in the length unit of choice: a number, or one for each axis.
            May be traced, and differentiated.
        grid: as for `fft3d`.
        mesh: as for `fft3d`.

    Returns:
        Three global arrays, sharded as `x`.

    Raises:
        ValueError, TypeError: as `fft3d`, and as `pfftjax.spectral.gradient`.

    Derivatives are global, by `jax.grad` and the like.

    """
    return _of_shards("gradient", x, grid, mesh, box_size, gives=3)


def divergence(
    v: VectorLike, box_size: BoxSize, *, grid: ProcessGrid | None = None, mesh: Mesh | None = None
) -> Block:
    """The divergence of a global vector field: three fields, or an array with these in front.

    Arguments and errors are otherwise those of `gradient`; it returns one field.
    """
    return _of_shards("divergence", _stacked(v), grid, mesh, box_size, takes=3)


def curl(
    v: VectorLike, box_size: BoxSize, *, grid: ProcessGrid | None = None, mesh: Mesh | None = None
) -> Vector:
    """The curl of a global vector field; arguments as for `divergence`, three fields result."""
    return _of_shards("curl", _stacked(v), grid, mesh, box_size, takes=3, gives=3)


def laplacian(
    x: BlockLike, box_size: BoxSize, *, grid: ProcessGrid | None = None, mesh: Mesh | None = None
) -> Block:
    """The Laplacian of a global field; arguments and errors as for `gradient`."""
    return _of_shards("laplacian", x, grid, mesh, box_size)


def inverse_laplacian(
    x: BlockLike, box_size: BoxSize, *, grid: ProcessGrid | None = None, mesh: Mesh | None = None
) -> Block:
    """The field phi of mean zero with laplacian phi = x - mean(x): Poisson's equation.

    Arguments and errors are those of `gradient`.
    """
    return _of_shards("inverse_laplacian", x, grid, mesh, box_size)


def gaussian_smoothing(
    x: BlockLike,
    box_size: BoxSize,
    radius: ArrayLike,
    *,
    grid: ProcessGrid | None = None,
    mesh: Mesh | None = None,
) -> Block:
    """Convolve a global field with a normal distribution of standard deviation `radius`.

    The radius is in the unit of the box, and may be traced and differentiated. The other arguments
    and the errors are those of `gradient`.
    """
    return _of_shards("gaussian_smoothing", x, grid, mesh, box_size, radius)


def top_hat_smoothing(
    x: BlockLike,
    box_size: BoxSize,
    radius: ArrayLike,
    *,
    grid: ProcessGrid | None = None,
    mesh: Mesh | None = None,
) -> Block:
    """The mean of a global field in a sphere around each point; as `gaussian_smoothing`."""
    return _of_shards("top_hat_smoothing", x, grid, mesh, box_size, radius)


def deconvolve(
    x: BlockLike,
    kernel: AssignmentKernel = "cic",
    *,
    times: int = 1,
    grid: ProcessGrid | None = None,
    mesh: Mesh | None = None,
) -> Block:
    """Divide out the smoothing of a global field that was painted from particles.

    `kernel` and `times` are as for `pfftjax.spectral.deconvolve`, the other arguments and the
    errors as for `gradient`.
    """
    return _of_shards("deconvolve", x, grid, mesh, kernel, times=times)


def apply(
    x: BlockLike,
    box_size: BoxSize,
    kernel: Kernel,
    *,
    grid: ProcessGrid | None = None,
    mesh: Mesh | None = None,
) -> Block:
    """Multiply a global field by any function of the wavenumbers.

    `kernel` is as for `pfftjax.spectral.apply`: (kx, ky, kz) -> multiplier, of vectors of
    wavenumbers that broadcast against the spectrum. It may close over numbers that are traced, and
    the result is differentiable in them. Arrays that all ranks have are arguments of a
    `jax.tree_util.Partial(function, *arrays)`; global arrays it cannot take. The other arguments
    and the errors are those of `gradient`.

    Outside of jitted code each call compiles a program.

    Example:
        >>> import jax
        >>> from jax.sharding import NamedSharding, PartitionSpec
        >>> from mpi4py import MPI
        >>> alone = ProcessGrid((1, 1), MPI.COMM_SELF)
        >>> mesh = jax.make_mesh((1, 1), ("x", "y"), devices=jax.local_devices()[:1])
        >>> x = np.sin(2 * np.pi / 8 * np.arange(8.0))[:, None, None] + np.zeros((8, 6, 5))
        >>> X = jax.device_put(x, NamedSharding(mesh, PartitionSpec("x", "y")))
        >>> y = apply(X, 2 * np.pi, lambda kx, ky, kz: 1 / (1 + kx**2 + ky**2), grid=alone)
        >>> bool(np.allclose(y, x / 2, atol=1e-6))
        True

    """
    return _of_shards("apply", x, grid, mesh, box_size, kernel)

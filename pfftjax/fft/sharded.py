"""Transforms of global arrays: `jax.Array`s that are sharded over a mesh of all ranks' devices.

A thin layer: it checks that the shards are the blocks of a plan, runs the plan on them under
`jax.shard_map`, and says how the result is sharded.
"""

from collections.abc import Sequence

import numpy as np
from jax.sharding import Mesh
from jax.typing import DTypeLike

from pfftjax import pencils
from pfftjax._runtime.arguments import static_ints, where
from pfftjax._runtime.arrays import Block, BlockLike, BoxSize, ComplexBlock, RealBlock, RealsLike
from pfftjax._runtime.communicators import world
from pfftjax.pencils import ExchangeMethod, ExchangePrecision, Pencil, ProcessGrid
from pfftjax.pencils.internal import Periodic, Width

from ._pencil_fft import PencilFFT
from ._plan import real_dtype_of, sides_of
from ._shards import shards_of
from ._steps import Layout, Norm


def _transform_block(x: Block, plan: PencilFFT, forward: bool) -> Block:
    return plan.forward(x) if forward else plan.inverse(x)


def _transform(
    x: BlockLike,
    shape: Sequence[int],
    grid: ProcessGrid | None,
    mesh: Mesh | None,
    operation: str,
    norm: Norm,
    layout: Layout,
    method: ExchangeMethod,
    precision: ExchangePrecision,
) -> Block:
    """The transform that `operation` names, by the plan of this shape in real space."""
    shards = shards_of(x, grid, mesh, operation)
    forward, real = not operation.startswith("i"), operation.endswith("rfft3d")
    plan = PencilFFT(
        shape, shards.grid, real=real, norm=norm, layout=layout, method=method, precision=precision
    )
    source, target = plan.input, plan.output
    if not forward:
        source, target = target, source
    expected = tuple(source.global_shape[axis] for axis in source.axes)
    if np.shape(x)[-3:] != expected:
        raise ValueError(
            f"{shards.here}: x has the global shape {np.shape(x)}, "
            f"but for {plan.shape} in real space it is (..., *{expected})"
        )
    for pencil in (plan.input, plan.output):
        shards.check_sizes(pencil)
    lead = np.ndim(x) - 3
    sources, targets = (shards.spec(source, lead),), shards.spec(target, lead)
    return shards.run(_transform_block, (plan, forward), sources, targets, x)


def shape_in_space(y: BlockLike, layout: Layout) -> tuple[int, ...]:
    """Global shape in real space of the array with the spectrum `y`."""
    shape = tuple(np.shape(y)[-3:])
    return (shape[2], shape[0], shape[1]) if layout == "transposed" and len(shape) == 3 else shape


def fft3d(
    x: BlockLike,
    grid: ProcessGrid | None = None,
    *,
    mesh: Mesh | None = None,
    norm: Norm = "backward",
    layout: Layout = "transposed",
    method: ExchangeMethod = ExchangeMethod.AUTOMATIC,
    precision: ExchangePrecision = ExchangePrecision.FULL,
) -> ComplexBlock:
    """Fourier transform of a global array over its last three axes.

    Args:
        x: a `jax.Array` of the global shape (..., n0, n1, n2), its first two axes (of the last
            three) sharded over the devices of all ranks, one device a rank and in the order of
            the ranks: ``NamedSharding(jax.make_mesh((2, 4), ("x", "y")), P("x", "y"))``. In jitted
            code that is known of meshes whose axes have the type Explicit, as `jax.make_mesh` has
            them; on one of the type Auto the array counts as sharded over its axes in their order,
            and XLA reshards one that is not.
        grid: process grid, if not of all ranks; by default that which the sharding makes.
        mesh: the mesh, if neither the array nor `jax.set_mesh` says which it is: of the shape of
            the grid, or one-dimensional for slabs.
        norm: as in `pfftjax.fft3d`.
        layout: "transposed": the spectrum has the global shape (..., n1, n2, n0), its first two
            axes sharded. "natural": as `x`, for as many more exchanges.
        method: way of the exchanges, as for `PencilFFT`.
        precision: of the numbers that are exchanged, as for `PencilFFT`.

    Returns:
        The spectrum, a global array, complex.

    Raises:
        ValueError: an array that is not sharded so, sizes that do not divide, a mesh that does not
            have one device of each rank in the order of the ranks, or an unknown mesh.
        TypeError: a dtype without a transform, or another kind of sharding.

    Derivatives are those of `pfftjax.fft3d`, by `jax.grad` and the like: of a global array they
    are global. The first call for a shape of the mesh is collective while it is traced.

    Example:
        >>> import jax, numpy as np
        >>> from jax.sharding import NamedSharding, PartitionSpec
        >>> from mpi4py import MPI
        >>> alone = ProcessGrid((1, 1), MPI.COMM_SELF)
        >>> mesh = jax.make_mesh((1, 1), ("x", "y"), devices=jax.local_devices()[:1])
        >>> x = np.random.default_rng(0).standard_normal((4, 5, 6)).astype("float32")
        >>> y = fft3d(jax.device_put(x, NamedSharding(mesh, PartitionSpec("x", "y"))), alone)
        >>> bool(np.allclose(y, np.fft.fftn(x).transpose(1, 2, 0), atol=1e-4))
        True

    """
    return _transform(x, np.shape(x)[-3:], grid, mesh, "fft3d", norm, layout, method, precision)


def ifft3d(
    y: BlockLike,
    grid: ProcessGrid | None = None,
    *,
    mesh: Mesh | None = None,
    norm: Norm = "backward",
    layout: Layout = "transposed",
    method: ExchangeMethod = ExchangeMethod.AUTOMATIC,
    precision: ExchangePrecision = ExchangePrecision.FULL,
) -> ComplexBlock:
    """The inverse of `fft3d`: from a spectrum as it returns it, to a global array, complex.

    Arguments and errors are as for `fft3d`.
    """
    return _transform(
        y, shape_in_space(y, layout), grid, mesh, "ifft3d", norm, layout, method, precision
    )


def rfft3d(
    x: BlockLike,
    grid: ProcessGrid | None = None,
    *,
    mesh: Mesh | None = None,
    norm: Norm = "backward",
    layout: Layout = "transposed",
    method: ExchangeMethod = ExchangeMethod.AUTOMATIC,
    precision: ExchangePrecision = ExchangePrecision.FULL,
) -> ComplexBlock:
    """Fourier transform of a real global array: half the work and traffic of `fft3d`.

    The spectrum has n2 // 2 + 1 points along axis 2. In the transposed layout that axis is sharded
    over the second dimension of the grid, where this is rarely a size that divides: take slabs,
    ``ProcessGrid((None, 1))``, or the natural layout.

    Arguments and errors are as for `fft3d`.
    """
    return _transform(x, np.shape(x)[-3:], grid, mesh, "rfft3d", norm, layout, method, precision)


def irfft3d(
    y: BlockLike,
    grid: ProcessGrid | None = None,
    *,
    shape: Sequence[int],
    mesh: Mesh | None = None,
    norm: Norm = "backward",
    layout: Layout = "transposed",
    method: ExchangeMethod = ExchangeMethod.AUTOMATIC,
    precision: ExchangePrecision = ExchangePrecision.FULL,
) -> RealBlock:
    """The inverse of `rfft3d`: from a half spectrum to a real global array.

    `y` is a spectrum as `rfft3d` returns it for this layout, and `shape` is (n0, n1, n2) in real
    space: the spectrum does not say whether n2 is even or odd. The other arguments and the errors
    are as for `fft3d`.
    """
    return _transform(y, shape, grid, mesh, "irfft3d", norm, layout, method, precision)


def wavenumbers(
    shape: Sequence[int],
    box_size: BoxSize,
    *,
    real: bool = False,
    layout: Layout = "transposed",
    dtype: DTypeLike | None = None,
) -> tuple[RealsLike, RealsLike, RealsLike]:
    """Wavenumbers of the whole spectrum that `fft3d` or `rfft3d` returns.

    Args:
        shape: global shape (n0, n1, n2) in real space.
        box_size: side of the box: a number, or one for each axis; may be traced.
        real: for `rfft3d`.
        layout: as given to the transform.
        dtype: floating-point dtype, JAX's default by default.

    Returns:
        (kx, ky, kz), by axis in real space, in radians per unit length: vectors that every rank
        has, each of which broadcasts against the spectrum.

    Example:
        >>> kx, ky, kz = wavenumbers((4, 6, 5), 6.283185307179586)
        >>> kx.shape, kx.ravel().tolist()
        ((1, 1, 4), [0.0, 1.0, -2.0, -1.0])

    """
    here = where("wavenumbers", world)
    dtype = real_dtype_of(dtype, here, "wavenumbers")
    sides = sides_of(box_size, 3, here)
    shape = static_ints(shape, "shape", "wavenumbers", world)
    if len(shape) != 3 or min(shape) < 1:
        raise ValueError(f"{here}: shape must be (n0, n1, n2), three positive sizes, got {shape}")
    if layout not in ("transposed", "natural"):
        raise ValueError(f"{here}: layout must be transposed or natural, got {layout!r}")
    axes = (1, 2, 0) if layout == "transposed" else (0, 1, 2)
    result = []
    for axis, (n, side) in enumerate(zip(shape, sides, strict=True)):
        half = real and axis == 2
        index = np.fft.rfftfreq(n, 1 / n) if half else np.fft.fftfreq(n, 1 / n)
        like = [1, 1, 1]
        like[axes.index(axis)] = -1
        # NumPy's arrays, unless `side` is traced: JAX takes these for values on all devices.
        result.append((np.rint(index).astype(dtype) * (2 * np.pi / side)).reshape(like))
    kx, ky, kz = (k.astype(dtype) for k in result)
    return kx, ky, kz


def halo_exchange(
    x: BlockLike,
    grid: ProcessGrid | None = None,
    width: Width = 1,
    *,
    mesh: Mesh | None = None,
    periodic: Periodic = True,
) -> Block:
    """Pad each shard of a global array with ghost cells from its neighbours.

    `x`, `grid` and `mesh` are as for `fft3d`; `width`, the ghost cells on each side, and
    `periodic` as for `pfftjax.halo_exchange`. Errors are as for `fft3d`. Its adjoint is
    `halo_reduce`.

    Returns:
        The global array whose shards are the padded blocks: work on it under `jax.shard_map`.

    """
    return _halo(x, grid, np.shape(x)[-3:], width, mesh, periodic, "halo_exchange")


def halo_reduce(
    x: BlockLike,
    grid: ProcessGrid | None = None,
    width: Width = 1,
    *,
    shape: Sequence[int],
    mesh: Mesh | None = None,
    periodic: Periodic = True,
) -> Block:
    """Add the ghost cells of padded shards to the cells that they stand for.

    `x` is an array as `halo_exchange` returns it for the same other arguments, and `shape` is
    (n0, n1, n2) without ghosts. Errors are as for `fft3d`. Its adjoint is `halo_exchange`.

    Returns:
        A global array of shape (..., n0, n1, n2).

    """
    return _halo(x, grid, shape, width, mesh, periodic, "halo_reduce")


def _halo(
    x: BlockLike,
    grid: ProcessGrid | None,
    shape: Sequence[int],
    width: Width,
    mesh: Mesh | None,
    periodic: Periodic,
    operation: str,
) -> Block:
    shards = shards_of(x, grid, mesh, operation)
    pencil = Pencil(shape, shards.grid)
    shards.check_sizes(pencil)
    spec = shards.spec(pencil, np.ndim(x) - 3)
    of_block = getattr(pencils, operation)
    return shards.run(of_block, (pencil, width), (spec,), spec, x, periodic=periodic)

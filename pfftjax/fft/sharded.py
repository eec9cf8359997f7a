"""Transforms of global arrays: `jax.Array`s that are sharded over a mesh of all ranks' devices.

A thin layer: it checks that the shards are the blocks of a plan, runs the plan on them under
`jax.shard_map`, and says how the result is sharded.
"""

import dataclasses
import functools
import math
from collections.abc import Callable, Hashable, Sequence
from typing import TypeAlias, TypeGuard, TypeVar, cast

import jax
import numpy as np
from jax.core import Tracer
from jax.sharding import Mesh, NamedSharding, PartitionSpec
from jax.typing import DTypeLike

from pfftjax import pencils
from pfftjax._runtime.arrays import Block, BlockLike, BoxSize, ComplexBlock, RealBlock, RealsLike
from pfftjax._runtime.communicators import world
from pfftjax._runtime.primitive import static_ints, where
from pfftjax.pencils import ExchangeMethod, Pencil, ProcessGrid
from pfftjax.pencils.internal import Periodic, Width, checked_grid

from ._pencil_fft import PencilFFT
from ._plan import sides_of, wavenumber_dtype
from ._steps import Layout, Norm

# The names of the axes of a mesh over which an axis of an array is sharded.
_Names: TypeAlias = tuple[Hashable, ...]
_T = TypeVar("_T")


def is_global(x: object) -> TypeGuard[jax.Array]:
    """Whether `x` is a concrete array of which this process has only a part."""
    return isinstance(x, jax.Array) and not isinstance(x, Tracer) and not x.is_fully_addressable


@dataclasses.dataclass(frozen=True)
class _Shards:
    """The shards of global arrays as blocks of pencils."""

    grid: ProcessGrid
    mesh: Mesh
    over: tuple[_Names, _Names]
    """The names that the split axes are sharded over, for each dimension of the grid."""

    def spec(self, pencil: Pencil, lead: int) -> PartitionSpec:
        """How an array is sharded whose shards are the blocks of `pencil`."""
        split = {axis: self.over[d] or None for d, axis in enumerate(pencil.split)}
        return PartitionSpec(*(None,) * lead, *(split.get(axis) for axis in pencil.axes))

    def check_sizes(self, pencil: Pencil, operation: str) -> None:
        """JAX has shards of equal sizes only."""
        for d, axis in enumerate(pencil.split):
            n, parts = pencil.global_shape[axis], self.grid.dims[d]
            if n % parts:
                raise ValueError(
                    f"{where(operation, self.grid.communicator)}: axis {axis} of the global shape "
                    f"{pencil.global_shape} has {n} points for {parts} ranks of {self.grid}, and "
                    f"JAX shards only what divides; take another grid or layout='natural', or "
                    "call pfftjax's functions of the same name on each rank's own block, which "
                    "may have any size"
                )


def _shards(x: BlockLike, grid: ProcessGrid, mesh: Mesh | None, operation: str) -> _Shards:
    """How the third and the second axis from the end of `x` are sharded over `grid`."""
    here = where(operation, checked_grid(grid, operation).communicator)
    if np.ndim(x) < 3:
        raise ValueError(f"{here}: x must have three dimensions, got shape {np.shape(x)}")
    if mesh is None:
        mesh, over = _mesh_of(x, grid, here)
    elif not isinstance(mesh, Mesh):
        raise TypeError(f"{here}: mesh must be a jax.sharding.Mesh, got {type(mesh).__name__}")
    else:
        over = _over(mesh, grid, here)
    order = [mesh.axis_names.index(name) for names in over for name in names]
    order += [i for i in range(len(mesh.axis_names)) if i not in order]  # of size 1
    found = [device.process_index for device in mesh.devices.transpose(order).ravel()]
    processes = list(_processes(grid))
    if found != processes:
        raise ValueError(
            f"{here}: the ranks of {grid} are the JAX processes {processes}, but in their places "
            f"the mesh has devices of {found}; start jax.distributed with the rank as process_id, "
            "and make the mesh of jax.devices() in their order, one a rank"
        )
    return _Shards(grid, mesh, over)


def _mesh_of(x: BlockLike, grid: ProcessGrid, here: str) -> tuple[Mesh, tuple[_Names, _Names]]:
    """The mesh of a concrete array, and the names that its two split axes are sharded over."""
    if isinstance(x, Tracer) or not isinstance(x, jax.Array):
        raise ValueError(
            f"{here}: {type(x).__name__} does not say how it is sharded; give mesh=, that of the "
            "global arrays"
        )
    sharding = x.sharding
    if not isinstance(sharding, NamedSharding) or not isinstance(sharding.mesh, Mesh):
        raise TypeError(f"{here}: x must have a NamedSharding, got {sharding}; put it on a mesh")
    spec = (*sharding.spec, *(None,) * x.ndim)[: x.ndim]
    names = [() if s is None else s if isinstance(s, tuple) else (s,) for s in spec]
    sizes = [math.prod(sharding.mesh.shape[name] for name in entry) for entry in names]
    if sizes != [*(1,) * (x.ndim - 3), *grid.dims, 1] or sharding.mesh.size != grid.size:
        raise ValueError(
            f"{here}: an array of shape {x.shape} sharded as {sharding.spec} over "
            f"{dict(sharding.mesh.shape)} does not match {grid}: of its last three axes the first "
            f"must be sharded over {grid.dims[0]} devices, the second over {grid.dims[1]} and no "
            "other one, and the mesh must have one device a rank; reshard it by jax.device_put, "
            "or make the grid that matches"
        )
    return sharding.mesh, (names[-3], names[-2])


def _over(mesh: Mesh, grid: ProcessGrid, here: str) -> tuple[_Names, _Names]:
    """The names of the axes of a mesh, for each dimension of the grid."""
    names, sizes = mesh.axis_names, tuple(mesh.devices.shape)
    if sizes == grid.dims:
        return (names[0],), (names[1],)
    if sizes == (grid.size,) and 1 in grid.dims:
        return (names, ()) if grid.dims[1] == 1 else ((), names)
    raise ValueError(
        f"{here}: a mesh {dict(mesh.shape)} does not match {grid}; make it by "
        f"jax.make_mesh({grid.dims}, names)"
    )


@functools.cache
def _processes(grid: ProcessGrid) -> tuple[int, ...]:
    """The index of each rank's JAX process. Collective on the first call for a grid."""
    return tuple(grid.comm.allgather(jax.process_index()))


def _transform_block(x: Block, plan: PencilFFT, forward: bool) -> Block:
    return plan.forward(x) if forward else plan.inverse(x)


def _halo_of_block(
    x: Block, pencil: Pencil, width: Width, periodic: Periodic, exchange: bool
) -> Block:
    """Give a block its ghosts, or take these to their owners."""
    operation = pencils.halo_exchange if exchange else pencils.halo_reduce
    return operation(x, pencil, width, periodic=periodic)


@functools.partial(jax.jit, static_argnums=(1, 2, 3, 4, 5))
def _run(
    x: Block,
    function: Callable[..., Block],
    how: tuple[Hashable, ...],
    mesh: Mesh,
    source: PartitionSpec,
    target: PartitionSpec,
) -> Block:
    """``function(block, *how)`` of each shard: one program for all calls with equal arguments."""
    each = jax.shard_map(
        lambda block: function(block, *how), mesh=mesh, in_specs=source, out_specs=target
    )
    return each(x)


def _transform(
    x: BlockLike,
    shape: Sequence[int],
    grid: ProcessGrid,
    mesh: Mesh | None,
    operation: str,
    norm: Norm,
    layout: Layout,
    method: ExchangeMethod,
) -> Block:
    """The transform that `operation` names, by the plan of this shape in real space."""
    shards = _shards(x, grid, mesh, operation)
    forward, real = not operation.startswith("i"), operation.endswith("rfft3d")
    plan = PencilFFT(shape, grid, real=real, norm=norm, layout=layout, method=method)
    source, target = plan.input, plan.output
    if not forward:
        source, target = target, source
    expected = tuple(source.global_shape[axis] for axis in source.axes)
    if np.shape(x)[-3:] != expected:
        raise ValueError(
            f"{where(operation, grid.communicator)}: x has the global shape {np.shape(x)}, "
            f"but for {plan.shape} in real space it is (..., *{expected})"
        )
    for pencil in (plan.input, plan.output):
        shards.check_sizes(pencil, operation)
    specs = (shards.spec(pencil, np.ndim(x) - 3) for pencil in (source, target))
    return _run(x, _transform_block, (plan, forward), shards.mesh, *specs)


def shape_in_space(y: BlockLike, layout: Layout) -> tuple[int, ...]:
    """Global shape in real space of the array with the spectrum `y`."""
    shape = tuple(np.shape(y)[-3:])
    return (shape[2], shape[0], shape[1]) if layout == "transposed" and len(shape) == 3 else shape


def fft3d(
    x: BlockLike,
    grid: ProcessGrid,
    *,
    mesh: Mesh | None = None,
    norm: Norm = "backward",
    layout: Layout = "transposed",
    method: ExchangeMethod = ExchangeMethod.AUTOMATIC,
) -> ComplexBlock:
    """Fourier transform of a global array over its last three axes.

    Args:
        x: a `jax.Array` of the global shape (..., n0, n1, n2), axis 0 sharded over the first
            dimension of `grid`, axis 1 over the second, one device a rank and in the order of the
            ranks: ``NamedSharding(jax.make_mesh(grid.dims, ("x", "y")), P("x", "y"))``.
        grid: process grid, over all processes of `jax.distributed`.
        mesh: the mesh, required in jitted code, where an array does not say how it is sharded: of
            the shape of `grid`, or one-dimensional for slabs.
        norm: as in `pfftjax.fft3d`.
        layout: "transposed": the spectrum has the global shape (..., n1, n2, n0), its first two
            axes sharded. "natural": as `x`, for as many more exchanges.
        method: way of the exchanges, as for `PencilFFT`.

    Returns:
        The spectrum, a global array, complex.

    Raises:
        ValueError: an array that is not sharded so, sizes that do not divide, or a traced array
            without `mesh`.
        TypeError: a dtype without a transform, or another kind of sharding.

    Derivatives are those of `pfftjax.fft3d`.

    Example:
        >>> import numpy as np
        >>> from mpi4py import MPI
        >>> alone = ProcessGrid((1, 1), MPI.COMM_SELF)
        >>> mesh = jax.make_mesh((1, 1), ("x", "y"), devices=jax.local_devices()[:1])
        >>> x = np.random.default_rng(0).standard_normal((4, 5, 6)).astype("float32")
        >>> y = fft3d(jax.device_put(x, NamedSharding(mesh, PartitionSpec("x", "y"))), alone)
        >>> bool(np.allclose(y, np.fft.fftn(x).transpose(1, 2, 0), atol=1e-4))
        True

    """
    return _transform(x, np.shape(x)[-3:], grid, mesh, "fft3d", norm, layout, method)


def ifft3d(
    y: BlockLike,
    grid: ProcessGrid,
    *,
    mesh: Mesh | None = None,
    norm: Norm = "backward",
    layout: Layout = "transposed",
    method: ExchangeMethod = ExchangeMethod.AUTOMATIC,
) -> ComplexBlock:
    """The inverse of `fft3d`: from a spectrum as it returns it, to a global array, complex.

    Arguments and errors are as for `fft3d`.
    """
    return _transform(y, shape_in_space(y, layout), grid, mesh, "ifft3d", norm, layout, method)


def rfft3d(
    x: BlockLike,
    grid: ProcessGrid,
    *,
    mesh: Mesh | None = None,
    norm: Norm = "backward",
    layout: Layout = "transposed",
    method: ExchangeMethod = ExchangeMethod.AUTOMATIC,
) -> ComplexBlock:
    """Fourier transform of a real global array: half the work and traffic of `fft3d`.

    The spectrum has n2 // 2 + 1 points along axis 2. In the transposed layout that axis is sharded
    over the second dimension of the grid, where this is rarely a size that divides: take slabs,
    ``ProcessGrid((None, 1))``, or the natural layout.

    Arguments and errors are as for `fft3d`.
    """
    return _transform(x, np.shape(x)[-3:], grid, mesh, "rfft3d", norm, layout, method)


def irfft3d(
    y: BlockLike,
    grid: ProcessGrid,
    *,
    shape: Sequence[int],
    mesh: Mesh | None = None,
    norm: Norm = "backward",
    layout: Layout = "transposed",
    method: ExchangeMethod = ExchangeMethod.AUTOMATIC,
) -> RealBlock:
    """The inverse of `rfft3d`: from a half spectrum to a real global array.

    `y` is a spectrum as `rfft3d` returns it for this layout, and `shape` is (n0, n1, n2) in real
    space: the spectrum does not say whether n2 is even or odd. The other arguments and the errors
    are as for `fft3d`.
    """
    return _transform(y, shape, grid, mesh, "irfft3d", norm, layout, method)


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
    dtype = wavenumber_dtype(dtype, here)
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
    grid: ProcessGrid,
    width: Width,
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
    grid: ProcessGrid,
    width: Width,
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
    grid: ProcessGrid,
    shape: Sequence[int],
    width: Width,
    mesh: Mesh | None,
    periodic: Periodic,
    operation: str,
) -> Block:
    pencil = Pencil(shape, checked_grid(grid, operation))
    shards = _shards(x, grid, mesh, operation)
    shards.check_sizes(pencil, operation)
    how = (pencil, _hashable(width), _hashable(periodic), operation == "halo_exchange")
    spec = shards.spec(pencil, np.ndim(x) - 3)
    return _run(x, _halo_of_block, how, shards.mesh, spec, spec)


def _hashable(value: _T) -> _T:
    """`value` with tuples for lists."""
    several = isinstance(value, list | tuple)
    return cast(_T, tuple(map(_hashable, value))) if several else value

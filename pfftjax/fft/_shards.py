"""Global arrays, and the process grid that their sharding makes.

JAX knows more or less of how an array is sharded: all of a concrete one; in jitted code all where
the axes of the mesh are of the type Explicit, and only the mesh where they are Auto. There the
sharding is that by the axes of the mesh in their order, and an array that has another one is
resharded by XLA.
"""

import dataclasses
import functools
import math
from collections.abc import Callable, Hashable
from typing import Any, TypeAlias, TypeGuard, TypeVar, cast

import jax
import numpy as np
from jax.core import Tracer
from jax.sharding import AbstractMesh, AxisType, Mesh, NamedSharding, PartitionSpec
from jax.tree_util import Partial
from jax.typing import ArrayLike
from mpi4py import MPI

from pfftjax._runtime.arguments import where
from pfftjax._runtime.arrays import PyTree
from pfftjax._runtime.communicators import world
from pfftjax._runtime.placement import check_places, on_ranks
from pfftjax.collectives.internal import traced
from pfftjax.pencils import Pencil, ProcessGrid
from pfftjax.pencils.internal import checked_grid

# The names of the axes of a mesh over which an axis of an array is sharded.
_Names: TypeAlias = tuple[Hashable, ...]
AnyMesh: TypeAlias = Mesh | AbstractMesh
_T = TypeVar("_T")


def is_global(x: object, grid: object) -> TypeGuard[jax.Array]:
    """Whether this process has only a part of `x`, a concrete or a traced array.

    Where there is no grid, which blocks need, an array on a mesh of one device is one as well.
    """
    if not isinstance(x, jax.Array):
        return False
    mesh = _sharding(x).mesh if isinstance(_sharding(x), NamedSharding) else None
    if not isinstance(x, Tracer):
        return not x.is_fully_addressable or (grid is None and isinstance(mesh, Mesh))
    return mesh is not None and not _has_blocks(mesh) and mesh.size > (grid is not None)


def _sharding(x: jax.Array) -> Any:
    """How an array is sharded, as far as it is known here."""
    return getattr(jax.typeof(x), "sharding", None) if isinstance(x, Tracer) else x.sharding


def _has_blocks(mesh: AnyMesh) -> bool:
    """Whether arrays are blocks: inside of `jax.shard_map`, or on no mesh."""
    return mesh.empty or AxisType.Manual in mesh.axis_types


@dataclasses.dataclass(frozen=True)
class Shards:
    """The shards of global arrays as blocks of pencils."""

    grid: ProcessGrid
    mesh: AnyMesh
    over: tuple[_Names, _Names]
    """The names that the split axes are sharded over, for each dimension of the grid."""
    operation: str

    @property
    def here(self) -> str:
        """How an error begins."""
        return where(self.operation, self.grid.communicator)

    def spec(self, pencil: Pencil, lead: int = 0, trail: int = 0) -> PartitionSpec:
        """How an array is sharded whose shards are the blocks of `pencil`, with so many axes
        before and after.
        """
        split = {axis: self.over[d] or None for d, axis in enumerate(pencil.split)}
        middle = (split.get(axis) for axis in pencil.axes)
        return PartitionSpec(*(None,) * lead, *middle, *(None,) * trail)

    @property
    def rows(self) -> PartitionSpec:
        """How an array of rows is sharded, in the order of the ranks."""
        return PartitionSpec(self.over[0] + self.over[1] or None)

    def check_sizes(self, pencil: Pencil) -> None:
        """JAX has shards of equal sizes only."""
        for d, axis in enumerate(pencil.split):
            n, parts = pencil.global_shape[axis], self.grid.dims[d]
            if n % parts:
                raise ValueError(
                    f"{self.here}: axis {axis} of the global shape "
                    f"{pencil.global_shape} has {n} points for {parts} ranks of {self.grid}, and "
                    f"JAX shards only what divides; take another grid or layout='natural', or "
                    "call pfftjax's functions of the same name on each rank's own block, which "
                    "may have any size"
                )

    def run(
        self,
        function: Callable[..., PyTree],
        how: tuple[Any, ...],
        sources: PyTree,
        targets: PyTree,
        *operands: PyTree,
        is_kept: bool = True,
        **options: object,
    ) -> PyTree:
        """``function(*blocks, *how, **options)`` of each shard, as one jitted program.

        Args:
            function: a function of a module.
            how: arguments that all ranks have. Those that are known are static.
            is_kept: whether JAX keeps the program for calls with equal arguments. It would keep
                functions of the user's forever, and all that they take from around them.
            sources: a tuple, how each operand is sharded.
            targets: how each result is sharded.
            operands: global arrays and what all ranks have; the first one is an array.
            options: more of these, by name.

        """
        static, late = zip(*map(known, (*how, *options.values())), strict=True)
        what = function, static, tuple(options), self, (*sources, PartitionSpec()), targets
        operands = (*operands, late)
        if is_kept:
            return _kept(operands, *what)
        return jax.jit(lambda *xs: _run(xs, *what))(*operands)


def _run(
    operands: tuple[PyTree, ...],
    function: Callable[..., PyTree],
    static: tuple[Hashable, ...],
    names: tuple[str, ...],
    shards: Shards,
    sources: PyTree,
    targets: PyTree,
) -> PyTree:
    first, *others = operands
    if not isinstance(shards.mesh, Mesh):
        places = _places(shards.mesh, shards.over)
        first = on_ranks(first, places, _processes(shards.grid), shards.here)
    structures = []

    def leaves_of(*blocks: PyTree) -> list[jax.Array]:
        *own, late = blocks
        given = [s if x is None else x for s, x in zip(static, late, strict=True)]
        unnamed = len(given) - len(names)
        options = dict(zip(names, given[unnamed:], strict=True))
        leaves, structure = jax.tree.flatten(function(*own, *given[:unnamed], **options))
        structures.append(structure)
        return leaves

    def of_blocks(*blocks: PyTree) -> PyTree:
        # JAX takes what is replicated for as many variables as there are ranks, adds up the
        # cotangents of an operand, and deals out that of a result.
        leaves = traced(leaves_of, *blocks)(*blocks)
        return jax.tree.unflatten(structures[-1], leaves)

    # With check_vma JAX would ask every loop and condition inside which values differ by rank.
    each = jax.shard_map(
        of_blocks, mesh=shards.mesh, in_specs=sources, out_specs=targets, check_vma=False
    )
    return each(first, *others)


_kept = jax.jit(_run, static_argnums=(1, 2, 3, 4, 5, 6))


def shards_of(
    x: ArrayLike,
    grid: ProcessGrid | None,
    mesh: AnyMesh | None,
    operation: str,
    split: tuple[int, int] = (-3, -2),
) -> Shards:
    """How two axes of `x` are sharded, and over which process grid."""
    comm = world if grid is None else checked_grid(grid, operation).communicator
    here = where(operation, comm)
    if np.ndim(x) < -split[0]:
        number = {3: "three", 4: "four"}[-split[0]]
        raise ValueError(f"{here}: x must have {number} dimensions, got shape {np.shape(x)}")
    mesh, spec = _mesh_of(x, mesh, here)
    if spec is None:
        return shards_on(mesh, grid, operation)
    over, dims = _over_of(np.shape(x), mesh, spec, grid, split, here)
    return _checked(Shards(_grid(grid, dims, mesh, here), mesh, over, operation))


def rows_of(x: ArrayLike, mesh: AnyMesh | None, operation: str) -> Shards:
    """How an array is sharded whose first axis is sharded over all ranks in their order."""
    here = where(operation, world)
    mesh, spec = _mesh_of(x, mesh, here)
    shards = shards_on(mesh, None, operation)
    names = () if spec is None else _names(spec, np.ndim(x))
    given = tuple(name for entry in names for name in entry if mesh.shape[name] > 1)
    wanted = tuple(name for entry in shards.over for name in entry if mesh.shape[name] > 1)
    if spec is not None and (given != wanted or any(names[1:])):
        raise ValueError(
            f"{here}: an array of shape {np.shape(x)} sharded as {spec} over {dict(mesh.shape)} "
            f"must have its first axis, and no other, sharded over {wanted}; reshard it by "
            f"jax.sharding.reshard or jax.device_put to {shards.rows}"
        )
    parts = shards.grid.size
    if np.shape(x)[0] % parts:
        raise ValueError(
            f"{here}: {np.shape(x)[0]} rows cannot be sharded over {parts} devices: JAX shards "
            "only what divides; add rows, or call pfftjax.pm on each rank's own particles, of "
            "which it may have any number"
        )
    return shards


def _names(spec: PartitionSpec, ndim: int) -> list[_Names]:
    """The names over which each axis is sharded."""
    entries = (*spec, *(None,) * ndim)[:ndim]
    return [() if s is None else s if isinstance(s, tuple) else (s,) for s in entries]


def _mesh_of(
    x: ArrayLike, mesh: AnyMesh | None, here: str
) -> tuple[AnyMesh, PartitionSpec | None]:
    """The mesh that an array is on, and how it is sharded, if that is known."""
    if mesh is not None:
        if not isinstance(mesh, Mesh | AbstractMesh):
            raise TypeError(f"{here}: mesh must be a jax.sharding.Mesh, got {type(mesh).__name__}")
        return mesh, None
    found = _sharding(x) if isinstance(x, jax.Array) else None
    if isinstance(x, jax.Array) and not isinstance(x, Tracer):
        if not isinstance(found, NamedSharding) or not isinstance(found.mesh, Mesh):
            raise TypeError(f"{here}: x must have a NamedSharding, got {found}; put it on a mesh")
        return found.mesh, found.spec
    if not isinstance(found, NamedSharding) or found.mesh.empty:
        around = jax.sharding.get_abstract_mesh()
        if around.empty:
            raise ValueError(
                f"{here}: {type(x).__name__} of shape {np.shape(x)} does not say how it is "
                "sharded; give mesh=, that of the global arrays, or call the program inside of "
                "jax.set_mesh(mesh)"
            )
        found = NamedSharding(around, PartitionSpec())
    if _has_blocks(found.mesh):
        raise ValueError(
            f"{here}: inside of jax.shard_map arrays are blocks; call pfftjax's function of the "
            "same name, which takes them"
        )
    mesh = found.mesh
    is_known = all(
        kind == AxisType.Explicit or mesh.shape[name] == 1
        for name, kind in zip(mesh.axis_names, mesh.axis_types, strict=True)
    )
    return mesh, found.spec if is_known else None


def _over_of(
    shape: tuple[int, ...],
    mesh: AnyMesh,
    spec: PartitionSpec,
    grid: ProcessGrid | None,
    split: tuple[int, int],
    here: str,
) -> tuple[tuple[_Names, _Names], tuple[int, int]]:
    """The names that the split axes are sharded over, and the dimensions of the grid."""
    names = _names(spec, len(shape))
    sizes = [math.prod(mesh.shape[name] for name in entry) for entry in names]
    dims = (sizes[split[0]], sizes[split[1]])
    if dims[0] * dims[1] != mesh.size or (grid is not None and dims != grid.dims):
        parts = [f"{grid.dims[d]} devices" if grid else "devices" for d in range(2)]
        raise ValueError(
            f"{here}: an array of shape {shape} sharded as {spec} over "
            f"{dict(mesh.shape)} does not match {grid or 'a grid of all devices'}: axis "
            f"{len(shape) + split[0]} must be sharded over {parts[0]}, axis "
            f"{len(shape) + split[1]} over {parts[1]} and no other one, and the mesh must have "
            "one device a rank; reshard it by jax.device_put or jax.sharding.reshard, or make "
            "the grid that matches"
        )
    return (names[split[0]], names[split[1]]), dims


def shards_on(mesh: AnyMesh, grid: ProcessGrid | None, operation: str) -> Shards:
    """The shards of arrays that are sharded over the axes of a mesh in their order."""
    here = where(operation, world if grid is None else grid.communicator)
    names, sizes = mesh.axis_names, tuple(mesh.axis_sizes)
    if grid is not None and sizes == (grid.size,) and 1 in grid.dims:
        over = (names, ()) if grid.dims[1] == 1 else ((), names)
        return _checked(Shards(grid, mesh, over, operation))
    if len(names) != 2:  # axes of size 1 divide nothing
        names = tuple(name for name in names if mesh.shape[name] > 1)
    dims = cast(tuple[int, int], (*(mesh.shape[name] for name in names), 1, 1)[:2])
    if len(names) > 2 or (grid is not None and dims != grid.dims):
        wanted = "(rows, columns)" if grid is None else grid.dims
        raise ValueError(
            f"{here}: a mesh {dict(mesh.shape)} does not match "
            f"{grid or 'a process grid of two dimensions'}; make it by jax.make_mesh({wanted}, "
            "names), or with axes of the type Explicit, which say how an array is sharded"
        )
    first, second = (*names, None, None)[:2]
    over = (() if first is None else (first,), () if second is None else (second,))
    return _checked(Shards(_grid(grid, dims, mesh, here), mesh, over, operation))


def _grid(
    grid: ProcessGrid | None, dims: tuple[int, int], mesh: AnyMesh, here: str
) -> ProcessGrid:
    """The grid that is given, or that of all ranks with these dimensions."""
    if grid is not None:
        return grid
    ranks = MPI.COMM_WORLD.size
    if mesh.size != ranks:
        raise ValueError(
            f"{here}: the mesh {dict(mesh.shape)} has {mesh.size} devices, but {ranks} ranks run; "
            "start jax.distributed over all ranks and make the mesh of one device of each, or "
            "give grid=, a pfftjax.ProcessGrid of the ranks whose devices these are"
        )
    if isinstance(mesh, Mesh):  # before anything that waits for ranks with no device in it
        here_too = [d.process_index for d in mesh.devices.flat].count(jax.process_index())
        if here_too != 1:
            raise ValueError(
                f"{here}: the mesh {dict(mesh.shape)} has {here_too} devices of this process, and "
                "must have one of each; make it of those"
            )
    return _world_grid(dims)


@functools.cache
def _world_grid(dims: tuple[int, int]) -> ProcessGrid:
    """The grid of all ranks with these dimensions. Collective on the first call."""
    return ProcessGrid(dims)


def _checked(shards: Shards) -> Shards:
    """`shards`, unless the mesh is known to have devices of other ranks in their places."""
    if isinstance(shards.mesh, Mesh):
        devices = shards.mesh.devices.ravel()
        found = [devices[place].process_index for place in _places(shards.mesh, shards.over)]
        check_places(found, _processes(shards.grid), shards.here)
    return shards


def _places(mesh: AnyMesh, over: tuple[_Names, _Names]) -> tuple[int, ...]:
    """The place of each rank's device among those of the mesh."""
    order = [mesh.axis_names.index(name) for names in over for name in names]
    order += [i for i in range(len(mesh.axis_names)) if i not in order]  # of size 1
    places = np.arange(mesh.size).reshape(mesh.axis_sizes).transpose(order)
    return tuple(places.ravel().tolist())


@functools.cache
def _processes(grid: ProcessGrid) -> tuple[int, ...]:
    """The index of each rank's JAX process. Collective on the first call for a grid."""
    return tuple(grid.comm.allgather(jax.process_index()))


def known(value: Any) -> tuple[Any, Any]:
    """An argument as a static one and nothing, or as nothing and one that is traced.

    A function may have traced parts, and be a pytree or a tuple: it stays what it is. One that has
    its arrays as arguments, a `jax.tree_util.Partial`, is traced, as `jax.shard_map` cannot close
    over arrays of a mesh.
    """
    if isinstance(value, Partial) and jax.tree.leaves(value):
        return None, value
    if callable(value):
        return value, None
    is_traced = any(isinstance(leaf, Tracer) for leaf in jax.tree.leaves(value))
    return (None, value) if is_traced else (hashable(value), None)


def hashable(value: _T) -> _T:
    """`value` with tuples for lists and for arrays that are known."""
    if isinstance(value, np.ndarray | jax.Array) and not isinstance(value, Tracer):
        return cast(_T, hashable(value.tolist()))
    several = isinstance(value, list | tuple)
    return cast(_T, tuple(map(hashable, value))) if several else value

"""Redistribution from one pencil to another."""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
from jax.core import ShapedArray
from jax.extend.core import Primitive
from jax.interpreters import ad, batching, mlir
from jax.typing import ArrayLike

from pfftjax._runtime.arguments import as_array, where
from pfftjax._runtime.arrays import AnyArray
from pfftjax._runtime.communicators import Communicator
from pfftjax._runtime.ffi import native
from pfftjax._runtime.primitive import communicating, local
from pfftjax._runtime.rules import linear

from ._method import ExchangeMethod, checked_method, refuse_on_cpus
from ._pencil import Pencil, block, change_of, checked_pencil

_MOST_DIMENSIONS = native.most_dimensions


def _inverse(order: tuple[int, ...]) -> tuple[int, ...]:
    return tuple(order.index(d) for d in range(len(order)))


def _with_batch(order: tuple[int, ...]) -> tuple[int, ...]:
    return (0, *(d + 1 for d in order))


@dataclasses.dataclass(frozen=True)
class Redistribution:
    """How blocks x become blocks y that are split along another axis.

    Attributes:
        order: dimension d of y is dimension order[d] of x.
        scatter: the dimension of x that is whole, and becomes split.
        gather: the dimension of x that is split, and becomes whole.
        whole: its length then.

    """

    order: tuple[int, ...]
    scatter: int
    gather: int
    whole: int

    def result(self, x: ShapedArray, comm: Communicator | None) -> ShapedArray:
        """The blocks y; without a communicator nothing is split."""
        shape = list(x.shape)
        if comm is not None:
            shape[self.scatter] = block(x.shape[self.scatter], comm.size, comm.rank)[1]
            shape[self.gather] = self.whole
        return x.update(shape=tuple(shape[d] for d in self.order), weak_type=False)

    def agreement(self, x: ShapedArray, method: ExchangeMethod) -> str:
        """The text that must be equal on all ranks."""
        shape = list(x.shape)
        shape[self.gather] = self.whole
        axes = f"axis {self.gather} for axis {self.scatter} in order {self.order}"
        return f"{np.dtype(x.dtype).name}{shape} {axes} {method.name.lower()}"

    def attributes(self) -> dict[str, np.ndarray | np.int64]:
        """The attributes of the custom call that all handlers take."""
        order = np.array(self.order, np.int64)
        return {"order": order, "scatter": np.int64(self.scatter), "gather": np.int64(self.gather)}

    def with_batch(self) -> "Redistribution":
        """The same of blocks that have one more dimension in front."""
        order = _with_batch(self.order)
        return Redistribution(order, self.scatter + 1, self.gather + 1, self.whole)


def _back(way: Redistribution, x: ShapedArray) -> Redistribution:
    """The way back to the blocks x."""
    order = way.order
    return Redistribution(
        order=_inverse(order),
        scatter=order.index(way.gather),
        gather=order.index(way.scatter),
        whole=x.shape[way.scatter],
    )


# JAX has a primitive called transpose, too.
transpose_p: Primitive = communicating(
    "pencil_transpose",
    result=lambda x, *, way, method, comm: way.result(x, comm),
    agreement=lambda x, *, way, method, comm: way.agreement(x, method),
    attributes=lambda way, method: {**way.attributes(), "method": np.int64(method)},
    check_on_cpus=functools.partial(refuse_on_cpus, "transpose"),
)
linear(
    transpose_p,
    batch=(0, 0),
    # Every element moves to one place, on one rank.
    adjoint=lambda y, x, *, way, **same: transpose_p.bind(y, way=_back(way, x), **same),
    batched_params=lambda _, params: {**params, "way": params["way"].with_batch()},
)

# On one rank only the memory order changes: nothing is communicated, in no order of execution.
permute_p = local(
    "permute",
    lambda x, *, order: x.update(shape=tuple(x.shape[d] for d in order), weak_type=False),
)
ad.deflinear2(
    permute_p, lambda cotangent, _, *, order: [permute_p.bind(cotangent, order=_inverse(order))]
)
batching.primitive_batchers[permute_p] = lambda operands, axes, *, order: (
    permute_p.bind(jnp.moveaxis(operands[0], axes[0], 0), order=_with_batch(order)),
    0,
)
mlir.register_lowering(
    permute_p,
    mlir.lower_fun(lambda x, *, order: jax.lax.transpose(x, order), multiple_results=False),
)
_lower_permute = jax.ffi.ffi_lowering("pfftjax_permute")
mlir.register_lowering(
    permute_p,
    lambda ctx, x, *, order: _lower_permute(ctx, x, order=np.array(order, np.int64)),
    platform="cpu",
)


def check_dimensions(x: AnyArray, here: str) -> None:
    """Refuse an array of more dimensions than the C++ core has room for."""
    if x.ndim > _MOST_DIMENSIONS:
        raise ValueError(
            f"{here}: x has {x.ndim} dimensions, and at most {_MOST_DIMENSIONS} "
            "are possible; merge batch dimensions by reshape"
        )


def transpose(
    x: ArrayLike,
    source: Pencil,
    target: Pencil,
    *,
    method: ExchangeMethod = ExchangeMethod.AUTOMATIC,
) -> AnyArray:
    """Redistribute an array from one pencil to another, memory order included.

    The pencils may differ in which axis is split over one dimension of the process grid, and in
    memory order in any way. Packing, exchange and unpacking are one operation, which reads the
    block and writes the result once; leading batch dimensions travel in the same messages. Over
    grid dimensions of a single rank nothing is communicated, and the pencils may differ freely.

    Args:
        x: this rank's block in `source`, of shape ``(..., *source.local_shape)``.
        source: pencil of `x`.
        target: pencil of the result, of the same global shape and grid.
        method: the way of the exchange.

    Returns:
        This rank's block in `target`, of shape ``(..., *target.local_shape)``.

    Raises:
        ValueError: a block that does not match `source`, or pencils that differ in their global
            shape, in their grid, or in more than one split.
        TypeError: a dtype that cannot be sent, or a method that is none.

    Its adjoint is ``transpose(., target, source)``.

    Example:
        >>> import jax.numpy as jnp
        >>> from pfftjax import Pencil, ProcessGrid
        >>> grid = ProcessGrid()
        >>> z, y = Pencil((4, 5, 6), grid), Pencil((4, 5, 6), grid, (0, 2), (0, 2, 1))
        >>> x = jnp.ones(z.local_shape)
        >>> transpose(x, z, y).shape == y.local_shape
        True

    """
    for pencil in (source, target):
        checked_pencil(pencil, "transpose")
    comm = source.grid.communicator
    here = where("transpose", comm)
    method = checked_method(method, "transpose", comm)
    if source.grid != target.grid or source.global_shape != target.global_shape:
        raise ValueError(
            f"{here}: the pencils must have the same grid and global shape; got "
            f"{source.global_shape} on {source.grid} and {target.global_shape} on {target.grid}"
        )
    change = change_of(source, target)
    if len(change.over) > 1:
        raise ValueError(
            f"{here}: the pencils may differ in one split axis only; got {source.split} and "
            f"{target.split}; go by way of pencils that differ in one each"
        )
    x = as_array(x, "transpose", comm)
    source.check_block(x, here)
    lead = x.ndim - len(source.axes)
    check_dimensions(x, here)
    order = (*range(lead), *(lead + d for d in change.order))
    if not change.over or change.scatter is None or change.gather is None:
        return x if order == tuple(range(x.ndim)) else permute_p.bind(x, order=order)
    whole = source.global_shape[source.axes[change.gather]]
    way = Redistribution(order, lead + change.scatter, lead + change.gather, whole)
    return transpose_p.bind(x, way=way, method=method, comm=source.grid.along(change.over[0]))

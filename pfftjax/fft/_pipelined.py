"""Transform, change of pencil and transform on GPUs in chunks, so that the exchange of one goes on
beside the transforms of others.

A chunk is what neither the exchange nor the transforms mix with the rest: elements of a batch, or
planes across the axis that stays in its place. Where one of the transforms is along that axis, too
(of planes, on slabs), that part of it is done for all chunks at once, before the first or after
the last one. The other axis then comes last, as XLA's FFT has it, on the way into and out of the
chunks, which are copied there anyway.
"""

import functools
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp

from pfftjax._runtime.options import options
from pfftjax.pencils import block
from pfftjax.pencils.internal import overlapped

from ._local import Kind, Local, apply, until_conjugation

# What a transform of planes does along their columns.
_COLUMNS = {
    Kind.FORWARD: Kind.FORWARD,
    Kind.BACKWARD: Kind.BACKWARD,
    Kind.REAL_TO_COMPLEX: Kind.FORWARD,
    Kind.COMPLEX_TO_REAL: Kind.BACKWARD,
    Kind.REAL_TO_COMPLEX_TRANSPOSED: Kind.FORWARD,
    Kind.COMPLEX_TO_REAL_TRANSPOSED: Kind.BACKWARD,
}


def _divided(
    transform: Local | None, dims: Sequence[int], cut: int, rows: int
) -> tuple[Local | None, Local | None, bool]:
    """What of a transform is done for all chunks at once; what is done for each; and whether that
    is along columns.

    Args:
        transform: of the last of `dims`, or the last two.
        dims: dimensions of an array, in its order.
        cut: the dimension that is cut.
        rows: length of the last dimension but one.

    """
    if transform is None or cut not in dims[-transform.axes :]:
        return None, transform, False
    if transform.axes == 1 or dims[-1] != cut:
        return transform, None, False
    return transform._replace(axes=1), Local(_COLUMNS[transform.kind], rows), True


def in_chunks(
    x: jax.Array,
    first: Local | None,
    second: Local | None,
    *,
    order: tuple[int, ...],
    scatter: int,
    gather: int,
    whole: int,
    comm: Any,
) -> jax.Array | None:
    """`second(transpose(first(x)))`, or None where there is nothing to cut.

    The dimension that is cut is the first with options.gpu_chunks elements, of the leading ones
    and the axis that stays; if none has so many, the longest of them. All ranks of `comm` have
    them alike.

    Args:
        x: as `Fused` takes it.
        first: along the last axis of `x`, or the last two.
        second: along the last axis of the result, or the last two.
        order: dimension d of the result is dimension order[d] of `x`.
        scatter: the dimension of `x` that becomes split.
        gather: the dimension that becomes whole.
        whole: its length then.
        comm: the ranks that exchange.

    """
    lead, last = x.ndim - 3, x.ndim - 1
    stays = 3 * (lead + 1) - scatter - gather
    extents = list(x.shape)
    extents[-1] = x.shape[-1] if first is None else first.out_of
    most = options.gpu_chunks
    cut = max((*range(lead), stays), key=lambda d: min(extents[d], most))
    count = min(extents[cut], most)
    if count < 2:
        return None

    before, first, first_columns = _divided(first, range(x.ndim), cut, x.shape[-2])
    rows = whole if order[-2] == gather else extents[order[-2]]
    after, second, second_columns = _divided(second, order, cut, rows)

    until, since = until_conjugation(first)

    def begin(start: int, size: int, x: jax.Array) -> jax.Array:
        chunk = jax.lax.slice_in_dim(x, start, start + size, axis=cut)
        return until(jnp.swapaxes(chunk, -1, -2) if first_columns else chunk)

    def end(y: jax.Array) -> jax.Array:
        y = apply(second, since(y))
        return jnp.swapaxes(y, -1, -2) if second_columns else y

    def place(d: int) -> int:
        """Of a dimension of `x` in what is begun."""
        return {last: last - 1, last - 1: last}.get(d, d) if first_columns else d

    travelling = tuple(map(place, order))
    if second_columns:
        travelling = (*travelling[:-2], travelling[-1], travelling[-2])
    bounds = [block(extents[cut], count, chunk) for chunk in range(count)]
    chunks = overlapped(
        apply(before, x),
        [functools.partial(begin, *bound) for bound in bounds],
        [end] * count,
        order=travelling,
        scatter=place(scatter),
        gather=place(gather),
        whole=whole,
        comm=comm,
    )
    return apply(after, jax.lax.concatenate(chunks, order.index(cut)))

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

import jax
import jax.numpy as jnp

from pfftjax._runtime.arrays import Block, ComplexBlock
from pfftjax._runtime.communicators import Communicator
from pfftjax._runtime.options import options
from pfftjax.pencils.internal import Redistribution, block, overlapped

from ._local import Kind, Local, apply, until_conjugation

# Transforms of planes of these kinds are FORWARD along their columns, others BACKWARD.
_FORWARD = (Kind.FORWARD, Kind.REAL_TO_COMPLEX, Kind.REAL_TO_COMPLEX_TRANSPOSED)


def _divided(
    transform: Local | None, dims: Sequence[int], cut: int, rows: int
) -> tuple[Local | None, Local | None, bool]:
    """The part of a transform that is done for all chunks at once, the part that is done for each,
    and whether the latter is along columns. The transform is that of the last of `dims`, or of the
    last two, of which the first has `rows` elements.
    """
    if transform is None or cut not in dims[-transform.axes :]:
        return None, transform, False
    if transform.axes == 1 or dims[-1] != cut:
        return transform, None, False
    along_columns = Kind.FORWARD if transform.kind in _FORWARD else Kind.BACKWARD
    return transform._replace(axes=1), Local(along_columns, rows), True


def in_chunks(
    x: Block, first: Local | None, second: Local | None, way: Redistribution, comm: Communicator
) -> Block | None:
    """`second(transpose(first(x)))`, or None where there is nothing to cut.

    The dimension that is cut is the first with options.gpu_chunks elements, of the leading ones
    and the axis that stays; if none has so many, the longest of them. All ranks of `comm` have
    them alike.
    """
    lead, last = x.ndim - 3, x.ndim - 1
    stays = 3 * (lead + 1) - way.scatter - way.gather
    extents = list(x.shape)
    extents[-1] = x.shape[-1] if first is None else first.out_of
    most = options.gpu_chunks
    cut = max((*range(lead), stays), key=lambda d: min(extents[d], most))
    count = min(extents[cut], most)
    if count < 2:
        return None

    before, first, first_columns = _divided(first, range(x.ndim), cut, x.shape[-2])
    rows = way.whole if way.order[-2] == way.gather else extents[way.order[-2]]
    after, second, second_columns = _divided(second, way.order, cut, rows)

    until, since = until_conjugation(first)

    def begin(start: int, size: int, x: Block) -> ComplexBlock:
        chunk = jax.lax.slice_in_dim(x, start, start + size, axis=cut)
        return until(jnp.swapaxes(chunk, -1, -2) if first_columns else chunk)

    def end(y: ComplexBlock) -> Block:
        y = apply(second, since(y))
        return jnp.swapaxes(y, -1, -2) if second_columns else y

    def place(d: int) -> int:
        """The dimension of what is begun that is dimension d of `x`."""
        return {last: last - 1, last - 1: last}.get(d, d) if first_columns else d

    order = tuple(map(place, way.order))
    if second_columns:
        order = (*order[:-2], order[-1], order[-2])
    bounds = [block(extents[cut], count, chunk) for chunk in range(count)]
    chunks = overlapped(
        apply(before, x),
        [functools.partial(begin, *bound) for bound in bounds],
        [end] * count,
        Redistribution(order, place(way.scatter), place(way.gather), way.whole),
        comm,
    )
    return apply(after, jax.lax.concatenate(chunks, way.order.index(cut)))

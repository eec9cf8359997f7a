"""What a plan does on this rank, step by step: blocks, messages, bytes."""

import dataclasses
import html
import itertools
import math

import numpy as np

from pfftjax._runtime.ffi import native
from pfftjax.pencils import ExchangePrecision, Pencil
from pfftjax.pencils.internal import change_of

from ._fused import Fused
from ._local import FROM_REAL, Local, as_complex, result_dtype
from ._steps import Move, Step, Transform, forward_steps, steps_one_by_one
from ._trigonometric import TrigonometricTransform


@dataclasses.dataclass(frozen=True)
class Stage:
    """An array on the way through a transform, on this rank, and the step that it comes out of.

    Attributes:
        step: what was done last; empty for the array that goes in.
        operation: the number, from 1, of the operation that the step is a part of on CPUs, where
            several steps are one; 0 for the array that goes in.
        axes: global axes of the block, slowest first.
        shape: of the block.
        dtype: of the block.
        messages: how many other ranks the step sends something to.
        message_bytes: of the largest of these messages.
        sent_bytes: of all of them.

    """

    step: str
    operation: int
    axes: tuple[int, ...]
    shape: tuple[int, ...]
    dtype: np.dtype
    messages: int = 0
    message_bytes: int = 0
    sent_bytes: int = 0

    @property
    def bytes(self) -> int:
        """How many the block has."""
        return math.prod(self.shape) * self.dtype.itemsize


@dataclasses.dataclass(frozen=True)
class Description:
    """What the forward transform of a plan does on this rank.

    `str` makes a text of it, and a notebook shows a table. The inverse takes the same steps back,
    with the same messages the other way. Where a block has leading axes, bytes are those of one
    array.

    Attributes:
        title: the plan, and which rank this is.
        stages: the array that goes in, and what comes out of each step.

    """

    title: str
    stages: tuple[Stage, ...]

    @property
    def sent_bytes(self) -> int:
        """What this rank sends to others in one transform."""
        return sum(stage.sent_bytes for stage in self.stages)

    @property
    def peak_bytes(self) -> int:
        """The most that an operation reads and writes: its two arrays are in memory together. What
        an exchange keeps beside them (docs/tuning.md) is not counted.
        """
        # Between two operations there is an array; within one, on CPUs, none.
        last = {stage.operation: stage for stage in self.stages}
        arrays = [stage.bytes for _, stage in sorted(last.items())]
        return max((a + b for a, b in itertools.pairwise(arrays)), default=arrays[0])

    def _rows(self) -> list[tuple[str, ...]]:
        rows = [("", "step", "block", "memory order", "size", "messages")]
        for stage in self.stages:
            sent = ""
            if stage.messages:
                each = "of" if stage.messages == 1 else "of at most"
                sent = f"{stage.messages} {each} {_size(stage.message_bytes)}"
            number = str(stage.operation) if stage.operation else ""
            block = f"{stage.shape} {stage.dtype.name}"
            step = stage.step or "real space"
            rows.append((number, step, block, str(stage.axes), _size(stage.bytes), sent))
        return rows

    def _totals(self) -> str:
        return (
            f"Sent in one transform: {_size(self.sent_bytes)}; the arrays of an operation: at "
            f"most {_size(self.peak_bytes)}."
        )

    def __str__(self) -> str:
        rows = self._rows()
        widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
        cells = ((text.ljust(n) for text, n in zip(row, widths, strict=True)) for row in rows)
        lines = ("  ".join(row).rstrip() for row in cells)
        return "\n".join([self.title, "", *lines, "", self._totals()])

    def _repr_html_(self) -> str:
        head, *rows = [[html.escape(text) for text in row] for row in self._rows()]
        lines = [f"<tr><th>{'</th><th>'.join(head)}</th></tr>"]
        lines += [f"<tr><td>{'</td><td>'.join(row)}</td></tr>" for row in rows]
        title, totals = html.escape(self.title), html.escape(self._totals())
        return f"<p>{title}</p><table>{''.join(lines)}</table><p>{totals}</p>"


def describe(plan: Transform, title: str, start: Pencil, dtype: np.dtype) -> Description:
    """What the forward transform of `plan` does to a block of `start`."""
    operations = forward_steps(plan, plan.shape)
    numbers = [n for n, step in enumerate(operations, 1) for _ in range(_parts(step))]
    pencil = start
    stages = [Stage("", 0, pencil.axes, pencil.local_shape, dtype)]
    for number, step in zip(numbers, steps_one_by_one(plan), strict=True):
        sent: list[int] = []
        if isinstance(step, Move):
            sent = [
                _bytes(rows, length, dtype, plan.precision)
                for rows, length in _messages(step.source, step.target)
            ]
            pencil, text = step.target, _move(step)
        else:
            text, pencil, dtype = _transform(step, plan, pencil, dtype)
        block = pencil.axes, pencil.local_shape, dtype
        stages.append(Stage(text, number, *block, len(sent), max(sent, default=0), sum(sent)))
    return Description(title, tuple(stages))


def _transform(
    step: Step, plan: Transform, pencil: Pencil, dtype: np.dtype
) -> tuple[str, Pencil, np.dtype]:
    """What a step that moves nothing is called, and what comes out of it."""
    if isinstance(step, TrigonometricTransform):
        return f"{step.kind} along axis {pencil.axes[-1]}", pencil, dtype
    to_complex = np.result_type(dtype, np.complex64)
    if not isinstance(step, Local):
        assert step is as_complex
        return "make complex", pencil, to_complex
    axes = pencil.axes[-step.axes :][::-1]
    shape = list(pencil.global_shape)
    shape[axes[0]] = step.out_of
    after = Pencil(shape, pencil.grid, pencil.split, pencil.axes)
    parts = (f"{plan.kinds[axis]} along axis {axis}" for axis in axes)
    given = dtype if step.kind in FROM_REAL else to_complex
    return ", ".join(parts), after, np.dtype(result_dtype(given, step.kind))


def _parts(operation: Step) -> int:
    """How many steps an operation consists of."""
    if not isinstance(operation, Fused):
        return 1
    return 1 + (operation.first is not None) + (operation.second is not None)


def _move(move: Move) -> str:
    over = change_of(move.source, move.target).over
    dims = move.source.grid.dims
    if not over:
        return "reorder"
    if len(over) == 2:
        return f"exchange among all {dims[0] * dims[1]} ranks"
    return f"exchange among {dims[over[0]]} ranks of a {('column', 'row')[over[0]]}"


def _bytes(rows: int, length: int, dtype: np.dtype, precision: ExchangePrecision) -> int:
    """The size of so many rows on their way."""
    if precision == ExchangePrecision.FULL:
        return rows * length * dtype.itemsize
    # What is rounded is complex.
    is_double = dtype == np.dtype(np.complex128)
    return rows * native.row_bytes(length, is_double, precision)


def _messages(source: Pencil, target: Pencil) -> list[tuple[int, int]]:
    """How many rows this rank sends to each of the others that it sends any to, and their length.
    They run along the last axis of `source`.
    """
    grid = source.grid
    over = change_of(source, target).over
    counts = []
    for coords in itertools.product(*map(range, grid.dims)):
        fixed = (coords[d] == grid.coords[d] for d in range(2) if d not in over)
        if coords == grid.coords or not all(fixed):
            continue
        extents = []
        for axis in source.axes:
            (a, m), (b, n) = source.range_of(axis), target.range_of(axis, (coords[0], coords[1]))
            extents.append(max(min(a + m, b + n) - max(a, b), 0))
        if all(extents):
            counts.append((math.prod(extents[:-1]), extents[-1]))
    return counts


def _size(count: float) -> str:
    """Bytes, as one reads them.

    >>> _size(100), _size(3 << 19), _size(5 << 30)
    ('100 B', '1.5 MiB', '5.0 GiB')
    """
    if count < 1 << 10:
        return f"{count:.0f} B"
    unit = min(int(math.log2(count)) // 10, 4)
    return f"{count / (1 << 10 * unit):.1f} {('', 'KiB', 'MiB', 'GiB', 'TiB')[unit]}"

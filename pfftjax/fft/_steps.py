"""A transform of a distributed array as a list of steps: transforms of axes that are whole and
contiguous, and moves from pencil to pencil.
"""

import dataclasses
import functools
import itertools
import math
from collections.abc import Callable, Sequence
from typing import ClassVar, Literal, TypeAlias

from pfftjax._runtime.arguments import where
from pfftjax._runtime.arrays import Field
from pfftjax.pencils import ExchangeMethod, ExchangePrecision, Pencil, ProcessGrid, transpose
from pfftjax.pencils.internal import change_of

from ._fused import Fused
from ._local import Kind, Local, as_complex
from ._operation import What
from ._resize import Resize
from ._trigonometric import INVERSES, TrigonometricTransform, logical_size

Step: TypeAlias = Callable[[Field], Field]
Steps: TypeAlias = tuple[Step, ...]
Norm = Literal["backward", "ortho", "forward"]
Layout = Literal["transposed", "natural"]

# Powers of the number of points that the forward and the inverse transform are multiplied by.
SCALES = {"backward": (0.0, -1.0), "ortho": (-0.5, -0.5), "forward": (-1.0, 0.0)}
FORWARD, INVERSE = 0, 1
_INVERSES = {Kind.FORWARD: Kind.BACKWARD, Kind.REAL_TO_COMPLEX: Kind.COMPLEX_TO_REAL}


@dataclasses.dataclass(frozen=True)
class Transform:
    """The attributes of `PencilFFT` and `PencilTransform` that the steps follow from."""

    shape: tuple[int, ...]
    grid: ProcessGrid
    kinds: tuple[str, ...]
    norm: Norm
    layout: Layout
    method: ExchangeMethod
    precision: ExchangePrecision

    is_scaled_at_the_end: ClassVar[bool] = False
    """Whether the last transform has the factors of all axes, and not each its own."""


@dataclasses.dataclass(frozen=True)
class Move:
    """Takes a block from one pencil to another."""

    source: Pencil
    target: Pencil
    method: ExchangeMethod
    precision: ExchangePrecision

    def __call__(self, x: Field) -> Field:
        is_full = self.precision == ExchangePrecision.FULL
        if not is_full and change_of(self.source, self.target).over:
            raise ValueError(
                f"{where('transform', self.source.grid.communicator)}: {self.precision} rounds "
                "what transforms leave for each other, and no transform is beside this exchange; "
                "make the plan with ExchangePrecision.FULL"
            )
        return transpose(x, self.source, self.target, method=self.method)


def stages(pencil: Pencil) -> list[Pencil]:
    """The pencils that an array passes through on its way from `pencil`, that of real space: in
    each of them another axis, from the last to the first, is whole and contiguous.
    """
    result = [pencil]
    for axis in reversed(range(len(pencil.axes) - 1)):
        result.append(result[-1].swapped(axis, axis + 1))
    return result


def spectral_shape(shape: Sequence[int], kinds: Sequence[str]) -> tuple[int, ...]:
    """Global shape of the spectrum of an array of global shape `shape`."""
    return tuple(n // 2 + 1 if kind == "rfft" else n for n, kind in zip(shape, kinds, strict=True))


def _steps(
    plan: Transform, shape: tuple[int, ...], direction: int, *, one_sign: bool = False
) -> list[Step]:
    """The steps between an array of global shape `shape` in real space and the spectrum of `plan`,
    forward or back.

    Where `shape` has more points than `plan` along an axis, its coefficients are cut down to those
    of `plan` as soon as the axis has been transformed, and padded just before on the way back:
    what is left out is not exchanged. `one_sign` is that of `Resize`.
    """
    kinds, last = plan.kinds, len(shape) - 1
    factors = _factors(plan, shape, direction)
    steps: list[Step] = []
    sizes = list(shape)

    def move(source: Pencil, target: Pencil) -> None:
        if direction == INVERSE:
            source, target = target, source
        ends = (dataclasses.replace(p, global_shape=tuple(sizes)) for p in (source, target))
        steps.append(Move(*ends, method=plan.method, precision=plan.precision))

    way = stages(Pencil(shape, plan.grid))
    # On slabs axes 1 and 2 are both whole: two transforms while a plane is in the cache.
    by_planes = (
        last == 2
        and plan.grid.dims[1] == 1
        and not set(kinds[1:]) & set(INVERSES)
        and shape[1:] == plan.shape[1:]
    )
    at = way[0]
    for stage in way:
        axis = stage.axes[-1]
        if by_planes and axis == 1:
            continue
        if stage is not at:
            move(at, stage)
            at = stage
        kind, n, kept = kinds[axis], shape[axis], plan.shape[axis]
        if by_planes and axis == 2:
            local = _fourier(kind, n, factors[2] * factors[1], direction)
            steps.append(local._replace(axes=2))
        elif kind in INVERSES:
            name = INVERSES[kind] if direction == INVERSE else kind
            scale = factors[axis]
            steps.append(TrigonometricTransform(name, n, scale, plan.norm == "ortho"))
        else:
            if direction == FORWARD and steps and not any(isinstance(s, Local) for s in steps):
                steps.append(as_complex)  # what is real travels as such up to here
            steps.append(_fourier(kind, n, factors[axis], direction))
        if n != kept:
            lengths = (kept, n) if direction == INVERSE else (n, kept)
            resize = Resize(kind, *lengths, plan.norm, of_real_lines=True, one_sign=one_sign)
            steps.append(resize)
        sizes[axis] = spectral_shape([kept], [kind])[0]
    if plan.layout == "natural":
        # On slabs, the stage between is on the way of no message.
        back = way[::-1] if plan.grid.dims[1] > 1 else [way[-1], way[0]]
        for source, target in itertools.pairwise(back):
            move(source, target)
    return steps[::-1] if direction == INVERSE else steps


def _factors(plan: Transform, shape: tuple[int, ...], direction: int) -> list[float]:
    """The factor of the transform along each axis."""
    sizes = [logical_size(kind, n) for kind, n in zip(plan.kinds, shape, strict=True)]
    power = SCALES[plan.norm][direction]
    if not plan.is_scaled_at_the_end or shape != plan.shape:
        return [float(n) ** power for n in sizes]
    factors = [1.0] * len(sizes)
    # A product of Python integers is exact for any size.
    factors[0 if direction == FORWARD else -1] = float(math.prod(sizes)) ** power
    return factors


def _fourier(kind: str, n: int, scale: float, direction: int) -> Local:
    forward = Kind.REAL_TO_COMPLEX if kind == "rfft" else Kind.FORWARD
    return Local(forward if direction == FORWARD else _INVERSES[forward], n, scale=scale)


def _fuse(steps: Sequence[Step]) -> Steps:
    """The same steps in fewer passes: moves with the transforms on both sides of them first, then
    with the one on the side that is left.
    """
    result = list(steps)
    for before, after in ((1, 1), (0, 1), (1, 0)):
        i = before
        while i < len(result) - after:
            step = _fused(result[i - before : i + after + 1], before, after)
            if step is not None:
                i -= before
                result[i : i + before + after + 1] = [step]
            i += 1
    last = len(result) - 1
    return tuple(
        dataclasses.replace(step, private=(i > 0, i < last)) if isinstance(step, Fused) else step
        for i, step in enumerate(result)
    )


def _fused(
    group: Sequence[Step], before: int, after: int, what: What = What.TRANSFORM
) -> Fused | None:
    """A move with so many transforms on its sides as one step, if there is one."""
    move = group[before]
    first, second = group[0] if before else None, group[-1] if after else None
    if (
        isinstance(move, Move)
        and (first is None or isinstance(first, Local))
        and (second is None or isinstance(second, Local))
    ):
        return Fused.between(
            first, move.source, move.target, second, move.method, move.precision, what
        )
    return None


def steps_one_by_one(plan: Transform) -> list[Step]:
    """The steps of the forward transform of `plan`, before several become one."""
    return _steps(plan, plan.shape, FORWARD)


@functools.lru_cache(maxsize=256)
def forward_steps(plan: Transform, shape: tuple[int, ...], *, one_sign: bool = False) -> Steps:
    """The steps from an array of global shape `shape` in real space to the spectrum of `plan`."""
    return _fuse(_steps(plan, shape, FORWARD, one_sign=one_sign))


@functools.lru_cache(maxsize=256)
def inverse_steps(plan: Transform, shape: tuple[int, ...], *, one_sign: bool = False) -> Steps:
    """The steps from the spectrum of `plan` to an array of global shape `shape` in real space."""
    return _fuse(_steps(plan, shape, INVERSE, one_sign=one_sign))


@dataclasses.dataclass(frozen=True)
class Differentiating:
    """The steps of a Fourier transform of three axes, with a gradient or a divergence among them.

    Attributes:
        before: the steps up to it.
        step: the transforms along axis 0 and axis 1, or axes 1 and 2, with the move between them.
        lines: the pencil of what travels in which axis 0 is whole.
        others: the one on the other side, of axes 1 and 2.
        after: the steps from it.

    """

    before: Steps
    step: Fused
    lines: Pencil
    others: Pencil
    after: Steps


@functools.lru_cache(maxsize=256)
def differentiating(plan: Transform, what: What) -> Differentiating:
    """A gradient on the way back from the spectrum of `plan`, or a divergence on the way to it."""
    is_gradient = what is What.GRADIENT
    steps = _steps(plan, plan.shape, INVERSE if is_gradient else FORWARD)
    transforms = [i for i, step in enumerate(steps) if isinstance(step, Local)]
    at = transforms[0] if is_gradient else transforms[-2]
    step, move = _fused(steps[at : at + 3], 1, 1, what), steps[at + 1]
    assert isinstance(move, Move)
    assert step is not None
    ends = (move.source, move.target) if is_gradient else (move.target, move.source)
    return Differentiating(_fuse(steps[:at]), step, *ends, _fuse(steps[at + 3 :]))


def run(steps: Sequence[Step], x: Field) -> Field:
    """Apply `steps`, one after the other."""
    for step in steps:
        x = step(x)
    return x

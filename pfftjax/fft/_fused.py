"""A transform, a change of pencil and another transform as one operation (cpp/fft/fused.cc), and
the two at which a gradient of a spectrum and a divergence of fields multiply by i k on the way.

With F the first of the transforms, S the second, and M the change of pencil between them,

    transform    x -> S M F x
    gradient     x -> S M F (i k0 x),  S (i k1 M F x),  S (i k2 M F x)
    divergence   x0, x1, x2 -> i k0 S M F x0 + S M (i k1 F x1 + i k2 F x2)

What is multiplied is in the cache, and two arrays travel instead of three. The transpose of each
is the same backward, each transform of the transposed kind: gradients and divergences are each
other's. They are linear in the arrays; wavenumbers are constants.
"""

import dataclasses
import functools
from collections.abc import Sequence
from typing import TypeAlias, cast

import jax
import numpy as np
from jax.core import ShapedArray
from jax.extend.core import Primitive
from jax.interpreters import ad, batching, mlir
from jax.typing import ArrayLike

from pfftjax._runtime.arrays import Block
from pfftjax._runtime.communicators import Communicator
from pfftjax._runtime.ordering import is_donated, is_temporary, platforms_of
from pfftjax._runtime.primitive import as_on_gpus, communicating, local
from pfftjax._runtime.rules import Axes, batch_in_front
from pfftjax.pencils import ExchangeMethod, ExchangePrecision, Pencil
from pfftjax.pencils.internal import change_of, refuse_on_cpus

from ._in_steps import divergence_in_steps, gradient_in_steps, transform_in_steps
from ._local import FROM_REAL, TO_REAL, Local, as_complex, result_dtype
from ._operation import Operation, What


@dataclasses.dataclass(frozen=True)
class Fused(Operation):
    """The operation as a step of a plan."""

    @classmethod
    def between(
        cls,
        first: Local | None,
        source: Pencil,
        target: Pencil,
        second: Local | None,
        method: ExchangeMethod,
        precision: ExchangePrecision,
        what: What = What.TRANSFORM,
    ) -> "Fused | None":
        """`second(transpose(first(x), source, target))`, if there is one operation for it.

        In a gradient `first` goes along global axis 0, in a divergence `second`.
        """
        if len(source.axes) != 3:
            return None
        if (first and first.kind in TO_REAL) or (second and second.kind in FROM_REAL):
            return None  # what travels is real
        change = change_of(source, target)
        if change.order[2] == 2 or len(change.over) > 1:
            return None
        scatter, gather = change.scatter, change.gather
        if second is not None and second.axes == 1:
            fits = gather in (None, change.order[2])
        else:
            fits = first is not None and first.axes == 1 and scatter in (None, 2)
        if not fits:
            return None
        if scatter is None or gather is None:
            gather = change.order[2] if second is not None and second.axes == 1 else 0
            scatter = 1 if gather == 2 else 2
        n0, n1 = (source.global_shape[source.axes[d]] for d in (scatter, gather))
        return cls(
            first,
            second,
            (change.order[0], change.order[1], change.order[2]),
            scatter,
            gather,
            (n0, n1),
            method,
            precision,
            source.grid.along(change.over[0]) if change.over else None,
            what,
            () if what is What.TRANSFORM else (source.axes.index(1), source.axes.index(2)),
        )

    def __call__(self, x: Block) -> Block:
        """The transform of a block; one of real numbers becomes complex where it has to be."""
        if self.first is None or self.first.kind not in FROM_REAL:
            x = as_complex(x)
        (y,) = self.bind(x)
        return y

    def bind(self, *operands: jax.Array) -> list[jax.Array]:
        """The results for the arrays and, unless this is a transform, k0, k1 and k2.

        Wavenumbers are real vectors in the precision of the arrays: k0 along the lines of global
        axis 0, which are whole on its side of the exchange; k1 and k2 of this rank's part along
        axes 1 and 2 on the other side.
        """
        of = dataclasses.replace(self, lead=operands[0].ndim - 3)
        if self.comm is None:
            return _ALONE[self.what].bind(*operands, of=of)
        return _ACROSS[self.what].bind(*operands, of=of, comm=self.comm)

    @property
    def transposed(self) -> "Fused":
        place = tuple(self.order.index(d) for d in range(3))  # of each axis in the result
        return dataclasses.replace(
            self,
            first=None if self.second is None else self.second.transposed,
            second=None if self.first is None else self.first.transposed,
            order=place,
            scatter=place[self.gather],
            gather=place[self.scatter],
            lengths=self.lengths[::-1],
            what=self.what.transposed,
            along=tuple(place[axis] for axis in self.along),
            private=self.private[::-1],
        )

    def _travelling(self, x: ShapedArray) -> list[int]:
        """Shape of what travels of an operand `x`, on this rank, before it does."""
        return [*x.shape[:-1], x.shape[-1] if self.first is None else self.first.out_of]

    def results(self, x: ShapedArray) -> list[ShapedArray]:
        """The abstract results of an operand `x`."""
        dtype = np.result_type(x.dtype, np.complex64)
        x = x.update(shape=tuple(self._travelling(x)), dtype=dtype, weak_type=False)
        y = self.way.result(x, self.comm)
        if self.second is not None:
            shape = (*y.shape[:-1], self.second.out_of)
            y = y.update(shape=shape, dtype=result_dtype(dtype, self.second.kind))
        return [y] * self.what.transposed.arrays

    def agreement(self, x: ShapedArray) -> str:
        """The text that must be equal on all ranks, for an operand `x`."""
        shape = self._travelling(x)
        shape[self.lead + self.gather] = self.lengths[1]
        kinds = "/".join(
            "none" if t is None else f"{t.kind.name.lower()}{t.axes}[{t.n}] * {t.scale!r}"
            for t in (self.first, self.second)
        )
        dtype, order = np.dtype(x.dtype).name, self.whole_order
        what = f"{dtype}{shape} axis {self.gather} for axis {self.scatter} in order {order}"
        ik = f", i k along {self.along}" if self.along else ""
        half = "" if self.precision == ExchangePrecision.FULL else " in half of the bits"
        return f"{what}, {kinds}{ik} {self.method.name.lower()}{half}"

    def attributes(self) -> dict[str, np.ndarray | np.int64]:
        """The attributes of the custom call."""

        def words(t: Local | None) -> np.ndarray:
            return np.array((-1, 0, 0) if t is None else (t.kind, t.axes, t.n), np.int64)

        scales = [1.0 if t is None else t.scale for t in (self.first, self.second)]
        return {
            "first": words(self.first),
            "second": words(self.second),
            "scales": np.array(scales, np.float64),
            "order": np.array(self.whole_order, np.int64),
            "scatter": np.int64(self.scatter),
            "gather": np.int64(self.gather),
            "along": np.array(self.along, np.int64),
            "method": np.int64(self.method),
            "precision": np.int64(self.precision),
            "what": np.int64(self.what),
        }


def _in_place(
    ctx: mlir.LoweringRuleContext, x: mlir.ir.Value, *_: mlir.ir.Value, of: Fused, **__: object
) -> dict[int, int]:
    """The result takes the memory of `x` where the handlers have read all of it before they write,
    and nobody else wants it. So it is with what another step of the transform has made, and
    with an argument that is donated to the program.
    """
    before, after = (cast(ShapedArray, avals[0]) for avals in (ctx.avals_in, ctx.avals_out))
    is_alike = (before.shape, before.dtype) == (after.shape, after.dtype)
    if of.what is not What.TRANSFORM or not is_alike:
        return {}
    return {0: 0} if is_temporary(x) and (of.private[0] or is_donated(x)) else {}


# ---- Primitives --------------------------------------------------------------------------------


_NAMES = {What.TRANSFORM: "fft", What.GRADIENT: "gradient", What.DIVERGENCE: "divergence"}
_IN_STEPS = {
    What.TRANSFORM: transform_in_steps,
    What.GRADIENT: gradient_in_steps,
    What.DIVERGENCE: divergence_in_steps,
}


def _across(what: What) -> Primitive:
    """The operation between ranks."""
    return communicating(
        f"{_NAMES[what]}_across",
        result=lambda x, *_, of, comm: of.results(x),
        agreement=lambda x, *_, of, comm: of.agreement(x),
        attributes=lambda of: of.attributes(),
        multiple_results=True,
        in_place=_in_place,
        on_gpus=lambda *operands, of, comm: _IN_STEPS[what](*operands, of=of),
        check_on_cpus=lambda of, comm: refuse_on_cpus("transform", method=of.method, comm=comm),
    )


def _alone(what: What) -> Primitive:
    """The operation on one rank."""
    name = f"{_NAMES[what]}_alone"
    p = local(name, lambda x, *_, of: of.results(x), multiple_results=True)
    target = f"pfftjax_{p.name}"
    lower_in_steps = mlir.lower_fun(_IN_STEPS[what], multiple_results=True)

    def rule(
        ctx: mlir.LoweringRuleContext, *operands: mlir.ir.Value, of: Fused
    ) -> list[mlir.ir.Value | Sequence[mlir.ir.Value]]:
        if any(map(as_on_gpus, platforms_of(ctx))):
            return [*lower_in_steps(ctx, *operands, of=of)]
        shared = _in_place(ctx, *operands, of=of)
        by_handler = jax.ffi.ffi_lowering(target, operand_output_aliases=shared)
        return [*by_handler(ctx, *operands, **of.attributes())]

    # JAX lowers what it caches as a function, whose arguments do not say whether they are donated.
    mlir.register_lowering(p, rule, cacheable=False)
    return p


_ACROSS = {what: _across(what) for what in What}
_ALONE = {what: _alone(what) for what in What}


_Tangent: TypeAlias = ArrayLike | ad.Zero


def _jvp(
    p: Primitive,
    primals: Sequence[ArrayLike],
    tangents: Sequence[_Tangent],
    *,
    of: Fused,
    **comm: Communicator,
) -> tuple[list[jax.Array], list[jax.Array]]:
    n = of.what.arrays
    if any(type(tangent) is not ad.Zero for tangent in tangents[n:]):
        raise TypeError(f"{p.name}: no derivative in the wavenumbers")
    # A tangent that is known to be zero here takes part, too: another rank's may not be.
    moved = [ad.instantiate_zeros(tangent) for tangent in tangents[:n]]
    return p.bind(*primals, of=of, **comm), p.bind(*moved, *primals[n:], of=of, **comm)


def _transpose(
    p: Primitive,
    cotangents: Sequence[_Tangent],
    *operands: ArrayLike | ad.UndefinedPrimal,
    of: Fused,
    **comm: Communicator,
) -> list[jax.Array | None]:
    """The transpose is bound by `p`, the primitive of the transposed operation."""
    arrays, ks = operands[: of.what.arrays], operands[of.what.arrays :]
    # A cotangent that is known to be zero here takes part, too: the other ranks wait for this one.
    given = [ad.instantiate_zeros(cotangent) for cotangent in cotangents]
    results = p.bind(*given, *ks, of=of.transposed, **comm)
    kept = [y if ad.is_undefined_primal(x) else None for y, x in zip(results, arrays, strict=True)]
    return [*kept, *(None for _ in ks)]


def _batched(
    p: Primitive,
    operands: Sequence[jax.Array],
    axes: Axes,
    *,
    of: Fused,
    **comm: Communicator,
) -> tuple[list[jax.Array], list[int]]:
    n = of.what.arrays
    if any(axis is not None for axis in axes[n:]):
        raise TypeError(f"{p.name}: no batches of wavenumbers")
    _, moved = batch_in_front(operands[:n], axes[:n])
    results = p.bind(*moved, *operands[n:], of=dataclasses.replace(of, lead=of.lead + 1), **comm)
    return results, [0] * len(results)


for _primitives in (_ACROSS, _ALONE):
    for _what, _p in _primitives.items():
        ad.primitive_jvps[_p] = functools.partial(_jvp, _p)
        ad.primitive_transposes[_p] = functools.partial(_transpose, _primitives[_what.transposed])
        batching.primitive_batchers[_p] = functools.partial(_batched, _p)

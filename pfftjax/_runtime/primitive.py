"""How the primitive of every operation is made: the shape of its result, and how it is lowered.

An operation between ranks is lowered to a custom call in communication order. A linear one has two
more rules, where a batch axis goes and its adjoint, which is another such operation (rules.py).
Forward mode, reverse mode and any nesting of them follow.
"""

import functools
from collections.abc import Callable, Mapping, Sequence
from typing import TypeAlias, cast

import jax
import numpy as np
from jax.core import ShapedArray
from jax.extend.core import Primitive
from jax.interpreters import ad, batching, mlir, xla

from . import call_sites, first_call
from .communicators import Communicator
from .ffi import is_fake_device, platforms
from .ordering import EFFECTS, InPlace, Rule, is_exporting, ordered_ffi_rule, platforms_of
from .rematerialization import recompute
from .rules import Operands

Agreement: TypeAlias = Callable[..., str | None]
Attributes: TypeAlias = Mapping[str, Callable[..., object]] | Callable[..., Mapping[str, object]]


def elements(x: ShapedArray | jax.Array, *_: object, **__: object) -> str:
    """The dtype and the number of elements, on which ranks agree in most operations."""
    return f"{np.dtype(x.dtype).name}[{x.size}]"


def not_compared(*_: object, **__: object) -> None:
    """Nothing: ranks that are not part of a message between two need not make it."""


def like_operand(x: ShapedArray, *_: object, **__: object) -> ShapedArray:
    """The result of most operations: of the shape and dtype of the operand."""
    return x.update(weak_type=False)


def communicating(
    name: str,
    *,
    result: Callable[..., ShapedArray | list[ShapedArray]] = like_operand,
    agreement: Agreement = elements,
    attributes: Attributes = lambda **_: {},
    in_place: InPlace = lambda *_, **__: {},
    multiple_results: bool = False,
    on_gpus: Callable[..., object] | None = None,
    check_on_cpus: Callable[..., None] = lambda **_: None,
) -> Primitive:
    """Make the primitive `name`, lowered to the FFI handler ``pfftjax_<name>``; CPU and CUDA.

    Args:
        name: name of the primitive and of its handler.
        result: (*avals, comm, **params) -> abstract result (or results).
        agreement: (*avals, comm, **params) -> what must be equal on all ranks, as a line of text
            for the first-call check; None for point-to-point operations.
        attributes: the parameters that are further attributes of the custom call, each with the
            type that it has there, or (**params) -> attributes. The same on every rank and in
            every run, or compiled programs cannot be cached.
        in_place: as in `ordered_ffi_rule`, on CPUs. No handler for GPUs works in place.
        multiple_results: as in `Primitive`.
        on_gpus: (*operands, comm, **params) -> result (or results), by other primitives, for an
            operation that has no handler there.
        check_on_cpus: (comm, **params), raises for what is for GPUs only.

    """
    primitive = Primitive(name)
    primitive.multiple_results = multiple_results
    apply = functools.partial(xla.apply_primitive, primitive)
    primitive.def_impl(call_sites.noted(name, apply))
    primitive.def_effectful_abstract_eval(
        lambda *avals, **params: (result(*avals, **params), EFFECTS)
    )
    recompute(primitive)

    def further(**params: object) -> Mapping[str, object]:
        if callable(attributes):
            return attributes(**params)
        return {key: as_type(params[key]) for key, as_type in attributes.items()}

    def all_attributes(*, comm: Communicator, **params: object) -> Mapping[str, object]:
        return {
            "comm": np.int64(comm.number),
            "ranks": np.int64(comm.size),
            **first_call.NO_LIST,
            **further(**params),
        }

    def lowered(
        ctx: mlir.LoweringRuleContext,
        token: mlir.ir.Value,
        call: mlir.ir.OpView,
        /,
        *,
        comm: Communicator,
        **params: object,
    ) -> None:
        if comm.size > 1:
            line = agreement(*ctx.avals_in, comm=comm, **params)
            # A handler for CPUs and one for GPUs would wait for each other for ever.
            on_gpus = "" if "cpu" in platforms_of(ctx) else " on GPUs"
            listed = line is not None
            what = f"{name} {line if listed else ctx.avals_in}".strip() + on_gpus
            first_call.record(ctx, token, call, comm.number, what, listed=listed)

    handled = functools.partial(ordered_ffi_rule, f"pfftjax_{name}", all_attributes, lowered)
    # The token goes through the primitives that an operation is made of.
    made_of = mlir.lower_fun(on_gpus, multiple_results) if on_gpus else handled()
    chosen = by_platform(handled(in_place=in_place), made_of)

    def rule(
        ctx: mlir.LoweringRuleContext, *operands: mlir.ir.Value, **params: object
    ) -> Sequence[mlir.ir.Value]:
        if not all(map(as_on_gpus, platforms_of(ctx))):  # an export may be for both
            check_on_cpus(**params)
        return chosen(ctx, *operands, **params)

    # Each call site is its own, so none comes from JAX's cache of lowered operations.
    mlir.register_lowering(primitive, rule, cacheable=False)
    return primitive


def local(
    name: str,
    result: Callable[..., ShapedArray | list[ShapedArray]],
    attributes: Callable[..., Mapping[str, object]] | None = None,
    by_xla: Callable[..., object] | None = None,
    *,
    multiple_results: bool = False,
) -> Primitive:
    """Make the primitive `name`, of what each rank computes by itself.

    Args:
        name: name of the primitive and, with `attributes`, of its handler ``pfftjax_<name>``.
        result: (*avals, **params) -> abstract result (or results).
        attributes: (**params) -> attributes of the custom call, by which it is lowered.
        by_xla: (*operands, **params) -> result (or results), for an operation whose handler is for
            CPUs only.
        multiple_results: as in `Primitive`.

    """
    primitive = Primitive(name)
    primitive.multiple_results = multiple_results
    primitive.def_impl(functools.partial(xla.apply_primitive, primitive))
    primitive.def_abstract_eval(result)
    if attributes is not None:
        lower = cast(Rule, jax.ffi.ffi_lowering(f"pfftjax_{name}"))

        def by_handler(
            ctx: mlir.LoweringRuleContext, *operands: mlir.ir.Value, **params: object
        ) -> Sequence[mlir.ir.Value]:
            return lower(ctx, *operands, **attributes(**params))

        elsewhere = mlir.lower_fun(by_xla, multiple_results) if by_xla else by_handler
        mlir.register_lowering(primitive, by_platform(by_handler, elsewhere))
    return primitive


def local_pair(
    name: str, function: Callable[..., jax.Array], transposed: Callable[..., jax.Array]
) -> tuple[Primitive, Primitive]:
    """Make primitives `name` and ``<name>_transposed`` of linear functions (x, **params) of one
    array, each of which is the transpose of the other, and which XLA compiles.

    JAX would find the transpose of `function` by itself; this is for one that is faster.
    """

    def made(name: str, function: Callable[..., jax.Array]) -> Primitive:
        def result(x: ShapedArray, **params: object) -> ShapedArray:
            shape = jax.eval_shape(functools.partial(function, **params), x).shape
            return ShapedArray(shape, x.dtype)

        def batched(
            operands: Operands, axes: Sequence[int], **params: object
        ) -> tuple[jax.Array, int]:
            return jax.vmap(functools.partial(function, **params), axes[0])(*operands), 0

        primitive = local(name, result)
        mlir.register_lowering(primitive, mlir.lower_fun(function, multiple_results=False))
        batching.primitive_batchers[primitive] = batched
        return primitive

    pair = made(name, function), made(f"{name}_transposed", transposed)
    for primitive, other in (pair, pair[::-1]):
        ad.deflinear2(primitive, lambda y, _, *, other=other, **params: [other.bind(y, **params)])
    return pair


# What to do about a build that lacks the handlers for GPUs of a platform of JAX's.
_WITHOUT = {
    "cuda": "CUDA; build it where nvcc is found",
    "rocm": "HIP; build it with -C cmake.define.PFFTJAX_HIP=ON",
}


def as_on_gpus(platform: str) -> bool:
    """Whether arrays of a platform of JAX's go the way of those on GPUs."""
    return platform != "cpu" or is_fake_device


def by_platform(on_cpus: Rule, on_gpus: Rule) -> Rule:
    """One lowering rule made of two, of which the second is good for both platforms.

    JAX would choose between two for itself, but fails to (0.10.2) where a program is exported for
    both and the rules are not to be cached.
    """

    def rule(
        ctx: mlir.LoweringRuleContext, *operands: mlir.ir.Value, **params: object
    ) -> Sequence[mlir.ir.Value]:
        wanted = platforms_of(ctx)
        if not any(map(as_on_gpus, wanted)):
            return on_cpus(ctx, *operands, **params)
        if not {*wanted} <= {"cpu", *_WITHOUT}:
            raise NotImplementedError(
                f"{ctx.primitive}: pfftjax communicates arrays on CPUs and on GPUs of NVIDIA and "
                f"AMD, not on {', '.join(wanted)}"
            )
        missing = {platform for platform in wanted if platform.upper() not in platforms}
        for platform in sorted(missing & {*_WITHOUT}) if not is_exporting(ctx) else ():
            raise NotImplementedError(
                f"{ctx.primitive}: the arrays are on a GPU, but this pfftjax was built without "
                f"{_WITHOUT[platform]}, or compute on CPUs: JAX_PLATFORMS=cpu"
            )
        return on_gpus(ctx, *operands, **params)

    return rule

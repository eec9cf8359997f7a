"""How every collective is made.

A linear operation between ranks is a JAX primitive with four rules: the shape of its result, how
it is lowered (a custom call in communication order), where a batch axis goes, and its adjoint,
which is another such operation. Forward mode, reverse mode and any nesting of them follow.
"""

import functools
import operator
from collections.abc import Callable, Mapping, Sequence
from typing import (
    Any,
    Concatenate,
    ParamSpec,
    Protocol,
    SupportsIndex,
    TypeAlias,
    TypeVar,
    cast,
    overload,
    runtime_checkable,
)

import jax
import jax.numpy as jnp
import numpy as np
from jax.core import ShapedArray
from jax.extend.core import Primitive
from jax.interpreters import ad, batching, mlir, xla
from jax.typing import ArrayLike

from . import call_sites, first_call
from .arrays import PyTree
from .communicators import Communicator
from .ffi import is_fake_device, native, platforms
from .ordering import EFFECTS, InPlace, Rule, is_exporting, ordered_ffi_rule, platforms_of
from .rematerialization import recompute

_P = ParamSpec("_P")
_Tree = TypeVar("_Tree")

_DTYPES = frozenset(np.dtype(name) for name in native.elements)

# The parameters of an equation, each of a type of its own.
Params: TypeAlias = dict[str, Any]
# JAX hands these to rules: the operands (small constants are NumPy arrays), their tangents, the
# operands of a linear function, of which some are unknown, and the batch axis of each.
Operands: TypeAlias = Sequence[jax.Array | np.ndarray]
Tangent: TypeAlias = jax.Array | ad.Zero
Tangents: TypeAlias = Sequence[ArrayLike | ad.Zero]
Primal: TypeAlias = ArrayLike | ad.UndefinedPrimal
Axes: TypeAlias = Sequence[int | None]
Agreement: TypeAlias = Callable[..., str | None]
Attributes: TypeAlias = Mapping[str, Callable[..., object]] | Callable[..., Mapping[str, object]]
# Axis of the operand to which a batch axis is moved, and axis of the result at which it then
# appears, or (**params) -> these. One message carries the batch.
Batch: TypeAlias = tuple[int, int] | Callable[..., tuple[int, int | None]]
_BatchedParams: TypeAlias = Callable[[int, Params], Params]


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


def batch_along(
    primitive: Primitive, batch: Batch, batched_params: _BatchedParams = lambda _, params: params
) -> None:
    """Give a primitive of one operand its batching rule; the arguments are those of `linear`."""

    def batched(
        operands: Operands, axes: Sequence[int], **params: object
    ) -> tuple[PyTree, int | list[int] | None]:
        (x,), (axis,) = operands, axes
        into, out_of = batch(**params) if callable(batch) else batch
        result = primitive.bind(
            jnp.moveaxis(x, axis, into), **batched_params(x.shape[axis], params)
        )
        return result, [] if primitive.multiple_results else out_of

    batching.primitive_batchers[primitive] = batched


def batch_in_front(operands: Operands, axes: Axes) -> tuple[int, list[jax.Array]]:
    """The size of a batch, and its operands with that axis in front; what has none is repeated."""
    size = next(x.shape[d] for x, d in zip(operands, axes, strict=True) if d is not None)
    return size, [
        jnp.broadcast_to(x, (size, *x.shape)) if d is None else jnp.moveaxis(x, d, 0)
        for x, d in zip(operands, axes, strict=True)
    ]


def linear(
    primitive: Primitive,
    *,
    adjoint: Primitive | Callable[..., jax.Array],
    batch: Batch | None = None,
    batched_params: _BatchedParams = lambda _, params: params,
    check_differentiable: Callable[..., None] = lambda **_: None,
) -> None:
    """Give a primitive its derivative and batching rules.

    Args:
        primitive: linear in its first operand; the others (counts, say) have no derivative.
        adjoint: (cotangent, aval of the operand, *other operands, **params) -> cotangent of the
            operand, or the primitive which is that with the same parameters. It binds a
            primitive: a rule that returned the cotangent itself would be wrong one order up.
        batch: as above; None for a primitive whose batching rule is given elsewhere.
        batched_params: (size of the batch, params) -> params of the batched operation.
        check_differentiable: (**params), raises where there is no derivative.

    """

    def jvp(
        primals: Sequence[ArrayLike], tangents: Tangents, **params: object
    ) -> tuple[jax.Array, Tangent]:
        check_differentiable(**params)  # before anything is sent
        y = primitive.bind(*primals, **params)
        if isinstance(tangents[0], ad.Zero):
            return y, zero_tangent(y)
        return y, primitive.bind(tangents[0], *primals[1:], **params)

    def transpose(
        cotangent: Tangent, x: ad.UndefinedPrimal, *others: ArrayLike, **params: object
    ) -> list[jax.Array | None]:
        # Also for a cotangent that is known to be zero on this rank (a loss on one rank only):
        # the others wait for this one.
        cotangent = ad.instantiate_zeros(cotangent)
        back = (
            adjoint.bind(cotangent, *others, **params)
            if isinstance(adjoint, Primitive)
            else adjoint(cotangent, x.aval, *others, **params)
        )
        return [back, *[None] * len(others)]

    ad.primitive_jvps[primitive] = jvp
    ad.primitive_transposes[primitive] = transpose
    if batch is not None:
        batch_along(primitive, batch, batched_params)


def transposed_by(primitive: Primitive, other: Primitive, *, communicates: bool) -> None:
    """Make `other` the transpose of a primitive that is linear in its last operand."""

    def transpose(
        cotangent: Tangent, *operands: object, **params: object
    ) -> list[jax.Array | None]:
        if not communicates and isinstance(cotangent, ad.Zero):
            return [None] * len(operands)
        # Where it communicates, the others wait for this rank also if its cotangent is zero.
        back = other.bind(*operands[:-1], ad.instantiate_zeros(cotangent), **params)
        return [*[None] * (len(operands) - 1), back]

    ad.primitive_transposes[primitive] = transpose


def zero_tangent(y: jax.Array) -> ad.Zero:
    """The tangent of a result that does not depend on what is differentiated."""
    return ad.Zero(jax.typeof(y).to_tangent_aval())


def with_tangent(y: jax.Array, terms: Sequence[jax.Array]) -> tuple[jax.Array, Tangent]:
    """A result, and its tangent: the sum of `terms`."""
    return y, sum(terms[1:], terms[0]) if terms else zero_tangent(y)


def constant(primitive: Primitive) -> None:
    """Give a primitive the derivative of one whose result depends on no value: zero."""

    def jvp(primals: Sequence[ArrayLike], _: object, **params: object) -> tuple[PyTree, PyTree]:
        y = primitive.bind(*primals, **params)
        return y, jax.tree.map(zero_tangent, y)

    ad.primitive_jvps[primitive] = jvp


def as_array(x: ArrayLike, operation: str, comm: Communicator, *, weak: bool = False) -> jax.Array:
    """`x` as a JAX array of a dtype that can be sent; with `weak`, a weak type is kept."""
    array = jnp.asarray(x)
    check_dtype(array, operation, comm)
    # A Python number has a weak type, which jitted code would not keep either.
    return array.astype(array.dtype) if array.weak_type and not weak else array


def check_dtype(array: jax.Array, operation: str, comm: Communicator) -> None:
    """Refuse a dtype that cannot be sent."""
    if array.dtype not in _DTYPES:
        remedy = (
            "send jax.random.key_data(x) and wrap it again"
            if jnp.issubdtype(array.dtype, jax.dtypes.prng_key)
            else "cast it first"
        )
        raise TypeError(f"{where(operation, comm)}: dtype {array.dtype} cannot be sent; {remedy}")


@runtime_checkable
class OverLeaves(Protocol[_P]):
    """An operation on one array, or on each array of a pytree, which stays as it is built."""

    @overload
    def __call__(self, x: ArrayLike, /, *args: _P.args, **kwargs: _P.kwargs) -> jax.Array: ...
    @overload
    def __call__(self, x: _Tree, /, *args: _P.args, **kwargs: _P.kwargs) -> _Tree: ...


def over_leaves(operation: Callable[Concatenate[ArrayLike, _P], jax.Array]) -> OverLeaves[_P]:
    """Let `operation`, on one array, take a pytree of arrays: one call for each leaf, in order."""

    @functools.wraps(operation)
    def on_tree(x: PyTree, *arguments: _P.args, **options: _P.kwargs) -> PyTree:
        if isinstance(x, jax.Array) or jax.tree_util.all_leaves([x]):
            return operation(x, *arguments, **options)
        if x is None:
            raise TypeError(f"{operation.__name__.strip('_')}: x is None; give an array")
        return jax.tree.map(lambda leaf: operation(leaf, *arguments, **options), x)

    return on_tree


def where(operation: str, comm: Communicator) -> str:
    """How an error begins: the operation and the rank."""
    return f"{operation} on rank {comm.rank} of {comm.size}"


def static_int(value: object, name: str, operation: str, comm: Communicator) -> int:
    """`value` as a Python int; it is part of the compiled program."""
    try:
        if isinstance(value, SupportsIndex):
            return operator.index(value)
    except TypeError:
        pass
    raise TypeError(
        f"{where(operation, comm)}: {name} must be a static integer, got {value!r}; it is part of "
        "the compiled program (pass it as a Python int, or make it a static argument)"
    )


def static_ints(values: Any, name: str, operation: str, comm: Communicator) -> tuple[int, ...]:
    """`values` as Python ints; nothing is rounded."""
    try:
        return tuple(operator.index(value) for value in values)
    except TypeError:
        raise TypeError(
            f"{where(operation, comm)}: {name} must be static integers, got {values!r}"
        ) from None


def root_rank(root: object, operation: str, comm: Communicator) -> int:
    """`root`, checked."""
    root = static_int(root, "root", operation, comm)
    if not 0 <= root < comm.size:
        raise ValueError(
            f"{where(operation, comm)}: root is {root}, but the ranks are 0 to {comm.size - 1}"
        )
    return root


def on_root_only(result: jax.Array, x: jax.Array, root: int, comm: Communicator) -> jax.Array:
    """`result` on rank `root`, `x` elsewhere.

    Selected, not returned as it is: the derivative of the message must stay part of the program
    on every rank, or the root waits.
    """
    return result if comm.rank == root else jax.lax.select(np.False_, result, x)


def one_entry_a_rank(x: jax.Array, operation: str, comm: Communicator) -> None:
    """Check that axis 0 of `x` counts the ranks."""
    if x.ndim < 1 or x.shape[0] != comm.size:
        raise ValueError(
            f"{where(operation, comm)}: {operation.capitalize()} input must have shape "
            f"(nproc, ...), one entry for each of the {comm.size} ranks, got shape {x.shape}; "
            f"reshape it to ({comm.size}, ...)"
        )

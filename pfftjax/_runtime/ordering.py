"""One order for all communication: the effects, and how they are lowered.

XLA runs independent custom calls in any order, and in another one on each rank: two exchanges of
equal size would then swap partners. Every operation that communicates carries one ordered effect,
which JAX turns into a token from each call to the next, through control flow, transformations and
successive programs. Users never see it.

The only module that imports from `jax._src`.
"""

import contextlib
import dataclasses
import functools
import inspect
import itertools
import sys
import threading
import time
import warnings
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeAlias, cast

import jax
import numpy as np
from jax._src import ad_checkpoint as _ad_checkpoint
from jax._src import core as _core
from jax._src import dispatch as _dispatch
from jax._src import effects as _effects
from jax._src import xla_bridge as _xla_bridge
from jax._src.lib import _jax as _xla  # pyright: ignore[reportPrivateImportUsage]
from jax.extend.mlir.dialects import stablehlo
from jax.interpreters import mlir
from mpi4py import MPI

from . import machine


class _NamedEffect(_effects.Effect):
    """Equal by type: an effect read back by `jax.export` is another instance."""

    def __eq__(self, other: object) -> bool:
        return type(self) is type(other)

    def __hash__(self) -> int:
        return hash(type(self).__qualname__)

    def __lt__(self, other: object) -> bool:
        return repr(self) < repr(other)

    def __repr__(self) -> str:
        return type(self).__name__

    __str__ = __repr__


class Communication(_NamedEffect):
    """Ordered: communication happens in program order, which must be the same on every rank."""


class SlowDispatch(_NamedEffect):
    """Unordered, and without meaning of its own.

    JAX's C++ call path for ahead-of-time compiled programs drops the tokens of ordered effects
    and fails on the second call; a program with an unordered effect does not take that path.
    """


def _allow(kind: type[_NamedEffect]) -> None:
    """Register the concrete class everywhere: `jax.export` looks effects up by it."""
    _effects.lowerable_effects.add_type(kind)
    _effects.control_flow_allowed_effects.add_type(kind)
    _effects.custom_derivatives_allowed_effects.add_type(kind)
    _effects.remat_allowed_effects.add_type(kind)


_allow(Communication)
_allow(SlowDispatch)
_effects.ordered_effects.add_type(Communication)
_effects.shardable_ordered_effects.add_type(Communication)

communication = Communication()
EFFECTS: frozenset[_effects.Effect] = frozenset({communication, SlowDispatch()})

# A lowering rule: (ctx, *operands, **params) -> results.
Rule: TypeAlias = Callable[..., Sequence[mlir.ir.Value]]

_abstract_token = getattr(jax.ffi, "abstract_token", None) or _core.abstract_token


# (ctx, *operands, **params) -> {number of an operand: number of the result in its memory}
InPlace: TypeAlias = Callable[..., dict[int, int]]


def ordered_ffi_rule(
    target: str,
    attributes: Callable[..., Mapping[str, object]],
    lowered: Callable[..., None] = lambda *_, **__: None,
    in_place: InPlace = lambda *_, **__: {},
) -> Rule:
    """The lowering rule of an operation that communicates: a custom call between two tokens.

    Args:
        target: name under which the FFI handler is registered.
        attributes: (**params) -> attributes of the custom call.
        lowered: (ctx, token, operation, **params), called with the token that goes in and the
            MLIR operation that was made.
        in_place: (ctx, *operands, **params) -> which operand's memory which result takes, by
            their numbers. Where that is still wanted, XLA copies it.

    """

    def rule(
        ctx: mlir.LoweringRuleContext, *operands: mlir.ir.Value, **params: object
    ) -> Sequence[mlir.ir.Value]:
        _refuse_global_arrays(ctx)
        with_tokens = ctx.replace(
            avals_in=(*ctx.avals_in, _abstract_token), avals_out=(*ctx.avals_out, _abstract_token)
        )
        before = ctx.tokens_in.get(communication)
        after: Any
        shared = in_place(ctx, *operands, **params)
        lower = jax.ffi.ffi_lowering(target, has_side_effect=True, operand_output_aliases=shared)
        make = cast(Rule, lower)
        on_gpus = platforms_of(ctx) != ("cpu",)
        taken = _apart(operands) if on_gpus else operands
        *results, after = make(with_tokens, *taken, before, **attributes(**params))
        ctx.set_tokens_out(mlir.TokenSet({communication: after}))
        lowered(ctx, before, after.owner, **params)
        return _apart(results) if on_gpus else results

    return rule


def _apart(values: Sequence[mlir.ir.Value]) -> Sequence[mlir.ir.Value]:
    """The same values, which XLA may not compute together with what made them or takes them.

    XLA's compiler for GPUs fuses a call with slices that make its operands and with updates by its
    results, and then counts elements of its token, which ends the process (JAX 0.12,
    openxla/xla#43831).
    """
    return stablehlo.OptimizationBarrierOp(values).results if values else values


def is_donated(operand: mlir.ir.Value) -> bool:
    """Whether it is an argument that is donated to the program."""
    if not isinstance(operand, mlir.ir.BlockArgument):
        return False
    function: Any = operand.owner.owner.attributes
    if "arg_attrs" not in function:
        return False
    given = function["arg_attrs"][operand.arg_number]
    return "tf.aliasing_output" in given or "jax.buffer_donor" in given


def is_temporary(operand: mlir.ir.Value) -> bool:
    """Whether it is probably of no use after the operation: not an argument that is the caller's.
    Those of a loop are its own.
    """
    owner = operand.owner
    is_argument = isinstance(owner, mlir.ir.Block) and owner.owner.operation.name == "func.func"
    return not is_argument or is_donated(operand)


def platforms_of(ctx: mlir.LoweringRuleContext) -> tuple[str, ...]:
    """The platforms a rule lowers for: more than one where a program is exported for several."""
    return tuple(ctx.platforms or ctx.module_context.platforms)


def is_exporting(ctx: mlir.LoweringRuleContext) -> bool:
    """Whether a program is lowered by `jax.export`, to be run by a process that may have more than
    this one.
    """
    return bool(getattr(ctx.module_context.lowering_parameters, "for_export", False))


def _refuse_global_arrays(ctx: mlir.LoweringRuleContext) -> None:
    axes = ctx.module_context.axis_context
    if isinstance(axes, mlir.ShardingContext) and axes.num_devices > 1:
        raise ValueError(
            f"{ctx.primitive} works on each rank's own block, but got a global array over "
            f"{axes.num_devices} devices: call it inside jax.shard_map (with check_vma=False "
            "where its result is declared replicated)"
        )


def devices_when_lowered(primitive: _core.Primitive) -> bool:
    """Let the lowering rule of a primitive see the devices of its program, and lower it again for
    other ones; whether this JAX allows it.
    """
    primitives = getattr(_dispatch, "prim_requires_devices_during_lowering", None)
    if primitives is None:
        return False
    primitives.add(primitive)
    return True


def _keep_token() -> bool:
    """Hand on the token of the last program as it is; whether this JAX allows it.

    JAX copies the token into each call, and the copy waits for the program that made it: calls
    would no longer be asynchronous. On one device there is nothing to copy. Wrapped, not
    replaced: whatever this does not recognise goes the way JAX wrote it.
    """
    tokens = _dispatch.RuntimeTokenSet
    copying = getattr(tokens, "get_token_input", None)
    if copying is None or list(inspect.signature(copying).parameters) != [
        "self",
        "eff",
        "devices",
    ]:
        return False

    def get_token_input(
        self: _dispatch.RuntimeTokenSet, eff: _effects.Effect, devices: list[Any]
    ) -> Any:
        if len(devices) == 1 and eff == communication:
            token = self.current_tokens.get(eff)
            array = getattr(token, "_buf", None)
            if array is not None and array.devices() == set(devices):
                if array.is_ready():
                    try:
                        array.block_until_ready()
                    except jax.errors.JaxRuntimeError:
                        # Reported once more, in case nobody has looked, and then forgotten.
                        del self.current_tokens[eff]
                        raise
                return token
        return copying(self, eff, devices)

    tokens.get_token_input = get_token_input
    return True


@dataclasses.dataclass(frozen=True)
class _Dispatcher:
    """A thread that has dispatched programs that communicate, with what JAX keeps for it: its
    tokens, which nobody else would find, and which would be forgotten when the thread ends.
    """

    thread: threading.Thread
    kept: dict[str, Any]

    def last(self) -> Any:
        """An array that is ready once the last of these programs has ended; None without one."""
        return getattr(self.kept["current_tokens"].get(communication), "_buf", None)

    def is_busy(self) -> bool:
        """Whether one of these programs is under way."""
        last = self.last()
        return last is not None and not last.is_ready()

    def is_over(self) -> bool:
        """Whether nothing is left to wait for, nor an error to report."""
        if self.thread.is_alive():
            return False
        last = self.last()
        if last is None:
            return True
        if not last.is_ready():
            return False
        try:
            last.block_until_ready()
        except jax.errors.JaxRuntimeError:
            return False
        return True


_dispatchers: list[_Dispatcher] = []
_dispatchers_lock = threading.Lock()
# Whether this thread has dispatched, or tried to make, an operation.
_here = threading.local()
_run_at_once = False


def communicates() -> None:
    """Note that the present thread calls an operation."""
    _here.communicates = True


def has_communicated() -> bool:
    """Whether the present thread has called an operation, or a program that contains one."""
    return getattr(_here, "communicates", False)


@functools.cache
def _threads() -> int:
    """XLA's threads, all of which programs that wait for other ranks may hold."""
    if MPI.COMM_WORLD.size == 1 or jax.default_backend() != "cpu":
        return sys.maxsize
    return machine.xla_threads() or sys.maxsize


def _warn_of_few_threads() -> None:
    """Say where programs that wait for other ranks may hold all of XLA's threads.

    One that such a rank waits for may then never get a thread, here or there, and the job hangs.
    Where all ranks come to their programs in the same order, it goes well.
    """
    with _dispatchers_lock:
        busy = [other for other in _dispatchers if other.is_busy()]
    here = threading.current_thread()
    programs = 1 + sum(other.thread is not here for other in busy)
    if programs >= _threads():
        warnings.warn(
            f"pfftjax: {programs} threads of this process have programs under way that "
            f"communicate, and XLA has {_threads()} to run them: programs that wait for other "
            "ranks may hold all of these, and the job then hangs. Give each rank more cores, or "
            f"set NPROC={2 * programs} (the number of XLA's threads) before JAX starts",
            RuntimeWarning,
            stacklevel=2,
        )


_streams = itertools.count(1)


def _can_take_streams() -> bool:
    """Whether programs can be given an order of their own on this JAX."""
    return hasattr(_xla, "get_execution_stream_id") and hasattr(_xla, "set_execution_stream_id")


def _take_stream() -> None:
    """Give the programs of this thread an order of their own.

    On CPUs XLA runs the programs of one thread one after the other, and knows a thread by a number
    that the system gives to another one when it has ended. The programs of a new thread would wait
    for what that one has left under way, and on each rank for something else.
    """
    is_main = threading.current_thread() is threading.main_thread()
    if is_main or not _can_take_streams() or jax.default_backend() != "cpu":
        return
    if _xla.get_execution_stream_id() == 0:  # the user has chosen none
        _xla.set_execution_stream_id(next(_streams))


def _note_threads() -> bool:
    """Keep the tokens of every thread that dispatches a program that communicates; whether this
    JAX allows it.
    """
    tokens = _dispatch.RuntimeTokenSet
    if not (hasattr(tokens, "get_token_input") and hasattr(tokens, "set_token_result")):
        return False
    get_token_input, set_token_result = tokens.get_token_input, tokens.set_token_result

    def noted(
        self: _dispatch.RuntimeTokenSet, eff: _effects.Effect, *arguments: Any, **options: Any
    ) -> Any:
        if eff == communication and not getattr(_here, "is_noted", False):
            communicates()
            _here.is_noted = True
            _take_stream()
            dispatcher = _Dispatcher(threading.current_thread(), vars(self))
            with _dispatchers_lock:
                _dispatchers[:] = [other for other in _dispatchers if not other.is_over()]
                _dispatchers.append(dispatcher)
        if eff == communication and len(_dispatchers) > 1 and len(_dispatchers) >= _threads():
            _warn_of_few_threads()
        return get_token_input(self, eff, *arguments, **options)

    def set_and_wait(self: _dispatch.RuntimeTokenSet, eff: _effects.Effect, token: Any) -> None:
        set_token_result(self, eff, token)
        if _run_at_once and eff == communication:
            token.block_until_ready()

    tokens.get_token_input = noted
    tokens.set_token_result = set_and_wait
    return True


def run_at_once() -> None:
    """From now on a program that communicates has ended when its call returns.

    For exit handlers that run after those that wait for asynchronous work.
    """
    global _run_at_once
    _run_at_once = True


def wait_for_threads(is_stuck: Callable[[], bool]) -> None:
    """Wait for the programs that communicate and that any thread of this process has dispatched.

    Those of threads that have ended are waited for as long as they take. A thread that goes on (a
    daemon) may wait for a message that nobody sends: `is_stuck` says when to give it up.

    Raises:
        jax.errors.JaxRuntimeError: one of these programs has failed.

    """
    with _dispatchers_lock:
        dispatchers = list(_dispatchers)
    for dispatcher in dispatchers:
        pause = 1e-4
        while (last := dispatcher.last()) is not None:
            if last.is_ready():
                last.block_until_ready()
                break
            if dispatcher.thread.is_alive() and is_stuck():
                break
            time.sleep(pause)
            pause = min(2 * pause, 0.05)


def backends_have_started() -> bool:
    """Whether JAX has devices: what chooses among them comes too late then."""
    return _xla_bridge.backends_are_initialized()


def is_tracing() -> bool:
    """Whether an operation bound now becomes part of a program, rather than being run at once."""
    return not _core.trace_state_clean()


def outside_of_programs() -> contextlib.AbstractContextManager[None]:
    """A context in which operations are run at once, also where a program is being traced.

    Those of `jax.ensure_compile_time_eval` are run at once where a program is lowered as well, in
    the midst of which JAX 0.10 cannot write another one for its cache on disk.
    """
    return _core.eval_context()


def recover() -> None:
    """Go on after an error that was raised on every rank.

    Programs that communicate are in order, and so the error of one is also that of the next. Call
    this where the error is caught, on every rank: after an exchange of particles found too little
    room, say, to repeat it with more. Where one rank alone has failed there is no way back.

    Example:
        >>> import jax.numpy as jnp
        >>> from mpi4py import MPI
        >>> from pfftjax.collectives import alltoallv, recover
        >>> ones = jnp.ones(MPI.COMM_WORLD.size, int)
        >>> try:
        ...     y, _ = alltoallv(ones, ones, capacity=0)
        ...     y = y.block_until_ready()
        ... except jax.errors.JaxRuntimeError:
        ...     recover()
        ...     y, _ = alltoallv(ones, ones)
        >>> y.size == MPI.COMM_WORLD.size
        True

    """
    _dispatch.runtime_tokens.clear()


def _let_checkpoint_save_complex() -> bool:
    """Let `jax.checkpoint` save complex results; whether this JAX allows it.

    JAX guards what a policy saves by reduce_precision, which it does not have for complex numbers:
    any policy that saves one ends in a TypeError, and spectra are complex. They go unguarded.
    """
    insert = getattr(_ad_checkpoint, "_insert_reduce_precision", None)
    if insert is None:
        return False

    def is_complex(var: object) -> bool:
        dtype = getattr(getattr(var, "aval", None), "dtype", None)
        return dtype is not None and np.issubdtype(dtype, np.complexfloating)

    def insert_but_for_complex(*arguments: object, **options: object) -> object:
        match arguments:
            case (_core.Jaxpr() as jaxpr, int(residuals)) if not options:
                outvars = list(jaxpr.outvars)
                first = len(outvars) - residuals
                # JAX leaves alone what it does not take for an array.
                hidden = [
                    _core.Var(_core.abstract_token) if i >= first and is_complex(var) else var
                    for i, var in enumerate(outvars)
                ]
                inserted = insert(jaxpr.replace(outvars=hidden), residuals)
                return inserted.replace(outvars=outvars)
            case _:
                return insert(*arguments, **options)

    _ad_checkpoint._insert_reduce_precision = insert_but_for_complex
    return True


def change_jax() -> list[str]:
    """Wrap the functions inside JAX that do not serve programs that communicate as they are.

    Returns:
        A text for each function that this JAX has not as it is known here: what is worse for it.

    """
    changes = {
        "each program that communicates waits for the one before it": _keep_token,
        "the end of a program does not wait for what its other threads run": _note_threads,
        "programs of a thread may wait for those of one that has ended": _can_take_streams,
        "a policy of jax.checkpoint cannot save complex arrays": _let_checkpoint_save_complex,
    }
    return [loss for loss, is_made in changes.items() if not is_made()]

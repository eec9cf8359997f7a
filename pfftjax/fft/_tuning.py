"""The process grid and the method of exchange of a plan, chosen by measurement."""

import dataclasses
import math
import time
from collections.abc import Callable, Sequence
from typing import TypeAlias, TypeVar

import jax
import jax.numpy as jnp
import numpy as np
from jax.core import Tracer
from jax.typing import DTypeLike
from mpi4py import MPI

from pfftjax._runtime.arguments import where
from pfftjax._runtime.communicators import Communicator
from pfftjax._runtime.ffi import native
from pfftjax.pencils import ExchangeMethod, ProcessGrid
from pfftjax.pencils.internal import different_methods

from . import _tuning_file
from ._fused import Fused
from ._grids import default_dims, factorisations, uses_all_ranks
from ._plan import Plan
from ._steps import forward_steps
from ._timings import Timing, Timings, Tuning
from ._tuning_file import Entry, Key

# At most so many process grids are tried: factorisations far from slabs and from a square are not
# the fastest.
_MOST_GRIDS = 6
_REPEATS = 5  # of each method on a grid
_FINAL_REPEATS = 9  # of the best on all of them
# A candidate that is slower than the fastest by this factor does not come to the final. The rule's
# choice always does, as what comes first meets a machine that is not warm yet.
_HOPELESS = 1.25
# The rule's choice is kept unless another one takes less than this part of its time, so that
# choices do not change from run to run for nothing.
_WORTH_A_CHANGE = 0.97
# A measurement takes about so long, in several calls: one is lost in what else the node does.
_SAMPLE_SECONDS = 5e-3
_MOST_CALLS = 50

_Plan = TypeVar("_Plan", bound=Plan)
_Grid = TypeVar("_Grid", bound=ProcessGrid | MPI.Comm | Communicator)
Candidate: TypeAlias = tuple[tuple[int, int], ExchangeMethod]


def candidate_dims(
    shape: Sequence[int], spectrum: Sequence[int], ranks: int
) -> list[tuple[int, int]]:
    """The process grids to be tried, what the rule takes first, then slabs, then by squareness.

    Those that leave ranks without data are left out, but for the rule's own.

    >>> candidate_dims((64, 64, 64), (64, 64, 33), 4)
    [(4, 1), (2, 2), (1, 4)]
    """
    rule = default_dims(shape, ranks)
    if len(shape) == 2:
        return [rule]
    others = [d for d in factorisations(ranks) if uses_all_ranks(d, shape, spectrum)]
    others.sort(key=lambda d: (d[1] != 1, abs(math.log(d[0] / d[1])), -d[0]))
    return list(dict.fromkeys([rule, *others]))[:_MOST_GRIDS]


def chosen(
    make: Callable[..., Plan], grid: _Grid, method: ExchangeMethod, how: bool | Tuning
) -> tuple[_Grid | ProcessGrid, ExchangeMethod, Timings]:
    """The grid and the method of a plan: as given, or with `how` tuned. `make` makes the plan of
    both; of a communicator, the grid that the rule takes. Collective if it is tuned.
    """
    if how is False:
        return grid, method, Timings()
    any_grid = not isinstance(grid, ProcessGrid)
    plan, timings = tune(make(grid, method=method), how, any_grid=any_grid)
    return plan.grid, plan.method, timings


def tune(
    plan: _Plan, tuning: bool | Tuning = True, *, any_grid: bool = False
) -> tuple[_Plan, Timings]:
    """The same transform with the method, and the process grid, that are fastest. Collective.

    Forward and inverse transforms are timed together, by each method of exchange unless the plan
    has one other than AUTOMATIC. The keyword `tune` of `PencilFFT` and `PencilTransform` does the
    same where a plan is made.

    Args:
        plan: a `PencilFFT` or a `PencilTransform`, as the rule would have it.
        tuning: how; `Tuning()` for `True`.
        any_grid: whether other process grids of the same communicator are tried as well.

    Returns:
        The plan, and what was measured, the fastest first: empty if there was nothing to choose.

    Raises:
        ValueError: seconds that are not positive, or a file that is none of choices.
        TypeError: a dtype without a transform.
        RuntimeError: while a program is traced, or with arguments that differ between ranks.

    Example:
        >>> from pfftjax import PencilFFT
        >>> plan, timings = tune(PencilFFT((8, 8, 8), ProcessGrid()), Tuning(seconds=1.0))
        >>> plan.shape
        (8, 8, 8)

    """
    grid = plan.grid
    comm, operation = grid.communicator, type(plan).__name__
    here = where(operation, comm)
    if not isinstance(tuning, bool | Tuning):
        raise TypeError(f"{here}: tune must be a bool or a Tuning, got {type(tuning).__name__}")
    if tuning is False:
        return plan, Timings()
    tuning = Tuning() if tuning is True else tuning
    if not tuning.seconds > 0:
        raise ValueError(f"{here}: Tuning.seconds must be positive, got {tuning.seconds!r}")
    if isinstance(jnp.zeros(()), Tracer):
        raise RuntimeError(
            f"{here}: tune measures, which cannot be done while a program is traced; make the "
            "plan outside of jitted code, and use it inside"
        )
    dtype = _dtype(tuning.dtype, plan.kinds, here)
    # Pending programs may communicate.
    jax.effects_barrier()
    key: Key = {
        "operation": operation,
        "shape": list(plan.shape),
        "kinds": list(plan.kinds),
        "layout": plan.layout,
        "dtype": dtype.name,
        "grid": None if any_grid else list(grid.dims),
        "method": plan.method.name.lower(),
        **({"precision": plan.precision.name.lower()} if plan.precision else {}),
    }
    rest = {"seconds": tuning.seconds, "file": tuning.file and str(tuning.file)}
    asked = repr({**key, **rest, "backend": jax.default_backend()})
    difference = native.compare(comm.number, asked) if comm.size > 1 else ""
    if difference:
        raise RuntimeError(
            f"{here}: the ranks tune different plans: {difference}; every rank must make the same"
        )
    key["machine"] = _tuning_file.machine(comm.mpi)
    if tuning.file is not None:
        known = _tuning_file.load(tuning.file, key, comm, operation)
        if known is not None:
            found, timings = _from_entry(plan, known, comm)
            # The ranks may no longer share memory.
            if found.method in _methods(found, plan.method):
                return found, timings

    dims = [grid.dims]
    if any_grid:
        dims = candidate_dims(plan.shape, plan.spectral_shape, grid.size)
    made: dict[tuple[int, int], ProcessGrid] = {}

    def plan_of(candidate: Candidate) -> _Plan:
        at, method = candidate
        made[at] = grid if at == grid.dims else ProcessGrid(at, comm)
        return dataclasses.replace(plan, grid=made[at], method=method)

    best, timings = _choose(plan_of, dims, plan.method, dtype, tuning.seconds, comm)
    for each in made.values():
        _release(each)
    if tuning.file is not None:
        entry: Entry = {
            "dims": list(best[0]),
            "method": best[1].name.lower(),
            "timings": [(list(t.dims), t.method.name.lower(), t.seconds) for t in timings],
        }
        _tuning_file.save(tuning.file, key, entry, comm, operation)
    return plan_of(best), timings


def _dtype(dtype: DTypeLike | None, kinds: Sequence[str], here: str) -> np.dtype:
    """The dtype of the arrays to be timed: as precise as `dtype`, real or complex as the plan."""
    given = np.dtype(jnp.result_type(float) if dtype is None else dtype)
    if given not in ("float32", "float64", "complex64", "complex128"):
        raise TypeError(
            f"{here}: Tuning.dtype is {given}, and there is no transform of it; take float32, "
            "float64, complex64 or complex128"
        )
    real = np.finfo(given).dtype
    if real == "float64" and jnp.result_type(float) != "float64":
        raise ValueError(
            f"{here}: Tuning.dtype is {given}, but JAX computes in single precision; set "
            "jax_enable_x64 or take float32"
        )
    is_real = kinds[-1] == "rfft" or "fft" not in kinds
    return np.dtype(real) if is_real else np.result_type(real, np.complex64)


def _from_entry(plan: _Plan, entry: Entry, comm: Communicator) -> tuple[_Plan, Timings]:
    """The plan and the timings that an entry of a file stands for."""
    timings = Timings(
        Timing((d[0], d[1]), ExchangeMethod[m.upper()], s) for d, m, s in entry["timings"]
    )
    dims = entry["dims"][0], entry["dims"][1]
    grid = plan.grid if dims == plan.grid.dims else ProcessGrid(dims, comm)
    method = ExchangeMethod[entry["method"].upper()]
    return dataclasses.replace(plan, grid=grid, method=method), timings


def _methods(plan: Plan, method: ExchangeMethod) -> list[ExchangeMethod]:
    """The methods that differ from each other for `plan`, where `method` is asked for."""
    is_fused = any(isinstance(step, Fused) for step in forward_steps(plan, plan.shape))
    return different_methods(plan.grid, method, plan.precision, is_fused=is_fused)


def _release(grid: ProcessGrid) -> None:
    """Give back the memory that exchanges on the grid have kept."""
    for dimension in range(2):
        native.release_memory(grid.along(dimension).number)


class _Runs:
    """Forward and inverse transforms of some candidates, timed in turn."""

    def __init__(self, dtype: np.dtype, comm: Communicator) -> None:
        self._dtype = dtype
        self._comm = comm
        self._start = time.monotonic()
        self._calls: dict[Candidate, Callable[[int], None]] = {}
        self._counts: dict[Candidate, int] = {}
        self.best: dict[Candidate, float] = {}

    def add(self, candidate: Candidate, plan: Plan) -> float:
        """Compile, warm up, and time a first call; the seconds since the beginning. Collective."""
        x = jnp.asarray(np.ones(plan.input.local_shape, self._dtype))
        program = jax.jit(lambda x: plan.inverse(plan.forward(x)))

        def run(times: int) -> None:
            y = x
            for _ in range(times):
                y = program(x)
            y.block_until_ready()

        for _ in range(2):
            run(1)
        self._calls[candidate], self._counts[candidate] = run, 1
        return self.round([candidate])

    def drop(self, candidates: Sequence[Candidate]) -> None:
        """Let go of their arrays and programs."""
        for candidate in candidates:
            del self._calls[candidate]

    def round(self, candidates: Sequence[Candidate]) -> float:
        """Time each once more; the seconds since the beginning, on the slowest rank.

        One reduction tells all ranks the same of all candidates and of the time.
        """
        seconds = np.zeros(len(candidates) + 1)
        for i, candidate in enumerate(candidates):
            count = self._counts[candidate]
            self._comm.mpi.Barrier()
            start = time.perf_counter()
            self._calls[candidate](count)
            seconds[i] = (time.perf_counter() - start) / count
        seconds[-1] = time.monotonic() - self._start
        self._comm.mpi.Allreduce(MPI.IN_PLACE, seconds, MPI.MAX)
        for candidate, took in zip(candidates, seconds[:-1], strict=True):
            best = min(self.best.get(candidate, math.inf), float(took))
            self.best[candidate] = best
            self._counts[candidate] = min(math.ceil(_SAMPLE_SECONDS / best), _MOST_CALLS)
        return float(seconds[-1])


def _choose(
    plan_of: Callable[[Candidate], Plan],
    dims: Sequence[tuple[int, int]],
    method: ExchangeMethod,
    dtype: np.dtype,
    limit: float,
    comm: Communicator,
) -> tuple[Candidate, Timings]:
    """The fastest candidate, and what was measured, the same on all ranks. Collective.

    Grid by grid, so that the arrays and the shared memory of one grid are there at a time; then
    the best of them in turn, as a machine is not equally fast for seconds on end.
    """
    rule = (dims[0], method)
    runs, left_out = _Runs(dtype, comm), list[Candidate]()
    elapsed = 0.0
    for at in dims:
        if elapsed > limit and runs.best:
            left_out.append((at, method))
            continue
        plan = plan_of((at, method))
        here = [(at, m) for m in _methods(plan, method)]
        if here == [rule] and len(dims) == 1:
            return rule, Timings()  # nothing to choose
        for candidate in here:
            if elapsed > limit and runs.best:
                left_out.append(candidate)
                continue
            elapsed = runs.add(candidate, plan_of(candidate))
        here = [c for c in here if c not in left_out]
        for _ in range(_REPEATS - 1):
            if elapsed <= limit:
                elapsed = runs.round(here)
        runs.drop(here)
        _release(plan.grid)

    by_time = runs.best.__getitem__
    ranking = sorted(runs.best, key=by_time)
    most = _HOPELESS * runs.best[ranking[0]]
    best = dict.fromkeys([ranking[0], rule, *ranking[1:2]])
    final = [c for c in best if c == rule or runs.best[c] <= most]
    if len(final) > 1 and elapsed <= limit:
        for candidate in final:
            elapsed = runs.add(candidate, plan_of(candidate))
        for _ in range(_FINAL_REPEATS):
            if elapsed <= limit:
                elapsed = runs.round(final)
        runs.drop(final)
    fastest = min(final, key=by_time)
    is_worth_it = runs.best[fastest] < _WORTH_A_CHANGE * runs.best[rule]
    timings = [Timing(*c, runs.best[c]) for c in sorted(runs.best, key=by_time)]
    timings += [Timing(*c, None) for c in left_out]
    return fastest if is_worth_it else rule, Timings(timings)

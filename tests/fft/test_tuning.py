"""Plans whose process grid and method of exchange are chosen by measurement."""

import dataclasses
import functools
import json
import os
import re
import stat

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from mpi4py import MPI

import pfftjax
from pfftjax import (
    ExchangeMethod,
    ExchangePrecision,
    PencilFFT,
    PencilTransform,
    ProcessGrid,
    Tuning,
)
from pfftjax import collectives as pc
from pfftjax._runtime.communicators import world
from pfftjax._runtime.options import options
from pfftjax.fft import Timing, Timings, _tuning_file, default_dims, tune
from pfftjax.fft._tuning import _choose, _methods, candidate_dims
from tests.distributed import assert_block, grids, shares_memory, transformed
from tests.helpers import CONTROL, RANK, SIZE, here, random

pytestmark = [
    pytest.mark.mpi,
    pytest.mark.timeout(300),
    pytest.mark.ranks(1, 2, 4),
    pytest.mark.messages,
]

WORLD = MPI.COMM_WORLD


@pytest.fixture
def path(tmp_path):
    """The same on all ranks, which each have a folder of their own."""
    return CONTROL.bcast(tmp_path) / "tuning.json"


def test_the_rule():
    """Slabs, while there are planes and messages are not tiny; otherwise as square as can be."""
    assert default_dims((64, 64, 64), 4) == (4, 1)
    assert default_dims((3, 64, 64), 4) == (2, 2)
    assert default_dims((64, 3, 64), 6) == (3, 2)
    assert default_dims((64, 64, 64), 64) == (8, 8)
    assert default_dims((256, 256, 256), 128) == (128, 1)
    assert default_dims((256, 256, 256), 1024) == (32, 32)
    assert default_dims((1024, 1024, 1024), 256) == (256, 1)
    assert default_dims((5, 5), 7) == (7, 1)
    # Without ranks that hold nothing, where there is such a grid.
    assert default_dims((2, 4096, 4096), 16) == (2, 8)
    assert default_dims((4, 4, 2), 16) == (4, 4)
    assert default_dims((2, 2, 2), 16) == (4, 4)
    assert PencilFFT((20, 20, 20), WORLD).grid.dims == (SIZE, 1)
    # The rule's choice comes first, even if ranks idle; then only grids without idle ranks.
    assert candidate_dims((9, 2, 9), (9, 2, 9), 4) == [(2, 2)]
    assert candidate_dims((1, 1, 9), (1, 1, 9), 4) == [(2, 2)]
    assert candidate_dims((64, 64, 64), (64, 64, 33), 16)[:2] == [(16, 1), (4, 4)]
    assert len(candidate_dims((4096,) * 3, (4096,) * 3, 4096)) == 6


def test_plans_without_transforms_beside_exchanges_have_other_methods():
    """The shared window and messages are all that AUTOMATIC takes there."""
    grid = ProcessGrid((None, 1))
    fused = _methods(PencilFFT((8, 8, 8), grid), ExchangeMethod.AUTOMATIC)
    alone = _methods(PencilTransform((8, 8), grid, ("fft", "fft")), ExchangeMethod.AUTOMATIC)
    assert fused[0] == alone[0] == ExchangeMethod.AUTOMATIC
    assert ExchangeMethod.SHARED not in alone
    if shares_memory() and SIZE > 1:
        assert ExchangeMethod.SHARED in fused
        assert alone[1:] == [ExchangeMethod.MESSAGES, ExchangeMethod.ALLTOALL]
    elif not options.shared_memory and SIZE > 1:
        assert alone[1:] == fused[1:] == [ExchangeMethod.ALLTOALL]
    assert SIZE == 1 or ExchangeMethod.ALLTOALL in alone


def test_no_tuning():
    plan = PencilFFT((8, 8, 8), WORLD)
    assert tune(plan, False) == (plan, Timings())


@pytest.mark.parametrize(("umask", "mode"), [(0o077, 0o600), (0o002, 0o664)])
def test_the_umask_says_who_may_read_a_file_of_choices(path, umask, mode):
    """A file that is there keeps what its owner has made of it."""
    key, entry = {"machine": {"ranks": 1}}, {"dims": [1, 1], "method": "automatic", "timings": []}
    before = os.umask(umask)
    try:
        _tuning_file.save(path, key, entry, world, "a test")
        if RANK == 0:
            assert stat.S_IMODE(path.stat().st_mode) == mode
            path.chmod(0o640)
        _tuning_file.save(path, key, entry, world, "a test")
        if RANK == 0:
            assert stat.S_IMODE(path.stat().st_mode) == 0o640
    finally:
        os.umask(before)


def test_tuned_plans(path):
    """Every grid and method is measured, all ranks choose the same, and the plan is right."""
    shape = (12, 13, 10)
    X = random(shape)
    plan = PencilFFT(shape, WORLD, real=True, norm="ortho", tune=Tuning(seconds=60, file=path))
    assert len({(p.dims, p.method) for p in plan.timings}) == len(plan.timings)
    assert {t.dims for t in plan.timings} == (set() if SIZE == 1 else {g.dims for g in grids()})
    if SIZE > 1:
        of_rule = {t.method for t in plan.timings if t.dims == (SIZE, 1)}
        # AUTOMATIC is the one that is left out.
        left_out = ExchangeMethod.MESSAGES
        if shares_memory():
            left_out = ExchangeMethod.FUSED
        elif options.shared_memory:
            left_out = ExchangeMethod.HIERARCHICAL
        assert ExchangeMethod.AUTOMATIC in of_rule
        assert ExchangeMethod.ALLTOALL in of_rule
        assert left_out not in of_rule
    assert all(t.seconds > 0 for t in plan.timings)
    assert list(plan.timings) == sorted(plan.timings, key=lambda t: t.seconds)
    assert len(set(CONTROL.allgather((plan.grid.dims, plan.method, plan.timings)))) == 1
    y = plan.forward(plan.input.local_block(X))
    assert_block(y, np.fft.rfftn(X, norm="ortho"), plan.output, 1e-13)
    # A plan of equal value, and no measurement the second time.
    same = dataclasses.replace(plan)
    assert same == plan
    assert hash(same) == hash(plan)
    again = PencilFFT(shape, WORLD, real=True, norm="ortho", tune=Tuning(file=path))
    assert again == plan
    assert again.timings == plan.timings
    # The norm and the time are no part of what is looked for; the layout is.
    other = PencilFFT(shape, WORLD, real=True, tune=Tuning(seconds=1, file=path))
    assert (other.grid, other.method, other.timings) == (plan.grid, plan.method, plan.timings)
    walls = PencilTransform((6, 5), WORLD, ("dct2", "fft"), tune=Tuning(seconds=1e-9, file=path))
    assert walls.grid.dims == (SIZE, 1)
    y = walls.forward(walls.input.local_block(X[0, :6, :5]))
    assert_block(y, transformed(walls, X[0, :6, :5]), walls.output, 1e-13)
    if RANK == 0:
        content = json.loads(path.read_text())
        assert [c["key"]["shape"] for c in content["choices"]] == [[12, 13, 10], [6, 5]]
        machine = content["choices"][0]["key"]["machine"]
        assert machine["ranks"] == SIZE
        assert machine["devices"] == [jax.local_devices()[0].device_kind]
        # The entry of another machine stays, and is not taken for this one.
        content["choices"][0]["key"]["machine"]["mpi"] = "another"
        path.write_text(json.dumps(content))
    CONTROL.Barrier()
    if SIZE > 1:
        fixed = Tuning(seconds=1e-9, file=path)
        plan = PencilFFT(shape, grids()[0], real=True, tune=fixed)
        assert plan.grid == grids()[0]
        assert {t.dims for t in plan.timings} == {plan.grid.dims}
        by = ExchangeMethod.MESSAGES
        plan = PencilFFT(shape, WORLD, method=by, tune=Tuning(seconds=1e-9))
        # Time for one; the others are named, but not measured.
        assert plan.method == by
        assert [t.seconds is None for t in plan.timings] == [False] + [True] * (len(grids()) - 1)
        assert "no time" in str(plan.timings) or len(grids()) == 1
        if RANK == 0:
            assert len(json.loads(path.read_text())["choices"]) == 3


def test_the_fastest_is_chosen_and_small_gains_are_none(monkeypatch):
    """The times are given, and tuning has to choose, keep the order, and stop in time."""
    if SIZE == 1:
        pytest.skip("one rank has nothing to choose")
    from pfftjax.fft import _tuning

    automatic, alltoall = ExchangeMethod.AUTOMATIC, ExchangeMethod.ALLTOALL
    slabs, others = (SIZE, 1), (1, SIZE)

    class Given:
        def __init__(self, times, cost):
            self.best, self.times, self.cost, self.elapsed = {}, times, cost, 0.0
            self.order = []

        def add(self, candidate, plan):
            del plan
            self.order.append(candidate)
            return self.round([candidate])

        def round(self, candidates):
            for candidate in candidates:
                self.best[candidate] = self.times[candidate]
                self.elapsed += self.cost
            return self.elapsed

        def drop(self, candidates):
            pass

    monkeypatch.setattr(_tuning, "different_methods", lambda *_, **__: [automatic, alltoall])
    base = PencilFFT((8, 8, 8), WORLD)

    def chosen(times, cost=0.0):
        runs = Given(dict(zip(candidates, times, strict=True)), cost)
        monkeypatch.setattr(_tuning, "_Runs", lambda dtype, comm: runs)
        plan_of = lambda c: dataclasses.replace(base, grid=ProcessGrid(c[0]), method=c[1])  # noqa: E731
        dims, comm = [slabs, others], base.grid.communicator
        return (*_choose(plan_of, dims, automatic, np.dtype("float32"), 10.0, comm), runs)

    candidates = [(d, m) for d in (slabs, others) for m in (automatic, alltoall)]
    best, timings, runs = chosen([1.0, 0.9, 0.8, 0.7])
    assert best == (others, alltoall)
    assert runs.order[:4] == candidates
    assert [t.seconds for t in timings] == [0.7, 0.8, 0.9, 1.0]
    assert chosen([1.0, 0.99, 0.98, 0.975])[0] == (slabs, automatic)
    assert chosen([1.0, 0.99, 0.98, 0.96])[0] == (others, alltoall)
    assert chosen([1.0, 0.96, 2.0, 2.0])[0] == (slabs, alltoall)
    best, timings, _ = chosen([1.0, 0.5, 0.1, 0.1], cost=11.0)
    assert best == (slabs, automatic)
    assert [t.seconds for t in timings] == [1.0, None, None]


def test_a_method_is_part_of_a_plan():
    grid = grids()[0]
    one, two = (PencilFFT((4, 4, 4), grid, method=m) for m in list(ExchangeMethod)[:4:3])
    assert one != two
    assert one == PencilFFT([4, 4, 4], grid)
    assert PencilFFT((4, 4, 4), grid, tune=False) == one
    assert one.timings == Timings()
    assert dataclasses.replace(two, norm="ortho").method is ExchangeMethod.MESSAGES
    x = jnp.ones(two.input.local_shape)
    if SIZE > 1:
        text = jax.jit(two.forward).lower(x).as_text()
        assert re.search(r"method = 3 : i64", text)
        assert "messages" in text
    timings = [
        Timing((4, 1), ExchangeMethod.SHARED, 0.5),
        Timing((128, 16), ExchangeMethod.HIERARCHICAL, 1.5),
    ]
    assert [line.split() for line in str(Timings(timings)).splitlines()[1:]] == [
        ["4", "x", "1", "SHARED", "500", "ms"],
        ["128", "x", "16", "HIERARCHICAL", "1500", "ms"],
    ]


def test_a_plan_that_is_there():
    plan = PencilFFT((8, 6, 5), grids()[0], real=True, norm="ortho")
    tuned, timings = tune(plan, Tuning(seconds=1e-9))
    assert tuned == dataclasses.replace(plan, method=tuned.method)
    assert tuned.timings == Timings()
    assert {t.dims for t in timings} <= {plan.grid.dims}
    tuned, timings = tune(plan, Tuning(seconds=1e-9), any_grid=True)
    candidates = candidate_dims(plan.shape, plan.spectral_shape, SIZE) if SIZE > 1 else []
    assert {t.dims for t in timings} == set(candidates)


def test_what_is_one_way_is_timed_once():
    """In half of the bits SHARED goes as FUSED does."""
    for precision in ExchangePrecision:
        plan = PencilFFT((8, 6, 5), grids()[0], precision=precision)
        methods = {t.method for t in tune(plan, Tuning(seconds=1e-9))[1]}
        shares = SIZE > 1 and shares_memory() and precision == ExchangePrecision.FULL
        assert (ExchangeMethod.SHARED in methods) == shares


@pytest.mark.wrong_types
def test_what_is_refused(path, monkeypatch):
    grid, shape = grids()[0], (4, 4, 4)
    with pytest.raises(TypeError, match=here("PencilFFT") + "tune must be a bool or a Tuning"):
        tune(PencilFFT(shape, grid), 1.0)
    for make in (PencilFFT, lambda *a, **k: PencilTransform(*a, ("fft",) * 3, **k)):
        with pytest.raises(TypeError, match=r"method must be one of ExchangeMethod.{AUTOMATIC, "):
            make(shape, grid, method="messages")
        with pytest.raises(TypeError, match="tune must be a bool or a Tuning, got float"):
            make(shape, grid, tune=2.0)
        with pytest.raises(ValueError, match=r"Tuning\.seconds must be positive, got nan"):
            make(shape, grid, tune=Tuning(seconds=float("nan")))
        with pytest.raises(TypeError, match=r"Tuning\.dtype is float16"):
            make(shape, grid, tune=Tuning(dtype="float16"))
        with pytest.raises(TypeError, match="grid must be a ProcessGrid, got NoneType; make it"):
            make(shape, None)

        @jax.jit
        def traced(make=make):
            make(shape, grid, tune=True)

        with pytest.raises(RuntimeError, match="cannot be done while a program is traced"):
            traced()
    with pytest.raises(TypeError, match=here("transpose") + "method must be"):
        pfftjax.transpose(jnp.zeros(()), Pencil := PencilFFT(shape, grid).input, Pencil, method=1)
    if SIZE > 1:
        with pytest.raises(RuntimeError, match="the ranks tune different plans: number 1 is"):
            PencilFFT((4, 4, 4 + RANK), grid, tune=True)
        with monkeypatch.context() as patched:
            patched.setattr(jax, "default_backend", lambda: ("cpu", "gpu")[RANK % 2])
            with pytest.raises(RuntimeError, match="the ranks tune different plans: number 1 is"):
                PencilFFT((4, 4, 4), grid, tune=True)
    for text in ("{", "[]", '{"format": "another"}', '{"format": "pfftjax tuning", "version": 2}'):
        CONTROL.Barrier()
        if RANK == 0:
            path.write_text(text)
        CONTROL.Barrier()
        with pytest.raises(ValueError, match="is no file of choices that this pfftjax can read"):
            PencilFFT(shape, grid, tune=Tuning(file=path))
    missing = path.parent / "missing" / "tuning.json"
    said = rf"PencilFFT on rank 0 of {SIZE}: .* is no folder to write to"
    with pytest.raises(OSError, match=said):
        PencilFFT(shape, grid, tune=Tuning(file=missing))

    def full(*_):
        raise OSError("no space left")

    with monkeypatch.context() as patched:
        patched.setattr(os, "replace", full)
        with pytest.raises(OSError, match=rf"^PencilFFT on rank 0 of {SIZE}: no space left"):
            PencilFFT(shape, grid, tune=Tuning(seconds=1e-9, file=path.parent / "new.json"))


def test_methods_that_need_shared_memory(monkeypatch):
    m = ExchangeMethod
    if not options.shared_memory and SIZE > 1:
        for method in (m.FUSED, m.SHARED, m.HIERARCHICAL):
            with pytest.raises(ValueError, match="PFFTJAX_SHARED_MEMORY=0 forbids that; take"):
                PencilFFT((4, 4, 4), grids()[0], method=method)
        # As if the ranks were on several nodes, which only shows when they run.
        for module in ("pencils._transpose", "fft._plan"):
            monkeypatch.setattr(f"pfftjax.{module}.checked_method", lambda method, *_: method)
        plan = PencilFFT((4, 4, 4), grids()[0], method=ExchangeMethod.FUSED)
        shared = dataclasses.replace(plan, method=ExchangeMethod.SHARED)
        x = jnp.ones(plan.input.local_shape)
        moved = functools.partial(pfftjax.transpose, x, plan.input, plan.input.swapped(1, 2))
        for function in (plan.forward, shared.forward, lambda _: moved(method=shared.method)):
            with pytest.raises(Exception, match=r"and these do not share any, .*; take Exchange"):
                jax.block_until_ready(function(x))
            pc.recover()
    elif SIZE > 1:
        PencilFFT((4, 4, 4), grids()[0], method=ExchangeMethod.FUSED)
    else:
        PencilFFT((4, 4, 4), grids()[0], method=ExchangeMethod.SHARED)

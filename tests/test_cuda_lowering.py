"""What GPUs are given to run, on a machine without one.

Programs are exported for CUDA, and must not call what only CPUs have. Handlers for GPUs have the
names of those for CPUs, and so these programs run here too: what they give must be what the
programs for CPUs give.
"""

import dataclasses
import functools
import re
from types import SimpleNamespace

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import export

import pfftjax
from pfftjax import ExchangeMethod, ExchangePrecision, PencilFFT
from pfftjax import collectives as pc
from pfftjax._runtime import primitive
from pfftjax._runtime.ffi import native
from pfftjax.pencils.internal import block
from pfftjax.pm import _exchange, _painting
from pfftjax.pm._assignment import Assignment
from tests import gpu_programs as programs
from tests.distributed import grids
from tests.helpers import CONTROL, RANK, SIZE, assert_close, random
from tests.pm import painting_by_xla as by_xla
from tests.pm.universe import at_home

pytestmark = [
    pytest.mark.mpi,
    pytest.mark.skipif(SIZE > 2, reason="the programs of two ranks are those of more"),
]

# Handlers that run on XLA's threads, and have no counterpart on GPUs.
ON_CPUS_ONLY = {
    "fft",
    "permute",
    "order_by_owner",
    "order_by_rank",
    *("paint_fours", "readout_fours"),
    *("fft_alone", "gradient_alone", "divergence_alone"),
    *("fft_across", "gradient_across", "divergence_across"),
}
CHECKS = [
    export.DisabledSafetyCheck.platform(),
    *(
        export.DisabledSafetyCheck.custom_call(name)
        for name in (*native.registrations(), *native.device_registrations())
    ),
]


def for_cuda(function, *operands, platforms=("cuda",)):
    """The program of a function, exported."""
    return export.export(jax.jit(function), platforms=platforms, disabled_checks=CHECKS)(*operands)


def called(exported):
    """The handlers of ours that a program calls, one name a call."""
    return re.findall(r"custom_call @pfftjax_(\w+)", exported.mlir_module())


def runs_alike(function, *operands, tolerance=1e-12):
    """The handlers that CUDA's program of a function calls; run here, it does what ours does."""
    exported = for_cuda(function, *operands)
    handlers = called(exported)
    assert not ON_CPUS_ONLY & set(handlers)
    expected = jax.jit(function)(*operands)
    assert_close(exported.call(*operands), expected, tolerance)
    return handlers


def test_collectives():
    """The same handlers, in the same order."""
    program, operands = programs.collectives()
    handlers = runs_alike(program, operands)
    assert handlers == called(for_cuda(program, operands, platforms=("cpu",)))
    assert handlers == called(for_cuda(program, operands, platforms=("rocm",)))
    assert len(set(handlers)) >= 17


def test_one_token_runs_through_a_program():
    """Also through a transform that is made of several operations there."""
    plan = PencilFFT((4, 6, 5), grids()[-1])
    x = jnp.ones(plan.input.local_shape, complex)

    def program(x):
        there = jax.lax.fori_loop(0, 2, lambda _, z: plan.inverse(plan.forward(z)) + z, x)
        return jax.lax.cond(there.size > 0, plan.forward, plan.forward, pc.bcast(there, 0))

    if SIZE == 1:
        return  # no exchange
    text = for_cuda(lambda x: plan.forward(pc.bcast(x, 0)), x).mlir_module()
    line = r"(%\w+)[:0-9]* = stablehlo.custom_call @pfftjax_\w+\(%\w+(?:#\d)?, (%\w+)(?:#\d)?\)"
    chain = re.findall(line, text)
    assert len(chain) == 2, text
    assert chain[1][1] == chain[0][0]
    runs_alike(program, x)


def test_the_list_of_a_program_is_that_of_what_it_calls():
    if SIZE == 1:
        return
    plan = PencilFFT((4, 6, 5), grids()[-1])
    x = jnp.ones(plan.input.local_shape, complex)
    text = for_cuda(lambda x: pc.allreduce(plan.forward(x).sum()), x).mlir_module()
    lists = re.findall(r'program = ".{8}\\0A(.*?)"', text)
    assert len(lists) == 1 + (plan.grid.dims[0] not in (1, SIZE))
    assert re.search(r"pencil_transpose complex\w+\[.*\\0Aallreduce complex", lists[0]), lists
    # A rank on CPUs has another list, also where the operations are the same.
    assert all(line.endswith(" on GPUs") for text in lists for line in text.split("\\0A")), lists
    for platform, end in (("cuda", " on GPUs"), ("cpu", "")):
        exported = for_cuda(pc.alltoall, jnp.ones(SIZE), platforms=(platform,))
        assert f'\\0Aalltoall float64[{SIZE}]{end}"' in exported.mlir_module()


def test_programs_for_both():
    plan = PencilFFT((4, 6, 5), grids()[0], real=True)
    x = jnp.asarray(plan.input.local_block(random(plan.shape)))

    def loss(x):
        return pfftjax.norm(plan.inverse(plan.forward(x) ** 2), plan.grid)

    exported = for_cuda(jax.grad(loss), x, platforms=("cpu", "cuda"))
    again = export.deserialize(exported.serialize())
    assert_close(again.call(x), jax.jit(jax.grad(loss))(x))


@pytest.mark.parametrize("real", [True, False])
def test_transforms(real):
    program, operands = programs.transforms(real)
    handlers = runs_alike(program, *operands)
    expected = {"coordinate", "halo_exchange", "halo_reduce", "pencil_transpose"}
    assert set(handlers) == (expected if SIZE > 1 else {"halo_exchange"})


def test_methods_of_one_platform():
    """What is for the other one is refused; and in chunks a program for CUDA begins each exchange
    before the one before is waited for."""
    if SIZE == 1:
        return
    plans = [PencilFFT((4, 6, 5), grid, real=True) for grid in grids()]
    x = [jnp.asarray(plan.input.local_block(random(plan.shape))) for plan in plans]
    fused = dataclasses.replace(plans[0], method=ExchangeMethod.FUSED)
    with pytest.raises(ValueError, match=r"ExchangeMethod.FUSED goes through.* AUTOMATIC"):
        for_cuda(fused.forward, x[0])
    half = dataclasses.replace(plans[0], precision=ExchangePrecision.HALF)
    for method in (ExchangeMethod.AUTOMATIC, ExchangeMethod.PIPELINED):
        rounded = dataclasses.replace(half, method=method)
        with pytest.raises(ValueError, match=r"HALF is for .* take ExchangePrecision\.FULL"):
            for_cuda(rounded.forward, x[0])

    def there_and_back(plans, x):
        spectra = [plan.forward(x) for plan, x in zip(plans, x, strict=True)]
        fields = [plan.inverse(y) for plan, y in zip(plans, spectra, strict=True)]
        slopes = pfftjax.spectral.gradient(spectra[-1], plans[-1], 2.0, from_spectrum=True)
        total = pfftjax.spectral.divergence(slopes, plans[-1], 2.0, to_spectrum=True)
        return spectra, fields, slopes, total

    pipelined = [dataclasses.replace(plan, method=ExchangeMethod.PIPELINED) for plan in plans]
    last = pipelined[-1]
    for function in (last.forward, lambda x: pfftjax.spectral.gradient(x, last, 2.0)):
        with pytest.raises(ValueError, match=r"PIPELINED lets .* are on CPUs; take AUTOMATIC"):
            jax.jit(function).lower(x[-1])
        with pytest.raises(ValueError, match=r"PIPELINED lets .* are on CPUs; take AUTOMATIC"):
            for_cuda(function, x[-1], platforms=("cpu", "cuda"))
    target = pfftjax.Pencil(last.shape, last.grid, (1, 2), (1, 2, 0))
    with pytest.raises(ValueError, match=r"transpose on rank .* take AUTOMATIC"):
        pfftjax.transpose(x[-1], last.input, target, method=ExchangeMethod.PIPELINED)

    exported = for_cuda(functools.partial(there_and_back, pipelined), x)
    # Four planes of axis 0, by rows and columns; on slabs the three coefficients of axis 2. Two
    # arrays of a gradient and of a divergence.
    two, four = "start start wait", "start start wait start wait start wait wait"
    halves = f"{four} {two} start wait wait".split() * 2 + f"{two} wait".split() * 2
    names = [name for name in called(exported) if name != "coordinate"]
    assert names == [f"transpose_{half}" for half in halves]
    chunks = [0, 1, 0, 2, 1, 3, 2, 3, 0, 1, 0, 2, 1, 2] * 2 + [0, 1, 0, 1] * 2
    found = re.findall(r"index = (\d)", exported.mlir_module())
    # The values are checked on the fake device: tests/gpu/test_meshes.py.
    assert [int(i) for i in found] == chunks


@pytest.mark.parametrize(
    ("platform", "text"),
    [
        ("cuda", "the arrays are on a GPU, but this pfftjax was built without CUDA"),
        ("rocm", "the arrays are on a GPU, but this pfftjax was built without HIP"),
        ("tpu", "GPUs of NVIDIA and AMD, not on tpu"),
    ],
)
def test_without_a_module_for_gpus(monkeypatch, platform, text):
    """What a pfftjax that was built without it says to a JAX that has it."""
    monkeypatch.setattr(primitive, "platforms", {"cpu"})
    with pytest.raises(NotImplementedError, match=f"alltoall: .*{text}"):
        jax.jit(pc.alltoall).trace(jnp.ones(SIZE)).lower(lowering_platforms=(platform,))


_VALUE, _SLOPES, _CURVATURES = ((0, 0, 0),), ((1, 0, 0), (0, 1, 1)), ((2, 0, 0), (0, 0, 1))


def _particles(pencil, dtype):
    """(cell, offset, used) of this rank: far from their cells, and in rows after them nonsense."""
    cells, fractions, used = at_home(pencil, 9, seed=3)
    away = np.random.default_rng(4).integers(-50, 50, cells.shape)
    offset = (cells + fractions - away)[RANK].astype(dtype)
    offset[used[RANK] :] = np.nan
    return jnp.asarray(away[RANK], jnp.int32), jnp.asarray(offset), jnp.int32(used[RANK])


@pytest.mark.ranks(2)
def test_painting():
    """XLA's operations beside our own, with derivatives, also on axes where a kernel meets itself
    and on ranks without cells."""
    grid = grids()[-1]
    cases = [
        (pfftjax.Pencil((5, 4, 3), grid), Assignment(2), "float32", _SLOPES),
        (pfftjax.Pencil((1, 7, 2), grid), Assignment(2, shift=1), "float64", _VALUE),
        (pfftjax.Pencil((1, 4, 1), grid), Assignment(3), "float64", _CURVATURES),
        (pfftjax.Pencil((5, 4, 3), grid), Assignment(4, shift=1), "float64", _VALUE),
        (pfftjax.Pencil((3, 4, 5), grid), Assignment(1), "float64", _VALUE),
    ]
    pairs, operands = [], []
    for pencil, assignment, dtype, orders in cases:
        at = _particles(pencil, dtype)
        field = random((2, *assignment.padded(pencil)), dtype, 5)
        params = {"orders": orders, "assignment": assignment, "pencil": pencil}
        for ours, theirs, rest in (
            (_painting.paint_p, by_xla.paint, [random((9, 2, len(orders)), dtype, 6)]),
            (_painting.readout_p, by_xla.readout, [field]),
            (_painting.along_p, by_xla.readout_along, [field, random((9, 3), dtype, 7)]),
            (
                _painting.across_p,
                by_xla.readout_across,
                [field, random((9, 2), dtype, 8)],
            ),
        ):
            # With one point there are no slopes, and with 64 XLA compiles them for long.
            if len(rest) > 1 and assignment.points in (1, 4):
                continue
            if len(rest) > 1:
                params = {**params, "orders": _VALUE}
            pairs.append([functools.partial(f, **params) for f in (ours.bind, theirs)])
            operands.append([*at, *map(jnp.asarray, rest)])
        both = _exchange.order_by_owner_p.bind, _exchange.order_by_owner
        pairs.append([functools.partial(f, pencil=pencil) for f in both])
        operands.append(at)
    for rows, ranks in ((0, 2), (50, 1), (50, 7)):
        both = _exchange.order_by_rank_p.bind, _exchange.order_by_rank
        pairs.append([functools.partial(f, ranks=ranks) for f in both])
        rank = np.random.default_rng(rows + ranks).integers(0, ranks + 1, rows)
        operands.append([jnp.asarray(rank, jnp.int32)])

    @jax.jit
    def results(operands):
        return [[f(*args) for f in both] for both, args in zip(pairs, operands, strict=True)]

    for ours, theirs in results(operands):
        if isinstance(ours, list):
            for a, b in zip(ours, theirs, strict=True):
                np.testing.assert_array_equal(a, b)
        else:
            assert ours.dtype == theirs.dtype
            assert_close(theirs, ours, 1e-5 if ours.dtype == "float32" else 1e-13)


def test_particles_that_are_not_here():
    """No kernel can raise an error: the counts are -1, all of them."""
    pencil = pfftjax.Pencil((2 * SIZE, 4, 3), grids()[-1])
    cell, used = jnp.zeros((3, 3), jnp.int32), jnp.int32(3)
    here = jnp.full((3, 3), 0.5).at[:, 0].add(2 * RANK)
    order = jax.jit(functools.partial(_exchange.order_by_owner, pencil=pencil))
    assert int(order(cell, here, used)[1].sum()) == 3
    for bad in (np.nan, np.inf, 1e300):
        assert np.all(np.asarray(order(cell, here.at[1, 2].set(bad), used)[1]) == -1)
    for count in (-1, 4):
        assert np.all(np.asarray(order(cell, here, jnp.int32(count))[1]) == -1)


@pytest.mark.wrong_types
def test_owners_on_rows_and_columns():
    """More than there are ranks here: XLA's sort communicates with nobody."""
    shape, dims = (5, 7, 3), (2, 3)
    mesh = SimpleNamespace(global_shape=shape, grid=SimpleNamespace(dims=dims, size=6))
    part0, part1 = (
        np.repeat(range(parts), [block(n, parts, part)[1] for part in range(parts)])
        for n, parts in zip(shape, dims, strict=False)
    )
    cells = np.random.default_rng(0).integers(0, shape, (40, 3))
    boxes = np.random.default_rng(1).integers(-2, 3, (40, 3))
    owners = (part0[cells[:, 0]] * 3 + part1[cells[:, 1]])[:30]
    order, counts = jax.jit(functools.partial(_exchange.order_by_owner, pencil=mesh))(
        jnp.asarray(cells, jnp.int32), 0.5 + boxes * shape, jnp.int32(30)
    )
    np.testing.assert_array_equal(order, [*np.argsort(owners, stable=True), *range(30, 40)])
    np.testing.assert_array_equal(counts, np.bincount(owners, minlength=6))


def test_initial_conditions():
    """Exported only: JAX's own random bits are a kernel of GPUs."""
    program, operands = programs.initial_conditions()
    handlers = called(for_cuda(program, *operands))
    assert not ON_CPUS_ONLY & set(handlers)
    assert "allreduce" in handlers


def test_a_step_of_a_simulation_and_its_gradient():
    program, (particles,) = programs.simulation()
    handlers = runs_alike(program, particles)
    if SIZE > 1:
        assert {"alltoallv", "exchange_counts", "coordinate"} <= set(handlers)
        assert not {"move_rows", "return_rows"} & set(handlers)
        assert CONTROL.allreduce(int(particles.used)) == particles.total

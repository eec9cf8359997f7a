"""Non-uniform transforms against sums over all points and modes."""

import dataclasses
import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from pfftjax import Pencil, ProcessGrid
from pfftjax.nufft import PencilNUFFT
from pfftjax.nufft._spreading import (
    _interpolated_by_xla,
    _spread_by_xla,
    interpolate_p,
    order_p,
    spread_p,
)
from pfftjax.pm import Positions
from tests.distributed import alone, gathered, grids, total
from tests.helpers import RANK, SIZE, assert_close, assert_equal, random
from tests.nufft.sums import BOX, Sums, error

pytestmark = [pytest.mark.mpi, pytest.mark.timeout(300)]

# Prime sizes, an axis of one mode, and meshes of fewer planes than ranks.
SHAPES = ((7, 12, 9), (11, 1, 6), (1, 2, 13))


def _both(cases, capacity=None):
    """The transforms of both types of several `Sums`, by one program."""

    @jax.jit
    def run(operands):
        results = []
        for case, (points, strengths, modes) in zip(cases, operands, strict=True):
            rows = len(points) * SIZE if capacity is None else capacity
            at = case.plan.to_owners(points, capacity=rows)
            results.append((case.plan.type1(at, strengths), case.plan.type2(at, modes)))
        return results

    return run([case.operands for case in cases])


def _check(cases, tolerance):
    for case, (modes, values) in zip(cases, _both(cases), strict=True):
        assert modes.shape == case.plan.output.local_shape
        whole = case.plan.output.local_block(case.type1())
        assert error(modes, whole) <= tolerance, case.plan
        assert error(values, case.type2()[RANK]) <= tolerance, case.plan


@pytest.mark.parametrize("tolerance", [1e-2, 1e-4, 1e-6, 1e-9, 1e-12])
def test_against_sums(tolerance):
    cases = [
        Sums.of(PencilNUFFT(shape, grid, tolerance=tolerance, isign=sign, box_size=BOX))
        for shape, sign in zip(SHAPES, (1, -1, 1), strict=True)
        for grid in grids()
    ]
    _check(cases, tolerance)


@pytest.mark.ranks(2)
def test_every_width_of_the_kernel():
    """And a mesh with five cells for four modes, whose kernels are wider."""
    grid = ProcessGrid()
    for tolerance in 10.0 ** -np.arange(1, 14):
        plan = PencilNUFFT(SHAPES[0], grid, tolerance=tolerance, layout="natural")
        assert plan.width == 2 - round(np.log10(tolerance))
        _check([Sums.of(plan)], tolerance)
    for tolerance in (1e-1, 1e-2, 1e-4, 1e-6, 1e-8):
        plan = PencilNUFFT(SHAPES[0], grid, tolerance=tolerance, upsampling=1.25)
        assert max(plan.mesh.global_shape) <= 16
        _check([Sums.of(plan)], tolerance)


@pytest.mark.ranks(2)
@pytest.mark.parametrize("tolerance", [1e-2, 1e-4, 1e-6])
def test_single_precision(tolerance):
    plan = PencilNUFFT(SHAPES[0], ProcessGrid(), tolerance=tolerance, box_size=BOX)
    case = Sums.of(plan, dtype="float32")
    ((modes, values),) = _both([case])
    assert modes.dtype == values.dtype == np.complex64
    # Points of up to two boxes have so many digits behind the point.
    allowed = tolerance + 1e-6
    assert error(modes, plan.output.local_block(case.type1())) <= allowed
    assert error(values, case.type2()[RANK]) <= allowed


@pytest.mark.ranks(1, 3)
def test_many_points_and_several_tiles():
    """More tiles and batches than one on each axis; threads and ranks share them."""
    plan = PencilNUFFT((24, 20, 40), ProcessGrid(), tolerance=1e-8)
    case = Sums.of(plan, rows=3000)
    _check([case], 1e-8)
    wide = dataclasses.replace(case, plan=PencilNUFFT((24, 20, 40), plan.grid, tolerance=1e-13))
    _check([wide], 1e-13)


@pytest.mark.ranks(2, 4)
def test_the_same_on_any_number_of_ranks():
    """As on one rank that has all points."""
    plan, serial = (PencilNUFFT(SHAPES[0], g, tolerance=1e-5) for g in (ProcessGrid(), alone()))
    case = Sums.of(plan)
    ((modes, values),) = _both([case])
    c, f = case.strengths.reshape(-1), serial.output.local_block(case.modes)
    expected = serial.type1(case.x.reshape(-1, 3), c), serial.type2(case.x.reshape(-1, 3), f)
    whole = gathered(modes, plan.output)
    assert_close(whole, gathered(expected[0], serial.output), 1e-13)
    assert_close(values, expected[1].reshape(SIZE, -1)[RANK], 1e-13)


@pytest.mark.ranks(1, 3)
def test_points_at_their_owners_and_positions():
    """Points that have been sent need no way back, and positions in cells mean the same points."""
    plan = PencilNUFFT(SHAPES[0], ProcessGrid(), tolerance=1e-9, box_size=BOX)
    case = Sums.of(plan)
    x, c, f = case.operands
    rows = len(x) * SIZE

    @jax.jit
    def run(x, c, f):
        sent = plan.to_owners(x, capacity=rows)
        return sent.positions, sent.send(c), plan.type1(sent, c), sent

    positions, strengths, expected, sent = run(x, c, f)
    # In units of cells of the modes' mesh, some boxes away.
    ratio = np.array(plan.shape) / np.array(plan.mesh.global_shape)
    whole = np.floor(positions.offset * ratio).astype("int32")
    offset = positions.offset * ratio - whole
    at = Positions(whole + 3 * np.int32(plan.shape), offset, positions.used)

    @jax.jit
    def again(at, strengths, f):
        here = plan.at_owners(at)
        return plan.type1(here, strengths), plan.type2(here, f)

    modes, values = again(at, strengths, f)
    assert error(modes, np.asarray(expected)) <= 1e-12
    assert np.all(np.asarray(values)[int(positions.used) :] == 0)
    assert error(sent.send_back(values), case.type2()[RANK]) <= 1e-9


@pytest.mark.ranks(2)
def test_components_and_batches():
    plan = PencilNUFFT(SHAPES[0], ProcessGrid(), tolerance=1e-3)
    case = Sums.of(plan)
    x, c, f = case.operands
    at = plan.to_owners(x, capacity=len(x) * SIZE)
    strengths = jnp.stack([c, 2 * c, c.real], axis=1)
    modes = jnp.stack([f, f.real, 1j * f])
    one1 = [plan.type1(at, strengths[:, i]) for i in range(3)]
    one2 = [plan.type2(at, modes[i]) for i in range(3)]
    assert_equal(plan.type1(at, strengths), jnp.stack(one1))
    assert_equal(plan.type2(at, modes), jnp.stack(one2, axis=1))
    assert_equal(jax.vmap(lambda c: plan.type1(at, c), 1)(strengths), jnp.stack(one1))
    pair = jax.vmap(lambda c: plan.type1(at, c), 2, 1)(jnp.stack([strengths, strengths], axis=2))
    assert_equal(pair[:, 1], jnp.stack(one1))
    assert_equal(jax.vmap(lambda f: plan.type2(at, f))(modes), jnp.stack(one2))
    moved = jnp.stack([x, x + 0.125])
    several = jax.vmap(lambda x: plan.type2(x, f, capacity=len(x) * SIZE))(moved)
    assert_equal(several[0], one2[0])
    assert_equal(jax.vmap(lambda x: plan.type1(x, c, capacity=len(x) * SIZE))(moved)[0], one1[0])


def test_each_type_is_the_adjoint_of_the_other():
    cases = [
        Sums.of(PencilNUFFT(shape, grid, tolerance=tolerance, isign=sign))
        for shape in SHAPES
        for grid in grids()
        for tolerance, sign in ((1e-2, 1), (1e-7, -1))
    ]
    for case, (modes, values) in zip(cases, _both(cases), strict=True):
        _, c, f = case.operands
        left, right = total(np.conj(modes), f), total(np.conj(c), values)
        assert abs(left - right) <= 1e-13 * abs(left)


@pytest.mark.ranks(1)
def test_modes_at_the_nyquist_frequency_have_one_sign():
    """In an even number of modes, -n / 2 is not n / 2: of a point between mesh points they
    differ."""
    plan = PencilNUFFT((4, 4, 4), alone(), tolerance=1e-10)
    modes = gathered(plan.type1(jnp.full((1, 3), 0.3), jnp.ones(1)), plan.output)
    m = np.fft.fftfreq(4, 1 / 4)
    expected = np.exp(-1j * 0.3 * (m[:, None, None] + m[:, None] + m))
    assert_close(modes, expected, 1e-9)


@pytest.mark.ranks(1)
def test_what_runs_on_other_platforms_has_more_points_than_32_bits_count():
    mesh, values = Pencil((1300, 1300, 1300), alone()), jnp.ones((2, 1), "complex64")
    cell, order = jnp.ones((2, 3), jnp.int32), jnp.arange(2, dtype=jnp.int32)
    points = cell, jnp.full((2, 3), 0.5, "float32"), jnp.int32(2), order
    kernel = {"pencil": mesh, "width": 4, "sigma": 2.0}
    spread = jax.eval_shape(lambda v: _spread_by_xla(*points, v, **kernel), values)
    assert math.prod(spread.shape) > 2**31
    read = jax.eval_shape(lambda m: _interpolated_by_xla(*points, m, **kernel), spread)
    assert read.shape == values.shape


@pytest.mark.ranks(1, 2)
@pytest.mark.parametrize("width", [2, 5, 12])
def test_what_runs_on_other_platforms_is_the_same(width):
    """The programs for platforms without a handler, here on this one."""
    plan = PencilNUFFT((6, 9, 4), ProcessGrid(), tolerance=1e-3)
    mesh = plan.mesh
    rows, used = 30, 25
    rng = np.random.default_rng(RANK)
    low, high = (np.array([mesh.range_of(a)[i] for a in range(3)]) for i in (0, 1))
    cell = jnp.asarray(low + rng.integers(0, high, (rows, 3)), jnp.int32)
    offset = jnp.asarray(rng.uniform(0, 1, (rows, 3)))
    values = jnp.asarray(random((rows, 2), "complex128"))
    kernel = {"pencil": mesh, "width": width, "sigma": 2.0}
    order = order_p.bind(cell, offset, jnp.int32(used), pencil=mesh, width=width)
    assert sorted(np.asarray(order)) == list(range(rows))
    operands = cell, offset, jnp.int32(used), order
    padded = spread_p.bind(*operands, values, **kernel)
    assert_close(_spread_by_xla(*operands, values, **kernel), padded, 1e-14)
    block = jnp.asarray(random(padded.shape, "complex128"))
    read = interpolate_p.bind(*operands, block, **kernel)
    assert_close(_interpolated_by_xla(*operands, block, **kernel), read, 1e-14)
    # A point that is elsewhere shows.
    lost = cell.at[3, 0].set(-1) if SIZE > 1 else cell
    offset = offset if SIZE > 1 else offset.at[3, 0].set(jnp.nan)
    if plan.grid.dims[0] > 1 or SIZE == 1:
        elsewhere = (lost, offset, *operands[2:])
        is_here = SIZE > 1 and plan.grid.coords[0] == plan.grid.dims[0] - 1
        assert is_here or np.all(np.isnan(_spread_by_xla(*elsewhere, values, **kernel)))

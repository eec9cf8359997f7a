"""Two meshes half a cell apart, against numpy, and what is left of aliases."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pfftjax import PencilFFT
from pfftjax.pm import (
    Positions,
    Route,
    density_contrast,
    paint_interlaced,
    power_spectrum,
)
from tests.distributed import assert_block, grids, total
from tests.helpers import CONTROL, RANK, drawn, random
from tests.pm.universe import at_home, painted, small_noise, small_plan, small_start

pytestmark = [pytest.mark.mpi, pytest.mark.timeout(300), pytest.mark.ranks(1, 2)]

KERNELS = ("ngp", "cic", "tsc", "pcs")


def _interlaced(u, values, shape, kernel):
    """u (..., 3) in cells, values (..., components) -> (components, *shape)"""
    plain, moved = (
        np.fft.rfftn(painted(u + by, values, shape, kernel), axes=(1, 2, 3)) for by in (0, 0.5)
    )
    numbers = [np.fft.fftfreq(n, 1 / n) for n in shape]
    numbers[2] = np.abs(numbers[2][: shape[2] // 2 + 1])
    waves = np.meshgrid(*numbers, indexing="ij")
    phase = sum(np.pi * m / n for m, n in zip(waves, shape, strict=True))
    is_nyquist = np.any([2 * np.abs(m) == n for m, n in zip(waves, shape, strict=True)], axis=0)
    mean = (plain + np.exp(1j * phase) * moved) / 2
    return np.fft.irfftn(np.where(is_nyquist, plain, mean), shape, (1, 2, 3))


def _draw(data):
    shape, grid = (
        data.draw(st.tuples(*[st.integers(1, 9)] * 3)),
        data.draw(st.sampled_from(grids())),
    )
    return PencilFFT(shape, grid, real=True), data.draw(st.sampled_from(KERNELS))


@drawn(2)
@given(data=st.data())
def test_against_numpy(data):
    """Also axes of length 1, where a kernel meets itself, and fewer planes than ranks."""
    cases = [_draw(data) for _ in range(6)]
    particles, operands = [], []
    for plan, _ in cases:
        cells, fractions, used = at_home(plan.input, 9, data.draw(st.integers(0, 99)))
        values = random((*cells.shape[:2], 2), seed=1)
        values *= (np.arange(9) < used[:, None])[..., None]
        particles.append((cells + fractions, values))
        at = Positions(*map(jnp.asarray, (cells[RANK], fractions[RANK], used[RANK])))
        operands.append((at, jnp.asarray(values[RANK])))

    @jax.jit
    def actual(operands):
        return [
            paint_interlaced(at, plan, values=values, kernel=kernel)
            for (plan, kernel), (at, values) in zip(cases, operands, strict=True)
        ]

    for (plan, kernel), (u, values), field in zip(cases, particles, actual(operands), strict=True):
        assert_block(field, _interlaced(u, values, plan.shape, kernel), plan.input, 1e-13)
        mass = CONTROL.allreduce(float(jnp.sum(field)))
        assert abs(mass - values.sum()) <= 1e-12 * max(np.abs(values).sum(), 1)


def _scattered(plan, count):
    """This rank's share of so many particles at random, wherever they are."""
    u = np.random.default_rng(4).random((count, 3)) * plan.shape
    return np.array_split(u, plan.grid.size)[RANK]


def _to_mesh(mine, plan, count):
    route = Route.to_owners(
        Positions(jnp.zeros(mine.shape, jnp.int32), mine, jnp.int32(len(mine))), plan.input, count
    )
    offset = route.send(mine)
    return Positions(jnp.zeros(offset.shape, jnp.int32), offset, route.count)


@pytest.mark.parametrize("kernel", ["tsc", "pcs"])
def test_spectra_are_right_up_to_nine_tenths_of_nyquist(kernel):
    """The particles are at random, and their spectrum is as high where aliases come from as below.
    A mesh four times as fine says what is right; without interlacing the error is far beyond the
    bound.
    """
    n, count = 16, 4000
    coarse, fine = (PencilFFT((m,) * 3, grids()[-1], real=True) for m in (n, 4 * n))
    mine = _scattered(coarse, count)

    @jax.jit
    def spectra(mine):
        results = []
        for plan, scale, by in ((fine, 4, "tsc"), (coarse, 1, kernel)):
            field = paint_interlaced(_to_mesh(scale * mine, plan, count), plan, kernel=by)
            results.append(power_spectrum(field, plan, float(n), kernel=by))
        return results

    exact, found = spectra(jnp.asarray(mine))
    nyquist = np.pi
    right = np.asarray(found.k) <= 0.9 * nyquist
    mean = np.asarray(exact.power)[: right.size] * 64**2  # of counts in cells 64 times as small
    error = np.abs(np.asarray(found.power) / mean - 1)[right]
    assert right.sum() >= 6
    assert error.max() < (0.01 if kernel == "pcs" else 0.03), error


def test_derivatives():
    """In positions and in values, against differences."""
    plan = PencilFFT((4, 5, 6), grids()[-1], real=True)
    cells, fractions, used = at_home(plan.input, 5, seed=5, smooth=True)
    weights = plan.input.local_block(random(plan.shape, seed=2))
    values, way = random(fractions.shape[:2], seed=3), random(fractions.shape, seed=4)

    def loss(offset, values):
        at = Positions(cells[RANK], offset, used[RANK])
        field = paint_interlaced(at, plan, values=values, kernel="tsc")
        return jnp.sum(weights * field**2)

    @jax.jit
    def both(offset, values):
        return loss(offset, values), jax.grad(loss, argnums=(0, 1))(offset, values)

    step = 1e-5
    ends = [
        both(fractions[RANK] + s * step * way[RANK], values[RANK] * (1 + s * step))[0]
        for s in (1, -1)
    ]
    by_offset, by_values = both(fractions[RANK], values[RANK])[1]
    along = total(by_offset, way[RANK]).real + total(by_values, values[RANK]).real
    rate = total(ends[0] - ends[1], 1.0).real / (2 * step)
    assert abs(along - rate) < 1e-7 * abs(rate)


def test_the_contrast_of_particles():
    """`density_contrast` is this of particles anywhere, and has mean zero."""
    plan = small_plan(grids()[-1])
    noise = small_noise(plan)

    @jax.jit
    def both(noise):
        particles = small_start(noise, 0.26, plan)
        contrast = density_contrast(particles, plan, kernel="pcs", interlaced=True)
        route = Route.to_owners(particles.positions, plan.input, particles.total)
        at = Positions(route.send(particles.cell), route.send(particles.offset), route.count)
        return contrast, paint_interlaced(at, plan, kernel="pcs")

    contrast, counts = both(noise)
    np.testing.assert_allclose(contrast, counts - 1, atol=1e-13)
    assert abs(total(contrast, 1.0)) < 1e-10


@pytest.mark.wrong_types
def test_what_is_refused():
    plan = PencilFFT((4, 4, 4), grids()[0], real=True)
    at = np.zeros((1, 3)) + plan.input.start
    with pytest.raises(ValueError, match=r"paint_interlaced.* must be a PencilFFT"):
        paint_interlaced(at, PencilFFT((4, 4, 4), grids()[0]))
    with pytest.raises(ValueError, match=r"paint_interlaced.* kernel must be one of ngp"):
        paint_interlaced(at, plan, kernel="pqs")
    with pytest.raises(ValueError, match=r"paint_interlaced.* values must be \(1,\)"):
        paint_interlaced(at, plan, values=np.zeros(3))

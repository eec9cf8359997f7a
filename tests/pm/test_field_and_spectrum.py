"""Gaussian fields and power spectra, against numpy on the whole mesh and against each other."""

import itertools

import jax
import jax.numpy as jnp
import jax_cosmo
import numpy as np
import pytest

from pfftjax import PencilFFT, vdot
from pfftjax.pm import eisenstein_hu, linear_field, power_spectrum, tabulated, white_noise
from tests.distributed import assert_block, grids, total
from tests.helpers import CONTROL, on_one_rank, random
from tests.pm.universe import cosmology, table

pytestmark = [pytest.mark.mpi, pytest.mark.timeout(300), pytest.mark.ranks(1, 2)]


def _wavenumbers(shape, box):
    """|k| of the modes that rfftn has, and how often each of them is in the whole spectrum."""
    k = [2 * np.pi * np.fft.fftfreq(n, side / n) for n, side in zip(shape, box, strict=True)]
    k[2] = np.abs(k[2][: shape[2] // 2 + 1])
    weights = np.full(len(k[2]), 2)
    weights[0] = 1
    if shape[2] % 2 == 0:
        weights[-1] = 1
    k = np.sqrt(sum(c**2 for c in np.meshgrid(*k, indexing="ij")))
    return k, np.broadcast_to(weights, k.shape)


def _binned(values, shape, box, shells):
    """Means over shells of width k_f around k_f, 2 k_f, ..., and the numbers of modes."""
    k, weights = _wavenumbers(shape, box)
    fundamental = 2 * np.pi / max(box)
    edges = (np.arange(shells + 1) + 0.5) * fundamental
    result = []
    for low, high in itertools.pairwise(edges):
        inside = (k >= low) & (k < high)
        n = weights[inside].sum()
        result.append((n, *((weights * v)[inside].sum() / max(n, 1) for v in (k, values))))
    modes, k, mean = np.array(result).T
    return modes.astype(int), k, mean


def _smooth(k):
    """A power spectrum by a formula."""
    return 1e3 * k / (1 + (k / 0.3) ** 3)


def test_linear_field_against_numpy():
    """Each mode has its amplitude: on all grids, in boxes with three different sides."""
    shape, box = (6, 5, 8), (60.0, 80.0, 30.0)
    k, _ = _wavenumbers(shape, box)
    whole = random(shape)
    cells = np.prod(shape) / np.prod(box)
    amplitude = np.sqrt(cells * _smooth(np.where(k == 0, 1, k))) * (k != 0)
    expected = np.fft.irfftn(amplitude * np.fft.rfftn(whole), shape, (0, 1, 2))
    plans = [PencilFFT(shape, grid, real=True) for grid in grids()]

    @jax.jit
    def fields(blocks):
        results = []
        for plan, noise in zip(plans, blocks, strict=True):
            single = linear_field(noise.astype("float32"), plan, box, _smooth)

            def field(amplitude, noise=noise, plan=plan):
                return linear_field(noise, plan, box, lambda k: amplitude**2 * _smooth(k))

            results.append((*jax.jvp(field, (1.0,), (1.0,)), single))
        return results

    blocks = [jnp.asarray(plan.input.local_block(whole)) for plan in plans]
    for plan, (field, slope, single) in zip(plans, fields(blocks), strict=True):
        assert_block(field, expected, plan.input, 1e-13)
        # Proportional to the root of the power, without NaN at k = 0.
        assert_block(slope, expected, plan.input, 1e-13)
        assert single.dtype == "float32"
        assert_block(single, expected, plan.input, 1e-5)


@pytest.mark.parametrize(
    ("shape", "box"),
    [
        ((8, 8, 8), (100.0,) * 3),
        ((9, 5, 7), (90.0, 50.0, 70.0)),
        ((6, 8, 5), (70.0, 100.0, 30.0)),
    ],
    ids=str,
)
def test_power_spectrum_against_numpy(shape, box):
    """Auto and cross, even and odd sizes, cubes and other boxes."""
    plans = [PencilFFT(shape, grid, real=True) for grid in grids()]
    X, Y = (random(shape, seed=s) for s in (1, 2))
    side = box if len(set(box)) > 1 else box[0]

    @jax.jit
    def spectra(blocks):
        results = []
        for plan, (x, y) in zip(plans, blocks, strict=True):
            auto = power_spectrum(x, plan, side, kernel="tsc")
            cross = power_spectrum(x, plan, side, other=y, kernel="cic", other_kernel="tsc")
            results.append((auto, cross, power_spectrum(x.astype("float32"), plan, side)))
        return results

    x, y = np.fft.rfftn(X), np.fft.rfftn(Y)
    sinc = 1
    for axis, n in enumerate(shape):
        w = np.fft.fftfreq(n)[: x.shape[axis]]
        sinc = sinc * np.sinc(w).reshape([-1 if a == axis else 1 for a in range(3)])
    auto, cross = np.abs(x) ** 2, (x * y.conj()).real
    # As often as each field has been smoothed, and the points of its kernel.
    expected = auto / sinc**6, cross / sinc**5, auto
    unit = np.prod(box) / np.prod(shape) ** 2
    for result in spectra([[p.input.local_block(a) for a in (X, Y)] for p in plans]):
        for actual, square, eps in zip(result, expected, (1e-12, 1e-12, 1e-5), strict=True):
            modes, mean_k, power = _binned(square * unit, shape, box, len(actual.modes))
            np.testing.assert_array_equal(actual.modes, modes)
            np.testing.assert_allclose(actual.k, mean_k, rtol=eps)
            np.testing.assert_allclose(
                actual.power, power, rtol=eps, atol=eps * np.abs(power).max()
            )
        assert result[2].power.dtype == "float32"
        assert len(set(CONTROL.allgather(np.asarray(result[1].power).tobytes()))) == 1


def test_shells_end_at_the_nyquist_frequency():
    """For any size: the last shell has modes along the axes."""
    sizes = range(3, 14)
    plans = [PencilFFT((n, n, n), grids()[0], real=True) for n in sizes]
    results = jax.eval_shape(
        lambda: [power_spectrum(jnp.zeros(p.input.local_shape), p, 1.0) for p in plans]
    )
    assert [len(r.modes) for r in results] == [n // 2 for n in sizes]


def test_a_field_has_the_spectrum_that_it_is_made_of():
    """Within its sample variance: sums of as many squares as there are pairs of modes."""
    n, side = 32, 200.0
    shape, box = (n, n, n), (side,) * 3
    plan = PencilFFT(shape, grids()[0], real=True)

    @jax.jit
    def measured():
        power = tabulated(*table())
        results = []
        for key in (0, 1):
            delta = linear_field(white_noise(jax.random.key(key), plan.input), plan, side, power)
            results.append(power_spectrum(delta, plan, side))
        return results

    k, _ = _wavenumbers(shape, box)
    expected = np.exp(np.interp(np.log(np.where(k == 0, 1, k)), *np.log(table())))
    for result in measured():
        modes, mean_k, power = _binned(expected, shape, box, n // 2)
        np.testing.assert_array_equal(result.modes, modes)
        np.testing.assert_allclose(result.k, mean_k, rtol=1e-12)
        # Both of a conjugate pair are one complex mode: the variance of P is P^2 / pairs.
        sigmas = (result.power / power - 1) * np.sqrt(modes / 2)
        assert np.abs(sigmas).max() < 4
        assert 0.4 < np.mean(sigmas**2) < 2


@on_one_rank
def test_tabulated():
    k, power = table()

    @jax.jit
    def everything(power):
        function = tabulated(k, power)
        slopes = jax.jvp(lambda p: tabulated(k, p)(k), (power,), (power,))[1]
        ends = np.array([k[0] / 10, k[-1] * 10])
        middle = np.sqrt(k[1:] * k[:-1])
        return function(k), function(middle), function(ends), slopes

    nodes, middles, ends, slopes = everything(power)
    np.testing.assert_allclose(nodes, power, rtol=1e-12)
    np.testing.assert_allclose(middles, np.sqrt(power[1:] * power[:-1]), rtol=1e-12)
    slope = np.diff(np.log(power)) / np.diff(np.log(k))
    expected = power[[0, -1]] * np.array([0.1, 10]) ** slope[[0, -1]]
    np.testing.assert_allclose(ends, expected, rtol=1e-11)
    np.testing.assert_allclose(slopes, power, rtol=1e-12)
    for bad in ((k, power[1:]), (k[:1], power[:1])):
        with pytest.raises(ValueError, match="tabulated: k and power must be vectors of one"):
            tabulated(*bad)
    for bad in (k[::-1], np.repeat(k[:2], 2)):
        with pytest.raises(ValueError, match="tabulated: k must rise"):
            tabulated(bad, power[: len(bad)])
        with pytest.raises(ValueError, match="tabulated: k must rise"):
            jax.jit(lambda p, bad=bad: tabulated(bad, p)(1.0))(power[: len(bad)])
    for bad in ((k - k[0], power), (k, power - power[3])):
        with pytest.raises(ValueError, match="tabulated: k and power must be positive"):
            tabulated(*bad)


def _sigma8(k, power):
    """The variance in spheres of 8 Mpc/h, the definition of the amplitude."""
    x = 8 * k
    window = 3 * (np.sin(x) - x * np.cos(x)) / x**3
    return np.sqrt(np.trapezoid(k**3 * power * window**2, np.log(k)) / (2 * np.pi**2))


@on_one_rank
def test_the_amplitude_of_the_table_and_of_eisenstein_hu():
    assert abs(_sigma8(*table()) / 0.821752 - 1) < 1e-3
    k = np.geomspace(1e-4, 1e2, 3000)

    @jax.jit
    def both():
        exact = jax_cosmo.power.linear_matter_power(cosmology(), k)
        return eisenstein_hu(cosmology())(k), exact

    power, exact = both()
    assert abs(_sigma8(k, np.asarray(power)) / 0.821752 - 1) < 3e-5
    # jax-cosmo leaves k < 0.018 out of the integral by which it normalises: 0.17%.
    np.testing.assert_allclose(power, exact, rtol=5e-3)
    # CAMB, of which the fit is one.
    at, camb = table()
    inside = (at > 1e-3) & (at < 1)
    ratio = np.interp(at[inside], k, power) / camb[inside]
    assert 0.96 < ratio.min()
    assert ratio.max() < 1.06


@on_one_rank
def test_eisenstein_hu_is_differentiable():
    """In all of the cosmology that it depends on, against differences."""
    names = ("Omega_c", "Omega_b", "h", "n_s", "sigma8")
    centre = np.array([0.26, 0.049, 0.68, 0.97, 0.82])
    k = np.geomspace(1e-3, 1, 20)
    weight = np.random.default_rng(0).standard_normal(k.shape)

    def loss(x):
        power = eisenstein_hu(cosmology(**dict(zip(names, x, strict=True))))
        return jnp.sum(weight * jnp.log(power(k)))

    # Forward mode, which compiles in half the time.
    both = jax.jit(lambda x, t: jax.jvp(loss, (x,), (t,)))
    for name, unit in zip(names, np.eye(5), strict=True):
        step = 1e-4 * unit * centre
        difference = both(centre + step, unit)[0] - both(centre - step, unit)[0]
        slope = difference / (2 * step.sum())
        assert abs(both(centre, unit)[1] / slope - 1) < 1e-3, name


def test_whole_numbers():
    """Counts of particles, say: no factor is rounded to their dtype, nor is the other field."""
    plan = PencilFFT((4, 5, 6), grids()[0], real=True)
    counts = plan.input.local_block(random((4, 5, 6), "int32"))
    numbers = counts.astype(float)
    half = 0.5 * numbers

    @jax.jit
    def everything(counts, numbers, half):
        return [
            (
                linear_field(x, plan, 9.0, _smooth),
                power_spectrum(x, plan, 9.0).power,
                power_spectrum(x, plan, 9.0, other=half).power,
            )
            for x in (counts, numbers)
        ]

    of_integers, of_numbers = everything(counts, numbers, half)
    for a, b in zip(of_integers, of_numbers, strict=True):
        np.testing.assert_array_equal(a, b)
    np.testing.assert_allclose(of_integers[2], 0.5 * of_integers[1], rtol=1e-12)
    # A power that is the same for all modes may be a Python number.
    flat, ones = (
        jax.jit(lambda x, p=p: linear_field(x, plan, 9.0, p))(numbers)
        for p in (lambda _: 2.0, lambda k: 2.0 + 0 * k)
    )
    np.testing.assert_array_equal(flat, ones)


@pytest.mark.wrong_types
def test_what_is_refused():
    grid = grids()[0]
    plan = PencilFFT((4, 5, 6), grid, real=True)

    def traced(function, shape, plan, *args, **options):
        jax.eval_shape(lambda: function(jnp.zeros(shape), plan, 1.0, *args, **options))

    block = plan.input.local_shape
    for function, args in ((linear_field, (_smooth,)), (power_spectrum, ())):
        for bad in (
            PencilFFT((4, 5, 6), grid),
            PencilFFT((4, 5, 6), grid, real=True, norm="ortho"),
        ):
            with pytest.raises(
                ValueError, match=f"{function.__name__}: the plan must be a Pencil"
            ):
                traced(function, block, bad, *args)
        with pytest.raises(ValueError, match="shape"):
            traced(function, (9, 9, 9), plan, *args)
        with pytest.raises(TypeError, match=f"{function.__name__} on rank .* complex128"):
            function(jnp.zeros(block, complex), plan, 1.0, *args)
        with pytest.raises(ValueError, match=f"{function.__name__} on rank .*: box_size must be"):
            function(jnp.zeros(block), plan, np.float32(-1), *args)
    with pytest.raises(ValueError, match="tabulated: k and power must be vectors of one"):
        tabulated([[1.0, 2.0]] * 2, [[1.0, 2.0]] * 2)
    field = jnp.zeros(block)
    with pytest.raises(ValueError, match="kernel must be one of ngp, cic, tsc, pcs, got 'pqs'"):
        traced(power_spectrum, block, plan, kernel="pqs")
    with pytest.raises(ValueError, match=r"power_spectrum on rank .*: one field at a time"):
        traced(power_spectrum, (2, *block), plan)
    with pytest.raises(TypeError, match=r"power_spectrum on rank .*: the field is complex128"):
        traced(power_spectrum, block, plan, other=field + 0j)
    with pytest.raises(ValueError, match=r"power_spectrum on rank .*: other_kernel is that of"):
        traced(power_spectrum, block, plan, other_kernel="cic")
    with pytest.raises(TypeError, match=r"power_spectrum on rank .*: box_size must be static"):
        jax.eval_shape(lambda side: power_spectrum(field, plan, side), 1.0)
    with pytest.raises(TypeError, match=r"power_spectrum on rank .*: edges must be static"):
        jax.eval_shape(lambda e: power_spectrum(field, plan, 1.0, edges=e), jnp.ones(3))
    for edges in ((1.0,), (0.0, 1.0), (2.0, 1.0), (1.0, float("nan")), 1.0):
        with pytest.raises(ValueError, match=r"power_spectrum on rank .*: edges must be two"):
            traced(power_spectrum, block, plan, edges=edges)
    large = PencilFFT((2048, 2048, 2048), grid, real=True)
    traced(power_spectrum, large.input.local_shape, large, edges=(10.0, 1000.0, 5000.0))
    with pytest.raises(ValueError, match=r"power_spectrum on rank .* some 8\.6e\+09 modes"):
        traced(power_spectrum, large.input.local_shape, large, edges=(10.0, 12600.0))


def test_a_spectrum_that_is_cut_off_has_derivatives():
    plan = PencilFFT((6, 6, 6), grids()[0], real=True)
    noise = white_noise(jax.random.key(0), plan.input)

    @jax.jit
    @jax.grad
    def slope(amplitude):
        def power(k):
            return amplitude * jnp.where(k < 2, 1.0, 0.0)

        return vdot(noise, linear_field(noise, plan, 6.0, power), plan.grid)

    # The field goes with the square root of the amplitude.
    field = linear_field(noise, plan, 6.0, lambda k: jnp.where(k < 2, 1.0, 0.0))
    here = vdot(noise, field, plan.grid)
    assert abs(total(slope(1.0), 1.0) - here / 2) < 1e-12 * abs(here)

"""Growth against exact solutions, Heath's integral and scipy's integrators; derivatives against
differences."""

import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy.integrate import quad, solve_ivp

from pfftjax.pm import _growth, fastpm, growth, hubble
from tests.helpers import on_one_rank
from tests.pm.universe import cosmology

pytestmark = [pytest.mark.timeout(300), on_one_rank]

A = np.array([0.001, 0.01, 0.02, 0.1, 0.3, 0.5, 0.9, 1.0, 1.2])


def _e(a, omega_m, omega_k=0.0, w0=-1.0, wa=0.0):
    """Friedmann's equation, without radiation."""
    dark = a ** (-3 * (1 + w0 + wa)) * np.exp(-3 * wa * (1 - a))
    return np.sqrt(omega_m / a**3 + omega_k / a**2 + (1 - omega_m - omega_k) * dark)


def _heath(a, omega_m, omega_k=0.0):
    """D1 for matter, curvature and a cosmological constant (Heath 1977)."""
    integral = quad(lambda a: (a * _e(a, omega_m, omega_k)) ** -3, 0, a, epsabs=0, epsrel=1e-12)
    return 2.5 * omega_m * _e(a, omega_m, omega_k) * integral[0]


def _solved(a, omega_m, **dark):
    """(D1, D1', D2, D2') by the growth equations as they are usually written."""

    def rates(x, y):
        a, h = np.exp(x), 1e-4
        slope = np.log(_e(np.exp(x + h), omega_m, **dark) / _e(np.exp(x - h), omega_m, **dark))
        friction, source = 2 + slope / (2 * h), 1.5 * omega_m / a**3 / _e(a, omega_m, **dark) ** 2
        d1, d1_rate, d2, d2_rate = y
        return [
            d1_rate,
            -friction * d1_rate + source * d1,
            d2_rate,
            -friction * d2_rate + source * (d2 - d1**2),
        ]

    a0 = 1e-5
    start = [a0, a0, -3 / 7 * a0**2, -6 / 7 * a0**2]
    x = np.log(a)
    options = {"rtol": 1e-10, "atol": 1e-30, "method": "DOP853"}
    return solve_ivp(rates, (np.log(a0), x[-1]), start, t_eval=x, **options).y


def _fields(g):
    return g.d1, g.d1_rate, g.d2, g.d2_rate


def test_einstein_de_sitter():
    flat = {"Omega_c": 0.95, "Omega_b": 0.05}
    g = jax.jit(lambda a: growth(cosmology(**flat), a))(A)
    for actual, expected in (
        (g.scale_factor, A),
        (g.e, A**-1.5),
        (g.d1, A),
        (g.d1_rate, A),
        (g.d2, -3 / 7 * A**2),
        (g.d2_rate, -6 / 7 * A**2),
        (g.momentum, A**1.5),
        (g.momentum_rate, 1.5 * A),
    ):
        np.testing.assert_allclose(actual, expected, rtol=1e-12)


UNIVERSES = {
    "flat": {},
    "quintessence": {"w0": -0.9, "wa": 0.2},
    "phantom": {"w0": -1.2, "wa": -0.3},
    "open": {"Omega_k": 0.05},
}


@pytest.mark.parametrize("name", UNIVERSES)
def test_against_integrators(name):
    options = UNIVERSES[name]
    universe = cosmology(**options)
    dark = {key.lower(): value for key, value in options.items()}
    omega_m = float(universe.Omega_m)
    g = jax.jit(lambda a: growth(cosmology(**options), a))(A)
    np.testing.assert_allclose(g.e, _e(A, omega_m, **dark), rtol=1e-7)
    np.testing.assert_allclose(
        jax.jit(lambda a: hubble(cosmology(**options), a))(A), g.e, rtol=1e-12
    )
    for actual, expected in zip(_fields(g), _solved(A, omega_m, **dark), strict=True):
        np.testing.assert_allclose(actual, expected, rtol=3e-6)
    if name in ("flat", "open"):
        expected = [_heath(a, omega_m, **dark) for a in A]
        np.testing.assert_allclose(g.d1, expected, rtol=1e-7)


def test_rates_are_derivatives():
    """Those of D1 and D2, and by the growth equation that of the momentum."""

    @jax.jit
    def both(x):
        def values(x):
            g = growth(cosmology(w0=-0.9, wa=0.1), jnp.exp(x))
            return (g.d1, g.d2, g.momentum), g

        return jax.jvp(values, (x,), (jnp.ones_like(x),), has_aux=True)[1:]

    (d1, d2, momentum), g = both(np.log(A))
    np.testing.assert_allclose(d1, g.d1_rate, rtol=1e-6)
    np.testing.assert_allclose(d2, g.d2_rate, rtol=1e-6)
    np.testing.assert_allclose(A * g.e * momentum, g.momentum_rate, rtol=1e-6)


def test_the_third_order():
    """Against the equations themselves, followed by scipy from matter domination."""
    omega_m, w0 = 0.3, -0.9
    universe = cosmology(Omega_c=omega_m - 0.048975, w0=w0)

    def rates(x, state):
        d1, d2, *d3 = state[::2]
        dark = (1 - omega_m) * np.exp(-3 * w0 * x)
        matter = omega_m / (omega_m + dark)
        drag = 0.5 - 1.5 * w0 * (1 - matter)  # 2 + dln H/dln a
        drives = [d1, d2 - d1**2, d3[0] - 2 * d1**3, d3[1] + 2 * d1 * (d1**2 - d2), -(d1**3)]
        pairs = zip(state[1::2], drives, strict=True)
        return [y for rate, drive in pairs for y in (rate, 1.5 * matter * drive - drag * rate)]

    start = 1e-3
    early = [(1, 1), (-3 / 7, 2), (-1 / 3, 3), (10 / 21, 3), (-1 / 7, 3)]
    initial = [y for c, n in early for y in (c * start**n, n * c * start**n)]
    end = solve_ivp(rates, [np.log(start), 0], initial, rtol=1e-11, atol=1e-20, method="DOP853")
    g = jax.jit(lambda: growth(universe, 1.0, order=3))()
    values = [g.d1, g.d1_rate, g.d2, g.d2_rate]
    values += [y for pair in zip(g.d3, g.d3_rate, strict=True) for y in pair]
    np.testing.assert_allclose(values, end.y[:, -1], rtol=2e-6)
    assert growth(universe, 1.0).d3 is None


def test_derivatives_in_the_cosmology():
    """In both modes, against differences, and against those of Heath's integral."""
    a, x, h = np.array([0.1, 0.5, 1.0]), np.array([0.26, -0.95]), 1e-5

    def values(x):
        return jnp.stack(_fields(growth(cosmology(Omega_c=x[0], w0=x[1]), a)))

    @jax.jit
    def everything(x, weight):
        _, push = jax.linearize(values, x)
        value, pull = jax.vjp(values, x)
        return value, jax.vmap(push)(jnp.eye(2)), pull(weight)[0]

    weight = np.random.default_rng(0).standard_normal((4, 3))
    _, tangents, gradient = everything(x, weight)
    for i, unit in enumerate(np.eye(2)):
        after, before = (everything(x + s * h * unit, weight)[0] for s in (1, -1))
        difference = (after - before) / (2 * h)
        scale = np.abs(difference).max(axis=1, keepdims=True)
        assert np.abs((tangents[i] - difference) / scale).max() < 1e-7
        assert abs(gradient[i] / np.sum(weight * tangents[i]) - 1) < 1e-12
    slope = jax.jit(jax.grad(lambda omega: growth(cosmology(Omega_c=omega), 0.8).d1))(0.26)
    baryons, h = 0.048975, 1e-4
    ends = [_heath(0.8, 0.26 + baryons + s * h) for s in (1, -1)]
    assert abs(slope * 2 * h / (ends[0] - ends[1]) - 1) < 1e-5


def test_second_derivatives():
    """The square of a factor has products of first derivatives among its second ones."""
    x, a = np.array([0.26, -0.95, 0.7]), np.array([0.4, 1.0])

    def squared(x):
        return jnp.sum(growth(cosmology(Omega_c=x[0], w0=x[1]), a * x[2]).d2 ** 2)

    gradient = jax.grad(squared)

    @jax.jit
    def everything(x):
        return gradient(x), jax.jacfwd(gradient)(x), jax.jacrev(gradient)(x)

    _, forward, reverse = everything(x)
    h = 1e-5
    for i, unit in enumerate(np.eye(3)):
        after, before = (everything(x + s * h * unit)[0] for s in (1, -1))
        for found in (forward[:, i], reverse[:, i]):
            np.testing.assert_allclose(found, (after - before) / (2 * h), rtol=1e-6)


def test_derivatives_keep_the_digits_of_float32():
    """In reverse mode, of what simulations take from the growth: by steps in reverse 1e-2 would be
    lost."""
    ends, x = np.linspace(0.1, 1.0, 4), np.array([0.27, 0.05, -0.9])

    def factors(x):
        universe = cosmology(Omega_c=x[0], Omega_k=x[1], w0=x[2])
        steps, start = fastpm(universe, ends), growth(universe, ends[0])
        return jnp.concatenate([steps.kick, steps.drift[:-1], jnp.stack(_fields(start))])

    @jax.jit
    def both(x):
        y, pull = jax.vjp(factors, x)
        return y, jax.vmap(lambda unit: pull(unit)[0])(jnp.eye(len(y), dtype=y.dtype))

    expected = both(x)
    with jax.enable_x64(False):
        actual = both(x.astype(np.float32))
    for ours, theirs, digits in zip(actual, expected, (1e-5, 1e-4), strict=True):
        assert ours.dtype == "float32"
        np.testing.assert_allclose(ours, theirs, rtol=digits)


def test_any_shape_of_scale_factors():
    a = np.full((2, 3), 0.5)
    single, many = jax.jit(lambda: (growth(cosmology(), 0.5), growth(cosmology(), a)))()
    assert single.d1.shape == ()
    for one, all_of_them in zip(_fields(single), _fields(many), strict=True):
        np.testing.assert_allclose(all_of_them, np.full((2, 3), one), rtol=1e-14)


@pytest.mark.parametrize("shape", [(), (3, 2), (1100,)], ids=str)
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_as_on_gpus(dtype, shape):
    """All steps at once, put together in pairs: the same to rounding."""
    a = jnp.asarray(np.geomspace(1e-3, 1.1, math.prod(shape)).reshape(shape), dtype)
    leaves, structure = jax.tree.flatten(cosmology(Omega_k=0.05, w0=-0.9, wa=0.1))
    leaves = [jnp.asarray(leaf, dtype) for leaf in leaves]
    order = 2 if shape == (1100,) else 3
    expected = _growth._integrated((structure, order), leaves, a)
    actual = jax.jit(lambda a: _growth._by_doubling((structure, order), leaves, a))(a)
    assert actual.dtype == expected.dtype
    np.testing.assert_allclose(actual, expected, rtol=1e-5 if dtype == "float32" else 1e-12)

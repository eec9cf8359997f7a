"""Lensing by shells, beside integrals of SciPy."""

import itertools

import jax
import jax.numpy as jnp
import jax_cosmo
import numpy as np
import pytest
import scipy.integrate

from pfftjax.observables import LightCone, Shells, convergence
from pfftjax.pm import comoving_distance, scale_factor_at
from tests.helpers import assert_close
from tests.pm.universe import cosmology

pytestmark = [pytest.mark.mpi, pytest.mark.ranks(1)]

HUBBLE = 2997.92458


def _distance(universe, a):
    """By SciPy, for flat LCDM."""
    omega = float(universe.Omega_m)

    def rate(x):
        return HUBBLE / (x**2 * np.sqrt(omega / x**3 + 1 - omega))

    return scipy.integrate.quad(rate, a, 1, epsabs=0, epsrel=1e-12)[0]


def test_distances_and_their_inverse():
    universe, times = cosmology(), np.array([0.02, 0.1, 0.5, 0.9, 0.999, 1.0])
    expected = [_distance(universe, a) for a in times]
    assert_close(comoving_distance(universe, times), np.array(expected), 1e-10)
    assert_close(scale_factor_at(universe, np.array(expected)), times, 1e-9)

    with pytest.raises(ValueError, match=r"scale_factor_at: distances must be below .* 12000"):
        scale_factor_at(universe, 12000.0)
    assert np.isnan(jax.jit(lambda x: scale_factor_at(universe, x))(12000.0))

    def there_and_back(omega_c):
        return scale_factor_at(cosmology(Omega_c=omega_c), 1500.0)

    slope = jax.grad(there_and_back)(0.26)
    difference = (there_and_back(0.26 + 1e-5) - there_and_back(0.26 - 1e-5)) / 2e-5
    assert abs(slope - difference) < 1e-6 * abs(difference)


def test_second_derivatives_of_the_inverse():
    """In an Einstein-de Sitter universe a = (1 - d / 2D)^2, and in others by differences."""
    flat = cosmology(Omega_c=1 - 0.048975)
    third = jax.grad(jax.grad(jax.grad(lambda d: scale_factor_at(flat, d) ** 2)))
    distance = 1500.0
    expected = -24 / (2 * HUBBLE) ** 3 * (1 - distance / (2 * HUBBLE))
    assert_close(third(distance), expected, 1e-6)

    def slopes(omega_c, distance):
        inverse = lambda *x: scale_factor_at(cosmology(Omega_c=x[0]), x[1])  # noqa: E731
        return jnp.stack(jax.grad(inverse, (0, 1))(omega_c, distance))

    step = jnp.asarray([1e-4, 1.0])
    found = jnp.stack(jax.jacfwd(slopes, (0, 1))(0.26, 1500.0))
    for n, along in enumerate(jnp.diag(step)):
        ends = [slopes(*(jnp.asarray([0.26, 1500.0]) + sign * along)) for sign in (1, -1)]
        assert_close(found[n], (ends[0] - ends[1]) / (2 * step[n]), 1e-5)


@pytest.mark.parametrize("interpolation", ["linear", "nearest"])
def test_convergence_is_the_integral_over_the_shells(interpolation):
    """A density that is the same over each shell but differs from shell to shell, for several
    sources; and the counts that are expected."""
    universe, density = cosmology(), 1e-3
    cone = LightCone(np.linspace(200, 1700, 4), 1, interpolation=interpolation)
    parts = [jax.jit(lambda x: cone.weights(x))(jnp.asarray(x)) for x in (250.0, 950.0, 1300.0)]
    centred = {"linear": [0, 1, 0], "nearest": [0, 1, 0]}[interpolation]
    assert_close(parts[1], np.array(centred, float), 1e-12)

    def part(x, shell):
        if interpolation == "nearest":
            return float(cone.edges[shell] <= x < cone.edges[shell + 1])
        return float(np.interp(x, cone.centres, np.eye(3)[shell]))

    assert_close(parts[2], np.array([part(1300.0, n) for n in range(3)]), 1e-12)
    breaks = sorted({*cone.edges, *cone.centres})

    def integral(f, shell):
        pieces = itertools.pairwise(breaks)
        return sum(scipy.integrate.quad(lambda x: f(x) * part(x, shell), *p)[0] for p in pieces)

    counts = [density * 4 * np.pi / 12 * integral(lambda x: x**2, n) for n in range(3)]
    contrast = np.array([0.3, -0.2, 0.5])
    maps = jnp.asarray(np.repeat(((1 + contrast) * counts)[:, None], 12, axis=1))
    shells = Shells(maps, jnp.asarray(density), cone)
    assert_close(shells.expected(), np.array(counts), 1e-10)
    assert_close(shells.contrast()[:, 3], contrast, 1e-9)

    redshifts, shares = np.array([0.9, 1.5]), np.array([1.0, 3.0])
    table = np.linspace(0.3, 1, 4001)
    distances = np.asarray(comoving_distance(universe, table))[::-1]

    def kernel(x):
        behind = 0.0
        for z, share in zip(redshifts, shares / shares.sum(), strict=True):
            source = _distance(universe, 1 / (1 + z))
            behind += share * max(0.0, 1 - x / source)
        a = np.interp(x, distances, table[::-1])
        return 1.5 * float(universe.Omega_m) / HUBBLE**2 * x * behind / a

    expected = sum(contrast[n] * integral(kernel, n) for n in range(3))
    found = jax.jit(lambda s: convergence(s, universe, redshifts, shares))(shells)
    assert found.shape == (12,)
    np.testing.assert_allclose(found, expected, rtol=1e-6)
    one = convergence(shells, universe, 0.9)
    assert np.all(np.asarray(one) < np.asarray(found))

    def value(omega_c):
        return convergence(shells, cosmology(Omega_c=omega_c), 0.9)[0]

    slope = jax.grad(value)(0.26)
    difference = (value(0.26 + 1e-4) - value(0.26 - 1e-4)) / 2e-4
    assert abs(slope - difference) < 1e-5 * abs(difference)


@pytest.mark.wrong_types
@pytest.mark.ranks(2)
def test_what_is_refused():
    shells = Shells(jnp.ones((2, 12)), jnp.asarray(1.0), LightCone((100.0, 200.0, 300.0), 1))
    curved = jax_cosmo.Cosmology(
        Omega_c=0.26, Omega_b=0.05, h=0.7, n_s=1.0, sigma8=0.8, Omega_k=0.1, w0=-1.0, wa=0.0
    )
    for arguments, text in (
        ((curved, 1.0), "a periodic box has no curvature"),
        ((cosmology(), -1.0), "redshifts of sources must be positive"),
        ((cosmology(), [1.0, 2.0], [1.0]), "with as many weights"),
    ):
        with pytest.raises(ValueError, match=text):
            convergence(shells, *arguments)

"""Multipoles, wedges and cross spectra, against numpy on the whole mesh."""

import itertools
import math
from fractions import Fraction

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import pfftjax
from pfftjax import PencilFFT
from pfftjax.observables import bispectrum, cross_spectrum, power_multipoles, power_wedges
from pfftjax.pm import power_spectrum
from tests.distributed import grids
from tests.helpers import CONTROL, assert_close, random

pytestmark = [pytest.mark.mpi, pytest.mark.timeout(300), pytest.mark.ranks(1, 2)]

POINTS = {None: 0, "cic": 2, "tsc": 3}
# Edges of shells in units of the lowest wavenumber: the third has no modes, and the last one has
# those beyond the shells that are formed by default.
WIDE = np.array([0.3, 2.0, 2.95, 2.98, 20.0])


def modes(shape, box):
    """Wavenumbers (3, *shape) of all modes, in units of the lowest one of the longest side."""
    m = [np.fft.fftfreq(n, side / n) * max(box) for n, side in zip(shape, box, strict=True)]
    m = np.stack(np.meshgrid(*m, indexing="ij"))
    return np.round(m) if len(set(box)) == 1 else m


def power_of(x, y, kernels, shape, box):
    """The cross power of all modes, both of each conjugate pair."""
    smoothed = 1
    for axis, n in enumerate(shape):
        sinc = np.sinc(np.fft.fftfreq(n)).reshape([-1 if a == axis else 1 for a in range(3)])
        smoothed = smoothed * sinc ** sum(POINTS[kernel] for kernel in kernels)
    product = (np.fft.fftn(x) * np.fft.fftn(y).conj()).real
    return product / smoothed * np.prod(box) / np.prod(shape) ** 2


def means(inside, *values):
    """How many modes are inside of each bin, and means there."""
    count = [int(np.sum(x)) for x in inside]
    return count, *([v[x].mean() if x.any() else 0.0 for x in inside] for v in values)


# A mode at a Nyquist frequency has no sign: for oblique lines of sight, axes are odd.
@pytest.mark.parametrize(
    ("shape", "box", "line_of_sight"),
    [
        ((8, 8, 8), (100.0,) * 3, 2),
        ((6, 8, 5), (70.0, 100.0, 30.0), 0),
        ((9, 5, 7), (90.0, 50.0, 70.0), (1.0, -2.0, 0.5)),
    ],
    ids=str,
)
def test_multipoles_against_numpy(shape, box, line_of_sight):
    """Auto and cross; on all grids; P_0 is the power spectrum to the last bit; wide shells."""
    plans = [PencilFFT(shape, grid, real=True) for grid in grids()]
    X, Y = (random(shape, seed=s) for s in (1, 2))
    side = box if len(set(box)) > 1 else box[0]
    names = {"kernel": "cic", "other_kernel": "tsc"}

    @jax.jit
    def measured(blocks):
        return [
            (
                power_multipoles(x, p, side, line_of_sight, kernel="tsc"),
                power_multipoles(x, p, side, line_of_sight, multipoles=(2, 6), other=y, **names),
                power_multipoles(x.astype("float32"), p, side, line_of_sight),
                power_multipoles(x, p, side, line_of_sight, edges=WIDE * 2 * np.pi / max(box)),
                power_spectrum(x, p, side, kernel="tsc"),
            )
            for p, (x, y) in zip(plans, blocks, strict=True)
        ]

    m = modes(shape, box)
    radius = np.sqrt(np.sum(m**2, axis=0))
    n = np.eye(3)[line_of_sight] if isinstance(line_of_sight, int) else np.array(line_of_sight)
    mu = np.tensordot(n / np.linalg.norm(n), m, 1) / np.where(radius > 0, radius, 1)
    for auto, cross, single, wide, plain in measured(
        [[p.input.local_block(a) for a in (X, Y)] for p in plans]
    ):
        np.testing.assert_array_equal(auto.power[0], plain.power)
        np.testing.assert_array_equal(auto.k, plain.k)
        np.testing.assert_array_equal(auto.modes, plain.modes)
        usual = np.arange(len(auto.k) + 1) + 0.5
        for found, power, orders, edges, eps in (
            (auto, power_of(X, X, ("tsc", "tsc"), shape, box), (0, 2, 4), usual, 1e-12),
            (cross, power_of(X, Y, ("cic", "tsc"), shape, box), (2, 6), usual, 1e-12),
            (single, power_of(X, X, (), shape, box), (0, 2, 4), usual, 2e-5),
            (wide, power_of(X, X, (), shape, box), (0, 2, 4), WIDE, 1e-12),
        ):
            inside = [(radius >= a) & (radius < b) for a, b in itertools.pairwise(edges)]
            assert found.power.shape == (len(orders), len(edges) - 1)
            for order, actual in zip(orders, found.power, strict=True):
                polynomial = np.polynomial.Legendre.basis(order)(mu)
                count, k, mean = means(inside, radius, (2 * order + 1) * power * polynomial)
                assert count == found.modes.tolist()
                assert_close(found.k, np.array(k) * 2 * np.pi / max(box), eps)
                assert_close(actual, np.array(mean), eps)
        assert single.power.dtype == "float32"
        assert len(set(CONTROL.allgather(np.asarray(auto.power).tobytes()))) == 1


@pytest.mark.parametrize(
    ("shape", "box", "line_of_sight", "wedges", "edges"),
    [
        ((12, 12, 12), (100.0,) * 3, 1, 5, None),
        ((9, 5, 7), (90.0, 50.0, 70.0), (1.0, 1.0, -1.0), 3, None),
        ((9, 5, 7), (90.0, 50.0, 70.0), 2, 2, WIDE),
    ],
    ids=str,
)
def test_wedges_against_numpy(shape, box, line_of_sight, wedges, edges):
    """In a cube also modes on the edge between two wedges, as mu = 3/5, are where they belong."""
    plans = [PencilFFT(shape, grid, real=True) for grid in grids()]
    X = random(shape)
    side = box if len(set(box)) > 1 else box[0]

    options = {"wedges": wedges, "kernel": "cic"}
    if edges is not None:
        options["edges"] = edges * 2 * np.pi / max(box)

    @jax.jit
    def measured(blocks):
        return [
            power_wedges(x, p, side, line_of_sight, **options)
            for p, x in zip(plans, blocks, strict=True)
        ]

    m = modes(shape, box)
    n = np.eye(3)[line_of_sight] if isinstance(line_of_sight, int) else np.array(line_of_sight)
    along = np.abs(np.tensordot(n / np.linalg.norm(n), m, 1))
    radius = np.sqrt(np.sum(m**2, axis=0))
    wedge = sum(((wedges * along) ** 2 >= (j * radius) ** 2).astype(int) for j in range(1, wedges))
    power = power_of(X, X, ("cic", "cic"), shape, box)
    mu = along / np.where(radius > 0, radius, 1)
    for found in measured([p.input.local_block(X) for p in plans]):
        usual = np.arange(found.k.shape[1] + 1) + 0.5
        inside = [
            (radius >= a) & (radius < b) & (wedge == w)
            for w in range(wedges)
            for a, b in itertools.pairwise(usual if edges is None else edges)
        ]
        count, k, mean_mu, mean = means(inside, radius, mu, power)
        np.testing.assert_array_equal(np.ravel(found.modes), count)
        for actual, expected in (
            (found.k, np.array(k) * 2 * np.pi / max(box)),
            (found.mu, np.array(mean_mu)),
            (found.power, np.array(mean)),
        ):
            assert_close(jnp.ravel(actual), expected, 1e-12)
        assert 0 in count  # such bins are not NaN


@pytest.mark.ranks(2)
@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize(
    ("shape", "ratios"),
    [
        ((16, 12, 10), (1, Fraction(5, 2), Fraction(5, 2))),
        ((12, 8, 6), (1, Fraction(7, 5), Fraction(19, 10))),
        ((12, 12, 12), (1, 1, 1)),
    ],
    ids=str,
)
def test_modes_on_edges_are_in_the_same_shell_in_every_unit(shape, ratios, dtype):
    """Counted in fractions: shells of spectra, wedges, and shells of which the user has the edges.

    `ratios` are those of the longest side to each.
    """
    plan = PencilFFT(shape, grids()[-1], real=True)
    x = plan.input.local_block(random(shape)).astype(dtype)
    numbers = [[round(i) for i in np.fft.fftfreq(n, 1 / n)] for n in shape]
    m = [[i * ratio for i in along] for along, ratio in zip(numbers, ratios, strict=True)]
    every = [(4 * a**2, 4 * (a**2 + b**2 + c**2)) for a, b, c in itertools.product(*m)]

    def between(begin, end):
        """Squares along the first axis, and of the modes, between these wavenumbers."""
        return [(along, square) for along, square in every if begin**2 <= square < end**2]

    for scale in (1.0, 0.1, 3.0):
        box = tuple(scale / float(ratio) for ratio in ratios)
        edges = 2 * np.pi / max(box) * np.arange(1, 4)
        side = box if len(set(box)) > 1 else box[0]

        @jax.jit
        def measured(x, side=side, edges=edges):
            return (
                power_wedges(x, plan, side, 0, wedges=2).modes,
                bispectrum(x, plan, side, triangles="equilateral", edges=edges).k[:, 0],
                power_spectrum(x, plan, side, edges=edges)[::2],
                power_spectrum(x, plan, side, edges=edges.astype("float32")).modes,
            )

        modes, k, (same_k, number), rounded = jax.tree.map(np.asarray, measured(x))
        for shell in range(modes.shape[1]):
            inside = between(2 * shell + 1, 2 * shell + 3)
            assert modes[1, shell] == sum(4 * along >= square for along, square in inside)
            assert modes[0, shell] == sum(4 * along < square for along, square in inside)
        radii = [
            [math.sqrt(square) / 2 for _, square in between(2 * i, 2 * i + 2)] for i in (1, 2)
        ]
        expected = 2 * np.pi / max(box) * np.array([np.mean(x) for x in radii])
        for found in (k, same_k):
            assert_close(found, expected, 1e-6 if dtype == "float32" else 1e-12)
        assert number.tolist() == rounded.tolist() == list(map(len, radii))


def test_cross_spectra_are_three_power_spectra():
    """And say how much of a field is another one: noise of known size is added to it."""
    shape, side = (8, 12, 10), 50.0
    plans = [PencilFFT(shape, grid, real=True) for grid in grids()]
    X, Y = (random(shape, seed=s) for s in (3, 4))
    edges = (0.3, 0.5, 1.0)
    names = {"kernel": "cic", "other_kernel": "tsc", "edges": edges}

    @jax.jit
    def measured(blocks):
        return [
            (
                cross_spectrum(x, y, p, side, **names),
                cross_spectrum(x, 0 * y, p, side),
                power_spectrum(x, p, side, other=y, **names),
                power_spectrum(x, p, side, kernel="cic", edges=edges),
                power_spectrum(y, p, side, kernel="tsc", edges=edges),
            )
            for p, (x, y) in zip(plans, blocks, strict=True)
        ]

    blocks = [[p.input.local_block(a) for a in (X, 3 * X + Y)] for p in plans]
    for both, nothing, cross, first, second in measured(blocks):
        for actual, expected in (
            (both.k, cross.k),
            (both.power, cross.power),
            (both.field_power, first.power),
            (both.other_power, second.power),
        ):
            assert_close(actual, expected, 1e-14)
        np.testing.assert_array_equal(both.modes, cross.modes)
        correlation = cross.power / np.sqrt(first.power * second.power)
        assert_close(both.correlation, correlation, 1e-13)
        assert 0.9 < np.average(correlation, weights=cross.modes) < 0.98  # 3 / sqrt(10)
        assert_close(both.transfer, np.sqrt(first.power / second.power), 1e-13)
        assert not np.any(nothing.correlation)
        assert not np.any(nothing.transfer)


@pytest.mark.ranks(2)
def test_derivatives():
    """In fields and in the line of sight; reverse mode is the adjoint of forward mode."""
    shape, side = (7, 5, 9), 60.0
    plan = PencilFFT(shape, grids()[-1], real=True)
    grid = plan.grid
    X, Y, T = (random(shape, seed=s) for s in range(3))
    x, y, t = (jnp.asarray(plan.input.local_block(a)) for a in (X, Y, T))
    weight = np.random.default_rng(5).standard_normal((3, 2))

    def loss(x, n):
        multipoles = power_multipoles(x, plan, side, n, other=y + x**2).power[:, :2]
        wedges = power_wedges(x, plan, side, 2, wedges=2).power[:, :2]
        cross = cross_spectrum(x, y, plan, side).correlation[:2]
        return jnp.sum(weight * multipoles) + jnp.sum(weight[:2] * wedges) + jnp.sum(cross)

    n, dn = jnp.array([1.0, 0.3, -0.5]), jnp.array([0.2, -0.4, 0.1])

    @jax.jit
    def everything(x, n):
        gradient = pfftjax.grad(loss, argnums=(0, 1), shared="n")(x, n)
        return gradient, pfftjax.jvp(loss, (x, n), (t, dn), shared="n")[1]

    (by_field, by_direction), along = everything(x, n)
    product = pfftjax.vdot(by_field, t, grid) + jnp.sum(by_direction * dn)
    np.testing.assert_allclose(product, along, rtol=1e-11)
    # Only the direction of the line of sight matters.
    assert abs(jnp.sum(by_direction * n)) < 1e-11 * jnp.abs(by_direction).max()
    value, step = jax.jit(loss), 1e-5
    difference = value(x + step * t, n + step * dn) - value(x - step * t, n - step * dn)
    np.testing.assert_allclose(along, difference / (2 * step), rtol=1e-6)


@pytest.mark.ranks(1)
def test_the_line_of_sight_has_any_length():
    plan = PencilFFT((8, 8, 8), grids()[0], real=True)
    x = plan.input.local_block(random(plan.shape, "float32", 1))

    def found(n):
        return power_multipoles(x, plan, 30.0, n).power

    n = np.array([1.0, 2.0, 0.5], "float32")
    expected = found(n)
    for length in (1e-30, 1e20):
        for given in (found(n * np.float32(length)), jax.jit(found)(n * np.float32(length))):
            np.testing.assert_allclose(given, expected, rtol=1e-4, atol=1e-3)


@pytest.mark.ranks(1)
@pytest.mark.parametrize("scale", [1e11, 1e-12])
def test_correlations_of_large_and_small_fields(scale):
    """In float32 the product of two spectra would be infinite, or zero."""
    plan = PencilFFT((8, 8, 8), grids()[0], real=True)
    x = plan.input.local_block(random(plan.shape, "float32", 1))
    y = x + plan.input.local_block(random(plan.shape, "float32", 2)) / 10

    def found(scale):
        cross = cross_spectrum(x * np.float32(scale), y * np.float32(scale), plan, 100.0)
        return cross.correlation, cross.transfer

    for given, expected in zip(found(scale), found(1), strict=True):
        assert given.dtype == jnp.float32
        np.testing.assert_allclose(given, expected, rtol=1e-5)


@pytest.mark.ranks(1)
def test_derivatives_where_a_field_has_no_power():
    plan = PencilFFT((8, 8, 8), grids()[0], real=True)
    y = jnp.asarray(plan.input.local_block(random(plan.shape, "float64", 1)))
    for name in ("correlation", "transfer"):
        for first in (True, False):

            def of(x, name=name, first=first):
                cross = cross_spectrum(*((x, y) if first else (y, x)), plan, 100.0)
                return jnp.sum(getattr(cross, name))

            assert np.isfinite(jax.grad(of)(jnp.zeros_like(y))).all()


@pytest.mark.ranks(2)
def test_under_vmap():
    plan = PencilFFT((6, 6, 6), grids()[0], real=True)
    several = jnp.stack([plan.input.local_block(random((6, 6, 6), seed=s)) for s in range(3)])
    alone = jax.jit(lambda x: power_multipoles(x, plan, 9.0, 1).power)
    together = jax.jit(jax.vmap(lambda x: power_multipoles(x, plan, 9.0, 1).power))(several)
    assert_close(together[1], alone(several[1]), 1e-14)


@pytest.mark.wrong_types
@pytest.mark.ranks(2)
def test_wrong_arguments():
    plan = PencilFFT((6, 6, 6), grids()[0], real=True)
    x = jnp.zeros(plan.input.local_shape)
    for error, text, call in (
        (
            ValueError,
            "multipoles must be even",
            lambda: power_multipoles(x, plan, 1.0, multipoles=(1,)),
        ),
        (
            ValueError,
            "multipoles must be even",
            lambda: power_multipoles(x, plan, 1.0, multipoles=()),
        ),
        (ValueError, "the axis 0, 1 or 2", lambda: power_multipoles(x, plan, 1.0, 3)),
        (ValueError, "not all zero", lambda: power_multipoles(x, plan, 1.0, (0.0, 0.0, 0.0))),
        (ValueError, "three finite numbers", lambda: power_wedges(x, plan, 1.0, (0.0, 1.0))),
        (ValueError, "wedges must be 1 or more", lambda: power_wedges(x, plan, 1.0, wedges=0)),
        (
            ValueError,
            "other_kernel is that of",
            lambda: power_wedges(x, plan, 1.0, other_kernel="cic"),
        ),
        (
            ValueError,
            "cross_spectrum.*kernel",
            lambda: cross_spectrum(x, x, plan, 1.0, kernel="spline"),
        ),
        (
            TypeError,
            "box_size must be static",
            lambda: jax.jit(lambda b: cross_spectrum(x, x, plan, b))(1.0),
        ),
        (ValueError, "the plan must be a PencilFFT", lambda: power_multipoles(x, None, 1.0)),
    ):
        with pytest.raises(error, match=text):
            call()

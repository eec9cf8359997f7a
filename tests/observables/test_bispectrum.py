"""Bispectra, against sums over all triangles of modes and against tree level."""

import dataclasses
import functools
import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import pfftjax
from pfftjax import ExchangePrecision, PencilFFT
from pfftjax.observables import _product_meshes, bispectrum
from pfftjax.pm import density_contrast, growth, lpt
from tests.distributed import grids
from tests.helpers import CONTROL, SIZE, assert_close, random
from tests.pm.universe import cosmology

pytestmark = [pytest.mark.mpi, pytest.mark.timeout(300), pytest.mark.ranks(1, 2)]


def summed(x, box, edges, triangles):
    """(B, number of triangles) by the sum over pairs of modes; of each third there is one."""
    shape = x.shape
    m = [np.round(np.fft.fftfreq(n, 1 / n)).astype(int) for n in shape]
    m = np.stack(np.meshgrid(*m, indexing="ij"), -1).reshape(-1, 3)
    k = 2 * np.pi * np.linalg.norm(m / np.array(box), axis=1)
    delta = np.fft.fftn(x) * np.prod(box) / np.prod(shape)
    result = []
    for i, j, third_shell in triangles:
        first, second = (m[(k >= edges[s]) & (k < edges[s + 1])] for s in (i, j))
        third = -(first[:, None] + second[None])
        q = 2 * np.pi * np.linalg.norm(third / np.array(box), axis=-1)
        a, b = np.nonzero((q >= edges[third_shell]) & (q < edges[third_shell + 1]))
        product = delta[tuple(first[a].T)] * delta[tuple(second[b].T)]
        product = product * delta[tuple(third[a, b].T)]
        result.append((product.real.sum() / np.prod(box) / max(len(a), 1), len(a)))
    return np.array(result).T


@pytest.mark.parametrize(
    ("shape", "box", "edges"),
    [
        ((9, 9, 9), (100.0,) * 3, None),
        ((8, 11, 10), (60.0, 90.0, 70.0), (0.06, 0.14, 0.21, 0.28)),
    ],
    ids=str,
)
def test_bispectra_against_sums_over_triangles(shape, box, edges):
    """On all grids; the triangles of one shell also alone, by the way that holds one field."""
    plans = [PencilFFT(shape, grid, real=True) for grid in grids()]
    X = random(shape) + 0.3 * random(shape) ** 2
    side = box if len(set(box)) > 1 else box[0]
    chosen = [(1, 0, 1), (0, 0, 0), (1, 1, 1), (0, 1, 0)]
    bounds = (np.arange(5) + 0.5) * 2 * np.pi / max(box) if edges is None else edges
    counts = summed(X, box, bounds, chosen)[1]

    @jax.jit
    def measured(blocks):
        return [
            (
                bispectrum(x, p, side, "all", edges=edges),
                bispectrum(x, p, side, edges=edges),
                bispectrum(x, p, side, chosen, edges=edges),
                bispectrum(x.astype("float32"), p, side, chosen, edges=edges),
                bispectrum(x, p, side, chosen, edges=edges, counts=counts),
            )
            for p, x in zip(plans, blocks, strict=True)
        ]

    for every, equal, some, single, counted in measured([p.input.local_block(X) for p in plans]):
        number = len(equal.bispectrum)
        combinations = list(itertools.combinations_with_replacement(range(len(bounds) - 1), 3))
        expected, count = summed(X, box, bounds, combinations)
        # Those are left out that have no triangles, or might have some of a period of the mesh.
        limit = min(2 * np.pi * n / side for n, side in zip(shape, box, strict=True))
        kept = [
            bounds[t[2]] < bounds[t[0] + 1] + bounds[t[1] + 1]
            and sum(bounds[s + 1] for s in t) <= limit
            for t in combinations
        ]
        np.testing.assert_array_equal(every.triangles, count[kept])
        assert_close(every.bispectrum, expected[kept], 1e-12)
        assert number >= 2
        for found, triangles, eps in (
            (equal, [(i, i, i) for i in range(number)], 1e-12),
            (some, chosen, 1e-12),
            (single, chosen, 1e-4),
            (counted, chosen, 1e-12),
        ):
            expected, count = summed(X, box, bounds, triangles)
            np.testing.assert_array_equal(found.triangles, count)
            assert_close(found.bispectrum, expected, eps)
        assert single.bispectrum.dtype == "float32"
        assert some.k.shape == some.power.shape == (len(chosen), 3)
        assert_close(some.k[2], equal.k[1], 1e-14)
        p1, p2, p3 = np.asarray(some.power).T
        reduced = np.asarray(some.bispectrum) / (p1 * p2 + p2 * p3 + p3 * p1)
        assert_close(some.reduced, reduced, 1e-13)
        assert len(set(CONTROL.allgather(np.asarray(every.bispectrum).tobytes()))) == 1


@pytest.mark.ranks(1)
def test_there_are_as_many_triangles_in_every_unit():
    """Three shells close, or fit into the mesh, with their ends alone, which rounding decides."""
    plan = PencilFFT((12, 12, 12), grids()[0], real=True)
    x = jax.ShapeDtypeStruct(plan.input.local_shape, jnp.float32)
    found = set()
    for side in np.linspace(90, 110, 97):
        edges = tuple(np.arange(1, 5) * (2 * np.pi / side))
        of = functools.partial(bispectrum, plan=plan, box_size=side, triangles="all", edges=edges)
        found.add(jax.eval_shape(of, x).bispectrum.shape)
    assert len(found) == 1


@pytest.mark.ranks(2)
def test_triangles_are_as_many_in_half_of_the_bits():
    """Rounded transforms would make a few counts wrong, by what the process grid decides."""
    shape, side = (32, 32, 32), 100.0
    edges = tuple(np.arange(1, 14, 2) * 2 * np.pi / side)
    plan = PencilFFT(shape, grids()[0], real=True)
    plans = [plan, dataclasses.replace(plan, precision=ExchangePrecision.HALF)]
    x = plan.input.local_block(random(shape, "float32"))
    measured = jax.jit(lambda x: [bispectrum(x, p, side, "all", edges=edges) for p in plans])
    full, half = measured(x)
    np.testing.assert_array_equal(half.triangles, full.triangles)
    assert SIZE == 1 or np.any(half.bispectrum != full.bispectrum)
    assert_close(half.bispectrum, full.bispectrum, 1e-3)


@pytest.mark.ranks(2)
@pytest.mark.parametrize("missing", [0, 1])
def test_meshes_that_triangles_just_fit(monkeypatch, missing):
    """Three triangles, each on its own mesh, of 4, 9 and 16 points. With a point less there are
    aliases of each: along an axis 1 + 1 + 1, 2 + 3 + 3 and 5 + 5 + 5 are periods of 3, 8 and 15.
    Triangles are counted on meshes of an even number of points, and only 8 is too small there.
    """
    monkeypatch.setattr(_product_meshes, "_COST_OF_MESH", 0)
    monkeypatch.setattr(_product_meshes, "smooth_size", lambda n: n - missing)
    shape, side = (16, 16, 16), 100.0
    edges = np.array([0.9, 1.1, 1.9, 2.1, 2.9, 3.05, 4.9, 5.05]) * 2 * np.pi / side
    plan = PencilFFT(shape, grids()[0], real=True)
    X = random(shape) + 0.3 * random(shape) ** 2
    triangles = [(6, 6, 6), (0, 0, 0), (2, 4, 4)]
    of = functools.partial(
        bispectrum, plan=plan, box_size=side, triangles=triangles, edges=tuple(edges)
    )
    # With one triangle each, a mean is a sum.
    found, summed_up = jax.jit(lambda x: (of(x), of(x, counts=[1, 1, 1])))(
        plan.input.local_block(X)
    )
    expected, count = summed(X, (side,) * 3, edges, triangles)
    if missing:
        np.testing.assert_array_equal(found.triangles > count, [False, False, True])
        difference = np.abs(summed_up.bispectrum - expected * count)
        assert difference.min() > 1e-3 * np.abs(expected * count).max()
    else:
        np.testing.assert_array_equal(found.triangles, count)
        assert_close(found.bispectrum, expected, 1e-12)
        assert_close(summed_up.bispectrum, expected * count, 1e-12)


@pytest.mark.ranks(4)
def test_meshes_with_fewer_planes_than_ranks():
    """Modes are on a mesh of 6 points, of which the fourth rank has none."""
    shape, side = (9, 9, 9), 100.0
    plan = PencilFFT(shape, grids()[-1], real=True)
    X = random(shape) + 0.3 * random(shape) ** 2
    found = jax.jit(lambda x: bispectrum(x, plan, side, [(0, 0, 0)]))(plan.input.local_block(X))
    edges = np.array([0.5, 1.5]) * 2 * np.pi / side
    expected, count = summed(X, (side,) * 3, edges, [(0, 0, 0)])
    np.testing.assert_array_equal(found.triangles, count)
    assert_close(found.bispectrum, expected, 1e-12)
    assert found.power[0, 0] > 0


@pytest.mark.ranks(1)
@pytest.mark.parametrize("scale", [1e9, 1e-9])
def test_reduced_bispectra_of_large_and_small_fields(scale):
    """In float32 the products of spectra would be infinite, or zero: Q falls with the field."""
    plan = PencilFFT((8, 8, 8), grids()[0], real=True)
    x = plan.input.local_block(random(plan.shape, "float32", 1))
    one, other = (bispectrum(x * np.float32(s), plan, 100.0) for s in (1, scale))
    assert one.reduced.dtype == jnp.float32
    np.testing.assert_allclose(other.reduced * np.float32(scale), one.reduced, rtol=1e-4)
    slope = jax.grad(lambda s: bispectrum(s * x, plan, 100.0).reduced.sum())(jnp.float32(1))
    np.testing.assert_allclose(slope, -one.reduced.sum(), rtol=1e-4)


@pytest.mark.ranks(2)
def test_smoothing_is_divided_out():
    shape, side = (9, 10, 8), 100.0
    plan = PencilFFT(shape, grids()[0], real=True)
    X = random(shape)
    smooth = np.fft.fftn(X)
    for axis, n in enumerate(shape):
        sinc = np.sinc(np.fft.fftfreq(n)).reshape([-1 if a == axis else 1 for a in range(3)])
        smooth = smooth * sinc**2
    blocks = [plan.input.local_block(x) for x in (X, np.fft.ifftn(smooth).real)]
    plain, divided = jax.jit(
        lambda x, y: (bispectrum(x, plan, side), bispectrum(y, plan, side, kernel="cic"))
    )(*blocks)
    assert_close(divided.bispectrum, plain.bispectrum, 1e-12)
    assert_close(divided.power, plain.power, 1e-12)


@pytest.mark.ranks(2)
@pytest.mark.parametrize("triangles", ["equilateral", [(0, 1, 1), (0, 0, 1)]], ids=str)
def test_derivatives(monkeypatch, triangles):
    """Reverse mode is the adjoint of forward mode, and is that of a cubic form; of products on two
    meshes, too.
    """
    monkeypatch.setattr(_product_meshes, "_COST_OF_MESH", 0)
    shape, side = (8, 7, 9), 50.0
    plan = PencilFFT(shape, grids()[-1], real=True)
    x, t = (jnp.asarray(plan.input.local_block(random(shape, seed=s))) for s in (1, 2))

    def loss(x):
        return jnp.sum(jnp.cos(jnp.arange(2.0)) * bispectrum(x, plan, side, triangles).bispectrum)

    @jax.jit
    def everything(x):
        return loss(x), pfftjax.grad(loss)(x), pfftjax.jvp(loss, (x,), (t,))[1]

    value, gradient, slope = everything(x)
    np.testing.assert_allclose(pfftjax.vdot(gradient, t, plan.grid), slope, rtol=1e-11)
    np.testing.assert_allclose(pfftjax.vdot(gradient, x, plan.grid), 3 * value, rtol=1e-11)


def second_order(delta, side):
    """The second order of perturbation theory, by numpy:
    5/7 delta^2 + grad delta . grad phi + 2/7 (grad grad phi)^2, laplacian phi = delta.
    """
    n = len(delta)
    k = [2 * np.pi * np.fft.fftfreq(n, side / n).reshape(np.roll([-1, 1, 1], a)) for a in range(3)]
    k2 = sum(q**2 for q in k)
    y = np.fft.fftn(delta)
    phi = -y / np.where(k2 > 0, k2, 1)

    def back(z):
        return np.fft.ifftn(z).real

    total = 5 / 7 * delta**2 + sum(back(1j * q * y) * back(1j * q * phi) for q in k)
    return total + 2 / 7 * sum(back(-p * q * phi) ** 2 for p in k for q in k)


@pytest.mark.ranks(2)
def test_tree_level():
    """Particles of second-order theory have the bispectrum of tree level, of these very modes: in
    the mean of both signs of the field all is left out that has an odd number of first orders.
    """
    n, side, a, universe = 16, 200.0, 0.1, cosmology()
    y = np.fft.fftn(random((n, n, n)))
    m = np.fft.fftfreq(n, 1 / n)
    # Products of such modes have no aliases.
    square = sum(np.meshgrid(m**2, m**2, m**2, indexing="ij"))
    whole = 1e-3 * np.fft.ifftn(np.where((square > 0) & (square < 9.5), y, 0)).real
    grid = grids()[-1]
    plan, mesh = (PencilFFT((size,) * 3, grid, real=True) for size in (n, 2 * n))
    triangles = [(0, 0, 0), (0, 1, 1), (1, 1, 1), (0, 1, 2)]

    @jax.jit
    def measured(delta, theory):
        particles = [
            density_contrast(
                lpt(s * delta, plan, side, universe, a, mesh_shape=mesh.shape), mesh, kernel="pcs"
            )
            for s in (1, -1)
        ]
        seen = [bispectrum(x, mesh, side, triangles, kernel="pcs").bispectrum for x in particles]
        known = [bispectrum(x, plan, side, triangles).bispectrum for x in theory]
        now, today = growth(universe, a).d1, growth(universe, 1.0).d1
        return (seen[0] + seen[1]) / 2, (known[0] + known[1]) / 2 * (now / today) ** 4, seen[0]

    theory = [s * whole + second_order(whole, side) for s in (1, -1)]
    mean, tree, one = measured(*jax.tree.map(plan.input.local_block, (whole, theory)))
    np.testing.assert_allclose(mean, tree, rtol=0.02)
    assert np.abs(one / tree - 1).min() > 1  # which one sign alone does not show


@pytest.mark.wrong_types
@pytest.mark.ranks(2)
def test_wrong_arguments():
    plan = PencilFFT((8, 8, 8), grids()[0], real=True)
    x = jnp.zeros(plan.input.local_shape)

    def call(*triangles, **options):
        return lambda: bispectrum(x, plan, 1.0, *triangles, **options)

    for error, text, wrong in (
        (ValueError, "equilateral, all or a list", call("isosceles")),
        (ValueError, "three numbers of shells from 0 to 3, got", call([(0, 1)])),
        (ValueError, "three numbers of shells from 0 to 3, got", call([(0, 1, 4)])),
        (ValueError, "longer than the others", call([(0, 0, 3)])),
        (ValueError, "close up to a period of the mesh.*at most 8 times", call([(2, 2, 1)])),
        (ValueError, "there are no triangles", call([])),
        (ValueError, "no triangle of these shells is resolved", call(edges=(20.0, 30.0))),
        (ValueError, "edges must be two or more", call(edges=(1.0,))),
        (ValueError, "edges must be two or more", call(edges=(0.0, 1.0))),
        (ValueError, "edges must be two or more", call(edges=(2.0, 1.0))),
        (ValueError, "bispectrum.*kernel", call(kernel="spline")),
        (ValueError, "one number for each of the 1", call([(0, 0, 0)], counts=[6.0, 2.0])),
        (TypeError, "triangles must be static integers", call([(0.5, 1, 1)])),
        (
            TypeError,
            "edges must be static",
            lambda: jax.jit(lambda e: call(edges=e)())(jnp.ones(3)),
        ),
    ):
        with pytest.raises(error, match=text):
            wrong()

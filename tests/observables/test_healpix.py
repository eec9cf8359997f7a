"""HEALPix, beside what healpy says (tools/healpy_reference.py)."""

import pathlib

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from pfftjax.observables import directions, interpolation_weights, pixels_of

pytestmark = [pytest.mark.mpi, pytest.mark.ranks(1)]

HEALPY = np.load(pathlib.Path(__file__).parent / "healpy_reference.npz")
NSIDES = (1, 2, 3, 16, 100, 1024, 4096)


def _interpolated(pixels, weights):
    """A map that differs from pixel to pixel: a weight of zero may be that of any of them."""
    return (np.cos(np.asarray(pixels, float)) * weights).sum(1)


@pytest.mark.parametrize("nside", NSIDES)
def test_pixels_and_weights_are_healpys(nside):
    vectors = HEALPY["vectors"]
    np.testing.assert_array_equal(pixels_of(vectors, nside), HEALPY[f"ring{nside}"])
    if nside & (nside - 1) == 0:
        nested = pixels_of(vectors, nside, nested=True)
        np.testing.assert_array_equal(nested, HEALPY[f"nested{nside}"])
    pixels, weights = map(np.asarray, interpolation_weights(vectors, nside))
    expected = _interpolated(HEALPY[f"pixels{nside}"], HEALPY[f"weights{nside}"])
    # healpy takes colatitudes from cosines, and loses digits near the poles.
    tolerance = 1e-10 * (1 + nside)
    np.testing.assert_allclose(_interpolated(pixels, weights), expected, rtol=0, atol=tolerance)
    assert weights.min() > -1e-12
    np.testing.assert_allclose(weights.sum(1), 1, rtol=0, atol=1e-14)


def test_angles_are_those_of_vectors():
    theta, phi = HEALPY["theta"], HEALPY["phi"]
    np.testing.assert_array_equal(
        pixels_of(directions(theta[:160], phi[:160]), 1024), HEALPY["ring1024"][:160]
    )


@pytest.mark.parametrize("nside", [64, 4096])
def test_float32_is_enough(nside):
    """Also near the poles: only vectors at a boundary come to the pixel beside it."""
    rng = np.random.default_rng(0)
    vectors = rng.normal(size=(20000, 3)) * np.where(
        rng.random((20000, 1)) < 0.3, [1e-3, 1e-3, 1], 1
    )
    vectors = vectors.astype("float32")
    for nested in (False, True):
        exact, found = (
            pixels_of(jnp.asarray(vectors, dtype), nside, nested=nested)
            for dtype in ("float64", "float32")
        )
        assert np.mean(np.asarray(exact != found)) < 2e-7 * nside + 1e-4
    pixels, weights = interpolation_weights(vectors, nside)
    assert weights.dtype == jnp.float32
    exact = interpolation_weights(vectors.astype("float64"), nside)
    same = np.all(np.asarray(pixels == exact[0]), axis=1)
    assert same.mean() > 1 - 5e-7 * nside - 1e-4
    assert np.abs(np.asarray(weights - exact[1]))[same].max() < 2e-6 * nside


@pytest.mark.parametrize("length", [1e-30, 1e-19, 1e19, 1e30])
def test_vectors_have_any_length(length):
    """Also where their squares are no numbers."""
    at = np.random.default_rng(3).normal(size=(300, 3)).astype("float32")
    far = at * np.float32(length)
    assert np.mean(np.asarray(pixels_of(far, 16)) == np.asarray(pixels_of(at, 16))) > 0.99
    pixels, weights = interpolation_weights(far, 16)
    near, exact = interpolation_weights(at, 16)
    same = np.all(np.asarray(pixels == near), axis=1)
    assert same.mean() > 0.99
    np.testing.assert_allclose(np.asarray(weights)[same], np.asarray(exact)[same], atol=1e-4)


def test_weights_are_continuous_and_differentiable():
    """A map is interpolated; its slopes are those of differences, and vectors have any length."""
    nside = 8
    values = jnp.asarray(np.random.default_rng(1).normal(size=12 * nside**2))

    def interpolated(vectors):
        pixels, weights = interpolation_weights(vectors, nside)
        return (values[pixels] * weights).sum(-1)

    rng = np.random.default_rng(2)
    at, way = (jnp.asarray(rng.normal(size=(300, 3))) for _ in range(2))
    np.testing.assert_allclose(interpolated(3 * at), interpolated(at), atol=1e-12)
    slope = jax.jvp(interpolated, (at,), (way,))[1]
    step = 1e-6
    difference = (interpolated(at + step * way) - interpolated(at - step * way)) / (2 * step)
    is_off = np.abs(difference - slope) > 1e-6 * np.abs(slope).max()
    assert is_off.sum() <= 2  # beside a boundary there is a kink
    jump = np.abs(interpolated(at + 1e-9 * way) - interpolated(at))
    assert jump.max() < 1e-6
    polar = jax.grad(lambda x: interpolated(x).sum())(jnp.array([[0.0, 0, 1], [0, 0, -1]]))
    assert np.isfinite(np.asarray(polar)).all()


# Tests compile without them, to be quick.
OPTIMIZATIONS = {
    "xla_backend_optimization_level": 3,
    "xla_llvm_disable_expensive_passes": False,
    "xla_cpu_use_fusion_emitters": True,
}


def _lattice(n, dtype):
    along = np.arange(-n, n + 1)
    vectors = np.stack(np.meshgrid(along, along, along, indexing="ij"), -1).reshape(-1, 3)
    return vectors[np.any(vectors != 0, axis=1)].astype(dtype)


@pytest.mark.parametrize("nside", [2, 4])
def test_slopes_on_boundaries_are_those_of_one_side(nside):
    """Also in programs, where XLA may find a vector on either side, and its slope on the other."""
    values = np.random.default_rng(1).normal(size=12 * nside**2)

    def slopes(vectors):
        def interpolated(vectors):
            pixels, weights = interpolation_weights(vectors, nside)
            return jnp.sum(jnp.asarray(values, weights.dtype)[pixels] * weights)

        return jax.grad(interpolated)(vectors)

    vectors = _lattice(20, "float64")
    vectors = vectors[np.any(vectors[:, :2] != 0, axis=1)]
    length = np.linalg.norm(vectors, axis=1, keepdims=True)
    around = 1e-9 * np.stack([-vectors[:, 1], vectors[:, 0], 0 * vectors[:, 2]], -1)
    up = 1e-9 * length * np.array([0, 0, 1])
    sides = [slopes(vectors + s * around + t * up) for s in (1, -1) for t in (1, -1)]
    for how in (slopes, jax.jit(slopes, compiler_options=OPTIMIZATIONS)):
        found = how(vectors.astype("float32"))
        off = np.min([np.abs(found - side).max(1) for side in sides], axis=0)
        assert np.max(off * length[:, 0]) < 1e-3


@pytest.mark.parametrize("nside", [1, 4])
def test_vectors_on_meridians_and_rings_stay_there_in_programs(nside):
    """XLA may find a vector on a boundary on either side of it, and the weights on the other."""
    vectors = _lattice(12, "float32")

    def counts(vectors):
        pixels, weights = interpolation_weights(vectors, nside)
        return jnp.zeros(12 * nside**2, weights.dtype).at[pixels.ravel()].add(weights.ravel())

    exact = np.zeros(12 * nside**2)
    np.add.at(exact, *map(np.asarray, interpolation_weights(vectors.astype("float64"), nside)))
    compiled = jax.jit(counts, compiler_options=OPTIMIZATIONS)
    many = jax.jit(jax.vmap(counts), compiler_options=OPTIMIZATIONS)
    for found in (counts(vectors), compiled(vectors), many(vectors[None])[0]):
        np.testing.assert_allclose(found, exact, rtol=0, atol=0.02)
    # The lattice is as it was when it is turned about the axis, or upside down.
    np.testing.assert_allclose(exact[:4], exact[0], rtol=1e-12)
    np.testing.assert_allclose(exact[-4:], exact[0], rtol=1e-12)


@pytest.mark.wrong_types
@pytest.mark.ranks(2)
def test_what_is_refused():
    for arguments, options, text in (
        ((np.ones((2, 3)), 0), {}, "nside must be an integer from 1 to 8192"),
        ((np.ones((2, 3)), 16384), {}, "nside must be an integer from 1 to 8192"),
        ((np.ones((2, 3)), 12), {"nested": True}, "a power of two, got 12"),
        ((np.ones((2, 2)), 8), {}, r"vectors must be \(\.\.\., 3\)"),
    ):
        with pytest.raises(ValueError, match=text):
            pixels_of(*arguments, **options)
    with pytest.raises(ValueError, match="vectors must be"):
        interpolation_weights(np.ones(4), 8)

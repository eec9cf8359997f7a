"""White noise against jax.random.normal of the whole array, to the last bit."""

import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from pfftjax import Pencil, PencilFFT
from pfftjax.collectives import recover
from pfftjax.pm import fixed_amplitudes, nested_noise, white_noise
from pfftjax.pm._noise import _global_index, _times
from tests.distributed import alone, assert_block, grids
from tests.helpers import RANK, SIZE, assert_equal, on_one_rank

pytestmark = [pytest.mark.mpi, pytest.mark.timeout(300), pytest.mark.ranks(1, 2, 4)]

SHAPES = ((8, 6, 16), (13, 11, 7), (1, 2, 9), (11, 1, 1), (4, 6))


def _pencils():
    """In real space, and as a spectrum lies in memory."""
    for grid in grids():
        yield from (Pencil(shape, grid) for shape in SHAPES)
        yield Pencil(SHAPES[1], grid, split=(1, 2), axes=(1, 2, 0))


def test_it_is_the_block_of_jax_random_normal():
    key = jax.random.key(2**40 + 3)
    normal = jax.jit(lambda key: [jax.random.normal(key, s, "float32") for s in SHAPES])
    wholes = dict(zip(SHAPES, normal(key), strict=True))
    pencils = list(_pencils())
    blocks = jax.jit(lambda key: [white_noise(key, pencil) for pencil in pencils])(key)
    for pencil, block in zip(pencils, blocks, strict=True):
        whole = np.asarray(wholes[pencil.global_shape])
        # In double precision the same universe, and not a finer one.
        assert_equal(block, pencil.local_block(whole).astype("float64"))
    # Without x64 these are the numbers of jax.random.normal(key, shape).
    with jax.enable_x64(False):
        plain = np.asarray(jax.random.normal(key, SHAPES[0]))
    assert_equal(plain, np.asarray(wholes[SHAPES[0]]))


def test_drawn_in_float64_it_is_that_of_jax_with_x64():
    """And then another universe, not the same one to more digits."""
    key, shape = jax.random.key(2**40 + 3), SHAPES[1]
    pencils = [Pencil(shape, grid) for grid in grids()]

    @jax.jit
    def everything(key):
        whole = jax.random.normal(key, shape), jax.random.normal(key, shape, "float32")
        return whole, [white_noise(key, p, drawn_in="float64") for p in pencils]

    (whole, single), blocks = everything(key)
    assert whole.dtype == "float64"
    assert np.abs(whole - single).max() > 1
    for pencil, block in zip(pencils, blocks, strict=True):
        assert_equal(block, pencil.local_block(np.asarray(whole)))


@pytest.mark.skipif(SIZE == 1, reason="one rank has one key")
def test_a_key_that_differs_between_ranks_is_an_error():
    pencil = Pencil((4, 4, 4), grids()[-1])
    of_rank = jax.random.key(RANK)
    noise = jax.jit(lambda key: white_noise(key, pencil))
    for f in (noise, lambda key: white_noise(key, pencil)):
        with pytest.raises(jax.errors.JaxRuntimeError) as raised:
            jax.block_until_ready(f(of_rank))
        recover()
        assert f"white_noise failed on rank {RANK} of {SIZE}" in str(raised.value)
        assert "the key must be the same on every rank, but is [0, 1] on rank 1 and [0, 0] on" in (
            str(raised.value)
        )
        assert "jax.random.key(seed)" in str(raised.value)
    # Programs can go on, with one key.
    assert bool(jnp.isfinite(noise(jax.random.key(0))).all())


def test_any_key_with_and_without_jit():
    shape = (5, 4, 7)
    pencil = Pencil(shape, grids()[-1])
    keys = [
        jax.random.key(1),
        jax.random.PRNGKey(2),
        jax.random.key(-3, impl="threefry2x32"),
        jax.random.split(jax.random.key(4))[1],
    ]

    @jax.jit
    def both(keys):
        whole = [jax.random.normal(key, shape, "float32") for key in keys]
        return whole, [white_noise(key, pencil, "float32") for key in keys]

    for whole, block in zip(*both(keys), strict=True):
        assert_equal(block, pencil.local_block(np.asarray(whole)))
    assert_equal(white_noise(keys[-1], pencil, "float32"), block)
    many = jax.jit(jax.vmap(lambda key: white_noise(key, pencil)))(jax.random.split(keys[0], 3))
    each = [white_noise(key, pencil) for key in jax.random.split(keys[0], 3)]
    assert_equal(many, np.stack(each))


class FarCorner:
    """A block at the end of a mesh that is too large to have."""

    def __init__(self, *global_shape):
        self.global_shape = global_shape
        self.local_shape = (2, 3, 4)

    def indices(self, axis):
        n, count = self.global_shape[axis], self.local_shape[axis]
        shape = [1] * 3
        shape[axis] = count
        return jnp.arange(n - count, n, dtype="int32").reshape(shape)


@on_one_rank
def test_cells_beyond_2_to_the_32():
    meshes = [
        FarCorner(2048, 2048, 2048),
        FarCorner(10**6 + 3, 10**6 + 33, 10**6 + 37),
        FarCorner(2**21, 2**21, 2**21),
        FarCorner(2, 65537, 2**31 - 1),
        FarCorner(2, 3, 4),
    ]

    def index(mesh):
        return _global_index(mesh.global_shape, [mesh.indices(axis) for axis in range(3)])

    indices = jax.jit(lambda: [index(mesh) for mesh in meshes])()
    for mesh, (high, low) in zip(meshes, jax.device_get(indices), strict=True):
        corners = [n - count for n, count in zip(mesh.global_shape, mesh.local_shape, strict=True)]
        for place in np.ndindex(mesh.local_shape):
            i, j, k = (int(a + b) for a, b in zip(corners, place, strict=True))
            expected = (i * mesh.global_shape[1] + j) * mesh.global_shape[2] + k
            assert (int(high[place]) << 32) + int(low[place]) == expected


@on_one_rank
def test_products_of_64_bits():
    rng = np.random.default_rng(0)
    words = rng.integers(0, 2**32, (2, 500), dtype="uint32")
    extremes = np.array([0, 1, 0xFFFF, 0x10000, 0xFFFFFFFF], "uint32")
    corners = np.stack(np.meshgrid(extremes, extremes)).reshape(2, -1)
    high, low = np.concatenate([words, corners], axis=1)
    factors = (1, 0xFFFF, 0x1FFFF, 2**32 - 1, 2**32, 2**63 + 12345)
    products = jax.jit(lambda h, lo: [_times(h, lo, n) for n in factors])(high, low)
    for n, (h, lo) in zip(factors, jax.device_get(products), strict=True):
        expected = [((int(a) << 32) + int(b)) * n % 2**64 for a, b in zip(high, low, strict=True)]
        assert [(int(a) << 32) + int(b) for a, b in zip(h, lo, strict=True)] == expected


@pytest.mark.wrong_types
def test_what_is_refused():
    pencil = Pencil((4, 5, 6), grids()[0])
    key = jax.random.key(0)
    with pytest.raises(TypeError, match="implementation rbg; only threefry2x32"):
        white_noise(jax.random.key(0, impl="rbg"), pencil)
    with pytest.raises(TypeError, match="dtype must be floating-point, got int32"):
        white_noise(key, pencil, "int32")
    with pytest.raises(TypeError, match="dtype must be floating-point, got complex64"):
        white_noise(key, pencil, "complex64")
    with pytest.raises(TypeError, match="one pair of uint32"):
        white_noise(jax.random.split(key), pencil)
    with pytest.raises(TypeError, match="one pair of uint32"):
        white_noise(jnp.zeros(4, "uint32"), pencil)
    for other in ("float16", 64, None, ["float32"]):
        with pytest.raises(ValueError, match="drawn_in must be 'float32' or 'float64', got"):
            white_noise(key, pencil, drawn_in=other)
    with (
        jax.enable_x64(False),
        pytest.raises(ValueError, match="drawn_in='float64' needs JAX_ENABLE_X64=1"),
    ):
        white_noise(key, pencil, drawn_in="float64")
    with pytest.raises(TypeError, match=r"white_noise: pencil must be a Pencil, .* got tuple"):
        white_noise(key, (4, 5, 6))


MESHES = ((8, 6, 10), (12, 9, 16), (7, 12, 11))


def test_nested_noise_has_the_same_modes_on_every_mesh_and_grid():
    """Two meshes share the modes below their Nyquist frequencies; grids share all bits."""
    plans = {shape: PencilFFT(shape, alone(), real=True) for shape in MESHES}
    others = {shape: [PencilFFT(shape, grid, real=True) for grid in grids()] for shape in MESHES}

    @jax.jit
    def everything(key):
        wholes = {shape: nested_noise(key, plan, "float32") for shape, plan in plans.items()}
        return wholes, {
            shape: [nested_noise(key, plan, "float32") for plan in of_shape]
            for shape, of_shape in others.items()
        }

    wholes, blocks = everything(jax.random.key(5))
    for shape, whole in wholes.items():
        whole = np.asarray(whole)
        assert whole.dtype == "float32"
        for plan, block in zip(others[shape], blocks[shape], strict=True):
            assert_equal(block, plan.input.local_block(whole))

    def modes(shape):
        found = np.fft.fftn(np.asarray(wholes[shape], "float64"), norm="ortho")
        return np.fft.fftshift(found)

    def shared(shape, half):
        """The modes of wavenumbers from -half to half along each axis."""
        middle = [n // 2 for n in shape]
        return modes(shape)[
            tuple(slice(m - h, m + h + 1) for m, h in zip(middle, half, strict=True))
        ]

    for a, b in itertools.combinations(MESHES, 2):
        half = [(min(n, m) - 1) // 2 for n, m in zip(a, b, strict=True)]
        assert np.abs(shared(a, half) - shared(b, half)).max() < 1e-5


@on_one_rank
def test_nested_noise_is_white():
    """All of its modes have unit variance: also those that have no phase, and no two are equal."""
    plan = PencilFFT((6, 4, 8), alone(), real=True)

    @jax.jit
    def spectra(keys):
        return jax.lax.map(lambda key: plan.forward(nested_noise(key, plan)), keys)

    draws = np.asarray(spectra(jax.random.split(jax.random.key(0), 4000))).reshape(4000, -1)
    draws = draws / np.sqrt(6 * 4 * 8)
    variance = np.mean(np.abs(draws) ** 2, axis=0)
    assert np.abs(variance - 1).max() < 0.15
    correlation = draws.T.conj() @ draws / len(draws)
    # Opposite wavevectors where the last wavenumber has no sign are conjugates, not independent.
    assert np.abs(correlation - np.diag(np.diag(correlation))).max() < 0.09
    assert np.abs(draws.mean(axis=0)).max() < 0.07


def test_fixed_amplitudes():
    """Are one, with the phases of the noise; the same on every grid."""
    shape = (6, 9, 8)
    plans = [PencilFFT(shape, grid, real=True) for grid in grids()]
    whole = np.random.default_rng(0).standard_normal(shape)
    modes = np.fft.fftn(whole)
    size = np.sqrt(np.prod(shape))
    expected = np.fft.ifftn(size * modes / np.abs(modes)).real
    blocks = [jnp.asarray(p.input.local_block(whole)) for p in plans]
    fixed = jax.jit(lambda xs: [fixed_amplitudes(x, p) for p, x in zip(plans, xs, strict=True)])
    for plan, block in zip(plans, fixed(blocks), strict=True):
        assert_block(block, expected, plan.input, 1e-12)


@on_one_rank
def test_nested_noise_of_few_digits():
    """It is that of float32, cast."""
    plan = PencilFFT((6, 5, 4), grids()[0], real=True)
    noise = nested_noise(jax.random.key(0), plan, "float32")
    for dtype in ("float16", "bfloat16"):
        assert_equal(nested_noise(jax.random.key(0), plan, dtype), noise.astype(dtype))


@pytest.mark.ranks(2)
@pytest.mark.wrong_types
def test_what_nested_noise_refuses():
    plan = PencilFFT((4, 4, 4), grids()[0], real=True)
    key = jax.random.key(0)
    with pytest.raises(TypeError, match="dtype must be floating-point"):
        nested_noise(key, plan, "int32")
    with pytest.raises(ValueError, match="the plan must be a PencilFFT"):
        nested_noise(key, PencilFFT((4, 4, 4), grids()[0]))
    with pytest.raises(ValueError, match="65536"):
        jax.eval_shape(lambda: nested_noise(key, PencilFFT((65536, 4, 4), grids()[0], real=True)))
    with pytest.raises(TypeError, match="the key must be one of"):
        nested_noise(3, plan)

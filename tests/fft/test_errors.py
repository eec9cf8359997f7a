"""What a plan refuses, in words that name operation, rank, shapes and remedy."""

import jax.numpy as jnp
import numpy as np
import pytest

import pfftjax
from pfftjax import sharded
from tests.distributed import grids
from tests.helpers import SIZE, here

pytestmark = [pytest.mark.mpi, pytest.mark.messages]


def test_a_block_that_does_not_match_its_pencil():
    for grid in grids():
        plan = pfftjax.PencilFFT((4, 6, 8), grid)
        wrong = jnp.zeros((9, 9, 9))
        with pytest.raises(ValueError, match=here("PencilFFT.forward") + r"the block has shape"):
            plan.forward(wrong)
        with pytest.raises(ValueError, match=r"\(9, 9, 9\), but this rank holds .* \(4, 6, 8\)"):
            plan.inverse(wrong)


def test_a_missing_global_shape():
    grid = grids()[0]
    for name in ("fft3d", "ifft3d", "rfft3d", "irfft3d"):
        if SIZE > 1 or name == "irfft3d":
            with pytest.raises(ValueError, match=here(name) + r"give shape=\(n0, n1, n2\)"):
                getattr(pfftjax, name)(jnp.zeros((4, 4, 4)), grid)
        with pytest.raises(ValueError, match=here(name) + r"shape must be \(n0, n1, n2\)"):
            getattr(pfftjax, name)(jnp.zeros((4, 4, 4)), grid, shape=(4, 4))


@pytest.mark.wrong_types
def test_arguments_of_other_types():
    grid, x = grids()[0], jnp.zeros((4, 4, 4))
    for name in ("fft3d", "ifft3d", "rfft3d", "irfft3d"):
        with pytest.raises(TypeError, match=here(name) + "shape must be static integers, got 4"):
            getattr(pfftjax, name)(x, grid, shape=4)
        with pytest.raises(TypeError, match=f"{name}: grid must be a ProcessGrid, got NoneType"):
            getattr(pfftjax, name)(x, None)
    with pytest.raises(ValueError, match=here("PencilFFT.forward") + "the block has shape"):
        pfftjax.PencilFFT((4, 6, 8), grid).forward(jnp.zeros(8))
    for options, text in (
        ({"norm": "sideways"}, "norm must be one of backward, ortho, forward"),
        ({"layout": "sideways"}, "layout must be transposed or natural"),
    ):
        with pytest.raises(ValueError, match=here("PencilFFT") + text):
            pfftjax.PencilFFT((4, 4, 4), grid, **options)


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"shape": (4, 0, 4)}, "the global shape must be three positive sizes"),
        ({"shape": (4, 4)}, "the global shape must be three positive sizes"),
    ],
)
def test_nonsense(options, text):
    arguments = {"shape": (4, 4, 4), "grid": grids()[0], **options}
    with pytest.raises(ValueError, match=here("PencilFFT") + text):
        pfftjax.PencilFFT(**arguments)


@pytest.mark.wrong_types
def test_real_is_no_dtype():
    for real in ("float32", "no", jnp.float32, None):
        with pytest.raises(TypeError, match=here("PencilFFT") + "real must be True or False, got"):
            pfftjax.PencilFFT((4, 4, 4), grids()[0], real=real)


def test_dtypes_without_a_transform():
    plan = pfftjax.PencilFFT((4, 4, 4), grids()[0], real=True)
    x = jnp.zeros(plan.input.local_shape)
    for dtype in ("float16", "bfloat16"):
        with pytest.raises(TypeError, match=here("PencilFFT.forward") + "no transform of"):
            plan.forward(x.astype(dtype))
    with pytest.raises(TypeError, match=here("PencilFFT.forward") + "x is complex128, but"):
        plan.forward(x.astype(complex))


NO_BOXES = (
    (1.0, 2.0), 0.0, (1.0, -1.0, 1.0), float("nan"), float("inf"), np.float32(-1), np.int64(0),
    np.array([1, 1, -1]), jnp.float32(0), jnp.ones((3, 1)), "1", None, 1j,
)  # fmt: skip


@pytest.mark.wrong_types
def test_wavenumbers():
    grid = grids()[0]
    plan = pfftjax.PencilFFT((4, 4, 4), grid)
    for box in NO_BOXES:
        for function in (plan.wavenumbers, lambda box: sharded.wavenumbers((4, 4, 4), box)):
            with pytest.raises(ValueError, match=here("wavenumbers") + "box_size must be a posit"):
                function(box)
    # Rounded to integers they would be others.
    for dtype in (int, complex):
        for function in (
            plan.wavenumbers,
            lambda *x: pfftjax.wavenumbers((4, 4, 4), grid, *x[:1], dtype=x[1]),
            lambda *x: sharded.wavenumbers((4, 4, 4), *x[:1], dtype=x[1]),
        ):
            with pytest.raises(TypeError, match=here("wavenumbers") + "wavenumbers are floating"):
                function(1.0, dtype)
    with pytest.raises(ValueError, match=here("PencilFFT") + "the global shape must be three"):
        pfftjax.wavenumbers((4, 4), grid, 1.0)
    # Those of a cube would broadcast against the spectrum of another layout.
    with pytest.raises(ValueError, match=here("wavenumbers") + "layout must be transposed or nat"):
        sharded.wavenumbers((4, 4, 4), 1.0, layout="Natural")
    for shape in ((4, 4), (4, 4, 0)):
        with pytest.raises(
            ValueError, match=here("wavenumbers") + r"shape must be \(n0, n1, n2\)"
        ):
            sharded.wavenumbers(shape, 1.0)
    with pytest.raises(TypeError, match=here("wavenumbers") + "shape must be static integers"):
        sharded.wavenumbers(4, 1.0)

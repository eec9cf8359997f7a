"""What operators refuse, in words that name operation, rank, shapes and remedy."""

import jax.numpy as jnp
import numpy as np
import pytest

from pfftjax import PencilFFT, spectral
from tests.distributed import grids
from tests.fft.test_errors import NO_BOXES, here

pytestmark = [pytest.mark.mpi, pytest.mark.ranks(1, 2, 4)]

BOX = 2.0
SCALARS = {
    "gradient": lambda x, p, **way: spectral.gradient(x, p, BOX, **way),
    "apply": lambda x, p, **way: spectral.apply(x, p, BOX, lambda *k: k[0], **way),
    "laplacian": lambda x, p, **way: spectral.laplacian(x, p, BOX, **way),
    "inverse_laplacian": lambda x, p, **way: spectral.inverse_laplacian(x, p, BOX, **way),
    "gaussian_smoothing": lambda x, p, **way: spectral.gaussian_smoothing(x, p, BOX, 1.0, **way),
    "top_hat_smoothing": lambda x, p, **way: spectral.top_hat_smoothing(x, p, BOX, 1.0, **way),
    "deconvolve": spectral.deconvolve,
}
VECTORS = {
    "divergence": lambda v, p, **way: spectral.divergence(v, p, BOX, **way),
    "curl": lambda v, p, **way: spectral.curl(v, p, BOX, **way),
}


def _plan(real=True):
    return PencilFFT((4, 6, 8), grids()[0], real=real)


@pytest.mark.parametrize("name", [*SCALARS, *VECTORS])
def test_blocks(name):
    plan = _plan()
    if name in SCALARS:
        function = SCALARS[name]
    else:

        def function(x, plan, **way):
            return VECTORS[name]((x, x, x), plan, **way)

    field = jnp.zeros(plan.input.local_shape)
    spectrum = jnp.zeros(plan.output.local_shape, complex)
    with pytest.raises(ValueError, match=here(name) + r"the block of the field has shape \(9,"):
        function(jnp.zeros((9, 9, 9)), plan)
    with pytest.raises(ValueError, match=here(name) + r".*for the other one pass from_spectrum=T"):
        function(spectrum, plan)
    with pytest.raises(ValueError, match=here(name) + r".*block of the spectrum .*spectrum=False"):
        function(field, plan, from_spectrum=True)
    with pytest.raises(TypeError, match=here(name) + "the field is complex128, but the plan"):
        function(field + 0j, plan)
    with pytest.raises(TypeError, match=here(name) + "no transform of float16"):
        function(field.astype("float16"), plan)


@pytest.mark.wrong_types
@pytest.mark.parametrize("name", [*SCALARS, *VECTORS])
def test_other_types(name):
    plan = _plan()
    field = jnp.zeros(plan.input.local_shape)
    function, x = (SCALARS[name], field) if name in SCALARS else (VECTORS[name], (field,) * 3)
    with pytest.raises(TypeError, match=f"^{name}: the plan must be a pfftjax.PencilFFT or "):
        function(x, BOX)
    if name in VECTORS:
        with pytest.raises(ValueError, match=here(name) + "a vector has three components"):
            function(3.0, plan)


@pytest.mark.parametrize("name", VECTORS)
def test_vectors(name):
    plan = _plan()
    x = jnp.zeros(plan.input.local_shape)
    for wrong in ((x, x), jnp.zeros((2, *x.shape))):
        with pytest.raises(ValueError, match=here(name) + "a vector has three components"):
            VECTORS[name](wrong, plan)
    with pytest.raises(ValueError, match=here(name) + "the components have shapes"):
        VECTORS[name]((x, x[None], x), plan)
    # An array with the components in front will do, and integers become floating-point numbers.
    stacked = VECTORS[name](jnp.zeros((3, *x.shape), int), plan)
    assert all(part.dtype == "float64" for part in jnp.atleast_1d(*stacked))


@pytest.mark.wrong_types
def test_boxes_radii_and_kernels():
    plan = _plan(real=False)
    x = jnp.zeros(plan.input.local_shape)
    for box in NO_BOXES:
        with pytest.raises(ValueError, match=here("gradient") + "box_size must be a positive"):
            spectral.gradient(x, plan, box)
        with pytest.raises(ValueError, match=here("laplacian") + "box_size must be a positive"):
            spectral.laplacian(x, plan, box)
    for smooth in (spectral.gaussian_smoothing, spectral.top_hat_smoothing):
        with pytest.raises(ValueError, match=here(smooth.__name__) + "the radius must be a leng"):
            smooth(x, plan, BOX, -1.0)
        for radius in (np.float32(-1), jnp.float64(np.inf), jnp.ones(2), "1"):
            with pytest.raises(ValueError, match="the radius must be a length"):
                smooth(x, plan, BOX, radius)
    with pytest.raises(ValueError, match=here("deconvolve") + "kernel must be one of ngp, cic"):
        spectral.deconvolve(x, plan, "sharp")
    with pytest.raises(ValueError, match=here("deconvolve") + "times is how often"):
        spectral.deconvolve(x, plan, times=-1)
    with pytest.raises(ValueError, match=here("apply") + r"the kernel returned .*\(5, 1, 1\)"):
        spectral.apply(x, plan, BOX, lambda *_: jnp.ones((5, 1, 1)))
    # Broadcasting must not make the block another one.
    small = PencilFFT((1, 1, 1), grids()[0])
    one = jnp.zeros(small.input.local_shape)
    with pytest.raises(ValueError, match=here("apply") + "the kernel returned a multiplier"):
        spectral.apply(one, small, BOX, lambda *_: jnp.ones((2, 2, 2)))

"""Transforms of two axes against numpy on the gathered array."""

import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import pfftjax
from pfftjax import PencilTransform, ProcessGrid
from tests.distributed import COMPLEX, TOLERANCE, assert_block, methods, total, transformed
from tests.helpers import SIZE, here, random

pytestmark = [pytest.mark.mpi, pytest.mark.timeout(300), pytest.mark.ranks(1, 3)]

SHAPES = ((8, 6), (7, 5), (1, 9), (3, 1), (13, 2), (1, 1), (2, 29))


def slabs():
    return ProcessGrid((SIZE, 1))


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_functions_against_numpy(dtype):
    """One plane and a batch of them are transformed in both directions."""
    grid, cases, turn = slabs(), [], itertools.cycle(methods())
    options = itertools.cycle(
        itertools.product(("backward", "ortho", "forward"), ("transposed", "natural"))
    )
    for shape, (real, lead) in itertools.product(SHAPES, ((False, ()), (True, (3,)))):
        norm, layout = next(options)
        kinds = ("fft", "rfft" if real else "fft")
        plan = PencilTransform(shape, grid, kinds, norm=norm, layout=layout, method=next(turn))
        X = random((*lead, *shape), dtype if real else COMPLEX[dtype], 1)
        Y = random((*lead, *plan.spectral_shape), COMPLEX[dtype], 2)
        cases.append((plan, X, Y))

    @jax.jit
    def everything(blocks):
        results = []
        for (plan, _, _), (x, y) in zip(cases, blocks, strict=True):
            name = plan.kinds[-1] + "2d"
            forward, inverse = getattr(pfftjax, name), getattr(pfftjax, "i" + name)
            names = ("shape", "norm", "layout", "method")
            options = {name: getattr(plan, name) for name in names}
            results.append((forward(x, grid, **options), inverse(y, grid, **options)))
        return results

    blocks = [(p.input.local_block(X), p.output.local_block(Y)) for p, X, Y in cases]
    for (plan, X, Y), (forward, inverse) in zip(cases, everything(blocks), strict=True):
        wide = X.astype("complex128" if np.iscomplexobj(X) else "float64")
        options = {"axes": (-2, -1), "norm": plan.norm}
        if plan.kinds[-1] == "rfft":
            expected = np.fft.rfft2(wide, **options)
            back = np.fft.irfft2(Y.astype(complex), plan.shape, **options)
        else:
            expected = np.fft.fft2(wide, **options)
            back = np.fft.ifft2(Y.astype(complex), **options)
        assert forward.dtype == Y.dtype
        assert inverse.dtype == X.dtype
        assert_block(forward, expected, plan.output, TOLERANCE[dtype])
        assert_block(inverse, back, plan.input, TOLERANCE[dtype])


def test_between_walls_and_derivatives():
    """Kinds of each axis, and the adjoint of both directions by dot products."""
    grid = slabs()
    mixes = (("dct2", "rfft"), ("fft", "dst1"), ("dst4", "dct3"), ("dct1", "fft"))
    plans = [
        PencilTransform((7, 6), grid, kinds, norm=norm, layout=layout)
        for kinds, norm, layout in zip(
            mixes,
            ("ortho", "backward", "forward", "ortho"),
            ("natural", "transposed") * 2,
            strict=True,
        )
    ]
    wholes = []
    for plan in plans:
        spectral = "complex128" if {"fft", "rfft"} & set(plan.kinds) else "float64"
        wholes.append((random(plan.shape, seed=3), random(plan.spectral_shape, spectral, 4)))

    @jax.jit
    def everything(blocks):
        results = []
        for plan, (x, v) in zip(plans, blocks, strict=True):
            y, pull = jax.vjp(plan.forward, x)
            back, pull_inverse = jax.vjp(plan.inverse, v)
            results.append((y, pull(v)[0], back, pull_inverse(back)[0], plan.inverse(y)))
        return results

    blocks = [
        (p.input.local_block(X), p.output.local_block(V))
        for p, (X, V) in zip(plans, wholes, strict=True)
    ]
    for plan, (X, _), (x, v), result in zip(
        plans, wholes, blocks, everything(blocks), strict=True
    ):
        y, pulled, back, pulled_inverse, again = result
        assert_block(y, transformed(plan, X), plan.output, 1e-13)
        assert_block(again, X, plan.input, 1e-13)
        left, right = total(y, v).real, total(x, pulled).real
        assert abs(left - right) < 1e-12 * total(np.abs(y), np.abs(v)).real
        left, right = total(back, back), total(v, pulled_inverse)
        assert abs((left - right).real) < 1e-12 * total(np.abs(back), np.abs(back)).real


def test_a_batch_is_one_message():
    plan = PencilTransform((6, 5), slabs(), ("fft", "rfft"))
    x = jnp.asarray(plan.input.local_block(random((6, 5))))
    batch = jnp.stack([x, 2 * x])
    y = plan.forward(x)
    for function in (plan.forward, jax.vmap(plan.forward)):
        np.testing.assert_allclose(jax.jit(function)(batch), jnp.stack([y, 2 * y]), atol=1e-13)
        text = str(jax.make_jaxpr(function)(batch))
        assert text.count("pencil_transpose[") == (SIZE > 1)


def test_wavenumbers():
    plan = PencilTransform((5, 6), slabs(), ("dst4", "rfft"))
    kx, ky = plan.wavenumbers((np.pi, 2 * np.pi))
    assert kx.ravel().tolist() == [0.5, 1.5, 2.5, 3.5, 4.5]
    start, count = plan.output.range_of(1)
    assert ky.ravel().tolist() == list(range(start, start + count))


@pytest.mark.skipif(SIZE > 1, reason="one rank can tell the shape")
def test_shapes_of_one_rank():
    x = random((4, 6))
    for layout in ("transposed", "natural"):
        y = pfftjax.fft2d(x, slabs(), layout=layout)
        np.testing.assert_allclose(pfftjax.ifft2d(y, slabs(), layout=layout), x, atol=1e-14)


@pytest.mark.wrong_types
@pytest.mark.parametrize("name", ["fft2d", "ifft2d", "rfft2d", "irfft2d"])
def test_a_grid_is_needed(name):
    with pytest.raises(TypeError, match=f"{name}: grid must be a ProcessGrid, got NoneType"):
        getattr(pfftjax, name)(jnp.zeros((4, 4)), None)


def test_mistakes():
    grid = slabs()
    for name in ("fft2d", "ifft2d", "rfft2d", "irfft2d"):
        function = getattr(pfftjax, name)
        if SIZE > 1 or name == "irfft2d":
            with pytest.raises(ValueError, match=here(name) + r"give shape=\(n0, n1\)"):
                function(jnp.zeros((4, 4)), grid)
        with pytest.raises(ValueError, match=here(name) + r"shape must be \(n0, n1\)"):
            function(jnp.zeros((4, 4)), grid, shape=(4, 4, 4))
        with pytest.raises(ValueError, match="the block has shape"):
            function(jnp.zeros((9, 9)), grid, shape=(4, 4))
    if SIZE > 1:
        with pytest.raises(ValueError, match=rf"in slabs, over a grid of \({SIZE}, 1\), but"):
            PencilTransform((4, 4), ProcessGrid((1, SIZE)), ("fft", "fft"))

"""Every plan against numpy on the gathered array: values and derivatives."""

import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import pfftjax
from tests.distributed import (
    COMPLEX,
    SHAPES,
    TOLERANCE,
    Model,
    alone,
    assert_block,
    by_method,
    grids,
    methods,
    total,
)
from tests.helpers import CONTROL, RANK, SIZE, drawn, random

pytestmark = [pytest.mark.mpi, pytest.mark.timeout(300), pytest.mark.messages]


def check(plans, dtype):
    """Both directions, their transposes and tangents; complex probes.

    All plans in one program: compiled before anything is exchanged, so that ranks that share cores
    do not wait for each other between many small compilations.
    """
    complex_dtype, tolerance = COMPLEX[dtype], TOLERANCE[dtype]

    @jax.jit
    def everything(operands):
        results = []
        for plan, (x, t, y, s) in zip(plans, operands, strict=True):
            forward, pull = jax.vjp(plan.forward, x)
            inverse, pull_inverse = jax.vjp(plan.inverse, y)
            pushed = jax.jvp(plan.forward, (x,), (t,))[1]
            pushed_inverse = jax.jvp(plan.inverse, (y,), (s,))[1]
            transposed = pull(y)[0], pull_inverse(x)[0]
            results.append((forward, inverse, *transposed, pushed, pushed_inverse))
        return results

    wholes, operands = [], []
    for plan in plans:
        here = dtype if plan.real else complex_dtype
        X, T = (random(plan.shape, here, seed) for seed in (1, 2))
        Y, S = (random(plan.spectral_shape, complex_dtype, seed) for seed in (3, 4))
        wholes.append((X, T, Y, S))
        x, t = (plan.input.local_block(a) for a in (X, T))
        y, s = (plan.output.local_block(a) for a in (Y, S))
        operands.append((x, t, y, s))
    for plan, (X, T, Y, S), results in zip(plans, wholes, everything(operands), strict=True):
        model = Model(plan)
        real, spectral = (
            (plan.input, dtype if plan.real else complex_dtype),
            (plan.output, complex_dtype),
        )
        expected = [
            (model.forward(X), spectral),
            (model.inverse(Y), real),
            (model.forward_transposed(Y), real),
            (model.inverse_transposed(X), spectral),
            (model.forward(T), spectral),
            (model.inverse(S), real),
        ]
        for actual, (whole, (pencil, kind)) in zip(results, expected, strict=True):
            assert actual.dtype == kind
            assert_block(actual, whole, pencil, tolerance)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_against_numpy(shape, dtype):
    options = itertools.product(
        grids(), (False, True), ("backward", "ortho"), ("transposed", "natural")
    )
    # In turn, beginning with another for each shape: the full product is that of `make matrix`.
    turn = itertools.islice(itertools.cycle(methods()), sum(shape) % len(methods()), None)
    plans = [
        pfftjax.PencilFFT(shape, grid, real=real, norm=norm, layout=layout, method=next(turn))
        for grid, real, norm, layout in options
    ]
    check(plans, dtype)


@drawn(6)
@given(data=st.data())
def test_any_shape(data):
    plans = [
        pfftjax.PencilFFT(
            data.draw(st.tuples(*[st.integers(1, 13)] * 3)),
            data.draw(st.sampled_from(grids())),
            real=data.draw(st.booleans()),
            norm=data.draw(st.sampled_from(["backward", "ortho", "forward"])),
            layout=data.draw(st.sampled_from(["transposed", "natural"])),
            method=data.draw(st.sampled_from(methods())),
        )
        for _ in range(8)
    ]
    check(plans, "float64")


@pytest.mark.parametrize("dtype", ["float32", "float64", "complex64", "complex128"])
@pytest.mark.parametrize("shape", [(12, 10, 14), (13, 7, 30), SHAPES[-1]], ids=str)
def test_the_bits_depend_on_neither_grid_nor_method(shape, dtype):
    """Against this rank alone with the whole array; and from run to run."""
    real = not dtype.startswith("complex")
    X = random(shape, dtype, seed=5)
    reference = None
    for grid in [alone(), *grids()]:
        plan = pfftjax.PencilFFT(shape, grid, real=real)
        x = jnp.asarray(plan.input.local_block(X))
        plans = by_method(plan)
        forward = jax.jit(lambda x, plans=plans: [plan.forward(x) for plan in plans])
        inverse = jax.jit(lambda y, plans=plans: [plan.inverse(y) for plan in plans])
        ys = forward(x)
        y = ys[0]
        zs = inverse(y)
        z = zs[0]
        if reference is None:
            # Back to global order.
            reference = np.asarray(y).transpose(2, 0, 1), np.asarray(z)
        for y, z in zip(ys, zs, strict=True):
            np.testing.assert_array_equal(y, plan.output.local_block(reference[0]))
            np.testing.assert_array_equal(z, plan.input.local_block(reference[1]))
        for _ in range(3):
            np.testing.assert_array_equal(forward(x)[0], y)


def _matrix(function, size):
    """The matrix of a linear function of `size` real numbers."""
    return np.stack([function(row).ravel() for row in np.eye(size)], axis=1)


@pytest.mark.parametrize("shape", [(4, 6, 5), (4, 5, 6)], ids=str)
def test_hermitian_weights_against_dense_matrices(shape):
    """A forgotten weight of the Nyquist plane shows for even n2 only, other mistakes for odd."""
    n = int(np.prod(shape))
    spectral = (*shape[:2], shape[2] // 2 + 1)
    m = int(np.prod(spectral))
    rfftn = _matrix(lambda v: np.fft.rfftn(v.reshape(shape)), n)
    irfftn = [
        _matrix(
            lambda v, unit=unit: np.fft.irfftn(unit * v.reshape(spectral), shape, (0, 1, 2)), m
        )
        for unit in (1, 1j)
    ]
    c, u = random(spectral, "complex128", 6), random(shape, "float64", 7)
    # JAX pairs y = Re(z) with the cotangent u + 0i, and y = Im(z) with -i u.
    expected_c = np.real(rfftn.T @ c.ravel()).reshape(shape)
    expected_u = (irfftn[0].T @ u.ravel() - 1j * (irfftn[1].T @ u.ravel())).reshape(spectral)
    plans = [pfftjax.PencilFFT(shape, grid, real=True) for grid in grids()]

    @jax.jit
    def transposed(cs, us):
        return [
            (
                jax.vjp(plan.forward, u)[1](c)[0],
                jax.vjp(plan.inverse, c)[1](u)[0],
                plan.hermitian_weights() * jnp.abs(plan.forward(u)) ** 2,
            )
            for plan, c, u in zip(plans, cs, us, strict=True)
        ]

    results = transposed(
        [plan.output.local_block(c) for plan in plans], [p.input.local_block(u) for p in plans]
    )
    for plan, (of_c, of_u, power) in zip(plans, results, strict=True):
        assert_block(of_c, expected_c, plan.input, 1e-13)
        assert_block(of_u, expected_u, plan.output, 1e-13)
        # Each coefficient as often as it occurs in the whole spectrum: Parseval.
        assert abs(total(power, 1.0) / n - np.sum(u**2)) < 1e-12 * np.sum(u**2)


def test_functions_are_those_of_the_plan():
    shape = (6, 7, 8)
    X = random(shape, "complex128")
    for grid in grids():
        for real, layout in itertools.product((False, True), ("transposed", "natural")):
            plan = pfftjax.PencilFFT(shape, grid, real=real, norm="ortho", layout=layout)
            options = {"shape": shape, "norm": "ortho", "layout": layout}
            forward, inverse = (
                (pfftjax.rfft3d, pfftjax.irfft3d) if real else (pfftjax.fft3d, pfftjax.ifft3d)
            )
            x = jnp.asarray(plan.input.local_block(X.real if real else X))
            y = forward(x, grid, **options)
            np.testing.assert_array_equal(y, plan.forward(x))
            np.testing.assert_array_equal(inverse(y, grid, **options), plan.inverse(y))
            if grid.size == 1:
                del options["shape"]
                np.testing.assert_array_equal(forward(x, grid, **options), y)
                if not real:
                    np.testing.assert_array_equal(inverse(y, grid, **options), plan.inverse(y))


def test_integers_and_real_input_of_a_complex_plan():
    shape = (4, 6, 5)
    X = np.random.default_rng(0).integers(0, 9, shape)
    for grid in grids():
        for real in (False, True):
            plan = pfftjax.PencilFFT(shape, grid, real=real)
            y = plan.forward(jnp.asarray(plan.input.local_block(X)))
            assert y.dtype == "complex128"
            assert_block(y, Model(plan).forward(X), plan.output, 1e-13)


@pytest.mark.parametrize("shape", [(4, 6, 5), (1, 2, 8)], ids=str)
def test_wavenumbers(shape):
    sides = (3.0, 5.0, 7.0)
    kinds = itertools.product(grids(), (False, True), ("transposed", "natural"))
    plans = [pfftjax.PencilFFT(shape, g, real=real, layout=layout) for g, real, layout in kinds]

    @jax.jit
    def by_plan_and_by_function(sides):
        return [
            (
                plan.wavenumbers(sides),
                pfftjax.wavenumbers(shape, plan.grid, sides, real=plan.real, layout=plan.layout),
            )
            for plan in plans
        ]

    for plan, results in zip(plans, by_plan_and_by_function(sides), strict=True):
        expected = [
            2 * np.pi * np.fft.fftfreq(n, side / n) for n, side in zip(shape, sides, strict=True)
        ]
        if plan.real:
            expected[2] = 2 * np.pi * np.fft.rfftfreq(shape[2], sides[2] / shape[2])
        mesh = np.meshgrid(*expected, indexing="ij")
        for k in results:
            for component, whole in zip(k, mesh, strict=True):
                block = np.broadcast_to(component, plan.output.local_shape)
                assert_block(block, whole, plan.output, 1e-15)
    assert plan.wavenumbers(1.0, "float32")[0].dtype == "float32"
    slope = jax.grad(lambda side: jnp.sum(plan.wavenumbers((1.0, 2.0, side))[2]))(3.0)
    assert abs(slope + plan.wavenumbers((1.0, 2.0, 3.0))[2].sum() / 3) < 1e-12


def test_the_program_is_the_same_on_all_ranks():
    """So that one compilation cache serves them all: no rank enters it, wavenumbers included."""
    for grid in grids():
        plan = pfftjax.PencilFFT((4 * SIZE, 4 * SIZE, 8 * SIZE), grid)

        def smoothed(x, plan=plan):
            k2 = sum(k**2 for k in plan.wavenumbers(1.0))
            return plan.inverse(jnp.exp(-k2) * plan.forward(x))

        x = jnp.zeros(plan.input.local_shape)
        texts = CONTROL.allgather(jax.jit(smoothed).lower(x).as_text())
        assert len(set(texts)) == 1, RANK

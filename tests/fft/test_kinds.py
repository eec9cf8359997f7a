"""Transforms of a kind for each axis, against scipy on the gathered array."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.fft

import pfftjax
from pfftjax import PencilTransform
from pfftjax.fft._trigonometric import INVERSES, TrigonometricTransform, logical_size
from tests.distributed import (
    COMPLEX,
    TOLERANCE,
    assert_block,
    grids,
    methods,
    points,
    total,
    transformed,
)
from tests.helpers import SIZE, here, on_one_rank, random
from tests.programs import steps

pytestmark = [pytest.mark.mpi, pytest.mark.timeout(300), pytest.mark.ranks(1, 3)]

NORMS = ("backward", "ortho", "forward")
# Each kind along each axis, in real and complex company; even, odd, prime, 1, fewer than ranks.
PLANS = (
    ((8, 6, 10), ("fft", "fft", "dct2")),
    ((7, 5, 9), ("dct2", "fft", "rfft")),
    ((3, 13, 2), ("dst1", "dct1", "rfft")),
    ((6, 1, 7), ("dct3", "dst2", "dct4")),
    ((5, 8, 6), ("dst4", "fft", "dst3")),
    ((2, 9, 5), ("dct1", "dst3", "fft")),
    ((11, 1, 1), ("fft", "dct4", "dst1")),
    ((4, 7, 12), ("dst2", "dct3", "dst4")),
    ((9, 3, 4), ("dct4", "dst1", "dct1")),
    ((6, 5, 8), ("dst3", "fft", "fft")),
    ((5, 4, 7), ("fft", "dst4", "dst2")),
    ((4, 6, 5), ("fft", "dct2", "dct3")),
)


def plans(chosen=PLANS):
    """Each of PLANS; grids of this many ranks, norms, layouts and methods in turn."""
    for i, (shape, kinds) in enumerate(chosen):
        grid, norm = grids()[i % len(grids())], NORMS[i // 2 % 3]
        layout = ("transposed", "natural")[i // 3 % 2]
        method = methods()[i % len(methods())]
        yield PencilTransform(shape, grid, kinds, norm=norm, layout=layout, method=method)


def becomes_complex(plan):
    return bool({"fft", "rfft"} & set(plan.kinds))


@on_one_rank
@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("kind", INVERSES)
def test_lines_against_scipy(kind, dtype):
    lengths = (1, 2, 3, 4, 7, 15, 64, 500, 1021)
    xs = {n: random((3, n), dtype, n) for n in lengths if (kind, n) != ("dct1", 1)}

    @jax.jit
    def results(xs):
        return {
            n: [
                TrigonometricTransform(kind, n, 1.0, orthogonal=False)(x),
                TrigonometricTransform(kind, n, logical_size(kind, n) ** -0.5, orthogonal=True)(x),
            ]
            for n, x in xs.items()
        }

    function = getattr(scipy.fft, kind[:3])
    for n, ys in results(xs).items():
        limit = 1e-6 if dtype == "float32" else 1e-14 * max(np.log2(n), 1)
        for y, norm in zip(ys, NORMS[:2], strict=True):
            expected = function(xs[n].astype(float), int(kind[3]), norm=norm)
            assert y.dtype == dtype
            error = np.abs(np.asarray(y) - expected).max() / np.abs(expected).max()
            assert error <= limit, (n, norm, error)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_against_scipy(dtype):
    """Both directions, of real arrays and complex ones."""
    cases = []
    for plan in plans(PLANS[:: 1 if dtype == "float64" else 3]):
        dtypes = [dtype] if plan.kinds[-1] == "rfft" else [dtype, COMPLEX[dtype]]
        for kind in dtypes:
            spectral = COMPLEX[dtype] if becomes_complex(plan) else kind
            X, Y = random(plan.shape, kind, 1), random(plan.spectral_shape, spectral, 2)
            cases.append((plan, X, Y))

    @jax.jit
    def everything(blocks):
        return [
            (plan.forward(x), plan.inverse(y))
            for (plan, _, _), (x, y) in zip(cases, blocks, strict=True)
        ]

    blocks = [(p.input.local_block(X), p.output.local_block(Y)) for p, X, Y in cases]
    for (plan, X, Y), (forward, inverse) in zip(cases, everything(blocks), strict=True):
        assert forward.dtype == Y.dtype
        wide = [a.astype("complex128" if np.iscomplexobj(a) else "float64") for a in (X, Y)]
        assert_block(forward, transformed(plan, wide[0]), plan.output, TOLERANCE[dtype])
        expected = transformed(plan, wide[1], inverse=True)
        assert_block(inverse, expected, plan.input, TOLERANCE[dtype])
        real = plan.kinds[-1] == "rfft" or not np.iscomplexobj(Y)
        assert inverse.dtype == (dtype if real else COMPLEX[dtype])


def test_there_and_back_and_adjoint():
    """The inverse undoes; <A x, v> = <x, A^T v> over all ranks, with complex probes."""
    cases = []
    # Compiling is what takes time: half of them on many ranks, empty blocks among them.
    for plan in plans(PLANS if SIZE == 1 else PLANS[SIZE % 2 :: 2]):
        complex_input = "fft" in plan.kinds and plan.kinds[-1] != "rfft"
        X = random(plan.shape, "complex128" if complex_input else "float64", 3)
        Y = random(plan.spectral_shape, "complex128" if becomes_complex(plan) else "float64", 4)
        cases.append((plan, plan.input.local_block(X), plan.output.local_block(Y)))

    @jax.jit
    def everything(blocks):
        results = []
        for (plan, _, _), (x, y) in zip(cases, blocks, strict=True):
            forward, pull = jax.vjp(plan.forward, x)
            inverse, pull_inverse = jax.vjp(plan.inverse, y)
            tangent = jax.jvp(plan.forward, (x,), (2 * x,))[1]
            back = plan.inverse(forward)
            results.append((forward, pull(y)[0], inverse, pull_inverse(x)[0], tangent, back))
        return results

    results = everything([(x, y) for _, x, y in cases])
    for (plan, x, y), result in zip(cases, results, strict=True):
        forward, pulled, inverse, pulled_inverse, tangent, back = result
        np.testing.assert_allclose(back, x, atol=1e-13)
        # The same program twice, which XLA may round differently.
        np.testing.assert_allclose(tangent, 2 * forward, rtol=1e-12, atol=1e-12)
        for there, u, back, v in (
            (forward, y, pulled, x),
            (inverse, x, pulled_inverse, y),
        ):
            left, right = total(there, u), total(back, v)
            if not (np.iscomplexobj(there) and np.iscomplexobj(v)):
                left, right = left.real, right.real
            size = total(np.abs(there), np.abs(u)).real
            assert abs(left - right) <= 1e-13 * size, plan


def test_vmap_is_one_transform_of_a_batch():
    for plan in plans(PLANS[:2]):
        x = jnp.asarray(plan.input.local_block(random(plan.shape, "float64", 5)))
        batch = jnp.stack([x, 2 * x, 3 * x], axis=1)
        y = jax.jit(plan.forward)(x)
        together = jax.jit(jax.vmap(plan.forward, 1))(batch)
        np.testing.assert_allclose(together, jnp.stack([y, 2 * y, 3 * y]), atol=1e-12)
        once = steps(plan.forward, x)
        assert once
        assert steps(jax.vmap(plan.forward, 1), batch) == once
        gradient = jax.jit(jax.grad(lambda x, p=plan: jnp.sum(jnp.abs(p.forward(x)) ** 2)))
        X, step = np.asarray(random(plan.shape, "float64", 5)), 1e-5
        T = random(plan.shape, "float64", 6)
        energy = [np.sum(np.abs(transformed(plan, X + s * step * T)) ** 2) for s in (1, -1)]
        slope = total(gradient(x), plan.input.local_block(T)).real
        assert abs(slope - (energy[0] - energy[1]) / (2 * step)) < 1e-6 * abs(energy[0])


def test_wavenumbers_are_those_of_the_functions():
    """cos(k x) or sin(k x) at the points of an axis has the one coefficient that has this k."""
    sides = (3.0, 5.0, 7.0)
    plans = {
        kind: PencilTransform((5, 6, 7), grids()[-1], (kind, "fft", kind), layout="natural")
        for kind in INVERSES
    }
    fields = {}
    waves = jax.jit(lambda: {kind: plan.wavenumbers(sides) for kind, plan in plans.items()})()
    for kind, plan in plans.items():
        kx, ky, kz = (np.asarray(k) for k in waves[kind])
        assert_block(
            ky, 2 * np.pi / 5 * np.fft.fftfreq(6, 1 / 6)[None, :, None], _only(plan, 1), 0
        )
        assert kx.shape[1:] == (1, 1)
        assert kz.shape[:2] == (1, 1)
        (x, wave), (z, _) = points(kind, 5, 3.0), points(kind, 7, 7.0)
        field = wave(kz.ravel()[4] * z)
        # Every rank holds all of axis 2, and some rows of axis 0.
        start, count = plan.output.range_of(0)
        offset = {"1": 0, "2": 0, "3": 0.5, "4": 0.5}[kind[3]] + (kind in ("dst1", "dst2"))
        np.testing.assert_allclose(
            kx.ravel(), np.pi / 3 * (np.arange(start, start + count) + offset), rtol=1e-14
        )
        X = wave(np.pi / 3 * (1 + offset) * x)[:, None, None] * np.ones((1, 6, 1)) * field
        fields[kind] = X, plan.input.local_block(X)
    spectra = jax.jit(lambda xs: {kind: plans[kind].forward(x) for kind, x in xs.items()})(
        {kind: x for kind, (_, x) in fields.items()}
    )
    for kind, plan in plans.items():
        expected = np.zeros((5, 6, 7), complex)
        expected[1, 0, 4] = transformed(plan, fields[kind][0])[1, 0, 4]
        assert abs(expected[1, 0, 4]) > 1
        assert_block(spectra[kind], expected, plan.output, 1e-14)


def _only(plan, axis):
    """The pencil of an array that has one point along the axes but one."""
    shape = [1, 1, 1]
    shape[axis] = plan.spectral_shape[axis]
    whole = plan.output

    class Line:
        @staticmethod
        def local_block(x):
            start, count = whole.range_of(axis)
            return x[:, start : start + count]

    return Line


def test_hermitian_weights_and_values():
    grid = grids()[0]
    plan = PencilTransform((4, 5, 6), grid, ("dct2", "fft", "rfft"), norm="ortho")
    same = PencilTransform([4, 5, 6], grid, ["dct2", "fft", "rfft"], norm="ortho")
    assert plan == same
    assert hash(plan) == hash(same)
    assert plan != PencilTransform((4, 5, 6), grid, ("dct2", "fft", "rfft"))
    X = random((4, 5, 6))
    y = plan.forward(jnp.asarray(plan.input.local_block(X)))
    power = plan.hermitian_weights() * jnp.abs(y) ** 2
    assert abs(total(power, 1.0) - np.sum(X**2)) < 1e-12 * np.sum(X**2)
    whole = PencilTransform((4, 5, 6), grid, ("fft", "fft", "dct2"))
    assert whole.hermitian_weights().shape == (1, 1, 1)


def test_all_fft_is_the_plan_of_that_name():
    for grid in grids():
        for real, last in ((False, "fft"), (True, "rfft")):
            plan = pfftjax.PencilFFT((6, 5, 8), grid, real=real)
            same = PencilTransform((6, 5, 8), grid, ("fft", "fft", last))
            assert (plan.input, plan.output) == (same.input, same.output)
            x = jnp.asarray(plan.input.local_block(random((6, 5, 8))))
            np.testing.assert_allclose(same.forward(x), plan.forward(x), atol=1e-12)


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"kinds": ("fft", "fft")}, "kinds must be one of fft, rfft, dct1, .* got"),
        ({"kinds": ("fft", "fft", "dct5")}, r"kinds must be one of .*'dct5'"),
        ({"kinds": "fft"}, "kinds must be one of"),
        ({"kinds": ("rfft", "fft", "fft")}, "only the last axis can have the kind 'rfft'"),
        ({"shape": (4, 1, 4), "kinds": ("fft", "dct1", "fft")}, "'dct1' has a point on each wall"),
        ({"shape": (4, 4, 4, 4)}, "the global shape must be two or three positive sizes"),
        ({"shape": (4, 0, 4)}, "the global shape must be two or three positive sizes"),
    ],
)
def test_nonsense(options, text):
    arguments = {"shape": (4, 4, 4), "grid": grids()[0], "kinds": ("fft", "fft", "dct2")}
    with pytest.raises(ValueError, match=here("PencilTransform") + text):
        PencilTransform(**{**arguments, **options})


@pytest.mark.wrong_types
def test_arguments_of_other_types():
    grid = grids()[0]
    with pytest.raises(TypeError, match="PencilTransform: grid must be a ProcessGrid"):
        PencilTransform((4, 4, 4), (1, 1), ("fft",) * 3)
    for options, text in (
        ({"norm": "sideways"}, "norm must be one of backward, ortho, forward"),
        ({"layout": "sideways"}, "layout must be transposed or natural"),
    ):
        with pytest.raises(ValueError, match=here("PencilTransform") + text):
            PencilTransform((4, 4, 4), grid, ("fft", "fft", "dct2"), **options)


def test_what_a_plan_refuses():
    grid = grids()[0]
    plan = PencilTransform((4, 6, 8), grid, ("dct2", "fft", "rfft"))
    x = jnp.zeros(plan.input.local_shape)
    with pytest.raises(ValueError, match=here("PencilTransform.forward") + "the block has shape"):
        plan.forward(jnp.zeros((9, 9, 9)))
    with pytest.raises(ValueError, match=here("PencilTransform.inverse") + "the block has shape"):
        plan.inverse(jnp.zeros((9, 9, 9)))
    with pytest.raises(TypeError, match=here("PencilTransform.forward") + "x is complex128, but"):
        plan.forward(x.astype(complex))
    with pytest.raises(TypeError, match=here("PencilTransform.forward") + "no transform of"):
        plan.forward(x.astype("float16"))
    with pytest.raises(ValueError, match=here("wavenumbers") + "box_size must be a positive"):
        plan.wavenumbers((1.0, 2.0))
    assert plan.forward(x.astype(int)).dtype == "complex128"

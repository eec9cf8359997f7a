"""Padding and truncation against dense matrices and convolutions on the gathered array."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import pfftjax
from pfftjax import PencilFFT, PencilTransform
from pfftjax.fft._trigonometric import logical_size
from tests.distributed import TOLERANCE, assert_block, grids, methods, points, total
from tests.helpers import SIZE, here, random
from tests.programs import exchanges

pytestmark = [pytest.mark.mpi, pytest.mark.timeout(300), pytest.mark.ranks(1, 3)]

POWERS = {"backward": 1, "ortho": 0.5, "forward": 0}


def matrix(kind, n, m, norm):
    """Coefficients of n points to those of m, one frequency after the other."""
    scale = (logical_size(kind, m) / logical_size(kind, n)) ** POWERS[norm]
    if kind == "fft":
        result = np.zeros((m, n))
        for k in range(n):
            frequency = k if 2 * k < n else k - n
            there = [frequency]
            if n % 2 == 0 and k == n // 2 and m > n:
                there = [-n // 2, n // 2]
            for f in there:
                if 2 * abs(f) <= m:
                    result[f % m, k] = 1 / len(there)
    else:
        half = kind == "rfft"
        result = np.eye(m // 2 + 1 if half else m, n // 2 + 1 if half else n)
        fewer = min(n, m)
        last = fewer // 2 if half else fewer - 1
        # How often exp(i k x) and exp(-i k x) are in a coefficient at the end, and in others.
        at_the_end = kind in ("dct1", "dst2") or (half and fewer % 2 == 0)
        if at_the_end and n != m:
            weight = np.sqrt(0.5) if norm == "ortho" and not half else 0.5
            result[last, last] = weight if m > n else 1 / weight
    return scale * result


def resized(plan, target, y):
    """The whole spectrum of another plan."""
    for axis, kind in enumerate(plan.kinds):
        rows = matrix(kind, plan.shape[axis], target.shape[axis], plan.norm)
        y = np.moveaxis(np.tensordot(rows, y, (1, axis)), 0, axis)
    return y


def weights(plan, target):
    """w with pad^T = r^2 w truncate: at the Nyquist frequencies of axes that change."""
    result = np.ones(plan.spectral_shape)
    for axis, kind in enumerate(plan.kinds):
        n, m = plan.shape[axis], target.shape[axis]
        line = np.ones(plan.spectral_shape[axis])
        if n != m and n % 2 == 0 and kind in ("fft", "rfft"):
            line[n // 2] = 0.5 if kind == "fft" else 0.25
        shape = [1] * len(plan.shape)
        shape[axis] = -1
        ratio = m / n
        result = result * line.reshape(shape) * ratio ** (2 * POWERS[plan.norm])
    return result


SIZES = (((4, 6, 5), (6, 9, 8)), ((5, 3, 6), (5, 7, 9)), ((2, 1, 4), (3, 2, 5)), ((3, 7, 8),) * 2)
KINDS = (
    ("fft", "fft", "fft"),
    ("fft", "fft", "rfft"),
    ("dct2", "fft", "rfft"),
    ("dst2", "dct3", "fft"),
    ("dct1", "dst2", "dst1"),
    ("dst4", "dct4", "dst3"),
)
NORMS = ("backward", "ortho", "forward")


def weighted(kinds):
    """Whether norm="ortho" changes the values on a wall."""
    return bool({"dct1", "dct3", "dst3"} & set(kinds))


def pairs():
    """(plan, the same with more points), on one grid after the other."""
    for i, kinds in enumerate(KINDS):
        # Compiling is what takes time: on many ranks one size of each.
        for j in (0, 1, 2) if SIZE == 1 else (i % 2,):
            grid, norm = grids()[i % len(grids())], NORMS[(i + j) % 3]
            if norm == "ortho" and weighted(kinds):
                norm = "forward"
            if j == 2 and "dct1" in kinds:
                continue
            layout = ("natural", "transposed")[(i // 2 + j) % 2]
            method = methods()[(i + j) % len(methods())]
            yield tuple(
                PencilTransform(s, grid, kinds, norm=norm, layout=layout, method=method)
                for s in SIZES[j]
            )
    for grid in grids():
        yield tuple(PencilFFT(s, grid, real=True) for s in SIZES[2])
    yield tuple(PencilFFT(s, grids()[-1]) for s in SIZES[3])
    slabs = pfftjax.ProcessGrid((SIZE, 1))
    yield tuple(PencilTransform(s, slabs, ("fft", "rfft")) for s in ((5, 4), (7, 6)))


def dtype_of(plan):
    return "complex128" if {"fft", "rfft"} & set(plan.kinds) else "float64"


def test_coefficients_against_matrices():
    """Both directions, there and back, transposes, and the transforms that do it on their way."""
    cases = []
    for plan, fine in pairs():
        Y = random(plan.spectral_shape, dtype_of(plan), 1)
        Z = random(fine.spectral_shape, dtype_of(plan), 2)
        real = plan.kinds[-1] == "rfft" or dtype_of(plan) == "float64"
        X = random(fine.shape, "float64" if real else "complex128", 3)
        cases.append((plan, fine, Y, Z, X))

    @jax.jit
    def everything(blocks):
        results = []
        for (plan, fine, *_), (y, z, x) in zip(cases, blocks, strict=True):
            padded, pull = jax.vjp(lambda y, p=plan, f=fine: pfftjax.pad_spectrum(y, p, f), y)
            smaller, pull_smaller = jax.vjp(
                lambda z, p=plan, f=fine: pfftjax.truncate_spectrum(z, f, p), z
            )
            interpolated = pfftjax.padded_inverse(y, plan, fine)
            kept = pfftjax.truncated_forward(x, fine, plan)
            results.append(
                {
                    "padded": padded,
                    "smaller": smaller,
                    "again": pfftjax.truncate_spectrum(padded, fine, plan),
                    "pulled": pull(z)[0],
                    "pulled smaller": pull_smaller(y)[0],
                    "interpolated": (interpolated, fine.inverse(padded)),
                    "kept": (
                        plan.inverse(kept),
                        plan.inverse(pfftjax.truncate_spectrum(fine.forward(x), fine, plan)),
                    ),
                    "spectrum kept": (kept, fine.forward(x)),
                }
            )
        return results

    blocks = [
        (p.output.local_block(Y), f.output.local_block(Z), f.input.local_block(X))
        for p, f, Y, Z, X in cases
    ]
    for (plan, fine, Y, Z, _), (y, z, _), result in zip(
        cases, blocks, everything(blocks), strict=True
    ):
        assert result["padded"].dtype == y.dtype
        assert_block(result["padded"], resized(plan, fine, Y), fine.output, 1e-14)
        assert_block(result["smaller"], resized(fine, plan, Z), plan.output, 1e-14)
        assert_block(result["again"], Y, plan.output, 1e-14)
        for there, back, v, u in (
            ("padded", "pulled", z, y),
            ("smaller", "pulled smaller", y, z),
        ):
            left, right = total(result[there], v), total(result[back], u)
            assert abs(left - right) < 1e-12 * total(np.abs(result[there]), np.abs(v)).real
        if set(plan.kinds) <= {"fft", "rfft"}:
            expected = weights(plan, fine) * resized(fine, plan, Z)
            assert_block(result["pulled"], expected, plan.output, 1e-13)
        for name in ("interpolated", "kept"):
            fused, plain = result[name]
            assert fused.dtype == plain.dtype
            np.testing.assert_allclose(fused, plain, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize(
    "dtype",
    [
        pytest.param("float32", marks=pytest.mark.skipif(SIZE > 2, reason="as on two ranks")),
        "float64",
    ],
)
def test_the_function_of_space_is_the_same(dtype):
    """A function of few modes has the padded spectrum that it has on the finer mesh."""
    cases = []
    every = ("fft", "dst2", "dct1", "dct2", "dct3", "dct4", "dst1", "dst3", "dst4")
    for kind in every if SIZE == 1 and dtype == "float64" else every[: 3 if SIZE == 1 else 2]:
        kinds = (kind, "fft", "rfft") if kind != "fft" else ("fft", "fft", "fft")
        for norm in NORMS if kind == "dst2" else ("backward",) if weighted(kinds) else ("ortho",):
            grid = grids()[len(cases) % len(grids())]
            coarse, fine = (
                PencilTransform(shape, grid, kinds, norm=norm) for shape in ((4, 6, 5), (6, 9, 8))
            )
            fields = []
            for plan in (coarse, fine):
                (x, wave), (y, _), (z, _) = (
                    points(k, n, 2 * np.pi) for k, n in zip(kinds, plan.shape, strict=True)
                )
                # The first and the last that four points have; of y the Nyquist frequency.
                offset = {"1": 0, "2": 0, "3": 0.5, "4": 0.5}.get(kind[3:], 0)
                offset += kind in ("dst1", "dst2")
                along = [wave((k + offset) * x / 2) for k in (0, 3)]
                along = 0.3 * along[0] + along[1] if kind != "fft" else np.cos(2 * x) + np.cos(x)
                field = along[:, None, None] * (1 + np.cos(3 * y) + np.sin(2 * y))[:, None]
                fields.append((field * (1 + np.sin(2 * z - 0.4))).astype(dtype))
            cases.append((coarse, fine, *fields))

    @jax.jit
    def everything(blocks):
        return [
            (
                pfftjax.pad_spectrum(coarse.forward(x), coarse, fine),
                pfftjax.padded_inverse(coarse.forward(x), coarse, fine),
                pfftjax.truncated_forward(y, fine, coarse),
                coarse.forward(x),
            )
            for (coarse, fine, *_), (x, y) in zip(cases, blocks, strict=True)
        ]

    blocks = [(c.input.local_block(X), f.input.local_block(Y)) for c, f, X, Y in cases]
    for (coarse, fine, _, Y), result in zip(cases, everything(blocks), strict=True):
        padded, interpolated, truncated, spectrum = result
        reference = np.asarray(fine.forward(fine.input.local_block(Y)))
        scale = np.sqrt(total(reference, reference.conj()).real)
        assert np.abs(padded - reference).max(initial=0) < TOLERANCE[dtype] * scale, coarse
        assert_block(interpolated, Y, fine.input, TOLERANCE[dtype])
        assert np.abs(truncated - spectrum).max(initial=0) < TOLERANCE[dtype] * scale


def convolution(a, b):
    """The spectrum of the product by the sum over all pairs of modes, +-n / 2 being one."""
    shape = a.shape
    result = np.zeros(shape, complex)

    def frequencies(index):
        return [k if 2 * k < n else k - n for k, n in zip(index, shape, strict=True)]

    for p in np.ndindex(*shape):
        for q in np.ndindex(*shape):
            k = np.add(frequencies(p), frequencies(q))
            if np.all(2 * np.abs(k) <= shape):
                result[tuple(k % shape)] += a[p] * b[q]
    return result / np.prod(shape)


@pytest.mark.parametrize("shape", [(5, 4, 3), (4, 3, 6), (1, 5, 4)], ids=str)
def test_products_against_convolutions(shape):
    spectra = []
    for seed in (1, 2):
        y = np.fft.fftn(random(shape, seed=seed))
        for axis, n in enumerate(shape):
            if n % 2 == 0:  # which is its own alias in a product
                np.moveaxis(y, axis, 0)[n // 2] = 0
        spectra.append(y)
    expected, square = convolution(*spectra), convolution(spectra[0], spectra[0])
    half = (..., slice(shape[2] // 2 + 1))
    plans = [
        (PencilFFT(shape, grid, real=real, layout=layout), half if real else ...)
        for i, grid in enumerate(grids())
        for real, layout in ((True, "transposed"), (False, "natural"))
        if SIZE == 1 or real == (i % 2 == 0)
    ]

    @jax.jit
    def everything(blocks):
        return [
            (
                pfftjax.dealiased_product(plan, a, b),
                pfftjax.dealiased_product(plan, a, a),
                pfftjax.dealiased_product(plan, a, jnp.stack([b, 2 * b])),
            )
            for (plan, _), (a, b) in zip(plans, blocks, strict=True)
        ]

    blocks = [
        tuple(jnp.asarray(plan.output.local_block(y[part])) for y in spectra)
        for plan, part in plans
    ]
    for (plan, part), (product, squared, several) in zip(plans, everything(blocks), strict=True):
        assert_block(product, expected[part], plan.output, 1e-13)
        assert_block(squared, square[part], plan.output, 1e-13)
        both = np.stack([expected[part], 2 * expected[part]])
        assert_block(several, both, plan.output, 1e-13)


def test_products_between_walls():
    """More points than the rule asks for change nothing; a mesh without padding has aliases."""
    mixes = (("dct2", "fft", "rfft"), ("dct1", "dct2", "dct1"))
    plans = [PencilTransform((5, 7, 5), grids()[-1], kinds) for kinds in mixes]

    @jax.jit
    def products(a, b):
        results = []
        for plan in plans:
            pair = plan.forward(a), plan.forward(b)
            sizes = (None, (11, 16, 13), plan.shape)
            results.append(
                [pfftjax.dealiased_product(plan, *pair, padded_shape=size) for size in sizes]
            )
        return results

    fields = (plans[0].input.local_block(random((5, 7, 5), seed=s)) for s in (1, 2))
    for product, more, none in products(*fields):
        scale, wrong, aliased = (
            np.sqrt(total(x, jnp.conj(x)).real) for x in (product, product - more, product - none)
        )
        assert wrong < 1e-13 * scale
        assert aliased > 1e-2 * scale


def test_exchanges_of_a_product_are_those_of_two_transforms():
    for grid in grids():
        plan, fine = (PencilFFT((n, n, n), grid, real=True) for n in (4, 6))
        y = jnp.zeros(plan.output.local_shape, complex)

        padded = functools.partial(pfftjax.padded_inverse, plan=plan, padded_plan=fine)
        product = functools.partial(pfftjax.dealiased_product, plan)
        one = exchanges(plan.inverse, y)
        assert (one > 0) == (SIZE > 1)
        assert exchanges(padded, y) == one
        assert exchanges(product, y, y) == 2 * one
        assert exchanges(lambda y, product=product: product(y, y), y) == 2 * one


@pytest.mark.wrong_types
@pytest.mark.parametrize(
    "name", ["pad_spectrum", "truncate_spectrum", "padded_inverse", "truncated_forward"]
)
def test_a_shape_is_no_plan(name):
    plan = PencilFFT((4, 4, 4), grids()[0], real=True)
    y = jnp.zeros(plan.output.local_shape, complex)
    with pytest.raises(TypeError, match=f"{name}: a plan is a PencilFFT or a PencilTransform"):
        getattr(pfftjax, name)(y, plan, (6, 6, 6))


def test_mistakes():
    grid = grids()[0]
    plan, fine = (PencilFFT((n, n, n), grid, real=True) for n in (4, 6))
    y = jnp.zeros(plan.output.local_shape, complex)
    for name, arguments in (
        ("pad_spectrum", (y, fine, plan)),
        ("truncate_spectrum", (y, plan, fine)),
        ("padded_inverse", (y, fine, plan)),
        ("truncated_forward", (y, plan, fine)),
    ):
        function = getattr(pfftjax, name)
        with pytest.raises(ValueError, match=here(name) + "the plan with more points has"):
            function(*arguments)
        for other in ({"real": not plan.real}, {"norm": "ortho"}, {"layout": "natural"}):
            differs = PencilFFT((6, 6, 6), grid, **{"real": plan.real, **other})
            with pytest.raises(ValueError, match=here(name) + "the plans may differ in their"):
                function(y, plan, differs)
        right = (plan, fine) if name.startswith("pad") else (fine, plan)
        with pytest.raises(ValueError, match=here(name) + "the block has shape"):
            function(jnp.zeros((9, 9, 9)), *right)
    with pytest.raises(TypeError, match=here("truncated_forward") + "x is complex128, but"):
        pfftjax.truncated_forward(jnp.zeros(fine.input.local_shape, complex), fine, plan)
    with pytest.raises(ValueError, match=here("dealiased_product") + "the block has shape"):
        pfftjax.dealiased_product(plan, y, jnp.zeros((9, 9, 9)))
    with pytest.raises(ValueError, match="padded_shape must be nowhere smaller"):
        pfftjax.dealiased_product(plan, y, y, padded_shape=(6, 6, 3))
    walls = PencilTransform((4, 4, 4), grid, ("fft", "fft", "dct1"), norm="ortho")
    with pytest.raises(ValueError, match="dct1 multiplies the values on the walls by"):
        pfftjax.dealiased_product(walls, y, y)
    sines = PencilTransform((4, 4, 4), grid, ("dst2", "fft", "rfft"))
    with pytest.raises(ValueError, match=here("dealiased_product") + "a product of two fields"):
        pfftjax.dealiased_product(sines, y, y)

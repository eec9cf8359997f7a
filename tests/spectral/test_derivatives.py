"""Gradient, divergence and curl against numpy on the gathered array; and what they move."""

import dataclasses
import functools
import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from pfftjax import PencilFFT, spectral
from pfftjax.collectives import allreduce, replicate
from pfftjax.fft._fused import Fused, What
from pfftjax.fft._in_steps import divergence_in_steps, gradient_in_steps, transform_in_steps
from pfftjax.fft._steps import differentiating, forward_steps, inverse_steps
from tests.distributed import (
    COMPLEX,
    TOLERANCE,
    Model,
    alone,
    assert_block,
    grids,
    methods,
    total,
)
from tests.helpers import SIZE, assert_close, global_sum, on_one_rank, random
from tests.programs import exchanged_bytes, exchanges
from tests.spectral import reference
from tests.spectral.reference import SIDES, draw, local, plans, wavenumbers

pytestmark = [pytest.mark.mpi, pytest.mark.timeout(300), pytest.mark.ranks(1, 2, 4)]

OPERATORS = (spectral.gradient, spectral.divergence, spectral.curl)
WAYS = tuple(itertools.product((False, True), (False, True)))  # from and to a spectrum
FROM_SCALAR, TO_SCALAR = ("gradient",), ("divergence",)


def _functions(plan, box_size=SIDES):
    """(operator, from_spectrum, to_spectrum) -> a function of a block or of three."""
    return {
        (operator.__name__, a, b): functools.partial(
            operator, plan=plan, box_size=box_size, from_spectrum=a, to_spectrum=b
        )
        for operator, (a, b) in itertools.product(OPERATORS, WAYS)
    }


# Even and odd along each axis; one cell, two cells, fewer planes than ranks; primes.
SHAPES = {"float64": ((8, 6, 5), (2, 3, 4)), "float32": ((4, 1, 8),)}


@pytest.mark.messages
@pytest.mark.parametrize("dtype", SHAPES)
def test_against_numpy(dtype):
    chosen = [
        dataclasses.replace(plan, method=method)
        for plan, method in zip(plans(*SHAPES[dtype]), itertools.cycle(methods()), strict=False)
    ]
    wholes = [[draw(plan, dtype, seed=seed) for seed in range(3)] for plan in chosen]
    blocks = [
        [local(plan, *pair) for pair in whole] for plan, whole in zip(chosen, wholes, strict=True)
    ]

    @jax.jit
    def everything(blocks):
        results = []
        for plan, three in zip(chosen, blocks, strict=True):
            operands = {spectrum: tuple(pair[spectrum] for pair in three) for spectrum in (0, 1)}
            results.append(
                {
                    key: function(operands[key[1]][0 if key[0] in FROM_SCALAR else slice(3)])
                    for key, function in _functions(plan).items()
                }
            )
        return results

    for plan, whole, results in zip(chosen, wholes, everything(blocks), strict=True):
        fields = [x.astype(np.result_type(x.dtype, np.float64)) for x, _ in whole]
        expected = {
            "gradient": reference.gradient(plan, fields[0]),
            "divergence": [reference.divergence(plan, fields)],
            "curl": reference.curl(plan, fields),
        }
        for (name, _, to_spectrum), result in results.items():
            results = [result] if name in TO_SCALAR else result
            # Where a derivative vanishes, as along an axis of two cells, rounding is left.
            scale = max(np.abs(x).max() for x in (*expected[name], *fields))
            for actual, field in zip(results, expected[name], strict=True):
                factor = np.abs(Model(plan).forward(np.ones(plan.shape))).max()
                wanted = Model(plan).forward(field) if to_spectrum else field
                pencil = plan.output if to_spectrum else plan.input
                assert actual.dtype == (COMPLEX[dtype] if to_spectrum or not plan.real else dtype)
                error = np.asarray(actual) - pencil.local_block(wanted)
                limit = 10 * TOLERANCE[dtype] * scale * (factor if to_spectrum else 1)
                assert error.shape == pencil.local_shape
                assert np.abs(error).max(initial=0.0) <= limit, (plan, name)


def test_any_spectrum():
    """Not that of a real field: what a spectrum has beyond one is treated as by the inverse of the
    products."""
    chosen = plans((4, 6, 8), (5, 4, 7))
    wholes = [random(plan.spectral_shape, "complex128", 3) for plan in chosen]

    @jax.jit
    def gradients(ys):
        return [
            spectral.gradient(y, plan, SIDES, from_spectrum=True)
            for plan, y in zip(chosen, ys, strict=True)
        ]

    ys = [plan.output.local_block(y) for plan, y in zip(chosen, wholes, strict=True)]
    for plan, whole, result in zip(chosen, wholes, gradients(ys), strict=True):
        for k, actual in zip(wavenumbers(plan, odd=True, half=True), result, strict=True):
            assert_block(actual, Model(plan).inverse(1j * k * whole), plan.input, 1e-13)


@pytest.mark.parametrize("n", [(8, 6, 10), (9, 7, 5), (98, 6, 6)], ids=["even", "odd", "98"])
def test_plane_waves_and_the_nyquist_frequency(n):
    """For 98 points `numpy.fft.fftfreq` is not exact, as 98 (1 / 98) is not 1."""
    even = n[0] % 2 == 0
    k = [2 * np.pi * m / side for m, side in zip((2, -1, 2), SIDES, strict=True)]
    x = [side * i / m for side, i, m in zip(SIDES, np.indices(n), n, strict=True)]
    phase = sum(a * b for a, b in zip(k, x, strict=True))
    wave, slope, highest = np.sin(phase), np.cos(phase), (-1.0) ** np.indices(n)[0]
    for plan in plans(n):
        cut = plan.input.local_block

        @jax.jit
        def everything(field, plan=plan):
            return (
                spectral.gradient(field, plan, SIDES),
                spectral.gradient(plan.forward(field), plan, SIDES, from_spectrum=True),
                spectral.laplacian(field, plan, SIDES),
            )

        *gradients, laplacian = everything(cut(wave if plan.real else wave + 0j))
        for gradient in gradients:
            for component, actual in zip(k, gradient, strict=True):
                assert np.abs(actual - component * cut(slope)).max(initial=0.0) < 1e-12
        k2 = sum(c**2 for c in k)
        assert np.abs(laplacian + k2 * cut(wave)).max(initial=0.0) < 1e-10
        if even:
            # (-1)^j has no slope on the points, and -k^2 times itself as Laplacian.
            *gradients, laplacian = everything(cut(highest if plan.real else highest + 0j))
            for actual in jax.tree.leaves(gradients):
                assert np.abs(actual).max(initial=0.0) < 1e-12
            k2 = (np.pi * n[0] / SIDES[0]) ** 2
            assert np.abs(laplacian + k2 * cut(highest)).max(initial=0.0) < 1e-10


def test_the_bits_do_not_depend_on_the_grid():
    for real, dtype in ((True, "float32"), (False, "complex128")):
        X = random((6, 5, 8), dtype)
        whole = PencilFFT((6, 5, 8), alone(), real=real)

        def both(x, plan=whole):
            y = plan.forward(x)
            return (
                spectral.gradient(x, plan, 2.0),
                spectral.gradient(y, plan, 2.0, from_spectrum=True),
                spectral.divergence((x, 2 * x, 3 * x), plan, 2.0),
            )

        expected = jax.jit(both)(jnp.asarray(X))
        for grid in grids():
            plan = PencilFFT((6, 5, 8), grid, real=real)
            actual = jax.jit(functools.partial(both, plan=plan))(plan.input.local_block(X))
            for a, e in zip(jax.tree.leaves(actual), jax.tree.leaves(expected), strict=True):
                np.testing.assert_array_equal(a, plan.input.local_block(np.asarray(e)))


@on_one_rank
def test_elsewhere_in_steps():
    """What other platforms are given, beside our own code."""

    chosen = [PencilFFT((4, 5, 6), alone(), real=real) for real in (False, True)]
    ks = [[random(n, seed=n) for n in plan.spectral_shape] for plan in chosen]
    xs = [
        [random(plan.shape, "float64" if plan.real else "complex128", seed) for seed in range(3)]
        for plan in chosen
    ]
    ys = [random(plan.spectral_shape, "complex128").transpose(plan.output.axes) for plan in chosen]

    @jax.jit
    def everything(ks, xs, ys):
        ours, in_steps = [], []
        for plan, k, x, y in zip(chosen, ks, xs, ys, strict=True):
            for what, arrays, elsewhere in (
                (What.GRADIENT, [y], gradient_in_steps),
                (What.DIVERGENCE, x, divergence_in_steps),
            ):
                step = differentiating(plan, what).step
                ours.append(step.bind(*arrays, *k))
                in_steps.append(elsewhere(*arrays, *k, of=step))
            for steps, a in (
                (forward_steps(plan, plan.shape), x[0]),
                (inverse_steps(plan, plan.shape), y),
            ):
                for step in steps:
                    assert isinstance(step, Fused)  # these have no other steps
                    in_steps.append(transform_in_steps(a, of=step))
                    a = step(a)
                    ours.append([a])
        return ours, in_steps

    assert_close(*everything(ks, xs, ys), 1e-14)


# ---- Derivatives -------------------------------------------------------------------------------


def _pairing(a, b):
    """sum over ranks of a b, over all leaves."""
    return sum(total(x, y) for x, y in zip(jax.tree.leaves(a), jax.tree.leaves(b), strict=True))


def test_adjoints():
    """What JAX makes of each operator in each way, by dot products across ranks; the transpose of
    the gradient is minus the divergence, that of the curl itself."""
    chosen = plans((4, 5, 6) if SIZE % 2 else (5, 4, 3))
    if SIZE > 3:  # each step has been differentiated on other grids
        chosen = chosen[1:2]

    def draws(plan, key, seed, *, result):
        name, a, b = key
        spectrum = b if result else a
        scalar = name in (TO_SCALAR if result else FROM_SCALAR)
        pencil = plan.output if spectrum else plan.input
        dtype = "complex128" if spectrum or not plan.real else "float64"
        blocks = [
            pencil.local_block(random(pencil.global_shape, dtype, seed + i)) for i in range(3)
        ]
        return blocks[0] if scalar else tuple(blocks)

    keys = list(_functions(chosen[0]))
    tangents = [[draws(p, key, 1, result=False) for key in keys] for p in chosen]
    probes = [[draws(p, key, 7, result=True) for key in keys] for p in chosen]

    field = keys.index(("curl", False, False))
    early = keys.index(("divergence", False, True))

    @jax.jit
    def everything(tangents, probes):
        results = []
        for plan, ts, vs in zip(chosen, tangents, probes, strict=True):
            both = []
            for function, t, v in zip(_functions(plan).values(), ts, vs, strict=True):
                pushed, pull = jax.vjp(function, t)
                both.append((jax.jvp(function, (t,), (t,))[1], pushed, pull(v)[0]))
            v = vs[field]
            # With respect to one of three operands of one operation.
            function = _functions(plan)[keys[early]]
            x, *others = ts[early]
            pulled = jax.vjp(lambda x, f=function, o=others: f((x, *o)), x)[1](vs[early])[0]
            results.append(
                (both, spectral.divergence(v, plan, SIDES), spectral.curl(v, plan, SIDES), pulled)
            )
        return results

    results = everything(tangents, probes)
    for plan, ts, vs, (both, divergence, curl, pulled_x) in zip(
        chosen, tangents, probes, results, strict=True
    ):
        for key, t, v, (pushed, result, pulled) in zip(keys, ts, vs, both, strict=True):
            for a, b in zip(jax.tree.leaves(pushed), jax.tree.leaves(result), strict=True):
                np.testing.assert_array_equal(a, b)
            left, right = _pairing(v, pushed), _pairing(pulled, t)
            size = abs(_pairing(jax.tree.map(np.abs, v), jax.tree.map(np.abs, pushed)))
            if plan.real:  # between real and complex numbers JAX pairs real parts
                left, right = left.real, right.real
            assert abs(left - right) <= 1e-12 * size, (plan, key)
        assert_close(both[keys.index(("gradient", False, False))][2], -divergence, 1e-11)
        assert_close(both[field][2], curl, 1e-11)
        np.testing.assert_array_equal(pulled_x, both[early][2][0])


def test_derivatives_in_the_side_of_the_box():
    plan = PencilFFT((4, 5, 6), grids()[0], real=True)
    X = random(plan.shape)
    x = jnp.asarray(plan.input.local_block(X))
    y = plan.forward(x)
    w = jnp.asarray(plan.input.local_block(random(plan.shape, seed=4)))

    def value(sides):
        late = spectral.gradient(y, plan, sides, from_spectrum=True)
        lines = spectral.gradient(x, plan, sides)
        early = spectral.divergence((x, w, x), plan, sides, to_spectrum=True)
        parts = [*(w * g**2 for g in (*late, *lines)), jnp.abs(early) ** 2]
        return allreduce(sum(jnp.sum(part) for part in parts))

    @jax.jit
    def loss(sides):
        return value(replicate(sides))

    sides = np.array([2.0, 3.0, 4.0])
    known = jax.jit(lambda: value((2.0, 3.0, 4.0)))
    assert_close(loss(sides), known())
    slope = jax.grad(loss)(sides)
    for axis in range(3):
        step = 1e-5 * np.eye(3)[axis]
        difference = (loss(sides + step) - loss(sides - step)) / 2e-5
        assert abs(slope[axis] - difference) < 1e-7 * np.abs(slope).max()


def test_components_in_different_precisions():
    plan = PencilFFT((4, 5, 6), grids()[0], real=True)
    fields = [plan.input.local_block(random(plan.shape, seed=s)) for s in range(3)]
    v = [jnp.asarray(x, dtype) for x, dtype in zip(fields, ("f4", "f8", "f4"), strict=True)]
    both = jax.jit(
        lambda *v: [
            spectral.divergence(u, plan, SIDES, to_spectrum=True)
            for u in (v, [x.astype("f8") for x in v])
        ]
    )
    np.testing.assert_array_equal(*both(*v))


def test_batches():
    """Leading dimensions and vmap: the same numbers, as many messages as for one field."""
    plan = plans((4, 6, 5))[-1]
    x, y = local(plan, *draw(plan, "float64", (2, 3)))
    functions = _functions(plan)
    batches = {}
    for name, from_spectrum, to_spectrum in functions:
        batch = y if from_spectrum else x
        batch = batch if name in FROM_SCALAR else (batch, 2 * batch, batch + 1)
        batches[name, from_spectrum, to_spectrum] = batch

    @jax.jit
    def everything(batches):
        results = []
        for key, function in functions.items():
            twice = jax.vmap(jax.vmap(function))
            one = function(jax.tree.map(lambda a: a[1, 2], batches[key]))
            results.append((function(batches[key]), twice(batches[key]), one))
        return results

    for (key, function), results in zip(functions.items(), everything(batches), strict=True):
        for a, b, c in zip(*map(jax.tree.leaves, results), strict=True):
            np.testing.assert_array_equal(a, b)
            np.testing.assert_allclose(a[1, 2], c, rtol=1e-13, atol=1e-12)
        first = jax.tree.map(lambda a: a[0, 0], batches[key])
        once = exchanges(function, first)
        assert exchanges(function, batches[key]) == once
        assert exchanges(jax.vmap(jax.vmap(function)), batches[key]) == once


# ---- What is moved -----------------------------------------------------------------------------


def moved_bytes(function, *operands):
    """What all ranks together give to exchanges."""
    return global_sum(exchanged_bytes(function, *operands))


# Exchanged arrays on P x 1, 1 x P, and R x C ranks; beside what transforms of every component are.
EXCHANGES = {
    ("gradient", True, False): ((2, 3, 5), (3, 3, 6)),
    ("gradient", False, False): ((2, 3, 5), (4, 4, 8)),
    ("gradient", False, True): ((1, 1, 2), (1, 1, 2)),
    ("gradient", True, True): ((0, 0, 0), (0, 0, 0)),
    ("divergence", False, True): ((2, 3, 5), (3, 3, 6)),
    ("divergence", False, False): ((2, 3, 5), (4, 4, 8)),
    ("divergence", True, False): ((1, 1, 2), (1, 1, 2)),
    ("divergence", True, True): ((0, 0, 0), (0, 0, 0)),
    ("curl", False, False): ((4, 6, 10), (6, 6, 12)),
    ("curl", False, True): ((3, 3, 6), (3, 3, 6)),
    ("curl", True, False): ((3, 3, 6), (3, 3, 6)),
    ("curl", True, True): ((0, 0, 0), (0, 0, 0)),
}


@pytest.mark.parametrize("real", [False, True])
def test_the_bytes_that_move(real):
    shape = (6, 7, 9)
    for grid in grids():
        plan = PencilFFT(shape, grid, real=real)
        assert set(_functions(plan)) == set(EXCHANGES)
        x = jnp.zeros(plan.input.local_shape, "float32" if real else "complex64")
        y = jnp.zeros(plan.output.local_shape, "complex64")
        spectrum, field = global_sum(y.nbytes), global_sum(x.nbytes)
        kind = 0 if grid.dims[1] == 1 else 1 if grid.dims[0] == 1 else 2
        for key, (ours, naive) in EXCHANGES.items():
            name, from_spectrum, to_spectrum = key
            operand = y if from_spectrum else x
            if name not in FROM_SCALAR:
                operand = (operand,) * 3
            # From field to field, lines of a real one move as real numbers.
            array = spectrum if from_spectrum or to_spectrum else field
            actual = moved_bytes(_functions(plan)[key], operand)
            assert actual == (ours[kind] * array if SIZE > 1 else 0), (plan, key)
            assert actual <= naive[kind] * spectrum
        if SIZE > 1:
            inverses = moved_bytes(lambda *ys, p=plan: [p.inverse(y) for y in ys], y, y, y)
            late = moved_bytes(_functions(plan)["gradient", True, False], y)
            assert late / inverses == pytest.approx((2 / 3, 1, 5 / 6)[kind])

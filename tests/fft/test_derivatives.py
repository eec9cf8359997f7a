"""What JAX does with a plan: derivatives of any order, vmap, scan, checkpoint."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from pfftjax import PencilFFT
from pfftjax.collectives import allreduce, replicate, save_collectives
from tests.distributed import alone, assert_block, grids, total
from tests.helpers import SIZE, random
from tests.programs import steps

pytestmark = [pytest.mark.mpi, pytest.mark.timeout(300), pytest.mark.ranks(1, 4)]

SHAPE = (6, 5, 4)


def plans(shape=SHAPE):
    """(plan, the same on this rank alone with the whole array)

    Not every grid of many ranks: each step has been differentiated on all of them elsewhere.
    """
    chosen = grids() if SIZE < 3 else [grids()[1]]
    for i, grid in enumerate(chosen):
        for real in (False, True) if SIZE == 1 else ((i + SIZE) % 2 == 0,):
            layout = "natural" if real else "transposed"
            yield tuple(
                PencilFFT(shape, g, real=real, layout=layout, norm="ortho")
                for g in (grid, alone())
            )


def fields(plan, seed=0):
    """The whole array, and this rank's block of it."""
    x = random(plan.shape, "float64" if plan.real else "complex128", seed)
    return x, jnp.asarray(plan.input.local_block(x))


def smoothed(plan, x, length):
    """A nonlinear function with both directions in it, and a parameter."""
    k2 = sum(k**2 for k in plan.wavenumbers(2 * np.pi))
    y = jnp.exp(-(length**2) * k2) * plan.forward(x)
    s = plan.inverse(y)
    return s / (1 + jnp.real(s * jnp.conj(s))) * (1 + 0.5 * x)


def energy(plan, x, length):
    """This rank's part of a loss."""
    s = smoothed(plan, x, length)
    return jnp.sum(jnp.real(s * jnp.conj(s) * s))


def test_gradient_and_hessian_vector_product():
    for plan, whole in plans():
        X, x = fields(plan)
        V, v = fields(plan, 1)

        def gradient(x, length, plan=plan):
            return jax.grad(energy, (1, 2))(plan, x, length)

        def product(x, length, v, plan=plan):
            one = jax.grad(energy, 1)
            return jax.jvp(lambda x: one(plan, x, length), (x,), (v,))[1]

        expected, slope = gradient(jnp.asarray(X), 0.3, whole)
        actual, part = jax.jit(gradient)(x, 0.3)
        assert_block(actual, expected, plan.input, 1e-13)
        assert abs(total(part, 1.0) - slope) < 1e-12 * abs(slope)
        expected = product(jnp.asarray(X), 0.3, jnp.asarray(V), whole)
        assert_block(jax.jit(product)(x, 0.3, v), expected, plan.input, 1e-13)
        if plan.real:
            # Against differences, once: the reference above is our own, on one rank.
            step = 1e-5
            there = [gradient(jnp.asarray(X + s * step * V), 0.3, whole)[0] for s in (1, -1)]
            difference = (there[0] - there[1]) / (2 * step)
            assert np.abs(difference - expected).max() < 1e-7 * np.abs(expected).max()


def test_a_replicated_parameter():
    for plan, whole in plans():
        X, x = fields(plan)

        def loss(length, plan=plan, x=x):
            return allreduce(energy(plan, x, replicate(length)))

        serial = functools.partial(energy, whole, X)
        expected = [f(serial)(0.3) for f in (jax.grad, jax.hessian)]
        for f, value in zip((jax.grad, jax.hessian), expected, strict=True):
            assert abs(jax.jit(f(loss))(0.3) - value) < 1e-11 * abs(value)


def test_vmap_is_one_transform_of_a_batch():
    for plan, _ in plans():
        _, x = fields(plan)
        batch = jnp.stack([x, 2 * x, 3 * x], axis=1)
        y = plan.forward(x)
        expected = jnp.stack([y, 2 * y, 3 * y])
        assert_close = functools.partial(np.testing.assert_allclose, rtol=1e-14, atol=1e-14)
        assert_close(jax.jit(jax.vmap(plan.forward, 1))(batch), expected)
        assert_close(plan.forward(jnp.moveaxis(batch, 1, 0)), expected)
        assert_close(jax.vmap(plan.inverse)(expected), jnp.moveaxis(batch, 1, 0))
        per_example = jax.vmap(jax.grad(lambda x, p=plan: energy(p, x, 0.3)), 1, 1)
        expected = jnp.stack([jax.grad(energy, 1)(plan, c * x, 0.3) for c in (1, 2, 3)], axis=1)
        assert_close(jax.jit(per_example)(batch), expected)
        once = steps(plan.forward, x)
        assert once
        assert steps(jax.vmap(plan.forward, 1), batch) == once


WRAPS = {
    "plain": lambda f: f,
    "checkpoint": jax.checkpoint,
    # This form saves spectra: JAX by itself refuses to save complex numbers.
    "save": functools.partial(jax.checkpoint, policy=save_collectives),
}


@pytest.mark.parametrize("wrap", WRAPS.values(), ids=WRAPS)
def test_scan(wrap):
    for plan, whole in plans():
        X, x = fields(plan)

        def loss(x, plan=plan):
            def step(x, _):
                return smoothed(plan, x, 0.2), jnp.sum(jnp.abs(x) ** 2)

            x, norms = jax.lax.scan(wrap(step), x, None, length=3)
            return jnp.sum(norms) + jnp.sum(jnp.abs(x) ** 2)

        expected = jax.grad(loss)(jnp.asarray(X), whole)
        assert_block(jax.jit(jax.grad(loss))(x), expected, plan.input, 1e-12)


def test_a_derivative_costs_one_transform_and_stores_nothing():
    for plan, _ in plans((2 * SIZE, 2 * SIZE, 6)):
        _, x = fields(plan)
        for function, point in ((plan.forward, x), (plan.inverse, plan.forward(x))):
            y, pull = jax.vjp(function, point)
            assert not jax.tree.leaves(pull)
            once = steps(function, point)
            assert once
            assert steps(pull, y) == once
            pushed = steps(lambda t, f=function, p=point: jax.jvp(f, (p,), (t,))[1], point)
            # Linear: the value and the tangent, one transform each.
            assert pushed == once + once
            # And no arithmetic beside them.
            assert " mul" not in str(jax.make_jaxpr(pull)(y))


def test_many_transforms_in_one_program():
    """Independent of each other, so that XLA may start them together."""
    for plan, _ in plans((16, 16, 16)):
        X, x = fields(plan)

        def everything(x, plan=plan):
            return [plan.inverse(plan.forward((i + 1.0) * x)) for i in range(12)]

        f = jax.jit(everything)
        for _ in range(10):
            for i, y in enumerate(f(x)):
                assert_block(y, (i + 1) * X, plan.input, 1e-13)

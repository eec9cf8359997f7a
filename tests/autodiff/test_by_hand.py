"""A function whose reverse derivative is written by hand: which mode takes which."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from mpi4py import MPI

import pfftjax
from pfftjax.autodiff.internal import differentiated_by_hand
from pfftjax.collectives import allreduce
from tests.helpers import assert_close, on_one_rank

pytestmark = pytest.mark.timeout(300)

X, V = np.array([0.3, -1.2, 2.0]), np.array([1.0, 0.5, -2.0])


def _cube(told=3.0):
    """x^3 and how often it has been called, whose reverse derivative is told x^2."""

    def run(moving, fixed):
        return {"y": moving["x"] ** 3}, fixed + 1

    def forward(moving, fixed):
        return run(moving, fixed), moving["x"] ** 2

    def backward(moving, fixed, kept, cotangents, vjp):
        del moving, fixed, vjp
        return {"x": told * kept * cotangents["y"]}

    function = differentiated_by_hand(run, forward, backward)
    return lambda x: function({"x": x}, jnp.int32(0))[0]["y"]


@on_one_rank
def test_reverse_mode_is_what_is_written_and_forward_mode_is_not():
    def total(x):
        return jnp.sum(_cube(told=30.0)(x))

    for wrap in (lambda f: f, jax.jit, jax.checkpoint):
        np.testing.assert_allclose(wrap(jax.grad(total))(X), 30 * X**2)
        np.testing.assert_allclose(jax.jvp(wrap(total), (X,), (V,))[1], np.sum(3 * X**2 * V))


@on_one_rank
def test_higher_derivatives_and_maps():
    f = _cube()
    forward, reverse = jax.jacfwd, jax.jacrev
    for second in (forward(reverse(f)), reverse(reverse(f)), reverse(forward(f))):
        expected = jnp.einsum("i,ij,ik->ijk", 6 * X, np.eye(3), np.eye(3))
        np.testing.assert_allclose(jax.jit(second)(X), expected, atol=1e-14)
    several = np.stack([X, V])
    np.testing.assert_allclose(
        jax.grad(lambda x: jnp.sum(jax.vmap(f)(x)))(several), 3 * several**2
    )
    # One direction for all of them: its cotangent is the sum of theirs.
    scaled = jax.grad(lambda s: jnp.sum(jax.vmap(lambda x: f(s * x))(several)))(1.0)
    np.testing.assert_allclose(scaled, np.sum(3 * several**3))
    shared = jax.grad(lambda x: jnp.sum(jax.vmap(lambda y, x: f(x) * y, (0, None))(several, x)))(X)
    np.testing.assert_allclose(shared, 3 * X**2 * several.sum(0))


def _grad_own(f):
    return pfftjax.grad(f, own=0)


@pytest.mark.mpi
@pytest.mark.ranks(2, 3)
@pytest.mark.parametrize("is_taken", [True, False], ids=["taken", "written"])
def test_sums_over_ranks_are_those_of_copies(is_taken):
    """Below `pfftjax.grad`, in what the rule differentiates, and in derivatives of the rule."""

    def plain(x):
        return jnp.sin(allreduce(jnp.sum(x**3))) * x

    def run(moving, fixed):
        return plain(moving), fixed

    def forward(moving, fixed):
        return run(moving, fixed), None

    def backward(moving, fixed, kept, cotangents, vjp):
        del fixed, kept
        if is_taken:
            return vjp(plain, moving)[1](cotangents)[0]
        total = allreduce(jnp.sum(moving**3))
        to_total = allreduce(jnp.cos(total) * jnp.vdot(moving, cotangents))
        return jnp.sin(total) * cotangents + 3 * moving**2 * to_total

    function = differentiated_by_hand(run, forward, backward)
    rank = MPI.COMM_WORLD.rank
    x, v = X + 0.1 * rank, V - 0.2 * rank

    def derivatives(f):
        def loss(x):
            return jnp.sum(allreduce(jnp.cos(f(x))))

        gradient = pfftjax.grad(loss, own="x")

        def slope(x):
            return pfftjax.jvp(loss, (x,), (v,), own="x")[1]

        def along(x):
            return allreduce(jnp.vdot(gradient(x), v))

        # Also by JAX's own derivatives of ours, which must see one program in both.
        seconds = [grad(f)(x) for grad in (jax.grad, _grad_own) for f in (slope, along)]
        return gradient(x), seconds, jax.vmap(gradient)(jnp.stack([x, v]))

    actual = jax.jit(lambda: derivatives(lambda x: function(x, jnp.int32(0))[0]))()
    assert_close(actual, jax.jit(lambda: derivatives(plain))(), 1e-13)

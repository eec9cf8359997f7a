"""A function whose reverse derivative is written by hand: which mode takes which."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from pfftjax.autodiff.internal import differentiated_by_hand
from tests.helpers import on_one_rank

pytestmark = [pytest.mark.timeout(300), on_one_rank]

X, V = np.array([0.3, -1.2, 2.0]), np.array([1.0, 0.5, -2.0])


def _cube(told=3.0):
    """x^3 and how often it has been called, whose reverse derivative is told x^2."""

    def run(moving, fixed):
        return {"y": moving["x"] ** 3}, fixed + 1

    def forward(moving, fixed):
        return run(moving, fixed), moving["x"] ** 2

    def backward(moving, fixed, kept, cotangents):
        del moving, fixed
        return {"x": told * kept * cotangents["y"]}

    function = differentiated_by_hand(run, forward, backward)
    return lambda x: function({"x": x}, jnp.int32(0))[0]["y"]


def test_reverse_mode_is_what_is_written_and_forward_mode_is_not():
    def total(x):
        return jnp.sum(_cube(told=30.0)(x))

    for wrap in (lambda f: f, jax.jit, jax.checkpoint):
        np.testing.assert_allclose(wrap(jax.grad(total))(X), 30 * X**2)
        np.testing.assert_allclose(jax.jvp(wrap(total), (X,), (V,))[1], np.sum(3 * X**2 * V))


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

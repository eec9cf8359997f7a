"""Factors of all rows, and the sums over rows that are their derivatives."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from pfftjax.pm._motion import Stage, drift_of, kicked
from tests.helpers import assert_close, random

pytestmark = pytest.mark.mpi


@pytest.mark.parametrize("rows", [0, 1, 63, 64, 65, 200])
@pytest.mark.ranks(1)
def test_derivatives_in_the_factors_of_a_stage(rows):
    momentum, pull, weights = (
        jnp.asarray(random((rows, 3), "float64", seed)) for seed in range(3)
    )
    per_cell = jnp.asarray([1.0, 2.0, 4.0])

    def loss(kick, drift, scale, per_cell):
        stage = Stage(jnp.asarray(kick), jnp.asarray(drift), jnp.asarray(scale))
        after = kicked(momentum, pull, None, stage)
        return jnp.vdot(weights, after + drift_of(after, None, stage, per_cell))

    factors = 0.3, 0.7, 0.9, per_cell
    to = jax.jit(jax.grad(loss, argnums=range(4)))(*factors)
    step = weights * (1 + 0.7 * np.asarray(per_cell))
    after = 0.9 * momentum + 0.3 * pull
    expected = (
        np.sum(step * pull),
        np.sum(weights * per_cell * after),
        np.sum(step * momentum),
        0.7 * np.sum(weights * after, axis=0),
    )
    for found, wanted in zip(to, expected, strict=True):
        assert_close(found, wanted, 1e-13)
    # Forward mode, and that of reverse mode.
    tangents = 0.1, 0.2, 0.3, jnp.asarray([0.4, 0.5, 0.6])
    dots = [np.vdot(t, wanted) for t, wanted in zip(tangents, expected, strict=True)]
    assert_close(jax.jvp(loss, factors, tangents)[1], sum(dots), 1e-13)
    again = jax.jvp(jax.grad(loss, argnums=1), factors, tangents)[1]
    with_drift = np.sum(weights * per_cell * (0.1 * pull + 0.3 * momentum))
    with_scale = np.sum(weights * np.asarray(tangents[3]) * after)
    assert_close(again, with_drift + with_scale, 1e-13)


@pytest.mark.ranks(1)
def test_a_sum_of_many_rows_keeps_its_digits():
    """By blocks as well as by XLA's own sum."""
    rows = (1 << 17) + 5
    momentum, weights = (jnp.asarray(abs(random((rows, 3), "float32", s))) for s in range(2))

    def loss(drift):
        return jnp.vdot(weights, drift_of(momentum, None, Stage(drift, drift), jnp.ones(3, "f4")))

    found = jax.jit(jax.grad(loss))(jnp.float32(1.0))
    assert_close(found, np.vdot(np.asarray(weights, float), momentum), 1e-6)

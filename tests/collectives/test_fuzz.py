"""Random programs of collectives against the model of all ranks."""

import jax
import jax.numpy as jnp
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.helpers import CASES, RANK, SIZE, assert_close, blocks, drawn

pytestmark = [pytest.mark.mpi, pytest.mark.timeout(300), pytest.mark.messages]

SHAPE_KEEPING = [case for case in CASES if case.name in ("alltoall", "bcast", "sendrecv_ring")]


def _program(names, side):
    """One operation after another, with some arithmetic between."""
    cases = {case.name: case for case in SHAPE_KEEPING}

    def run(x):
        parts = []
        for i, name in enumerate(names):
            y = getattr(cases[name], side)(x)
            # Some operations feed the next, some stand apart.
            x = jnp.sin(y) if i % 2 == 0 else x + 0.5 * y
            parts.append(y)
        return sum(jnp.sum(part**2) for part in parts), x

    return run


@drawn(8)
@given(
    names=st.lists(st.sampled_from([case.name for case in SHAPE_KEEPING]), min_size=1, max_size=6),
    tail=st.lists(st.integers(0, 5), max_size=2).map(tuple),
    dtype=st.sampled_from(["float32", "float64", "complex128"]),
    mode=st.sampled_from(["jit", "vmap", "checkpoint"]),
)
def test_program(names, tail, dtype, mode):
    X, x = blocks((SIZE, *tail), dtype)
    X = jnp.asarray(X)
    tolerance = 1e-5 if dtype == "float32" else 1e-12
    ours, model = _program(names, "apply"), _program(names, "model")
    if mode == "vmap":
        y = jax.jit(jax.vmap(ours))(jnp.stack([x, 2 * x]))[1][1]
        assert_close(y, jax.jit(model)(2 * X)[1][RANK], tolerance)
        return
    wrap = jax.checkpoint if mode == "checkpoint" else (lambda f: f)
    real = lambda f: lambda x: jnp.real(f(x)[0])  # noqa: E731
    gradient = jax.jit(jax.grad(wrap(real(ours))))(x)
    assert_close(gradient, jax.jit(jax.grad(real(model)))(X)[RANK], tolerance)

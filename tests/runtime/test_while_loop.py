"""vmap of a loop whose condition communicates."""

import jax
import jax.numpy as jnp
import pytest

from pfftjax import collectives as pc
from tests.helpers import RANK, SIZE, assert_close, blocks

pytestmark = [pytest.mark.mpi, pytest.mark.ranks(1, 2), pytest.mark.messages]


def _until_small(total, local):
    """Halve, exchange, until the sum of squares over all ranks is small."""
    return lambda x: jax.lax.while_loop(lambda x: total(x) > 1e-2, lambda x: 0.5 * local(x), x)


OURS = _until_small(lambda x: pc.allreduce(jnp.sum(x**2)), pc.alltoall)
MODEL = _until_small(lambda X: jnp.sum(X**2), lambda X: jnp.swapaxes(X, 0, 1))


@pytest.mark.parametrize("compile_it", [False, True])
def test_rows_that_are_done_stay_as_they_are(compile_it):
    """JAX leaves finished rows running when the condition has effects: silently wrong."""
    X, _ = blocks((SIZE, 3))
    batch = jnp.stack([X, 3 * X, 0.3 * X, 10 * X])  # done after different numbers of steps
    f = jax.vmap(OURS)
    result = (jax.jit(f) if compile_it else f)(batch[:, RANK])
    assert_close(result, jnp.stack([MODEL(B)[RANK] for B in batch]))


def test_constants_and_several_carries():
    X, x = blocks((SIZE, 3))

    def loop(total, exchange, x, scale):
        return jax.lax.while_loop(
            lambda s: (total(s[0]) > 1e-2) & (s[1] < 50),
            lambda s: (scale * exchange(s[0]), s[1] + 1),
            (x, 0),
        )

    scales = jnp.asarray([0.5, 0.8, 0.1])
    ours = jax.vmap(
        lambda scale: loop(lambda x: pc.allreduce(jnp.sum(x**2)), pc.alltoall, x, scale)
    )(scales)
    for i, scale in enumerate(scales):
        expected = loop(
            lambda X: jnp.sum(X**2), lambda X: jnp.swapaxes(X, 0, 1), jnp.asarray(X), scale
        )
        assert_close(ours[0][i], expected[0][RANK])
        assert int(jnp.asarray(ours[1])[i]) == int(expected[1])


def test_jvp_and_unbatched_predicate():
    X, x = blocks((SIZE, 3))
    V, v = blocks((SIZE, 3), seed=1)
    ours = jax.jit(lambda x: jax.jvp(OURS, (x,), (v,)))(x)
    expected = jax.jvp(MODEL, (jnp.asarray(X),), (jnp.asarray(V),))
    assert_close(ours, tuple(a[RANK] for a in expected))
    assert_close(OURS(x), expected[0][RANK])

"""Values that all ranks must share: the identity, and an error on every rank where they differ."""

import contextlib
import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import export

from pfftjax.collectives import allreduce
from pfftjax.collectives._same import same as same_among_ranks
from tests.helpers import RANK, SIZE, assert_close

pytestmark = [pytest.mark.mpi, pytest.mark.messages]

ALLOWED = export.DisabledSafetyCheck.custom_call("pfftjax_same")
same = functools.partial(same_among_ranks, what="the value", remedy="look for the rank in it")


def refused(f, *arguments):
    """The text of the error that `f` ends in on every rank; programs can go on after it."""
    with pytest.raises(jax.errors.JaxRuntimeError) as raised:
        jax.block_until_ready(f(*arguments))
    with contextlib.suppress(Exception):
        jax.effects_barrier()
    return str(raised.value)


@pytest.mark.parametrize("dtype", ["bool", "bfloat16", "complex64"])
def test_it_is_the_identity(dtype):
    x = jnp.asarray([[0, 1, 2], [3, 4, 5]]).astype(dtype)
    for f in (same, jax.jit(same), jax.vmap(same), jax.vmap(same, 1, 1)):
        y = f(x)
        assert y.dtype == x.dtype
        assert y.tolist() == x.tolist()
    exported = export.export(jax.jit(same), disabled_checks=[ALLOWED])(x)
    assert exported.call(x).tolist() == x.tolist()
    weak = jax.jit(lambda t: same(t) * jnp.float32(2))(0.5)
    assert weak.dtype == jnp.float32, "a Python number stays one"


def test_its_derivatives_are_those_of_the_identity():
    def f(t):
        return jnp.sum(jnp.sin(same(t)) ** 2)

    def g(t):
        return jnp.sum(jnp.sin(t) ** 2)

    x = jnp.asarray([0.3, -1.2])
    assert_close(jax.grad(f)(x), jax.grad(g)(x))
    assert_close(jax.jit(jax.hessian(f))(x), jax.hessian(g)(x))
    assert_close(jax.grad(jax.checkpoint(f))(x), jax.grad(g)(x))
    assert_close(jax.jvp(f, (x,), (x,)), jax.jvp(g, (x,), (x,)))
    # Tangents need not be alike.
    assert jax.linear_transpose(same, x)(x * RANK)[0].tolist() == (x * RANK).tolist()

    def summed(t):
        return jax.lax.scan(lambda c, _: (c + same(t), None), 0 * t, None, length=3)[0].sum()

    assert jax.jit(jax.grad(summed))(x).tolist() == [3, 3]


def test_pytrees_and_keys():
    key = jax.random.key(3)
    tree = jax.jit(same)({"key": key, "pair": (1.0, jnp.arange(3))})
    assert tree["pair"][1].tolist() == [0, 1, 2]
    assert jax.random.normal(tree["key"]) == jax.random.normal(key)
    keys = jax.random.split(key, 3)
    np.testing.assert_array_equal(
        jax.random.key_data(jax.vmap(same)(keys)), jax.random.key_data(keys)
    )


@pytest.mark.skipif(SIZE == 1, reason="one rank does not differ from itself")
def test_a_value_that_differs_is_named_on_every_rank():
    x = jnp.asarray([1.5, float(RANK == SIZE - 1)])
    text = refused(jax.jit(lambda x: same(x, operation="sample") * 2.0), x)
    assert f"sample failed on rank {RANK} of {SIZE}" in text
    assert "the value must be the same on every rank, but is" in text
    assert f"[1.5, 1] on rank {SIZE - 1} and [1.5, 0] on rank 0" in text
    assert "; look for the rank in it" in text
    # Without jit it is an error of what comes of it, and each call compares.
    same(jnp.ones(2))
    assert "must be the same" in refused(lambda x: same(x) * 3.0, x)
    assert "must be the same" in refused(jax.grad(lambda x: jnp.sum(same(x) ** 3)), x)
    # Where there is more than can be written, the first difference may be anywhere.
    assert "float64[9] with the hash" in refused(jax.jit(same), jnp.arange(9.0).at[7].set(RANK))


@pytest.mark.skipif(SIZE == 1, reason="one rank does not differ from itself")
def test_the_first_call_of_each_program_compares_and_later_ones_send_nothing():
    f = jax.jit(lambda x: same(x, operation="once") + 1)
    unlike = jnp.asarray(float(RANK))
    f(jnp.asarray(1.0))
    assert float(f(unlike)) == 1.0 + RANK, "not compared again"
    # Another program is compared, and what failed is compared again.
    g = jax.jit(lambda x: allreduce(same(x, operation="once")))
    for _ in range(2):
        assert "once failed" in refused(g, unlike)
    assert float(g(jnp.asarray(2.0))) == 2 * SIZE
    # Two places in one program are two.
    h = jax.jit(lambda x, y: allreduce(same(x) + same(y)))
    assert "must be the same" in refused(h, jnp.asarray(1.0), unlike)


def test_a_dtype_that_cannot_be_sent():
    with pytest.raises(TypeError, match=r"sample on rank .* cannot be sent; cast it first"):
        same(jnp.ones(2, jnp.float8_e4m3fn), operation="sample")

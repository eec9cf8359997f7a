"""jax.checkpoint saves memory around collectives, and policies are heard."""

import jax
import jax.numpy as jnp
import pytest
from jax.ad_checkpoint import checkpoint_name

from pfftjax import PencilFFT, ProcessGrid, norm, spectral, value_and_grad
from pfftjax import collectives as pc
from pfftjax._runtime.ffi import native
from tests.helpers import SIZE, assert_close, blocks, random

pytestmark = [pytest.mark.mpi, pytest.mark.ranks(1, 2, 3), pytest.mark.messages]

STEPS = 20


def _gradient(wrap):
    def step(carry, _):
        return jnp.sin(pc.alltoall(jnp.sin(carry) + carry)), None

    return jax.jit(jax.grad(lambda x: jnp.sum(jax.lax.scan(wrap(step), x, None, length=STEPS)[0])))


def _temporaries(f, x):
    return f.lower(x).compile().memory_analysis().temp_size_in_bytes


@pytest.mark.memory
def test_a_scan_with_checkpoint_needs_less_memory():
    """JAX saves every result of an effectful operation, so that checkpoint would save nothing."""
    _, x = blocks((SIZE, 1 << 13))
    plain, repeated = _gradient(lambda f: f), _gradient(jax.checkpoint)
    assert _temporaries(repeated, x) <= 0.6 * _temporaries(plain, x)
    assert_close(repeated(x), plain(x))


def _count(f, x):
    jax.block_until_ready(f(x))
    before = native.calls(0)
    jax.block_until_ready(f(x))
    return native.calls(0) - before


def test_what_is_saved_is_not_exchanged_again():
    """Forward and adjoint take one exchange a step each; recomputation one more."""
    _, x = blocks((SIZE, 4))
    policies = jax.checkpoint_policies
    counts = {
        name: _count(_gradient(lambda f, p=policy: jax.checkpoint(f, policy=p)), x)
        for name, policy in {
            "default": None,
            "nothing": policies.nothing_saveable,
            "everything": policies.everything_saveable,
            "collectives": pc.save_collectives,
        }.items()
    }
    assert counts == {
        "default": 3 * STEPS,
        "nothing": 3 * STEPS,
        "everything": 2 * STEPS,
        "collectives": 2 * STEPS,
    }


@pytest.mark.parametrize("over", ["steps", "one step"])
def test_what_leads_to_what_is_saved_is_not_repeated(over):
    """The exchange that only leads there goes forward and back, as does the one that follows."""

    def step(x, _):
        between = checkpoint_name(pc.alltoall(jnp.sin(x)), "between")
        return pc.alltoall(between) * between, None

    policy = jax.checkpoint_policies.save_only_these_names("between")
    step = jax.checkpoint(step, policy=policy)

    def loss(x):
        if over == "one step":
            return jnp.sum(step(x, None)[0])
        return jnp.sum(jax.lax.scan(step, x, None, length=STEPS)[0])

    _, x = blocks((SIZE, 4))
    number = STEPS if over == "steps" else 1
    # The one that follows is needed again: it is a factor of its own product.
    assert _count(jax.jit(jax.grad(loss)), x) == 5 * number

    def plain(x):
        for _ in range(number):
            between = pc.alltoall(jnp.sin(x))
            x = pc.alltoall(between) * between
        return jnp.sum(x)

    assert_close(jax.jit(jax.grad(loss))(x), jax.jit(jax.grad(plain))(x))


@pytest.mark.parametrize("name", ["save_collectives", "everything_saveable"])
def test_complex_results_are_saved(name):
    """JAX guards what it saves by an operation that refuses complex numbers."""
    _, x = blocks((SIZE, 3), "complex128")
    policy = getattr(pc, name, None) or getattr(jax.checkpoint_policies, name)

    def loss(x):
        y = pc.alltoall(jnp.sin(x))
        return jnp.sum(jnp.real(y * y * jnp.conj(y)))

    kept = jax.jit(jax.grad(jax.checkpoint(loss, policy=policy)))
    assert_close(kept(x), jax.grad(loss)(x))


def test_policy_leaves_other_operations_alone():
    from jax.extend.core import primitives

    assert not pc.save_collectives(primitives.sin_p)


def test_a_rank_without_modes_repeats_what_others_do():
    """The derivative in the box wants a transform once more, on ranks with nothing of it as well.
    The potential is in proportion to the square of the box."""
    plan = PencilFFT((5, 1, 3), ProcessGrid((SIZE, 1)), real=True)
    assert SIZE == 1 or 0 in pc.allgather(jnp.asarray(plan.output.local_shape)[None]).ravel()
    x = jnp.asarray(plan.input.local_block(random(plan.shape)))

    @jax.checkpoint
    def size(side):
        return norm(spectral.inverse_laplacian(jnp.sin(x), plan, side), plan.grid)

    value, slope = jax.jit(value_and_grad(size, shared="side"))(3.0)
    assert_close(slope, 2 * value / 3, 1e-12)

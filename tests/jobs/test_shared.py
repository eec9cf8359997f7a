"""What is said of derivatives of what all ranks share, by jobs of their own."""

import re

import pytest

from tests.jobs.job import PREAMBLE, assert_succeeds

pytestmark = pytest.mark.timeout(240)

LOSS = """
def loss(theta):
    return pc.allreduce(jnp.sum(theta * (RANK + x)))
def error(call):
    try:
        jax.block_until_ready(call())
        jax.effects_barrier()
    except jax.errors.JaxRuntimeError as error:
        pc.recover()
        return str(error)
    return ""
"""


def test_under_check_counting_twice_is_reported_and_every_call_compared():
    ended = assert_succeeds(
        """
        whole = sum(SIZE * 3 * (1.0 + r) for r in range(SIZE))

        # Right, once each: nothing is reported.
        assert jax.grad(lambda t: loss(pc.replicate(t)))(2.0) == whole
        assert pfftjax.grad(loss, shared=0)(2.0) == whole
        assert pfftjax.grad(lambda t: loss(pc.replicate(pc.replicate(t))), shared=0)(2.0) == whole
        jax.effects_barrier()
        print("so far", file=sys.stderr, flush=True)
        MPI.COMM_WORLD.Barrier()

        # Twice: too large, and reported once, however often.
        twice = jax.jit(jax.grad(lambda t: loss(pc.replicate(jnp.sin(pc.replicate(t))))))
        for _ in range(3):
            assert abs(twice(2.0) - SIZE * whole * np.cos(2.0)) < 1e-4 * whole

        # A jitted program compares on each call.
        slope = jax.jit(pfftjax.grad(loss, shared="theta"))
        assert not error(lambda: slope(2.0))
        assert "theta is 3 on rank 1 and 2 on rank 0" in error(lambda: slope(2.0 + RANK))
        print("done", flush=True)
        """,
        preamble=PREAMBLE + LOSS,
        PFFTJAX_CHECK="1",
        JAX_ENABLE_X64="0",
    )
    assert ended.output.count("done") == 2
    before, after = ended.output.split("so far", 1)
    assert "warning" not in before
    report = r"warning: the derivative of replicate float32\[1\] sums over the ranks a cotangent"
    assert len(re.findall(report, after)) == 1
    assert "gradient is 2 times too large" in after


def test_a_jitted_program_compares_on_its_first_call_only():
    """The rest is left to PFFTJAX_CHECK=1: later calls pay nothing."""
    ended = assert_succeeds(
        """
        slope = jax.jit(pfftjax.grad(loss, shared="theta"))
        assert not error(lambda: slope(2.0))
        assert not error(lambda: slope(2.0 + RANK))
        # Another program, with another list of collectives, has a first call of its own.
        other = jax.jit(pfftjax.grad(lambda t: loss(t) + pc.allreduce(t), shared=0))
        assert "t is 3 on rank 1 and 2 on rank 0" in error(lambda: other(2.0 + RANK))
        print("done", flush=True)
        """,
        preamble=PREAMBLE + LOSS,
        JAX_ENABLE_X64="0",
    )
    assert ended.output.count("done") == 2

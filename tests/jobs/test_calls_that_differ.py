"""Calls that differ between ranks: they are caught, any number of times, and what comes after them
is right; or the job ends, and the message names both calls.

PFFTJAX_TEST_RANKS says on how many ranks; by default each test takes as many as its case needs.
"""

import os

import pytest

from tests.jobs.job import assert_succeeds

pytestmark = pytest.mark.timeout(180)


def ranks(least):
    return max(least, int(os.environ.get("PFFTJAX_TEST_RANKS", "0")))


@pytest.mark.parametrize("number", [2, 3])
def test_exchanges_in_shared_memory(number):
    """Small and large, empty and not, alltoall and allgather, of other dtypes: on one rank, or on
    all but one."""
    assert_succeeds(
        """
        import itertools
        alltoall, allgather = jax.jit(pc.alltoall), jax.jit(pc.allgather)
        calls = {
            "small": (alltoall, jnp.full((SIZE, 4), RANK, "float32")),
            "slots": (alltoall, jnp.full((SIZE, 5000), RANK, "float32")),
            "large": (alltoall, jnp.full((SIZE, 300_000), RANK, "float32")),
            "larger": (alltoall, jnp.full((SIZE, 700_000), RANK, "float32")),
            "integers": (alltoall, jnp.full((SIZE, 4), RANK, "int32")),
            "empty": (alltoall, jnp.zeros((SIZE, 0), "float32")),
            "small to all": (allgather, jnp.full(4, RANK, "float32")),
            "large to all": (allgather, jnp.full(300_000, RANK, "float32")),
        }
        def right(name):
            call, y = calls[name]
            y = np.asarray(call(y)).reshape(SIZE, -1)
            assert (y == np.arange(SIZE)[:, None]).all(), name

        for name in calls:
            right(name)
        turn = 0
        for one, other in itertools.permutations(calls, 2):
            turn += 1
            call, y = calls[one if RANK == turn % SIZE else other]
            try:
                call(y).block_until_ready()
            except Exception as error:
                assert "with blocks of" in str(error), error
                assert "and this rank in all" in str(error), error
            else:
                raise AssertionError(f"{one} and {other} differ, and nobody said so")
            pc.recover()
            right(("large", "small", "large to all")[turn % 3])
        print("all caught", flush=True)
        """,
        ranks=ranks(number),
        limit=60,
    )

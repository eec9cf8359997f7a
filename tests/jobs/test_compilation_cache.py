"""Programs are the same bytes in every run: the persistent cache hits."""

import re

import pytest

from tests.jobs.job import PREAMBLE, assert_succeeds, compiling_once
from tools import launcher

pytestmark = pytest.mark.timeout(240)

SCRIPT = """
import collections
events = collections.Counter()
jax.monitoring.register_event_listener(lambda name, **_: events.update([name]))
row = MPI.COMM_WORLD.Split(RANK // 2)
comms = [None, row]
def program(x):
    for comm in comms:
        x = pc.alltoall(x, comm=comm)
        x = pc.sendrecv(x, x, (RANK - 1) % 2, (RANK + 1) % 2, comm=comm)
        x = x + pc.allreduce(x, comm=comm) + pc.bcast(x, 0, comm=comm)
    return jax.lax.scan(lambda x, _: (pc.alltoall(x), None), x, None, length=3)[0]
events.clear()
jax.block_until_ready(jax.jit(program)(x))
jax.block_until_ready(jax.jit(jax.grad(lambda x: jnp.sum(program(x) ** 2)))(x))
y, n = pc.alltoallv(x, jnp.ones(SIZE, int), capacity=4)
jax.block_until_ready(pc.allgather(x))
misses = events["/jax/compilation_cache/cache_misses"]
hits = events["/jax/compilation_cache/cache_hits"]
print(f"rank {RANK}: {misses} misses, {hits} hits;", flush=True)
"""


def test_the_second_run_compiles_nothing(tmp_path):
    options = launcher.kept_programs(tmp_path)
    first = assert_succeeds(SCRIPT, limit=120, **options)
    second = assert_succeeds(SCRIPT, limit=120, **options)
    assert " 0 misses" not in first.output
    for rank in (0, 1):
        assert f"rank {rank}: 0 misses" in second.output, second.output
        assert f"rank {rank}: 0 misses, 0 hits" not in second.output


BY_ONE_RANK = """
import collections
events = collections.Counter()
jax.monitoring.register_event_listener(lambda name, **_: events.update([name]))
x = jax.device_put(np.ones((SIZE, 3)))
jax.block_until_ready(jax.jit(lambda x: jnp.sin(x) @ jnp.cos(x).T)(x))
# No cache keeps a program that calls the host: each rank compiles it, and does not wait for ever.
jax.block_until_ready(jax.jit(lambda x: jax.pure_callback(np.sin, x, x))(x))
misses = events["/jax/compilation_cache/cache_misses"]
hits = events["/jax/compilation_cache/cache_hits"]
print(f"rank {RANK}: {misses} misses, {hits} hits;", flush=True)
"""


def test_one_rank_compiles_what_the_tests_of_all_ranks_run(tmp_path):
    """tests/compiled_once.py."""
    options = compiling_once(tmp_path)
    options["preamble"] += PREAMBLE
    ended = assert_succeeds(BY_ONE_RANK, ranks=3, limit=120, **options)
    counts = re.findall(r"rank \d: (\d) misses, (\d) hits", ended.output)
    assert sorted(counts) == [("0", "1"), ("0", "1"), ("1", "0")], ended.output

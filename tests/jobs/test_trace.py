"""What a profile of a program shows: operations under their own names."""

import pytest

from tests.jobs.job import assert_succeeds

pytestmark = pytest.mark.timeout(180)


def test_operations_have_their_names_in_a_trace(tmp_path):
    ended = assert_succeeds(
        """
        import collections, gzip, json, pathlib, re
        plan = pfftjax.PencilFFT((8, 8, 8), pfftjax.ProcessGrid())
        @jax.jit
        def f(x, u):
            y = pc.alltoall(jnp.sin(x))
            y = pc.sendrecv(y, y, 1 - RANK, 1 - RANK)
            y, _ = jax.lax.scan(lambda y, _: (pc.alltoall(y), None), y, None, length=3)
            u = pfftjax.halo_exchange(plan.inverse(plan.forward(u)), plan.input, 1)
            return pc.allreduce(jnp.sum(y)), u
        u = jnp.ones(plan.input.local_shape, complex)
        jax.block_until_ready(f(x, u))
        folder = sys.argv[1] + str(RANK)
        with jax.profiler.trace(folder):
            jax.block_until_ready(f(x, u))
        traces = list(pathlib.Path(folder).rglob("*.trace.json.gz"))
        events = json.loads(gzip.open(traces[0]).read())["traceEvents"]
        # XLA numbers the instructions of one name.
        seen = collections.Counter(
            re.sub(r"[.][0-9]+$", "", event["name"])
            for event in events
            if event.get("ph") == "X" and "hlo_op" in event.get("args", {})
        )
        print("seen", dict(seen), flush=True)
        assert seen["alltoall"] == 4
        assert seen["sendrecv"] == seen["allreduce"] == 1
        for name in ("fft_across", "halo_exchange"):
            assert seen[name] >= 1, name
        """,
        arguments=[str(tmp_path / "rank")],
    )
    assert ended.output.count("seen") == 2

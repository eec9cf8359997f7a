"""What a profile of a program shows: operations under their own names."""

import pytest

from tests.jobs.job import assert_succeeds

pytestmark = pytest.mark.timeout(240)


def test_operations_have_their_names_in_a_trace(tmp_path):
    ended = assert_succeeds(
        """
        import collections, gzip, json, pathlib, re
        from pfftjax import pm
        from pfftjax.fft._local import Kind, fft_of_lines
        plan = pfftjax.PencilFFT((8, 8, 8), pfftjax.ProcessGrid())
        mesh = plan.input
        @jax.jit
        def f(x, u, positions):
            y = pc.alltoall(jnp.sin(x))
            y = pc.sendrecv(y, y, 1 - RANK, 1 - RANK)
            y, _ = jax.lax.scan(lambda y, _: (pc.alltoall(y), None), y, None, length=3)
            u = pfftjax.halo_exchange(plan.inverse(plan.forward(u)), plan.input, 1)
            route = pm.Route.to_owners(positions, mesh, capacity=8)
            back = route.send_back(route.send(positions))
            mass = pm.paint(jnp.asarray(mesh.start) + jnp.array([[0.5, 0.5, 3.5]]), mesh)
            lines = fft_of_lines(u, Kind.FORWARD, u.shape[-1])
            return pc.allreduce(jnp.sum(y)), lines, mass, back
        u = jnp.ones(plan.input.local_shape, complex)
        positions = jnp.array([[0.5, 0.5, 0.5], [7.5, 7.5, 7.5]])
        jax.block_until_ready(f(x, u, positions))
        folder = sys.argv[1] + str(RANK)
        with jax.profiler.trace(folder):
            jax.block_until_ready(f(x, u, positions))
        traces = list(pathlib.Path(folder).rglob("*.trace.json.gz"))
        events = json.loads(gzip.open(traces[0]).read())["traceEvents"]
        # XLA numbers the instructions of one name.
        seen = collections.Counter(
            re.sub(r"[.][0-9]+$", "", event["name"])
            for event in events
            if event.get("ph") == "X" and "hlo_op" in event.get("args", {})
        )
        print(f"seen {dict(seen)}", flush=True)
        assert seen["alltoall"] == 4
        assert seen["sendrecv"] == seen["allreduce"] == 1
        made = "fft_across halo_exchange fft_of_lines order_by_owner move_rows return_rows paint"
        for name in made.split():
            assert seen[name] >= 1, name
        """,
        arguments=[str(tmp_path / "rank")],
    )
    assert ended.output.count("seen") == 2

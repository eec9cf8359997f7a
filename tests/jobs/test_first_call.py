"""Programs that differ between ranks are named before they can hang or mix data."""

import pytest

from tests.jobs.job import assert_ends_in_error, assert_succeeds

pytestmark = pytest.mark.timeout(240)


@pytest.mark.parametrize(
    ("rank0", "rank1", "number"),
    [
        ("pc.alltoall(x)", "pc.allreduce(x)", 1),
        ("pc.alltoall(x)", "pc.allgather(pc.alltoall(x))", 2),
        ("pc.barrier() or pc.alltoall(x)", "pc.alltoall(x)", 1),
        ("pc.alltoall(same(x, 'x'))", "pc.alltoall(x)", 1),
    ],
)
def test_programs_that_differ(rank0, rank1, number):
    """In what they call; in sizes, types, roots and reductions: test_misuse.py."""
    assert_ends_in_error(
        f"""
        from pfftjax.collectives._same import same
        f = jax.jit(lambda x: {rank0}) if RANK == 0 else jax.jit(lambda x: {rank1})
        jax.block_until_ready(f(x))
        """,
        "this program's collectives differ between ranks",
        rf"number {number} is .* on rank 1 and .* on rank 0",
        "Every rank of a communicator must make the same collectives",
    )


def test_control_flow_that_differs():
    """The branches are on the list too, taken or not."""
    assert_ends_in_error(
        """
        branch = pc.alltoall if RANK == 0 else (lambda x: x)
        f = jax.jit(lambda x, p: jax.lax.cond(p, branch, lambda x: pc.bcast(x, 0), x))
        jax.block_until_ready(f(x, False))
        """,
        "this program's collectives differ between ranks",
    )


def test_one_rank_repeats_a_known_program_where_the_other_has_a_new_one():
    """The one that waits in the check asks, and learns that the other has passed it by."""
    assert_ends_in_error(
        """
        f, g = jax.jit(pc.alltoall), jax.jit(lambda x: pc.alltoall(pc.allgather(x)[0]))
        jax.block_until_ready(f(x))
        jax.block_until_ready((f if RANK == 0 else g)(x))
        """,
        r"rank 1 of 2 .* waits in the check before allgather .* but rank 0 is in alltoall",
        "the ranks run different programs",
    )


def test_predicates_that_differ_between_ranks():
    """The programs are equal, their run is not: the watch sees two collectives at once."""
    assert_ends_in_error(
        """
        f = jax.jit(lambda x, p: jax.lax.cond(p, lambda x: pc.allgather(x)[0] * 1, pc.alltoall, x))
        jax.block_until_ready(f(x, True)); jax.block_until_ready(f(x, False))
        jax.block_until_ready(f(x[:, :] * 2, RANK == 0))
        """,
        r"the ranks run different programs|the ranks call different collectives|"
        r"the ranks' calls differ|MPI says",
        PFFTJAX_CHECK="1",
    )


def test_check_mode_names_the_call():
    assert_ends_in_error(
        """
        f = jax.jit(lambda x, p: jax.lax.cond(p, lambda x: pc.bcast(x, 0), pc.alltoall, x))
        for p in (True, False, RANK == 0):
            jax.block_until_ready(f(x, p))
        """,
        "the ranks' calls differ",
        r"alltoall float64\[6\] as collective \d+ on rank 1 and bcast",
        PFFTJAX_CHECK="1",
    )


def test_check_mode_finds_a_cotangent_that_is_not_replicated():
    script = """
    loss = lambda x: pc.allreduce(jnp.sum(x**2)) * (1.0 + RANK)
    jax.block_until_ready(jax.grad(loss)(x))
    """
    assert_succeeds(script)
    assert_ends_in_error(
        script,
        r"replicate failed on rank \d of 2",
        r"the cotangent of an allreduce\) must be the same on every rank, but is",
        PFFTJAX_CHECK="1",
    )


def test_check_mode_lets_right_programs_pass():
    """And finds on any call of a program that what is to be the same is not."""
    assert_succeeds(
        """
        f = lambda x, t: pc.allreduce(jnp.sum(jnp.sin(pc.replicate(t) * pc.alltoall(x))))
        g = jax.jit(jax.grad(f, (0, 1)))
        for _ in range(3):
            jax.block_until_ready(g(x * (1 + RANK), 0.5))
        jax.block_until_ready(jax.jvp(jax.grad(f, 1), (x, 0.5), (x, 1.0)))
        y = pc.sendrecv(x, x, (RANK - 1) % SIZE, (RANK + 1) % SIZE)
        y, n = pc.alltoallv(jnp.ones(4), jnp.full(SIZE, 1 + RANK), capacity=8)
        from pfftjax.collectives._same import same
        f = jax.jit(lambda t: same(t, "t"))
        f(1.0), f(2.0)
        try:
            f(RANK * 1.0).block_until_ready()
        except jax.errors.JaxRuntimeError as error:
            assert "t must be the same on every rank, but is 1 on rank 1 and 0" in str(error)
            pc.recover()
        else:
            raise AssertionError("not compared")
        """,
        PFFTJAX_CHECK="1",
    )


def test_legitimate_differences():
    """Messages between two ranks, idle ranks, blocks of other sizes: no complaint, no hang."""
    assert_succeeds(
        """
        half = MPI.COMM_WORLD.Split(RANK // 2)
        if RANK == 0:
            jax.block_until_ready(jax.jit(lambda x: pc.sendrecv(x, x, 1, 1))(x))
        elif RANK == 1:
            pc.sendrecv(x, x, MPI.PROC_NULL, 0)
            jax.block_until_ready(jax.jit(lambda x: pc.sendrecv(x, x, 0, MPI.PROC_NULL))(x))
        if RANK < 2:
            f = jax.jit(lambda x: pc.allreduce(x, comm=half))
            jax.block_until_ready(f(x))
        rows = jnp.ones((2 + RANK, 3))
        jax.block_until_ready(pc.alltoallv(rows, jnp.zeros(SIZE, int), capacity=1 + RANK)[0])
        # One rank compiles a program again that the others have still.
        f = jax.jit(pc.alltoall)
        for k in range(3):
            if RANK == k:
                jax.clear_caches()
            jax.block_until_ready(f(x))
        """,
        ranks=3,
    )


def test_the_check_can_be_left_out():
    ended = assert_succeeds(
        "jax.block_until_ready(jax.jit(pc.alltoall)(x))", PFFTJAX_FIRST_CALL_CHECK="0"
    )
    assert "differ" not in ended.output


def test_a_communicator_that_one_rank_meets_in_an_exported_program(tmp_path):
    """It makes the duplicates where it first runs, while the others make them as they trace."""
    begin = f"""
from jax import export
from pfftjax._runtime.ffi import native
path = {str(tmp_path / "program")!r}
comm = MPI.COMM_WORLD.Dup()
pc.communicator(comm)  # number 1 in either job
total = jax.jit(lambda x: pc.allreduce(x, comm=comm))
"""
    assert_succeeds(
        begin
        + """
checks = [export.DisabledSafetyCheck.custom_call(name) for name in native.registrations()]
exported = export.export(total, disabled_checks=checks)(x)
if RANK == 0:
    with open(path, "wb") as file:
        file.write(exported.serialize())
"""
    )
    assert_succeeds(
        begin
        + """
with open(path, "rb") as file:
    exported = export.deserialize(bytearray(file.read()))
y = exported.call(x) if RANK == 0 else total(x)
np.testing.assert_array_equal(y, SIZE * x)
"""
    )

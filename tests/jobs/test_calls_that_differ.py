"""Calls that differ between ranks: they are caught, any number of times, and what comes after them
is right; or the job ends, and the message names both calls.

PFFTJAX_TEST_RANKS says on how many ranks; by default each test takes as many as its case needs.
"""

import os
import re

import pytest

from tests.jobs.job import assert_succeeds, run

pytestmark = pytest.mark.timeout(300)

WANTED = int(os.environ.get("PFFTJAX_TEST_RANKS", "0"))


def ranks(least):
    return max(least, WANTED)


@pytest.mark.reproducer
@pytest.mark.parametrize("number", [WANTED] if WANTED else [2, 3])
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
        limit=240,
    )


def assert_killed(script, text, **options):
    ended = run(script, **options)
    assert ended.status != 0, ended.output
    assert re.search(text, ended.output), ended.output


# Each operation has two programs, which differ in one thing that all ranks must mean alike. No two
# pairs are of one size, and so all programs are new where they are first called.
PAIRS = """
import itertools
from pfftjax import ExchangeMethod, ExchangePrecision, Pencil, ProcessGrid
from pfftjax._runtime.communicators import world
from pfftjax.pm._rows import move_rows_p, return_rows_p
grid = ProcessGrid((SIZE, 1))

def rows(n, dtype="float64"):
    return jnp.ones((SIZE, n), dtype)

def transposed(*shape, first=(0, 1), second=(2, 1), dtype="float64", axes=(0, 1, 2), **options):
    a, b = Pencil(shape, grid, first), Pencil(shape, grid, second, axes)
    return (lambda x: pfftjax.transpose(x, a, b, **options)), jnp.ones(a.local_shape, dtype)

def ghosts(operation, n, dtype="float64", length=8, **options):
    pencil = Pencil((length, n), grid)
    x = jnp.ones(pencil.local_shape, dtype)
    if operation is pfftjax.halo_reduce:
        x = jnp.pad(x, [(options["width"][0],) * 2, (0, 0)])
    return (lambda x: operation(x, pencil, **options)), x

def transform(n, **options):
    plan = pfftjax.PencilFFT((8, 4, n), grid, **options)
    x = jnp.ones(plan.input.local_shape, "float32" if plan.real else "complex64")
    return plan.forward, x

def moved(operation, n, dtype="float64"):
    once = jnp.ones(SIZE, "int32")
    order = jnp.arange(SIZE, dtype="int32")
    room = {"capacity": SIZE, "comm": world}
    return (lambda x: operation.bind(order, once, once, x, **room)), rows(n, dtype)

def ragged(n, dtype="float64"):
    return (lambda x: pc.alltoallv(x, jnp.ones(SIZE, int), capacity=SIZE)[0]), rows(n, dtype)

def gathered(n, dtype="float64"):
    return (lambda x: pc.allgatherv(x, 1, capacity=SIZE)[0]), rows(n, dtype)

def started(start):
    return lambda x: pc.wait(start(x))

def pairs():
    sizes = itertools.count(5)
    def n():
        return 4 * next(sizes)
    for name, f in {
        "alltoall": pc.alltoall, "allgather": pc.allgather, "allreduce": pc.allreduce,
        "reduce": lambda x: pc.reduce(x, MPI.SUM, 0), "reduce_scatter": pc.reduce_scatter,
        "scan": pc.scan, "exscan": pc.exscan, "bcast": lambda x: pc.bcast(x, 0),
        "gather": lambda x: pc.gather(x, 0),
        "alltoall_start": started(pc.alltoall_start),
        "allgather_start": started(pc.allgather_start),
    }.items():
        yield name + " size", (f, rows(n())), (f, rows(n()))
        yield name + " dtype", (f, rows(m := n())), (f, rows(m, "int64"))
    def scattered(m, dtype="float64", root=0):
        x = jnp.ones((SIZE, m) if RANK == root else m, dtype)
        return (lambda x: pc.scatter(x, root)), x
    yield "scatter size", scattered(n()), scattered(n())
    yield "scatter dtype", scattered(m := n()), scattered(m, "float32")
    yield "scatter root", scattered(m := n()), scattered(m, root=1)
    for name, f, g in (
        ("allreduce", pc.allreduce, lambda x: pc.allreduce(x, MPI.MAX)),
        ("reduce", lambda x: pc.reduce(x, MPI.SUM, 0), lambda x: pc.reduce(x, MPI.MAX, 0)),
        ("reduce_scatter", pc.reduce_scatter, lambda x: pc.reduce_scatter(x, MPI.MAX)),
        ("scan", pc.scan, lambda x: pc.scan(x, MPI.MAX)),
        ("bcast", lambda x: pc.bcast(x, 0), lambda x: pc.bcast(x, 1)),
        ("reduce", lambda x: pc.reduce(x, MPI.SUM, 0), lambda x: pc.reduce(x, MPI.SUM, 1)),
        ("gather", lambda x: pc.gather(x, 0), lambda x: pc.gather(x, 1)),
        ("scan and exscan", pc.scan, pc.exscan),
        ("starts", started(pc.alltoall_start), started(pc.allgather_start)),
    ):
        yield name + " root or operation", (f, rows(m := n())), (g, rows(m))
    yield "alltoallv width", ragged(n()), ragged(n())
    yield "alltoallv dtype", ragged(m := n()), ragged(m, "float32")
    yield "allgatherv width", gathered(n()), gathered(n())
    for operation in (move_rows_p, return_rows_p):
        yield f"{operation} width", moved(operation, n()), moved(operation, n())
        yield f"{operation} dtype", moved(operation, m := n()), moved(operation, m, "int64")
    yield "transpose shape", transposed(8, 6, n()), transposed(8, 6, n())
    yield "transpose shape of one size", transposed(8, 6, m := n()), transposed(6, 8, m)
    yield "transpose dtype", transposed(8, 6, m := n()), transposed(8, 6, m, dtype="int64")
    yield "transpose order", transposed(8, 8, m := n()), transposed(8, 8, m, axes=(1, 0, 2))
    yield "transpose axis", transposed(8, m := n(), m), transposed(8, m, m, second=(1, 2))
    yield "transpose method", transposed(8, 6, m := n()), transposed(
        8, 6, m, method=ExchangeMethod.MESSAGES)
    one = {"width": (1, 0)}
    for operation in (pfftjax.halo_exchange, pfftjax.halo_reduce):
        name = operation.__name__
        def ours(m, *dtype, **options):
            return ghosts(operation, m, *dtype, **{**one, **options})
        yield name + " others", ours(n()), ours(n())
        yield name + " width", ours(m := n()), ours(m, width=(2, 0))
        yield name + " length", ours(m := n()), ours(m, length=9)
        yield name + " periodic", ours(m := n()), ours(m, periodic=False)
        yield name + " dtype", ours(m := n()), ours(m, "int64")
    yield "fft shape", transform(n()), transform(n())
    yield "fft norm", transform(m := n()), transform(m, norm="ortho")
    yield "fft kind", transform(m := n()), transform(m, real=True)
    yield "fft method", transform(m := n()), transform(m, method=ExchangeMethod.MESSAGES)
    yield "fft precision", transform(m := n()), transform(m, precision=ExchangePrecision.HALF)

def differ(expected):
    for turn, (name, usual, unusual) in enumerate(pairs()):
        f, y = unusual if RANK == turn % SIZE else usual
        try:
            jax.block_until_ready(jax.jit(f)(y))
        except Exception as error:
            assert expected in str(error), (name, error)
            assert "on rank" in str(error), (name, error)
        else:
            raise AssertionError(f"{name} differs, and nobody said so")
        pc.recover()
        assert float(pc.allreduce(1.0)) == SIZE, name
    print(f"all {turn + 1} named", flush=True)
"""


@pytest.mark.parametrize(
    ("expected", "number", "environment"),
    [
        ("this program's collectives differ between ranks", 2, {}),
        ("the ranks' calls differ", 3, {"CHECK": "1", "FIRST_CALL_CHECK": "0"}),
    ],
    ids=["first call", "every call"],
)
def test_whatever_must_be_alike_is_compared(expected, number, environment):
    """On the first call of a program, and for each call where that is asked for."""
    assert_succeeds(
        f"{PAIRS}\ndiffer({expected!r})",
        ranks=ranks(number),
        limit=150,
        **{f"PFFTJAX_{name}": value for name, value in environment.items()},
    )


@pytest.mark.reproducer
@pytest.mark.parametrize("number", [WANTED] if WANTED else [2, 3])
def test_transpositions_and_transforms_of_other_shapes(number):
    """Programs that are known, so that nothing but the exchange itself can tell."""
    assert_succeeds(
        PAIRS
        + """
def known(f, x):
    f = jax.jit(f)
    return f, x, np.asarray(f(x))

def right(call):
    f, x, y = call
    np.testing.assert_array_equal(f(x), y)

calls = [known(f, x) for f, x in (
    transposed(8, 6, 8),
    transposed(8, 12, 4),  # as many elements
    transposed(128, 128, 64),  # a larger window
    transposed(8, 6, 8, axes=(1, 0, 2)),
    transposed(8, 6, 8, dtype="int64"),
    transposed(8, 6, 8, method=ExchangeMethod.SHARED, axes=(2, 1, 0)),
    transform(8),
    transform(256),
    transform(512, norm="ortho"),
)]

def differ(f, x):
    try:
        jax.block_until_ready(f(x))
    except Exception as error:
        assert " is in " in str(error), error
    else:
        raise AssertionError("two calls differ, and nobody said so")
    pc.recover()

for turn, (one, other) in enumerate(itertools.permutations(calls, 2)):
    differ(*(one if RANK == turn % SIZE else other)[:2])
    right(calls[turn % len(calls)])

# Some want a larger window than there is; in the end all do, of two sizes.
alone = MPI.COMM_WORLD.Dup()
grid = ProcessGrid((SIZE, 1), comm=alone)
small = known(*transposed(8, 6, 8))
for turn in range(4):
    f, x = transposed(64, 64, 64 << turn)
    differ(*((jax.jit(f), x) if RANK == turn % SIZE else small[:2]))
    right(small)
f, x = transposed(64, 64, 256 + 64 * (RANK == 0))
differ(jax.jit(f), x)
right(small)
grid = ProcessGrid((SIZE, 1), comm=MPI.COMM_WORLD.Dup())
f, x = transposed(8, 6, 8 + 8 * (RANK == 0))
differ(jax.jit(f), x)
right(known(*transposed(8, 6, 8)))
print("all caught", flush=True)
""",
        ranks=ranks(number),
        limit=240,
        PFFTJAX_FIRST_CALL_CHECK="0",
    )


@pytest.mark.parametrize(
    ("usual", "unusual", "operation", "least"),
    [
        (
            "transposed(8, 6, 8, method=ExchangeMethod.MESSAGES)",
            "transposed(8, 12, 4, method=ExchangeMethod.MESSAGES)",
            r"transpose float64\[384\]",
            2,
        ),
        ("ghosts(E, 6, width=(1, 0))", "ghosts(E, 6, width=(2, 0))", "halo_exchange", 3),
    ],
)
def test_messages_of_one_size_between_calls_that_differ(usual, unusual, operation, least):
    """They are not taken for each other, and the watch ends the wait."""
    assert_killed(
        f"""{PAIRS}
E = pfftjax.halo_exchange
(f, x), (g, y) = {usual}, {unusual}
f, g = jax.jit(f), jax.jit(g)
jax.block_until_ready((f(x), g(y)))
jax.block_until_ready(f(x) if RANK == 0 else g(y))
""",
        rf"is in {operation}.*, but rank \d is in {operation}.*the ranks call different",
        ranks=ranks(least),
        limit=60,
    )


def test_an_empty_operand_where_others_have_some():
    """The rank without one moves nothing, and would go on by itself."""
    assert_killed(
        """
        f = jax.jit(pc.allreduce)
        empty, some = jnp.ones((0, 3)), jnp.ones((1 << 18,))
        jax.block_until_ready((f(empty), f(some)))
        jax.block_until_ready(f(empty if RANK == 0 else some))
        """,
        r"allreduce float64\[0\].*the ranks call different collectives|"
        r"allreduce float64\[262144\].*the ranks call different collectives",
        ranks=ranks(2),
        limit=60,
    )

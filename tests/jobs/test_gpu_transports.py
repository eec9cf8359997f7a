"""The transports between GPUs, on a device that is none (tools/fake_device): the same results by
each, and an error for what cannot be had, or fails, without a hang.
"""

import pytest

from tests.jobs.job import PREAMBLE, assert_ends_in_error, assert_succeeds
from tools import fake_device

pytestmark = pytest.mark.timeout(240)

# `using(name)` gives a communicator on which GPUs exchange so.
TRANSPORTS = """
import re, tempfile
from pfftjax._runtime import transports
from pfftjax._runtime.ffi import native
from pfftjax.pencils._overlap import start_p, wait_p
from pfftjax.pencils._transpose import Redistribution

def using(name, **settings):
    transports.configure(name=name, **settings)
    return MPI.COMM_WORLD.Dup()

def refusal(comm, operation=pc.alltoall):
    \"\"\"The error, which all ranks see alike.\"\"\"
    try:
        jax.block_until_ready(operation(x, comm=comm))
    except Exception as error:
        pc.recover()
        text = re.split(r", called at <string>:\\d+: ", str(error))[1]
        assert MPI.COMM_WORLD.allgather(text) == [text] * SIZE
        return text
    raise AssertionError("there is none")

def chosen():
    return transports.chosen()[-1]
"""

RESULTS = """
rng = np.random.default_rng(0)
def drawn(*shape, dtype="f8"):
    whole = rng.standard_normal((SIZE, *shape)) * 50
    return whole.astype(dtype)

def of_all_sizes(comm):
    grid = pfftjax.ProcessGrid((SIZE, 1), comm=comm)
    shape = (7, 5, 11)
    source, target = pfftjax.Pencil(shape, grid), pfftjax.Pencil(shape, grid, (1, 2), (1, 2, 0))
    field = drawn(*shape, dtype="c16")[0]
    halo = pfftjax.Pencil((2, 3, 5), grid)  # fewer planes than ranks
    planes = rng.standard_normal((2, 3, 5))
    small, large = drawn(SIZE, 3, dtype="f4"), drawn(SIZE, 1009)
    bytes_, rows = drawn(13, dtype="i1"), drawn(2 * SIZE, 3)
    counts = np.array([[(i + 2 * j) % 3 for j in range(SIZE)] for i in range(SIZE)], np.int32)
    counts[:, 0] = 0  # rank 0 receives nothing
    # One way only: nothing that comes back says that it was read, nor does the next exchange, in
    # which more goes to one rank than to another. Then MPI waits for all of them.
    flow, flowing = drawn(2003), np.zeros((2, SIZE), int)
    flowing[0, -1], flowing[1, -2:] = 2003, (2000, 3)
    flowing = jnp.asarray(flowing * (RANK == 0))
    sums = {name: drawn(37, dtype=name) for name in ("f4", "f8", "i4", "u1", "c8")}
    # In chunks: of a batch, and of one array.
    fields = drawn(3, *shape, dtype="c16")[0]
    method = pfftjax.ExchangeMethod.PIPELINED
    plan = pfftjax.PencilFFT(shape, grid, method=method)
    blunt = drawn(5)
    blunt[-1, 2] = np.nan
    wide = drawn(9001)  # so large that it is given out in parts
    root = SIZE - 1
    null = MPI.PROC_NULL
    left, right = RANK - 1 if RANK else null, RANK + 1 if RANK < root else null

    @jax.jit
    def program(small, large, bytes_, rows, flow, field, planes, sums, blunt, wide, fields):
        def there_and_back(_, x):
            return pc.alltoall(pc.alltoall(x, comm=comm), comm=comm)
        spectra, pull = jax.vjp(jax.vmap(plan.forward), fields)
        return (
            pc.alltoall(small, comm=comm),
            jax.lax.fori_loop(0, 3, there_and_back, pc.alltoall(large, comm=comm)),
            pc.alltoall(jnp.zeros((SIZE, 0)), comm=comm),
            # Out of the same memory each time.
            jax.lax.map(lambda k: pc.allgather(bytes_ + k, comm=comm), jnp.arange(3, dtype="i1")),
            pc.alltoallv(rows, jnp.asarray(counts[RANK]), capacity=2 * SIZE, comm=comm)[0],
            pfftjax.transpose(field, source, target),
            pfftjax.halo_exchange(planes, halo, 2),
            pfftjax.halo_reduce(pfftjax.halo_exchange(planes, halo, 1), halo, 1),
            jax.lax.map(lambda counts: pc.alltoallv(flow, counts, capacity=2003, comm=comm)[0],
                        flowing),
            {name: pc.allreduce(v, comm=comm) for name, v in sums.items()},
            pc.allreduce(sums["i4"], MPI.MAX, comm=comm),
            pc.allreduce(blunt, MPI.MAX, comm=comm),
            pc.bcast(wide, root, comm=comm),
            pc.bcast(bytes_, 0, comm=comm),
            [pc.gather(bytes_, r, comm=comm) for r in (0, root)],
            pc.scatter(large if RANK == root else large[0], root, comm=comm),
            {name: pc.reduce(v, MPI.SUM, root, comm=comm) for name, v in sums.items()},
            {name: pc.reduce_scatter(jnp.stack([k * v for k in range(SIZE)]), comm=comm)
             for name, v in sums.items()},
            pc.reduce(sums["i4"], MPI.MIN, 0, comm=comm),
            pc.reduce_scatter(jnp.stack([blunt] * SIZE), MPI.MAX, comm=comm),
            # A ring, and a line with messages of as many elements as the rank that receives.
            pc.sendrecv(wide, wide, (RANK - 1) % SIZE, (RANK + 1) % SIZE, comm=comm,
                        collective=True),
            pc.sendrecv(flow[:RANK + 1], flow[:RANK], left, right, comm=comm, collective=True),
            spectra,
            pull(spectra)[0],
            plan.inverse(spectra[0]),
        )

    y = jax.block_until_ready(program(
        small[RANK], large[RANK], bytes_[RANK], rows[RANK], flow[RANK],
        source.local_block(field), halo.local_block(planes),
        {name: v[RANK] for name, v in sums.items()}, blunt[RANK], wide[RANK],
        plan.input.local_block(fields),
    ))
    equal = np.testing.assert_array_equal
    equal(y[0], small[:, RANK])
    equal(y[1], large[:, RANK])
    assert y[2].shape == (SIZE, 0)
    equal(y[3], bytes_ + np.arange(3, dtype='i1')[:, None, None])
    expected = np.zeros((2 * SIZE, 3))
    parts = [rows[i, counts[i, :RANK].sum():][:counts[i, RANK]] for i in range(SIZE)]
    together = np.concatenate(parts)
    expected[:len(together)] = together
    equal(y[4], expected)
    equal(y[5], target.local_block(field))
    start, count = halo.range_of(0)
    index = np.arange(start - 2, start + count + 2) % 2
    columns = np.arange(-2, 5) % 3
    equal(y[6], planes[index][:, columns])
    assert np.all(np.isfinite(y[7])) and y[7].shape == halo.local_shape
    equal(y[8][0], flow[0] * (RANK == SIZE - 1))
    more = {SIZE - 2: flow[0, :2000], SIZE - 1: flow[0, 2000:]}.get(RANK, flow[0, :0])
    equal(y[8][1], np.pad(more, (0, 2003 - len(more))))
    for name, v in sums.items():
        np.testing.assert_allclose(y[9][name], v.sum(0, dtype=v.dtype), rtol=1e-4, atol=1e-3)
    equal(y[10], sums["i4"].max(0))
    equal(y[11], blunt.max(0))
    equal(y[12], wide[root])
    equal(y[13], bytes_[0])
    for r, gathered in zip((0, root), y[14]):
        equal(gathered, bytes_ if RANK == r else bytes_[RANK])
    equal(y[15], large[root, RANK])
    for name, v in sums.items():
        total, close = v.sum(0, dtype=v.dtype), dict(rtol=1e-4, atol=1e-3)
        np.testing.assert_allclose(y[16][name], total if RANK == root else v[RANK], **close)
        np.testing.assert_allclose(y[17][name], (RANK * total).astype(name), **close)
    equal(y[18], sums["i4"].min(0) if RANK == 0 else sums["i4"][RANK])
    equal(y[19], blunt.max(0))
    equal(y[20], wide[RANK - 1])
    equal(y[21], flow[RANK - 1, :RANK])
    def close(actual, whole, pencil):
        expected, scale = pencil.local_block(whole), np.abs(whole).max()
        np.testing.assert_allclose(actual / scale, expected / scale, atol=1e-13, rtol=0)
    spectra = np.fft.fftn(fields, axes=(1, 2, 3))
    close(y[22], spectra, plan.output)
    # Its transpose is the transform, from the other pencil.
    close(y[23], np.fft.fftn(spectra, axes=(1, 2, 3)), plan.input)
    close(y[24], fields[0], plan.input)

def begun_and_left(comm):
    \"\"\"By a program that fails, say: what comes after is as ever; and NCCL on another
    communicator has its turn.\"\"\"
    grid = pfftjax.ProcessGrid((SIZE, 1), comm=comm)
    plan = pfftjax.PencilFFT((4, 6, 5), grid, method=pfftjax.ExchangeMethod.PIPELINED)
    field = rng.standard_normal((4, 6, 5)) + 0j
    mine, spectrum = plan.input.local_block(field), plan.output.local_block(np.fft.fftn(field))
    x = jnp.ones((2000 * SIZE, 1))
    way = Redistribution(order=(0, 1), scatter=0, gather=1, whole=SIZE)
    move = dict(way=way, comm=pc.communicator(comm), index=0)
    begin, other = jax.jit(lambda x: start_p.bind(x, **move)), using("nccl")
    results = []
    for _ in range(8):
        begun = begin(x)
        results.append((begun, pc.alltoall(jnp.full(SIZE, RANK), comm=other)))
        np.testing.assert_array_equal(results[-1][1], range(SIZE))
    np.testing.assert_allclose(plan.forward(mine), spectrum, atol=1e-12)
    try:
        jax.block_until_ready(jax.jit(lambda x, *begun: wait_p.bind(x, *begun, **move))(x, *begun))
    except jax.errors.JaxRuntimeError as error:
        pc.recover()
        assert "transpose_wait failed on rank" in str(error), error
        assert "not under way" in str(error), error
    else:
        raise AssertionError("nothing was raised")
    np.testing.assert_allclose(plan.forward(mine), spectrum, atol=1e-12)

def both_ways_are_timed():
    \"\"\"And kept in a file.\"\"\"
    methods = {pfftjax.ExchangeMethod.AUTOMATIC, pfftjax.ExchangeMethod.PIPELINED}
    with tempfile.TemporaryDirectory() as folder:
        file = MPI.COMM_WORLD.bcast(folder) + "/tuning.json"
        options = {"tune": pfftjax.Tuning(seconds=1.0, file=file)}
        grid = pfftjax.ProcessGrid((SIZE, 1))
        one, two = (pfftjax.PencilFFT((4, 6, 5), grid, **options) for _ in range(2))
        assert one == two and {t.method for t in one.timings} == methods, one.timings
        assert str(one.timings) == str(two.timings)
        MPI.COMM_WORLD.Barrier()
"""


def environment(**extra):
    return fake_device.environment(
        PFFTJAX_GPU_TRANSPORT="auto", PFFTJAX_NCCL=fake_device.build_nccl(), **extra
    )


@pytest.mark.parametrize(
    ("ranks", "extra"),
    [
        (2, {}),
        # Pieces and rounds of a few bytes.
        (3, {"PFFTJAX_MAX_CHUNK_BYTES": 1000, "PFFTJAX_GPU_ARENA_BYTES": 4096}),
    ],
)
def test_the_same_by_each(ranks, extra):
    assert_succeeds(
        TRANSPORTS
        + RESULTS
        + """
for name in ("", "ipc", "mpi", "staging (through memory that the ranks share)"):
    of_all_sizes(using(name.split(" ")[0]))
    assert chosen().transport.startswith(name or "nccl"), chosen()
    assert f"process {os.getpid()}" in chosen().device
# As on several nodes: ranks 0 and 1 on one of them, or each on its own.
native.set_node(RANK // 2 if SIZE > 2 else RANK)
of_all_sizes(using("staging"))
native.set_node(0)
how = ["each rank on a node of its own", "within a node, by messages between nodes"][SIZE > 2]
assert how in chosen().transport, chosen()
assert "ipc" in pfftjax.info().gpu_transport or "nccl" in pfftjax.info().gpu_transport

if SIZE == 2:
    begun_and_left(using("nccl"))
    both_ways_are_timed()

# By NCCL, and not by way of the host.
comm = using("nccl")
jax.block_until_ready(pc.alltoall(x, comm=comm))
os.environ["PFFTJAX_FAKE_NCCL_FAIL"] = "ncclAllReduce"
assert "NCCL says 'invalid argument' in ncclAllReduce" in refusal(comm, pc.allreduce)
del os.environ["PFFTJAX_FAKE_NCCL_FAIL"]

# These are exchanges that a transport would take for a message of another size, or wait for.
try:
    left, sent = (RANK - 1) % SIZE, x[: 1 + RANK // (SIZE - 1)]
    jax.block_until_ready(pc.sendrecv(sent, x[:1], left, (RANK + 1) % SIZE, collective=True))
except jax.errors.JaxRuntimeError as error:
    pc.recover()
    assert f"expects 3 elements from rank {left}: each rank must be the source" in str(error)
else:
    raise AssertionError("nothing was raised")

# One device for two ranks: NCCL leaves it to the next.
os.environ["PFFTJAX_FAKE_IDENTITY"] = "GPU-0"
comm = using("")
jax.block_until_ready(pc.alltoall(x, comm=comm))
assert chosen().transport.startswith("ipc"), chosen()
assert "nccl: ranks 0 and 1 share device GPU-0" in chosen().transport
assert chosen().device == "GPU-0, shared by ranks " + ", ".join(map(str, range(SIZE)))
why = refusal(using("nccl"))
assert "PFFTJAX_GPU_TRANSPORT=nccl cannot be had here" in why and "share device" in why, why
# NCCL decides for itself where it has been told to, on all ranks.
os.environ["NCCL_MULTI_RANK_GPU_ENABLE"] = "1"
if RANK == 0:
    del os.environ["NCCL_MULTI_RANK_GPU_ENABLE"]
assert "share device" in refusal(using("nccl"))
os.environ["NCCL_HOSTID"] = f"host {RANK}"
jax.block_until_ready(pc.alltoall(x, comm=using("nccl")))
assert chosen().transport.startswith("nccl"), chosen()
del os.environ["NCCL_HOSTID"]
os.environ.pop("NCCL_MULTI_RANK_GPU_ENABLE", None)

# A difference between the ranks.
assert "PFFTJAX_GPU_TRANSPORT=staging on rank 1" in refusal(using(["ipc", "staging"][RANK == 1]))
""",
        ranks=ranks,
        JAX_DISABLE_MOST_OPTIMIZATIONS="1",
        **environment(**extra),
    )


ON_RANK_1 = """
import os
if os.environ.get("OMPI_COMM_WORLD_RANK", os.environ.get("PMI_RANK")) == "1":
    os.environ.update({})
"""


@pytest.mark.parametrize(
    ("ranks", "fault", "why"),
    [
        (2, {"PFFTJAX_FAKE_NCCL_FAIL": "ncclSend"}, "NCCL says 'invalid argument' in ncclSend"),
        (2, {"PFFTJAX_FAKE_NCCL_FAIL": "ncclAllReduce"}, "'invalid argument' in ncclAllReduce"),
        (2, {"PFFTJAX_FAKE_NCCL_LOST": "1"}, "NCCL says 'remote process exited"),
        (2, {"PFFTJAX_FAKE_NCCL_HANG": "1"}, "a GPU waited in vain for messages of other ranks"),
        (3, {"PFFTJAX_FAKE_NCCL_WRONG": "1500"}, "byte 1000 of 2000 from rank 0 arrived wrong"),
    ],
    ids=["at once", "a sum", "later", "never", "wrong"],
)
def test_a_transport_is_tried(ranks, fault, why):
    """Before it is taken: what fails on one rank, or brings wrong values there, is left by all
    ranks for the next, and the job goes on.
    """
    ended = assert_succeeds(
        TRANSPORTS
        + f"""
why = {why!r}
text = chosen().transport  # of the first operation
assert text.startswith("ipc ") and "and not nccl: it was tried and failed on rank" in text, text
assert why in text, text
text = refusal(using("nccl"))
assert "PFFTJAX_GPU_TRANSPORT=nccl cannot be had here" in text and why in text, text
# What failed on one communicator may do on another, and later.
for name in {list(fault)}:
    os.environ.pop(name, None)
for name in ("", "nccl", "ipc"):
    comm = using(name)
    y = jax.block_until_ready(pc.alltoall(jnp.arange(SIZE) + 10 * RANK, comm=comm))
    np.testing.assert_array_equal(y, 10 * np.arange(SIZE) + RANK)
    assert chosen().transport.startswith(name or "nccl"), chosen()
""",
        ranks=ranks,
        preamble=ON_RANK_1.format(fault) + PREAMBLE,
        **environment(PFFTJAX_TIMEOUT="16" if "PFFTJAX_FAKE_NCCL_HANG" in fault else "0"),
    )
    assert ended.output.count("do not exchange by nccl: it was tried and failed") == 1


def test_rccl(tmp_path):
    """Where GPUs are AMD's, NCCL has another name."""
    (tmp_path / "librccl.so.1").symlink_to(fake_device.build_nccl())
    assert_succeeds(
        TRANSPORTS
        + """
y = pc.alltoall(x, comm=using("nccl"))
np.testing.assert_array_equal(y, x)
assert chosen().transport.startswith("nccl (RCCL "), chosen()
""",
        **fake_device.environment(PFFTJAX_FAKE_RCCL=1, LD_LIBRARY_PATH=tmp_path),
    )


def test_what_cannot_be_had():
    """By one rank is left by all, for the next, and the reason stays."""
    extra = {"PFFTJAX_FAKE_FAIL": "export_memory:1"}
    assert_succeeds(
        TRANSPORTS
        + """
text = chosen().transport  # of the first operation
assert "), and not nccl: on rank 0: PFFTJAX_NCCL=/nowhere" in text, text
assert "ipc: on rank 1: the fake device says 'a failure that a test has asked for'" in text, text
assert "mpi: on rank 0: it is tried only where PFFTJAX_GPU_TRANSPORT=mpi names it" in text, text
assert "PFFTJAX_NCCL=/nowhere" in refusal(using("nccl"))
jax.block_until_ready(pc.alltoall(x, comm=using("ipc")))  # the second time it can
assert chosen().transport.startswith("ipc"), chosen()

# All ranks leave memory that one of them cannot pin; an exchange that fails on one rank fails on
# all.
def fail(call):
    os.environ["PFFTJAX_FAKE_FAIL"] = call if RANK == 1 else ""
fail("pin:1")
jax.block_until_ready(pc.alltoall(x, comm=using("staging")))
assert chosen().transport.startswith(
    "staging (by messages, on rank 1: the fake device says 'a failure that a test has asked for' "
    "in pinning memory that the ranks share)"
), chosen()
comm = using("staging")
exchange = jax.jit(lambda x: pc.alltoall(x, comm=comm))
jax.block_until_ready(exchange(x))
assert chosen().transport.startswith("staging (through memory that the ranks share)"), chosen()
for expected in (
    ["rank 1 has given up an exchange between GPUs", "'a failure that a test has asked for'"],
    ["an exchange by staging has failed before"] * 2,
):
    fail("copy:2")
    try:
        jax.block_until_ready(exchange(x))
    except jax.errors.JaxRuntimeError as error:
        pc.recover()
        assert expected[RANK] in str(error), error
    else:
        raise AssertionError("nothing was raised")
native.configure(max_chunk_bytes=1 << 30, check=False, debug=False, timeout=0.0, first_call=True,
                 shared_memory=False)
assert "not on one node" in refusal(using("ipc"))
jax.block_until_ready(pc.alltoall(x, comm=using("staging")))
assert "by messages, PFFTJAX_SHARED_MEMORY=0" in chosen().transport, chosen()
""",
        preamble=ON_RANK_1.format(extra) + PREAMBLE,
        **fake_device.environment(
            PFFTJAX_GPU_TRANSPORT="auto", PFFTJAX_NCCL="/nowhere/libnccl.so.2"
        ),
    )


@pytest.mark.parametrize(
    ("failure", "text"),
    [
        (
            """os.environ["PFFTJAX_FAKE_NCCL_FAIL"] = "ncclSend" if RANK == 1 else "" """,
            r"alltoall failed on rank 1 of 2.*NCCL says 'invalid argument' in ncclSend",
        ),
        (
            """os.environ["PFFTJAX_FAKE_NCCL_LOST"] = "1" """,
            r"NCCL says 'remote process exited or .*' in an earlier exchange between GPUs",
        ),
    ],
    ids=["at once", "later"],
)
def test_nccl_fails(failure, text):
    assert_ends_in_error(
        f"""
        jax.block_until_ready(pc.alltoall(x))
        {failure}
        jax.block_until_ready(pc.alltoall(x + 1))
        """,
        text,
        **environment(),
    )


@pytest.mark.parametrize(
    ("failure", "text"),
    [
        # Not in a call: the watch finds it.
        (
            """os.environ["PFFTJAX_FAKE_NCCL_LOST"] = "1"; time.sleep(60)""",
            r"rank \d of 2 \(communicator 0\): NCCL says 'remote process exited.*in an earlier",
        ),
        (
            """
from pfftjax._runtime.ffi import native
native.configure(max_chunk_bytes=1 << 30, check=False, debug=False, timeout=0.5, first_call=True,
                 shared_memory=True)
os.environ["PFFTJAX_FAKE_NCCL_HANG"] = "1"
jax.block_until_ready(exchange(x))
""",
            r"s \(PFFTJAX_TIMEOUT\) rank \d of 2 \(communicator 0\) is on its GPU in bcast "
            r"float64\[6\], collective 3, by NCCL, which says 'no error': another rank is lost",
        ),
    ],
    ids=["lost", "hangs"],
)
def test_the_watch_looks_at_nccl(failure, text):
    before = """
exchange = jax.jit(lambda x: pc.bcast(x, 0))
jax.block_until_ready(exchange(x))
MPI.COMM_WORLD.Barrier()
"""
    assert_ends_in_error(before + failure, text, **environment())


def test_nccl_does_not_come_up_on_one_rank():
    """The others wait for it inside of NCCL, and are not left there."""
    assert_ends_in_error(
        """
        os.environ["PFFTJAX_FAKE_NCCL_FAIL"] = "ncclCommInitRank" if RANK == 1 else ""
        jax.block_until_ready(pc.alltoall(x, comm=MPI.COMM_WORLD.Dup()))
        """,
        r"on rank 1 of 2 NCCL says 'invalid argument' in ncclCommInitRank.*does without NCCL",
        **environment(PFFTJAX_TIMEOUT="8"),
    )


@pytest.mark.parametrize("call", ["copy:4"])
def test_the_runtime_fails(call):
    """On one rank, in an exchange by IPC; the other one does not wait for ever."""
    assert_ends_in_error(
        """
        for _ in range(3):
            x = jax.block_until_ready(pc.alltoall(x))
        """,
        r"alltoall failed on rank 1 of 2.*'a failure that a test has asked for'",
        preamble=ON_RANK_1.format({"PFFTJAX_FAKE_FAIL": call}) + PREAMBLE,
        **fake_device.environment(PFFTJAX_GPU_TRANSPORT="ipc", PFFTJAX_GPU_PROBE_BYTES=0),
    )

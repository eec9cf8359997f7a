"""Inside jax.shard_map over a multi-process mesh, beside JAX's own collectives."""

import socket

import pytest

from tests.extra_cases import EXTRA
from tests.helpers import CASES
from tests.jobs.job import assert_succeeds

pytestmark = pytest.mark.timeout(300)

PREAMBLE = """
import sys
import jax
from mpi4py import MPI
RANK, SIZE = MPI.COMM_WORLD.rank, MPI.COMM_WORLD.size
jax.config.update("jax_cpu_collectives_implementation", "gloo")
jax.distributed.initialize("127.0.0.1:" + sys.argv[1], SIZE, RANK)
import jax.numpy as jnp, numpy as np
from jax.sharding import AxisType, Mesh, NamedSharding, PartitionSpec as P
from pfftjax import collectives as pc
mesh = Mesh(np.array(jax.devices()), ("p",))
X = np.random.default_rng(0).standard_normal((SIZE, SIZE, 3))
array = jax.make_array_from_callback(
    (SIZE * SIZE, 3), NamedSharding(mesh, P("p")), lambda i: X.reshape(-1, 3)[i]
)
def mine(a):
    return np.asarray(a.addressable_shards[0].data)
def over_ranks(f, out=P("p"), vma=False):
    return jax.shard_map(f, mesh=mesh, in_specs=P("p"), out_specs=out, check_vma=vma)
def check(actual, expected):
    assert np.abs(mine(actual) - expected).max() < 1e-12
"""

SCRIPT = """
swapped = X.swapaxes(0, 1)
for vma in (True, False):
    sm = lambda f, out=P("p"): over_ranks(f, out, vma)
    check(jax.jit(sm(pc.alltoall))(array), swapped[RANK])
    check(sm(pc.alltoall)(array), swapped[RANK])
    check(jax.jit(sm(pc.reduce_scatter))(array), X.sum(0)[RANK])
    check(jax.jit(sm(lambda x: pc.allgather(x).reshape(-1, 3)))(array), X.reshape(-1, 3))
    check(jax.jit(sm(pc.allreduce))(array), X.sum(0))
    check(jax.jit(sm(lambda x: pc.bcast(x, 0)))(array), X[0])
    ring = lambda x: pc.sendrecv(x, x, (RANK - 1) % SIZE, (RANK + 1) % SIZE)
    check(jax.jit(sm(ring))(array), X[RANK - 1])
    check(
        jax.jit(sm(lambda x: pc.alltoallv(x, jnp.ones(SIZE, int))[0]))(array), swapped[RANK]
    )
    inside = jax.grad(lambda x: jnp.sum(jnp.sin(pc.alltoall(x))))
    check(jax.jit(sm(inside))(array), np.cos(X[RANK]))
    total = lambda a: jnp.sum(jnp.sin(sm(pc.alltoall)(a)))
    check(jax.jit(jax.grad(total))(array), np.cos(X[RANK]))
    check(jax.grad(total)(array), np.cos(X[RANK]))
    product = jax.jit(lambda a: jax.jvp(jax.grad(total), (a,), (a,))[1])
    check(product(array), -np.sin(X[RANK]) * X[RANK])
    mixed = lambda x: pc.alltoall(x) * jax.lax.psum(jnp.sum(x), "p")
    check(jax.jit(sm(mixed))(array), swapped[RANK] * X.sum())
    compiled = jax.jit(sm(pc.alltoall)).lower(array).compile()
    for _ in range(3):
        check(compiled(array), swapped[RANK])
    step = jax.checkpoint(lambda c, _: (jnp.sin(sm(pc.alltoall)(c)), None))
    scanned = lambda a: jnp.sum(jax.lax.scan(step, a, None, length=2)[0])
    reference = jax.grad(lambda X: jnp.sum(jnp.sin(jnp.sin(X))))(jnp.asarray(X))
    check(jax.jit(jax.grad(scanned))(array), reference[RANK])
check(jax.jit(over_ranks(pc.allreduce, P()))(array), X.sum(0))

explicit = jax.make_mesh((SIZE,), ("p",), axis_types=(AxisType.Explicit,))
moved = jax.make_array_from_callback(
    (SIZE * SIZE, 3), NamedSharding(explicit, P("p")), lambda i: X.reshape(-1, 3)[i]
)
with jax.set_mesh(explicit):
    check(jax.jit(jax.shard_map(pc.alltoall, out_specs=P("p")))(moved), swapped[RANK])

# A rank's own array in the same process, before and after global ones.
local = jax.device_put(X[RANK], jax.local_devices()[0])
check(jax.jit(pc.alltoall)(local), swapped[RANK])
check(jax.jit(over_ranks(pc.alltoall))(array), swapped[RANK])

try:
    jax.jit(pc.allreduce)(array)
except ValueError as error:
    assert "allreduce works on each rank's own block" in str(error), error
    assert "jax.shard_map" in str(error)
else:
    raise AssertionError("a global array outside shard_map was accepted")
print("done", flush=True)
"""


PLANS = """
import pfftjax
from jax.sharding import Mesh
dims = (2, 2) if SIZE == 4 else (SIZE, 1)
grid = pfftjax.ProcessGrid(dims)
mesh = Mesh(np.array(jax.devices()).reshape(dims), ("px", "py"))
shape = (8, 4 * SIZE, 12)
Y = np.random.default_rng(1).standard_normal(shape)
array = jax.make_array_from_callback(
    shape, NamedSharding(mesh, P("px", "py")), lambda i: Y[i]
)
for real in (False, True):
    plan = pfftjax.PencilFFT(shape, grid, real=real)
    spectrum = (np.fft.rfftn if real else np.fft.fftn)(Y)
    for vma in (True, False):
        def over_grid(f, i, o):
            return jax.jit(jax.shard_map(f, mesh=mesh, in_specs=i, out_specs=o, check_vma=vma))
        x, k = P("px", "py"), P(("px",), ("py",))
        # The spectrum has axes (1, 2, 0): n1 over px, n2 over py; for r2c that may not divide.
        power = over_grid(lambda a: jnp.abs(plan.forward(a)).sum(0).sum(0)[None, None], x, x)
        total = np.abs(spectrum).sum((1, 2))
        assert np.abs(sum(MPI.COMM_WORLD.allgather(mine(power(array))[0, 0])) - total).max() < 1e-9
        back = over_grid(lambda a: jnp.real(plan.inverse(plan.forward(a))), x, x)
        block = plan.input.local_block(Y)
        check(back(array), block)
        loss = lambda a: jnp.sum(jnp.sin(back(a)))
        check(jax.jit(jax.grad(loss))(array), np.cos(block))
        padded = over_grid(lambda a: pfftjax.halo_exchange(a, plan.input, 1), x, x)
        check(padded(array), pfftjax.halo_exchange(block, plan.input, 1))
try:
    jax.jit(plan.forward)(array)
except ValueError as error:
    assert SIZE == 1 or "the block has shape" in str(error), error
else:
    raise AssertionError("a global array outside shard_map was accepted")
print("done", flush=True)
"""


# A parameter that all ranks share. Where JAX tracks what differs between ranks (check_vma), its
# own gradient is the whole one, and pfftjax's is the same; elsewhere JAX's is this rank's part.
SHARED = """
import pfftjax
def loss(x, theta):
    y = pc.alltoall(jnp.sin(theta * x)) * (1 + RANK)
    return pc.allreduce(jnp.sum(y**2))
def model(X, theta):
    Y = jnp.swapaxes(jnp.sin(theta * X), 0, 1) * (1 + jnp.arange(SIZE))[:, None, None]
    return jnp.sum(Y**2)
expected = jax.grad(model, (0, 1))(jnp.asarray(X), 0.7)
curvature = jax.hessian(model, 1)(jnp.asarray(X), 0.7)
ours = pfftjax.grad(loss, (0, 1), shared="theta", own="x")
for vma in (True, False):
    def inside(f, out):
        ins = (P("p"), P())
        mapped = jax.shard_map(f, mesh=mesh, in_specs=ins, out_specs=out, check_vma=vma)
        return jax.jit(mapped)(array, 0.7)
    for gradient in [ours] + [jax.grad(loss, (0, 1))] * vma:
        by_x, by_theta = inside(gradient, (P("p"), P()))
        check(by_x, expected[0][RANK])
        check(by_theta, expected[1])
    check(inside(pfftjax.hessian(loss, 1, shared=1), P()), curvature)
part = mine(inside(jax.grad(loss, 1), P()))
assert abs(part - expected[1]) > 1e-3
assert abs(sum(MPI.COMM_WORLD.allgather(float(part))) - expected[1]) < 1e-9
try:
    jax.jit(pfftjax.grad(lambda x: pc.allreduce(jnp.sum(x**2)), own=0))(array)
except ValueError as error:
    assert "works on each rank's own block" in str(error), error
else:
    raise AssertionError("a global array outside shard_map was accepted")
print("done", flush=True)
"""


@pytest.mark.parametrize(
    ("script", "ranks"), [(SCRIPT, 2), (SCRIPT, 3), (PLANS, 2), (PLANS, 4), (SHARED, 2)]
)
def test_shard_map(script, ranks):
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = str(probe.getsockname()[1])
    ended = assert_succeeds(script, ranks=ranks, preamble=PREAMBLE, arguments=[port], limit=240)
    assert ended.output.count("done") == ranks


# Every operation: its values and, where it has one, its derivative.
EVERY_OPERATION = [case.name for case in (*CASES, *EXTRA)]
EVERY = """
from tests.helpers import CASES
from tests.extra_cases import DIFFERENTIABLE, EXTRA
jax.config.update("jax_enable_x64", True)
for case in (*CASES, *EXTRA):
    X = np.random.default_rng(2).standard_normal((SIZE, *case.shape))
    V = np.random.default_rng(3).standard_normal(X.shape)
    whole = X.reshape(-1, *case.shape[1:])
    array = jax.make_array_from_callback(
        whole.shape, NamedSharding(mesh, P("p")), lambda i: whole[i]
    )
    check(jax.jit(over_ranks(case.apply))(array), case.model(jnp.asarray(X))[RANK])
    if case in CASES or case in DIFFERENTIABLE:
        w = jnp.asarray(np.random.default_rng(4).standard_normal(
            jax.eval_shape(case.model, X).shape
        ))
        loss = lambda x: jnp.sum(w[RANK] * jnp.sin(case.apply(x)))
        model = lambda X: jnp.sum(w * jnp.sin(case.model(X)))
        gradient = jax.jit(over_ranks(jax.grad(loss)))(array)
        check(gradient, jax.grad(model)(jnp.asarray(X))[RANK])
    print(f"{case.name} agrees\\n", end="", flush=True)
"""


def test_every_operation():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = str(probe.getsockname()[1])
    ended = assert_succeeds(EVERY, ranks=3, preamble=PREAMBLE, arguments=[port], limit=240)
    for name in EVERY_OPERATION:
        assert ended.output.splitlines().count(f"{name} agrees") == 3, name

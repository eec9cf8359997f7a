"""Transforms and halos of global arrays over a multi-process mesh."""

import socket

import pytest

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
import pfftjax
from jax.sharding import Mesh, NamedSharding, PartitionSpec as P
from pfftjax import sharded

def globally(x, mesh, spec):
    return jax.make_array_from_callback(x.shape, NamedSharding(mesh, spec), lambda i: x[i])

def check(actual, expected, spec=None, tolerance=1e-12):
    # Every shard, against the same part of the whole.
    assert actual.shape == expected.shape, (actual.shape, expected.shape)
    assert spec is None or actual.sharding.is_equivalent_to(
        NamedSharding(actual.sharding.mesh, spec), actual.ndim
    ), actual.sharding
    for shard in actual.addressable_shards:
        error = np.abs(np.asarray(shard.data) - expected[shard.index]).max()
        assert error <= tolerance * np.abs(expected).max(), error

def refused(error, text, function, *arguments, **options):
    try:
        function(*arguments, **options)
    except error as e:
        assert text in str(e), e
    else:
        raise AssertionError(text)
"""

SCRIPT = """
rng = np.random.default_rng(0)
shape = (8, 4 * SIZE, 12)
x = rng.standard_normal(shape)
c = rng.standard_normal((2, *shape)) + 1j * rng.standard_normal((2, *shape))
w = rng.standard_normal(shape)
turn = lambda k: np.moveaxis(k, -3, -1)
splits = [(SIZE, 1), (1, SIZE)] + ([(2, 2)] if SIZE == 4 else [])
for dims in splits:
    grid = pfftjax.ProcessGrid(dims)
    mesh = Mesh(np.array(jax.devices()).reshape(dims), ("a", "b"))
    S, B = P("a", "b"), P(None, "a", "b")
    X, C = globally(x, mesh, S), globally(c, mesh, B)
    # Called with a global array, and in a program of its own.
    for f, b, m in (
        (pfftjax.fft3d, pfftjax.ifft3d, {}), (sharded.fft3d, sharded.ifft3d, {"mesh": mesh})
    ):
        y = f(C, grid, norm="ortho", **m)
        check(y, turn(np.fft.fftn(c, axes=(1, 2, 3), norm="ortho")), B)
        check(b(y, grid, norm="ortho", **m), c, B)
        check(f(X, grid, layout="natural", **m), np.fft.fftn(x), S)
        check(b(f(X, grid, layout="natural", **m), grid, layout="natural", **m), x, S)
    assert pfftjax.fft3d(X, grid, shape=shape).shape == (shape[1], 12, 8)
    # Half spectra: 7 points along z divide on slabs, or in the natural layout.
    layouts = ("transposed", "natural") if dims[1] == 1 else ("natural",)
    for layout in layouts:
        k = np.fft.rfftn(x)
        y = pfftjax.rfft3d(X, grid, layout=layout)
        check(y, turn(k) if layout == "transposed" else k, S)
        check(pfftjax.irfft3d(y, grid, shape=shape, layout=layout), x, S)
    # Under jit, with wavenumbers; value and gradient.
    def laplacian(x, box_size, mesh=mesh):
        kx, ky, kz = sharded.wavenumbers(shape, box_size)
        k = sharded.fft3d(x, grid, mesh=mesh)
        return jnp.real(sharded.ifft3d(-(kx**2 + ky**2 + kz**2) * k, grid, mesh=mesh))
    n = [np.fft.fftfreq(m, 1 / m) * 2 * np.pi / 3 for m in shape]
    k2 = n[0][:, None, None] ** 2 + n[1][:, None] ** 2 + n[2] ** 2
    serial = lambda x: np.fft.ifftn(-k2 * np.fft.fftn(x)).real
    check(jax.jit(laplacian)(X, 3.0), serial(x), S)
    check(laplacian(X, 3.0), serial(x), S)
    W = globally(w, mesh, S)
    loss = lambda x, w: jnp.sum(w * jnp.sin(laplacian(x, 3.0)))
    gradient = serial(w * np.cos(serial(x)))
    for g in (jax.grad(loss), jax.jit(jax.grad(loss))):
        check(g(X, W), gradient, S)
    explicit = jax.make_mesh(dims, ("a", "b"), axis_types=(jax.sharding.AxisType.Explicit,) * 2)
    XE, WE = globally(x, explicit, S), globally(w, explicit, S)
    check(pfftjax.fft3d(XE, grid), turn(np.fft.fftn(x)), S)
    with jax.set_mesh(explicit):
        loss = lambda x, w: jnp.sum(w * jnp.sin(laplacian(x, 3.0, explicit)))
        check(jax.jit(jax.grad(loss))(XE, WE), gradient, S)
    tangent = jax.jit(lambda x, v: jax.jvp(lambda x: laplacian(x, 3.0), (x,), (v,))[1])
    check(tangent(X, W), serial(w), S)
    one = jax.jit(lambda x, s: laplacian(x, s).ravel()[1])
    slope = jax.grad(one, argnums=1)(X, 3.0)
    assert abs(float(slope) + 2 * serial(x).ravel()[1] / 3) < 1e-9
    # Ghosts: each shard between its neighbours'.
    padded = pfftjax.sharded.halo_exchange(X, grid, (1, 2))
    pencil = pfftjax.Pencil(shape, grid)
    (i, n0), (j, n1) = pencil.range_of(0), pencil.range_of(1)
    rows, columns = np.arange(i - 1, i + n0 + 1) % 8, np.arange(j - 2, j + n1 + 2) % shape[1]
    mine = np.asarray(padded.addressable_shards[0].data)
    assert (mine == x[rows][:, columns]).all()
    back = sharded.halo_reduce(padded, grid, [1, 2], shape=shape, mesh=mesh)
    at = lambda n, p, h: np.bincount(
        np.concatenate([np.arange(r * n // p - h, (r + 1) * n // p + h) % n for r in range(p)])
    )
    times = at(8, dims[0], 1)[:, None, None] * at(shape[1], dims[1], 2)[:, None]
    check(back, x * times, S)
    # One mesh axis for slabs, and axes of size 1 beside.
    line = Mesh(np.array(jax.devices()), ("p",))
    if 1 in dims:
        spec = P("p") if dims[1] == 1 else P(None, "p")
        check(pfftjax.fft3d(globally(x, line, spec), grid), turn(np.fft.fftn(x)), spec)
        y = jax.jit(lambda a: sharded.fft3d(a, grid, mesh=line))(globally(x, line, spec))
        check(y, turn(np.fft.fftn(x)), spec)
    else:
        both = Mesh(np.array(jax.devices()).reshape(1, 2, 2), ("o", "a", "b"))
        check(pfftjax.fft3d(globally(x, both, S), grid), turn(np.fft.fftn(x)), S)

    # These calls are refused, on every rank.
    refused(ValueError, "does not say how it is sharded; give mesh=",
            jax.jit(lambda a: sharded.fft3d(a, grid)), X)
    refused(ValueError, "does not say how", sharded.fft3d, x, grid)
    refused(ValueError, "does not match", pfftjax.fft3d, globally(x, line, P(None, None, "p")),
            grid)
    refused(ValueError, "does not match", pfftjax.fft3d, globally(x, line, P()), grid)
    refused(ValueError, "does not match", sharded.fft3d, C, grid, mesh=Mesh(
        np.array(jax.devices()).reshape(1, SIZE, 1), ("o", "a", "b")))
    turned = Mesh(np.array(jax.devices())[::-1].reshape(dims), ("a", "b"))
    refused(ValueError, "in their places the mesh has", pfftjax.fft3d, globally(x, turned, S),
            grid)
    odd = globally(np.zeros((8, 4 * SIZE, 7)), mesh, S)
    if dims[1] > 1:
        refused(ValueError, "JAX shards only what divides", pfftjax.fft3d, odd, grid)
        refused(ValueError, "axis 2 of the global shape", pfftjax.rfft3d, X, grid)
    refused(ValueError, "shape is (8, 8, 9), but", pfftjax.fft3d, X, grid, shape=(8, 8, 9))
    refused(ValueError, "but for (8, 8, 9) in real", pfftjax.irfft3d, X, grid, shape=(8, 8, 9))
    refused(ValueError, "give shape=", pfftjax.irfft3d, X, grid)
    for f in (pfftjax.fft3d, pfftjax.irfft3d, sharded.irfft3d):
        refused(TypeError, "shape must be static integers, got 4", f, X, grid, shape=4)
    refused(ValueError, "the global shape must be three positive sizes, got (4, 5)",
            sharded.irfft3d, X, grid, shape=(4, 5))
    refused(ValueError, "three dimensions", pfftjax.fft3d, X[0], grid)
    refused(TypeError, "x is complex128", pfftjax.rfft3d, C, grid, layout="natural")
    refused(TypeError, "grid must be a ProcessGrid", pfftjax.fft3d, X, None)
    refused(TypeError, "mesh must be a jax.sharding.Mesh", sharded.fft3d, X, grid, mesh=grid)
print("done", flush=True)
"""


@pytest.mark.parametrize("ranks", [2, 4])
def test_global_arrays(ranks):
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = str(probe.getsockname()[1])
    ended = assert_succeeds(SCRIPT, ranks=ranks, preamble=PREAMBLE, arguments=[port], limit=200)
    assert ended.output.count("done") == ranks

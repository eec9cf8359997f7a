"""Transforms and halos of global arrays over a multi-process mesh."""

import socket

import pytest

from tests.jobs.job import assert_succeeds

pytestmark = pytest.mark.timeout(300)

# Most of the time of a job is that of compiling.
QUICK = {"JAX_DISABLE_MOST_OPTIMIZATIONS": "1"}

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
            jax.jit(lambda: sharded.fft3d(jnp.ones(shape), grid)))
    refused(ValueError, "does not say how", sharded.fft3d, x, grid)
    refused(ValueError, "does not match", pfftjax.fft3d, globally(x, line, P(None, None, "p")),
            grid)
    refused(ValueError, "does not match", pfftjax.fft3d, globally(x, line, P()), grid)
    if dims != (2, 2):
        other = Mesh(np.array(jax.devices()).reshape(dims[::-1]), ("a", "b"))
        refused(ValueError, "does not match", sharded.fft3d, C, grid, mesh=other)
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
    refused(TypeError, "grid must be a ProcessGrid", pfftjax.fft3d, x, None)
    refused(TypeError, "grid must be a ProcessGrid", pfftjax.fft3d, X, dims)
    refused(TypeError, "mesh must be a jax.sharding.Mesh", sharded.fft3d, X, grid, mesh=grid)
print("done", flush=True)
"""


# Nothing is said of grids or meshes: in jitted code too the arrays say it. Each process has two
# devices, and gives the mesh one of them.
NOTHING_SAID = """
from jax.sharding import AxisType
rng = np.random.default_rng(0)
shape, box = (8, 4 * SIZE, 6), (1.0, 2.0, 3.0)
x, w = rng.standard_normal((2, *shape))
x3 = rng.standard_normal((3, *shape))
k0, k1, k2 = (
    np.fft.fftfreq(n, 1 / n) * 2 * np.pi / side for n, side in zip(shape, box, strict=True)
)
K = np.stack(np.meshgrid(k0, k1, k2, indexing="ij"))
ODD = np.where(np.abs(K) == np.abs(K).max((1, 2, 3), keepdims=True), 0, K)
multiplied = lambda x, m: np.fft.ifftn(m * np.fft.fftn(x)).real
dims = (2, 2) if SIZE == 4 else (SIZE, 1)
firsts = [d for d in jax.devices() if d == min(
    (e for e in jax.devices() if e.process_index == d.process_index), key=lambda e: e.id)]
devices = sorted(firsts, key=lambda d: d.process_index)
S, V = P("a", "b"), P(None, "a", "b")
kinds = {1: [AxisType.Auto], 2: [AxisType.Explicit, AxisType.Auto], 4: [AxisType.Explicit]}
for kind in kinds[SIZE]:
    mesh = Mesh(np.array(devices).reshape(dims), ("a", "b"), axis_types=(kind,) * 2)
    X, W, X3 = globally(x, mesh, S), globally(w, mesh, S), globally(x3, mesh, V)
    with jax.set_mesh(mesh):
        # A program in which all of it is in order, beside XLA's own reductions.
        @jax.jit
        def several(x, v):
            y = pfftjax.fft3d(x)
            back = pfftjax.ifft3d(y).real
            half = pfftjax.rfft3d(x, layout="natural")
            again = pfftjax.irfft3d(half, shape=shape, layout="natural")
            div = sharded.divergence(tuple(v), box)
            return y, back, half, again, div - div.mean(), sharded.curl(v, box)
        y, back, half, again, div, curl = several(X, X3)
        check(y, np.moveaxis(np.fft.fftn(x), 0, -1), S)
        check(back, x, S)
        check(half, np.fft.rfftn(x), S)
        check(again, x, S)
        check(div, sum(multiplied(x3[a], 1j * ODD[a]) for a in range(3)), S)
        for a in range(3):
            b, c = (a + 1) % 3, (a + 2) % 3
            expected = multiplied(x3[c], 1j * ODD[b]) - multiplied(x3[b], 1j * ODD[c])
            check(curl[a], expected, S)
        for a, part in enumerate(jax.jit(lambda x: sharded.gradient(x, box))(X)):
            check(part, multiplied(x, 1j * ODD[a]), S)
        # Values, derivatives in fields and in numbers, and batches.
        smooth = lambda x, s: sharded.apply(x, box, lambda *k: jnp.exp(-s * (k[0]**2 + k[1]**2)))
        exponent = lambda s: np.exp(-s * (K[0]**2 + K[1]**2))
        check(jax.jit(smooth)(X, 0.01), multiplied(x, exponent(0.01)), S)
        loss = lambda x, w, s: jnp.sum(w * jnp.sin(smooth(x, s)))
        by_x, by_s = jax.jit(jax.grad(loss, (0, 2)))(X, W, 0.01)
        inside = w * np.cos(multiplied(x, exponent(0.01)))
        check(by_x, multiplied(inside, exponent(0.01)), S)
        slope = np.sum(inside * multiplied(x, -(K[0]**2 + K[1]**2) * exponent(0.01)))
        assert abs(float(by_s) - slope) < 1e-9 * abs(slope), (by_s, slope)
        tangent = jax.jit(lambda x, v: jax.jvp(lambda x: sharded.laplacian(x, box), (x,), (v,)))
        for actual, of in zip(tangent(X, W), (x, w), strict=True):
            check(actual, multiplied(of, -(K**2).sum(0)), S)
        check(jax.jit(jax.vmap(pfftjax.fft3d))(X3), np.fft.fftn(x3, axes=(1, 2, 3)).transpose(
            0, 2, 3, 1), V)
        check(jax.jit(jax.vmap(lambda x: sharded.inverse_laplacian(x, box)))(X3), np.stack([
            multiplied(f, -1 / np.where(K.any(0), (K**2).sum(0), np.inf)) for f in x3]), V)
        ghosts = jax.jit(lambda x: sharded.halo_exchange(x, width=1))
        total = jax.jit(lambda x: sharded.halo_reduce(ghosts(x), width=1, shape=shape))(X)
        times = lambda n, p: np.bincount(np.concatenate([
            np.arange(r * n // p - 1, (r + 1) * n // p + 1) % n for r in range(p)]))
        check(total, x * times(8, dims[0])[:, None, None] * times(shape[1], dims[1])[:, None], S)
        # Where the array says how it is sharded, another sharding is refused.
        if kind == AxisType.Explicit and SIZE > 1:
            refused(ValueError, "sharded as", jax.jit(pfftjax.fft3d), globally(x, mesh, P()))
            refused(ValueError, "sharded as", jax.jit(pfftjax.fft3d),
                    globally(x, mesh, P(None, None, ("a", "b"))) if SIZE == 2 else
                    globally(x, mesh, P("a", None, None)))
        elif SIZE > 1:
            # XLA reshards it.
            whole = globally(x, mesh, P())
            check(jax.jit(pfftjax.fft3d)(whole), np.moveaxis(np.fft.fftn(x), 0, -1), S)
    each = jax.shard_map(pfftjax.fft3d, mesh=mesh, in_specs=S, out_specs=S)
    refused(TypeError, "grid must be a ProcessGrid", jax.jit(each), X)
    each = jax.shard_map(sharded.fft3d, mesh=mesh, in_specs=S, out_specs=S)
    refused(ValueError, "inside of jax.shard_map arrays are blocks", jax.jit(each), X)
    odd = globally(np.zeros((2 * SIZE, 5, 4)), mesh, P("a"))
    if dims[1] > 1:
        with jax.set_mesh(mesh):
            refused(ValueError, "JAX shards only what divides" if kind == AxisType.Auto else
                    "does not match", jax.jit(lambda x: sharded.laplacian(x, 1.0)), odd)

    # The devices of a traced array are seen when its program is compiled.
    if SIZE > 1:
        turned = Mesh(mesh.devices[::-1, ::-1], ("a", "b"), axis_types=(kind,) * 2)
        with jax.set_mesh(turned):
            refused(ValueError, "in their places the mesh has devices of", jax.jit(pfftjax.fft3d),
                    globally(x, turned, S))
            refused(ValueError, "in their places the mesh has devices of",
                    jax.jit(jax.grad(lambda x: sharded.laplacian(x, 1.0).sum())),
                    globally(x, turned, S))
        # Both devices of the first process, which are as many as two ranks.
        if SIZE == 2:
            one = Mesh(np.array([d for d in jax.devices() if d.process_index == 0])[:, None],
                       ("a", "b"), axis_types=(kind,) * 2)
            there = NamedSharding(one, S)
            refused(ValueError, f"has {2 - 2 * RANK} devices of this process", sharded.fft3d,
                    jax.make_array_from_callback(shape, there, lambda i: x[i], dtype=x.dtype))
    all_devices = Mesh(np.array(jax.devices())[:, None], ("a", "b"), axis_types=(kind,) * 2)
    big = globally(np.zeros((2 * SIZE, 4, 4)), all_devices, S)
    text = f"has {2 * SIZE} devices, but {SIZE} ranks run"
    refused(ValueError, text, pfftjax.fft3d, big)
    refused(ValueError, text, jax.jit(pfftjax.fft3d), big)
print("done", flush=True)
"""

# Particles, beside the functions of blocks on the same ranks, which other tests compare with
# models; derivatives by differences.
PARTICLES = """
import jax_cosmo
from pfftjax import pm
rng = np.random.default_rng(0)
n, m, box = (4, 6, 4), (8, 7, 9), np.array([40.0, 60.0, 50.0])
mesh = jax.make_mesh((SIZE, 1), ("a", "b"))
S, R = P("a", "b"), P(("a", "b"))
grid = pfftjax.ProcessGrid((SIZE, 1))
plan = pfftjax.PencilFFT(n, grid, real=True)
x, v = rng.standard_normal((2, *n))
X, D = globally(x, mesh, S), globally(v, mesh, S)
mine = plan.input.local_block(x)
cosmology = jax_cosmo.Planck15()
ends = (0.1, 0.4, 1.0)

def near(actual, block, tolerance=1e-11):
    found, block = np.asarray(actual.addressable_shards[0].data), np.asarray(block)
    assert found.shape == block.shape, (found.shape, block.shape)
    assert np.abs(found - block).max() <= tolerance * np.abs(block).max(), (found, block)

dot = lambda a, b: jnp.sum(a * b)

def jitted(f):
    # Functions of blocks are not for inside of the mesh.
    program = jax.jit(f)
    def called(*arguments):
        with jax.set_mesh(mesh):
            return program(*arguments)
    return called

power = lambda s, k: s * 1e5 * jnp.exp(-((10 * k) ** 2))
field = lambda x, s: sharded.linear_field(x, box, lambda k: power(s, k))
delta = jitted(field)(X, 1.0)
near(delta, pm.linear_field(mine, plan, box, lambda k: power(1.0, k)))
# A table has arrays, which no function may close over there.
table = pm.tabulated(jnp.array([1e-3, 0.1, 10.0]), jnp.array([1e5, 1e4, 1e-3]))
of_table = pm.linear_field(mine, plan, box, table)
near(sharded.linear_field(X, box, table), of_table)
near(jitted(lambda x: sharded.linear_field(x, box, table))(X), of_table)
near(jitted(lambda x, t: sharded.linear_field(x, box, t))(X, table), of_table)
# The square of a field grows with its power, whose logarithm the table has.
square, slope = jitted(jax.value_and_grad(
    lambda t, x: jnp.sum(sharded.linear_field(x, box, t) ** 2)))(table, X)
assert abs(float(slope.args[1].sum()) - float(square)) < 1e-12 * float(square)
near(jitted(lambda d: sharded.gravity(d, box))(delta), pm.gravity(
    pm.linear_field(mine, plan, box, lambda k: power(1.0, k)), plan, box))
for wide in ({}, {"edges": np.array([1.0, 3.0, 4.0]) * 2 * np.pi / max(box)}):
    spectrum = jitted(lambda x: sharded.power_spectrum(x, box, **wide))(X)
    for a, b in zip(spectrum, pm.power_spectrum(mine, plan, box, **wide), strict=True):
        near(a, b)
total = jitted(jax.grad(lambda x: sharded.power_spectrum(x, box).power.sum()))(X)
shell = lambda x: float(pm.power_spectrum(plan.input.local_block(x), plan, box).power.sum())
slope = (shell(x + v) - shell(x - v)) / 2  # of a square
assert abs(float(jitted(dot)(total, D)) - slope) < 1e-10 * abs(slope)

# Positions in any order, far from the ranks that have them.
pos, val = rng.uniform(-9, 20, (6 * SIZE, 3)), rng.standard_normal((6 * SIZE, 2))
at, values = globally(pos, mesh, R), globally(val, mesh, R)
mesh_shape = (8, 7, 9)
alone = pfftjax.ProcessGrid((1, 1), MPI.COMM_SELF)
whole = pfftjax.Pencil(mesh_shape, alone)
room = {"capacity": 6 * SIZE}
painted = jitted(lambda p, v: sharded.paint(p, mesh_shape, values=v, **room))(at, values)
check(painted, np.asarray(pm.paint(pos, whole, values=val)), P(None, "a", "b"))
check(jitted(lambda p: sharded.paint(p, mesh_shape, kernel="tsc", **room))(at),
      np.asarray(pm.paint(pos, whole, kernel="tsc")), S)
def felt(p, f, v):
    return jnp.sum(v * jnp.sin(sharded.readout(f, p, **room)))
by = jitted(jax.value_and_grad(felt, (0, 1)))(at, painted, values)
full = pm.paint(pos, whole, values=val)
expected = jax.value_and_grad(
    lambda p, f: jnp.sum(val * jnp.sin(pm.readout(f, p, whole))), (0, 1))(pos, full)
for a, b in zip(jax.tree.leaves(by), jax.tree.leaves(expected), strict=True):
    check(a, np.asarray(b), tolerance=1e-10)

# A simulation and its derivatives. These steps take no growth, which takes long to compile.
def by_hand(c, ends, outputs=()):
    kick, drift = (jnp.array([0.4, 0.5]) * c.Omega_c * w for w in (2.0, 90.0))
    last = pm.Outputs(np.array([1] * len(outputs)), *(
        jnp.broadcast_to(w, len(outputs)) for w in (drift[1], drift[1] * kick[1], 1.0, kick[1])))
    return pm.Steps(kick, drift, outputs=last)
def final(x, p, omega, box):
    c = jax_cosmo.Planck15(Omega_c=omega)
    lattice = sharded.Lattice(jnp.moveaxis(sharded.gravity(x, box), 0, -1), p)
    end = sharded.simulate(lattice, box, c, ends, mesh_shape=m, integrator=by_hand, capacity=96)
    density = sharded.density_contrast(end, box, mesh_shape=mesh_shape, kernel="tsc", capacity=96)
    return jnp.sum(jnp.sin(density)), (end, density)
q = rng.standard_normal((*n, 3))
Q = globally(q, mesh, S)
both = jitted(jax.value_and_grad(final, (0, 1, 2, 3), has_aux=True))
(value, (end, density)), (by_x, by_p, by_omega, by_box) = both(X, Q, 0.26, 50.0)
def directly(psi, q):
    points = jnp.stack(jnp.meshgrid(*(jnp.arange(k) for k in n), indexing="ij"), -1) + 0.0
    cells = (points / np.array(n) + psi / 50.0) * np.array(m)
    cells, rows = cells.reshape(-1, 3), psi.size // 3
    p = pm.Particles(jnp.zeros((rows, 3), jnp.int32), cells, q.reshape(-1, 3), jnp.int32(rows),
                     rows, m)
    by_one = pfftjax.PencilFFT(m, alone, real=True)
    (e,) = pm.simulate(p, by_one, 50.0, jax_cosmo.Planck15(Omega_c=0.26), ends,
                       integrator=by_hand, outputs=ends[-1:])
    moved = (e.offset / np.array(m)).reshape(*n, 3) * 50.0 - points / np.array(n) * 50.0
    at = (e.offset / np.array(m)) * np.array(mesh_shape)
    contrast = pm.paint(at, whole, kernel="tsc") * (np.prod(mesh_shape) / rows) - 1
    return moved, e.momentum.reshape(*n, 3), contrast
serial = pfftjax.PencilFFT(n, alone, real=True)
psi = jnp.moveaxis(pm.gravity(x, serial, 50.0), 0, -1)
found = (end.displacement, end.momentum, density)
for a, b in zip(found, jax.jit(directly)(psi, q), strict=True):
    check(a, np.asarray(b), tolerance=1e-10)
value_at = lambda *a: float(both(*a)[0][0])
for slope, of in (
    (float(jitted(dot)(by_x, D)), lambda h: value_at(X + h * D, Q, 0.26, 50.0)),
    (float(jitted(dot)(by_p, Q)), lambda h: value_at(X, Q + h * Q, 0.26, 50.0)),
    (float(by_omega), lambda h: value_at(X, Q, 0.26 + h, 50.0)),
    (float(by_box), lambda h: value_at(X, Q, 0.26, 50.0 + h)),
):
    difference = (of(1e-6) - of(-1e-6)) / 2e-6
    assert abs(slope - difference) < 1e-5 * abs(difference), (slope, difference)
force = jitted(lambda d: sharded.force(d, box, cosmology, mesh_shape=m, capacity=96))(end)
assert force.shape == (*n, 3)
total = [abs(sum(MPI.COMM_WORLD.allgather(part(np.asarray(force.addressable_shards[0].data)))))
         for part in (lambda f: f[..., 0].sum(), lambda f: np.abs(f).sum())]
assert 0 <= total[0] < 1e-11 * total[1], total  # momentum is kept

# Displacements of first order are those of the field's own force, times one number.
start = jitted(lambda x: sharded.lpt(x, box, cosmology, 0.1, order=1))(delta)
along = jitted(lambda d: jnp.moveaxis(sharded.gravity(d, box, gradient="spectral"), 0, -1))(delta)
ratio = float(jitted(dot)(start.displacement, along) / jitted(dot)(along, along))
assert 0.12 < ratio < 0.14, ratio  # the growth since a = 0.1
near(start.displacement, ratio * np.asarray(along.addressable_shards[0].data))
faster = float(jitted(dot)(start.momentum, along) / jitted(dot)(along, along))
near(start.momentum, faster * np.asarray(along.addressable_shards[0].data))

refused(ValueError, "rows cannot be sharded over", lambda: sharded.paint(
    jax.ShapeDtypeStruct((SIZE + 1, 3), float), n, mesh=mesh))
refused(ValueError, "must have its first axis", sharded.paint,
        globally(np.zeros((SIZE, SIZE)), mesh, P(None, "a")), n)
refused(ValueError, "one vector for each particle", sharded.density_contrast,
        globally(np.zeros((*n, 2)), mesh, S), box)
refused(TypeError, "known while the program is traced", jitted(
    lambda x, a: sharded.simulate(sharded.Lattice(x, x), box, cosmology, a)),
    Q, np.array(ends))
refused(ValueError, "JAX shards only what divides", lambda: sharded.density_contrast(
    end, box, mesh_shape=(2 * SIZE + 1, 4, 4)))
print("done", flush=True)
"""


def _port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return str(probe.getsockname()[1])


@pytest.mark.parametrize("ranks", [2, 4])
def test_global_arrays(ranks):
    ended = assert_succeeds(SCRIPT, ranks=ranks, preamble=PREAMBLE, arguments=[_port()], limit=200)
    assert ended.output.count("done") == ranks


@pytest.mark.parametrize("ranks", [1, 2, 4])
def test_programs_that_say_nothing_of_grids(ranks):
    preamble = PREAMBLE.replace(
        'jax.config.update("jax_cpu',
        'jax.config.update("jax_num_cpu_devices", 2)\njax.config.update("jax_cpu',
    )
    ended = assert_succeeds(
        NOTHING_SAID, ranks=ranks, preamble=preamble, arguments=[_port()], limit=200, **QUICK
    )
    assert ended.output.count("done") == ranks


def test_particles():
    ended = assert_succeeds(
        PARTICLES, ranks=2, preamble=PREAMBLE, arguments=[_port()], limit=280, **QUICK
    )
    assert ended.output.count("done") == 2

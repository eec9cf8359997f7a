"""On a GPU: mpirun -n 2 python -m benchmarks.gpu [--only transform pipeline ...] [--small]

One JSON document, by default benchmarks/results/h100/gpu-RANKS.json:

transform  on one rank: 512^3 complex64 and float32, forward and inverse, beside `jnp.fft` with
           the same change of memory order
pipeline   on several ranks: the same, and of a batch of 4 arrays of 256^3, by the methods
           AUTOMATIC and PIPELINED (in PFFTJAX_GPU_CHUNKS chunks)
exchange   between two ranks, of 1 GiB each way: alltoall, beside the bandwidth of copies between
           the device and pinned memory, and of MPI between the hosts' memories
step       a step of 256^3 and 512^3 particles on as many cells, as benchmarks/pm.py
simulation ten such steps in one program, a step of them; value and gradient of a loss after them,
           and the most memory that has been in use by then
surveys    a run of ten steps of 256^3 with a light cone and without, and non-uniform transforms of
           128^3 modes and 4 10^6 points, to 1e-4
billion    a step of 1024^3 particles on as many cells, and the most memory in use: not by default,
           and with XLA_CLIENT_MEM_FRACTION=0.95

Milliseconds of the slowest rank, the best and the median of the repetitions, after two that warm
up. --small: of sizes at which the script itself can be tried, on CPUs too.
"""

import argparse
import dataclasses
import functools
import json
import pathlib
import statistics
import time

import jax

jax.config.update("jax_enable_x64", False)

import jax.numpy as jnp  # noqa: E402
import jax_cosmo  # noqa: E402
import numpy as np  # noqa: E402
from mpi4py import MPI  # noqa: E402

import pfftjax  # noqa: E402
from benchmarks import light_cone  # noqa: E402
from benchmarks.protocol import milliseconds  # noqa: E402
from pfftjax import pm  # noqa: E402
from pfftjax._runtime.options import options  # noqa: E402
from pfftjax._runtime.primitive import as_on_gpus  # noqa: E402
from pfftjax.collectives import alltoall  # noqa: E402
from pfftjax.nufft import PencilNUFFT  # noqa: E402

COMM = MPI.COMM_WORLD
RESULTS = pathlib.Path(__file__).parent / "results" / "h100"
CELL = 4.0  # Mpc/h


def timed(f, repetitions):
    """Best and median milliseconds of `f`, which returns what is to be waited for."""
    times = milliseconds(f, repetitions)
    return {"ms": min(times), "ms_median": statistics.median(times)}


def block(plan, batch=None):
    """This rank's block of random complex numbers, or a batch of such."""
    shape = (*(() if batch is None else (batch,)), *plan.input.local_shape, 2)
    x = jax.random.normal(jax.random.key(COMM.rank), shape)
    return jax.lax.complex(x[..., 0], x[..., 1])


def difference(ours, theirs):
    """The largest difference over the largest value."""
    ours, theirs = np.asarray(ours), np.asarray(theirs)
    return float(np.abs(ours - theirs).max() / np.abs(theirs).max())


def in_turn(contenders, x, repetitions):
    """The times of all contenders in turn, and once more."""
    return {
        # `f` is bound now, as the loop goes on.
        f"{name}, turn {turn}": timed(lambda f=f: f(x), repetitions)
        for turn in range(2)
        for name, f in contenders.items()
    }


def transform(n, real, repetitions):
    """Ours, and XLA's with the spectrum in the same order; both ways."""
    plan = pfftjax.PencilFFT((n, n, n), pfftjax.ProcessGrid((None, 1)), real=real)
    x = block(plan).real if real else block(plan)
    spectrum = jax.block_until_ready(jax.jit(plan.forward)(x))
    there = jnp.fft.rfftn if real else jnp.fft.fftn
    back = (lambda y: jnp.fft.irfftn(y, plan.shape)) if real else jnp.fft.ifftn
    order = plan.output.axes
    found = {"n": n, "dtype": str(x.dtype), "ranks": COMM.size}
    for name, operand, ours, theirs in (
        ("forward", x, plan.forward, lambda x: there(x).transpose(order)),
        ("inverse", spectrum, plan.inverse, lambda y: back(y.transpose(np.argsort(order)))),
    ):
        contenders = {"pfftjax": jax.jit(ours)}
        found[name] = {}
        if COMM.size == 1:
            contenders["jnp.fft"] = jax.jit(theirs)
            found[name]["difference"] = difference(*(f(operand)[0] for f in contenders.values()))
        found[name] |= in_turn(contenders, operand, repetitions)
    return found


def pipeline(n, batch, repetitions):
    """Forward transforms of one array or a batch, in one piece and in chunks."""
    methods = pfftjax.ExchangeMethod.AUTOMATIC, pfftjax.ExchangeMethod.PIPELINED
    plan = pfftjax.PencilFFT((n, n, n), COMM)
    x = block(plan, batch)
    found = {"n": n, "batch": batch, "dtype": "complex64", "ranks": COMM.size}
    found |= {"grid": plan.grid.dims, "chunks": options.gpu_chunks}
    contenders = {m.name: jax.jit(dataclasses.replace(plan, method=m).forward) for m in methods}
    found["difference"] = difference(*(f(x) for f in contenders.values()))
    return {**found, **in_turn(contenders, x, repetitions)}


def _bandwidth(size, milliseconds):
    return size / milliseconds * 1e-6


def exchange(size, repetitions):
    """GB/s in one direction: of `size` bytes of each rank a share stays where it is."""
    count = size // 4 // COMM.size * COMM.size
    x = jnp.zeros((COMM.size, count // COMM.size), jnp.float32) + COMM.rank
    program = jax.jit(alltoall)
    leaving = 4 * count * (COMM.size - 1) / COMM.size
    found = {"bytes": 4 * count, "ranks": COMM.size}
    found["alltoall"] = timed(lambda: program(x), repetitions)
    found["alltoall_gb_s"] = _bandwidth(leaving, found["alltoall"]["ms"])
    found |= _copies(x, repetitions)
    mine, theirs = np.zeros(count, np.float32), np.zeros(count, np.float32)
    found["host_mpi"] = timed(lambda: COMM.Alltoall(mine, theirs), repetitions)
    found["host_mpi_gb_s"] = _bandwidth(leaving, found["host_mpi"]["ms"])
    return found


def _copies(x, repetitions):
    """GB/s of copies of x between the device and pinned memory, where the device has some."""
    device = next(iter(x.devices()))
    if "pinned_host" not in [memory.kind for memory in device.addressable_memories()]:
        return {}
    on_device = jax.sharding.SingleDeviceSharding(device)
    pinned = on_device.with_memory_kind("pinned_host")
    there = jax.block_until_ready(jax.device_put(x, pinned))
    down = timed(lambda: jax.device_put(x, pinned), repetitions)
    up = timed(lambda: jax.device_put(there, on_device), repetitions)
    return {
        "to_pinned": down,
        "to_pinned_gb_s": _bandwidth(x.nbytes, down["ms"]),
        "from_pinned": up,
        "from_pinned_gb_s": _bandwidth(x.nbytes, up["ms"]),
    }


def particles_at_start(plan):
    """Particles early in a simulation."""
    box, cosmology = plan.shape[0] * CELL, jax_cosmo.Planck15()
    power = pm.eisenstein_hu(cosmology)

    @jax.jit
    def start():
        noise = pm.white_noise(jax.random.key(0), plan.input, "float32")
        delta = pm.linear_field(noise, plan, box, power)
        return pm.to_owners(pm.lpt(delta, plan, box, cosmology, 0.5), plan.input)

    return start()


def mesh(n):
    """The plan of a simulation on slabs."""
    return pfftjax.PencilFFT((n,) * 3, pfftjax.ProcessGrid((None, 1)), real=True)


def stepping(particles, n):
    """A function that moves them once more: by force, kick, drift and exchange."""
    plan, cosmology = mesh(n), jax_cosmo.Planck15()
    steps = pm.fastpm(cosmology, jnp.linspace(0.5, 0.6, 6))

    @functools.partial(jax.jit, donate_argnums=0)
    def advance(particles):
        kick, drift = steps.kick[1], steps.drift[1] * 1e-3
        return pm.step(particles, plan, n * CELL, cosmology, kick, drift)

    def once():
        nonlocal particles
        particles = advance(particles)
        return particles

    return once


def step(n, repetitions):
    """A step of particles that move from call to call."""
    once = stepping(particles_at_start(mesh(n)), n)
    found = {"n": n, "particles": n**3, "ranks": COMM.size, **timed(once, repetitions)}
    assert bool(jnp.isfinite(once().momentum).all())
    return {**found, "ns_a_particle": found["ms"] * 1e6 / n**3}


def simulated(n, count):
    """Particles, so many steps of them in one program, and a loss with its gradient."""
    plan, cosmology = mesh(n), jax_cosmo.Planck15()
    factors = jnp.linspace(0.5, 0.9, count + 1)

    def run(particles):
        return pm.simulate(particles, plan, n * CELL, cosmology, factors)

    def loss(offset, particles):
        end = run(dataclasses.replace(particles, offset=offset))
        return pfftjax.vdot(end.offset, end.momentum, plan.grid)

    return particles_at_start(plan), jax.jit(run), jax.jit(jax.value_and_grad(loss))


def simulation(n, repetitions):
    """A step of ten, and of the gradient through them."""
    count = 10
    particles, forward, backward = simulated(n, count)
    found = {"n": n, "particles": n**3, "steps": count, "ranks": COMM.size}
    for name, f in (
        ("run", lambda: forward(particles)),
        ("value_and_gradient", lambda: backward(particles.offset, particles)),
    ):
        found[name] = {k: ms / count for k, ms in timed(f, repetitions).items()}
        found[name]["peak_gb"] = _peak_gb()
    return found


def surveys(n, modes, points, repetitions):
    """A light cone's share of a run, and both types of non-uniform transforms."""
    particles, runs = light_cone.programs(n, 10, 0.5)
    found = {"n": n, "steps": 10, "shells": 8, "nside": 64, "ranks": COMM.size}
    for name, run in runs.items():
        found[f"{name} a light cone"] = timed(lambda run=run: run(particles), repetitions)
    plan = PencilNUFFT((modes,) * 3, COMM, tolerance=1e-4)
    keys = jax.random.split(jax.random.fold_in(jax.random.key(1), COMM.rank), 3)
    at = jax.random.uniform(keys[0], (points, 3), maxval=2 * jnp.pi)
    strengths = jax.lax.complex(*jax.random.normal(keys[1], (2, points)))
    spectrum = jax.lax.complex(*jax.random.normal(keys[2], (2, *plan.output.local_shape)))
    type1, type2 = jax.jit(plan.type1), jax.jit(plan.type2)
    found |= {"modes": modes, "points": points, "tolerance": 1e-4}
    found["type 1"] = timed(lambda: type1(at, strengths), repetitions)
    found["type 2"] = timed(lambda: type2(at, spectrum), repetitions)
    return found


def near_a_lattice(n):
    """Particles for which no transform was made."""

    @jax.jit
    def start():
        i = jnp.arange(n**3, dtype=jnp.int32)
        cell = jnp.stack([i // n**2, i // n % n, i % n], axis=1)
        x = cell.astype(jnp.float32) * (2 * jnp.pi / n)
        offset = 0.3 * jnp.sin(3 * x[:, ::-1] + 1) + 0.5 * jnp.sin(11 * x + 2 * x[:, ::-1])
        return cell, offset, 0.1 * offset

    return pm.Particles(*start(), jnp.int32(n**3), total=n**3, mesh_shape=(n,) * 3)


def billion(n, repetitions):
    """A step where initial conditions would take more memory than there is."""
    once = stepping(near_a_lattice(n), n)
    found = {"n": n, "particles": n**3, "ranks": COMM.size, **timed(once, repetitions)}
    return {**found, "peak_gb": _peak_gb()}


def _peak_gb():
    """The most memory of the device that arrays have had, where JAX counts it."""
    stats = jax.local_devices()[0].memory_stats() or {}
    return stats.get("peak_bytes_in_use", 0) / 1e9


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parts = ["transform", "pipeline", "exchange", "step", "simulation", "surveys"]
    parser.add_argument("--only", nargs="+", choices=[*parts, "billion"], default=parts)
    parser.add_argument("--small", action="store_true")
    parser.add_argument("--repetitions", type=int, default=9)
    parser.add_argument("--out", type=pathlib.Path)
    arguments = parser.parse_args()
    small, repetitions = arguments.small, arguments.repetitions
    device = jax.local_devices()[0]
    result = {
        "device": device.device_kind,
        "platform": device.platform,
        "info": str(pfftjax.info(devices=True)).splitlines(),
        "time": time.strftime("%Y-%m-%d %H:%M:%S UTC", time.gmtime()),
    }
    if "transform" in arguments.only:
        n = 32 if small else 512
        result["transform"] = [transform(n, real, repetitions) for real in (False, True)]
    if "pipeline" in arguments.only and COMM.size > 1 and as_on_gpus(device.platform):
        cases = [(16, None), (8, 4)] if small else [(512, None), (256, 4)]
        result["pipeline"] = [pipeline(n, batch, repetitions) for n, batch in cases]
    if "exchange" in arguments.only and COMM.size > 1:
        result["exchange"] = exchange(1 << (16 if small else 30), repetitions)
    if "step" in arguments.only:
        sizes = [16] if small else [256, 512]
        result["step"] = [step(n, repetitions) for n in sizes]
    if "simulation" in arguments.only:
        sizes = [16] if small else [128, 256, 512]
        result["simulation"] = [simulation(n, min(repetitions, 3)) for n in sizes]
    if "surveys" in arguments.only:
        sizes = (16, 16, 1000) if small else (256, 128, 4_000_000)
        result["surveys"] = surveys(*sizes, min(repetitions, 3))
    if "billion" in arguments.only:
        result["billion"] = billion(16 if small else 1024, min(repetitions, 4))
    if COMM.rank == 0:
        text = json.dumps(result, indent=1)
        print(text, flush=True)
        out = arguments.out or (None if small else RESULTS / f"gpu-{COMM.size}.json")
        if out is not None:
            out.parent.mkdir(parents=True, exist_ok=True)
            out.write_text(text + "\n")


if __name__ == "__main__":
    main()

"""Memory of a step and of a run for each particle: mpirun -n 2 python -m benchmarks.step_memory

All is in float32, and nothing else is kept; freed memory neither, as where it is scarce. What a
particle takes is what the peak of all ranks grows by from the smaller size to the larger, over the
number of particles that are added: JAX and compiled programs take as much at both.

step      `pm.step` on as many cells as particles; its program may write over the particles
run       `pm.Simulation.run` by default, on eight cells for each particle
gradient  the value and gradient of such a run in the noise
"""

import argparse
import os
from collections.abc import Callable

os.environ["PFFTJAX_KEEP_BYTES"] = "0"

import jax
import jax_cosmo
import numpy as np

import pfftjax
from benchmarks.gpu import CELL, mesh, particles_at_start, stepping
from benchmarks.memory import peak_pss
from benchmarks.protocol import COMM, keep
from pfftjax import pm


def step(n: int) -> Callable[[], object]:
    """A step of n^3 particles."""
    return stepping(particles_at_start(mesh(n)), n)


def simulation(n: int) -> tuple[pm.Simulation, jax.Array]:
    """Three steps of n^3 particles, and white noise."""
    plan = mesh(n)
    ends = np.linspace(0.5, 0.6, 4)
    noise = jax.jit(lambda: pm.white_noise(jax.random.key(0), plan.input, "float32"))
    return pm.Simulation(plan, n * CELL, jax_cosmo.Planck15(), ends), noise()


def run(n: int) -> Callable[[], object]:
    """A run from noise to particles."""
    its, noise = simulation(n)
    jitted = jax.jit(its.run)
    return lambda: jitted(noise)


def gradient(n: int) -> Callable[[], object]:
    """The mean square displacement at its end, and the gradient of that."""
    its, noise = simulation(n)

    @jax.jit
    @pfftjax.value_and_grad
    def both(noise):
        offset = its.run(noise).offset
        return pfftjax.vdot(offset, offset, its.plan.grid) / n**3

    return lambda: both(noise)


def peak(make: Callable[[int], Callable[[], object]], n: int) -> float:
    """MB of all ranks at the peak of a call at this size."""
    call = make(n)
    jax.block_until_ready(call())
    return COMM.allreduce(max(peak_pss(call) for _ in range(3)))


def main() -> None:
    parser = argparse.ArgumentParser(description=str(__doc__).splitlines()[0])
    parser.add_argument("--small", type=int, default=32, help="particles along an axis")
    small = parser.parse_args().small
    jax.config.update("jax_enable_x64", False)
    summary: dict[str, object] = {"ranks": COMM.size}
    for make, large in ((step, 256), (run, 128), (gradient, 128)):
        before, after = peak(make, small), peak(make, large)
        summary[make.__name__] = {
            "sizes": [small, large],
            "peak_mb": [round(before), round(after)],
            "bytes_a_particle": round(1e6 * (after - before) / (large**3 - small**3), 1),
        }
    if COMM.rank == 0:
        print(summary)
    keep("step-memory", summary)


if __name__ == "__main__":
    main()

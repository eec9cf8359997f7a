"""Our particle-mesh step and gradient: mpirun -n 2 python -m benchmarks.pm 64 128

As benchmarks/peers/jaxpm_step.py: float32, N^3 particles on N^3 cells of 4 Mpc/h, placed by LPT at
a = 0.5, 5 steps, each of a force, a kick, a drift and the exchange of particles. Each size is one
line of JSON. Peaks of memory are the sum over ranks, sampled in a call that is not timed.
"""

import argparse
import dataclasses
import json
import statistics

import jax

jax.config.update("jax_enable_x64", False)

import jax.numpy as jnp  # noqa: E402
import jax_cosmo  # noqa: E402

import pfftjax  # noqa: E402
from benchmarks.gpu import CELL, mesh, particles_at_start  # noqa: E402
from benchmarks.memory import peak_pss  # noqa: E402
from benchmarks.protocol import COMM, milliseconds  # noqa: E402
from pfftjax import pm  # noqa: E402

STEPS = 5


class Universe:
    def __init__(self, n):
        self.box = n * CELL
        self.cosmology = jax_cosmo.Planck15()
        self.plan = mesh(n)
        self.steps = pm.fastpm(self.cosmology, jnp.linspace(0.5, 0.6, STEPS + 1))
        self.start = particles_at_start(self.plan)

    def step(self, particles, kick, drift):
        return pm.step(particles, self.plan, self.box, self.cosmology, kick, drift)

    def loss(self, offset, momentum):
        """The mean square displacement since the start."""
        first = dataclasses.replace(self.start, offset=offset, momentum=momentum)
        last, _ = jax.lax.scan(
            lambda state, factors: (self.step(state, *factors), None),
            first,
            (self.steps.kick[:STEPS], self.steps.drift[:STEPS]),
        )
        # Rows have changed places; the mean square of offsets has not.
        return pfftjax.vdot(last.offset, last.offset, self.plan.grid) / last.total


def figures(name, f, repetitions):
    times = milliseconds(f, repetitions)
    return {
        f"{name}_ms": min(times),
        f"{name}_ms_median": statistics.median(times),
        f"{name}_peak_pss_mb": COMM.allreduce(peak_pss(f)),
    }


def measured(n):
    universe = Universe(n)
    repetitions = 15 if n <= 128 else 5
    jitted = jax.jit(universe.step, donate_argnums=0)
    moving = jax.tree.map(jnp.copy, universe.start)

    def advance():
        nonlocal moving
        moving = jitted(moving, universe.steps.kick[1], universe.steps.drift[1])
        return moving

    found = figures("step", advance, repetitions)
    moving = None
    start = universe.start.offset, universe.start.momentum
    forward = jax.jit(universe.loss)
    found |= figures("forward", lambda: forward(*start), repetitions // 3)
    gradient = jax.jit(jax.value_and_grad(universe.loss, argnums=(0, 1)))
    found |= figures("gradient", lambda: gradient(*start), repetitions // 3)
    return found


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("sizes", type=int, nargs="+")
    for n in parser.parse_args().sizes:
        found = {key: round(value, 2) for key, value in measured(n).items()}
        line = {"contender": "pfftjax", "n": n, "dtype": "float32", "ranks": COMM.size}
        if COMM.rank == 0:
            print(json.dumps({**line, "gradient_steps": STEPS, **found}), flush=True)


if __name__ == "__main__":
    main()

"""Memory of a step for each particle: mpirun -n 2 python -m benchmarks.step_memory [32 256]

Steps are those of benchmarks/pm.py, float32, in whose program the particles are donated; nothing
else is kept. What they take is the growth of the peak from the smaller size to the larger, over
the ranks, by as many particles as there are more: of it, what JAX and compiled programs take is no
part. Beside it stands what XLA reserves for the larger size.
"""

import argparse

import jax
import jax_cosmo
from mpi4py import MPI

from benchmarks.gpu import CELL, mesh, particles_at_start
from benchmarks.memory import peak_pss
from benchmarks.protocol import COMM, keep
from pfftjax import pm


def measured(n):
    """MB at the peak of a step, on all ranks, and bytes that XLA reserves, on the fullest."""
    plan, cosmology = mesh(n), jax_cosmo.Planck15()
    steps = pm.fastpm(cosmology, jax.numpy.linspace(0.5, 0.6, 6))
    moving = particles_at_start(plan)

    def step(particles, kick, drift):
        return pm.step(particles, plan, n * CELL, cosmology, kick, drift)

    factors = steps.kick[1], steps.drift[1]
    program = jax.jit(step, donate_argnums=0).lower(moving, *factors).compile()
    needed = program.memory_analysis()

    def advance():
        nonlocal moving
        moving = program(moving, *factors)
        return moving

    jax.block_until_ready(advance())
    peak = COMM.allreduce(max(peak_pss(advance) for _ in range(3)))
    reserved = needed.argument_size_in_bytes + needed.temp_size_in_bytes
    return peak, COMM.allreduce(reserved, MPI.MAX)


def main():
    parser = argparse.ArgumentParser(description=str(__doc__).splitlines()[0])
    parser.add_argument("sizes", nargs="*", type=int, default=[32, 256])
    small, large = parser.parse_args().sizes
    jax.config.update("jax_enable_x64", False)
    (before, _), (after, reserved) = measured(small), measured(large)
    summary = {
        "ranks": COMM.size,
        "sizes": [small, large],
        "peak_mb": [round(before), round(after)],
        "bytes_a_particle": round(1e6 * (after - before) / (large**3 - small**3), 1),
        "reserved_by_xla": round(reserved * COMM.size / large**3, 1),
    }
    if COMM.rank == 0:
        print(summary)
    keep("step-memory", summary)


if __name__ == "__main__":
    main()

"""Memory of a step for each particle: mpirun -n 2 python -m benchmarks.step_memory [32 256]

Steps are in float32, and their program may write over the particles; nothing else is kept. What a
particle takes is what the peak of all ranks grows by from the smaller size to the larger, over the
number of particles that are added: JAX and compiled programs take as much at both.
"""

import argparse

import jax

from benchmarks.gpu import mesh, particles_at_start, stepping
from benchmarks.memory import peak_pss
from benchmarks.protocol import COMM, keep


def peak(n):
    """MB of all ranks at the peak of a step of n^3 particles."""
    advance = stepping(particles_at_start(mesh(n)), n)
    jax.block_until_ready(advance())
    return COMM.allreduce(max(peak_pss(advance) for _ in range(3)))


def main():
    parser = argparse.ArgumentParser(description=str(__doc__).splitlines()[0])
    parser.add_argument("sizes", nargs="*", type=int, default=[32, 256])
    small, large = parser.parse_args().sizes
    jax.config.update("jax_enable_x64", False)
    before, after = peak(small), peak(large)
    summary = {
        "ranks": COMM.size,
        "sizes": [small, large],
        "peak_mb": [round(before), round(after)],
        "bytes_a_particle": round(1e6 * (after - before) / (large**3 - small**3), 1),
    }
    if COMM.rank == 0:
        print(summary)
    keep("step-memory", summary)


if __name__ == "__main__":
    main()

"""Gradients of a simulation whose particles are followed back, beside those that are stored.

    mpirun -n 2 python -m benchmarks.adjoint [64 128] [--pairs 5] [--steps 10]

The variance of the final density is differentiated in the white noise and in a parameter of the
cosmology, in float32. Memory is what XLA reserves for a rank's program beside its arguments,
for 5 steps and for 40. Times are of one gradient, both ways and the run without one in turn; the
slowest rank counts, and ratios are medians over pairs.
"""

import argparse
import json
import statistics

import jax
import jax.numpy as jnp
import jax_cosmo
from mpi4py import MPI

import pfftjax
from benchmarks.protocol import COMM, keep, timed
from pfftjax import pm

WAYS = ("stored", "reversible")


def programs(n, steps):
    """(arguments, {way: value and gradient, "run": value}), n^3 particles in cells of 4 Mpc/h."""
    grid = pfftjax.ProcessGrid()
    plan = pfftjax.PencilFFT((n, n, n), grid, real=True)
    box = 4.0 * n
    start = jax_cosmo.Planck15()
    power = pm.eisenstein_hu(start)
    noise = jax.jit(lambda: pm.white_noise(jax.random.key(0), plan.input, "float32"))()

    def variance(noise, omega_c, adjoint):
        universe = jax_cosmo.Planck15(Omega_c=omega_c)
        delta = pm.linear_field(noise, plan, box, power)
        particles = pm.lpt(delta, plan, box, universe, 0.1)
        ends = jnp.linspace(0.1, 1.0, steps + 1)
        end = pm.simulate(particles, plan, box, universe, ends, adjoint=adjoint)
        final = pm.density_contrast(end, plan)
        return pfftjax.vdot(final, final, grid)

    made = {
        way: jax.jit(
            pfftjax.value_and_grad(
                lambda x, c, way=way: variance(x, c, way), argnums=(0, 1), shared=1
            )
        )
        for way in WAYS
    }
    made["run"] = jax.jit(lambda x, c: variance(x, c, "stored"))
    return (noise, 0.26), made


def bytes_a_particle(n, steps, way):
    """What XLA reserves on the rank that needs most, for each of a rank's particles."""
    arguments, made = programs(n, steps)
    needed = made[way].lower(*arguments).compile().memory_analysis().temp_size_in_bytes
    return round(COMM.allreduce(needed, MPI.MAX) * COMM.size / n**3, 1)


def measure(n, steps, pairs):
    """Memory and times at one size."""
    memory = {way: {s: bytes_a_particle(n, s, way) for s in (5, 40)} for way in WAYS}
    arguments, made = programs(n, steps)
    rounds = []
    for number in range(pairs + 1):
        times = {
            # `run` is bound now, as the loop goes on.
            name: timed(lambda run=run: jax.block_until_ready(run(*arguments)))
            for name, run in made.items()
        }
        if number > 0:  # the first one compiles
            rounds.append({name: round(seconds, 4) for name, seconds in times.items()})
    grid = pfftjax.ProcessGrid()
    gradients = [made[way](*arguments)[1] for way in WAYS]
    apart = jax.tree.map(lambda a, b: a - b, *gradients)
    return {
        "bytes_a_particle": memory,
        "memory_of_40_steps_over_5": round(memory["reversible"][40] / memory["reversible"][5], 3),
        "time_over_stored": round(
            statistics.median(r["reversible"] / r["stored"] for r in rounds), 3
        ),
        "time_over_run": round(statistics.median(r["reversible"] / r["run"] for r in rounds), 2),
        "relative_difference": [
            float(pfftjax.norm(apart[0], grid) / pfftjax.norm(gradients[0][0], grid)),
            float(abs(apart[1] / gradients[0][1])),
        ],
        "rounds": rounds,
    }


def main():
    parser = argparse.ArgumentParser(description=str(__doc__).splitlines()[0])
    parser.add_argument("sizes", nargs="*", type=int, default=[64, 128])
    parser.add_argument("--pairs", type=int, default=5)
    parser.add_argument("--steps", type=int, default=10, help="of the runs that are timed")
    arguments = parser.parse_args()
    jax.config.update("jax_enable_x64", False)
    summary = {"ranks": COMM.size, "steps": arguments.steps, "sizes": {}}
    for n in arguments.sizes:
        result = measure(n, arguments.steps, arguments.pairs)
        summary["sizes"][str(n)] = result
        if COMM.rank == 0:
            shown = {key: value for key, value in result.items() if key != "rounds"}
            print(f"{n}^3: {json.dumps(shown)}", flush=True)
    keep("adjoint", summary)


if __name__ == "__main__":
    main()

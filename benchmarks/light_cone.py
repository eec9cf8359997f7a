"""A run with a light cone beside the same run without.

    mpirun -n 2 python -m benchmarks.light_cone [64 128] [--pairs 5] [--steps 10]

n^3 particles on a mesh of twice as many points along each axis, in a box of 1000 Mpc/h, in
float32, by BullFrog's steps from a = 0.3; eight shells of nside 64 out to `--boxes` sides of the
box around its centre. Times are of one run, both ways in turn; the slowest rank counts, and the
ratio is the median over pairs.
"""

import argparse
import json
import statistics

import jax
import jax_cosmo
import numpy as np

import pfftjax
from benchmarks.protocol import COMM, keep, timed
from pfftjax import pm
from pfftjax.observables import LightCone

BOX = 1000.0


def programs(n, steps, boxes):
    """(particles, {way: run}) at one size."""
    plan = pfftjax.PencilFFT((n, n, n), pfftjax.ProcessGrid(), real=True)
    ends = np.linspace(0.3, 1.0, steps + 1)
    simulation = pm.Simulation(plan, BOX, jax_cosmo.Planck15(), ends)
    cone = LightCone(np.linspace(0.05, boxes, 9) * BOX, nside=64)
    start = jax.jit(
        lambda: simulation.start(pm.white_noise(jax.random.key(0), plan.input, "float32"))
    )()

    def run(particles, **options):
        where = simulation.mesh, BOX, simulation.cosmology, ends
        return pm.simulate(particles, *where, integrator=pm.bullfrog, **options)

    return start, {
        "without": jax.jit(run),
        "with": jax.jit(lambda particles: run(particles, light_cone=cone)),
    }


def measure(n, steps, pairs, boxes):
    """Times at one size."""
    start, made = programs(n, steps, boxes)
    seen = float(made["with"](start)[1].counts.sum())
    rounds = []
    for number in range(pairs + 1):
        times = {
            # `run` is bound now, as the loop goes on.
            name: timed(lambda run=run: jax.block_until_ready(run(start)))
            for name, run in made.items()
        }
        if number > 0:  # the first one compiles
            rounds.append({name: round(seconds, 4) for name, seconds in times.items()})
    ratio = statistics.median(r["with"] / r["without"] for r in rounds)
    return {
        "n": n,
        "steps": steps,
        "boxes": boxes,
        "particles seen": round(seen),
        "with over without": round(ratio, 3),
        "rounds": rounds,
    }


def main():
    parser = argparse.ArgumentParser(description=str(__doc__).splitlines()[0])
    parser.add_argument("sizes", nargs="*", type=int, default=[64, 128])
    parser.add_argument("--pairs", type=int, default=5)
    parser.add_argument("--steps", type=int, default=10)
    parser.add_argument("--boxes", type=float, default=0.5, help="the last edge over the side")
    arguments = parser.parse_args()
    jax.config.update("jax_enable_x64", False)
    summary = {"ranks": COMM.size, "runs": []}
    for n in arguments.sizes:
        result = measure(n, arguments.steps, arguments.pairs, arguments.boxes)
        summary["runs"].append(result)
        if COMM.rank == 0:
            shown = {key: value for key, value in result.items() if key != "rounds"}
            print(f"{n}^3: {json.dumps(shown)}", flush=True)
    keep("light-cone", summary)


if __name__ == "__main__":
    main()

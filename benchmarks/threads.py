"""One rank a core beside fewer ranks with more cores each: python -m benchmarks.threads

All splits of the same cores in turn (`--cores 8`: 8 x 1, 4 x 2, 2 x 4 and 1 x 8, ranks x cores of
each): a job of each split a round. Each rank is bound to its cores before JAX starts, so that XLA
has a thread for each of them, which our C++ uses too. Milliseconds of the slowest rank, and ratios
to one rank a core in the same round, as medians over the rounds:

transform  forward and inverse, of complex64 on slabs
owners     the exchange of particles (`pm.to_owners`), of which a step has moved some
step       a step of as many particles as cells, float32, as benchmarks/pm.py
gradient   value and gradient through 5 such steps
"""

import argparse
import dataclasses
import json
import os
import pathlib
import statistics
import subprocess

ROOT = pathlib.Path(__file__).resolve().parent.parent
SIZES = (64, 128)


def cases(size: int):
    """What is timed: names, and functions without arguments."""
    import jax
    import jax.numpy as jnp

    import pfftjax
    from benchmarks.pm import STEPS, Universe
    from benchmarks.protocol import global_array
    from pfftjax import pm

    n = 2 * size
    plan = pfftjax.PencilFFT((n, n, n), pfftjax.ProcessGrid((None, 1)))
    x = jnp.asarray(plan.input.local_block(global_array(n, "complex64")))
    both = jax.jit(lambda x: plan.inverse(plan.forward(x)))
    yield f"transform {n}^3", lambda: both(x)

    universe = Universe(size)
    kick, drift = (factors[STEPS // 2] for factors in (universe.steps.kick, universe.steps.drift))
    drifted = pm.step(universe.start, universe.plan, universe.box, universe.cosmology, kick, drift)
    owners = jax.jit(lambda p: pm.to_owners(p, universe.plan.input))
    moved = dataclasses.replace(drifted, offset=drifted.offset + 1)
    yield f"owners {size}^3", lambda: owners(moved)
    step = jax.jit(universe.step)
    yield f"step {size}^3", lambda: step(universe.start, kick, drift)
    gradient = jax.jit(jax.value_and_grad(universe.loss, argnums=(0, 1)))
    start = universe.start.offset, universe.start.momentum
    yield f"gradient {size}^3", lambda: gradient(*start)


def job(cores: int) -> None:
    """Time all cases on ranks of this many cores, and print one line of JSON."""
    from mpi4py import MPI

    mine = sorted(os.sched_getaffinity(0))[MPI.COMM_WORLD.rank * cores :][:cores]
    os.sched_setaffinity(0, mine)

    from benchmarks.protocol import COMM, family, milliseconds

    found = {}
    for size in SIZES:
        for name, call in cases(size):
            repetitions = 5 if name.startswith("gradient") else 15
            found[name] = statistics.median(milliseconds(call, repetitions))
    if COMM.rank == 0:
        print(json.dumps({"mpi": family(), "cases": found}), flush=True)


def main() -> None:
    """Run the jobs, and keep the figures."""
    parser = argparse.ArgumentParser(description=str(__doc__).splitlines()[0])
    parser.add_argument("--cores", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--job", type=int, help="cores of each rank: what each job runs")
    arguments = parser.parse_args()
    if arguments.job:
        job(arguments.job)
        return
    from tools import launcher

    cores = arguments.cores
    splits = [ranks for ranks in range(cores, 0, -1) if cores % ranks == 0]
    rounds = []
    family = ""
    for _ in range(arguments.rounds):
        rounds.append({})
        for ranks in splits:
            each = str(cores // ranks)
            command = launcher.command(ranks, "-m", "benchmarks.threads", "--job", each)
            # Ranks have cores of their own, and wait as they do for users.
            environment = launcher.environment(
                JAX_ENABLE_X64="0", OMPI_MCA_mpi_yield_when_idle="0"
            )
            output = subprocess.run(
                command, env=environment, cwd=ROOT, check=True, capture_output=True, text=True
            ).stdout
            result = json.loads(output.splitlines()[-1])
            family = result["mpi"]
            rounds[-1][ranks] = result["cases"]
            print(ranks, "x", each, result["cases"], flush=True)
    found = {
        name: {
            f"{ranks} x {cores // ranks}": {
                "ms": round(statistics.median(r[ranks][name] for r in rounds), 2),
                "of_one_core": round(
                    statistics.median(r[ranks][name] / r[cores][name] for r in rounds), 3
                ),
            }
            for ranks in splits
        }
        for name in rounds[0][cores]
    }
    for name, of in found.items():
        print(
            f"{name:18}", *(f"{split}: {v['ms']} ({v['of_one_core']})" for split, v in of.items())
        )
    path = ROOT / "benchmarks" / "results" / f"threads-{family}.json"
    path.write_text(json.dumps({"rounds": arguments.rounds, "cases": found}, indent=1) + "\n")
    print(f"figures in {path.relative_to(ROOT)}")


if __name__ == "__main__":
    main()

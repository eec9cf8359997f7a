"""The gradient of a potential from its spectrum, beside three inverse transforms.

    mpirun -n 2 python -m benchmarks.gradient [256:float32 256:complex64] [--pairs 9] [--grid 2x1]

The kernels i k are part of the gradient. The three transforms are given their products, and make
nothing of them: once as one program, once as three calls. All are timed in turn, the slowest rank
counts, and the ratio is the median over pairs.
"""

import argparse
import json
import statistics

import jax
import numpy as np
from mpi4py import MPI

from benchmarks.protocol import COMM, keep, timed


def seconds(function, repetitions):
    """Seconds of one call: the best of some, each as long as the slowest rank takes."""
    return min(timed(lambda: jax.block_until_ready(function())) for _ in range(repetitions))


def measure(n, dtype, dims, pairs, repetitions):
    import jax.numpy as jnp

    import pfftjax
    from pfftjax import spectral

    plan = pfftjax.PencilFFT((n, n, n), pfftjax.ProcessGrid(dims), real=dtype.startswith("f"))
    box = 1000.0
    rng = np.random.default_rng(COMM.rank)
    field = rng.standard_normal(plan.input.local_shape, np.float32)
    y = jax.jit(plan.forward)(jnp.asarray(field, dtype))

    late = jax.jit(lambda y: spectral.gradient(y, plan, box, from_spectrum=True))
    kernels = jax.jit(
        lambda y: spectral.gradient(y, plan, box, from_spectrum=True, to_spectrum=True)
    )
    products = jax.block_until_ready(kernels(y))
    inverse = jax.jit(plan.inverse)
    three = jax.jit(lambda products: [plan.inverse(product) for product in products])
    contenders = {
        "gradient": lambda: late(y),
        "three_inverses_in_one_program": lambda: three(products),
        "three_calls_of_inverse": lambda: [inverse(product) for product in products],
    }
    difference = max(
        float(jnp.abs(a - b).max() / jnp.abs(b).max())
        for a, b in zip(contenders["gradient"](), three(products), strict=True)
    )
    rounds = []
    for number in range(pairs + 1):
        times = {name: 1e3 * seconds(f, repetitions) for name, f in contenders.items()}
        if number > 0:  # the first one warms up
            rounds.append({name: round(value, 3) for name, value in times.items()})
    return {
        "ratio": {
            name: round(statistics.median(r["gradient"] / r[name] for r in rounds), 3)
            for name in contenders
            if name != "gradient"
        },
        "median_ms": {
            name: round(statistics.median(r[name] for r in rounds), 2) for name in contenders
        },
        "largest_difference": COMM.allreduce(difference, MPI.MAX),
        "rounds": rounds,
    }


def main():
    parser = argparse.ArgumentParser(description=str(__doc__).splitlines()[0])
    parser.add_argument("cases", nargs="*", default=["256:float32", "256:complex64"])
    parser.add_argument("--pairs", type=int, default=9)
    parser.add_argument("--repetitions", type=int, default=3, help="calls of each in a pair")
    parser.add_argument("--grid", help="rows x columns, as 2x1; slabs by default")
    arguments = parser.parse_args()
    jax.config.update("jax_enable_x64", False)
    dims = tuple(int(d) for d in arguments.grid.split("x")) if arguments.grid else (COMM.size, 1)
    summary = {"ranks": COMM.size, "grid": dims, "pairs": arguments.pairs, "cases": {}}
    for case in arguments.cases:
        size, dtype = case.split(":")
        result = measure(int(size), dtype, dims, arguments.pairs, arguments.repetitions)
        summary["cases"][case] = result
        if COMM.rank == 0:
            shown = {key: value for key, value in result.items() if key != "rounds"}
            print(f"{case}: {json.dumps(shown)}", flush=True)
    keep("gradient", summary)


if __name__ == "__main__":
    main()

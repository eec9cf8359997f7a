"""Methods of exchange beside each other, in turn, on the nodes that a job has.

    python -m tools.nodes --ranks 4 --rate 1gbit -- -m benchmarks.methods --size 256 --rate 1gbit

Forward and inverse transforms of complex64 on slabs, each method once a round; the medians, and
those of the ratios to MESSAGES in the same round. Beside them stands the time that a link takes
for what a node sends, by the rate that `tools.nodes` has measured. `--rate` is what the figures
are kept under, in benchmarks/results/methods-openmpi.json. All methods must give the same bits.
"""

import argparse
import json
import os
import statistics

import jax
import jax.numpy as jnp
import numpy as np

from benchmarks.protocol import COMM, RESULTS, family, global_array, keep, timed
from pfftjax import ExchangeMethod, PencilFFT, ProcessGrid
from pfftjax._runtime.communicators import world
from pfftjax._runtime.ffi import native

METHODS = (ExchangeMethod.MESSAGES, ExchangeMethod.HIERARCHICAL, ExchangeMethod.ALLTOALL)


def figures(size: int, rounds: int) -> dict[str, dict[str, float]]:
    """Milliseconds and ratios of each method; an error on all ranks where bits differ."""
    grid = ProcessGrid((None, 1))
    runs, bits = {}, {}
    for method in METHODS:
        plan = PencilFFT((size,) * 3, grid, method=method)
        x = jnp.asarray(plan.input.local_block(global_array(size, "complex64")))
        both = jax.jit(lambda x, plan=plan: plan.inverse(plan.forward(x)))
        bits[method] = np.asarray(both(x))
        runs[method] = (both, x)
    same = all((bits[m] == bits[METHODS[0]]).all() for m in METHODS)
    if not COMM.allreduce(same, lambda a, b: a and b):
        raise RuntimeError("methods of exchange give different bits")
    times = {method: [] for method in METHODS}
    for _ in range(rounds):
        for method, (both, x) in runs.items():
            times[method].append(timed(lambda both=both, x=x: both(x).block_until_ready()))
    base = times[METHODS[0]]
    return {
        method.name: {
            "ms": round(1e3 * statistics.median(of), 2),
            "of_messages": round(
                statistics.median(a / b for a, b in zip(of, base, strict=True)), 3
            ),
        }
        for method, of in times.items()
    }


def link(size: int, nodes: list[int]) -> dict[str, float]:
    """The rate of a link, and milliseconds for what a node sends in both transforms."""
    rate = float(os.environ["PFFTJAX_TEST_LINK"])
    ranks = len(nodes)
    block = 8 * size**3 / ranks**2  # from one rank to another
    sent = max(nodes.count(node) * (ranks - nodes.count(node)) for node in set(nodes)) * block
    return {"gbit": round(rate, 2), "ms": round(1e3 * 2 * 8e-9 * sent / rate, 1)}


def main() -> None:
    """Time, print and keep."""
    parser = argparse.ArgumentParser(description=str(__doc__).splitlines()[0])
    parser.add_argument("--size", type=int, default=128)
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--rate", default="none", help="the limit under which the job runs")
    arguments = parser.parse_args()
    nodes = native.nodes(world.number)
    found = figures(arguments.size, arguments.rounds)
    if COMM.rank != 0:
        return
    placement = ",".join(map(str, nodes))
    for method, of in found.items():
        print(f"{method:14} {of['ms']:9.2f} ms, {of['of_messages']:.3f} of MESSAGES")
    alone = link(arguments.size, list(nodes))
    print(f"the link alone {alone['ms']:9.2f} ms at {alone['gbit']} Gbit/s")
    path = RESULTS / f"methods-{family()}.json"
    kept = json.loads(path.read_text()) if path.exists() else {}
    kept[f"{arguments.size}^3 on nodes {placement}, rate {arguments.rate}"] = {
        "link": alone,
        **found,
    }
    keep("methods", kept)


if __name__ == "__main__":
    main()

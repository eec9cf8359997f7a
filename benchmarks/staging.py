"""Staging between GPUs of one node, by memory that the ranks share and by messages:

    mpirun -n 2 python -m benchmarks.staging [--mib 1024]

Of `alltoall` with so many MiB on each rank, in turn, beside MPI's own exchange of as much memory
of the host. With JAX_PLATFORMS=cpu on a device that is none (tools/fake_device), where the host
makes the copies that a GPU makes otherwise: the difference is what staging costs the host.
Milliseconds of the slowest rank, the best and the median of the repetitions, in a line of JSON.
"""

import argparse
import json
import os
import statistics

import jax

jax.config.update("jax_enable_x64", False)

import jax.numpy as jnp  # noqa: E402
import numpy as np  # noqa: E402
from mpi4py import MPI  # noqa: E402

from tools import fake_device  # noqa: E402

COMM = MPI.COMM_WORLD
if os.environ.get("JAX_PLATFORMS") == "cpu":
    os.environ.update(fake_device.environment())

from benchmarks.protocol import milliseconds  # noqa: E402
from pfftjax._runtime import transports  # noqa: E402
from pfftjax._runtime.ffi import native  # noqa: E402
from pfftjax.collectives import alltoall  # noqa: E402


def main():
    parser = argparse.ArgumentParser(description=str(__doc__).splitlines()[0])
    parser.add_argument("--mib", type=int, default=256)
    parser.add_argument("--repetitions", type=int, default=3)
    parser.add_argument("--turns", type=int, default=3)
    arguments = parser.parse_args()
    count = (arguments.mib << 20) // 4 // COMM.size
    x = jnp.zeros((COMM.size, count), jnp.float32) + COMM.rank
    contenders, found = {}, {"mib": arguments.mib, "ranks": COMM.size}
    for name, node in (("shared", 0), ("messages", COMM.rank)):
        transports.configure(name="staging")
        native.set_node(node)
        comm = COMM.Dup()
        contenders[name] = jax.jit(lambda x, comm=comm: alltoall(x, comm=comm))
        y = contenders[name](x)
        assert bool((y == jnp.arange(COMM.size, dtype=y.dtype)[:, None]).all())
        found[f"{name}, transport"] = transports.chosen()[-1].transport
        del y
    mine, theirs = np.array(x), np.empty(x.shape, x.dtype)
    contenders["MPI on the host"] = lambda _: COMM.Alltoall(mine, theirs)
    times = {name: [] for name in contenders}
    for _ in range(arguments.turns):
        for name, f in contenders.items():
            times[name] += milliseconds(lambda f=f: f(x), arguments.repetitions)
    for name, values in times.items():
        found[name] = {"ms": min(values), "ms_median": statistics.median(values)}
    found["shared / messages"] = found["shared"]["ms"] / found["messages"]["ms"]
    if COMM.rank == 0:
        print(json.dumps(found), flush=True)


if __name__ == "__main__":
    main()

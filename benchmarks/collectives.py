"""The cost of an alltoall inside a program, beside raw MPI in the same run.

    mpirun -n 2 python -m benchmarks.collectives

Inside a program: the slope between a short and a long chain of exchanges, so that the cost of the
call drops out, each repeated in a loop inside the program until a run takes milliseconds. Raw MPI:
mpi4py's Alltoall on NumPy buffers, once with the same two buffers every time (`raw`) and once as a
chain, each exchange sending what the last one received (`chained`). Every figure is the maximum
over ranks, and the median over repetitions that alternate.
"""

import argparse
import platform
import time

import jax
import jax.numpy as jnp
import numpy as np
from mpi4py import MPI

import pfftjax
from benchmarks.protocol import COMM, keep, timed
from pfftjax.collectives import alltoall

RANK, SIZE = COMM.rank, COMM.size
CHAINS = (2, 42)
REPETITIONS = 9


def chain(length, repeats):
    def exchanges(_, x):
        for _ in range(length):
            x = alltoall(x)
        return x

    return jax.jit(lambda x: jax.lax.fori_loop(0, repeats, exchanges, x))


def inside_a_program(total_bytes):
    """Microseconds an exchange of `total_bytes` a rank: ours, raw, raw chained."""
    shape = (SIZE, total_bytes // 4 // SIZE)
    x = jnp.zeros(shape, jnp.float32)
    repeats = max(1, min(200, (1 << 24) // total_bytes))
    short, long = (chain(length, repeats) for length in CHAINS)
    jax.block_until_ready((short(x), long(x)))
    a, b = np.zeros(shape, np.float32), np.ones(shape, np.float32)
    count = max(10, min(2000, (1 << 31) // total_bytes))

    def raw():
        for _ in range(count):
            COMM.Alltoall(a, b)

    def chained():
        for _ in range(count // 2):
            COMM.Alltoall(a, b)
            COMM.Alltoall(b, a)

    ours, theirs, theirs_chained = [], [], []
    for _ in range(REPETITIONS):
        slow = timed(lambda: long(x).block_until_ready())
        fast = timed(lambda: short(x).block_until_ready())
        ours.append((slow - fast) / (CHAINS[1] - CHAINS[0]) / repeats)
        theirs.append(timed(raw) / count)
        theirs_chained.append(timed(chained) / (count // 2 * 2))
    return tuple(1e6 * float(np.median(t)) for t in (ours, theirs, theirs_chained))


def calls():
    """Microseconds of a warm jitted and eager call of 1 KiB; milliseconds until calls return."""
    x = jnp.zeros((SIZE, 256 // SIZE), jnp.float32)
    jitted = jax.jit(lambda x: alltoall(x))
    count = 500

    def repeat(f):
        def run():
            y = x
            for _ in range(count):
                y = f(x)
            y.block_until_ready()

        run()
        return 1e6 * float(np.median([timed(run) for _ in range(REPETITIONS)])) / count

    @jax.jit
    def slow(w, x):
        y = w
        for _ in range(8):
            y = y @ w * 1e-3
        return alltoall(x + 0 * y[0, 0])

    w = jnp.ones((700, 700), jnp.float32)
    slow(w, x).block_until_ready()
    returned, ended = [], []
    for _ in range(REPETITIONS):
        COMM.Barrier()
        start = time.perf_counter()
        y = slow(w, slow(w, x))
        returned.append(time.perf_counter() - start)
        y.block_until_ready()
        ended.append(time.perf_counter() - start)
    return {
        "jitted_call_us": repeat(jitted),
        "eager_call_us": repeat(alltoall),
        "two_slow_calls_return_ms": 1e3 * float(np.median(returned)),
        "two_slow_calls_end_ms": 1e3 * float(np.median(ended)),
    }


def main():
    argparse.ArgumentParser(description=str(__doc__).splitlines()[0]).parse_args()
    rows = []
    for total in (1 << 10, 1 << 16, 1 << 20, 1 << 25):
        ours, raw, chained = inside_a_program(total)
        rows.append({"bytes": total, "ours_us": ours, "raw_us": raw, "raw_chained_us": chained})
        if RANK == 0:
            print(
                f"alltoall {total:>9} bytes: {ours:9.2f} us in a program, raw {raw:9.2f}, "
                f"chained {chained:9.2f}; bandwidth {raw / ours:.2f} of raw, "
                f"{chained / ours:.2f} of chained",
                flush=True,
            )
    result = {
        "machine": f"{platform.machine()}, {platform.system()}",
        "mpi": MPI.Get_library_version().split(",")[0].splitlines()[0].strip("\x00"),
        "jax": jax.__version__,
        "pfftjax": pfftjax.__version__,
        "ranks": SIZE,
        "alltoall": rows,
        **calls(),
    }
    if RANK == 0:
        for name in ("jitted_call_us", "eager_call_us"):
            print(f"{name} {result[name]:.1f}")
        print(
            f"two slow calls return after {result['two_slow_calls_return_ms']:.2f} ms, end after "
            f"{result['two_slow_calls_end_ms']:.1f} ms"
        )
    keep("collectives", result)


if __name__ == "__main__":
    main()

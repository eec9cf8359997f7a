"""Operations on arrays past 2^31 bytes, right to the last byte, on two ranks.

    mpirun -n 2 python -m tests.jobs.sizes [--bytes 2147483656]

The bytes of an array are (place + number of the array) modulo a prime, made and compared in JAX,
a piece at a time: no temporary is large. Prints the time of each operation, and the memory of
both ranks (what they share is counted once): the sum of each one's peak.
"""

import argparse
import re
import sys
import threading
import time

import jax
import jax.numpy as jnp
import numpy as np
from mpi4py import MPI

from pfftjax import collectives as pc

RANK, SIZE = MPI.COMM_WORLD.rank, MPI.COMM_WORLD.size
CONTROL = MPI.COMM_WORLD.Dup()
PRIME = 251
# A whole number of periods, so that all pieces are alike.
PIECE = PRIME << 16


def piece(*numbers):
    """The first piece of the sum of the arrays of these numbers."""
    period = sum(((np.arange(PRIME) + n) % PRIME).astype(np.uint8) for n in numbers)
    return jnp.asarray(np.tile(period, PIECE // PRIME))


def fill(shape, number):
    """The array of a number."""
    n = int(np.prod(shape))
    whole, rest = divmod(n, PIECE)

    @jax.jit
    def f(p):
        x = jax.lax.fori_loop(
            0,
            whole,
            lambda i, x: jax.lax.dynamic_update_slice(x, p, (i * PIECE,)),
            jnp.zeros(n, jnp.uint8),
        )
        x = jax.lax.dynamic_update_slice(x, p[:rest], (jnp.int64(whole * PIECE),))
        return x.reshape(shape)

    return f(piece(number))


def is_right(x, *numbers, entry=None):
    """Whether all of x (or of one entry, which is not copied) is that of the array, or the sum of
    the arrays, of these numbers."""
    n = x.shape[-1]
    whole, rest = divmod(n, PIECE)

    @jax.jit
    def f(x, p):
        def part(start, size):
            if entry is None:
                return jax.lax.dynamic_slice(x, (start,), (size,))
            return jax.lax.dynamic_slice(x, (entry, start), (1, size))[0]

        ok = jax.lax.fori_loop(
            0,
            whole,
            lambda i, ok: ok & jnp.all(part(i * PIECE, PIECE) == p),
            jnp.asarray(True),
        )
        return ok & jnp.all(part(whole * PIECE, rest) == p[:rest])

    return bool(f(x, piece(*numbers)))


def memory():
    """Bytes of this process; of what is shared, its share."""
    with open("/proc/self/smaps_rollup") as file:
        return int(re.search(r"^Pss: +(\d+)", file.read(), re.M)[1]) << 10


class Peak:
    """The most memory that was seen."""

    def __init__(self):
        self.bytes = 0
        threading.Thread(target=self._watch, daemon=True).start()

    def _watch(self):
        while True:
            self.bytes = max(self.bytes, memory())
            time.sleep(0.1)


def cases(n):
    """(name, bytes, operand, operation, what is right)."""
    other, block = 1 - RANK, n // 2 + 8

    def right(*numbers):
        return lambda y: is_right(y, *numbers)

    yield (
        "sendrecv",
        n,
        lambda: fill((n,), RANK),
        lambda x: pc.sendrecv(x, x, other, other),
        right(other),
    )
    yield (
        "allgather",
        n,
        lambda: fill((n,), 3 * RANK),
        pc.allgather,
        lambda y: all(is_right(y, 3 * i, entry=i) for i in range(2)),
    )
    half = (n - 8) // 2 + (1 << 19)
    yield (
        "alltoall",
        2 * half,
        # Block j of rank i begins at j half.
        lambda: fill((2, half), 5 * RANK),
        pc.alltoall,
        lambda y: all(is_right(y, 5 * i + RANK * half % PRIME, entry=i) for i in range(2)),
    )
    yield "bcast", n, lambda: fill((n,), RANK), lambda x: pc.bcast(x, 1), right(1)
    yield (
        "gather",
        2 * block,
        lambda: fill((block,), RANK),
        lambda x: pc.gather(x, 0),
        lambda y: is_right(y, 1) if RANK else all(is_right(y, i, entry=i) for i in range(2)),
    )
    yield (
        "scatter",
        2 * block,
        lambda: fill((block,) if RANK == 0 else (2, block), 7),
        lambda x: pc.scatter(x, 1),
        right(7 + RANK * block % PRIME),
    )
    yield "scan", n, lambda: fill((n,), RANK), pc.scan, right(*range(RANK + 1))
    yield "allreduce", n, lambda: fill((n,), RANK), pc.allreduce, right(0, 1)
    yield (
        "reduce_scatter",
        2 * block,
        lambda: fill((2, block), RANK),
        pc.reduce_scatter,
        right(*(i + RANK * block % PRIME for i in range(2))),
    )


def main():
    """Run all; the exit status."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--bytes", type=int, default=2**31 + 8)
    parser.add_argument("--only", help="the name of one operation")
    arguments = parser.parse_args()
    n = arguments.bytes
    if SIZE != 2 or n % 2:
        parser.error("two ranks and an even number of bytes")
    wrong = 0
    most = 0
    peak = Peak()
    for name, size, operand, operation, check in cases(n):
        if arguments.only not in (None, name):
            continue
        peak.bytes = 0
        x = jax.block_until_ready(operand())
        CONTROL.Barrier()
        start = time.perf_counter()
        y = jax.block_until_ready(jax.jit(operation)(x))
        seconds = time.perf_counter() - start
        del x
        ok = check(y)
        y.delete()
        del y
        jax.clear_caches()
        all_ok = CONTROL.allreduce(ok, MPI.LAND)
        both = CONTROL.allreduce(peak.bytes)
        wrong += not all_ok
        most = max(most, both)
        if RANK == 0:
            print(
                f"{name} of {size} bytes: {'right' if all_ok else 'WRONG'}, {seconds:.1f} s, "
                f"peak {both / 2**30:.2f} GiB",
                flush=True,
            )
    if RANK == 0:
        print(f"{wrong} wrong; at most {most / 2**30:.2f} GiB on both ranks", flush=True)
    return int(wrong > 0)


if __name__ == "__main__":
    sys.exit(main())

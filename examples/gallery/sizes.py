"""Any size, primes too.

The time of a real transform of n³ points for all kinds of n, beside SciPy's pocketfft and
`jnp.fft` in one process with as many threads as there are ranks here. Most libraries on several
processes want sizes that divide by their number; here blocks may differ, so 97³ on 2 ranks is as
right as 96³. A size with small factors only is cheapest for all of them; along a prime axis the
transform of a line is one of Rader or Bluestein, and costs several times as much. Each time is
the best of five calls, and the results are compared with SciPy's.
"""

import time

import jax
import jax.numpy as jnp
import matplotlib.pyplot as plt
import numpy as np
import scipy.fft
from common import COMM, FIRST, Fact, Folder, save, start
from mpi4py import MPI

import pfftjax

SIZES = (96, 97, 100, 101, 105, 107, 108, 112, 113, 120, 121, 125, 127, 128)
NAMES = ("pfftjax", "scipy.fft", "jax.numpy.fft")


def seconds(function, repeats=5):
    """The best of some calls, by the slowest rank."""
    times = []
    for _ in range(repeats):
        COMM.Barrier()
        begin = time.perf_counter()
        jax.block_until_ready(function())
        times.append(COMM.allreduce(time.perf_counter() - begin, MPI.MAX))
    return min(times)


def alone(function):
    """The time of a function on rank 0, while the other ranks sleep."""
    times = [0.0]
    if FIRST:
        jax.block_until_ready(function())
        times = []
        for _ in range(5):
            begin = time.perf_counter()
            jax.block_until_ready(function())
            times.append(time.perf_counter() - begin)
    request = COMM.Ibarrier()
    while not request.Test():
        time.sleep(0.01)
    return min(times)


def main(size: int, out: Folder) -> list[Fact]:
    """Time and compare sizes up to this one."""
    sizes = [n for n in SIZES if n <= size] if out else [size]
    times, worst = {name: [] for name in NAMES}, 0.0
    for n in sizes:
        plan = pfftjax.PencilFFT((n, n, n), pfftjax.ProcessGrid((None, 1)), real=True)
        x = np.random.default_rng(n).standard_normal((n, n, n)).astype("float32")
        block = plan.input.local_block(jnp.asarray(x))
        forward = jax.jit(plan.forward)
        found = np.asarray(forward(block))
        expected = np.asarray(scipy.fft.rfftn(x), "complex64")
        part = np.asarray(plan.output.local_block(jnp.asarray(expected)))
        error = np.abs(found - part).max(initial=0) / np.abs(expected).max()
        worst = max(worst, COMM.allreduce(float(error), MPI.MAX))
        if out:
            times["pfftjax"].append(seconds(lambda f=forward, b=block: f(b)))
            times["scipy.fft"].append(alone(lambda x=x: scipy.fft.rfftn(x, workers=COMM.size)))
            # One process has all cores that the launcher lets it have.
            native = jax.jit(jnp.fft.rfftn)
            times["jax.numpy.fft"].append(alone(lambda f=native, x=x: f(x)))
    if out and FIRST:
        draw(sizes, times, out)
    return [Fact("largest difference from SciPy over the largest value", worst, 2e-6)]


def draw(sizes, times, out):
    """Bars: nanoseconds for each point."""
    figure, ax = plt.subplots(figsize=(11.5, 4.2), layout="constrained")
    width = 0.27
    for number, (name, colour) in enumerate(zip(NAMES, ("C3", "0.45", "0.75"), strict=True)):
        values = [1e9 * t / n**3 for n, t in zip(sizes, times[name], strict=True)]
        places = np.arange(len(sizes)) + (number - 1) * width
        who = f"{COMM.size} ranks" if number == 0 else f"one process, {COMM.size} threads"
        ax.bar(places, values, width, color=colour, label=f"{name}, {who}")
    factors = [" · ".join(map(str, factorised(n))) for n in sizes]
    labels = [f"{n}\n{'prime' if f == str(n) else f}" for n, f in zip(sizes, factors, strict=True)]
    ax.set_xticks(range(len(sizes)), labels, fontsize=9)
    ax.set(xlabel="$n$, and its factors", ylabel="ns a point")
    ax.set_title("Real transform of $n^3$ points, float32")
    ax.legend()
    save(figure, out / "sizes.png")


def factorised(n):
    """The prime factors of n, with powers."""
    factors = []
    for p in range(2, n + 1):
        power = 0
        while n % p == 0:
            n, power = n // p, power + 1
        if power:
            factors.append(str(p) + ("", "", "²", "³", "⁴", "⁵", "⁶", "⁷")[power])
    return factors


if __name__ == "__main__":
    start(main, 128)

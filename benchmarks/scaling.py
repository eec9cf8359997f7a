"""Strong and weak scaling of the transform on the cores there are: python -m benchmarks.scaling

One core a rank. Strong: the same array on more ranks; weak: as much on each rank. Beside the time,
the numbers that go in and come out, a second (GB/s), and their share of what the same cores can
copy from array to array at the same time. A transform that goes through memory twice, as one with
an exchange must where arrays do not fit into caches, can have a half of that.

    mpirun -n 2 python -m benchmarks.scaling --job 256,256,256 512,256,256    # one number of ranks
"""

import argparse
import json
import os
import pathlib
import statistics
import subprocess

import numpy as np

ROOT = pathlib.Path(__file__).resolve().parent.parent
STRONG = ((64, 64, 64), (128, 128, 128), (256, 256, 256))
WEAK = ((64, 64, 64), (128, 128, 128), (192, 192, 192))  # on each rank
COPIED = 1 << 28


def copy_rate():
    """Bytes read and written a second, of all ranks at once: the median over some copies."""
    from benchmarks.protocol import COMM, timed

    source, target = np.ones(COPIED // 8), np.zeros(COPIED // 8)
    times = [timed(lambda: np.copyto(target, source)) for _ in range(7)]
    return 2 * COPIED * COMM.size / statistics.median(times)


def figures(shape, rate):
    """Time one shape on the ranks of this job, which copy `rate` bytes a second."""
    import jax
    import jax.numpy as jnp

    import pfftjax
    from benchmarks.protocol import COMM, timed, worst

    plan = pfftjax.PencilFFT(shape, pfftjax.ProcessGrid((None, 1)))
    rng = np.random.default_rng(COMM.rank)
    field = rng.standard_normal((2, *plan.input.local_shape), np.float32)
    x = jnp.asarray(field[0] + 1j * field[1])
    forward, inverse = jax.jit(plan.forward), jax.jit(plan.inverse)
    back = inverse(forward(x))
    error = jnp.abs(back - x).max() / jnp.abs(x).max()
    times = []
    # All ranks repeat as often, as they know the same times.
    while len(times) < 9 or (sum(times) < 0.5 and len(times) < 200):
        times.append(timed(lambda: inverse(forward(x)).block_until_ready()) / 2)
    moved = 2 * 8 * float(np.prod(shape))  # complex64, in and out
    median = statistics.median(times)
    return {
        "ms": round(1e3 * median, 3),
        "GB/s": round(1e-9 * moved / median, 2),
        "of_copy": round(moved / median / rate, 3),
        "error": worst(error),
    }


def job(shapes):
    """Time the shapes on the ranks of this job, and print one line of JSON."""
    import jax

    from benchmarks.protocol import COMM, family

    jax.config.update("jax_enable_x64", False)
    rate = copy_rate()
    rows = {"x".join(map(str, shape)): figures(shape, rate) for shape in shapes}
    if COMM.rank == 0:
        result = {"ranks": COMM.size, "copy_GB/s": round(1e-9 * rate, 1), "cases": rows}
        print(json.dumps({"mpi": family(), **result}), flush=True)


def weak_shape(shape, ranks):
    return (shape[0] * ranks, *shape[1:])


def main():
    parser = argparse.ArgumentParser(description=str(__doc__).splitlines()[0])
    cores = len(os.sched_getaffinity(0))
    parser.add_argument("--ranks", type=int, nargs="+", default=range(1, cores + 1))
    parser.add_argument("--job", nargs="+", help="shapes, as 256,256,256: what each job runs")
    arguments = parser.parse_args()
    if arguments.job:
        job([tuple(int(n) for n in shape.split(",")) for shape in arguments.job])
        return
    from tools import launcher

    runs = []
    for ranks in arguments.ranks:
        shapes = {*STRONG, *(weak_shape(shape, ranks) for shape in WEAK)}
        texts = [",".join(map(str, shape)) for shape in sorted(shapes)]
        command = launcher.command(ranks, "-m", "benchmarks.scaling", "--job", *texts, bind=True)
        # Without double precision by default, and without waiting that yields: as users run it.
        environment = launcher.environment(OMPI_MCA_mpi_yield_when_idle="0")
        output = subprocess.run(
            command, env=environment, cwd=ROOT, check=True, capture_output=True, text=True
        ).stdout
        runs.append(json.loads(output.splitlines()[-1]))
        print(json.dumps(runs[-1]), flush=True)
    path = ROOT / "benchmarks" / "results" / f"scaling-{runs[0]['mpi']}.json"
    path.write_text(json.dumps(runs, indent=1) + "\n")
    print(f"figures in {path.relative_to(ROOT)}")


if __name__ == "__main__":
    main()

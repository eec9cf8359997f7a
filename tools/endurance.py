"""Whether a long run holds more and more: `make endurance`; Linux, as root.

    python -m tools.endurance --minutes 60

On two nodes with two ranks each (tools/nodes.py) a program repeats what long runs consist of, for
so long: a simulation with outputs, a checkpoint after each step and a restart from it, the value
and gradient of a run, transforms by every method, operations on arrays. After each round each rank
says how much memory it holds, how much of that malloc has given away, how many files and threads
it has, and how much its node shares in memory. What the last third of the rounds holds more than
the second is an error; the first one is left out, as allocators and caches fill in it.
"""

import argparse
import ctypes
import dataclasses
import json
import os
import pathlib
import statistics
import subprocess
import sys
import tempfile
import time

from tools import launcher, nodes

NODES, RANKS = 2, 4
RESULTS = launcher.ROOT / "benchmarks" / "results"
# How much more may be held. Python and XLA round memory to pages and arenas, which come and go,
# and free pieces hide a leak for hundreds of rounds: what malloc has given away shows it at once.
MAY_GROW = {"mebibytes": 2.0, "malloc_mebibytes": 0.2}
COUNTS_OF_MALLOC = "arena ordblks smblks hblks hblkhd usmblks fsmblks uordblks fordblks keepcost"


@dataclasses.dataclass(frozen=True)
class Held:
    """What a rank has after a round."""

    mebibytes: float
    malloc_mebibytes: float  # given away by malloc and not given back to it
    files: int
    threads: int
    shared_bytes: int  # on its node, under /dev/shm


class _Malloc(ctypes.Structure):
    """What mallinfo2 of the GNU library returns."""

    _fields_ = tuple((name, ctypes.c_size_t) for name in COUNTS_OF_MALLOC.split())


def of_malloc() -> int:
    """The bytes that malloc has given away, from its arenas and by mmap."""
    ask = ctypes.CDLL(None).mallinfo2
    ask.restype = _Malloc
    said = ask()
    return said.uordblks + said.hblkhd


def held() -> Held:
    """Ask the system."""
    from benchmarks.memory import pss

    shared = os.statvfs("/dev/shm")
    return Held(
        round(1e6 * pss() / 2**20, 2),
        round(of_malloc() / 2**20, 3),
        len(os.listdir("/proc/self/fd")),
        len(os.listdir("/proc/self/task")),
        (shared.f_blocks - shared.f_bfree) * shared.f_frsize,
    )


def job(folder: pathlib.Path, minutes: float) -> None:
    """What each rank runs."""
    import gc

    import jax
    import jax.numpy as jnp
    import jax_cosmo
    import numpy as np

    import pfftjax
    from pfftjax import collectives, pm
    from tools.faults_program import power

    grid = pfftjax.ProcessGrid((2, 2))
    comm = grid.comm
    plan = pfftjax.PencilFFT((32,) * 3, grid, real=True)
    simulation = pm.Simulation(
        plan, 400.0, jax_cosmo.Planck15(), np.linspace(0.1, 1, 4), power=power, finer=1
    )
    noise = jax.jit(lambda: pm.nested_noise(jax.random.key(0), plan, "float64"))()

    def loss(noise):
        particles = simulation.run(noise)
        return pfftjax.vdot(particles.offset, particles.offset, grid)

    gradient = jax.jit(jax.value_and_grad(loss))
    plans = [
        dataclasses.replace(plan, method=method)
        for method in pfftjax.ExchangeMethod
        if method.name not in ("SHARED", "FUSED", "PIPELINED")  # on one node, or on GPUs
    ]
    transforms = [jax.jit(lambda x, p=p: p.inverse(p.forward(x))) for p in plans]
    operations = jax.jit(
        lambda x: collectives.allreduce(
            collectives.alltoall(x) + collectives.allgather(x[0]) + collectives.bcast(x, 1)
        )
    )
    field = jnp.asarray(plan.input.local_block(np.ones(plan.shape)))

    end, first, rounds = time.monotonic() + 60 * minutes, None, 0
    while comm.bcast(time.monotonic() < end):
        path = folder / "run.h5"
        if comm.rank == 0:
            path.unlink(missing_ok=True)
        comm.barrier()
        checkpoint = pfftjax.io.Checkpoint(path, minutes=0)
        for particles in simulation.snapshots(noise, (0.6, 1.0), checkpoint=checkpoint):
            pfftjax.io.save_particles(
                folder / "output.h5", particles, simulation.mesh.input, mode="w"
            )
        for _ in simulation.snapshots(noise, (0.6, 1.0), checkpoint=checkpoint):
            pass
        results = (gradient(noise), [both(field) for both in transforms])
        for _ in range(200):
            x = operations(jnp.ones((comm.size, 1000)))
        marks = [np.asarray(leaf).tobytes() for leaf in jax.tree.leaves((results, x))]
        assert first is None or marks == first, f"round {rounds} gave other bits"
        first, rounds = marks, rounds + 1
        del results, particles, x
        gc.collect()
        mine = comm.gather(dataclasses.asdict(held()))
        if comm.rank == 0:
            print(json.dumps({"round": rounds, "ranks": mine}), flush=True)


def growth(rounds: list[list[Held]]) -> dict[str, float]:
    """How much more the last third of the rounds holds than the second, of the rank of which this
    is most.
    """
    third = len(rounds) // 3
    found = {}
    for field in dataclasses.fields(Held):
        parts = [
            [
                statistics.median(getattr(one[rank], field.name) for one in part)
                for rank in range(len(rounds[0]))
            ]
            for part in (rounds[third : 2 * third], rounds[2 * third :])
        ]
        found[field.name] = max(late - early for early, late in zip(*parts, strict=True))
    return found


def main() -> int:
    """Run the job, and judge; the exit status."""
    parser = argparse.ArgumentParser(description=str(__doc__).splitlines()[0])
    parser.add_argument("--minutes", type=float, default=60)
    parser.add_argument("--job", type=pathlib.Path, help="a folder: what each rank runs")
    arguments = parser.parse_args()
    if arguments.job:
        job(arguments.job, arguments.minutes)
        return 0
    os.environ |= {"JAX_ENABLE_X64": "1", "JAX_PLATFORMS": "cpu"}
    rounds: list[list[Held]] = []
    start = time.monotonic()
    with tempfile.TemporaryDirectory() as folder, nodes.nodes(NODES, "") as cluster:
        program = ["-m", "tools.endurance", "--job", folder, "--minutes", str(arguments.minutes)]
        with subprocess.Popen(
            nodes.command(RANKS, *cluster, *program),
            env=nodes.environment(),
            cwd=launcher.ROOT,
            stdout=subprocess.PIPE,
            text=True,
        ) as process:
            assert process.stdout is not None
            for line in process.stdout:
                if line.startswith('{"round"'):
                    rounds.append([Held(**one) for one in json.loads(line)["ranks"]])
                if len(rounds) % 20 == 1 or not line.startswith('{"round"'):
                    print(line, end="", flush=True)
    if process.returncode != 0 or len(rounds) < 9:
        print(f"status {process.returncode} after {len(rounds)} rounds")
        return 1
    grown = growth(rounds)
    print(f"{len(rounds)} rounds; the last third has more than the second by {grown}")
    kept = {
        "minutes": round((time.monotonic() - start) / 60, 1),
        "rounds": len(rounds),
        "after_first_third": dataclasses.asdict(rounds[len(rounds) // 3][0]),
        "at_the_end": dataclasses.asdict(rounds[-1][0]),
        "grown": grown,
    }
    path = RESULTS / f"endurance-{launcher.family()}.json"
    path.write_text(json.dumps(kept, indent=1) + "\n")
    return int(any(value > MAY_GROW.get(name, 0) for name, value in grown.items()))


if __name__ == "__main__":
    sys.exit(main())

"""The simulation that `tools.faults` disturbs: a checkpoint after each step, two outputs.

python -m tools.faults_program FOLDER --grid 2x2
"""

import argparse
import pathlib
import time

import jax
import jax_cosmo
import numpy as np

import pfftjax
from pfftjax import pm
from tests import compiled_once

SIZE = 16
OUTPUTS = (0.6, 1.0)


def power(k: jax.Array) -> jax.Array:
    """A spectrum that compiles in no time."""
    return 2e4 * (k / 0.02) / (1 + (k / 0.02) ** 2) ** 1.25


def main() -> None:
    """Run what the arguments say, from the last checkpoint if there is one."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=pathlib.Path)
    parser.add_argument("--grid", required=True)
    parser.add_argument("--steps", type=int, required=True)
    parser.add_argument("--pause", type=float, default=0.0, help="seconds after each step")
    parser.add_argument("--checkpoints", type=pathlib.Path, help="a folder, by default the same")
    parser.add_argument("--outputs", type=pathlib.Path, help="a folder, by default the same")
    arguments = parser.parse_args()

    compiled_once.install()
    grid = pfftjax.ProcessGrid(tuple(int(n) for n in arguments.grid.split("x")))
    plan = pfftjax.PencilFFT((SIZE,) * 3, grid, real=True)
    simulation = pm.Simulation(
        plan,
        400.0,
        jax_cosmo.Planck15(),
        np.linspace(0.1, 1, arguments.steps + 1),
        power=power,
        finer=1,
    )
    noise = jax.jit(lambda: pm.nested_noise(jax.random.key(0), plan, "float64"))()
    checkpoints = arguments.checkpoints or arguments.folder
    checkpoint = pfftjax.io.Checkpoint(checkpoints / "run.h5", minutes=0)

    def progress(done: int, steps: int) -> None:
        if grid.comm.rank == 0:
            print(f"step {done} of {steps}", flush=True)
        time.sleep(arguments.pause)

    for particles in simulation.snapshots(
        noise, OUTPUTS, progress=progress, checkpoint=checkpoint
    ):
        a = float(particles.scale_factor)
        path = (arguments.outputs or arguments.folder) / f"a{a:.2f}.h5"
        pfftjax.io.save_particles(path, particles, simulation.mesh.input, mode="w")
    if grid.comm.rank == 0:
        print("the run is complete", flush=True)


if __name__ == "__main__":
    main()

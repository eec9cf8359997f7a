"""``pfftjax demo``: a small universe on the ranks that there are, beside linear theory."""

import importlib.util
import time

import jax
import jax.numpy as jnp
import numpy as np

from pfftjax import pm
from pfftjax.fft import PencilFFT
from pfftjax.pencils import ProcessGrid

_BOX = 500.0  # Mpc/h
_STEPS = 8
_SHELLS = 4


def demo(mesh: int = 64) -> int:
    """Grow `mesh`^3 particles from their initial conditions to today; the status to end with.

    A box of 500 Mpc/h by Planck 2015, from scale factor 0.1 on in eight steps. The power of the
    largest scales is compared with that of the initial conditions, grown by linear theory.
    Collective over MPI_COMM_WORLD.

    Returns:
        1 where jax-cosmo is not installed, or the growth is off by more than a tenth; else 0. It
        is the same on all ranks.

    """
    grid = ProcessGrid()
    first = grid.comm.rank == 0
    if not grid.comm.allreduce(importlib.util.find_spec("jax_cosmo") is not None, min):
        if first:
            print("The universe wants jax-cosmo: pip install 'pfftjax[pm]'", flush=True)
        return 1
    import jax_cosmo

    plan = PencilFFT((mesh, mesh, mesh), grid, real=True)
    times = np.linspace(0.1, 1.0, _STEPS + 1)
    run = pm.Simulation(plan, _BOX, jax_cosmo.Planck15(), times)
    if first:
        print(
            f"{mesh}^3 particles in (500 Mpc/h)^3, {_STEPS} steps, on {grid.size} ranks as "
            f"{grid.dims[0]} x {grid.dims[1]}",
            flush=True,
        )

    @jax.jit
    def universe() -> tuple[pm.PowerSpectrum, pm.PowerSpectrum]:
        noise = pm.nested_noise(jax.random.key(0), plan, "float32")
        particles = run.run(noise)
        return pm.power_spectrum(run.linear(noise), plan, _BOX), run.power_spectrum(particles)

    begin = time.perf_counter()
    linear, today = jax.block_until_ready(universe())
    seconds = time.perf_counter() - begin
    modes = linear.modes[:_SHELLS]
    ratio = jnp.sum(modes * today.power[:_SHELLS] / linear.power[:_SHELLS]) / jnp.sum(modes)
    if first:
        print(f"{seconds:.1f} s with compiling\n\nk [h/Mpc]   P [(Mpc/h)^3]   over linear theory")
        for i in range(0, len(today.k), max(len(today.k) // 10, 1)):
            k, power = float(today.k[i]), float(today.power[i])
            print(f"{k:9.4f}   {power:13.1f}   {power / float(linear.power[i]):18.3f}")
        print(
            f"\nThe lowest {_SHELLS} shells have {float(ratio):.3f} of the power of linear theory."
        )
    return int(not abs(float(ratio) - 1) < 0.1)

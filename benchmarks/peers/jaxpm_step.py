"""A step of JaxPM, and the gradient through some, in one process on all cores and in float32.

    python -m benchmarks.peers.jaxpm_step N

N^3 particles on N^3 cells of 4 Mpc/h, where LPT has them at a = 0.5 in a Planck cosmology. Needs
no MPI. A step alone takes longer than one of the 5 in the one call of "forward". The gradient is
that of the mean square displacement since then, with respect to the positions and momenta there:
recomputing each step on the way back, which takes the least memory, and ("stored") keeping all
instead, which is the fastest. A peak of memory is that of the whole process while it makes steps,
or a gradient; no timed call runs while it is sampled.
"""

# The peer is in an environment of its own (make peers).
# pyright: reportMissingImports=false

import json
import statistics
import sys
import time

import jax

jax.config.update("jax_enable_x64", False)

import jax.numpy as jnp  # noqa: E402
import jax_cosmo as jc  # noqa: E402
from jaxpm.distributed import uniform_particles  # noqa: E402
from jaxpm.kernels import interpolate_power_spectrum  # noqa: E402
from jaxpm.pm import linear_field, lpt, pm_forces  # noqa: E402

from benchmarks.memory import peak_pss  # noqa: E402

CELL = 4.0  # Mpc/h
A = 0.5
DA = 0.02
STEPS = 5  # of the simulation with a gradient


def initial_state(n):
    """Positions in cells and momenta, and the displacement per direction in Mpc/h."""
    k = jnp.logspace(-4, 1, 256)
    # A cosmology keeps the table of growth of its first user: a fresh one for each.
    power = jc.power.linear_matter_power(jc.Planck15(), k)

    @jax.jit
    def make():
        field = linear_field(
            (n,) * 3,
            (n * CELL,) * 3,
            lambda kmesh: interpolate_power_spectrum(kmesh, k, power),
            seed=jax.random.key(0),
        )
        grid = uniform_particles((n,) * 3).astype(jnp.float32)
        dx, momenta, _ = lpt(jc.Planck15(), field, grid, a=A)
        return grid + dx, momenta, CELL * jnp.sqrt(jnp.mean(dx**2))

    positions, momenta, sigma = make()
    return (positions, momenta), float(sigma)


def step(state, a):
    """The equations of jaxpm.pm.make_ode_fn as a kick and a drift."""
    positions, momenta = state
    cosmo = jc.Planck15()
    expansion = jnp.sqrt(jc.background.Esqr(cosmo, a))
    forces = 1.5 * cosmo.Omega_m * pm_forces(positions, positions.shape[:3])
    momenta = momenta + DA / (a**2 * expansion) * forces
    positions = positions + DA / (a**3 * expansion) * momenta
    return positions, momenta


def loss(state):
    def checkpointed(state, a):
        return jax.checkpoint(step)(state, a), None

    ends, _ = jax.lax.scan(checkpointed, state, A + DA * jnp.arange(STEPS))
    return jnp.mean((ends[0] - state[0]) ** 2)


def stored_loss(state):
    ends = state
    for i in range(STEPS):
        ends = step(ends, A + i * DA)
    return jnp.mean((ends[0] - state[0]) ** 2)


def timed(f, repetitions):
    """Milliseconds of each repetition; two before them warm up, the first of them compiles."""
    times = []
    for repetition in range(-2, repetitions):
        start = time.perf_counter()
        jax.block_until_ready(f())
        if repetition >= 0:
            times.append(1e3 * (time.perf_counter() - start))
    return times


def figures(name, f, repetitions):
    times = timed(f, repetitions)
    return {
        f"{name}_ms": min(times),
        f"{name}_ms_median": statistics.median(times),
        f"{name}_peak_pss_mb": peak_pss(f),
    }


def main(n):
    state, sigma = initial_state(n)
    repetitions = 15 if n <= 128 else 5
    jitted = jax.jit(step, donate_argnums=0)
    moving = jax.tree.map(jnp.copy, state)

    def advance():
        nonlocal moving
        moving = jitted(moving, A)
        return moving

    found = figures("step", advance, repetitions)
    found["peak_pss_mb"] = found.pop("step_peak_pss_mb")
    moving = None
    found["sigma_mpc_h"] = sigma
    if n <= 128:  # 256^3 would take more than 24 GB
        found["gradient_steps"] = STEPS
        for name, f in (
            ("forward", loss),
            ("gradient", jax.value_and_grad(loss)),
            ("stored_gradient", jax.value_and_grad(stored_loss)),
        ):
            f = jax.jit(f)
            found |= figures(name, lambda f=f: f(state), repetitions // 3)

    line = {"peer": "JaxPM", "n": n, "dtype": "float32", "ranks": 1}
    print(json.dumps({**line, **{key: round(value, 2) for key, value in found.items()}}))


if __name__ == "__main__":
    main(int(sys.argv[1]))

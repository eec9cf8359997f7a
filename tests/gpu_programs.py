"""Programs that call all that has a form of its own on GPUs: exported and compiled for CUDA.

Each function gives a program and its operands on this rank.
"""

import dataclasses

import jax
import jax.numpy as jnp
from mpi4py import MPI

import pfftjax
from pfftjax import PencilFFT, ProcessGrid, pm
from pfftjax import collectives as pc
from tests.distributed import grids
from tests.helpers import CASES, RANK, SIZE, random
from tests.pm.universe import at_home, cosmology


def collectives():
    """Each, with its adjoint."""
    operands = [jnp.asarray(random((SIZE, *case.shape))[RANK]) for case in CASES]

    def everything(xs):
        results = []
        for case, x in zip(CASES, xs, strict=True):
            y, pull = jax.vjp(case.apply, x)
            results.append((y, pull(y)[0]))
        pc.barrier()
        return results, pc.allreduce(jnp.int32(RANK), MPI.MAX)

    return everything, operands


def transforms(real):
    """Transforms, halos, divergences and gradients in both senses, on each grid, with a batch in
    front, and their adjoints.
    """
    plans = [PencilFFT((6, 5, 4), grid, real=real) for grid in grids()]
    plans += [dataclasses.replace(plan, layout="natural") for plan in plans]
    operands = []
    for plan in plans:
        x = random((2, *plan.shape), "float64" if real else "complex128")
        operands.append(jnp.asarray(plan.input.local_block(x)))

    def everything(xs):
        results = []
        for plan, x in zip(plans, xs, strict=True):
            y, pull = jax.vjp(plan.forward, x)
            z, push = jax.vjp(plan.inverse, y)
            padded = pfftjax.halo_exchange(z[0], plan.input, 2)
            results.append((y, z, pull(y), push(z), pfftjax.halo_reduce(padded, plan.input, 2)))
            if plan.layout == "transposed":
                slopes, back = jax.vjp(
                    lambda y, plan=plan: pfftjax.spectral.gradient(
                        y, plan, 2.0, from_spectrum=True
                    ),
                    y[0],
                )
                total = pfftjax.spectral.divergence(slopes, plan, 2.0, to_spectrum=True)
                results.append((slopes, back(slopes), total))
        return results

    return everything, (operands,)


def initial_conditions():
    """From white noise to particles with their owners, and a power spectrum."""
    plan = PencilFFT((6, 8, 5), ProcessGrid((None, 1)), real=True)

    def start(key):
        noise = pm.white_noise(key, plan.input)
        delta = pm.linear_field(noise, plan, 50.0, lambda k: 1 / (1 + k**2))
        particles = pm.lpt(delta, plan, 50.0, cosmology(), 0.1)
        return pm.to_owners(particles, plan.input), pm.power_spectrum(delta, plan, 50.0)

    return start, (jax.random.key(0),)


def simulation(shape=(6, 8, 5), grid=None, each=40, gradient="finite-difference"):
    """A step, and the gradient of a loss of what it gives, with `each` particles a rank."""
    plan = PencilFFT(shape, grid or ProcessGrid((None, 1)), real=True)
    cells, fractions, used = at_home(plan.input, each, smooth=True)
    rows = each * SIZE + 3
    particles = pm.Particles(
        cell=jnp.zeros((rows, 3), jnp.int32).at[:each].set(cells[RANK]),
        offset=jnp.zeros((rows, 3)).at[:each].set(fractions[RANK]),
        momentum=0.1 * jnp.asarray(random((SIZE, rows, 3))[RANK]),
        used=jnp.int32(used[RANK]),
        total=int(used.sum()),
        mesh_shape=plan.shape,
    )

    def step(particles):
        return pm.step(particles, plan, 50.0, cosmology(), 0.3, 0.2, gradient=gradient)

    def loss(offset, particles):
        moved = step(dataclasses.replace(particles, offset=offset))
        density = pm.density_contrast(moved, plan, kernel="tsc")
        return pfftjax.vdot(density, density, plan.grid)

    def both(particles):
        return step(particles), jax.value_and_grad(loss)(particles.offset, particles)

    return both, (particles,)

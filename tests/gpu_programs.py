"""Programs that call all that has a form of its own on GPUs: exported and compiled for CUDA.

Each function gives a program and its operands on this rank.
"""

import dataclasses

import jax
import jax.numpy as jnp
from mpi4py import MPI

import pfftjax
from pfftjax import PencilFFT, ProcessGrid, observables, pm
from pfftjax import collectives as pc
from pfftjax.nufft import PencilNUFFT
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


def statistics(grid=None):
    """Spectra and a bispectrum of particles in redshift space, and the gradient of each."""
    plan = PencilFFT((8, 6, 9), grid or ProcessGrid((None, 1)), real=True)
    _, (particles,) = simulation(plan.shape, plan.grid)

    def all_of_them(offset, particles):
        moved = dataclasses.replace(particles, offset=offset, scale_factor=0.5)
        seen = observables.redshift_space(moved, plan, 50.0, cosmology())
        delta = pm.density_contrast(seen, plan, kernel="tsc")
        real = pm.density_contrast(moved, plan, kernel="tsc")
        return (
            observables.power_multipoles(delta, plan, 50.0).power,
            observables.power_wedges(delta, plan, 50.0).power,
            observables.cross_spectrum(delta, real, plan, 50.0).power,
            observables.bispectrum(delta, plan, 50.0).bispectrum,
        )

    def loss(offset, particles):
        return sum(jnp.nansum(jnp.square(x)) for x in all_of_them(offset, particles)) * 1e-6

    def both(particles):
        values = all_of_them(particles.offset, particles)
        slopes = pfftjax.grad(loss, own=0)(particles.offset, particles)
        return values, slopes

    return both, (particles,)


def light_cone(grid=None):
    """Shells and the convergence of a run, and the gradient of a loss of them."""
    plan = PencilFFT((6, 9, 8), grid or ProcessGrid((None, 1)), real=True)
    box = (180.0, 270.0, 240.0)
    ends = jnp.asarray([0.78, 0.9, 1.0])
    universe = pm.Simulation(plan, box, cosmology(), ends, finer=1, capacity=6 * 9 * 8)
    cone = observables.LightCone((0.0, 150.0, 260.0, 420.0), 4, observer=(20.0, 250.0, -110.0))

    def shells(noise):
        return universe.run(noise, light_cone=cone)[1]

    def loss(noise):
        seen = observables.convergence(shells(noise), cosmology(), 0.3)
        return jnp.sum(jnp.square(seen))

    def both(noise):
        return shells(noise).counts, pfftjax.grad(loss, own=0)(noise)

    return both, (jnp.asarray(plan.input.local_block(random(plan.shape))),)


def nufft(grid=None):
    """Both types of non-uniform transforms, and the slopes of one in the points."""
    plan = PencilNUFFT((6, 9, 8), grid or ProcessGrid(), tolerance=1e-3)
    points = jnp.asarray(random((50, 3)))

    def both(points):
        modes = plan.type1(points, jnp.ones(50))
        return modes, *jax.jvp(lambda x: plan.type2(x, modes), (points,), (points,))

    return both, (points,)

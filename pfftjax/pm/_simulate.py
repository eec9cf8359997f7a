"""The simulation: force, kick, drift, exchange."""

import dataclasses
import math
from typing import Any

import jax
import jax.numpy as jnp

from pfftjax.collectives._primitive import where
from pfftjax.fft import PencilFFT
from pfftjax.spectral._operands import sides

from ._gravity import KEPT, Gradient, gravity_with_ghosts
from ._integrators import Integrator, Steps, fastpm
from ._painting import Kernel, assignment, paint, readout_padded
from ._particles import Particles, check_fits, default_capacity, to_owners
from ._spectral import real_plan


def density_contrast(
    particles: Particles, plan: PencilFFT, *, kernel: Kernel = "cic"
) -> jax.Array:
    """The density contrast of particles on a mesh: this rank's block, of mean zero.

    Args:
        particles: on the ranks that own them (`to_owners`).
        plan: ``PencilFFT(shape, grid, real=True)`` of the mesh.
        kernel: "cic" or "tsc".

    """
    check_fits(particles, plan.input, "density_contrast")
    mean = particles.total / math.prod(plan.shape)
    return paint(particles.positions, plan.input, kernel=kernel) / mean - 1


def force(
    particles: Particles,
    plan: PencilFFT,
    box_size: Any,
    cosmology: Any,
    *,
    kernel: Kernel = "cic",
    gradient: Gradient = "finite-difference",
) -> jax.Array:
    """The force on particles, -grad phi with laplacian phi = 3/2 Omega_m delta: (rows, 3).

    Args:
        particles: on the ranks that own them (`to_owners`).
        plan: ``PencilFFT(shape, grid, real=True)`` of the mesh.
        box_size: side of the box [Mpc/h]: a number, or one for each axis.
        cosmology: a `jax_cosmo.Cosmology`.
        kernel: of both paint and readout, which keeps momentum.
        gradient: as in `gravity`.

    """
    form = assignment(kernel, plan.input, "force")
    delta = density_contrast(particles, plan, kernel=kernel)
    omega_m = jnp.asarray(cosmology.Omega_m, delta.dtype)
    field = gravity_with_ghosts(
        1.5 * omega_m * delta,
        plan,
        box_size,
        gradient=gradient,
        before=form.before,
        after=form.after,
    )
    return readout_padded(field, particles.positions, plan.input, form.points)


def step(
    particles: Particles,
    plan: PencilFFT,
    box_size: Any,
    cosmology: Any,
    kick: Any,
    drift: Any,
    *,
    kernel: Kernel = "cic",
    gradient: Gradient = "finite-difference",
) -> Particles:
    """One kick by the force, one drift, and the exchange of particles.

    Args:
        particles: on the ranks that own them (`to_owners`); their rows are the capacity of each
            rank.
        plan: ``PencilFFT(shape, grid, real=True)`` of the mesh.
        box_size: side of the box [Mpc/h]: a number, or one for each axis.
        cosmology: a `jax_cosmo.Cosmology`.
        kick: momentum per force, as in `Steps`.
        drift: displacement [Mpc/h] per momentum.
        kernel: of both paint and readout.
        gradient: as in `gravity`.

    Returns:
        `Particles` of as many rows, on the ranks that own them.

    Raises:
        jax.errors.JaxRuntimeError: when it runs, on every rank: some rank has no room for all of
            its particles.

    Reverse mode keeps the particles, and of the mesh the potential; the rest is computed again.

    """
    check_fits(particles, plan.input, "step")
    dtype = particles.offset.dtype
    per_cell = [
        n / side for n, side in zip(plan.shape, sides(box_size, plan, "step"), strict=True)
    ]
    to_cells = jnp.stack([jnp.asarray(x, dtype) for x in per_cell])

    def kick_and_drift(particles: Particles, kick: Any, drift: Any) -> Particles:
        pull = force(particles, plan, box_size, cosmology, kernel=kernel, gradient=gradient)
        momentum = particles.momentum + kick * pull
        offset = particles.offset + drift * to_cells * momentum
        return dataclasses.replace(particles, offset=offset, momentum=momentum)

    kept = jax.checkpoint_policies.save_only_these_names(KEPT)
    moved = jax.checkpoint(kick_and_drift, policy=kept)(
        particles, jnp.asarray(kick, dtype), jnp.asarray(drift, dtype)
    )
    # Linear: of the exchange only the order of the rows is kept.
    return to_owners(moved, plan.input, particles.rows)


def simulate(
    particles: Particles,
    plan: PencilFFT,
    box_size: Any,
    cosmology: Any,
    scale_factors: Any,
    *,
    integrator: Integrator = fastpm,
    kernel: Kernel = "cic",
    gradient: Gradient = "finite-difference",
    capacity: int | None = None,
) -> Particles:
    """Follow particles under their own gravity from one scale factor to another.

    Args:
        particles: at ``scale_factors[0]``, of `lpt`.
        plan: ``PencilFFT(shape, grid, real=True)`` of the mesh, which may be finer than the
            particle grid.
        box_size: side of the box [Mpc/h]: a number, or one for each axis.
        cosmology: a `jax_cosmo.Cosmology`, the same on every rank. To differentiate in it, pass
            ``jax.tree.map(pfftjax.collectives.replicate, cosmology)``: without, each rank gets
            its own part of the derivative.
        scale_factors: (steps + 1,), the ends of the steps, as ``jnp.linspace(0.1, 1, 11)``; they
            may also run backward.
        integrator: `fastpm`, `leapfrog`, or any function of (cosmology, scale_factors) that
            returns `Steps`.
        kernel: "cic" or "tsc".
        gradient: of the potential, as in `gravity`.
        capacity: particles that each rank has room for, by default a quarter more than the mean.

    Returns:
        `Particles` at ``scale_factors[-1]``, positions and momenta at the same time, on the ranks
        that own them.

    Raises:
        jax.errors.JaxRuntimeError: when it runs, on every rank: some rank has no room for all of
            its particles; the text says which capacity would do.

    Reverse mode keeps the particles and the potential of each step (40 bytes a particle and 4 a
    mesh cell in float32), and computes the rest again.

    """
    real_plan(plan, "simulate")
    check_fits(particles, plan.input, "simulate")
    if capacity is None:
        capacity = default_capacity(particles.total, plan.grid.size)
    steps = integrator(cosmology, scale_factors)
    if not isinstance(steps, Steps) or steps.drift.shape != steps.kick.shape:
        raise TypeError(
            f"{where('simulate', plan.grid._comm)}: the integrator must return pm.Steps of two "
            f"vectors of one length, got {steps!r}"
        )

    def body(state: Particles, factors: Any) -> tuple[Particles, None]:
        return step(
            state, plan, box_size, cosmology, *factors, kernel=kernel, gradient=gradient
        ), None

    start = to_owners(particles, plan.input, capacity)
    return jax.lax.scan(body, start, steps)[0]

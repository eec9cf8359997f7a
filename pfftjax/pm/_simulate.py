"""The simulation: force, kick, drift, exchange."""

import dataclasses
import math

import jax
import jax.numpy as jnp
import numpy as np

from pfftjax._runtime.arrays import BoxSize, Number, RealBlock, Scalar, SeriesLike, Vectors
from pfftjax._runtime.primitive import where
from pfftjax.fft import PencilFFT
from pfftjax.spectral.internal import sides

from ._exchange import Route
from ._expected import as_known
from ._gravity import KEPT, Gradient, gravity_with_ghosts
from ._growth import Cosmology, check_cosmology
from ._integrators import Integrator, Steps, fastpm
from ._painting import Kernel, assignment, paint, readout_padded
from ._particles import Particles, check_fits, default_capacity, to_owners
from ._positions import Positions
from ._spectral import real_plan


def density_contrast(
    particles: Particles,
    plan: PencilFFT,
    *,
    kernel: Kernel = "cic",
    capacity: int | None = None,
) -> RealBlock:
    """The density contrast of particles on a mesh: this rank's block, of mean zero.

    Args:
        particles: on any ranks: on more than one they are first sent to their owners, which costs
            what `to_owners` does, without the momenta.
        plan: ``PencilFFT(shape, grid, real=True)`` of the mesh.
        kernel: "cic" or "tsc".
        capacity: particles that each rank has room for, as in `to_owners`; by default also as many
            as there are rows.

    Raises:
        ValueError, TypeError: no particles of this mesh, or an unknown kernel.
        jax.errors.JaxRuntimeError: when it runs, on every rank: some rank has no room for all of
            its particles; the text says which capacity would do.

    """
    real_plan(plan, "density_contrast")
    check_fits(particles, plan.input, "density_contrast")
    assignment(kernel, plan.input, "density_contrast")
    if capacity is None:
        capacity = max(particles.rows, default_capacity(particles.total, plan.grid.size))
    positions = particles.positions
    if plan.grid.size > 1:
        route = Route.to_owners(positions, plan.input, capacity)
        sent = route.send(positions.cell), route.send(positions.offset)
        positions = Positions(*sent, route.count)
    return _density_contrast(positions, particles.total, plan, kernel)


def _density_contrast(
    positions: Positions, total: int, plan: PencilFFT, kernel: Kernel
) -> RealBlock:
    """`density_contrast` of particles that are on the ranks that own them."""
    mean = total / math.prod(plan.shape)
    return paint(positions, plan.input, kernel=kernel) / mean - 1


def _checked(
    particles: Particles,
    plan: PencilFFT,
    box_size: BoxSize,
    cosmology: Cosmology,
    operation: str,
) -> tuple[Particles, tuple[Number, ...]]:
    """The particles and the sides of the box, if all of it fits together."""
    real_plan(plan, operation)
    check_fits(particles, plan.input, operation)
    check_cosmology(cosmology, where(operation, plan.grid.communicator))
    lengths = sides(box_size, plan, operation)
    return particles.in_box(lengths, operation, plan.grid.communicator), lengths


def force(
    particles: Particles,
    plan: PencilFFT,
    box_size: BoxSize,
    cosmology: Cosmology,
    *,
    kernel: Kernel = "cic",
    gradient: Gradient = "finite-difference",
) -> Vectors:
    """The force on particles, -grad phi with laplacian phi = 3/2 Omega_m delta: (rows, 3).

    Args:
        particles: on the ranks that own them (`to_owners`).
        plan: ``PencilFFT(shape, grid, real=True)`` of the mesh.
        box_size: side of the box [Mpc/h]: a number, or one for each axis; that of the particles.
        cosmology: a `jax_cosmo.Cosmology`.
        kernel: of both paint and readout, which keeps momentum.
        gradient: as in `gravity`.

    Raises:
        ValueError, TypeError: what does not fit, or another box than that of the particles.

    """
    particles, _ = _checked(particles, plan, box_size, cosmology, "force")
    form = assignment(kernel, plan.input, "force")
    delta = _density_contrast(particles.positions, particles.total, plan, kernel)
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
    box_size: BoxSize,
    cosmology: Cosmology,
    kick: Number,
    drift: Number,
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
        `Particles` of as many rows, on the ranks that own them. A step does not know what time it
        is: their scale factor is 0 for "not known", unless it was None.

    Raises:
        ValueError, TypeError: what does not fit, or another box than that of the particles.
        jax.errors.JaxRuntimeError: when it runs, on every rank: some rank has no room for all of
            its particles.

    Reverse mode keeps the particles, and of the mesh the potential; the rest is computed again.

    """
    particles, lengths = _checked(particles, plan, box_size, cosmology, "step")
    for name, factor in (("kick", kick), ("drift", drift)):
        if not isinstance(factor, float | int | np.number | np.ndarray | jax.Array) or np.ndim(
            factor
        ):
            raise TypeError(
                f"{where('step', plan.grid.communicator)}: {name} must be one number, got "
                f"{factor!r}"
            )
    dtype = particles.offset.dtype
    per_cell = [n / side for n, side in zip(plan.shape, lengths, strict=True)]
    to_cells = jnp.stack([jnp.asarray(x, dtype) for x in per_cell])

    def kick_and_drift(particles: Particles, kick: Scalar, drift: Scalar) -> Particles:
        pull = force(particles, plan, box_size, cosmology, kernel=kernel, gradient=gradient)
        momentum = particles.momentum + kick * pull
        offset = particles.offset + drift * to_cells * momentum
        return dataclasses.replace(particles, offset=offset, momentum=momentum)

    kept = jax.checkpoint_policies.save_only_these_names(KEPT)
    moved = jax.checkpoint(kick_and_drift, policy=kept)(
        dataclasses.replace(particles, scale_factor=None, box_size=None),
        jnp.asarray(kick, dtype),
        jnp.asarray(drift, dtype),
    )
    # Linear: of the exchange only the order of the rows is kept.
    after = to_owners(moved, plan.input, particles.rows)
    # A step can be the body of a scan, as its result has the structure of its argument.
    unknown = jax.tree.map(jnp.zeros_like, particles.scale_factor)
    return dataclasses.replace(after, scale_factor=unknown, box_size=particles.box_size)


def simulate(
    particles: Particles,
    plan: PencilFFT,
    box_size: BoxSize,
    cosmology: Cosmology,
    scale_factors: SeriesLike | object,
    *,
    integrator: Integrator = fastpm,
    kernel: Kernel = "cic",
    gradient: Gradient = "finite-difference",
    capacity: int | None = None,
) -> Particles:
    """Follow particles under their own gravity from one scale factor to another.

    Args:
        particles: at ``scale_factors[0]``, of `lpt`; on any ranks.
        plan: ``PencilFFT(shape, grid, real=True)`` of the mesh, which may be finer than the
            particle grid.
        box_size: side of the box [Mpc/h]: a number, or one for each axis.
        cosmology: a `jax_cosmo.Cosmology`, the same on every rank. To differentiate in it, name
            it: ``pfftjax.grad(f, shared="cosmology")``; by `jax.grad` each rank gets its own
            part of the derivative.
        scale_factors: (steps + 1,), the ends of the steps, as ``jnp.linspace(0.1, 1, 11)``; they
            may also run backward.
        integrator: `fastpm`, `leapfrog`, or any function of (cosmology, scale_factors) that
            returns `Steps`.
        kernel: "cic" or "tsc".
        gradient: of the potential, as in `gravity`.
        capacity: particles that each rank has room for, by default a quarter more than the mean.

    Returns:
        `Particles` at ``scale_factors[-1]``, positions and momenta at the same time, on the ranks
        that own them. Those that do not know their scale factor or box still do not.

    Raises:
        ValueError, TypeError: what does not fit; particles of another box, or at another scale
            factor than the first one. Where these are not known before the program runs, a
            jax.errors.JaxRuntimeError then.
        jax.errors.JaxRuntimeError: when it runs, on every rank: some rank has no room for all of
            its particles; the text says which capacity would do.

    Reverse mode keeps the particles and the potential of each step (40 bytes a particle and 4 a
    mesh cell in float32), and computes the rest again.

    """
    particles, _ = _checked(particles, plan, box_size, cosmology, "simulate")
    comm = plan.grid.communicator
    if capacity is None:
        capacity = default_capacity(particles.total, plan.grid.size)
    if not callable(integrator):
        raise TypeError(
            f"{where('simulate', comm)}: the integrator must be a function as pm.fastpm, got "
            f"{integrator!r}"
        )
    steps = integrator(cosmology, scale_factors)
    if not isinstance(steps, Steps) or steps.drift.shape != steps.kick.shape:
        raise TypeError(
            f"{where('simulate', comm)}: the integrator must return pm.Steps of two vectors of "
            f"one length, got {steps!r}"
        )
    after = jax.tree.map(jnp.zeros_like, particles.scale_factor)  # not known
    # An integrator of the user's may take something else.
    if isinstance(scale_factors, list | tuple | np.ndarray | jax.Array):
        ends = as_known(scale_factors)
        if ends.ndim == 1 and ends.size > 0:
            particles = particles.at_scale_factor(ends[0], "scale_factors[0]", "simulate", comm)
            after = None if particles.scale_factor is None else ends[-1]

    def body(state: Particles, factors: Steps) -> tuple[Particles, None]:
        return step(
            state, plan, box_size, cosmology, *factors, kernel=kernel, gradient=gradient
        ), None

    start = to_owners(particles, plan.input, capacity)
    start = dataclasses.replace(start, scale_factor=None, box_size=None)
    end = jax.lax.scan(body, start, steps)[0]
    return dataclasses.replace(end, scale_factor=after, box_size=particles.box_size)

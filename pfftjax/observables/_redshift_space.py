"""Particles where their redshifts place them."""

import dataclasses

import jax.numpy as jnp

from pfftjax._runtime.arguments import where
from pfftjax._runtime.arrays import BoxSize, Number
from pfftjax.fft import PencilFFT
from pfftjax.pm import Particles, hubble, to_owners
from pfftjax.pm.internal import (
    Cosmology,
    are_positive,
    check_cosmology,
    check_fits,
    expect,
    real_plan,
)
from pfftjax.spectral.internal import sides

from ._line_of_sight import LineOfSight, direction

# The earliest scale factor that particles are taken to have; growth is followed from there.
_EARLIEST = 1e-7


def redshift_space(
    particles: Particles,
    plan: PencilFFT,
    box_size: BoxSize,
    cosmology: Cosmology,
    line_of_sight: LineOfSight = 2,
    *,
    scale_factor: Number | None = None,
    capacity: int | None = None,
) -> Particles:
    """Particles in redshift space, at their owners: moved along the line of sight by their
    velocities, and periodic as before.

        s = x + (v . n) n / (a H) = x + (p . n) n / (a^2 E)

    with the peculiar velocity v = a dx/dt, the momentum p = a^2 dx/dt and E = H / H0 (Kaiser
    1987). The observer is far away: n is one direction for all.

    Args:
        particles: on any ranks, at one scale factor.
        plan: ``PencilFFT(shape, grid, real=True)`` of the mesh whose cells are their unit.
        box_size: side of the box [Mpc/h]: a number, or one for each axis; that of the particles.
        cosmology: a `jax_cosmo.Cosmology`, for E; may be traced and differentiated.
        line_of_sight: n, the axis 0, 1 or 2 along which the observer looks, or a vector of three
            numbers along any other line, whose length has no effect. A vector may be traced and
            differentiated.
        scale_factor: when the particles are, by default what they know of that.
        capacity: particles that each rank has room for, as in `pfftjax.pm.to_owners`.

    Returns:
        `Particles` with the momenta that they had. They are not to be simulated further, nor to
        be moved again.

    Raises:
        ValueError: particles that do not know when they are (None; 0, as after `pm.step`, may show
            only when the program runs, as a jax.errors.JaxRuntimeError), that are at another time
            or in another box, or a line of sight that is none.
        TypeError: no particles, or no cosmology.
        jax.errors.JaxRuntimeError: when it runs, on every rank: as `pfftjax.pm.to_owners`.

    Derivatives are exact, in positions, momenta, the cosmology and the direction.

    Example:
        >>> import jax_cosmo
        >>> from pfftjax import ProcessGrid, pm
        >>> plan, planck = PencilFFT((8, 8, 8), ProcessGrid(), real=True), jax_cosmo.Planck15()
        >>> wave = jnp.cos(2 * jnp.pi / 8 * plan.input.indices(2))
        >>> wave = jnp.broadcast_to(wave, plan.input.local_shape)
        >>> start = pm.lpt(wave, plan, 100.0, planck, 0.1, order=1)
        >>> seen = redshift_space(start, plan, 100.0, planck, 2)
        >>> g = pm.growth(planck, 0.1)
        >>> stretched = start.offset[:, 2] * (1 + g.d1_rate / g.d1)
        >>> plan.grid.size > 1 or bool(jnp.allclose(seen.offset[:512, 2], stretched, atol=1e-5))
        True

    """
    name = "redshift_space"
    real_plan(plan, name)
    mesh, comm = plan.input, plan.grid.communicator
    check_fits(particles, mesh, name)
    check_cosmology(cosmology, where(name, comm))
    lengths = sides(box_size, plan, name)
    particles = particles.in_box(lengths, name, comm)
    a = particles.scale_factor if scale_factor is None else scale_factor
    if a is None or not are_positive(a):
        got = "" if scale_factor is None else f", got {scale_factor!r}"
        raise ValueError(
            f"{where(name, comm)}: the particles do not know when they are; give their "
            f"scale_factor, a positive number{got}"
        )
    if scale_factor is not None:
        particles = particles.at_scale_factor(a, "scale_factor", name, comm)
    dtype = particles.offset.dtype
    a = jnp.asarray(a, jnp.result_type(float))
    # Zero, which particles have after a step of their own, shows when the program runs.
    used = expect(
        particles.used,
        jnp.maximum(a, _EARLIEST / 2),
        jnp.maximum(a, _EARLIEST),
        operation=name,
        what="scale_factor",
        but="particles that know when they are have at least",
        remedy="after a step of one's own they do not; give their scale_factor",
        tolerance=0.25,
        comm=comm,
    )
    n = direction(line_of_sight, dtype, name, comm)
    known = jnp.maximum(a, _EARLIEST)
    along = (particles.momentum @ n) / (known**2 * hubble(cosmology, known)).astype(dtype)
    per_cell = [m / side for m, side in zip(mesh.global_shape, lengths, strict=True)]
    cells = n * jnp.stack([jnp.asarray(x, dtype) for x in per_cell])
    moved = dataclasses.replace(
        particles, offset=particles.offset + along[:, None] * cells, used=used
    )
    return to_owners(moved, mesh, capacity)

"""Particles of a lattice, as global arrays in its order.

Which rank holds a particle changes as it moves, and JAX has shards of equal sizes. What particles
have therefore stays where their points of the lattice are. The functions send them to the ranks
that own their cells, and what they found back.
"""

import math
from collections.abc import Sequence
from typing import Literal, NamedTuple, cast

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, PartitionSpec

from pfftjax._runtime.arrays import (
    BoxSize,
    LatticeVectors,
    Number,
    RealBlock,
    RealBlockLike,
    SeriesLike,
)
from pfftjax.fft import PencilFFT
from pfftjax.fft.internal import Shards, known, shards_of
from pfftjax.pencils import Pencil, ProcessGrid
from pfftjax.spectral.internal import sides

from ._assignment import Kernel
from ._capacity import room_for
from ._global import field_to, mesh_plan
from ._gravity import Gradient
from ._growth import Cosmology
from ._integrators import INTEGRATORS, Integrator, fastpm
from ._lpt import lpt as lpt_of_block
from ._particles import Particles, lattice_points, sent_to_owners
from ._simulate import Adjoint, checked_motion
from ._simulate import density_contrast as density_contrast_of_block
from ._simulate import force as force_of_block
from ._simulate import simulate as simulate_block


class Lattice(NamedTuple):
    """Particles that started from the points of a lattice: global arrays (n0, n1, n2, 3).

    The first two axes are sharded as those of a field of the shape (n0, n1, n2).

    Attributes:
        displacement: from the points of the lattice [Mpc/h].
        momentum: a^2 dx/dt, x in Mpc/h and H0 = 1.

    """

    displacement: LatticeVectors
    momentum: LatticeVectors


def _on_mesh(
    displacement: jax.Array,
    momentum: jax.Array,
    lattice: Pencil,
    plan: PencilFFT,
    lengths: tuple[Number, ...],
) -> Particles:
    """The particles of a block of a lattice, in units of the cells of a mesh."""
    dtype = displacement.dtype
    cell, at_rest = lattice_points(lattice, plan.shape, dtype)
    per_cell = jnp.asarray([m / side for m, side in zip(plan.shape, lengths, strict=True)], dtype)
    n0, n1, n2 = plan.shape
    return Particles(
        cell,
        at_rest + displacement.reshape(-1, 3) * per_cell,
        momentum.reshape(-1, 3),
        jnp.int32(cell.shape[0]),
        math.prod(lattice.global_shape),
        (n0, n1, n2),
    )


def _from_mesh(particles: Particles, lattice: Pencil, lengths: tuple[Number, ...]) -> Lattice:
    """`_on_mesh` backward, for particles in the rows of the lattice."""
    dtype, sizes = particles.offset.dtype, particles.mesh_shape
    _, at_rest = lattice_points(lattice, sizes, dtype)
    cell_sides = jnp.asarray([side / m for m, side in zip(sizes, lengths, strict=True)], dtype)
    displacement = (particles.offset - at_rest) * cell_sides
    block = (*lattice.local_shape, 3)
    return Lattice(displacement.reshape(block), particles.momentum.reshape(block))


def _lattice(displacement: jax.Array, shards: Shards) -> Pencil:
    """The pencil of a field with one point for each particle."""
    shape = np.shape(displacement)
    if len(shape) != 4 or shape[3] != 3:
        raise ValueError(
            f"{shards.here}: displacements must be (n0, n1, n2, 3), one vector for each particle "
            f"of a lattice, got {shape}"
        )
    pencil = Pencil(shape[:3], shards.grid)
    shards.check_sizes(pencil)
    return pencil


def _lpt(
    delta: jax.Array,
    cosmology: Cosmology,
    plan: PencilFFT,
    box_size: BoxSize,
    scale_factor: Number,
    order: Literal[1, 2, 3],
    dealias: bool,
) -> Lattice:
    particles = lpt_of_block(
        delta, plan, box_size, cosmology, scale_factor, order=order, dealias=dealias
    )
    lengths = sides(box_size, plan, "lpt")
    return _from_mesh(particles, plan.input, lengths)


def lpt(
    delta: RealBlockLike,
    box_size: BoxSize,
    cosmology: Cosmology,
    scale_factor: Number,
    *,
    order: Literal[1, 2, 3] = 2,
    dealias: bool = False,
    grid: ProcessGrid | None = None,
    mesh: Mesh | None = None,
) -> Lattice:
    """Particles displaced from a lattice by Lagrangian perturbation theory.

    There is one for each point of `delta`, the linear density contrast at z = 0 of `linear_field`.
    `cosmology`, `scale_factor`, `order` and `dealias` are as for `pfftjax.pm.lpt`; the other
    arguments and the errors are as for `linear_field`.

    Returns:
        `Lattice`, sharded as `delta`.

    """
    shards, plan, spec = field_to(delta, grid, mesh, "lpt")
    targets = shards.spec(plan.input, trail=1)
    return shards.run(
        _lpt,
        (plan, box_size, scale_factor, order, dealias),
        (spec, PartitionSpec()),
        Lattice(targets, targets),  # pyright: ignore[reportArgumentType]
        delta,
        cosmology,
    )


def _density_contrast(
    displacement: jax.Array,
    lattice: Pencil,
    plan: PencilFFT,
    box_size: BoxSize,
    kernel: Kernel,
    interlaced: bool,
    capacity: int | None,
) -> RealBlock:
    lengths = sides(box_size, plan, "density_contrast")
    particles = _on_mesh(displacement, jnp.zeros_like(displacement), lattice, plan, lengths)
    return density_contrast_of_block(
        particles, plan, kernel=kernel, interlaced=interlaced, capacity=capacity
    )


def density_contrast(
    displacement: LatticeVectors | Lattice,
    box_size: BoxSize,
    *,
    mesh_shape: Sequence[int] | None = None,
    kernel: Kernel = "cic",
    interlaced: bool = False,
    capacity: int | None = None,
    grid: ProcessGrid | None = None,
    mesh: Mesh | None = None,
) -> RealBlock:
    """The density contrast of the particles of a lattice on a mesh: a global array of mean zero.

    Args:
        displacement: `Lattice`, or displacements of its particles [Mpc/h].
        box_size: side of the box [Mpc/h]: a number, or one for each axis; may be traced.
        mesh_shape: of the result; by default that of the lattice.
        kernel: as for `pfftjax.pm.density_contrast`.
        interlaced: as for `pfftjax.pm.density_contrast`.
        capacity: particles that each rank has room for, by default as there.
        grid: as for `pfftjax.sharded.fft3d`.
        mesh: as for `pfftjax.sharded.fft3d`.

    Raises:
        ValueError, TypeError: as `pfftjax.sharded.fft3d`, or an unknown kernel.
        jax.errors.JaxRuntimeError: when it runs, on every rank: some rank has no room for all of
            its particles; the text says which capacity would do.

    """
    x = displacement.displacement if isinstance(displacement, Lattice) else displacement
    shards = shards_of(x, grid, mesh, "density_contrast", split=(-4, -3))
    lattice = _lattice(x, shards)
    plan = mesh_plan(mesh_shape, lattice.global_shape, shards, is_result=True)
    how = (lattice, plan, box_size, kernel, interlaced, capacity)
    sources, targets = (shards.spec(lattice, trail=1),), shards.spec(plan.input)
    return shards.run(_density_contrast, how, sources, targets, x)


def _force(
    displacement: jax.Array,
    cosmology: Cosmology,
    lattice: Pencil,
    plan: PencilFFT,
    box_size: BoxSize,
    kernel: Kernel,
    gradient: Gradient,
    capacity: int | None,
) -> jax.Array:
    motion = checked_motion(plan, box_size, cosmology, kernel, gradient, "force")
    at_rest = jnp.zeros_like(displacement)
    particles = _on_mesh(displacement, at_rest, lattice, plan, motion.sides)
    room = room_for(capacity, particles.total, plan.input, "force", motion.sides)
    there, _, send_back = sent_to_owners(particles, plan.input, room)
    found = force_of_block(there, plan, box_size, cosmology, kernel=kernel, gradient=gradient)
    return send_back(found).reshape(displacement.shape)


def force(
    displacement: LatticeVectors | Lattice,
    box_size: BoxSize,
    cosmology: Cosmology,
    *,
    mesh_shape: Sequence[int] | None = None,
    kernel: Kernel = "cic",
    gradient: Gradient = "finite-difference",
    capacity: int | None = None,
    grid: ProcessGrid | None = None,
    mesh: Mesh | None = None,
) -> LatticeVectors:
    """The force on the particles of a lattice: (n0, n1, n2, 3), sharded as the displacements.

    Laplacian phi = 3/2 Omega_m delta on a mesh of `mesh_shape`, which needs no sizes that divide.
    `kernel`, `gradient` and `cosmology` are as for `pfftjax.pm.force`, the other arguments and the
    errors as for `density_contrast`.
    """
    x = displacement.displacement if isinstance(displacement, Lattice) else displacement
    shards = shards_of(x, grid, mesh, "force", split=(-4, -3))
    lattice = _lattice(x, shards)
    plan = mesh_plan(mesh_shape, lattice.global_shape, shards, is_result=False)
    spec, how = (
        shards.spec(lattice, trail=1),
        (lattice, plan, box_size, kernel, gradient, capacity),
    )
    return shards.run(_force, how, (spec, PartitionSpec()), spec, x, cosmology)


def _simulate(
    displacement: jax.Array,
    momentum: jax.Array,
    cosmology: Cosmology,
    lattice: Pencil,
    plan: PencilFFT,
    box_size: BoxSize,
    scale_factors: tuple[float, ...],
    integrator: Integrator,
    kernel: Kernel,
    gradient: Gradient,
    capacity: int | None,
    adjoint: Adjoint,
) -> Lattice:
    lengths = sides(box_size, plan, "simulate")
    # As outputs particles are in the rows in which they began: those of the lattice.
    (end,) = simulate_block(
        _on_mesh(displacement, momentum, lattice, plan, lengths),
        plan,
        box_size,
        cosmology,
        scale_factors,
        integrator=integrator,
        kernel=kernel,
        gradient=gradient,
        capacity=capacity,
        adjoint=adjoint,
        outputs=scale_factors[-1:],
    )
    return _from_mesh(cast(Particles, end), lattice, lengths)


def simulate(
    lattice: Lattice,
    box_size: BoxSize,
    cosmology: Cosmology,
    scale_factors: SeriesLike,
    *,
    mesh_shape: Sequence[int] | None = None,
    integrator: Integrator = fastpm,
    kernel: Kernel = "cic",
    gradient: Gradient = "finite-difference",
    capacity: int | None = None,
    adjoint: Adjoint = "reversible",
    grid: ProcessGrid | None = None,
    mesh: Mesh | None = None,
) -> Lattice:
    """Follow the particles of a lattice under their own gravity.

    Args:
        lattice: the particles at ``scale_factors[0]``, of `lpt`.
        box_size: side of the box [Mpc/h]: a number, or one for each axis.
        cosmology: a `jax_cosmo.Cosmology`; the derivative in it, by `jax.grad`, is the whole one.
        scale_factors: the ends of the steps, as ``np.linspace(0.1, 1, 11)``, not traced.
        mesh_shape: of the mesh on which forces are computed, any sizes; by default those of the
            lattice. Twice as many along each axis are usual.
        integrator: as for `pfftjax.pm.simulate`, but for `cola`, which needs displacements that a
            `Lattice` does not keep. One of your own takes ``outputs=``: the end is an output.
        kernel: as for `pfftjax.pm.simulate`.
        gradient: as for `pfftjax.pm.simulate`.
        capacity: particles that each rank has room for, by default as there.
        adjoint: as for `pfftjax.pm.simulate`.
        grid: as for `pfftjax.sharded.fft3d`.
        mesh: as for `pfftjax.sharded.fft3d`.

    Returns:
        `Lattice` at ``scale_factors[-1]``, each particle in its own place. During the run they are
        with the ranks that own their cells, and are sent back once.

    Raises:
        As `density_contrast` and `pfftjax.pm.simulate`.

    """
    displacement, momentum = lattice
    shards = shards_of(displacement, grid, mesh, "simulate", split=(-4, -3))
    pencil = _lattice(displacement, shards)
    if np.shape(momentum) != np.shape(displacement):
        raise ValueError(
            f"{shards.here}: displacement and momentum must have one shape, got "
            f"{np.shape(displacement)} and {np.shape(momentum)}"
        )
    plan = mesh_plan(mesh_shape, pencil.global_shape, shards, is_result=False)
    ends, are_traced = known(scale_factors)
    if are_traced is not None or not isinstance(ends, tuple) or not ends:
        raise TypeError(
            f"{shards.here}: scale_factors must be a sequence of numbers that are known while the "
            f"program is traced, got {scale_factors!r}"
        )
    spec = shards.spec(pencil, trail=1)
    return shards.run(
        _simulate,
        (pencil, plan, box_size, ends, integrator, kernel, gradient, capacity, adjoint),
        (spec, spec, PartitionSpec()),
        Lattice(spec, spec),  # pyright: ignore[reportArgumentType]
        displacement,
        momentum,
        cosmology,
        is_kept=integrator in INTEGRATORS,
    )

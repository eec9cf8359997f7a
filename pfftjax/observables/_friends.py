"""Groups of particles by friends of friends, distributed over the ranks that own them."""

import jax
import jax.numpy as jnp
import numpy as np
from jax.core import Tracer

from pfftjax._runtime.agreement import private, same_everywhere, together
from pfftjax._runtime.arguments import where
from pfftjax._runtime.arrays import BoxSize, Names, Number
from pfftjax._runtime.ffi import native
from pfftjax.fft.internal import is_length
from pfftjax.pencils import Pencil
from pfftjax.pencils.internal import checked_pencil
from pfftjax.pm import Particles
from pfftjax.pm.internal import CRITICAL_DENSITY, Cosmology, check_fits, on_host

from ._catalogue import GroupCatalogue, Members, catalogued
from ._linking import linked, owners
from ._rows import Mail


def friends_of_friends(
    particles: Particles,
    mesh: Pencil,
    *,
    linking_length: float = 0.2,
    smallest: int = 20,
    box_size: BoxSize | None = None,
    scale_factor: Number | None = None,
    cosmology: Cosmology | None = None,
) -> tuple[GroupCatalogue, Names]:
    """Groups of particles that chains of short distances hold together (Davis et al. 1985).

    Two particles are friends if they are within the linking length of each other, in the periodic
    box; a group has all the friends of its members. The groups are those of all pairs, and do not
    depend on the number of ranks, nor on which rank has which particle; what is summed over the
    members of a group does to rounding.

    Collective over the ranks of the mesh's grid. It works on the processors, outside of jitted
    code: the size of its result depends on the values. It has no derivatives, as whether two
    particles are friends jumps from no to yes; `jax.lax.stop_gradient` is no remedy inside of
    `jax.grad`, as the values are traced there: call it on what jitted code returns.

    Args:
        particles: on any ranks, as `pm.simulate` returns them; they need not be at their owners.
        mesh: the mesh that they are in units of, as `PencilFFT.input`.
        linking_length: in units of the mean distance between particles, the cube root of the
            volume of the box for each particle.
        smallest: how many particles a group must have to be in the catalogue.
        box_size: sides of the box [Mpc/h], by default the particles' own.
        scale_factor: when the particles are, for velocities in km/s, by default what they know.
        cosmology: for masses in Msun/h, a `jax_cosmo.Cosmology` or anything with its Omega_m.

    Returns:
        The catalogue, of which each rank has a share, and an int32 array (rows,) with the place of
        each particle's group in the whole of it: -1 for particles of no group in the catalogue,
        and for unused rows.

    Raises:
        TypeError: traced particles, inside of `jax.jit` or `jax.grad`.
        ValueError: particles that do not fit the mesh or are nowhere, an unknown box, a linking
            length of more than half of a side, or of less than a millionth of one.
        RuntimeError: ranks that ask for different things.

    The centre of a group is relative to its particle of the lowest identity, so that it means
    something if no particle of the group is half a box away from that one.

    Example:
        >>> from pfftjax import ProcessGrid, pm
        >>> mesh = Pencil((4, 4, 4), ProcessGrid())
        >>> cell = jnp.array([[0, 0, 0], [3, 3, 3], [1, 2, 2]], "int32")
        >>> offset = jnp.array([[0.1, 0, 0], [0.9, 1, 1], [0, 0, 0]])
        >>> used = jnp.int32(3 if mesh.grid.comm.rank == 0 else 0)
        >>> particles = pm.Particles(cell, offset, offset, used, 3, mesh.global_shape,
        ...                          box_size=(8.0, 8.0, 8.0), scale_factor=1.0)
        >>> catalogue, group = friends_of_friends(particles, mesh, smallest=2)
        >>> catalogue.whole(mesh.grid).length
        array([2])
        >>> [int(g) for g in group[: int(used)]] in ([0, 0, -1], [])
        True

    """
    grid = checked_pencil(mesh, "friends_of_friends", "mesh").grid
    here = where("friends_of_friends", grid.communicator)
    leaves = jax.tree.leaves((particles, box_size, scale_factor))
    if any(isinstance(leaf, Tracer) for leaf in leaves):
        raise TypeError(
            f"{here}: the particles are traced. Groups have no derivatives, as their members "
            "jump, and no size that is known before the program runs: call it outside of jax.jit "
            "and jax.grad, on what jitted code returns"
        )
    comm = private(grid.comm)
    with together(comm, "friends_of_friends"):
        check_fits(particles, mesh, "friends_of_friends")
        _check_settings(linking_length, smallest)
        mine = on_host(
            particles, "friends_of_friends", box_size=box_size, scale_factor=scale_factor
        )
        sides, used = mine.sides, len(mine.position)
        mean = (float(np.prod(sides)) / max(particles.total, 1)) ** (1 / 3)
        length = float(linking_length) * mean
        if particles.total > 1:
            _check_length(length, sides)
    asked = f"{length} {smallest} {sides} at {mine.scale_factor}"
    same_everywhere(asked, comm, "friends_of_friends")
    count = comm.allreduce(used)
    with together(comm, "friends_of_friends"):
        if count != particles.total:
            raise ValueError(f"the ranks have {count} particles, but total is {particles.total}")
        ranks = owners(mine.at, mesh)
    mail = Mail.to(ranks, comm)
    has_velocity = mine.velocity is not None
    velocity = np.zeros_like(mine.position) if mine.velocity is None else mine.velocity
    there = Members(mail.send(mine.position), mail.send(velocity), mail.send(mine.identity))
    # A particle that is alone may have a linking length beyond what cells can divide.
    reach = min(length, float(sides.min()) / 2)
    groups = linked(there.position, mesh, sides, reach, comm)
    rows, place = catalogued(there, groups, sides, int(smallest), comm)
    group = np.full(particles.rows, -1, np.int32)
    group[:used] = mail.send_back(place)
    first, total = comm.exscan(len(rows)) or 0, comm.allreduce(len(rows))
    mass = 1.0
    if cosmology is not None:
        density = CRITICAL_DENSITY * float(cosmology.Omega_m)
        mass = density * float(np.prod(sides)) / max(particles.total, 1)
    catalogue = GroupCatalogue(
        identity=rows["identity"].copy(),
        length=rows["length"].copy(),
        mass=rows["length"] * mass,
        position=rows["position"].copy(),
        velocity=rows["velocity"].copy() if has_velocity else None,
        dispersion=rows["dispersion"].copy() if has_velocity else None,
        first=first,
        total=total,
    )
    return catalogue, jnp.asarray(group)


def _check_settings(linking_length: object, smallest: object) -> None:
    if isinstance(linking_length, Tracer) or not is_length(linking_length):
        raise ValueError(
            f"linking_length must be positive, in mean distances, got {linking_length!r}"
        )
    if not isinstance(smallest, int | np.integer) or smallest < 1:
        raise ValueError(f"smallest must be a positive number of particles, got {smallest!r}")


def _check_length(length: float, sides: np.ndarray) -> None:
    if 2 * length > sides.min():
        raise ValueError(
            f"a linking length of {length:.6g} Mpc/h is more than half of the shortest side of "
            f"the box {tuple(sides.tolist())}; take a smaller linking_length, or more particles"
        )
    if 2 * float(sides.max()) > length * native.most_link_cells:
        raise ValueError(
            f"a linking length of {length:.6g} Mpc/h is less than a millionth of a side of the "
            f"box {tuple(sides.tolist())}; take a larger linking_length"
        )

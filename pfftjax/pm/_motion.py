"""How particles move: stages of a kick by the force and a drift."""

import dataclasses
import math
from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.ad_checkpoint import checkpoint_name
from jax.core import Tracer

from pfftjax._runtime.arrays import (
    Displacements,
    Number,
    PyTree,
    RealBlock,
    Reals,
    Scalar,
    Vectors,
)
from pfftjax._runtime.primitive import local_pair
from pfftjax.fft import PencilFFT
from pfftjax.pencils import Pencil, halo_exchange, halo_reduce

from ._assignment import Assignment, Kernel, assignment_of
from ._fours import paint_fours, readout_fours
from ._gravity import KEPT, Gradient, gravity_with_ghosts
from ._growth import Cosmology
from ._integrators import Paths
from ._painting import paint, readout_padded
from ._particles import Particles

# `jax.vjp`, or its like for programs of `pfftjax.grad`.
Vjp = Callable[..., tuple]


class Stage(NamedTuple):
    """A kick and the drift after it: p <- momentum p + kick F, x <- x + drift p, and what `Paths`
    adds to both.

    Those of a whole run have a leading axis.
    """

    kick: Scalar
    drift: Scalar
    momentum: Scalar | None = None  # None multiplies by one
    paths: Paths | None = None


class Shift(NamedTuple):
    """How particles at another time follow from those of a stage: x + drift p + fall F and
    momentum p + kick F, with the momenta before its kick, and what `Paths` adds to both.

    Those of a whole run have a leading axis.
    """

    drift: Scalar
    fall: Scalar
    momentum: Scalar
    kick: Scalar
    paths: Paths | None = None


class Constants(NamedTuple):
    """What a run depends on besides its stages, in the precision of the particles.

    Attributes:
        omega_m: the matter density parameter today.
        per_cell: (3,), mesh cells for each Mpc/h.
        sides: of the box [Mpc/h] where they are traced; else they are the `Motion`'s.

    """

    omega_m: Scalar
    per_cell: jax.Array
    sides: tuple[Scalar, ...] | None


def drift_of(
    momentum: Vectors, displacements: Displacements | None, stage: Stage, per_cell: jax.Array
) -> Vectors:
    """How far particles drift in a stage, in cells."""
    along = None if stage.paths is None else per_cell * stage.paths.drift[:, None]
    return _plus_along(_times(stage.drift * per_cell, momentum), along, displacements)


def kicked(
    momentum: Vectors, pull: Vectors, displacements: Displacements | None, stage: Stage
) -> Vectors:
    """Momenta after the kick of a stage by the force."""
    before = momentum if stage.momentum is None else _times(stage.momentum, momentum)
    along = None if stage.paths is None else stage.paths.kick
    return _plus_along(before + _times(stage.kick, pull), along, displacements)


@jax.custom_jvp
def _after(x: Scalar, seen: PyTree) -> Scalar:
    """`x`, of which XLA cannot know that it does not depend on the real numbers in `seen`.

    A kick by it overwrites momenta and offsets in place. Otherwise XLA copies both before each
    kick if something else reads them, which was two fifths of what a light cone costs, because it
    orders nothing by `optimization_barrier` when it decides what to copy.
    """
    for leaf in jax.tree.leaves(seen):
        if leaf.size > 0 and jnp.issubdtype(leaf.dtype, jnp.floating):
            number = leaf.ravel()[0]
            is_any = (number < 0) | (number >= 0) | jnp.isnan(number)
            x = jnp.where(is_any, x, 0)
    return x


_after.defjvp(lambda primals, tangents: (_after(*primals), tangents[0]), symbolic_zeros=True)


def kick_undone(
    momentum: Vectors, pull: Vectors, displacements: Displacements | None, stage: Stage
) -> Vectors:
    """Momenta before the kick of a stage by the force."""
    along = None if stage.paths is None else -stage.paths.kick
    before = _plus_along(momentum - stage.kick * pull, along, displacements)
    return before if stage.momentum is None else before / stage.momentum


def _plus_along(x: Vectors, along: Reals | None, displacements: Displacements | None) -> Vectors:
    """`x` and so much of each displacement, a number or a vector."""
    if along is None:
        return x
    assert displacements is not None
    first, second = (_times(along[i], displacements[:, i]) for i in range(2))
    return x + first + second


# A factor of all rows is spread over them by a primitive: its derivative is a sum over rows, which
# is nine times as fast by blocks, as XLA then adds several numbers at a time.
_ROWS_OF_A_BLOCK = 64


def _sum_of_rows(x: jax.Array, *, rows: int) -> jax.Array:
    whole = rows - rows % _ROWS_OF_A_BLOCK
    blocks = x[:whole].reshape(-1, _ROWS_OF_A_BLOCK * x.shape[1]).sum(0)
    return blocks.reshape(_ROWS_OF_A_BLOCK, -1).sum(0) + x[whole:].sum(0)


_spread_p, _ = local_pair(
    "spread", lambda x, *, rows: jnp.broadcast_to(x, (rows, *x.shape)), _sum_of_rows
)


def _times(factor: Scalar | jax.Array, x: Vectors) -> Vectors:
    """`x`, rows of vectors, times a number or one for each axis."""
    each = jnp.broadcast_to(factor, x.shape[1:])
    return _spread_p.bind(each, rows=x.shape[0]) * x


def contrast(counts: RealBlock, total: Number, plan: PencilFFT) -> RealBlock:
    """The density contrast of painted particles, of so many, or of such a weight, on all ranks."""
    return counts / (total / float(math.prod(plan.shape))) - 1


@dataclasses.dataclass(frozen=True)
class Motion:
    """The mesh and the form of the force, known while a program is traced."""

    plan: PencilFFT
    kernel: Kernel
    gradient: Gradient
    sides: tuple[Number, ...]

    def constants(self, cosmology: Cosmology, dtype: np.dtype) -> Constants:
        """What a run in this universe and this box depends on."""
        per_cell = [n / side for n, side in zip(self.plan.shape, self.sides, strict=True)]
        is_known = not any(isinstance(x, Tracer) for x in self.sides)
        return Constants(
            jnp.asarray(cosmology.Omega_m, dtype),
            jnp.stack([jnp.asarray(x, dtype) for x in per_cell]),
            None if is_known else tuple(jnp.asarray(x, dtype) for x in self.sides),
        )

    def force(self, particles: Particles, constants: Constants) -> Vectors:
        """-grad phi at each particle, with laplacian phi = 3/2 Omega_m delta."""
        mesh, form = self._mesh()
        counts = paint(particles.positions, mesh, kernel=self.kernel)
        field = self._field(counts, particles.total, form, constants)
        return readout_padded(field, particles.positions, mesh, form)

    def force_and_back(
        self, particles: Particles, constants: Constants, to_force: Vectors, vjp: Vjp
    ) -> tuple[Vectors, Vectors, Constants]:
        """`force`, and the cotangents of offsets and constants for one of it that is known before.

        The densities of particles and of cotangents are painted together, and the field and the
        cotangent of the density are read out together.
        """
        mesh, form = self._mesh()
        at = particles.positions
        ones = jnp.ones_like(to_force[:, :1])
        values = jnp.concatenate([to_force, ones], axis=1)
        painted = paint_fours(values, at, mesh, form)
        counts = halo_reduce(painted[..., 3], mesh, form.width)
        field, back = vjp(
            lambda counts, constants: self._field(counts, particles.total, form, constants),
            counts,
            constants,
        )
        to_counts, to_constants = back(jnp.moveaxis(painted[..., :3], -1, 0))
        to_painted = halo_exchange(to_counts, mesh, form.width)
        fields = jnp.stack([*field, to_painted], axis=-1)
        pull, to_offset = readout_fours(fields, values, at, mesh, form)
        return pull[:, :3], to_offset, to_constants

    def _mesh(self) -> tuple[Pencil, Assignment]:
        mesh = self.plan.input
        return mesh, assignment_of(self.kernel, mesh, "force")

    def _field(
        self, counts: RealBlock, total: int, form: Assignment, constants: Constants
    ) -> RealBlock:
        """The force on the mesh, with ghosts."""
        delta = contrast(counts, total, self.plan)
        return gravity_with_ghosts(
            1.5 * constants.omega_m * delta,
            self.plan,
            self.sides if constants.sides is None else constants.sides,
            gradient=self.gradient,
            before=form.before,
            after=form.after,
        )

    def drifted(self, particles: Particles, stage: Stage, constants: Constants) -> Particles:
        """The particles after the drift of a stage, on the ranks where they are."""
        way = drift_of(particles.momentum, particles.displacements, stage, constants.per_cell)
        return dataclasses.replace(particles, offset=particles.offset + way)

    def shifted(
        self, particles: Particles, pull: Vectors, shift: Shift, constants: Constants
    ) -> Particles:
        """Particles before a kick by the force on them, at another time."""
        its, along = particles.displacements, None if shift.paths is None else shift.paths.drift
        drift, fall = _times(shift.drift, particles.momentum), _times(shift.fall, pull)
        way = _plus_along(drift + fall, along, its)
        offset = particles.offset + _times(constants.per_cell, way)
        stage = Stage(shift.kick, shift.drift, shift.momentum, shift.paths)
        momentum = kicked(particles.momentum, pull, its, stage)
        return dataclasses.replace(particles, offset=offset, momentum=momentum)

    def advanced(
        self,
        particles: Particles,
        stage: Stage,
        constants: Constants,
        seen: Callable[[Particles, Vectors], PyTree] = lambda *_: None,
    ) -> tuple[Particles, PyTree]:
        """The particles one stage later, on the ranks where they are, and what is seen of the
        particles before the kick and the force on them.

        Reverse mode keeps the particles and the potential, and computes the rest again.
        """

        def kick_and_drift(
            particles: Particles, stage: Stage, constants: Constants
        ) -> tuple[Particles, PyTree]:
            pull = self.force(particles, constants)
            sight = seen(particles, pull)  # before the kick overwrites what it looks at
            # Reverse mode keeps this number, and need not look again.
            stage = stage._replace(kick=checkpoint_name(_after(stage.kick, sight), KEPT))
            momentum = kicked(particles.momentum, pull, particles.displacements, stage)
            after = dataclasses.replace(particles, momentum=momentum)
            return self.drifted(after, stage, constants), sight

        kept = jax.checkpoint_policies.save_only_these_names(KEPT)
        return jax.checkpoint(kick_and_drift, policy=kept)(particles, stage, constants)

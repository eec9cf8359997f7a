"""Gradients of a whole run at the memory of one stage.

A run can be followed back: its drifts and kicks, and the way of its particles to their owners. On
the way back the states that a gradient needs are met again, and nothing is stored for each stage
(Li et al. 2022, section 3.2, on one device). Rows arrive in another order than on the way there:
each carries its home, the rank and the row where it began.
"""

import dataclasses
import functools
from typing import NamedTuple

import jax
import jax.numpy as jnp

from pfftjax.autodiff.internal import differentiated_by_hand
from pfftjax.collectives import allreduce
from pfftjax.pencils.internal import coordinate

from ._exchange import Route
from ._expected import expect
from ._motion import Constants, Motion, Stage
from ._particles import Particles, sent_to_owners, stay_in_place

# How far from where they were the way back may find particles after the first stage: the root of
# the mean square along an axis, in cells.
_FARTHEST = 1e-2
# By how much undoing one stage may multiply the rounding of momenta.
_MOST_GROWTH = 1e3
_REMEDY = (
    'pass simulate(..., adjoint="stored"), which keeps every step, or compute in float64 '
    "(JAX_ENABLE_X64=1)"
)


class Run(NamedTuple):
    """What a run is made of and can be differentiated in."""

    offset: jax.Array
    momentum: jax.Array
    stages: Stage
    first_drift: jax.Array | None
    constants: Constants


class Ends(NamedTuple):
    """What a run makes of offsets and momenta, or the cotangents of these."""

    offset: jax.Array
    momentum: jax.Array


class _Follower(NamedTuple):
    """A run as a function of arrays: what is static, and how many rows each rank has room for."""

    motion: Motion
    capacity: int
    total: int
    mesh_shape: tuple[int, int, int]

    def start(self, run: Run, fixed: tuple[jax.Array, jax.Array]) -> Particles:
        cell, used = fixed
        return Particles(cell, run.offset, run.momentum, used, self.total, self.mesh_shape)

    def first_drifted(self, start: Particles, run: Run) -> Particles:
        if run.first_drift is None:
            return start
        return self.motion.drifted(start, run.first_drift, run.constants)

    def to_owners(self, particles: Particles, *others: jax.Array | None) -> tuple[Particles, list]:
        """The particles on the ranks that own them, and with them those arrays that are there."""
        given = [x for x in others if x is not None]
        mesh = self.motion.plan.input
        moved, sent, _ = sent_to_owners(particles, mesh, self.capacity, *given)
        rest = iter(sent)
        return moved, [None if x is None else next(rest) for x in others]

    def end(
        self, run: Run, fixed: tuple[jax.Array, jax.Array], home: jax.Array | None
    ) -> tuple[Particles, jax.Array | None]:
        begun = self.first_drifted(self.start(run, fixed), run)
        begun, (home,) = self.to_owners(begun, home)

        def body(state: tuple, stage: Stage) -> tuple[tuple, None]:
            particles, home = state
            moved = self.motion.advanced(particles, stage, run.constants)
            moved, (home,) = self.to_owners(moved, home)
            return (moved, home), None

        return jax.lax.scan(body, (begun, home), run.stages)[0]

    def homes(self, rows: int) -> jax.Array | None:
        """(rows, 2), the rank and the row where each begins; None where it keeps its row."""
        mesh = self.motion.plan.input
        if stay_in_place(rows, mesh, self.capacity):
            return None
        rank = coordinate(mesh.grid.communicator)
        row = jnp.arange(rows, dtype=jnp.int32)
        return jnp.stack([jnp.broadcast_to(rank, row.shape), row], axis=1)

    def sent_home(
        self, home: jax.Array | None, used: jax.Array, rows: int, *xs: jax.Array
    ) -> list[jax.Array]:
        """Arrays with a row for each particle, in the order in which particles began."""
        if home is None:
            return [x[:rows] for x in xs]
        comm = self.motion.plan.grid.communicator
        rank = jnp.where(jnp.arange(home.shape[0]) < used, home[:, 0], comm.size)
        route = Route.to_ranks(rank, rows, comm)
        row = jnp.where(jnp.arange(rows) < route.count, route.send(home[:, 1]), rows)

        def placed(x: jax.Array) -> jax.Array:
            there = route.send(x)
            return jnp.zeros_like(there).at[row].set(there, mode="drop", unique_indices=True)

        return [placed(x) for x in xs]


def follow(
    particles: Particles,
    motion: Motion,
    stages: Stage,
    first_drift: jax.Array | None,
    constants: Constants,
    *,
    capacity: int,
    is_reversible: bool,
) -> Particles:
    """Particles after all stages, on the ranks that own them.

    Args:
        particles: on any ranks; their scale factor and box are not known here.
        motion: mesh and force.
        stages: with a leading axis.
        first_drift: before the first stage.
        constants: of the run.
        capacity: particles that each rank has room for.
        is_reversible: whether reverse mode follows the run back. Else it keeps each stage.

    """
    follower = _Follower(motion, capacity, particles.total, particles.mesh_shape)
    run = Run(particles.offset, particles.momentum, stages, first_drift, constants)
    fixed = particles.cell, particles.used

    def plain(run: Run, fixed: tuple[jax.Array, jax.Array]) -> tuple[Ends, tuple]:
        end, _ = follower.end(run, fixed, None)
        return Ends(end.offset, end.momentum), (end.cell, end.used)

    def forward(run: Run, fixed: tuple[jax.Array, jax.Array]) -> tuple[tuple[Ends, tuple], tuple]:
        end, home = follower.end(run, fixed, follower.homes(run.offset.shape[0]))
        return (Ends(end.offset, end.momentum), (end.cell, end.used)), (end, home)

    def backward(run: Run, fixed: tuple, kept: tuple, cotangents: Ends) -> Run:
        end, home = kept
        return _backward(follower, run, fixed, end, home, cotangents)

    function = differentiated_by_hand(plain, forward, backward) if is_reversible else plain
    (offset, momentum), (cell, used) = function(run, fixed)
    return dataclasses.replace(particles, cell=cell, offset=offset, momentum=momentum, used=used)


class _Back(NamedTuple):
    """Where the way back is: particles after a stage, their homes and cotangents, and those of the
    constants so far.
    """

    particles: Particles
    home: jax.Array | None
    to: Ends
    to_constants: Constants


def _undone(follower: _Follower, constants: Constants, at: _Back, stage: Stage) -> tuple:
    """One stage back, and the cotangents of the stage."""
    motion, after, to = follower.motion, at.particles, at.to
    # The drift.
    to_drift = jnp.sum(to.offset * (constants.per_cell * after.momentum))
    to_per_cell = stage.drift * jnp.sum(to.offset * after.momentum, axis=0)
    to_momentum = to.momentum + stage.drift * constants.per_cell * to.offset
    before = motion.drifted(after, -stage.drift, constants)
    before, (home, to_offset, to_momentum) = follower.to_owners(
        before, at.home, to.offset, to_momentum
    )
    # The kick.
    pull, to_places = jax.vjp(
        lambda x, c: motion.force(dataclasses.replace(before, offset=x), c),
        before.offset,
        constants,
    )
    of_kick = jnp.sum(to_momentum * pull)
    add_offset, add_constants = to_places(stage.kick * to_momentum)
    momentum = before.momentum - stage.kick * pull
    of_factor = None
    if stage.momentum is not None:
        momentum = momentum / stage.momentum
        of_factor = jnp.sum(to_momentum * momentum)
        to_momentum = stage.momentum * to_momentum
    to_constants = jax.tree.map(jnp.add, at.to_constants, add_constants)
    to_constants = to_constants._replace(per_cell=to_constants.per_cell + to_per_cell)
    before = dataclasses.replace(before, momentum=momentum)
    to = Ends(to_offset + add_offset, to_momentum)
    return _Back(before, home, to, to_constants), Stage(of_kick, to_drift, of_factor)


def _backward(
    follower: _Follower,
    run: Run,
    fixed: tuple[jax.Array, jax.Array],
    end: Particles,
    home: jax.Array | None,
    cotangents: Ends,
) -> Run:
    """The cotangents of a run. Its first stage is done again from the start, which is known."""
    first = jax.tree.map(lambda x: x[0], run.stages)
    others = jax.tree.map(lambda x: x[1:], run.stages)
    none = jax.tree.map(jnp.zeros_like, run.constants)
    to_momentum = cotangents.momentum
    if others.momentum is not None:
        growth = jnp.max(1 / jnp.abs(others.momentum), initial=1)
        to_momentum = _at_most(
            follower,
            to_momentum,
            growth,
            _MOST_GROWTH,
            "the factor by which undoing a step multiplies rounding",
        )
    at = _Back(end, home, Ends(cotangents.offset, to_momentum), none)
    undone = functools.partial(_undone, follower, run.constants)
    at, to_others = jax.lax.scan(undone, at, others, reverse=True)

    def begun(x: Run, stage: Stage) -> Ends:
        """After the first stage, in the order of the start."""
        start = follower.first_drifted(follower.start(x, fixed), x)
        owned, _, back = sent_to_owners(start, follower.motion.plan.input, follower.capacity)
        moved = follower.motion.advanced(owned, stage, x.constants)
        return Ends(back(moved.offset), back(moved.momentum))

    known, to_start = jax.vjp(begun, run, first)
    rows = run.offset.shape[0]
    found, *to = follower.sent_home(at.home, at.particles.used, rows, at.particles.offset, *at.to)
    # All cotangents depend on the check.
    to_offset = _checked(follower, fixed[1], known.offset, found, to[0])
    to_run, to_first = to_start(Ends(to_offset, to[1]))
    return to_run._replace(
        stages=jax.tree.map(
            lambda one, more: jnp.concatenate([one[None], more]), to_first, to_others
        ),
        constants=jax.tree.map(jnp.add, to_run.constants, at.to_constants),
    )


def _checked(
    follower: _Follower, used: jax.Array, known: jax.Array, found: jax.Array, passed: jax.Array
) -> jax.Array:
    """`passed`, if the way back has found the particles where they were."""
    comm = follower.motion.plan.grid.communicator
    rows = jnp.arange(known.shape[0])[:, None] < used
    apart = jax.lax.stop_gradient(jnp.where(rows, found - known, 0))
    mean = allreduce(jnp.sum(apart.astype(float) ** 2), comm=comm) / (3 * follower.total)
    distance = jnp.sqrt(mean)
    what = "the distance between the way there and the way back, in cells,"
    return _at_most(follower, passed, distance, _FARTHEST, what)


def _at_most(
    follower: _Follower, passed: jax.Array, value: jax.Array, most: float, what: str
) -> jax.Array:
    """`passed`, if a number that is the same on every rank is not too large."""
    value = jnp.nan_to_num(jax.lax.stop_gradient(value), nan=jnp.inf)
    return expect(
        passed,
        value,
        jnp.minimum(value, most),
        operation="the gradient of simulate",
        what=what,
        but="it may be at most",
        remedy=_REMEDY,
        tolerance=0.0,
        comm=follower.motion.plan.grid.communicator,
    )

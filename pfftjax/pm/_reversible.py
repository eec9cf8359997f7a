"""Gradients of a whole run at the memory of one stage.

A run can be followed back: its drifts and kicks, and the way of its particles to their owners. On
the way back the states that a gradient needs are met again, and nothing is stored for each stage
(Li et al. 2022, section 3.2, on one device). Rows arrive in another order than on the way there:
each carries its home.
"""

import dataclasses
import functools
from collections.abc import Sequence
from typing import NamedTuple

import jax
import jax.numpy as jnp
from mpi4py import MPI

from pfftjax._runtime.arrays import PyTree, Vectors
from pfftjax.autodiff.internal import differentiated_by_hand
from pfftjax.collectives import allreduce

from ._expected import expect
from ._motion import Motion, Stage, Vjp, drift_of, kick_undone, kicked
from ._outputs import Views, joined, parted
from ._particles import Particles
from ._passages import Sights
from ._run import Ends, Follower, Run, Shared

# How far from where they were the way back may find particles after the first stage: the root of
# the mean square along an axis, in cells.
_FARTHEST = 1e-2
# By how much of its size an output may differ from what the way back sees there. With rows in
# another order it differs by more.
_OUTPUTS_DIFFER = 1e-3
# By how much undoing one stage may multiply the rounding of momenta.
_MOST_GROWTH = 1e3
_REMEDY = (
    'pass simulate(..., adjoint="stored"), which keeps every step, or compute in float64 '
    "(JAX_ENABLE_X64=1)"
)
_ROWS_DIFFER = (
    "what observe returns must not depend on the order of rows, as a mesh or a spectrum does not "
    "(outputs that are particles are there without observe); or "
)


def follow(
    particles: Particles,
    motion: Motion,
    stages: Stage,
    first_drift: jax.Array | None,
    shared: Shared,
    views: Views | None,
    sights: Sights | None = None,
    *,
    capacity: int,
    is_reversible: bool,
) -> tuple[Particles, PyTree, PyTree]:
    """Particles after all stages, on the ranks that own them, what outputs have seen, with a
    leading axis, and what this rank has seen of light.

    Args:
        particles: on any ranks; their scale factor and box are not known here.
        motion: mesh and force.
        stages: with a leading axis.
        first_drift: before the first stage.
        shared: of the run.
        views: its outputs.
        sights: its passages of light.
        capacity: particles that each rank has room for.
        is_reversible: whether reverse mode follows the run back. Else it keeps each stage.

    """
    follower = Follower(motion, views, particles.rows, capacity, particles.total, sights)
    run = Run(Ends.of(particles), stages, first_drift, shared)
    fixed = particles.cell, particles.used

    def parts(end: Particles, seen: PyTree, sky: PyTree) -> tuple[tuple, tuple]:
        moving, others = parted(seen)
        return (Ends.of(end), moving, sky), (end.cell, end.used, others)

    def plain(run: Run, fixed: tuple[jax.Array, jax.Array]) -> tuple[tuple, tuple]:
        home = follower.homes() if follower.sees_rows else None
        end, _, seen, sky = follower.end(run, fixed, home)
        return parts(end, seen, sky)

    def forward(run: Run, fixed: tuple[jax.Array, jax.Array]) -> tuple[tuple, tuple]:
        end, home, seen, sky = follower.end(run, fixed, follower.homes())
        results = parts(end, seen, sky)
        return results, (end, home, results[0][1])

    def backward(run: Run, fixed: tuple, kept: tuple, cotangents: tuple, vjp: Vjp) -> Run:
        return _backward(follower, vjp, run, fixed, *kept, *cotangents)

    function = differentiated_by_hand(plain, forward, backward) if is_reversible else plain
    (ends, moving, sky), (cell, used, others) = function(run, fixed)
    end = ends.on(dataclasses.replace(particles, cell=cell, used=used))
    return end, joined(moving, others), sky


class _Back(NamedTuple):
    """Where the way back is: particles after a stage, their homes and cotangents, those of what
    all stages depend on so far, and how far outputs have been from what is seen of them now.
    """

    particles: Particles
    home: jax.Array | None
    to: Ends
    to_shared: Shared
    apart: jax.Array


def _undone(
    follower: Follower,
    vjp: Vjp,
    run: Run,
    seen: PyTree,
    to_seen: PyTree,
    to_sky: PyTree,
    at: _Back,
    xs: tuple[Stage, jax.Array | None, jax.Array | None],
) -> tuple[_Back, Stage]:
    """One stage back, and the cotangents of the stage."""
    motion, after, to, constants = follower.motion, at.particles, at.to, run.shared.constants
    stage, slots, passing = xs
    # Particles go back to where the drift began, and to the ranks that own them there.
    drift, to_moving = vjp(
        drift_of, after.momentum, after.displacements, stage, constants.per_cell
    )
    before = dataclasses.replace(after, offset=after.offset - drift)
    add_momentum, add_displacements, to_stage, to_per_cell = to_moving(to.offset)
    add_displacements = jax.tree.map(jnp.add, to.displacements, add_displacements)
    to = Ends(to.offset, to.momentum + add_momentum, add_displacements)
    before, (home, to), _ = follower.to_owners(before, at.home, to)
    # The force there is that of the kick, which is taken off the momenta. If nothing but the kick
    # has used it, its cotangent is known before it, as the kick is linear in it.
    if slots is None and passing is None:
        _, of_force = vjp(
            lambda pull: kicked(before.momentum, pull, before.displacements, stage),
            before.momentum,
        )
        (to_pull,) = of_force(to.momentum)
        pull, *to_places = motion.force_and_back(before, constants, to_pull, vjp)

        def back(_: Vectors) -> Sequence[PyTree]:
            return to_places

    else:
        pull, back = vjp(
            lambda x, c: motion.force(dataclasses.replace(before, offset=x), c),
            before.offset,
            constants,
        )
    momentum = kick_undone(before.momentum, pull, before.displacements, stage)
    before = dataclasses.replace(before, momentum=momentum)
    _, to_kicked = vjp(kicked, momentum, pull, before.displacements, stage)
    to_momentum, to_pull, add_displacements, of_kick = to_kicked(to.momentum)
    to_displacements = jax.tree.map(jnp.add, to.displacements, add_displacements)
    to_stage = jax.tree.map(jnp.add, to_stage, of_kick)
    # Outputs of the stage have seen the particles here: they add their cotangents.
    found = (Ends(to.offset, to_momentum, to_displacements), to_pull, at.to_shared), at.apart
    for number in () if slots is None else tuple(slots):
        found = jax.lax.cond(
            number >= 0,
            functools.partial(_also_seen, follower, vjp, seen, to_seen),
            lambda found, *_: found,
            found,
            number,
            before,
            pull,
            home,
            run.shared,
        )
    (to, to_pull, to_shared), apart = found
    if passing is not None:
        # Sums over passages have the same cotangent in each.
        def looked(its: Ends, pull: Vectors, shared: Shared) -> PyTree:
            blank = jax.tree.map(jnp.zeros_like, to_sky)
            return follower.looked(blank, tuple(passing), its.on(before), pull, shared)

        _, of_sky = vjp(looked, Ends.of(before), pull, run.shared)
        to, to_pull, to_shared = jax.tree.map(jnp.add, (to, to_pull, to_shared), of_sky(to_sky))
    add_offset, add_constants = back(to_pull)
    to_constants = jax.tree.map(jnp.add, to_shared.constants, add_constants)
    to_constants = to_constants._replace(per_cell=to_constants.per_cell + to_per_cell)
    # XLA adds rows of three numbers one row after the other: 160,000 rows take 1.4 ms, flat 0.2.
    flat = jax.lax.optimization_barrier((to.offset.ravel(), add_offset.ravel()))
    to_offset = (flat[0] + flat[1]).reshape(add_offset.shape)
    to = to._replace(offset=to_offset)
    to_shared = to_shared._replace(constants=to_constants)
    return _Back(before, home, to, to_shared, apart), to_stage


def _also_seen(
    follower: Follower,
    vjp: Vjp,
    seen: PyTree,
    to_seen: PyTree,
    found: tuple,
    number: jax.Array,
    at: Particles,
    pull: Vectors,
    home: jax.Array | None,
    shared: Shared,
) -> tuple:
    """The cotangents of particles, force and what is shared, with those of an output; and how far
    it was from what is seen now, relative to its size.
    """
    to, apart = found

    def view(its: Ends, pull: Vectors, shared: Shared) -> PyTree:
        return parted(follower.view(number, its.on(at), pull, home, shared))[0]

    now, back = vjp(view, Ends.of(at), pull, shared)
    for x, then in zip(jax.tree.leaves(now), jax.tree.leaves(seen), strict=True):
        x, then = jax.lax.stop_gradient((x, then[number]))
        size = jnp.sum(jnp.abs(then).astype(float) ** 2)
        distance = jnp.sum(jnp.abs(x - then).astype(float) ** 2)
        apart = jnp.maximum(apart, jnp.where(distance == 0, 0, distance / size))
    return jax.tree.map(jnp.add, to, back(jax.tree.map(lambda to: to[number], to_seen))), apart


def _backward(
    follower: Follower,
    vjp: Vjp,
    run: Run,
    fixed: tuple[jax.Array, jax.Array],
    end: Particles,
    home: jax.Array | None,
    seen: PyTree,
    to_end: Ends,
    to_seen: PyTree,
    to_sky: PyTree,
) -> Run:
    """The cotangents of a run. Its first stage is done again from the start, which is known."""
    first = jax.tree.map(lambda x: x[0], run.stages)
    others = jax.tree.map(lambda x: x[1:], run.stages)
    to_momentum = to_end.momentum
    if others.momentum is not None:
        growth = jnp.max(1 / jnp.abs(others.momentum), initial=1)
        to_momentum = _at_most(
            follower,
            to_momentum,
            growth,
            _MOST_GROWTH,
            "the factor by which undoing a step multiplies rounding",
        )
    none = jax.tree.map(jnp.zeros_like, run.shared)
    at = _Back(end, home, to_end._replace(momentum=to_momentum), none, jnp.zeros((), float))
    stages = run.stages.kick.shape[0]
    slots, at_first, passing, first_passing = None, [], None, []
    if follower.views is not None:
        slots = jnp.asarray(follower.views.slots(stages)[1:])
        at_first = follower.views.of(0)
    if follower.sights is not None:
        passing = jnp.asarray(follower.sights.slots(stages)[1:])
        first_passing = follower.sights.of(0)
    undone = functools.partial(_undone, follower, vjp, run, seen, to_seen, to_sky)
    at, to_others = jax.lax.scan(undone, at, (others, slots, passing), reverse=True)

    def begun(x: Run, stage: Stage) -> tuple[Ends, list, PyTree]:
        """After the first stage, in the order of the start, and what is seen of it."""
        home = follower.homes() if follower.sees_rows and at_first else None
        owned, (home,), back = follower.to_owners(follower.start(x, fixed), home)

        def view(*args: PyTree) -> PyTree:
            return parted(follower.view(*args))[0]

        sky = jax.tree.map(jnp.zeros_like, to_sky)
        moved, found, sky = follower.moved(
            owned, home, stage, x.shared, at_first, view, sky, first_passing
        )
        return jax.tree.map(back, Ends.of(moved)), found, sky

    (known, _, _), to_start = vjp(begun, run, first)
    found, *to = follower.sent_home(
        at.home, at.particles.used, at.particles.offset, *jax.tree.leaves(at.to)
    )
    # All cotangents depend on the check.
    to_offset = _checked(follower, fixed[1], known.offset, found, to[0])
    if follower.views is not None:
        comm = follower.motion.plan.grid.communicator
        apart = jnp.sqrt(allreduce(jax.lax.stop_gradient(at.apart), MPI.MAX, comm=comm))
        what = "the difference of an output from what the way back sees there, over its size,"
        to_offset = _at_most(
            follower, to_offset, apart, _OUTPUTS_DIFFER, what, _ROWS_DIFFER + _REMEDY
        )
    to_found = [jax.tree.map(lambda to, n=number: to[n], to_seen) for number in at_first]
    to_run, to_first = to_start((Ends(to_offset, *to[1:]), to_found, to_sky))
    return to_run._replace(
        stages=jax.tree.map(
            lambda one, more: jnp.concatenate([one[None], more]), to_first, to_others
        ),
        shared=jax.tree.map(jnp.add, to_run.shared, at.to_shared),
    )


def _checked(
    follower: Follower, used: jax.Array, known: jax.Array, found: jax.Array, passed: jax.Array
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
    follower: Follower,
    passed: jax.Array,
    value: jax.Array,
    most: float,
    what: str,
    remedy: str = _REMEDY,
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
        remedy=remedy,
        tolerance=0.0,
        comm=follower.motion.plan.grid.communicator,
    )

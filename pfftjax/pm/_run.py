"""A run as a function of arrays: stages of a kick and a drift, after each the way of particles to
their owners, and what is seen of them within a run.

Rows arrive in another order each time. Where that matters each carries its home, the rank and the
row where it began.
"""

import dataclasses
import functools
from collections.abc import Callable, Sequence
from typing import NamedTuple

import jax
import jax.numpy as jnp

from pfftjax._runtime.arrays import PyTree, Vectors
from pfftjax.pencils.internal import coordinate

from ._exchange import Route
from ._motion import Constants, Motion, Shift, Stage
from ._outputs import Views
from ._particles import Particles, sent_to_owners, stay_in_place
from ._passages import Passage, Sights


class Shared(NamedTuple):
    """What all stages depend on, or the cotangents of that.

    Attributes:
        constants: of the run.
        shifts: of its outputs, with a leading axis.
        given: what the function that observes takes besides particles.
        passages: of the light, with a leading axis.

    """

    constants: Constants
    shifts: Shift | None = None
    given: tuple[jax.Array, ...] = ()
    passages: Passage | None = None


class Ends(NamedTuple):
    """What a run begins with and what it makes of that: offsets, momenta, and displacements if
    particles keep them; or the cotangents of these.
    """

    offset: jax.Array
    momentum: jax.Array
    displacements: jax.Array | None = None

    @classmethod
    def of(cls, particles: Particles) -> "Ends":
        """Those of particles."""
        return cls(particles.offset, particles.momentum, particles.displacements)

    def on(self, particles: Particles) -> Particles:
        """Particles that have them."""
        return dataclasses.replace(particles, **self._asdict())


class Run(NamedTuple):
    """What a run is made of and can be differentiated in."""

    start: Ends
    stages: Stage
    first_drift: jax.Array | None
    shared: Shared


class Follower(NamedTuple):
    """A run as a function of arrays: what is static, how many rows each rank begins with, and how
    many it has room for.
    """

    motion: Motion
    views: Views | None
    rows: int
    capacity: int
    total: int
    sights: Sights | None = None

    def start(self, run: Run, fixed: tuple[jax.Array, jax.Array]) -> Particles:
        """The particles before the first stage, on any ranks."""
        cell, used = fixed
        x, p, displacements = run.start
        n0, n1, n2 = self.motion.plan.shape
        start = Particles(cell, x, p, used, self.total, (n0, n1, n2), displacements=displacements)
        if run.first_drift is None:
            return start
        drift = Stage(jnp.zeros_like(run.first_drift), run.first_drift)
        return self.motion.drifted(start, drift, run.shared.constants)

    def to_owners(
        self, particles: Particles, *others: PyTree
    ) -> tuple[Particles, tuple[PyTree, ...], Callable[[jax.Array], jax.Array]]:
        """The particles on the ranks that own them, with them arrays with a row for each, and the
        way back of rows there.
        """
        return sent_to_owners(particles, self.motion.plan.input, self.capacity, *others)

    def end(
        self, run: Run, fixed: tuple[jax.Array, jax.Array], home: jax.Array | None
    ) -> tuple[Particles, jax.Array | None, PyTree, PyTree]:
        """The particles after the last stage, their homes if they have some, what outputs have
        seen, and what was seen of light.
        """
        begun, (home,), _ = self.to_owners(self.start(run, fixed), home)

        def body(state: tuple, xs: tuple) -> tuple[tuple, None]:
            (particles, home, kept, sky), (stage, slots, passing) = state, xs
            numbers, passing = (() if x is None else tuple(x) for x in (slots, passing))
            moved, found, sky = self.moved(
                particles, home, stage, run.shared, numbers, self.view_if, sky, passing
            )
            moved, (home_after,), _ = self.to_owners(moved, home)
            for number, new in zip(numbers, found, strict=True):
                kept = jax.lax.cond(number >= 0, _with, lambda kept, *_: kept, kept, number, new)
            return (moved, home_after, kept, sky), None

        kept = slots = sky = passing = None
        number = run.stages.kick.shape[0]
        if self.views is not None:
            outputs = len(self.views.stage)
            like = self.seen_like(begun, home, run.shared)
            kept = jax.tree.map(lambda x: jnp.zeros((outputs, *x.shape), x.dtype), like)
            slots = jnp.asarray(self.views.slots(number))
        if self.sights is not None:
            sky = self.sights.blank(begun.offset.dtype)
            passing = jnp.asarray(self.sights.slots(number))
        return jax.lax.scan(body, (begun, home, kept, sky), (run.stages, slots, passing))[0]

    def moved(
        self,
        particles: Particles,
        home: jax.Array | None,
        stage: Stage,
        shared: Shared,
        numbers: Sequence[int | jax.Array],
        view: Callable[..., PyTree],
        sky: PyTree = None,
        passing: Sequence[int | jax.Array] = (),
    ) -> tuple[Particles, list[PyTree], PyTree]:
        """Particles after a stage, on the ranks where they are, what outputs of these numbers see
        by `view`, and `sky` with what is seen in passages of these numbers.
        """

        def seen(at: Particles, pull: Vectors) -> tuple[list[PyTree], PyTree]:
            found = [view(number, at, pull, home, shared) for number in numbers]
            return found, self.looked(sky, passing, at, pull, shared)

        moved, (found, sky) = self.motion.advanced(particles, stage, shared.constants, seen)
        return moved, found, sky

    def looked(
        self,
        sky: PyTree,
        passing: Sequence[int | jax.Array],
        at: Particles,
        pull: Vectors,
        shared: Shared,
    ) -> PyTree:
        """`sky`, with what is seen of particles before the kick of a stage in its passages."""
        for number in passing:
            assert self.sights is not None
            assert shared.passages is not None
            sky = self.sights.added(number, sky, at, pull, shared.passages)
        return sky

    def view(
        self,
        number: int | jax.Array,
        at: Particles,
        pull: Vectors,
        home: jax.Array | None,
        shared: Shared,
    ) -> PyTree:
        """What an output sees of its stage: of the particles before the kick, and the force."""
        assert self.views is not None
        shift = jax.tree.map(lambda x: x[number], shared.shifts)
        moved = self.motion.shifted(at, pull, shift, shared.constants)
        if self.views.observe is None:
            return Ends(*self.sent_home(home, moved.used, moved.offset, moved.momentum))
        a = jnp.asarray(self.views.scale_factor, moved.offset.dtype)[number]
        moved = dataclasses.replace(moved, scale_factor=a)
        seen = self.views.observe(moved, shared.constants.sides, *shared.given)
        return jax.tree.map(jnp.asarray, seen)

    def view_if(
        self,
        number: jax.Array,
        at: Particles,
        pull: Vectors,
        home: jax.Array | None,
        shared: Shared,
    ) -> PyTree:
        """`view`, or zeros for a number below zero."""
        like = self.seen_like(at, home, shared)
        return jax.lax.cond(
            number >= 0,
            lambda: self.view(number, at, pull, home, shared),
            lambda: jax.tree.map(lambda x: jnp.zeros(x.shape, x.dtype), like),
        )

    def seen_like(self, at: Particles, home: jax.Array | None, shared: Shared) -> PyTree:
        """Shapes and types of what an output sees."""
        return jax.eval_shape(functools.partial(self.view, 0), at, at.offset, home, shared)

    @property
    def sees_rows(self) -> bool:
        """Whether outputs are particles, in the rows in which they began."""
        return self.views is not None and self.views.observe is None

    def homes(self) -> jax.Array | None:
        """(rows, 2), the rank and the row where each begins; None where it keeps its row."""
        mesh = self.motion.plan.input
        if stay_in_place(self.rows, mesh, self.capacity):
            return None
        rank = coordinate(mesh.grid.communicator)
        row = jnp.arange(self.rows, dtype=jnp.int32)
        return jnp.stack([jnp.broadcast_to(rank, row.shape), row], axis=1)

    def sent_home(
        self, home: jax.Array | None, used: jax.Array, *xs: jax.Array
    ) -> list[jax.Array]:
        """Arrays with a row for each particle, in the order in which particles began."""
        if home is None:
            return [x[: self.rows] for x in xs]
        comm = self.motion.plan.grid.communicator
        rank = jnp.where(jnp.arange(home.shape[0]) < used, home[:, 0], comm.size)
        route = Route.to_ranks(rank, self.rows, comm)
        row, *there = route.send((home[:, 1], *xs))
        row = jnp.where(jnp.arange(self.rows) < route.count, row, self.rows)
        return [jnp.zeros_like(x).at[row].set(x, mode="drop", unique_indices=True) for x in there]


def _with(kept: PyTree, number: jax.Array, new: PyTree) -> PyTree:
    """`kept` with another element of that number."""
    return jax.tree.map(lambda x, one: x.at[number].set(one), kept, new)

"""Light on its way through a run: what an observer sees of particles within the steps.

Between the ends of a stage's part of a step particles move by x + drift p + fall F, as outputs
do (`Outputs`). Their factors there are known at some times, and between these as polynomials of
the distance from which light arrives: so each particle is seen where it is when light passes it.
"""

import dataclasses
import functools
from typing import Any, NamedTuple, Protocol, runtime_checkable

import jax
import jax.numpy as jnp
import numpy as np

from pfftjax._runtime.arrays import PyTree, Reals, Scalar, SeriesLike, Vectors

from ._distances import comoving_distance
from ._expected import as_known
from ._growth import Cosmology
from ._integrators import Integrator
from ._outputs import Staged
from ._particles import Particles
from ._stages import stages_of

# Times within half of a step at which factors are known.
_NODES = 4


class Passage(NamedTuple):
    """The part of a step in which light comes from distances between `far` and `near` [Mpc/h], and
    how particles go through it, in Chebyshev polynomials of u, from -1 at `near` to 1 at `far`.

    Those of a whole run have a leading axis.

    Attributes:
        near: the distance at its end.
        far: that at its beginning.
        drift: (terms,), displacement [Mpc/h] per momentum, from the positions of the stage.
        fall: (terms,), displacement per force.
        paths: (2, terms), of each of the particles' displacements; None for nothing.

    """

    near: Scalar
    far: Scalar
    drift: Reals
    fall: Reals
    paths: Reals | None

    def way(
        self, distance: Reals, momentum: Reals, pull: Reals, displacements: Reals | None
    ) -> Reals:
        """How far particles of such momenta, forces and displacements (3, rows) are from where
        they are at the stage [Mpc/h], each when light comes from a distance (rows,). An axis for
        each component in front, which particles have last elsewhere, is what compilers make
        vectors of.
        """
        u = (2 * distance - self.near - self.far) / (self.far - self.near)
        terms = [jnp.ones_like(u), u]
        for _ in range(2, self.drift.shape[0]):
            terms.append(2 * u * terms[-1] - terms[-2])

        def summed(factors: Reals) -> Reals:
            return functools.reduce(jnp.add, [factors[n] * x for n, x in enumerate(terms)])

        way = summed(self.drift) * momentum + summed(self.fall) * pull
        if self.paths is None or displacements is None:
            return way
        return way + sum(summed(self.paths[n]) * displacements[n] for n in range(2))

    def ways(self) -> Reals:
        """(4, 3), of momenta, forces and both displacements, by what they are multiplied: from
        where a particle is at the stage to where it is when light comes from `near`, and from
        `far`; and at most, from the latter to anywhere in the passage.
        """
        factors = jnp.stack([self.drift, self.fall])
        others = jnp.zeros_like(factors) if self.paths is None else self.paths
        factors = jnp.concatenate([factors, others])
        signs = jnp.asarray((-1.0) ** np.arange(factors.shape[1]), factors.dtype)
        reach = 2 * jnp.abs(factors[:, 1:]).sum(1)
        return jnp.stack([(factors * signs).sum(1), factors.sum(1), reach], -1)


@runtime_checkable
class Observer(Protocol):
    """One who sees particles when light passes them, as `pfftjax.observables.LightCone`."""

    @property
    def ends(self) -> tuple[float, float]:
        """The smallest and the largest distance [Mpc/h] from which it sees light."""
        ...

    def blank(self, sides: tuple[float, ...], dtype: np.dtype, here: str) -> PyTree:
        """What there is before anything has been seen, in a box with these sides."""
        ...

    def added(
        self,
        seen: PyTree,
        particles: Particles,
        pull: Vectors,
        passage: Passage,
        sides: tuple[float, ...],
    ) -> PyTree:
        """`seen`, and what is seen in a passage, of this rank's particles at its stage and before
        its kick.
        """
        ...

    def result(self, seen: PyTree, total: int, sides: tuple[float, ...]) -> PyTree:
        """What the user gets of the sum over all ranks."""
        ...


@dataclasses.dataclass(frozen=True)
class Sights(Staged):
    """The passages of a run, with the stage of each, and who sees them."""

    observer: Observer
    sides: tuple[float, ...]

    def blank(self, dtype: np.dtype, here: str = "simulate") -> PyTree:
        """What there is before anything has been seen."""
        return self.observer.blank(self.sides, dtype, here)

    def added(
        self,
        number: int | jax.Array,
        seen: PyTree,
        particles: Particles,
        pull: Vectors,
        passages: Passage,
    ) -> PyTree:
        """`seen`, and what is seen in the passage with that number; nothing below zero."""

        def look() -> PyTree:
            passage = jax.tree.map(lambda x: x[number], passages)
            return self.observer.added(seen, particles, pull, passage, self.sides)

        if isinstance(number, int):
            return look()
        return jax.lax.cond(number >= 0, look, lambda: seen)


def passages_of(
    integrator: Integrator,
    cosmology: Cosmology,
    scale_factors: SeriesLike | object,
    dtype: np.dtype,
    here: str,
) -> tuple[tuple[int, ...], Passage]:
    """The passages of a run, which follow each other in time, and the stage of each.

    An integrator's outputs in the two halves of a step may belong to different stages.
    """
    given: Any = scale_factors
    ends = as_known(given)
    if not isinstance(ends, np.ndarray) or ends.ndim != 1 or not np.all(np.diff(ends) > 0):
        raise ValueError(
            f"{here}: a light cone needs scale factors that grow from each to the next and are "
            f"known while the program is traced, as np.linspace(0.1, 1, 11); got {scale_factors!r}"
        )
    if ends[-1] > 1 + 1e-6:
        raise ValueError(
            f"{here}: light arrives at a = 1, and the run goes on to a = {ends[-1]}; end it at 1"
        )
    ends = np.minimum(np.asarray(ends, float), 1.0)
    middle = np.sqrt(ends[:-1] * ends[1:])
    bounds = np.stack([ends[:-1], middle, middle, ends[1:]], -1).reshape(-1, 2)
    spread = 0.5 - 0.5 * np.cos(np.pi * (np.arange(_NODES) + 0.5) / _NODES)
    nodes = bounds[:, :1] + spread * np.diff(bounds, axis=1)
    _, _, shifts, views = stages_of(
        integrator, cosmology, scale_factors, nodes.ravel(), dtype, here
    )
    assert shifts is not None
    assert views is not None
    stage = np.asarray(views.stage).reshape(nodes.shape)
    if np.any(stage != stage[:, :1]):
        raise TypeError(
            f"{here}: for a light cone the integrator's outputs in each half of a step must "
            f"belong to one stage, got those of stages {stage.tolist()}"
        )
    stage = stage[:, 0]
    if np.all(stage[::2] == stage[1::2]):
        nodes = nodes.reshape(-1, 2 * _NODES)
        bounds, stage = bounds.reshape(-1, 4)[:, [0, 3]], stage[::2]
    far, near = comoving_distance(cosmology, bounds.T)
    distance = comoving_distance(cosmology, nodes)
    u = (2 * distance - (near + far)[:, None]) / (far - near)[:, None]
    # (passages, nodes, terms), T_n(u) = cos(n arccos u).
    terms = jnp.cos(jnp.arange(nodes.shape[1]) * jnp.arccos(u)[..., None])
    paths = None if shifts.paths is None else shifts.paths.drift
    columns = [shifts.drift, shifts.fall]
    if paths is not None:
        columns += [paths[:, 0], paths[:, 1]]
    known = jnp.stack([x.reshape(nodes.shape) for x in columns], -1).astype(u.dtype)
    found = jnp.linalg.solve(terms, known).astype(dtype)
    return tuple(int(i) for i in stage), Passage(
        near.astype(dtype),
        far.astype(dtype),
        found[..., 0],
        found[..., 1],
        None if paths is None else jnp.moveaxis(found[..., 2:], -1, -2),
    )

"""The light cone of an observer: particles when light passes them, on shells of the sky."""

import dataclasses
import math
from collections.abc import Sequence
from typing import Literal

import jax
import jax.numpy as jnp
import numpy as np

from pfftjax._runtime.arrays import STATIC, Reals, Scalar, Vectors
from pfftjax.pencils.internal import note_type
from pfftjax.pm import Particles
from pfftjax.pm.internal import Passage

from ._crossings import Passed, added, copies, if_any
from ._healpix import by_parity, checked_nside, interpolation_weights, pixels_of

Interpolation = Literal["linear", "nearest"]


@dataclasses.dataclass(frozen=True)
class LightCone:
    """What an observer sees today of a simulation: how many particles there are in each pixel of
    shells around, each where it is when the light passes it that arrives today.

    It is given to a run, ``simulation.run(noise, light_cone=LightCone(...))``. Within the steps
    particles are where outputs would be (`pfftjax.pm.Outputs`), so that a light cone takes no step
    and no force. The universe is the box again and again, as far as the shells go. Every rank sees
    its own particles, and the maps of all ranks are added at the end of the run.

    Attributes:
        edges: (shells + 1,) comoving distances [Mpc/h] that grow; numbers that are known while a
            program is traced. A run refuses those that light passes before it begins or after it
            ends: let them be within `comoving_distance` of its scale factors.
        nside: a map has 12 nside^2 pixels, in the order of rings (healpy's).
        observer: where the observer is, in the coordinates of the particles [Mpc/h]; None for the
            centre of the box.
        interpolation: "linear" shares each particle among the four pixels around it, as
            `interpolation_weights` does, and among the two shells whose centres are beside it: so
            maps are differentiable in positions. With "nearest" it is in one pixel of one shell.

    Raises:
        ValueError: when it is made: edges or a resolution that do not fit.

    Example:
        >>> cone = LightCone(edges=(200.0, 400.0, 600.0), nside=32)
        >>> cone.centres.tolist()
        [300.0, 500.0]

    """

    edges: Sequence[float] | np.ndarray
    nside: int
    observer: Sequence[float] | None = None
    interpolation: Interpolation = "linear"

    def __post_init__(self) -> None:
        here = "LightCone"
        checked_nside(self.nside, here)
        edges = np.asarray(self.edges, float)
        if edges.ndim != 1 or edges.size < 2 or edges[0] < 0 or not np.all(np.diff(edges) > 0):
            raise ValueError(
                f"{here}: edges are two or more comoving distances [Mpc/h] that grow, as "
                f"np.linspace(200, 1000, 9); got {self.edges!r}"
            )
        if self.observer is not None and np.shape(self.observer) != (3,):
            raise ValueError(f"{here}: observer must be three coordinates, got {self.observer!r}")
        if self.interpolation not in ("linear", "nearest"):
            raise ValueError(
                f"{here}: interpolation must be linear or nearest, got {self.interpolation!r}"
            )
        object.__setattr__(self, "edges", tuple(edges.tolist()))
        if self.observer is not None:
            object.__setattr__(self, "observer", tuple(float(x) for x in self.observer))

    @property
    def shells(self) -> int:
        """How many shells there are."""
        return len(self.edges) - 1

    @property
    def ends(self) -> tuple[float, float]:
        """The first and the last of the edges [Mpc/h]."""
        return self.edges[0], self.edges[-1]

    @property
    def pixels(self) -> int:
        """How many pixels a map has."""
        return 12 * self.nside**2

    @property
    def centres(self) -> np.ndarray:
        """(shells,), half way between the edges [Mpc/h]."""
        edges = np.asarray(self.edges)
        return (edges[1:] + edges[:-1]) / 2

    def weights(self, distance: Reals) -> Reals:
        """(..., shells), the part of a particle at a distance (...) that is in each shell."""
        if self.interpolation == "nearest":
            edges = jnp.asarray(self.edges, distance.dtype)
            is_in = (distance[..., None] >= edges[:-1]) & (distance[..., None] < edges[1:])
            return is_in.astype(distance.dtype)
        shell, part = self._beside(distance)
        value = jnp.where(self._is_seen(distance)[..., None], part, 0)
        is_its = shell[..., None] == jnp.arange(self.shells)
        return (is_its * value[..., None]).sum(-2)

    def _is_seen(self, distance: Reals) -> jax.Array:
        return (distance >= self.ends[0]) & (distance < self.ends[1])

    def _beside(self, distance: Reals) -> tuple[jax.Array, jax.Array]:
        """(..., 2), the shells whose centres are beside a distance, and the part in each: first
        the one of even number.
        """
        centres = jnp.asarray(self.centres, distance.dtype)
        if self.shells == 1:
            part = jnp.stack([jnp.ones_like(distance), jnp.zeros_like(distance)], -1)
            return jnp.zeros(part.shape, jnp.int32), part
        left = (distance[..., None] >= centres[1:-1]).sum(-1, dtype=jnp.int32)
        start, end = centres[left], centres[left + 1]
        part = jnp.clip((distance - start) / (end - start), 0, 1)
        return by_parity(left, part)

    def _deposit(self, distance: Reals, vector: Vectors) -> tuple[jax.Array, jax.Array, jax.Array]:
        """Shells, pixels and values (particles, n) of particles."""
        is_seen = self._is_seen(distance)
        if self.interpolation == "nearest":
            edges = jnp.asarray(self.edges, distance.dtype)
            shell = (distance[:, None] >= edges[1:-1]).sum(-1, dtype=jnp.int32, keepdims=True)
            pixel = pixels_of(vector, self.nside)[:, None]
            return shell, pixel, is_seen[:, None].astype(distance.dtype)
        shell, part = self._beside(distance)
        pixel, weight = if_any(
            is_seen,
            lambda: interpolation_weights(vector, self.nside),
            (4, jnp.int32),
            (4, vector.dtype),
        )
        value = (part[:, :, None] * weight[:, None, :]).reshape(-1, 8)
        return (
            jnp.repeat(shell, 4, axis=-1),
            jnp.tile(pixel, (1, 2)),
            jnp.where(is_seen[:, None], value, 0),
        )

    def observer_in(self, sides: tuple[float, ...]) -> tuple[float, ...]:
        """Where the observer is, within the box itself."""
        if self.observer is None:
            return tuple(side / 2 for side in sides)
        return tuple(x % side for x, side in zip(self.observer, sides, strict=True))

    def blank(self, sides: tuple[float, ...], dtype: np.dtype, here: str) -> Reals:
        """Maps of nothing: (shells, pixels). For `pfftjax.pm.simulate`, as what follows."""
        del sides, here
        return jnp.zeros((self.shells, self.pixels), dtype)

    def added(
        self,
        seen: Reals,
        particles: Particles,
        pull: Vectors,
        passage: Passage,
        sides: tuple[float, ...],
    ) -> Reals:
        """The maps, and what is seen in a passage of this rank's particles."""
        observer = self.observer_in(sides)
        shifts = copies(sides, observer, self.ends[1])
        dtype = particles.offset.dtype

        def look(particles: Particles, pull: Vectors, passage: Passage, seen: Reals) -> Reals:
            place = particles.coordinates(jnp.asarray(sides, dtype)) - jnp.asarray(observer, dtype)
            passed = Passed(place, particles.momentum, pull, particles.displacements, passage)
            return added(
                seen,
                passed,
                particles.used,
                shifts,
                self.ends,
                self._deposit,
                shares=8 if self.interpolation == "linear" else 1,
            )

        return jax.lax.cond(
            (passage.near <= self.ends[1]) & (passage.far >= self.ends[0]),
            look,
            lambda *operands: operands[-1],
            particles,
            pull,
            passage,
            seen,
        )

    def result(self, seen: Reals, total: int, sides: tuple[float, ...]) -> "Shells":
        """The shells of the maps of all ranks."""
        return Shells(seen, jnp.asarray(total / math.prod(sides), seen.dtype), self)


@note_type
@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Shells:
    """What a `LightCone` has seen, the same on every rank.

    Attributes:
        counts: (shells, pixels), how many particles are in each pixel.
        number_density: the mean in the box [(h/Mpc)^3].
        light_cone: of which they are.

    """

    __no_type_check__ = True  # JAX makes some of these without arrays

    counts: Reals
    number_density: Scalar
    light_cone: LightCone = dataclasses.field(metadata=STATIC)

    def expected(self) -> Reals:
        """(shells,), the counts of a pixel in a universe of constant density."""
        distance, weights = radial_rule(self.light_cone)
        volume = (self.light_cone.weights(distance) * (weights * distance**2)[:, None]).sum(0)
        per_pixel = 4 * np.pi / self.light_cone.pixels * volume
        return self.number_density * per_pixel.astype(self.counts.dtype)

    def contrast(self) -> Reals:
        """(shells, pixels), the density contrast: counts over those that are expected, less 1."""
        return self.counts / self.expected()[:, None] - 1


def radial_rule(cone: LightCone, points: int = 6) -> tuple[Reals, Reals]:
    """Distances (n,) and weights (n,) of integrals over all shells, by the rule of Gauss and
    Legendre between edges and centres, where the parts of shells have kinks.
    """
    ends = np.sort(np.concatenate([np.asarray(cone.edges), cone.centres]))
    x, w = np.polynomial.legendre.leggauss(points)
    width = np.diff(ends)[:, None]
    distance = ends[:-1, None] + width * (x + 1) / 2
    return jnp.asarray(distance.ravel(), float), jnp.asarray((width * w / 2).ravel(), float)

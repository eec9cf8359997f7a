"""Points where the transforms take them: on the ranks that own their cells of the finer mesh."""

import dataclasses

import jax
import jax.numpy as jnp

from pfftjax._runtime.arrays import Count, Counts, Rows, RowsLike
from pfftjax.pencils.internal import note_type
from pfftjax.pm import Positions, Route


@note_type
@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Points:
    """Points for any number of transforms of a plan, with the way to where they came from.

    Made by `PencilNUFFT.to_owners`, or by `PencilNUFFT.at_owners` of points that are there.

    Attributes:
        positions: in units of cells of the plan's `mesh`.
        order: int32 (capacity,), in which the points are gone through: neighbours in space
            follow each other.
        route: how they came, or None of points that have not moved.

    """

    __no_type_check__ = True  # JAX makes some of these without arrays

    positions: Positions
    order: Counts
    route: Route | None = None

    @property
    def rows(self) -> int:
        """Rows of what belongs to the points as the caller has them."""
        return self.route.rows if self.route else self.positions.cell.shape[0]

    @property
    def count(self) -> Count:
        """How many points are on this rank now."""
        return self.positions.used

    def send(self, x: RowsLike) -> Rows:
        """Rows of the caller's points to where the points are."""
        return self.route.send(x) if self.route else jnp.asarray(x)

    def send_back(self, y: RowsLike) -> Rows:
        """Rows of the points here to where they came from, in the order there."""
        return self.route.send_back(y) if self.route else jnp.asarray(y)

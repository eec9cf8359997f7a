"""Assignment kernels: how a particle is shared out among the mesh points near it.

They are the B-splines of 1 to 4 points along each axis (Hockney & Eastwood 1988, section 5-3).
"""

from typing import NamedTuple

from pfftjax._runtime.arguments import where
from pfftjax.pencils import Pencil
from pfftjax.spectral.internal import AssignmentKernel as Kernel
from pfftjax.spectral.internal import order_of


class Assignment(NamedTuple):
    """Which points a particle reaches along each axis, as in cpp/pm/assignment.h.

    Attributes:
        points: how many.
        shift: 1 where particles are painted half a cell further up along each axis, 0 otherwise.

    """

    points: int
    shift: int = 0

    @property
    def _lead(self) -> int:
        """Half cells from which points are counted: the first is floor(fraction + lead / 2)."""
        return self.shift + 2 - self.points

    @property
    def before(self) -> int:
        """Ghosts that a block needs before its first cell."""
        return max(0, -(self._lead // 2))

    @property
    def after(self) -> int:
        """Ghosts that it needs after its last one."""
        return self._lead // 2 + self._lead % 2 + self.points - 1

    @property
    def width(self) -> tuple[tuple[int, int], tuple[int, int]]:
        """Ghosts before and after, along axes 0 and 1."""
        each = (self.before, self.after)
        return each, each

    def padded(self, pencil: Pencil) -> tuple[int, int, int]:
        """The shape of this rank's block with its ghosts."""
        x, y, z = pencil.local_shape
        ghosts = self.before + self.after
        return x + ghosts, y + ghosts, z


def assignment_of(kernel: Kernel, pencil: Pencil, operation: str) -> Assignment:
    """The kernel of that name."""
    return Assignment(order_of(kernel, where(operation, pencil.grid.communicator)))

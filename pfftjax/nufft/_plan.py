"""Plans of transforms between points anywhere and modes of a box."""

import dataclasses
import functools
import math
from collections.abc import Sequence
from typing import Literal, TypeAlias

import jax
import jax.numpy as jnp
import numpy as np
from jax.core import Tracer
from jax.extend.core import Primitive
from jax.typing import DTypeLike
from mpi4py import MPI

from pfftjax._runtime.arguments import where
from pfftjax._runtime.arrays import BlockLike, ComplexBlock, Reals, Rows, RowsLike, VectorsLike
from pfftjax._runtime.communicators import Communicator
from pfftjax.fft import PencilFFT
from pfftjax.fft.internal import is_length, sides_of, smooth_size
from pfftjax.pencils import ExchangeMethod, Pencil, ProcessGrid
from pfftjax.pm import Positions, Route
from pfftjax.pm.internal import as_positions, rescaled, room_for

from ._kernel import UPSAMPLINGS, least_tolerance, width_for
from ._points import Points
from ._spreading import COMPLEX, order_p
from ._transforms import Meshes, to_modes_p, to_points_p

Layout: TypeAlias = Literal["transposed", "natural"]
AnyPoints: TypeAlias = Points | Positions | VectorsLike

# Below these, rounding of the points and of the sums is larger than the error of the kernel.
_LEAST = {"float32": 1e-6, "float64": 1e-14}


@jax.tree_util.register_static
@dataclasses.dataclass(frozen=True, init=False)
class PencilNUFFT:
    """Non-uniform Fourier transforms in three dimensions, over a process grid.

    Between values at M points x_j, which may be anywhere in a periodic box and on any rank, and
    modes k = 2 pi m / box_size, with integers -n/2 <= m < n/2 along each axis:

        type 1   F(k)   = sum_j c_j exp(isign i k x_j)
        type 2   c(x_j) = sum_k F(k) exp(-isign i k x_j)

    Each is the adjoint of the other, exactly: as computed, too. The modes are distributed and
    ordered as the spectrum of a `PencilFFT` of that shape: in FFT order (`numpy.fft.fftfreq`), by
    default transposed in memory. Of an even n the mode -n / 2 stands for that sign alone.

    A point is spread to a mesh with twice as many cells as there are modes, with the kernel of
    Barnett et al. (2019), "exponential of semicircle"; the mesh is transformed,
    and the modes are divided by the transform of the kernel. Errors are relative to the norm of
    what is transformed, as those of finufft.

    A plan is a description: frozen, hashable and equal by value, as a `PencilFFT`.

    Attributes:
        shape: how many modes there are along each axis, any sizes from 1.
        grid: the process grid, or a communicator over whose ranks the plan makes one.
        tolerance: 1e-1 to 1e-14 in float64, to 1e-6 in float32. The kernel reaches `width` cells
            along each axis, 2 more than there are digits, and the time of spreading is in
            proportion to the third power of that.
        isign: 1 or -1, the sign in type 1; type 2 has the other one. -1 is that of a forward
            transform, `numpy.fft`; finufft's default is 1.
        box_size: period of the points: a number, or one for each axis; 2 pi by default.
        upsampling: mesh cells for each mode along an axis, at least: 2, or 1.25, whose mesh has a
            quarter of the cells and whose kernel is half as wide again. It is for few points and
            many modes, and its tolerance ends at 1.4e-9.
        layout: of the modes, "transposed" or "natural", as for `PencilFFT`.
        method: how the ranks exchange what they hold, as for `PencilFFT`.

    Raises:
        ValueError: sizes, a tolerance or other values that do not make sense.
        TypeError: as `PencilFFT`.

    Example:
        >>> plan = PencilNUFFT((8, 8, 8), ProcessGrid(), tolerance=1e-4)
        >>> points = jnp.array([[0.5, 1.0, 4.0], [6.0, 0.1, 3.0]])
        >>> modes = plan.type1(points, jnp.ones(2))
        >>> modes.shape == plan.output.local_shape
        True
        >>> plan.type2(points, modes).shape
        (2,)

    """

    shape: tuple[int, ...]
    grid: ProcessGrid
    tolerance: float
    isign: int
    box_size: tuple[float, ...]
    upsampling: float
    layout: Layout
    method: ExchangeMethod

    def __init__(
        self,
        shape: Sequence[int],
        grid: ProcessGrid | MPI.Comm | Communicator,
        *,
        tolerance: float = 1e-6,
        isign: int = -1,
        box_size: float | Sequence[float] = 2 * math.pi,
        upsampling: float = 2.0,
        layout: Layout = "transposed",
        method: ExchangeMethod = ExchangeMethod.AUTOMATIC,
    ) -> None:
        modes = PencilFFT(shape, grid, norm="forward", layout=layout, method=method)
        here = where("PencilNUFFT", modes.grid.communicator)
        if isinstance(tolerance, Tracer) or not is_length(tolerance):
            raise ValueError(
                f"{here}: tolerance must be a static number from 1e-14 to 0.1, got {tolerance!r}"
            )
        if isign not in (1, -1):
            raise ValueError(f"{here}: isign must be 1 or -1, got {isign!r}")
        if upsampling not in UPSAMPLINGS:
            raise ValueError(f"{here}: upsampling must be 2.0 or 1.25, got {upsampling!r}")
        least = least_tolerance(upsampling)
        if not least <= tolerance <= 0.1:
            raise ValueError(
                f"{here}: tolerance {tolerance:g} with upsampling {upsampling:g} must be between "
                f"{least:g} and 0.1"
            )
        sides = sides_of(box_size, 3, here)
        if any(isinstance(side, Tracer) for side in sides):
            raise TypeError(
                f"{here}: box_size must be static, got {box_size!r}; divide the points by it"
            )
        values = {
            "shape": modes.shape,
            "grid": modes.grid,
            "tolerance": float(tolerance),
            "isign": int(isign),
            "box_size": tuple(float(side) for side in sides),
            "upsampling": float(upsampling),
            "layout": layout,
            "method": method,
        }
        for name, value in values.items():
            object.__setattr__(self, name, value)

    def _here(self, method: str) -> str:
        return where(f"PencilNUFFT.{method}", self.grid.communicator)

    @property
    def width(self) -> int:
        """Cells of the mesh that a point is spread to, along each axis."""
        return width_for(self.tolerance, self.upsampling)

    @functools.cached_property
    def _meshes(self) -> Meshes:
        fine_shape = tuple(smooth_size(math.ceil(self.upsampling * n)) for n in self.shape)
        modes, fine = (
            PencilFFT(shape, self.grid, norm="forward", layout=self.layout, method=self.method)
            for shape in (self.shape, fine_shape)
        )
        return Meshes(modes, fine, self.width, self.upsampling)

    @property
    def mesh(self) -> Pencil:
        """The finer mesh that points are spread to; its cells say who owns a point."""
        return self._meshes.fine.input

    @property
    def output(self) -> Pencil:
        """Pencil of the modes."""
        return self._meshes.modes.output

    def wavenumbers(self, dtype: DTypeLike | None = None) -> tuple[Reals, ...]:
        """Wavenumbers k of this rank's modes, as `PencilFFT.wavenumbers` of this box size."""
        return self._meshes.modes.wavenumbers(self.box_size, dtype)

    def to_owners(self, points: Positions | VectorsLike, capacity: int | None = None) -> Points:
        """Send points to the ranks that own their cells, for any number of transforms.

        Args:
            points: (rows, 3) coordinates of this rank's points, in the unit of `box_size` and of
                any size, or `pfftjax.pm.Positions` in units of cells of a mesh with `shape` cells,
                as ``particles.positions``, which keep their digits in float32 too. Float32 or
                float64, which is the precision of the transforms.
            capacity: how many points a rank has room for, a static integer. By default that of
                `pfftjax.pm.to_owners`, if all ranks have as many points as this one. A grid of one
                rank sends nothing, and has room for all.

        Raises:
            ValueError, TypeError: arguments that do not fit.
            jax.errors.JaxRuntimeError: when it runs, on every rank: as `pfftjax.pm.Route`.

        Differentiable in the points.

        """
        positions = self._in_cells(points, "to_owners")
        comm = self.grid.communicator
        rows = positions.cell.shape[0]
        room = room_for(capacity, rows * comm.size, self.mesh, "PencilNUFFT.to_owners")
        if room < 0:
            raise ValueError(f"{self._here('to_owners')}: capacity cannot be negative, got {room}")
        if comm.size == 1:
            return self._placed(positions, None)
        route = Route.to_owners(positions, self.mesh, room)
        there = Positions(route.send(positions.cell), route.send(positions.offset), route.count)
        return self._placed(there, route)

    def at_owners(self, points: Positions | VectorsLike) -> Points:
        """Points for any number of transforms, which are on the ranks that own their cells.

        Args:
            points: as in `to_owners`, each in this rank's block of `mesh`, whose cell i begins at
                ``i * box_size / mesh.global_shape``. Transforms raise a
                `jax.errors.JaxRuntimeError` where one is not.

        """
        return self._placed(self._in_cells(points, "at_owners"), None)

    def _in_cells(self, points: Positions | VectorsLike, operation: str) -> Positions:
        """Positions in units of cells of the mesh."""
        at = as_positions(points, self.mesh, f"PencilNUFFT.{operation}")
        dtype = at.offset.dtype
        self._check_tolerance(dtype, operation)
        cells = self.mesh.global_shape
        if not isinstance(points, Positions):
            scale = [m / side for m, side in zip(cells, self.box_size, strict=True)]
            return at._replace(offset=at.offset * jnp.asarray(scale, dtype))
        cell, offset = rescaled(at.cell, at.offset, self.shape, cells)
        return at._replace(cell=cell, offset=offset)

    def _check_tolerance(self, dtype: np.dtype, operation: str) -> None:
        if self.tolerance < _LEAST[dtype.name]:
            raise ValueError(
                f"{self._here(operation)}: the plan's tolerance is {self.tolerance:g}, but "
                f"{dtype.name} gives {_LEAST[dtype.name]:g} at best; take points in float64, or "
                "a plan with a larger tolerance"
            )

    def _placed(self, positions: Positions, route: Route | None) -> Points:
        order = order_p.bind(*positions, pencil=self.mesh, width=self.width)
        return Points(positions, order, route)

    def _points(self, points: AnyPoints, capacity: int | None, operation: str) -> Points:
        if not isinstance(points, Points):
            return self.to_owners(points, capacity)
        if capacity is not None:
            raise ValueError(
                f"{self._here(operation)}: these points have a capacity already; give it to "
                "to_owners only"
            )
        return points

    def type1(
        self, points: AnyPoints, strengths: RowsLike, *, capacity: int | None = None
    ) -> ComplexBlock:
        """The modes of strengths at points: F(k) = sum_j c_j exp(isign i k x_j).

        Args:
            points: `Points` of `to_owners` or `at_owners`, or what these are made of: `to_owners`
                takes it.
            strengths: real or complex, (rows,) or (rows, components): in the order of the points
                that the caller has.
            capacity: as in `to_owners`.

        Returns:
            This rank's block of the modes, complex, of shape ``output.local_shape``, or
            ``(components, *output.local_shape)``.

        Raises:
            As `to_owners`.

        Differentiable in strengths and points to any order, with the same tolerance; derivatives
        are transforms.

        """
        at = self._points(points, capacity, "type1")
        here = self._here("type1")
        c = jnp.asarray(strengths)
        if c.ndim not in (1, 2) or c.shape[0] != at.rows:
            raise ValueError(
                f"{here}: strengths must be ({at.rows},) or ({at.rows}, components), one row for "
                f"each point, got {c.shape}"
            )
        c = self._complex(c, at, here, "strengths")
        rows = at.send(c[:, None] if c.ndim == 1 else c)
        modes = self._bind(to_modes_p, at, rows, self.isign)
        return modes[0] if c.ndim == 1 else modes

    def type2(self, points: AnyPoints, modes: BlockLike, *, capacity: int | None = None) -> Rows:
        """The values at points of a sum of modes: c(x_j) = sum_k F(k) exp(-isign i k x_j).

        Args:
            points: as in `type1`.
            modes: real or complex, this rank's block: ``output.local_shape``, or ``(components,
                *output.local_shape)``.
            capacity: as in `to_owners`.

        Returns:
            Complex (rows,) or (rows, components), in the order of the points that the caller has;
            zero in unused rows.

        Raises:
            As `to_owners`.

        Differentiable in modes and points to any order, with the same tolerance; derivatives are
        transforms.

        """
        at = self._points(points, capacity, "type2")
        here = self._here("type2")
        f = jnp.asarray(modes)
        self.output.check_block(f, here, what="modes")
        if f.ndim > 4:
            raise ValueError(f"{here}: modes must be (components, *block), got {f.shape}")
        f = self._complex(f, at, here, "modes")
        values = self._bind(to_points_p, at, f[None] if f.ndim == 3 else f, -self.isign)
        values = at.send_back(values)
        return values[:, 0] if f.ndim == 3 else values

    def _complex(self, x: jax.Array, at: Points, here: str, what: str) -> jax.Array:
        """`x` in the precision of the points."""
        if not (jnp.issubdtype(x.dtype, jnp.number) or x.dtype == bool):
            raise TypeError(f"{here}: {what} must be numbers, got {x.dtype}")
        precision = at.positions.offset.dtype
        if x.dtype in (jnp.float64, jnp.complex128) and precision == jnp.float32:
            raise TypeError(
                f"{here}: {what} are {x.dtype}, but the points are float32; cast one to the "
                "precision of the other"
            )
        return x.astype(COMPLEX[precision.name])

    def _bind(self, transform: Primitive, at: Points, x: jax.Array, sign: int) -> jax.Array:
        return transform.bind(*at.positions, at.order, x, meshes=self._meshes, sign=sign)

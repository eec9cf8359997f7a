"""A whole simulation as one object: from white noise to particles at the times that are wanted."""

import contextlib
import dataclasses
import functools
import math
from collections.abc import Callable, Iterator, Mapping
from typing import Literal, Protocol, runtime_checkable

import jax
import jax.numpy as jnp
import numpy as np
from jax.core import Tracer

from pfftjax._runtime.agreement import private, together
from pfftjax._runtime.arrays import BoxSize, PyTree, RealBlock, RealBlockLike, SeriesLike
from pfftjax._runtime.primitive import static_int, where
from pfftjax.fft import PencilFFT
from pfftjax.pencils import Pencil

from ._field import Power, eisenstein_hu, linear_field
from ._gravity import Gradient
from ._growth import Cosmology
from ._integrators import Integrator, bullfrog
from ._lpt import lpt
from ._motion import Stage
from ._outputs import Views
from ._painting import Kernel
from ._particles import Particles
from ._run import Follower, Run, Shared
from ._simulate import (
    Adjoint,
    checked_capacity,
    checked_motion,
    density_contrast,
    simulate,
    stages_of,
)
from ._spectral import real_plan

Progress = Callable[[int, int], None]


@runtime_checkable
class Checkpoint(Protocol):
    """A file from which a run goes on, as `pfftjax.io.Checkpoint`."""

    def load(self, mesh: Pencil, capacity: int) -> tuple[Particles, Mapping[str, object]] | None:
        """The particles and the attributes that it has, on every rank; None if there is none."""
        ...

    def save_if_due(
        self, particles: Particles, mesh: Pencil, attributes: Mapping[str, object]
    ) -> None:
        """Replace what it has, if that is old enough."""
        ...

    def remove(self, mesh: Pencil) -> None:
        """The run is complete."""
        ...


@dataclasses.dataclass(frozen=True)
class Simulation:
    """Particles in a box, from their initial conditions on: all choices in one place.

    Its methods are the functions of `pfftjax.pm` with these arguments, so that `run` may be part
    of a program that is jitted, differentiated or mapped. Make it inside of a function that is
    differentiated in the cosmology, or change it by `dataclasses.replace`.

    Attributes:
        plan: ``PencilFFT(shape, grid, real=True)``: there is one particle for each of its points.
        box_size: side of the box [Mpc/h]: a number, or one for each axis.
        cosmology: a `jax_cosmo.Cosmology`.
        scale_factors: the start, and the ends of the steps, as ``np.linspace(0.1, 1, 11)``.
        power: the linear power spectrum today, a function of wavenumbers; by default
            `eisenstein_hu` of the cosmology.
        finer: cells of the mesh on which forces are computed for each of the plan's, along each
            axis.
        order: of Lagrangian perturbation theory at the start, as in `lpt`.
        dealias: as in `lpt`.
        integrator: as in `simulate`.
        kernel: as in `simulate`.
        gradient: as in `gravity`.
        capacity: particles that each rank has room for, by default a quarter more than the mean.
        adjoint: as in `simulate`.

    Example:
        >>> import jax_cosmo
        >>> from pfftjax import ProcessGrid
        >>> plan = PencilFFT((8, 8, 8), ProcessGrid(), real=True)
        >>> simulation = Simulation(plan, 100.0, jax_cosmo.Planck15(), np.linspace(0.1, 1, 4))
        >>> noise = jnp.zeros(plan.input.local_shape)
        >>> jax.eval_shape(simulation.run, noise).mesh_shape
        (16, 16, 16)

    """

    plan: PencilFFT
    box_size: BoxSize
    cosmology: Cosmology
    scale_factors: SeriesLike
    _: dataclasses.KW_ONLY
    power: Power | None = None
    finer: int = 2
    order: Literal[1, 2, 3] = 2
    dealias: bool = False
    integrator: Integrator = bullfrog
    kernel: Kernel = "cic"
    gradient: Gradient = "finite-difference"
    capacity: int | None = None
    adjoint: Adjoint = "reversible"

    @property
    def mesh(self) -> PencilFFT:
        """The plan of the mesh on which forces are computed."""
        real_plan(self.plan, "Simulation")
        comm = self.plan.grid.communicator
        finer = static_int(self.finer, "finer", "Simulation", comm)
        if finer < 1:
            raise ValueError(
                f"{where('Simulation', comm)}: finer must be 1 or more cells, got {self.finer}"
            )
        n0, n1, n2 = self.plan.shape
        return dataclasses.replace(self.plan, shape=(finer * n0, finer * n1, finer * n2))

    def linear(self, noise: RealBlockLike) -> RealBlock:
        """The linear density contrast today of white noise, this rank's blocks."""
        power = eisenstein_hu(self.cosmology) if self.power is None else self.power
        return linear_field(noise, self.plan, self.box_size, power)

    def start(self, noise: RealBlockLike) -> Particles:
        """The particles at the first scale factor, of a block of white noise."""
        return lpt(
            self.linear(noise),
            self.plan,
            self.box_size,
            self.cosmology,
            self._ends[0],
            order=self.order,
            mesh_shape=self.mesh.shape,
            dealias=self.dealias,
        )

    def run(
        self,
        noise: RealBlockLike,
        *,
        outputs: SeriesLike | None = None,
        observe: Callable[[Particles], PyTree] | None = None,
    ) -> Particles | list[PyTree]:
        """The particles at the last scale factor, or those of outputs or what is observed of them,
        all as `simulate` returns them.

        Args:
            noise: a block of `white_noise` or `nested_noise` on `plan`.
            outputs: scale factors, as in `simulate`.
            observe: a function of the `Particles` of an output, as in `simulate`.

        Raises:
            ValueError, TypeError, jax.errors.JaxRuntimeError: as `lpt` and `simulate`.

        """
        return simulate(
            self.start(noise),
            self.mesh,
            self.box_size,
            self.cosmology,
            self.scale_factors,
            integrator=self.integrator,
            kernel=self.kernel,
            gradient=self.gradient,
            capacity=self.capacity,
            adjoint=self.adjoint,
            outputs=outputs,
            observe=observe,
        )

    def density(self, particles: Particles) -> RealBlock:
        """The density contrast of particles, this rank's block on the points of `plan`."""
        if particles.mesh_shape != self.plan.shape:
            particles = particles.rescaled(self.plan.input)
        capacity = None if self.capacity is None else max(self.capacity, particles.rows)
        return density_contrast(particles, self.plan, kernel=self.kernel, capacity=capacity)

    def snapshots(
        self,
        noise: RealBlockLike,
        outputs: SeriesLike | None = None,
        *,
        progress: bool | Progress = False,
        checkpoint: Checkpoint | None = None,
    ) -> Iterator[Particles]:
        """Run outside of jitted code, and yield particles when the run has come to them.

        One step is compiled, and called for each. So there can be progress to see, files of each
        output, and a run that is longer than a job: with a checkpoint it goes on from the last
        one, on any number of ranks, if that is of the same noise and the same steps. An output
        whose time was after the last checkpoint is yielded again.

        Collective over the ranks of the plan's grid.

        Args:
            noise: a block of `white_noise` or `nested_noise` on `plan`.
            outputs: scale factors, as in `simulate`; by default the last one.
            progress: True for a bar of tqdm on rank 0, or a function of (stages done, all stages)
                that every rank calls.
            checkpoint: ``pfftjax.io.Checkpoint(path)``.

        Yields:
            `Particles` at each output, in the order of their times, on the ranks that owned them
            at the nearest stage.

        Raises:
            TypeError: noise that is traced.
            ValueError: a checkpoint of another run; and as `lpt` and `simulate`.

        """
        comm = self.plan.grid.communicator
        if isinstance(noise, Tracer):
            raise TypeError(
                f"{where('Simulation.snapshots', comm)}: the noise is traced: inside of jitted or "
                "differentiated functions, call run(noise, outputs=...)"
            )
        return self._snapshots(jnp.asarray(noise), outputs, progress, checkpoint)

    @property
    def _ends(self) -> jax.Array | np.ndarray:
        """The scale factors as an array, known where they are."""
        a = self.scale_factors
        return a if isinstance(a, jax.Array) else np.asarray(a, jnp.result_type(float))

    def _snapshots(
        self,
        noise: RealBlock,
        outputs: SeriesLike | None,
        progress: bool | Progress,
        checkpoint: Checkpoint | None,
    ) -> Iterator[Particles]:
        name, mesh, grid = "Simulation.snapshots", self.mesh, self.plan.grid
        here = where(name, grid.communicator)
        ends = np.asarray(self._ends, float)
        times = ends[-1:] if outputs is None else np.asarray(outputs, float)
        steps = self.integrator(self.cosmology, ends, outputs=times)
        stages, first_drift, shifts, of_stages = stages_of(steps, noise.dtype, here, times)
        number, total = stages.kick.shape[0], math.prod(self.plan.shape)
        motion = checked_motion(
            mesh, self.box_size, self.cosmology, self.kernel, self.gradient, name
        )
        follower = Follower(
            motion,
            Views(of_stages, tuple(times.tolist()), _itself),
            rows=noise.size,
            capacity=checked_capacity(self.capacity, total, mesh, name),
            total=total,
            mesh_shape=(mesh.shape[0], mesh.shape[1], mesh.shape[2]),
        )
        shared = Shared(motion.constants(self.cosmology, noise.dtype), shifts)
        box = jnp.asarray(motion.sides, noise.dtype)
        mark = {
            "kick": np.asarray(stages.kick),
            "drift": np.asarray(stages.drift),
            "sides": np.asarray(motion.sides, float),
            "noise": _first_numbers(noise, self.plan),
        }
        restored = None if checkpoint is None else checkpoint.load(mesh.input, follower.capacity)
        if restored is None:
            first, start = 0, jax.jit(self.start)(noise)
            run = Run(start.offset, start.momentum, stages, first_drift, shared)
            particles = _begun(follower, run, (start.cell, start.used))
        else:
            particles, attributes = restored
            with together(grid.comm, name):
                first = _stages_done(mark, attributes, here)
        particles = dataclasses.replace(particles, scale_factor=None, box_size=None)

        backward = bool(ends[-1] < ends[0])
        with _shown(progress, number, grid.comm.rank) as show:
            show(first)
            for at in range(first, number):
                stage = jax.tree.map(lambda x, at=at: x[at], stages)
                its = [n for n, of in enumerate(of_stages) if of == at]
                its.sort(key=lambda n: times[n], reverse=backward)
                numbers = [jnp.int32(n) for n in its]
                particles, seen = _advanced(follower, particles, stage, shared, numbers)
                jax.block_until_ready(particles)
                show(at + 1)
                for output in seen:
                    yield dataclasses.replace(output, box_size=box)
                if checkpoint is not None and at + 1 < number:
                    checkpoint.save_if_due(particles, mesh.input, {**mark, "stages": at + 1})
        if checkpoint is not None:
            checkpoint.remove(mesh.input)


def _itself(particles: Particles, _: object) -> Particles:
    return particles


@functools.partial(jax.jit, static_argnums=0)
def _begun(follower: Follower, run: Run, fixed: tuple[jax.Array, jax.Array]) -> Particles:
    """The particles before the first stage, on the ranks that own them."""
    return follower.to_owners(follower.start(run, fixed))[0]


@functools.partial(jax.jit, static_argnums=0, donate_argnums=1)
def _advanced(
    follower: Follower,
    particles: Particles,
    stage: Stage,
    shared: Shared,
    numbers: list[jax.Array],
) -> tuple[Particles, list[Particles]]:
    """The particles after a stage, and its outputs of these numbers."""
    moved, _, found = follower.after(particles, None, stage, shared, numbers, follower.view)
    return moved, found


@contextlib.contextmanager
def _shown(progress: bool | Progress, stages: int, rank: int) -> Iterator[Callable[[int], None]]:
    """A function that is told how many stages are done."""
    if callable(progress):
        yield lambda done: progress(done, stages)
    elif progress and rank == 0:
        from tqdm import tqdm

        with tqdm(total=stages, unit="step") as bar:

            def show(done: int) -> None:
                bar.update(done - bar.n)

            yield show
    else:
        yield lambda _: None


def _first_numbers(noise: RealBlock, plan: PencilFFT) -> np.ndarray:
    """Some cells of the noise by which it is known again, on every rank."""
    with private(plan.grid.comm) as comm:
        return comm.bcast(np.asarray(noise[0, 0, :8], float) if comm.rank == 0 else None)


def _stages_done(mark: Mapping[str, np.ndarray], found: Mapping[str, object], here: str) -> int:
    """How many stages a checkpoint has done, if it is of the run with this mark.

    Raises:
        ValueError: it is of another one.

    """
    for name, value in mark.items():
        its = np.asarray(found.get(name, ()), float)
        # Another number of ranks, or another compiler, may round a factor otherwise.
        if its.shape != value.shape or not np.allclose(its, value, rtol=1e-4, atol=1e-6):
            raise ValueError(
                f"{here}: the checkpoint is of another run: {name} is {its.tolist()}, and here "
                f"it is {value.tolist()}; give another path, or remove the file"
            )
    return int(np.asarray(found["stages"]))

"""A whole simulation as one object: from white noise to particles at the times that are wanted."""

import dataclasses
import functools
import math
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Literal, Protocol, overload, runtime_checkable

import jax
import jax.numpy as jnp
import numpy as np
from jax.core import Tracer

from pfftjax._runtime.agreement import private, together
from pfftjax._runtime.arguments import static_int, where
from pfftjax._runtime.arrays import BoxSize, Number, PyTree, RealBlock, RealBlockLike, SeriesLike
from pfftjax.collectives import allreduce
from pfftjax.fft import PencilFFT
from pfftjax.pencils import Pencil
from pfftjax.spectral.internal import sides

from ._assignment import Kernel
from ._capacity import room_for
from ._course import Course, Progress, advanced, itself, progress_bar, stages_done
from ._expected import as_known
from ._field import Power, eisenstein_hu, linear_field
from ._gravity import Gradient
from ._growth import Cosmology
from ._integrators import Integrator, bullfrog
from ._lpt import lpt
from ._particles import Particles, to_owners_with_room
from ._passages import Observer
from ._power_spectrum import PowerSpectrum, power_spectrum
from ._primordial import local_non_gaussianity
from ._run import Follower, Shared
from ._simulate import Adjoint, checked_motion, density_contrast, simulate
from ._spectral import real_plan
from ._stages import stages_of, with_displacements_if


@runtime_checkable
class Checkpoint(Protocol):
    """A file from which a run goes on, as `pfftjax.io.Checkpoint`."""

    def load(
        self, mesh: Pencil, capacity: int | None
    ) -> tuple[Particles, Mapping[str, object]] | None:
        """The particles, on the ranks that own them, and the attributes that were saved with them;
        None if there is no file.
        """
        ...

    def save_if_due(
        self, particles: Particles, mesh: Pencil, attributes: Mapping[str, object]
    ) -> None:
        """Replace the file, if it is old enough. The particles are lent: the run goes on with
        their memory.
        """
        ...


@dataclasses.dataclass(frozen=True, eq=False)
class Simulation:
    """Particles in a box, from their initial conditions on: all choices in one place.

    Its methods are the functions of `pfftjax.pm` with these arguments, so that `run` may be part
    of a program that is jitted, differentiated or mapped. Steps are BullFrog's by default, which
    `simulate` has only where they are asked for. Make it inside of a function that is
    differentiated in the cosmology, or change it by `dataclasses.replace`.

    Attributes:
        plan: ``PencilFFT(shape, grid, real=True)``: there is one particle for each of its points.
        box_size: side of the box [Mpc/h]: a number, or one for each axis.
        cosmology: a `jax_cosmo.Cosmology`.
        scale_factors: the start, and the ends of the steps, as ``np.linspace(0.1, 1, 11)``.
        power: the linear power spectrum today, a function of wavenumbers; by default
            `eisenstein_hu` of the cosmology.
        f_nl: of `local_non_gaussianity`; None for a Gaussian universe.
        finer: cells of the mesh on which forces are computed for each of the plan's, along each
            axis.
        order: of Lagrangian perturbation theory at the start, as in `lpt`; `cola` needs 2 or 3.
        dealias: as in `lpt`.
        integrator: as in `simulate`.
        kernel: as in `simulate`.
        gradient: as in `gravity`.
        capacity: particles that each rank has room for, by default as in `simulate`. Where that is
            too small, `run` is an error on every rank, and `snapshots` makes room. A number that
            is given is kept to.
        adjoint: as in `simulate`.

    Example:
        >>> import jax_cosmo
        >>> from pfftjax import ProcessGrid
        >>> plan = PencilFFT((8, 8, 8), ProcessGrid(), real=True)
        >>> simulation = Simulation(plan, 100.0, jax_cosmo.Planck15(), np.linspace(0.1, 1, 6))
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
    f_nl: Number | None = None
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
        delta = linear_field(noise, self.plan, self.box_size, power)
        if self.f_nl is None:
            return delta
        return local_non_gaussianity(
            delta, self.plan, self.box_size, power, self.cosmology, self.f_nl
        )

    def start(self, noise: RealBlockLike, *, keep_displacements: bool = False) -> Particles:
        """The particles at the first scale factor, of a block of white noise; with their
        displacements if another run is to go along them, as in `lpt`.
        """
        return lpt(
            self.linear(noise),
            self.plan,
            self.box_size,
            self.cosmology,
            as_known(self.scale_factors)[0],
            order=self.order,
            mesh_shape=self.mesh.shape,
            dealias=self.dealias,
            keep_displacements=keep_displacements,
        )

    @overload
    def run(
        self,
        noise: RealBlockLike,
        *,
        outputs: None = None,
        observe: None = None,
        light_cone: None = None,
    ) -> Particles: ...

    @overload
    def run(
        self,
        noise: RealBlockLike,
        *,
        outputs: SeriesLike,
        observe: Callable[[Particles], PyTree] | None = None,
        light_cone: None = None,
    ) -> list[PyTree]: ...

    @overload
    def run(
        self,
        noise: RealBlockLike,
        *,
        outputs: SeriesLike | None = None,
        observe: Callable[[Particles], PyTree] | None = None,
        light_cone: Observer,
    ) -> tuple[Any, PyTree]: ...

    def run(
        self,
        noise: RealBlockLike,
        *,
        outputs: SeriesLike | None = None,
        observe: Callable[[Particles], PyTree] | None = None,
        light_cone: Observer | None = None,
    ) -> Particles | list[PyTree] | tuple[Any, PyTree]:
        """The particles at the last scale factor, or those of outputs or what is observed of them,
        and what a light cone sees: all as `simulate` takes the other arguments and returns them.

        Args:
            noise: a block of `white_noise` or `nested_noise` on `plan`.
            outputs: scale factors.
            observe: a function of the `Particles` of an output.
            light_cone: `pfftjax.observables.LightCone`.

        Raises:
            ValueError, TypeError, jax.errors.JaxRuntimeError: as `lpt` and `simulate`.

        """
        wanted: Any = {"outputs": outputs, "observe": observe, "light_cone": light_cone}
        # Those that the integrator does not use are dropped, and in a jitted program never made.
        return simulate(
            self.start(noise, keep_displacements=self.order > 1),
            self.mesh,
            self.box_size,
            self.cosmology,
            self.scale_factors,
            integrator=self.integrator,
            kernel=self.kernel,
            gradient=self.gradient,
            capacity=self.capacity,
            adjoint=self.adjoint,
            **wanted,
        )

    def density(self, particles: Particles, *, interlaced: bool = False) -> RealBlock:
        """The density contrast of particles, this rank's block on the points of `plan`, painted
        by the kernel of the simulation as in `density_contrast`.
        """
        if particles.mesh_shape != self.plan.shape:
            particles = particles.rescaled(self.plan.input)
        capacity = None if self.capacity is None else max(self.capacity, particles.rows)
        return density_contrast(
            particles, self.plan, kernel=self.kernel, interlaced=interlaced, capacity=capacity
        )

    def power_spectrum(
        self, particles: Particles, *, edges: SeriesLike | None = None, interlaced: bool = True
    ) -> PowerSpectrum:
        """The power spectrum of particles on the points of `plan`, without the smoothing of the
        kernel: `pfftjax.pm.power_spectrum` of `density`. No shot noise is subtracted.
        """
        delta = self.density(particles, interlaced=interlaced)
        return power_spectrum(delta, self.plan, self.box_size, edges=edges, kernel=self.kernel)

    def snapshots(
        self,
        noise: RealBlockLike,
        outputs: SeriesLike | None = None,
        *,
        progress: bool | Progress = False,
        checkpoint: Checkpoint | None = None,
    ) -> Iterator[Particles]:
        """Run outside of jitted code, and yield particles when the run has come to them.

        A step is a program of its own, which is called for each. So there can be progress to see,
        files of each output, and a run that is longer than a job: with a checkpoint it goes on
        from the last one, on any number of ranks. That is an error if it is of other choices, of
        another noise, or without an output that is wanted before it. What was yielded before a
        checkpoint does not come again, and what was yielded after it does: files of outputs are
        written with mode "w". The checkpoint stays when the run is complete: one that is started
        again goes on from there, and yields its last output again.

        Collective over the ranks of the plan's grid.

        Args:
            noise: a block of `white_noise` or `nested_noise` on `plan`.
            outputs: scale factors, as in `simulate`; by default there is one, the last.
            progress: True for a bar of tqdm on rank 0, or a function of (steps done, all steps)
                that every rank calls, first with those that a checkpoint has done. Some
                integrators have a last one that is a kick only.
            checkpoint: ``pfftjax.io.Checkpoint(path)``.

        Yields:
            `Particles` at each output, in the order of their times, on the ranks that owned them
            at the nearest step.

        Raises:
            TypeError: a noise, a cosmology, a box or scale factors that are traced.
            ValueError: a checkpoint of another run; and as `lpt` and `simulate`.
            ImportError: no tqdm.

        """
        name, mesh, grid = "Simulation.snapshots", self.mesh, self.plan.grid
        here = where(name, grid.communicator)
        given = noise, self.cosmology, self.box_size, self.scale_factors
        if any(isinstance(x, Tracer) for x in jax.tree.leaves(given)):
            raise TypeError(
                f"{here}: the noise or the simulation is traced: inside of jitted or "
                "differentiated functions, call run(noise, outputs=...)"
            )
        if checkpoint is not None and not isinstance(checkpoint, Checkpoint):
            raise TypeError(
                f"{here}: checkpoint must be a pfftjax.io.Checkpoint(path), got {checkpoint!r}"
            )
        show = progress_bar(grid.comm.rank) if progress is True else progress or (lambda *_: None)
        start = self._start.eval_shape(noise, keep_displacements=self.order > 1)
        dtype = start.offset.dtype
        stages, first_drift, shifts, views = stages_of(
            self.integrator, self.cosmology, self.scale_factors, outputs, dtype, here
        )
        with_displacements_if(stages, start, here)
        motion = checked_motion(
            mesh, self.box_size, self.cosmology, self.kernel, self.gradient, name
        )
        motion = dataclasses.replace(motion, sides=tuple(float(x) for x in motion.sides))
        course = Course(
            Follower(
                motion,
                None if views is None else dataclasses.replace(views, observe=itself),
                rows=start.rows,
                capacity=room_for(self.capacity, start.total, mesh.input, name, motion.sides),
                total=start.total,
            ),
            stages,
            first_drift,
            Shared(motion.constants(self.cosmology, dtype), shifts),
        )
        return self._snapshots(jnp.asarray(noise), course, show, checkpoint)

    def _snapshots(
        self, noise: RealBlock, course: Course, show: Progress, checkpoint: Checkpoint | None
    ) -> Iterator[Particles]:
        follower, number = course.follower, course.stages.kick.shape[0]
        mesh, views = self.mesh.input, follower.views
        ends = np.asarray(as_known(self.scale_factors))
        box = jnp.asarray(follower.motion.sides, course.stages.kick.dtype)
        first, particles, mark = 0, None, {}
        if checkpoint is not None:
            mark = {**self._mark(noise), **course.mark()}
            restored = checkpoint.load(mesh, self.capacity)
            if restored is not None:
                particles, attributes = restored
                comm = private(self.plan.grid.comm)
                with together(comm, "Simulation.snapshots"):
                    first = stages_done(mark, attributes, course)
                particles = dataclasses.replace(particles, scale_factor=None, box_size=None)
        if particles is None:
            keep = course.stages.paths is not None
            begun = self._begin(follower, keep, noise, *course[1:])
            particles = self._owned(begun, follower.capacity)
        del noise

        show(first, number)
        for at in range(first, number):
            its = [] if views is None else views.of(at)
            if views is not None:
                its.sort(key=lambda n: views.scale_factor[n], reverse=bool(ends[-1] < ends[0]))
            stage = jax.tree.map(lambda x, at=at: x[at], course.stages)
            moved, seen = advanced(
                follower, particles, stage, course.shared, [jnp.int32(n) for n in its]
            )
            particles = self._owned(moved, particles.rows)
            del moved
            show(at + 1, number)
            while seen:
                yield dataclasses.replace(seen.pop(0), box_size=box)
            if checkpoint is not None and at + 1 < number:
                checkpoint.save_if_due(particles, mesh, {**mark, "stages": at + 1})
        if views is None:
            a = jnp.asarray(ends[-1], box.dtype)
            yield dataclasses.replace(particles, scale_factor=a, box_size=box)

    @functools.cached_property
    def _begin(self) -> Callable[..., Particles]:
        """A course's particles before its first stage. As what follows it is a function of the
        simulation's, which compiles once for all calls of `snapshots`.
        """

        def begin(follower: Follower, keep: bool, noise: RealBlock, *rest: PyTree) -> Particles:
            start = self._start(noise, keep_displacements=keep)
            return Course(follower, *rest).begun(start)

        return jax.jit(begin, static_argnums=(0, 1))

    @functools.cached_property
    def _linear(self) -> Callable[[RealBlock], RealBlock]:
        return jax.jit(self.linear)

    @functools.cached_property
    def _start(self):
        return jax.jit(self.start, static_argnames="keep_displacements")

    def _owned(self, particles: Particles, capacity: int) -> Particles:
        """The particles on the ranks that own them, with more room if need be and if it may be."""
        return to_owners_with_room(
            particles, self.mesh.input, capacity, may_grow=self.capacity is None
        )

    def _mark(self, noise: RealBlock) -> dict[str, object]:
        """By what this run is known again, on every rank: its choices, and its linear field."""
        linear = self._linear(noise)
        square = allreduce(jnp.sum(linear.astype(float) ** 2), comm=self.plan.grid.communicator)
        comm = private(self.plan.grid.comm)
        cells = comm.bcast(np.asarray(linear[0, 0, :8], float) if comm.rank == 0 else None)
        # What it is called with shows in its numbers; the text of a partial is another in each
        # process.
        integrator = self.integrator
        while isinstance(integrator, functools.partial):
            integrator = integrator.func
        integrator = getattr(integrator, "__name__", type(integrator).__name__)
        choices = (self.plan.shape, self.finer, self.order, self.dealias, integrator)
        return {
            "choices": f"{choices} {self.kernel} {self.gradient} {linear.dtype}",
            "sides": np.asarray(sides(self.box_size, self.plan, "Simulation"), float),
            "rms": float(square / math.prod(self.plan.shape)) ** 0.5,
            "cells": cells,
        }

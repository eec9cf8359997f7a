"""The stages of a run, of what an integrator returns, and what its outputs see."""

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.core import Tracer

from pfftjax._runtime.arrays import SeriesLike

from ._growth import Cosmology
from ._integrators import Integrator, Outputs, Paths, Steps
from ._motion import Shift, Stage
from ._outputs import Views
from ._particles import Particles


def with_displacements_if(stages: Stage, particles: Particles, here: str) -> Particles:
    """The particles, with their displacements if the stages go along them, else without."""
    if stages.paths is None:
        return dataclasses.replace(particles, displacements=None)
    if particles.displacements is None:
        raise ValueError(
            f"{here}: this integrator moves particles along psi1 and psi2, which these do not "
            "keep; start from pm.lpt(..., keep_displacements=True), or give a Simulation order=2 "
            "or 3"
        )
    return particles


def _are_outputs(outputs: object, number: int) -> bool:
    if not isinstance(outputs, Outputs):
        return False
    if any(jnp.shape(x) != (number,) for x in outputs[:-1]):
        return False
    return outputs.paths is None or _are_paths(outputs.paths, number)


def _are_paths(paths: object, number: int) -> bool:
    return isinstance(paths, Paths) and all(jnp.shape(x) == (number, 2) for x in paths)


def stages_of(
    integrator: Integrator,
    cosmology: Cosmology,
    scale_factors: SeriesLike | object,
    outputs: SeriesLike | None,
    dtype: np.dtype,
    here: str,
) -> tuple[Stage, jax.Array | None, Shift | None, Views | None]:
    """The stages of an integrator and the drift before them, and its outputs and what they see."""
    if not callable(integrator):
        raise TypeError(
            f"{here}: the integrator must be a function as pm.fastpm, got {integrator!r}"
        )
    wanted = {} if outputs is None else {"outputs": outputs}
    steps: Any = integrator(cosmology, scale_factors, **wanted)
    times = tuple(np.asarray(() if outputs is None else outputs, float).tolist())
    fits = isinstance(steps, Steps) and jnp.ndim(steps.kick) == 1
    if fits:
        of_stages = [x for x in (steps.drift, steps.momentum) if x is not None]
        fits = all(jnp.shape(x) == jnp.shape(steps.kick) for x in of_stages)
        fits &= steps.first_drift is None or jnp.ndim(steps.first_drift) == 0
        fits &= steps.paths is None or _are_paths(steps.paths, jnp.shape(steps.kick)[0])
    if not fits:
        raise TypeError(
            f"{here}: the integrator must return pm.Steps of vectors of one length, with pm.Paths "
            f"of two numbers for each, if any; got {steps!r}"
        )
    number, found = len(times), steps.outputs
    if number and not _are_outputs(found, number):
        raise TypeError(
            f"{here}: for outputs the integrator must return pm.Steps with pm.Outputs of vectors "
            f"as long as them, {number}; got {found!r}"
        )
    steps = steps._replace(outputs=None)
    kick, drift, momentum, first_drift, _, paths = jax.tree.map(
        lambda x: jnp.asarray(x, dtype), steps
    )
    stages = Stage(kick, drift, momentum, paths)
    if not number or found is None:
        return stages, first_drift, None, None if outputs is None else Views((), (), None)
    stage, *shifts = found
    if paths is None and found.paths is not None:
        raise TypeError(
            f"{here}: the integrator's outputs have pm.Paths, and its stages have none"
        )
    known = np.zeros(0) if isinstance(stage, Tracer) else np.asarray(stage)
    last = kick.shape[0] - 1
    if known.dtype.kind not in "iu" or not np.all((known >= 0) & (known <= last)):
        raise TypeError(
            f"{here}: the stages of pm.Outputs must be integers from 0 to {last}, known while the "
            f"program is traced; got {stage!r}"
        )
    shift = Shift(*jax.tree.map(lambda x: jnp.asarray(x, dtype), shifts))
    return stages, first_drift, shift, Views(tuple(int(i) for i in known), times, None)

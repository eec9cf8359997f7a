"""A run whose stages are programs of their own: what it has ahead, how it shows what is done, and
by what a checkpoint of it is known again.
"""

import functools
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import jax
import numpy as np

from ._motion import Stage
from ._particles import Particles
from ._run import Ends, Follower, Run, Shared

Progress = Callable[[int, int], None]


class Course(NamedTuple):
    """The stages of a run, and what is wanted of them."""

    follower: Follower
    stages: Stage
    first_drift: jax.Array | None
    shared: Shared

    def begun(self, start: Particles) -> Particles:
        """The particles before the first stage, on the ranks where they start."""
        run = Run(Ends.of(start), self.stages, self.first_drift, self.shared)
        return self.follower.start(run, (start.cell, start.used))

    def mark(self) -> dict[str, object]:
        """By what the course is known again."""
        kick, drift, momentum, paths = self.stages
        views = self.follower.views
        return {
            "omega_m": float(self.shared.constants.omega_m),
            "kick": np.asarray(kick, float),
            "drift": np.asarray(drift, float),
            "momentum": np.ones(kick.shape) if momentum is None else np.asarray(momentum, float),
            # The terms of one stage nearly cancel, and another compiler may round them otherwise.
            "paths": np.zeros(0) if paths is None else np.asarray(paths, float).sum(1),
            "first_drift": 0.0 if self.first_drift is None else float(self.first_drift),
            "outputs": np.asarray(() if views is None else views.scale_factor, float),
        }


def itself(particles: Particles, _: object) -> Particles:
    """What an output sees that is yielded as particles."""
    return particles


@functools.partial(jax.jit, static_argnums=0, donate_argnums=1)
def advanced(
    follower: Follower,
    particles: Particles,
    stage: Stage,
    shared: Shared,
    numbers: list[jax.Array],
) -> tuple[Particles, list[Particles]]:
    """The particles after a stage, on the ranks that owned them before, and its outputs of these
    numbers.
    """
    return follower.moved(particles, None, stage, shared, numbers, follower.view)[:2]


def progress_bar(rank: int) -> Progress:
    """A bar on rank 0 that is told how many steps are done."""
    try:
        from tqdm import tqdm
    except ImportError as error:
        raise ImportError("progress=True needs tqdm: pip install pfftjax[pm]") from error
    bar = tqdm(disable=rank > 0, unit="step")

    def show(done: int, steps: int) -> None:
        if bar.total is None:  # what a checkpoint has done took no time
            bar.total = steps
            bar.initial = bar.n = done
        bar.update(done - bar.n)
        if done == steps:
            bar.close()

    return show


def stages_done(mark: Mapping[str, Any], found: Mapping[str, Any], course: Course) -> int:
    """How many stages a checkpoint has done, if it is of the run with this mark.

    Raises:
        ValueError: it is of another one, or without an output that is wanted.

    """
    remedy = "give another path, or remove the file"
    steps = ("kick", "drift", "momentum", "paths", "first_drift")
    why: dict[str, str] = dict.fromkeys(steps, ", by scale_factors, cosmology and integrator")
    why |= dict.fromkeys(("rms", "cells"), ", of the linear field, by noise and power")
    done = int(np.asarray(found.get("stages", 0)))
    for name, value in mark.items():
        its = found.get(name)
        if name == "outputs":
            continue
        if isinstance(value, str):
            is_same = its == value
        else:
            # Another machine may round otherwise; cells by so much of what cells are, and paths of
            # the displacements, which grow to about one.
            mine, other = (np.asarray(() if x is None else x, float) for x in (value, its))
            of_size = {"cells": mark["rms"], "paths": 1.0}
            margin = 1e-4 * of_size[name] if name in of_size else 2e-5 * np.abs(mine)
            is_same = other.shape == mine.shape and bool(np.all(np.abs(other - mine) <= margin))
        if not is_same:
            raise ValueError(
                f"the checkpoint is of another run: {name} is {its} there, and here it is "
                f"{value}{why.get(name, '')}; {remedy}"
            )
    views = course.follower.views
    for number, stage in enumerate(() if views is None else views.stage):
        a = views.scale_factor[number] if views is not None else 0.0
        if stage < done and not np.any(np.abs(np.asarray(found.get("outputs", ())) - a) < 1e-6):
            raise ValueError(
                f"the checkpoint is later than the output at {a}, which it was not asked for; "
                f"{remedy}"
            )
    return done

"""The outputs of a run: in which stage each is seen, and what is kept of the particles there."""

import dataclasses
from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np

from pfftjax._runtime.arrays import PyTree


@dataclasses.dataclass(frozen=True)
class Staged:
    """Things that are seen in a run, known while a program is traced.

    Attributes:
        stage: the stage of each.

    """

    stage: tuple[int, ...]

    def slots(self, stages: int) -> np.ndarray:
        """(stages, most of them in a stage), their numbers; -1 for none."""
        numbers = [self.of(stage) for stage in range(stages)]
        slots = np.full((stages, max(map(len, numbers))), -1, np.int32)
        for row, found in zip(slots, numbers, strict=True):
            row[: len(found)] = found
        return slots

    def of(self, stage: int) -> list[int]:
        """The numbers of those in a stage."""
        return [number for number, its in enumerate(self.stage) if its == stage]


@dataclasses.dataclass(frozen=True)
class Views(Staged):
    """The outputs of a run.

    Attributes:
        scale_factor: of each.
        observe: (particles, sides of the box where they are traced, *given) -> what is kept of
            them; None keeps offsets and momenta, in the rows in which the run began.

    """

    scale_factor: tuple[float, ...]
    observe: Callable[..., PyTree] | None


def parted(tree: PyTree) -> tuple[PyTree, PyTree]:
    """The tree with its leaves that have derivatives, and with its others; None for the rest."""
    tree = jax.tree.map(jnp.asarray, tree)

    def moves(x: jax.Array) -> bool:
        return jnp.issubdtype(x.dtype, jnp.inexact)

    return (
        jax.tree.map(lambda x: x if moves(x) else None, tree),
        jax.tree.map(lambda x: None if moves(x) else x, tree),
    )


def joined(moving: PyTree, fixed: PyTree) -> PyTree:
    """The tree of both parts."""
    return jax.tree.map(
        lambda x, y: y if x is None else x, moving, fixed, is_leaf=lambda x: x is None
    )

"""Shapes and types of what is one rank's own part: blocks of pencils, and types like particles.

`pfftjax.grad` asks, to tell an array that is distributed from a parameter that nobody has named as
shared. Only shapes are kept, a few integers for each pencil that was ever made.
"""

from typing import TypeVar

_blocks: set[tuple[int, ...]] = set()
_types: set[type] = set()

T = TypeVar("T", bound=type)


def note_block(shape: tuple[int, ...]) -> None:
    """Remember that blocks of a distributed array have this shape here."""
    _blocks.add(shape)


def note_type(kind: T) -> T:
    """Decorator for pytrees that hold one rank's own part, as `pm.Particles` does."""
    _types.add(kind)
    return kind


def is_block(shape: tuple[int, ...]) -> bool:
    """Whether an array of this shape may be a block of a pencil, with batches in front or not."""
    return any(shape[i:] in _blocks for i in range(len(shape)))


def is_distributed(value: object) -> bool:
    """Whether a value is of a type that holds one rank's own part."""
    return isinstance(value, tuple(_types))

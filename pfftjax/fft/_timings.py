"""How plans are to be tuned, and what was measured."""

import dataclasses
import os

from jax.typing import DTypeLike

from pfftjax.pencils import ExchangeMethod


@dataclasses.dataclass(frozen=True)
class Tuning:
    """How to choose the process grid and the method of a plan by measurement.

    Attributes:
        seconds: that it may take, about: what has been begun is brought to its end. At least what
            the rule takes is measured. Large arrays on many ranks want more.
        dtype: of the arrays that the plan will be used for; float32 and complex64 (and so on) mean
            the same, as the plan says which of them it is. JAX's default precision by default.
        file: JSON file of choices. One that was made for the same shape, kinds, layout, dtype,
            precision, number and placement of ranks, processor, device, instruction set, MPI
            library and release of pfftjax is taken from it, and nothing is measured; otherwise
            what is chosen is added to it, and the rest of it stays. Rank 0 reads and writes it.

    Example:
        >>> Tuning(seconds=2.0, file="tuning.json").dtype is None
        True

    """

    seconds: float = 10.0
    dtype: DTypeLike | None = None
    file: str | os.PathLike[str] | None = None


@dataclasses.dataclass(frozen=True)
class Timing:
    """The measurement of one candidate.

    Attributes:
        dims: of the process grid.
        method: of exchange.
        seconds: of one forward and one inverse transform, on the slowest rank, the best of
            several; None if time ran out before.

    """

    dims: tuple[int, int]
    method: ExchangeMethod
    seconds: float | None


class Timings(tuple[Timing, ...]):
    """The measurements of `tune`, the fastest first; `str` makes a table of them.

    >>> print(Timings([Timing((2, 1), ExchangeMethod.FUSED, 0.0123)]))
    grid   method  forward + inverse
    2 x 1  FUSED   12.3 ms
    """

    __slots__ = ()

    def __str__(self) -> str:
        rows = [("grid", "method", "forward + inverse")]
        for timing in self:
            took = "no time" if timing.seconds is None else f"{1e3 * timing.seconds:.4g} ms"
            rows.append((f"{timing.dims[0]} x {timing.dims[1]}", timing.method.name, took))
        first, second, _ = (max(map(len, column)) for column in zip(*rows, strict=True))
        return "\n".join(f"{a:<{first}}  {b:<{second}}  {c}" for a, b, c in rows)

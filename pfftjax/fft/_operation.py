"""Descriptions of the operations in `_fused.py`."""

import dataclasses
import enum

from pfftjax._runtime.communicators import Communicator
from pfftjax._runtime.ffi import native
from pfftjax.pencils import ExchangeMethod, ExchangePrecision
from pfftjax.pencils.internal import Redistribution

from ._local import Local


class What(enum.IntEnum):
    """The kinds of operations, which differ in how many arrays they take and make."""

    TRANSFORM = native.What.TRANSFORM.value
    GRADIENT = native.What.GRADIENT.value
    DIVERGENCE = native.What.DIVERGENCE.value

    @property
    def transposed(self) -> "What":
        return {What.GRADIENT: What.DIVERGENCE, What.DIVERGENCE: What.GRADIENT}.get(self, self)

    @property
    def arrays(self) -> int:
        """The number of operands, without wavenumbers."""
        return 3 if self is What.DIVERGENCE else 1


@dataclasses.dataclass(frozen=True)
class Operation:
    """An operation on blocks of three axes after a batch.

    Attributes:
        first: transforms the last axis of a block, or the last two, before it travels.
        second: the same of the result, afterward.
        order: axis d of the result is axis order[d] of what travels.
        scatter: the axis of what travels that becomes split.
        gather: the axis that becomes whole.
        lengths: of these two axes, globally.
        method: the way of the exchange; of several arrays SHARED is as FUSED.
        precision: of numbers on their way.
        comm: the ranks that exchange; None where nothing is communicated.
        what: a transform, a gradient or a divergence.
        along: the axes of what travels that k1 and k2 belong to, unless it is a transform.
        private: whether no other operation takes what comes in, and what goes out.
        lead: how many dimensions of a batch come first.

    """

    first: Local | None
    second: Local | None
    order: tuple[int, int, int]
    scatter: int
    gather: int
    lengths: tuple[int, int]
    method: ExchangeMethod
    precision: ExchangePrecision
    comm: Communicator | None
    what: What = What.TRANSFORM
    along: tuple[int, ...] = ()
    private: tuple[bool, bool] = (False, False)
    lead: int = 0

    @property
    def whole_order(self) -> tuple[int, ...]:
        """`order` with the batch."""
        return (*range(self.lead), *(self.lead + d for d in self.order))

    @property
    def way(self) -> Redistribution:
        """The change of pencil by itself, between ranks."""
        scatter, gather = self.lead + self.scatter, self.lead + self.gather
        return Redistribution(self.whole_order, scatter, gather, self.lengths[1])

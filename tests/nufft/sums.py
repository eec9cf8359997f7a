"""Points of all ranks, and their transforms by sums over all points and modes, in numpy."""

import dataclasses
from typing import Any

import numpy as np

from pfftjax.nufft import PencilNUFFT
from tests.helpers import CONTROL, RANK, SIZE, random

BOX = (3.0, 2.0, 7.0)


def error(actual, expected):
    """The norm of the difference over that of what is expected, over all ranks; NaN stays."""
    difference = np.sum(np.abs(np.asarray(actual) - expected) ** 2)
    total = CONTROL.allreduce(np.array([difference, np.sum(np.abs(expected) ** 2)]))
    return float(np.sqrt(total[0] / total[1]))


@dataclasses.dataclass(frozen=True)
class Sums:
    """What a plan should give for random points, which are anywhere and on any rank.

    Attributes:
        plan: whose transforms these are.
        x: (ranks, rows, 3).
        strengths: complex (ranks, rows).
        modes: complex, of the plan's shape.

    """

    plan: PencilNUFFT
    x: Any
    strengths: Any
    modes: Any

    @classmethod
    def of(cls, plan, rows=40, dtype="float64", seed=0):
        rng = np.random.default_rng(seed)
        x = rng.uniform(-1, 2, (SIZE, rows, 3)) * plan.box_size
        kind = {"float32": "complex64", "float64": "complex128"}[dtype]
        return cls(
            plan,
            x.astype(dtype),
            random((SIZE, rows), kind, seed + 1),
            random(plan.shape, kind, seed + 2),
        )

    @property
    def operands(self):
        """Those of this rank: points, strengths, modes."""
        return self.x[RANK], self.strengths[RANK], self.plan.output.local_block(self.modes)

    @property
    def k(self):
        return [
            2 * np.pi / side * np.fft.fftfreq(n, 1 / n)
            for n, side in zip(self.plan.shape, self.plan.box_size, strict=True)
        ]

    def waves(self, sign):
        """exp(sign i k x), for each axis (points, modes)."""
        points = self.x.reshape(-1, 3).astype("float64")
        return [np.exp(1j * sign * points[:, a, None] * k) for a, k in enumerate(self.k)]

    def type1(self, strengths=None):
        """The modes, of the plan's shape."""
        c = self.strengths if strengths is None else strengths
        e = self.waves(self.plan.isign)
        return np.einsum("pa,pb,pc,p->abc", *e, c.reshape(-1), optimize=True)

    def type2(self, modes=None):
        """The values at the points of each rank: (ranks, rows)."""
        f = self.modes if modes is None else modes
        e = self.waves(-self.plan.isign)
        values = np.einsum("pa,pb,pc,abc->p", *e, f, optimize=True)
        return values.reshape(self.strengths.shape)

    def slopes(self):
        """The derivatives of `type2` with respect to the points: (ranks, rows, 3)."""
        sign = -self.plan.isign
        along = [
            1j * sign * k.reshape(np.where(np.arange(3) == a, -1, 1)) * self.modes
            for a, k in enumerate(self.k)
        ]
        return np.stack([self.type2(f) for f in along], axis=-1)

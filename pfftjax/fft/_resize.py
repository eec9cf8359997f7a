"""More or fewer coefficients along one axis of a spectrum, for the same function of space."""

import dataclasses

import jax
import jax.numpy as jnp

from pfftjax._runtime.arrays import Field

from ._local import as_complex
from ._trigonometric import logical_size

# Coefficients are multiplied by (new size / old size) to this power, so that the function is the
# same: those of "backward" grow with the number of points.
_POWERS = {"backward": 1.0, "ortho": 0.5, "forward": 0.0}


@dataclasses.dataclass(frozen=True)
class Resize:
    """Takes the coefficients of a line of n points to those of a line of m points.

    With more points, the new coefficients are zero. A coefficient at the Nyquist frequency n / 2
    stands for both signs of it, exp(+-2 pi i (n / 2) x / L): half of it goes to each, which keeps
    a real function real. With fewer, coefficients beyond m / 2 are left out, and those of +-m / 2
    are added up: m points cannot tell them apart. So the way there and back is the identity.

    A half spectrum has n / 2 once, and keeps half of it; on the way back it is doubled. The sum of
    both signs would be twice the real part as long as the lines are real, `of_real_lines`; once
    other axes are transformed it takes the coefficient of the opposite wavenumber, which another
    rank may have, and the inverse drops the difference anyway. Of cosines and sines, the
    last of "dct1" and of "dst2" has half the weight of the others in the inverse and is treated
    alike; others have no such coefficient.

    Where a spectrum is that of points, and not of a mesh, the coefficient at -n / 2 of an even n
    stands for that sign alone (`one_sign`): coefficients are left out, or zeros put in, and
    nothing else, so that each way is the transpose of the other.

    Attributes:
        kind: what made the coefficients: "fft", "rfft", "dct1" to "dct4", "dst1" to "dst4".
        n: points in real space that there are coefficients of.
        m: points that there will be.
        norm: of the transforms on both sides.
        dimension: of the array, from the end.
        of_real_lines: whether "rfft" has been the first transform so far.
        one_sign: as above; of the kind "fft" only, and without a factor.

    """

    kind: str
    n: int
    m: int
    norm: str
    dimension: int = -1
    of_real_lines: bool = False
    one_sign: bool = False

    def __call__(self, y: Field) -> Field:
        if self.n == self.m:
            return y
        if self.one_sign:
            return self._signed(y)
        factor = logical_size(self.kind, self.m) / logical_size(self.kind, self.n)
        if self.kind == "fft" and min(self.n, self.m) % 2:
            y = self._signed(y)
        elif self.kind == "fft":
            y = self._padded(y) if self.m > self.n else self._truncated(y)
        else:
            y = self._one_sided(y)
        return y * jnp.finfo(y.dtype).dtype.type(factor ** _POWERS[self.norm])

    def _cut(self, y: Field, start: int, stop: int) -> Field:
        return jax.lax.slice_in_dim(y, start, stop, axis=self.dimension % y.ndim)

    def _joined(self, parts: list[Field]) -> Field:
        return jnp.concatenate(parts, axis=self.dimension)

    def _zeros(self, y: Field, count: int) -> Field:
        shape = list(y.shape)
        shape[self.dimension] = count
        return jnp.zeros(shape, y.dtype)

    def _signed(self, y: Field) -> Field:
        negative = min(self.n, self.m) // 2
        positive = min(self.n, self.m) - negative
        parts = [self._cut(y, 0, positive), self._cut(y, self.n - negative, self.n)]
        if self.m > self.n:
            parts.insert(1, self._zeros(y, self.m - self.n))
        return self._joined(parts)

    def _padded(self, y: Field) -> Field:
        half = self.n // 2
        positive, negative = self._cut(y, 0, half), self._cut(y, half + 1, self.n)
        nyquist = y.dtype.type(0.5) * self._cut(y, half, half + 1)
        zeros = self._zeros(y, self.m - self.n - 1)
        return self._joined([positive, nyquist, zeros, nyquist, negative])

    def _truncated(self, y: Field) -> Field:
        n, half = self.n, self.m // 2
        positive = self._cut(y, 0, half)
        nyquist = self._cut(y, half, half + 1) + self._cut(y, n - half, n - half + 1)
        return self._joined([positive, nyquist, self._cut(y, n - half + 1, n)])

    def _one_sided(self, y: Field) -> Field:
        """The coefficients of a half spectrum, of cosines or of sines."""
        fewer = min(self.n, self.m)
        kept = fewer // 2 + 1 if self.kind == "rfft" else fewer
        total = self.m // 2 + 1 if self.kind == "rfft" else self.m
        growing = self.m > self.n
        y = self._cut(y, 0, kept)
        if (weight := _last_weight(self.kind, fewer, self.norm)) != 1:
            last = y.dtype.type(weight if growing else 1 / weight) * self._cut(y, kept - 1, kept)
            if self.of_real_lines and self.kind == "rfft" and not growing:
                last = as_complex(last.real)
            y = self._joined([self._cut(y, 0, kept - 1), last])
        return self._joined([y, self._zeros(y, total - kept)]) if growing else y


def _last_weight(kind: str, n: int, norm: str) -> float:
    """The factor of the last coefficient of n points where there are more."""
    if kind == "rfft":
        return 0.5 if n % 2 == 0 else 1.0
    if kind in ("dct1", "dst2"):
        # norm="ortho" has divided that of "dst2" by sqrt(2) already.
        return 0.5**0.5 if norm == "ortho" else 0.5
    return 1.0

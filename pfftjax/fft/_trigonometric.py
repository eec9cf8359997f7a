"""Cosine and sine transforms of lines, through the Fourier transform of lines and O(n) work.

Definitions and names are those of scipy.fft.dct and scipy.fft.dst. Types II and III are a real
transform of length n of the line in another order (Makhoul 1980, "A fast cosine transform in one
and two dimensions"). Type IV is a complex one of length n / 2 or, for odd n, a real one of length
n (below). Type I is a real one of the whole period, 2 n - 2 or 2 n + 2: its reductions to length n
lose digits with the square root of n. Sine transforms are cosine transforms of a reversed or
alternating line.
"""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np

from pfftjax._runtime.arrays import Lines

from ._local import Kind, fft_of_lines

# The kind that takes a spectrum of each kind back, but for the factor 1 / logical_size.
_TYPES = {"1": "1", "2": "3", "3": "2", "4": "4"}
INVERSES = {f"{name}{i}": f"{name}{j}" for name in ("dct", "dst") for i, j in _TYPES.items()}
# pi / L times (k + offset) are the wavenumbers of coefficient k, L apart the walls.
OFFSETS = dict.fromkeys(INVERSES, 0.5) | {"dct1": 0.0, "dct2": 0.0, "dst1": 1.0, "dst2": 1.0}
# Places where norm="ortho" multiplies a line by sqrt(2), and divides the result by it, so that the
# matrix is orthogonal.
_ENDS_BEFORE = {"dct1": (0, -1), "dct3": (0,), "dst3": (-1,)}
# These kinds change the values on the walls then: coefficients are no longer those of cosines or
# sines.
NO_SERIES_IF_ORTHOGONAL = tuple(_ENDS_BEFORE)
_ENDS_AFTER = {"dct1": (0, -1), "dct2": (0,), "dst2": (-1,)}


def logical_size(kind: str, n: int) -> int:
    """Length of the periodic line that one of n points stands for: what norms divide by."""
    if kind not in INVERSES:
        return n
    return 2 * (n + {"dct1": -1, "dst1": 1}.get(kind, 0))


@dataclasses.dataclass(frozen=True)
class TrigonometricTransform:
    """Transforms the last axis of a block, real or complex.

    Attributes:
        kind: "dct1" to "dct4" or "dst1" to "dst4".
        n: length of the axis.
        scale: factor of the result, at no cost.
        orthogonal: with the factors sqrt(2) of norm="ortho".

    """

    kind: str
    n: int
    scale: float
    orthogonal: bool

    def __call__(self, x: Lines) -> Lines:
        if jnp.iscomplexobj(x):
            parts = self._of_real(jnp.stack([x.real, x.imag]))
            real, imaginary = (jax.lax.index_in_dim(parts, i, keepdims=False) for i in (0, 1))
            return jax.lax.complex(real, imaginary)
        return self._of_real(x)

    def _of_real(self, x: Lines) -> Lines:
        if self.orthogonal:
            x = _weighted(x, _ENDS_BEFORE.get(self.kind, ()), np.sqrt(2))
        y = _TRANSFORMS[self.kind](x, self.scale)
        if self.orthogonal:
            y = _weighted(y, _ENDS_AFTER.get(self.kind, ()), np.sqrt(0.5))
        return y


def _weighted(x: Lines, at: tuple[int, ...], factor: float) -> Lines:
    """`x` with the coefficients `at` multiplied by `factor`."""
    if not at:
        return x
    weights = np.ones(x.shape[-1])
    weights[list(at)] = factor
    return x * weights.astype(x.dtype)


def _turns(numerator: np.ndarray, denominator: int, dtype: np.dtype) -> np.ndarray:
    """exp(-2 pi i numerator / denominator) for integers, in the complex type that belongs to
    `dtype`. Taken modulo one turn first, so that no digits are lost in large angles.
    """
    angle = (2 * np.pi / denominator) * (numerator % denominator)
    return np.exp(-1j * angle).astype(np.result_type(dtype, np.complex64))


# JAX answers x[..., start:stop] of an empty block by zeros that depend on nothing, and the rank
# that holds it would leave the exchanges out of its derivative.
def _part(x: Lines, start: int, stop: int, step: int = 1) -> Lines:
    """x[..., start:stop:step]."""
    return jax.lax.slice_in_dim(x, start, stop, step, axis=x.ndim - 1)


def _taken(x: Lines, index: np.ndarray) -> Lines:
    """x[..., index], for indices that go up or down by the same step over long stretches."""
    parts, start = [], 0
    while start < len(index):
        steps = np.diff(index[start:])
        step = int(steps[0]) if len(steps) else 1
        other = np.flatnonzero(steps != step)
        stop = start + 1 + (int(other[0]) if len(other) else len(steps))
        first, last = int(index[start]), int(index[stop - 1])
        run = _part(x, min(first, last), max(first, last) + 1, abs(step))
        parts.append(run if step > 0 else _reversed(run))
        start = stop
    return jnp.concatenate(parts, -1)


def _reversed(x: Lines) -> Lines:
    return jax.lax.rev(x, (x.ndim - 1,))


def _odd_reversed(x: Lines) -> Lines:
    """The elements at odd places, last one first."""
    n = x.shape[-1]
    return _reversed(_part(x, 1, n, 2))


def _alternating(x: Lines) -> Lines:
    """The line with the sign of every other element changed."""
    return x * (1 - 2 * (np.arange(x.shape[-1]) % 2)).astype(x.dtype)


def _interleaved(even: Lines, odd: Lines) -> Lines:
    """The line with these elements at even and odd places."""
    n = even.shape[-1] + odd.shape[-1]
    if n % 2:
        odd = jnp.concatenate([odd, jnp.zeros_like(_part(even, 0, 1))], -1)
    pairs = jnp.stack([even, odd], -1)
    return _part(pairs.reshape(*even.shape[:-1], 2 * even.shape[-1]), 0, n)


def _dct1(x: Lines, scale: float) -> Lines:
    """y[k] = x[0] + (-1)^k x[n-1] + 2 sum x[j] cos(pi k j / (n - 1)), 0 < j < n - 1."""
    n = x.shape[-1]
    period = jnp.concatenate([x, _reversed(_part(x, 1, n - 1))], -1)
    return fft_of_lines(period, Kind.REAL_TO_COMPLEX, 2 * (n - 1), scale=scale).real


def _dst1(x: Lines, scale: float) -> Lines:
    """y[k] = 2 sum x[j] sin(pi (k + 1) (j + 1) / (n + 1))."""
    n = x.shape[-1]
    zero = jnp.zeros_like(_part(x, 0, 1))
    period = jnp.concatenate([zero, x, zero, -_reversed(x)], -1)
    y = fft_of_lines(period, Kind.REAL_TO_COMPLEX, 2 * (n + 1), scale=scale)
    return -_part(y.imag, 1, n + 1)


def _dct2(x: Lines, scale: float) -> Lines:
    """y[k] = 2 sum x[j] cos(pi k (2 j + 1) / 2n).

    With v = x[0], x[2], ..., x[3], x[1] and V its Fourier transform, exp(-pi i k / 2n) V[k] has
    the real part y[k] / 2 and the imaginary part -y[n - k] / 2.
    """
    n = x.shape[-1]
    v = jnp.concatenate([_part(x, 0, n, 2), _odd_reversed(x)], -1)
    spectrum = fft_of_lines(v, Kind.REAL_TO_COMPLEX, n, scale=2 * scale)
    y = spectrum * _turns(np.arange(n // 2 + 1), 4 * n, x.dtype)
    return jnp.concatenate([y.real, -_reversed(_part(y.imag, 1, (n + 1) // 2))], -1)


def _dct3(x: Lines, scale: float) -> Lines:
    """y[k] = x[0] + 2 sum x[j] cos(pi (2 k + 1) j / 2n), j > 0: `_dct2` backward."""
    n = x.shape[-1]
    mirrored = jnp.concatenate(
        [jnp.zeros_like(_part(x, 0, 1)), _reversed(_part(x, n - n // 2, n))], axis=-1
    )
    pairs = jax.lax.complex(_part(x, 0, n // 2 + 1), -mirrored)
    spectrum = pairs * np.conj(_turns(np.arange(n // 2 + 1), 4 * n, x.dtype))
    v = fft_of_lines(spectrum, Kind.COMPLEX_TO_REAL, n, scale=scale)
    half = (n + 1) // 2
    return _interleaved(_part(v, 0, half), _reversed(_part(v, half, n)))


def _dct4(x: Lines, scale: float) -> Lines:
    """y[k] = 2 sum x[j] cos(pi (2 k + 1) (2 j + 1) / 4n)."""
    n = x.shape[-1]
    if n % 2:
        return _dct4_odd(x, scale)
    # (4 j + 1) (4 k + 1) / 4n = (4 j + 1) / 4n + k / n + 4 j k / n: with
    # z[j] = x[2 j] + i x[n - 1 - 2 j], a Fourier transform of length n / 2 between two factors has
    # the real part y[2 k] / 2 and the imaginary part -y[n - 1 - 2 k] / 2.
    j = np.arange(n // 2)
    z = jax.lax.complex(_part(x, 0, n, 2), _odd_reversed(x))
    z = z * _turns(4 * j + 1, 8 * n, x.dtype)
    y = fft_of_lines(z, Kind.FORWARD, n // 2, scale=2 * scale) * _turns(j, 2 * n, x.dtype)
    return _interleaved(y.real, _reversed(-y.imag))


def _dct4_odd(x: Lines, scale: float) -> Lines:
    """Odd n: a real transform of length n, without factors.

    Let q = 2 j + 1 and p = 2 k + 1 be odd numbers modulo 8n, and x(q) be continued by the
    symmetries of the cosine: x(-q) = x(q), x(q + 4n) = -x(q). Each of the n points then has one
    name q = n + 8 t, each coefficient one name p = n + 8 s (n is odd, so that q, -q, q + 4n and
    4n - q differ modulo 8), and pq / 8n = n / 8 + 8 ts / n up to whole turns:
        y = 2 Re(exp(-2 pi i n / 8) sum over t of x(n + 8 t) exp(-2 pi i t (8 s) / n)).
    """
    n = x.shape[-1]
    index, sign = _odd_names(n)
    spectrum = fft_of_lines(
        _taken(x, index) * sign.astype(x.dtype), Kind.REAL_TO_COMPLEX, n, scale=2 * scale
    )
    # The k-th coefficient is at frequency 8 s; of a real line, those past n / 2 are conjugate.
    frequency, signs = np.empty(n, int), np.empty(n)
    frequency[index] = 8 * np.arange(n) % n
    signs[index] = sign
    past = 2 * frequency > n
    folded = np.where(past, n - frequency, frequency)
    angle = 2 * np.pi * (n % 8) / 8
    of_real = (signs * np.cos(angle)).astype(x.dtype)
    of_imaginary = (signs * np.where(past, -1, 1) * np.sin(angle)).astype(x.dtype)
    real, imaginary = _taken(spectrum.real, folded), _taken(spectrum.imag, folded)
    return real * of_real + imaginary * of_imaginary


def _odd_names(n: int) -> tuple[np.ndarray, np.ndarray]:
    """The j and the sign with which x(n + 8 t) is x[j], for t = 0 to n - 1."""
    q = (n + 8 * np.arange(n)) % (8 * n)
    q = np.where(q > 4 * n, 8 * n - q, q)  # x(-q) = x(q)
    sign = np.where(q > 2 * n, -1, 1)
    q = np.where(q > 2 * n, 4 * n - q, q)  # x(4n - q) = -x(q)
    return (q - 1) // 2, sign


_TRANSFORMS = {
    "dct1": _dct1,
    "dct2": _dct2,
    "dct3": _dct3,
    "dct4": _dct4,
    "dst1": _dst1,
    "dst2": lambda x, scale: _reversed(_dct2(_alternating(x), scale)),
    "dst3": lambda x, scale: _alternating(_dct3(_reversed(x), scale)),
    "dst4": lambda x, scale: _alternating(_dct4(_reversed(x), scale)),
}

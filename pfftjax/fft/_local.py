"""Transforms of a rank's own data, along the last axis or the last two: no communication.

One primitive, whose derivative is the same primitive of the transposed kind: the cost of one
transform, and nothing stored. On CPUs it is lowered to our own code (cpp/fft/), whose results do
not depend on how lines are shared out between ranks or threads; elsewhere to XLA's FFT.
"""

import functools
import math
from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.core import ShapedArray
from jax.interpreters import ad, batching, mlir
from jax.typing import DTypeLike

from pfftjax._runtime.arrays import Field, Lines, Reals
from pfftjax._runtime.ffi import native
from pfftjax._runtime.primitive import local
from pfftjax._runtime.rematerialization import select

# Kinds of transforms of the last axis, of length n (cpp/fft/lanes.h). Sums run over it. h is 1
# for k = 0 and, where n is even, k = n / 2, and 2 elsewhere: how often a coefficient of a half
# spectrum occurs in the whole one.
#     FORWARD                     y[k] = sum x[j] exp(-2 pi i j k / n)
#     BACKWARD                    y[k] = sum x[j] exp(+2 pi i j k / n)
#     REAL_TO_COMPLEX             FORWARD of a real line, for k <= n / 2
#     COMPLEX_TO_REAL             y[j] = sum h[k] Re(x[k] exp(+2 pi i j k / n))
#     REAL_TO_COMPLEX_TRANSPOSED  y[j] = sum Re(x[k] exp(-2 pi i j k / n))
#     COMPLEX_TO_REAL_TRANSPOSED  y[k] = h[k] sum x[j] exp(+2 pi i j k / n)
Kind = native.Kind


# JAX transposes without conjugation: the transpose of a matrix M is M^T, and that of Re, from
# complex to real numbers, takes u to u + 0i. FORWARD and BACKWARD are symmetric matrices. Of
#     REAL_TO_COMPLEX   y[k] = sum_j E[j, k] x[j],  E = exp(-2 pi i j k / n),
# the transpose has to be real: sum_k Re(E[j, k] c[k]), which is COMPLEX_TO_REAL of conj(c) / h. Of
#     COMPLEX_TO_REAL   y[j] = sum_k h[k] Re(conj(E[j, k]) x[k])
# it is h[k] sum_j conj(E[j, k]) u[j], which is h times the conjugate of REAL_TO_COMPLEX of u.
TRANSPOSED = {
    Kind.FORWARD: Kind.FORWARD,
    Kind.BACKWARD: Kind.BACKWARD,
    Kind.REAL_TO_COMPLEX: Kind.REAL_TO_COMPLEX_TRANSPOSED,
    Kind.COMPLEX_TO_REAL: Kind.COMPLEX_TO_REAL_TRANSPOSED,
    Kind.REAL_TO_COMPLEX_TRANSPOSED: Kind.REAL_TO_COMPLEX,
    Kind.COMPLEX_TO_REAL_TRANSPOSED: Kind.COMPLEX_TO_REAL,
}
FROM_REAL = (Kind.REAL_TO_COMPLEX, Kind.COMPLEX_TO_REAL_TRANSPOSED)
TO_REAL = (Kind.COMPLEX_TO_REAL, Kind.REAL_TO_COMPLEX_TRANSPOSED)
_DTYPES = {
    np.dtype(a): np.dtype(b) for a, b in (("float32", "complex64"), ("float64", "complex128"))
}
_REAL_OF = {b: a for a, b in _DTYPES.items()}


class Local(NamedTuple):
    """A transform of the last axis, of length n in real space, or of the last two; on GPUs also of
    the last three.
    """

    kind: Kind
    n: int
    axes: int = 1
    scale: float = 1.0

    def __call__(self, x: Field) -> Field:
        """Transform a block; one of real numbers becomes complex where it has to be."""
        return apply(self, x if self.kind in FROM_REAL else as_complex(x))

    @property
    def out_of(self) -> int:
        """Length of the last axis of what comes out."""
        return self.n if self.kind in TO_REAL or self.kind <= Kind.BACKWARD else self.n // 2 + 1

    @property
    def transposed(self) -> "Local":
        return self._replace(kind=TRANSPOSED[self.kind])


def result_dtype(dtype: np.dtype, kind: Kind) -> np.dtype:
    """The dtype of the transform of numbers of `dtype`."""
    dtypes = _DTYPES if kind in FROM_REAL else _REAL_OF
    assert dtype in dtypes, (kind, dtype)
    return dtypes[dtype] if kind in FROM_REAL or kind in TO_REAL else dtype


def _result(x: ShapedArray, *, kind: Kind, axes: int, n: int, scale: float) -> ShapedArray:
    assert x.ndim >= axes
    shape = (*x.shape[:-1], Local(kind, n, axes, scale).out_of)
    return x.update(shape=shape, dtype=result_dtype(x.dtype, kind), weak_type=False)


fft_p = local("fft_of_lines", _result)
ad.deflinear2(fft_p, lambda y, _, *, kind, **same: [fft_p.bind(y, kind=TRANSPOSED[kind], **same)])
batching.primitive_batchers[fft_p] = lambda operands, at, /, **same: (
    fft_p.bind(jnp.moveaxis(operands[0], at[0], 0), **same),
    0,
)


def hermitian_weights(n: int, dtype: DTypeLike) -> np.ndarray:
    """How often each coefficient of a half spectrum occurs in the whole: 1, 2, ..., 2, and 1 for
    the last one if n is even.
    """
    weights = np.full(n // 2 + 1, 2, dtype)
    weights[0] = 1
    if n % 2 == 0:
        weights[-1] = 1
    return weights


def by_xla(x: Lines, *, kind: Kind, axes: int, n: int, scale: float) -> Lines:
    """The same by XLA's FFT, for platforms that we have no code for.

    Not by its IFFT, which on GPUs loses its scaling, in silence, where there are 2^31 numbers or
    more (openxla/xla#45009).
    """
    fft = jax.lax.fft
    real = np.dtype(x.dtype if kind in FROM_REAL else _REAL_OF[np.dtype(x.dtype)]).type
    lengths = (*x.shape[x.ndim - axes : -1], n)
    match kind:
        case Kind.FORWARD:
            y = fft(x, "FFT", lengths)
        case Kind.BACKWARD:
            y = jnp.conj(fft(jnp.conj(x), "FFT", lengths))
        case Kind.REAL_TO_COMPLEX:
            y = fft(x, "RFFT", lengths)
        case Kind.COMPLEX_TO_REAL_TRANSPOSED:
            y = jnp.conj(fft(x, "RFFT", lengths)) * hermitian_weights(n, real)
        case Kind.COMPLEX_TO_REAL:
            return _to_real(x, axes, n, real(scale))
        case Kind.REAL_TO_COMPLEX_TRANSPOSED:
            return _to_real(jnp.conj(x) / hermitian_weights(n, real), axes, n, real(scale))
    return y * real(scale)


_MOST_FROM_IRFFT = 2**31 - 1


def _to_real(x: Lines, axes: int, n: int, scale: np.floating) -> Lines:
    """COMPLEX_TO_REAL by XLA. The last axis by itself: libraries may take it for granted that a
    half spectrum is Hermitian, and this one need not be.
    """
    count = math.prod(x.shape[:-1]) * n
    if count > _MOST_FROM_IRFFT:
        raise ValueError(
            f"a transform to {count} real numbers on one rank: on GPUs XLA cannot scale more than "
            f"{_MOST_FROM_IRFFT} (openxla/xla#45009); take more ranks"
        )
    real = _REAL_OF[np.dtype(x.dtype)].type
    if axes > 1:
        others = x.shape[-axes:-1][::-1]
        lines = jax.lax.fft(jnp.conj(_turned(x, axes)), "FFT", others)
        x = _turned(jnp.conj(lines), axes)
    twice = hermitian_weights(n, real) > 1
    # XLA divides by n. The factor is part of a pass that is needed as it is.
    factor = real(n) * scale
    x = jax.lax.complex(factor * x.real, select(twice, factor * x.imag, 0))
    return jax.lax.fft(x, "IRFFT", (n,))


def _turned(x: Lines, axes: int) -> Lines:
    """The last axes in reverse order."""
    lead = x.ndim - axes
    return jax.lax.transpose(x, (*range(lead), *reversed(range(lead, x.ndim))))


_lower = jax.ffi.ffi_lowering("pfftjax_fft")


mlir.register_lowering(fft_p, mlir.lower_fun(by_xla, multiple_results=False))
mlir.register_lowering(
    fft_p,
    lambda ctx, x, *, kind, axes, n, scale: _lower(
        ctx, x, kind=np.int32(kind), axes=np.int32(axes), n=np.int64(n), scale=np.float64(scale)
    ),
    platform="cpu",
)


def fft_of_lines(x: Lines, kind: Kind, n: int, *, axes: int = 1, scale: float = 1.0) -> Lines:
    """Transform the last axis, of length n in real space, and multiply by `scale`, at no cost.

    With two `axes`, the other one is transformed in the direction that belongs to `kind`.
    """
    return fft_p.bind(x, kind=kind, axes=axes, n=n, scale=float(scale))


def apply(transform: Local | None, x: Lines) -> Lines:
    """Transform the last axis, or the last two."""
    return x if transform is None else fft_p.bind(x, **transform._asdict())


def as_complex(x: Lines) -> Lines:
    """`x`, with imaginary parts of zero if it is real."""
    return x if jnp.iscomplexobj(x) else jax.lax.complex(x, jnp.zeros_like(x))


def times_i(k: Reals, y: Lines) -> Lines:
    """The product i k y, for real k."""
    return jax.lax.complex(-k * y.imag, k * y.real)


_Step = Callable[[jax.Array], jax.Array]


def until_conjugation(transform: Local | None) -> tuple[_Step, _Step]:
    """A transform in two steps, of which the second may also come after a move: BACKWARD is
    FORWARD between two conjugations, and the last one is that step. The conjugations of two
    transforms on both sides of a move so meet, and XLA drops them, or computes them together with
    what else is there.
    """
    if transform is None or transform.kind != Kind.BACKWARD:
        return functools.partial(apply, transform), lambda y: y
    forward = transform._replace(kind=Kind.FORWARD)
    return lambda x: apply(forward, jnp.conj(x)), jnp.conj


def since_conjugation(transform: Local | None) -> tuple[_Step, _Step]:
    """The same, where the first step may also come before a move."""
    if transform is None or transform.kind != Kind.BACKWARD:
        return lambda x: x, functools.partial(apply, transform)
    forward = transform._replace(kind=Kind.FORWARD)
    return jnp.conj, lambda y: jnp.conj(apply(forward, y))

"""Our own transform of lines against numpy: every kind of length, alone and among others."""

import functools
import itertools
import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from pfftjax.fft._local import Kind, by_xla, fft_of_lines, hermitian_weights
from tests.helpers import on_one_rank, random

pytestmark = [pytest.mark.timeout(300), on_one_rank]

# Products of the radices, primes with a radix of their own, and others (Bluestein).
LENGTHS = [*range(1, 34), 36, 48, 49, 62, 64, 74, 97, 101, 127, 128, 169, 210, 256, 384, 509, 1021]
FROM_REAL = (Kind.REAL_TO_COMPLEX, Kind.COMPLEX_TO_REAL_TRANSPOSED)
TO_REAL = (Kind.COMPLEX_TO_REAL, Kind.REAL_TO_COMPLEX_TRANSPOSED)


def operand(kind, lead, n, dtype, seed=0):
    if kind in FROM_REAL:
        return random((*lead, n), dtype, seed)
    size = n // 2 + 1 if kind in TO_REAL else n
    return random((*lead, size), {"float32": "complex64", "float64": "complex128"}[dtype], seed)


def expected(x, kind, n):
    """By numpy, in double precision."""
    x = x.astype(complex if kind not in FROM_REAL else float)
    weights = hermitian_weights(n, float)
    match kind:
        case Kind.FORWARD:
            return np.fft.fft(x)
        case Kind.BACKWARD:
            return np.fft.ifft(x) * n
        case Kind.REAL_TO_COMPLEX:
            return np.fft.rfft(x)
        case Kind.COMPLEX_TO_REAL:
            return np.fft.irfft(x, n) * n
        case Kind.COMPLEX_TO_REAL_TRANSPOSED:
            return weights * np.fft.ifft(x)[..., : n // 2 + 1] * n
        case Kind.REAL_TO_COMPLEX_TRANSPOSED:
            padded = np.zeros((*x.shape[:-1], n), complex)
            padded[..., : n // 2 + 1] = x
            return np.fft.fft(padded).real


def close(actual, reference, dtype):
    tolerance = 2e-6 if dtype == "float32" else 4e-15
    error = np.abs(np.asarray(actual) - reference).max() / max(np.abs(reference).max(), 1e-300)
    assert error <= tolerance, error


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("kind", Kind, ids=lambda kind: kind.name)
def test_lengths(kind, dtype):
    # One line, and more than any vector has lanes.
    xs = {(n, lines): operand(kind, (lines,), n, dtype) for n in LENGTHS for lines in (1, 19)}

    @jax.jit
    def transformed(xs):
        return {key: fft_of_lines(x, kind, key[0], scale=0.5) for key, x in xs.items()}

    for key, y in transformed(xs).items():
        close(y, 0.5 * expected(xs[key], kind, key[0]), dtype)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("kind", Kind, ids=lambda kind: kind.name)
def test_two_axes(kind, dtype):
    sizes = itertools.product((1, 5, 16, 37), (1, 6, 9, 64))
    xs = {(rows, n): operand(kind, (3, rows), n, dtype) for rows, n in sizes}

    @jax.jit
    def transformed(xs):
        return {key: fft_of_lines(x, kind, key[1], axes=2, scale=0.25) for key, x in xs.items()}

    backward = kind in (Kind.BACKWARD, Kind.COMPLEX_TO_REAL, Kind.COMPLEX_TO_REAL_TRANSPOSED)
    across = np.fft.ifft if backward else np.fft.fft
    for (rows, n), y in transformed(xs).items():
        x = xs[rows, n]
        factor = rows if backward else 1
        if kind in TO_REAL:
            reference = expected(across(x, axis=-2) * factor, kind, n)
        else:
            reference = across(expected(x, kind, n), axis=-2) * factor
        close(y, 0.25 * reference, dtype)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("kind", Kind, ids=lambda kind: kind.name)
@pytest.mark.parametrize("axes", [1, 2])
def test_elsewhere_by_xla(kind, dtype, axes):
    """What GPUs run is the same function."""
    for n in (7, 8):
        x = jnp.asarray(operand(kind, (2, 5), n, dtype))
        params = {"kind": kind, "axes": axes, "n": n, "scale": 0.5}
        y = by_xla(x, **params)
        assert y.dtype == fft_of_lines(x, kind, n, axes=axes).dtype
        close(fft_of_lines(x, kind, n, axes=axes, scale=0.5), np.asarray(y), dtype)
        exported = jax.export.export(
            jax.jit(functools.partial(fft_of_lines, kind=kind, n=n, axes=axes)),
            platforms=["cuda"],
        )(x)
        text = exported.mlir_module()
        assert "stablehlo.fft" in text
        assert not re.search(r"type = +IFFT", text)  # wrong from 2^31 numbers on


@pytest.mark.parametrize("kind", Kind, ids=lambda kind: kind.name)
def test_more_numbers_than_xla_can_scale_on_gpus(kind):
    def program(lines):
        dtype = "float32" if kind in FROM_REAL else "complex64"
        x = jax.ShapeDtypeStruct((lines, 513 if kind in TO_REAL else 1024), dtype)
        transform = jax.jit(functools.partial(fft_of_lines, kind=kind, n=1024))
        return jax.export.export(transform, platforms=["cuda"])(x)

    program(2**21 - 1)
    if kind in TO_REAL:
        with pytest.raises(ValueError, match=r"to 2147483648 real numbers .* take more ranks"):
            program(2**21)
    else:
        program(2**21)


@pytest.mark.parametrize("kind", Kind, ids=lambda kind: kind.name)
def test_adjoint(kind):
    """<A x, y> = <x, A^T y> with complex probes."""
    for n in (7, 8):
        for axes in (1, 2):
            x = jnp.asarray(operand(kind, (3, 4), n, "float64", 1))
            y, pull = jax.vjp(lambda x, n=n, a=axes: fft_of_lines(x, kind, n, axes=a), x)
            v = jnp.asarray(random(y.shape, y.dtype, 2))
            (back,) = pull(v)
            assert back.dtype == x.dtype
            # Where one side is real, JAX's pairing is of real parts.
            left, right = jnp.sum(v * y), jnp.sum(back * x)
            if kind in FROM_REAL or kind in TO_REAL:
                left, right = jnp.real(left), jnp.real(right)
            assert abs(left - right) < 1e-12 * jnp.sum(jnp.abs(v)) * jnp.abs(y).max()


@pytest.mark.parametrize("dtype", ["complex64", "complex128", "float32", "float64"])
@pytest.mark.parametrize("n", [16, 29, 30, 60, 128, 97])
def test_a_line_has_the_same_bits_alone_and_among_others(n, dtype):
    """XLA's own do not: JAX 0.12 transforms what is left of a group of lines by other code."""
    kind = Kind.REAL_TO_COMPLEX if dtype.startswith("f") else Kind.FORWARD
    x = jnp.asarray(random((64, n), dtype))
    together = np.asarray(fft_of_lines(x, kind, n))
    for lines in (1, 2, 3, 7, 9, 31, 33):
        for first in (0, 5):
            some = fft_of_lines(x[first : first + lines], kind, n)
            np.testing.assert_array_equal(some, together[first : first + lines])
    if kind == Kind.FORWARD:
        across = jnp.swapaxes(fft_of_lines(jnp.swapaxes(x[None], 1, 2), kind, 64, axes=2), 1, 2)
        # Lines that lie across memory have the bits of those that lie along it.
        along = fft_of_lines(fft_of_lines(x.T, kind, 64).T, kind, n)
        np.testing.assert_array_equal(across[0], along)
        both = fft_of_lines(fft_of_lines(x, kind, n).T, kind, 64).T
        # The other order of the axes: the same but for rounding.
        close(across[0], np.asarray(both), {"complex64": "float32"}.get(dtype, "float64"))


def test_large_enough_for_threads():
    x = random((512, 128, 64), "complex64")
    y = jax.jit(lambda x: fft_of_lines(x, Kind.FORWARD, 64, axes=2))(jnp.asarray(x))
    close(y, np.fft.fft2(x.astype(complex)), "float32")
    again = jax.jit(lambda x: fft_of_lines(x, Kind.FORWARD, 64, axes=2))(jnp.asarray(x[:7]))
    np.testing.assert_array_equal(again, y[:7])


def test_empty():
    for axes in (1, 2):
        x = jnp.zeros((0, 3, 4), "complex64")
        assert fft_of_lines(x, Kind.FORWARD, 4, axes=axes).shape == (0, 3, 4)
        assert fft_of_lines(x[:, :0], Kind.FORWARD, 4, axes=1).shape == (0, 0, 4)


def test_nan_stays_in_its_line():
    x = random((20, 24), "complex128")
    x[3, 5] = np.nan
    y = np.asarray(fft_of_lines(jnp.asarray(x), Kind.FORWARD, 24))
    assert np.isnan(y[3]).all()
    assert np.isfinite(np.delete(y, 3, axis=0)).all()

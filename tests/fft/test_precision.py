"""Transforms whose numbers travel between ranks in half of their bits."""

import dataclasses
import functools
import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from mpi4py import MPI

import pfftjax
from pfftjax import (
    ExchangeMethod,
    ExchangePrecision,
    PencilFFT,
    PencilTransform,
    ProcessGrid,
    spectral,
)
from pfftjax._runtime.options import options
from tests.distributed import grids
from tests.helpers import SIZE, random
from tests.nodes import PLACEMENTS, on_nodes

pytestmark = [pytest.mark.mpi, pytest.mark.timeout(300)]
between_ranks = pytest.mark.skipif(SIZE == 1, reason="one rank has nobody to exchange with")
in_memory = pytest.mark.skipif(not options.shared_memory, reason="no rank shares memory")

HALF = ExchangePrecision.HALF
METHODS = tuple(
    method
    for method in ExchangeMethod
    if method != ExchangeMethod.PIPELINED
    and (
        options.shared_memory
        or method not in (ExchangeMethod.FUSED, ExchangeMethod.SHARED, ExchangeMethod.HIERARCHICAL)
    )
)
BLOCK = 16
# Bits of a mantissa, without its sign.
BITS = {np.dtype("float32"): 15, np.dtype("float64"): 31}


def coded(rows):
    """Complex rows along the last axis as they arrive, from the definition of the code."""
    reals = np.ascontiguousarray(rows).view(rows.real.dtype)
    n = reals.shape[-1]
    padding = [(0, 0)] * (reals.ndim - 1) + [(0, -n % BLOCK)]
    blocks = np.pad(reals, padding).reshape(*reals.shape[:-1], -1, BLOCK)
    bits = BITS[reals.dtype]
    most = np.abs(blocks).max(-1, keepdims=True, initial=0)
    mantissa, exponent = np.frexp(most)
    # The largest number may become a power of two when it is rounded.
    exponent += np.rint(np.ldexp(mantissa, bits)) == 2**bits
    arrived = np.ldexp(np.rint(np.ldexp(blocks, bits - exponent)), exponent - bits)
    arrived = np.ascontiguousarray(arrived.reshape(*reals.shape[:-1], -1)[..., :n])
    return arrived.astype(reals.dtype).view(rows.dtype)


@pytest.mark.ranks(2, 3, 4)
@between_ranks
@in_memory
@pytest.mark.parametrize("placement", PLACEMENTS, ids=str)
def test_all_methods_have_the_same_bits(placement):
    """Transforms and their transposes; complex and real, uneven and empty blocks, batches."""
    cases = [
        ((12, 10, 14), {"real": True}, "float64", ()),
        ((9, 7, 36), {"norm": "ortho"}, "complex64", (2,)),
        ((2, 3, 5), {}, "complex128", ()),  # blocks without elements
        ((23, 41, 18), {"real": True}, "float32", (3,)),
    ]
    methods = set(METHODS) - {ExchangeMethod.FUSED, ExchangeMethod.SHARED}
    if len(set(placement)) == 1:
        methods = METHODS
    with on_nodes(placement) as comm:
        for (shape, how, dtype, batch), grid in itertools.product(cases, grids(comm)):
            plan = PencilFFT(shape, grid, precision=HALF, **how)
            X = random((*batch, *plan.shape), dtype, 1)
            Y = random((*batch, *plan.spectral_shape), np.result_type(dtype, np.complex64), 2)
            x, y = plan.input.local_block(X), plan.output.local_block(Y)

            @jax.jit
            def everything(x, y, plan=plan):
                results = []
                for method in methods:
                    each = dataclasses.replace(plan, method=method)
                    forward, pull = jax.vjp(each.forward, x)
                    inverse, pull_inverse = jax.vjp(each.inverse, y)
                    results.append((forward, inverse, pull(y)[0], pull_inverse(x)[0]))
                return results

            first, *others = everything(x, y)
            for other in others:
                for a, b in zip(first, other, strict=True):
                    np.testing.assert_array_equal(a, b)
            exact = dataclasses.replace(plan, precision=ExchangePrecision.FULL)
            limit = 4e-4 if dtype in ("float32", "complex64") else 4e-9
            for got, expected in zip(first[:2], (exact.forward(x), exact.inverse(y)), strict=True):
                assert 0 < distance(got, expected) <= limit


@between_ranks
@pytest.mark.parametrize("dtype", ["complex64", "complex128"])
def test_each_number_is_rounded_as_the_code_says(dtype):
    """Bit by bit: one plane is not zero, so that mode 0 along axis 0 is what has travelled."""
    grid = ProcessGrid((SIZE, 1))
    shape = (SIZE, 3 * SIZE + 1, 37)
    plan = PencilFFT(shape, grid, precision=HALF)
    exact = dataclasses.replace(plan, precision=ExchangePrecision.FULL)
    rng = np.random.default_rng(5)
    scales = np.exp(rng.uniform(-30, 30, shape[1:]))
    for source in range(SIZE):
        x = np.zeros(shape, dtype)
        x[source] = np.fft.ifftn(scales * random(shape[1:], "complex128", source))
        block = plan.input.local_block(x.astype(dtype))
        sent = np.asarray(exact.forward(block))[..., 0]
        arrived = np.asarray(plan.forward(block))[..., 0]
        expected = sent if source == grid.communicator.rank else coded(sent)
        np.testing.assert_array_equal(arrived, expected)


def distance(a, b):
    """The L2 norm of a difference, of that of `b`."""
    parts = [float(np.sum(np.abs(np.asarray(each)) ** 2)) for each in (a - b, b)]
    difference, norm = MPI.COMM_WORLD.allreduce(np.array(parts))
    return np.sqrt(difference / norm) if norm > 0 else 0.0


def spectrum_of_six_decades(n, seed=0):
    """A field whose power falls by 1e6 from the lowest to the highest k."""
    k = np.fft.fftfreq(n, 1 / n)
    size = np.sqrt(k[:, None, None] ** 2 + k[:, None] ** 2 + k**2)
    power = np.maximum(size, 1) ** (-6 / np.log10(size.max()))
    rng = np.random.default_rng(seed)
    noise = rng.standard_normal((2, n, n, n))
    modes = (noise[0] + 1j * noise[1]) * np.sqrt(power)
    return np.fft.ifftn(modes).astype(np.complex64)


@between_ranks
def test_forward_and_inverse_of_a_steep_spectrum():
    n = 32
    for grid in grids():
        plan = PencilFFT((n, n, n), grid, precision=HALF)
        x = plan.input.local_block(spectrum_of_six_decades(n))
        back = jax.jit(lambda x, plan=plan: plan.inverse(plan.forward(x)))(x)
        # The exchanges of one direction round this part of the numbers; the others then have
        # little left to round. With one bit less in a mantissa the error doubles.
        part = sum(1 - 1 / size for size in grid.dims)
        relative = distance(back, x)
        assert relative < 5e-5 * np.sqrt(part) < 1e-4, (grid.dims, relative)


@between_ranks
@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("dtype", ["complex64", "complex128"])
def test_what_is_not_finite_arrives_as_nan(bad, dtype):
    """And so does what shares its block, where it has travelled; zeros are zeros."""
    grid = ProcessGrid((SIZE, 1))
    shape = (SIZE, SIZE, 40)
    plan = PencilFFT(shape, grid, precision=HALF)
    x = np.zeros(shape, dtype)
    x[0, 0, 0] = bad
    y = np.asarray(plan.forward(plan.input.local_block(x)))
    assert not np.isfinite(y).any()
    assert grid.communicator.rank == 0 or np.isnan(y).all()
    zeros = np.asarray(plan.forward(jnp.zeros(plan.input.local_shape, dtype)))
    np.testing.assert_array_equal(zeros, 0)


@between_ranks
@pytest.mark.parametrize("method", METHODS, ids=lambda method: method.name)
def test_gradients_and_divergences(method):
    """Several arrays at once, and the transpose."""
    shape, sides = (12, 20, 34), (1.0, 2.0, 3.0)
    for grid in grids():
        results = []
        for precision in ExchangePrecision:
            plan = PencilFFT(shape, grid, real=True, method=method, precision=precision)
            how = {"plan": plan, "box_size": sides}
            y = plan.output.local_block(random(plan.spectral_shape, "complex64", 3))
            of_scalar = functools.partial(spectral.gradient, from_spectrum=True, **how)
            gradient, pull = jax.vjp(of_scalar, y)
            divergence = spectral.divergence(gradient, to_spectrum=True, **how)
            results.append((*gradient, divergence, pull(gradient)[0]))
        for exact, rounded in zip(*results, strict=True):
            assert 0 < distance(rounded, exact) <= 3e-4


@between_ranks
def test_batches_have_the_bits_of_their_members():
    plan = PencilFFT((10, 9, 34), ProcessGrid((1, SIZE)), precision=HALF)
    x = plan.input.local_block(random((3, *plan.shape), "complex64", 7))
    together = jax.jit(jax.vmap(plan.forward))(x)
    for one, member in zip(together, x, strict=True):
        np.testing.assert_array_equal(one, plan.forward(member))


@between_ranks
def test_derivatives_are_those_of_the_exact_transform():
    """The tangent of a rounded transform is the transform of the tangent, not zero or a step."""
    plan = PencilFFT((8, 9, 20), ProcessGrid((SIZE, 1)), precision=HALF)
    x, v = (plan.input.local_block(random(plan.shape, "complex64", seed)) for seed in (1, 2))
    _, tangent = jax.jvp(plan.forward, (x,), (v,))
    np.testing.assert_array_equal(tangent, plan.forward(v))


def test_functions_take_it():
    grid = ProcessGrid()
    plan = PencilFFT((6, 8, 20), grid, precision=HALF)
    x = plan.input.local_block(random(plan.shape, "complex64", 1))
    y = pfftjax.fft3d(x, grid, shape=plan.shape, precision=HALF)
    np.testing.assert_array_equal(y, plan.forward(x))
    back = pfftjax.ifft3d(y, grid, shape=plan.shape, precision=HALF)
    np.testing.assert_array_equal(back, plan.inverse(y))


def test_on_one_rank_nothing_is_rounded():
    grid = ProcessGrid((1, 1), pfftjax.ProcessGrid().comm.Split(color=grids()[0].comm.rank))
    plans = [PencilFFT((6, 8, 20), grid, precision=each) for each in ExchangePrecision]
    x = random((6, 8, 20), "complex64", 1)
    full, half = (plan.forward(x) for plan in plans)
    np.testing.assert_array_equal(full, half)


@between_ranks
def test_padding_has_the_precision_of_the_plan_with_fewer_points():
    grid = ProcessGrid((SIZE, 1))
    small, large = (
        [PencilFFT(shape, grid, precision=each) for each in ExchangePrecision]
        for shape in ((6, 8, 20), (9, 12, 30))
    )
    x = large[0].input.local_block(random(large[0].shape, "complex64", 1))
    y = small[0].output.local_block(random(small[0].shape, "complex64", 2))
    ways = []
    for few, many in itertools.product(small, large):
        forward = pfftjax.fft.truncated_forward(x, many, few)
        ways.append((forward, pfftjax.fft.padded_inverse(y, few, many)))
    for i, j in ((0, 1), (2, 3)):
        for a, b in zip(ways[i], ways[j], strict=True):
            np.testing.assert_array_equal(a, b)
    for full, half in zip(ways[0], ways[2], strict=True):
        assert 0 < distance(half, full) <= 4e-4


@pytest.mark.ranks(1, 2)
def test_plans_that_cannot_round_are_refused_on_any_number_of_ranks():
    slabs = ProcessGrid((SIZE, 1))
    with pytest.raises(ValueError, match=r"with layout='transposed', got 3 axes .*'natural'"):
        PencilFFT((4, 4, 4), slabs, layout="natural", precision=HALF)
    for shape, kinds in [((4, 4), ("fft", "fft")), ((4, 4, 4), ("dct2", "dct2", "dct2"))]:
        with pytest.raises(ValueError, match=r"take ExchangePrecision\.FULL"):
            PencilTransform(shape, slabs, kinds, precision=HALF)


@pytest.mark.wrong_types
def test_what_is_no_precision_is_refused():
    with pytest.raises(TypeError, match="precision must be one of ExchangePrecision"):
        PencilFFT((4, 4, 4), ProcessGrid(), precision=1)


def test_it_is_part_of_a_plans_value():
    grid = ProcessGrid()
    full, half = (PencilFFT((4, 4, 4), grid, precision=each) for each in ExchangePrecision)
    assert full != half
    assert "precision=ExchangePrecision.HALF" in repr(half)
    assert "precision HALF" in half.describe().title
    assert "precision" not in full.describe().title
    assert PencilFFT((4, 4, 4), grid) == full
    text = jax.jit(half.forward).lower(jnp.ones(half.input.local_shape)).as_text()
    assert SIZE == 1 or "precision = 1 : i64" in text
    assert SIZE == 1 or "in half of the bits" in text


def test_what_travels_is_at_most_0_53_of_the_bytes():
    """By what plans say that they send, in rows that are not tiny."""
    for grid, dtype in itertools.product(grids(), ("complex64", "complex128")):
        full, half = (
            sum(
                stage.sent_bytes
                for stage in PencilFFT((64, 64, 64), grid, precision=each).describe(dtype).stages
            )
            for each in ExchangePrecision
        )
        assert SIZE == 1 or 0.5 * full < half <= 0.53 * full
        assert SIZE > 1 or half == full == 0

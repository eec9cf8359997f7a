"""Transforms in the memory of what they are given."""

import dataclasses
import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from pfftjax import PencilFFT
from pfftjax.fft._fused import Fused
from pfftjax.fft._local import Kind, Local
from tests.distributed import TOLERANCE, assert_block, grids
from tests.helpers import random

pytestmark = [pytest.mark.mpi, pytest.mark.messages]

N = 12  # every grid of up to four ranks has equal blocks
COPY = re.compile(r"= c\d+\[\d[^ ]* copy\(")


@pytest.mark.filterwarnings("error")  # of donated buffers that were not usable
@pytest.mark.parametrize("dtype", ["complex64", "complex128"])
def test_a_donated_block_becomes_the_spectrum(dtype):
    whole = random((2, N, N, N), dtype)
    expected = np.fft.fftn(whole, axes=(1, 2, 3))
    tolerance = TOLERANCE[dtype]
    plans = [PencilFFT((N, N, N), grid) for grid in grids()]
    plans += [PencilFFT((N, N, N), grid, layout="natural") for grid in grids()]

    def forward(xs):
        return [plan.forward(x) for plan, x in zip(plans, xs, strict=True)]

    def there_and_back(xs):
        return [plan.inverse(plan.forward(x)) for plan, x in zip(plans, xs, strict=True)]

    def still_wanted(xs):
        return [(plan.forward(x), x + 1) for plan, x in zip(plans, xs, strict=True)]

    def donated(function):
        xs = [jnp.asarray(plan.input.local_block(whole)) + 0 for plan in plans]
        places = [x.unsafe_buffer_pointer() for x in xs]
        ys = jax.jit(function, donate_argnums=0)(xs)
        assert all(x.is_deleted() for x in xs)
        return ys, places

    kept = jax.jit(forward)([plan.input.local_block(whole) for plan in plans])
    ys, places = donated(forward)
    for plan, y, place, other in zip(plans, ys, places, kept, strict=True):
        assert y.unsafe_buffer_pointer() == place
        np.testing.assert_array_equal(y, other)  # the same bits
        assert_block(y, expected, plan.output, tolerance)
    for plan, x in zip(plans, donated(there_and_back)[0], strict=True):
        assert_block(x, whole, plan.input, 10 * tolerance)
    for plan, (y, x) in zip(plans, donated(still_wanted)[0], strict=True):
        assert_block(y, expected, plan.output, tolerance)
        assert_block(x, whole + 1, plan.input, tolerance)


def test_nothing_is_copied():
    whole = random((N, N, N), "complex128")
    plans = [PencilFFT((N, N, N), grid) for grid in grids()]

    def forward(xs):
        return [plan.forward(x) for plan, x in zip(plans, xs, strict=True)]

    xs = [jnp.asarray(plan.input.local_block(whole)) for plan in plans]
    compiled = jax.jit(forward, donate_argnums=0).lower(xs).compile()
    assert not COPY.search(compiled.as_text())
    assert compiled.memory_analysis().temp_size_in_bytes < xs[0].nbytes / 2


def test_what_only_moves_before_a_transform():
    """In place there is nothing between what is sent and what arrives."""
    whole = random((N, N, N), "complex128")
    plans = [PencilFFT((N, N, N), grid) for grid in grids() if grid.dims[1] == 1]

    @jax.jit
    def moved(xs):
        along = Local(Kind.FORWARD, N)
        steps = [
            Fused.between(None, p.input, p.output, along, p.method, p.precision) for p in plans
        ]
        return [
            dataclasses.replace(step, private=(True, False))(2 * x)
            for step, x in zip(steps, xs, strict=True)
        ]

    for plan, y in zip(plans, moved([p.input.local_block(whole) for p in plans]), strict=True):
        assert_block(y, 2 * np.fft.fft(whole, axis=0), plan.output, 1e-13)
